//! Where NVRTC may be, in the order in which it is looked for: the system's libraries, CUDA toolkits, Python's packages,
//! the project's own directory.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Names of the library, newest first, as a dynamic loader takes them.
#[cfg(not(windows))]
const NAMES: &[&str] = &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"];
/// Names of the library, newest first, as a dynamic loader takes them.
#[cfg(windows)]
const NAMES: &[&str] = &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"];

/// Folders of NVIDIA's wheels that hold the library, below a directory of Python packages.
pub(super) const WHEEL_LIBRARIES: &[&str] =
    &["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib", "nvidia/cu13/bin/x86_64", "nvidia/cu13/bin", "nvidia/cuda_nvrtc/bin"];

/// Folders of NVIDIA's wheels that hold programs.
pub(super) const WHEEL_PROGRAMS: &[&str] =
    &["nvidia/cu13/bin", "nvidia/cuda_nvdisasm/bin", "nvidia/cuda_cuobjdump/bin", "nvidia/cuda_nvcc/bin"];

/// What the dynamic loader finds by name.
pub(super) fn by_name() -> Vec<PathBuf> {
    NAMES.iter().map(PathBuf::from).collect()
}

/// Folders of CUDA toolkits, newest first.
pub(super) fn toolkits() -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> =
        ["CUDA_HOME", "CUDA_PATH", "CUDA_ROOT"].iter().filter_map(std::env::var_os).map(PathBuf::from).collect();
    roots.push(PathBuf::from("/usr/local/cuda"));
    let mut versions: Vec<PathBuf> = std::fs::read_dir("/usr/local")
        .into_iter()
        .flatten()
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cuda-")))
        .collect();
    versions.sort();
    roots.extend(versions.into_iter().rev());
    roots.push(PathBuf::from("/opt/cuda"));
    roots.retain(|r| r.is_dir());
    roots.dedup();
    roots
}

/// Folders of libraries of CUDA toolkits and of the system.
pub(super) fn toolkit_libraries() -> Vec<PathBuf> {
    let inside = ["lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "bin"];
    let mut folders: Vec<PathBuf> = toolkits().iter().flat_map(|root| inside.map(|i| root.join(i))).collect();
    folders.extend(["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64"].map(PathBuf::from));
    folders.retain(|f| f.is_dir());
    folders
}

/// Folders of Python's packages, as the `python3` on the path tells.
pub(super) fn python_packages() -> Result<Vec<PathBuf>, String> {
    const ASK: &str = "import site, sys
for p in dict.fromkeys([*site.getsitepackages(), site.getusersitepackages(), *sys.path]):
    if p:
        print(p)";
    let python = python().ok_or("no python3 on PATH")?;
    let output = Command::new(python).args(["-c", ASK]).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        return Err(format!("{python} failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().map(PathBuf::from).filter(|p| p.is_dir()).collect())
}

/// The Python interpreter that can be run.
pub(super) fn python() -> Option<&'static str> {
    let runs = |name: &&'static str| Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success());
    ["python3", "python"].into_iter().find(|name| runs(name))
}

/// Files of the library in `folder`, newest first.
pub(super) fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = NAMES.iter().map(|n| folder.join(n)).filter(|p| p.is_file()).collect();
    // `libnvrtc.so` is usually a link to one of the others.
    found.dedup_by_key(|p| p.canonicalize().ok());
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn newest_library_of_a_folder_first_and_links_once() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("libnvrtc.so.12"), "").expect("writes");
        std::fs::write(dir.path().join("libnvrtc.so.13"), "").expect("writes");
        let names = || -> Vec<String> {
            let name = |p: &PathBuf| p.file_name().expect("a file").to_string_lossy().into_owned();
            in_folder(dir.path()).iter().map(name).collect()
        };
        assert_eq!(names(), ["libnvrtc.so.13", "libnvrtc.so.12"]);
        std::os::unix::fs::symlink(dir.path().join("libnvrtc.so.12"), dir.path().join("libnvrtc.so")).expect("links");
        assert_eq!(names(), ["libnvrtc.so.13", "libnvrtc.so.12"]);
        assert!(in_folder(Path::new("/nonexistent")).is_empty());
    }
}
