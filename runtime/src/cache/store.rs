//! Files of the cache: written whole or not at all, checked when read, set aside when bad.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::content::Content;
use super::envelope::{Fault, Kind};

/// Told of trouble, one line each.
pub(super) type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// Writes the bytes of a file. A seam for tests, which put a full disk here.
pub(super) type WriteBytes = fn(&mut File, &[u8]) -> io::Result<()>;

/// A directory of entries.
pub(super) struct Store {
    root: PathBuf,
    warn: Warn,
    write_bytes: WriteBytes,
    /// Whether it has been said that nothing can be written.
    complained: AtomicBool,
}

/// Suffix of entries.
pub(super) const SUFFIX: &str = "entry";
const TEMPORARY: &str = ".tmp-";

impl Store {
    pub fn new(root: PathBuf, warn: Warn) -> Self {
        Self { root, warn, write_bytes: |file, bytes| file.write_all(bytes), complained: AtomicBool::new(false) }
    }

    #[cfg(test)]
    pub fn with_writer(root: PathBuf, warn: Warn, write_bytes: WriteBytes) -> Self {
        Self { write_bytes, ..Self::new(root, warn) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    fn folder(&self, kind: Kind) -> PathBuf {
        self.root.join(kind.folder())
    }

    pub fn path(&self, kind: Kind, stem: &str) -> PathBuf {
        self.folder(kind).join(format!("{stem}.{SUFFIX}"))
    }

    /// The entry of this name, if it is there and good. A bad one is set aside.
    pub fn read<C: Content>(&self, stem: &str) -> Option<C> {
        let path = self.path(C::KIND, stem);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) => {
                if !matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) {
                    (self.warn)(&format!("failed to read {}: {e}; going on without it", path.display()));
                }
                return None;
            }
        };
        let content = C::unseal(&bytes).and_then(|content| match content.file_stem() == stem {
            true => Ok(content),
            false => Err(Fault::Key),
        });
        content.map_err(|fault| self.set_aside(&path, &fault)).ok()
    }

    /// Writes an entry, after `update` has seen what is there now. Never fails: a cache that cannot be written warns once.
    pub fn update<C: Content>(&self, stem: &str, update: impl FnOnce(Option<C>) -> C) -> bool {
        match self.try_update(stem, update) {
            Ok(()) => true,
            Err(e) => {
                if !self.complained.swap(true, Ordering::Relaxed) {
                    let root = self.root.display();
                    (self.warn)(&format!("cannot write to the cache in {root}: {e}; going on without keeping results"));
                }
                false
            }
        }
    }

    fn try_update<C: Content>(&self, stem: &str, update: impl FnOnce(Option<C>) -> C) -> io::Result<()> {
        let _lock = self.lock()?;
        let content = update(self.read(stem)).seal();
        self.write_file(C::KIND, stem, &content)
    }

    /// The lock that processes share, held until it is dropped.
    pub fn lock(&self) -> io::Result<File> {
        fs::create_dir_all(&self.root)?;
        let lock = File::options().create(true).truncate(false).write(true).open(self.root.join("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Writes a file whole or not at all. The caller holds the lock.
    pub fn write_file(&self, kind: Kind, stem: &str, bytes: &[u8]) -> io::Result<()> {
        let folder = self.folder(kind);
        fs::create_dir_all(&folder)?;
        self.sweep(&folder);
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = folder.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
        let written = File::create_new(&temporary).and_then(|mut file| {
            (self.write_bytes)(&mut file, bytes)?;
            file.sync_all()
        });
        let renamed = written.and_then(|()| fs::rename(&temporary, self.path(kind, stem)));
        if let Err(e) = renamed {
            let _ = fs::remove_file(&temporary); // or the next writer sweeps it
            return Err(e);
        }
        // So that the new name survives a power cut; some file systems refuse it, and then it may not.
        if let Ok(folder) = File::open(&folder) {
            let _ = folder.sync_all();
        }
        Ok(())
    }

    /// Removes what writers that were killed have left. Whoever holds the lock is the only writer, so all of it is old.
    fn sweep(&self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    /// Renames a bad entry, so that it can be looked at and is made again.
    pub fn set_aside(&self, path: &Path, fault: &Fault) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let aside = (1..).map(|n| path.with_file_name(format!("{name}.bad-{n}"))).find(|p| !p.exists());
        let aside = aside.expect("numbers do not run out");
        let what = match fs::rename(path, &aside) {
            Ok(()) => format!("set aside as {}", aside.display()),
            // Another process may have been first.
            Err(e) if e.kind() == io::ErrorKind::NotFound => return,
            Err(e) => format!("it cannot be set aside ({e}), so it is ignored"),
        };
        (self.warn)(&format!("{} is not used: {fault}; {what}; it will be made again", path.display()));
    }

    /// Paths of all entries of a kind, in order.
    pub fn entries(&self, kind: Kind) -> io::Result<Vec<PathBuf>> {
        let folder = match fs::read_dir(self.folder(kind)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let mut paths = Vec::new();
        for entry in folder {
            let path = entry?.path();
            if path.extension().is_some_and(|e| e == SUFFIX) {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(paths)
    }

    /// Files that are not entries: set aside, or left by a killed writer.
    pub fn leftovers(&self, kind: Kind) -> Vec<PathBuf> {
        let folder = fs::read_dir(self.folder(kind)).into_iter().flatten().flatten();
        folder.map(|e| e.path()).filter(|p| p.is_file() && p.extension().is_none_or(|e| e != SUFFIX)).collect()
    }
}
