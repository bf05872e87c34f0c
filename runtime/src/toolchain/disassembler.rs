//! Machine code to text, with NVIDIA's tools: nvdisasm, or cuobjdump.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::handle::ToolchainOptions;
use super::{ToolchainError, install, locate};

/// Names of the tools and how each is asked.
const TOOLS: &[(&str, &[&str])] = &[("nvdisasm", &["-c", "-plr"]), ("cuobjdump", &["-sass"])];

pub(super) fn disassemble(cubin: &[u8], options: &ToolchainOptions) -> Result<String, ToolchainError> {
    let (tool, arguments) = find(options)?;
    let failed = |reason: String| ToolchainError::Tool { tool: tool.display().to_string(), reason };
    let file = TemporaryFile::create(cubin).map_err(&failed)?;
    let output = Command::new(&tool).args(arguments).arg(&file.path).output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn find(options: &ToolchainOptions) -> Result<(PathBuf, &'static [&'static str]), ToolchainError> {
    let mut folders: Vec<PathBuf> = std::env::var_os("PATH").map(|p| std::env::split_paths(&p).collect()).unwrap_or_default();
    let mut looked_in = vec!["PATH".to_owned()];
    let mut look = |folder: PathBuf, looked_in: &mut Vec<String>| {
        looked_in.push(folder.display().to_string());
        folders.push(folder);
    };
    // Beside an NVRTC that was given explicitly lie the programs of the same toolkit.
    let beside = options.nvrtc.as_deref().map(|p| if p.is_dir() { p } else { p.parent().unwrap_or(p) });
    for root in beside.into_iter().flat_map(Path::parent).map(Path::to_owned).chain(locate::toolkits()) {
        look(root.join("bin"), &mut looked_in);
    }
    let own = options.directory.as_ref().map(|base| install::NVDISASM.directory(base));
    for packages in locate::python_packages().unwrap_or_default().into_iter().chain(own) {
        for inside in locate::WHEEL_PROGRAMS {
            look(packages.join(inside), &mut looked_in);
        }
    }
    let in_folders = |folders: &[PathBuf]| {
        TOOLS.iter().find_map(|(tool, arguments)| {
            let name = format!("{tool}{}", std::env::consts::EXE_SUFFIX);
            folders.iter().map(|f| f.join(&name)).find(|p| p.is_file()).map(|p| (p, *arguments))
        })
    };
    if let Some(found) = in_folders(&folders) {
        return Ok(found);
    }
    if let (true, Some(base)) = (options.install, &options.directory) {
        match install::NVDISASM.install(base, &*options.progress) {
            Ok(own) => {
                let folders: Vec<_> = locate::WHEEL_PROGRAMS.iter().map(|inside| own.join(inside)).collect();
                if let Some(found) = in_folders(&folders) {
                    return Ok(found);
                }
                looked_in.push(format!("{}: installed, but the tool is not in it", own.display()));
            }
            Err(reason) => looked_in.push(format!("the package index: {reason}")),
        }
    }
    let wheel = install::NVDISASM.requirement();
    Err(ToolchainError::NoTool { tool: "nvdisasm or cuobjdump".to_owned(), looked_in, wheel })
}

/// A file with a name of its own, removed on drop.
struct TemporaryFile {
    path: PathBuf,
}

impl TemporaryFile {
    fn create(bytes: &[u8]) -> Result<Self, String> {
        let name = format!("flashtile-{}-{}.cubin", std::process::id(), blake3::hash(bytes).to_hex());
        let path = std::env::temp_dir().join(name);
        let mut file = std::fs::File::create(&path).map_err(|e| format!("failed to create {}: {e}", path.display()))?;
        let file = file.write_all(bytes).map(|()| Self { path: path.clone() });
        file.map_err(|e| format!("failed to write {}: {e}", path.display()))
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // Nothing is lost if it stays.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use crate::toolchain::Toolchain;

    #[test]
    #[ignore = "needs NVRTC and nvdisasm: found, or installed once"]
    fn machine_code_becomes_text() {
        let toolchain = Toolchain::shared();
        let source = "extern \"C\" __global__ void one(float* x) { x[threadIdx.x] = 1.0f; }";
        let compiled = toolchain.compile(source, "one.cu", "sm_90a").expect("compiles");
        let text = toolchain.disassemble(&compiled.cubin).expect("disassembles");
        assert!(text.contains("STG") && text.contains("EXIT"), "{text}");
        let error = toolchain.disassemble(b"no cubin").expect_err("is none").to_string();
        assert!(error.contains(" failed: "), "{error}");
    }
}
