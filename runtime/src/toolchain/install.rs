//! Installs the official wheel of a tool into the project's own directory, once, whoever asks first; and opens what was installed,
//! which is loaded or run only if it is the pinned one ([`wheels`](super::wheels)) in a directory that nobody else can change.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::locate;
use super::wheels::Wheel;
use crate::private::{Directory, Distrust, Trouble, Trust};

/// Directory of installed wheels, below the project's own.
const FOLDER: &str = "toolchain";
const LOCK: &str = "lock";

/// The files of an installed wheel that are loaded or run, open and found to be the pinned ones.
#[derive(Debug)]
pub(super) struct Installed {
    /// Their paths, in the order in which they are loaded.
    pub files: Vec<(PathBuf, File)>,
}

/// Why an installed wheel is not used.
#[derive(Debug, thiserror::Error)]
pub(super) enum WheelFault {
    #[error("there is no {0} for this platform")]
    NoBuild(String),
    #[error("{} is not the file that {wheel} holds; remove {} to have it installed anew", file.display(), directory.display())]
    Altered { wheel: String, file: PathBuf, directory: PathBuf },
    #[error(transparent)]
    Trouble(#[from] Trouble),
}

impl From<Distrust> for WheelFault {
    fn from(distrust: Distrust) -> Self {
        Trouble::from(distrust).into()
    }
}

impl WheelFault {
    /// Whether it is merely not installed.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Trouble(Trouble::Missing(_)))
    }
}

/// Where wheels are installed, and whose files are taken from there.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The project's own directory.
    pub base: PathBuf,
    /// Whose files are taken.
    pub trust: Trust,
}

impl Wheel {
    /// Name of its directory.
    fn folder(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Where it is installed.
    pub fn directory(&self, place: &Place) -> PathBuf {
        place.base.join(FOLDER).join(self.folder())
    }

    /// The installed wheel, if it is there and good.
    pub fn installed(&self, place: &Place) -> Result<Installed, WheelFault> {
        self.open(&Directory::open(&place.base, place.trust)?.child(FOLDER)?)
    }

    /// Installs it with pip, unless it is there. Processes that ask at the same time wait for the first.
    pub fn install(&self, place: &Place, progress: &dyn Fn(&str)) -> Result<Installed, String> {
        self.install_with(place, progress, |target, requirements| self.pip(target, requirements))
    }

    fn open(&self, wheels: &Directory) -> Result<Installed, WheelFault> {
        let build = self.build().ok_or_else(|| WheelFault::NoBuild(self.requirement()))?;
        let top = wheels.child(&self.folder())?;
        let mut files = Vec::new();
        for (path, pinned) in build.files {
            let (folders, name) = path.rsplit_once('/').expect("files of wheels lie in folders");
            let mut folder = wheels.child(&self.folder())?;
            for part in folders.split('/') {
                folder = folder.child(part)?;
            }
            let file = folder.open_file(name)?;
            let at = folder.path().join(name);
            let mut hasher = blake3::Hasher::new();
            hasher.update_reader(&file).map_err(|e| Trouble::io("read", &at, e))?;
            if hasher.finalize().to_hex().as_str() != *pinned {
                let directory = top.path().to_owned();
                return Err(WheelFault::Altered { wheel: self.requirement(), file: at, directory });
            }
            files.push((at, file));
        }
        Ok(Installed { files })
    }

    fn install_with(
        &self,
        place: &Place,
        progress: &dyn Fn(&str),
        fill: impl FnOnce(&Path, &Path) -> Result<(), String>,
    ) -> Result<Installed, String> {
        let told = |trouble: Trouble| format!("cannot install it: {trouble}");
        if self.build().is_none() {
            return Err(format!("cannot install it: {}", WheelFault::NoBuild(self.requirement())));
        }
        let wheels = Directory::create(&place.base, place.trust).and_then(|base| base.create_child(FOLDER)).map_err(told)?;
        let lock = wheels.lock_file(LOCK).map_err(told)?;
        if lock.try_lock().is_err() {
            progress(&format!("waiting for another process that installs {}", self.name));
            lock.lock().map_err(|e| told(Trouble::io("lock", &wheels.path().join(LOCK), e)))?;
        }
        let folder = self.folder();
        match self.open(&wheels) {
            Ok(installed) => return Ok(installed), // by whoever held the lock
            Err(_) if !wheels.holds(&folder) => {}
            Err(fault) => {
                let aside = (1..).map(|n| format!("{folder}.bad-{n}")).find(|other| !wheels.holds(other));
                let aside = aside.expect("numbers do not run out");
                wheels.rename(&folder, &aside).map_err(told)?;
                progress(&format!("{folder} is not used and set aside as {aside}: {fault}"));
            }
        }
        // What a killed process left: the lock is ours, so nobody works there.
        let (partial, requirements) = (format!(".partial-{}", self.name), format!(".requirements-{}", self.name));
        let target = wheels.path().join(&partial);
        let _ = fs::remove_dir_all(&target);
        let _ = wheels.remove(&partial);
        let _ = wheels.remove(&requirements);
        wheels.create_child(&partial).map_err(told)?;
        wheels
            .create_file(&requirements)
            .and_then(|mut file| {
                let written = io::Write::write_all(&mut file, self.pinned_requirement().as_bytes());
                written.map_err(|e| Trouble::io("write", &wheels.path().join(&requirements), e))
            })
            .map_err(told)?;
        progress(&format!("installing {} into {}", self.requirement(), wheels.path().join(&folder).display()));
        let filled = fill(&target, &wheels.path().join(&requirements));
        let _ = wheels.remove(&requirements);
        let filled = filled.and_then(|()| tighten(&target).map_err(|e| told(Trouble::io("tighten", &target, e))));
        if let Err(reason) = filled {
            let _ = fs::remove_dir_all(&target);
            return Err(reason);
        }
        wheels.rename(&partial, &folder).map_err(told)?;
        let installed = self.open(&wheels).map_err(|fault| format!("cannot install it: {fault}"))?;
        progress(&format!("installed {}", self.requirement()));
        Ok(installed)
    }

    fn pip(&self, target: &Path, requirements: &Path) -> Result<(), String> {
        let python = locate::python().ok_or("cannot install it: no python3 on PATH")?;
        let output = Command::new(python)
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps"])
            .args(["--only-binary=:all:", "--require-hashes", "--retries", "1", "--timeout", "20", "--target"])
            .arg(target)
            .arg("-r")
            .arg(requirements)
            // Python looks for modules in the current directory first, which may be anybody's.
            .current_dir(target)
            .output()
            .map_err(|e| format!("cannot install it: failed to run {python}: {e}"))?;
        if output.status.success() {
            return Ok(());
        }
        let stderr = String::from_utf8_lossy(&output.stderr);
        let last = gist(&stderr);
        Err(format!("cannot install it: `{python} -m pip install {}` failed:\n  {last}", self.requirement()))
    }
}

/// Takes from others the right to write what was unpacked, which the user's mask may have left them.
fn tighten(directory: &Path) -> io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mut pending = vec![directory.to_owned()];
        while let Some(path) = pending.pop() {
            let found = fs::symlink_metadata(&path)?;
            if found.is_symlink() {
                continue;
            }
            if found.is_dir() {
                for entry in fs::read_dir(&path)? {
                    pending.push(entry?.path());
                }
            }
            fs::set_permissions(&path, fs::Permissions::from_mode(found.permissions().mode() & 0o7755))?;
        }
    }
    #[cfg(not(unix))]
    let _ = directory;
    Ok(())
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
    use super::super::wheels::Build;
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Of a file that holds `content`.
    static WHEEL: Wheel = Wheel {
        name: "some-tool",
        version: "1.2.3",
        builds: &[Build {
            platform: (std::env::consts::OS, std::env::consts::ARCH),
            archive: "",
            files: &[("bin/file", "3fba5250be9ac259c56e7250c526bc83bacb4be825f2799d3d59e5b4878dd74e")],
        }],
    };

    fn place(base: &Path) -> Place {
        Place { base: base.to_owned(), trust: Trust::Own }
    }

    fn fill_with(content: &str) -> impl Fn(&Path, &Path) -> Result<(), String> {
        move |target, _| {
            let made = fs::create_dir(target.join("bin")).and_then(|()| fs::write(target.join("bin/file"), content));
            made.map_err(|e| e.to_string())
        }
    }

    #[test]
    fn many_ask_and_one_installs() {
        let base = tempfile::tempdir().expect("a directory");
        let installs = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let fill = |target: &Path, requirements: &Path| {
                        installs.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(std::time::Duration::from_millis(20));
                        let text = fs::read_to_string(requirements).expect("is there");
                        assert_eq!(text, "some-tool==1.2.3 --hash=sha256:\n");
                        fill_with("content")(target, requirements)
                    };
                    let installed = WHEEL.install_with(&place(base.path()), &|_| {}, fill).expect("installs");
                    let (path, _) = &installed.files[0];
                    assert_eq!(fs::read_to_string(path).expect("is there"), "content");
                    assert!(path.starts_with(WHEEL.directory(&place(base.path())).canonicalize().expect("is there")));
                });
            }
        });
        assert_eq!(installs.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_failure_leaves_nothing_and_can_be_repeated() {
        let base = tempfile::tempdir().expect("a directory");
        let place = place(base.path());
        let fill = |target: &Path, _: &Path| {
            fs::write(target.join("half"), "").map_err(|e| e.to_string())?;
            Err("no network".to_owned())
        };
        assert_eq!(WHEEL.install_with(&place, &|_| {}, fill).expect_err("fails"), "no network");
        assert!(!WHEEL.directory(&place).exists() && WHEEL.installed(&place).expect_err("is not there").is_missing());
        let installed = WHEEL.install_with(&place, &|_| {}, fill_with("content")).expect("installs");
        assert!(installed.files[0].0.exists() && !WHEEL.directory(&place).join("half").exists());
        let names: Vec<_> =
            fs::read_dir(base.path().join(FOLDER)).expect("lists").map(|e| e.expect("lists").file_name()).collect();
        assert_eq!(names.len(), 2, "the wheel and the lock: {names:?}");
    }

    #[test]
    fn a_file_that_is_not_the_pinned_one_is_not_used_and_installed_anew() {
        let base = tempfile::tempdir().expect("a directory");
        let place = place(base.path());
        let error = WHEEL.install_with(&place, &|_| {}, fill_with("something else")).expect_err("is not the pinned one");
        assert!(error.contains("is not the file that some-tool==1.2.3 holds"), "{error}");
        let told = Mutex::new(Vec::new());
        let tell = |line: &str| told.lock().expect("no panic").push(line.to_owned());
        let installed = WHEEL.install_with(&place, &tell, fill_with("content")).expect("installs");
        assert!(WHEEL.installed(&place).is_ok());
        // What somebody changes later is found out too.
        fs::write(&installed.files[0].0, "CONTENT").expect("writes");
        let fault = WHEEL.installed(&place).expect_err("is altered");
        assert!(matches!(fault, WheelFault::Altered { .. }), "{fault}");
        WHEEL.install_with(&place, &tell, fill_with("content")).expect("installs");
        let told = told.into_inner().expect("no panic");
        assert!(told.iter().any(|l| l.contains("set aside as some-tool-1.2.3.bad-2")), "{told:?}");
    }

    #[test]
    #[cfg(unix)]
    fn nothing_is_used_that_others_can_write() {
        use std::os::unix::fs::PermissionsExt;
        let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("sets");
        let base = tempfile::tempdir().expect("a directory");
        let place = place(base.path());
        let generous = |target: &Path, requirements: &Path| {
            fill_with("content")(target, requirements)?;
            chmod(&target.join("bin"), 0o777);
            chmod(&target.join("bin/file"), 0o666);
            Ok(())
        };
        let installed = WHEEL.install_with(&place, &|_| {}, generous).expect("takes the rights of others away");
        let file = installed.files[0].0.clone();
        for shared in [file.as_path(), file.parent().expect("a folder"), base.path()] {
            let before = fs::metadata(shared).expect("is there").permissions();
            chmod(shared, 0o777);
            let fault = WHEEL.installed(&place).expect_err("others can write it");
            assert!(fault.to_string().contains("can be written by others (mode 0777)"), "{fault}");
            let anyone = Place { trust: Trust::Anyone, ..place.clone() };
            assert!(WHEEL.installed(&anyone).is_ok(), "the user said so");
            fs::set_permissions(shared, before).expect("sets");
        }
        assert!(WHEEL.installed(&place).is_ok());
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
        let error = WHEEL.install_with(&place(file.path()), &|_| {}, |_, _| Ok(())).expect_err("a file is no directory");
        assert!(error.starts_with("cannot install it: ") && error.contains("not a directory"), "{error}");
    }
}
