//! Files of the cache: written whole or not at all, checked when read, set aside when bad, and taken only from directories that
//! nobody else can change ([`private`](crate::private)).

use std::fs::{File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::content::Content;
use super::envelope::{Fault, Kind};
use crate::private::{Directory, Trouble, Trust};

/// Told of trouble, one line each.
pub(super) type Warn = Arc<dyn Fn(&str) + Send + Sync>;

/// Writes the bytes of a file. A seam for tests, which put a full disk here.
pub(super) type WriteBytes = fn(&mut File, &[u8]) -> io::Result<()>;

/// A directory of entries.
pub(super) struct Store {
    root: PathBuf,
    trust: Trust,
    warn: Warn,
    write_bytes: WriteBytes,
    /// Whether it has been said that the cache cannot be used.
    complained: AtomicBool,
}

/// Suffix of entries. It changes with [`VERSION`](super::envelope::VERSION): programs of two formats
/// that share a directory leave each other's entries alone.
pub(super) const SUFFIX: &str = "entry";
const TEMPORARY: &str = ".tmp-";
const LOCK: &str = "lock";
/// How long the lock is waited for without a word.
const PATIENCE: Duration = Duration::from_secs(1);

/// Name of the file of an entry.
pub(super) fn file_name(stem: &str) -> String {
    format!("{stem}.{SUFFIX}")
}

/// Whether a file of this name is an entry.
pub(super) fn is_entry(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|e| e == SUFFIX)
}

impl Store {
    pub fn new(root: PathBuf, trust: Trust, warn: Warn) -> Self {
        let write_bytes: WriteBytes = |file, bytes| file.write_all(bytes);
        Self { root, trust, warn, write_bytes, complained: AtomicBool::new(false) }
    }

    #[cfg(test)]
    pub fn with_writer(root: PathBuf, warn: Warn, write_bytes: WriteBytes) -> Self {
        Self { write_bytes, ..Self::new(root, Trust::Own, warn) }
    }

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn warn(&self, line: &str) {
        (self.warn)(line);
    }

    /// The directory of a kind of entry, if there is one.
    pub fn folder(&self, kind: Kind) -> Result<Option<Directory>, Trouble> {
        match Directory::open(&self.root, self.trust).and_then(|root| root.child(kind.folder())) {
            Ok(folder) => Ok(Some(folder)),
            Err(Trouble::Missing(_)) => Ok(None),
            Err(trouble) => Err(trouble),
        }
    }

    /// The entry of this name, if it is there and good. A bad one is set aside.
    pub fn read<C: Content>(&self, stem: &str) -> Option<C> {
        let folder = match self.folder(C::KIND) {
            Ok(folder) => folder?,
            Err(trouble) => {
                self.complain(&format!("the cache in {} is not used: {trouble}", self.root.display()));
                return None;
            }
        };
        let name = file_name(stem);
        let content = match folder.read(&name) {
            Ok(bytes) => C::unseal(&bytes).and_then(|content| match content.file_stem() == stem {
                true => Ok(content),
                false => Err(Fault::Key),
            }),
            Err(Trouble::Missing(_)) => return None,
            Err(Trouble::Distrusted(distrust)) => Err(Fault::Distrusted(distrust)),
            Err(Trouble::Io { error, .. }) => {
                let path = folder.path().join(name);
                (self.warn)(&format!("failed to read {}: {error}; going on without it", path.display()));
                return None;
            }
        };
        content.map_err(|fault| self.set_aside(&folder, &name, &fault)).ok()
    }

    /// Writes an entry, after `update` has seen what is there now. Never fails: a cache that cannot be written warns once.
    pub fn update<C: Content>(&self, stem: &str, update: impl FnOnce(Option<C>) -> C) -> bool {
        match self.try_update(stem, update) {
            Ok(()) => true,
            Err(trouble) => {
                let root = self.root.display();
                self.complain(&format!("cannot write to the cache in {root}: {trouble}; going on without keeping results"));
                false
            }
        }
    }

    fn complain(&self, line: &str) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            (self.warn)(line);
        }
    }

    fn try_update<C: Content>(&self, stem: &str, update: impl FnOnce(Option<C>) -> C) -> Result<(), Trouble> {
        let locked = self.lock()?;
        let content = update(self.read(stem)).seal();
        self.write_file(&locked, C::KIND, stem, &content)
    }

    /// Takes the lock that processes share.
    pub fn lock(&self) -> Result<Locked, Trouble> {
        let root = Directory::create(&self.root, self.trust)?;
        let file = self.or_without_obstacle(&root, LOCK, |root| root.lock_file(LOCK))?;
        self.wait_for(&file, &root.path().join(LOCK))?;
        Ok(Locked { root, _file: file })
    }

    /// Locks a file. A wait for another process that is long enough to be noticed is told of.
    fn wait_for(&self, file: &File, path: &Path) -> Result<(), Trouble> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            match file.try_lock() {
                Ok(()) => return Ok(()),
                Err(TryLockError::WouldBlock) => std::thread::sleep(PATIENCE / 100),
                // Where there is no such call, `lock` says what is wrong.
                Err(TryLockError::Error(_)) => break,
            }
        }
        if start.elapsed() >= PATIENCE {
            (self.warn)(&format!("waiting for another process, which holds {}", path.display()));
        }
        file.lock().map_err(|e| Trouble::io("lock", path, e))
    }

    /// What `make` makes. If something of another kind has that name, it is set aside first.
    fn or_without_obstacle<T>(
        &self,
        within: &Directory,
        name: &str,
        make: impl Fn(&Directory) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        match make(within) {
            Err(Trouble::Distrusted(obstacle)) if obstacle.is_of_wrong_kind() => {
                self.set_aside(within, name, &Fault::Distrusted(obstacle));
                make(within)
            }
            other => other,
        }
    }

    /// Writes a file whole or not at all.
    pub fn write_file(&self, locked: &Locked, kind: Kind, stem: &str, bytes: &[u8]) -> Result<(), Trouble> {
        let folder = self.or_without_obstacle(&locked.root, kind.folder(), |root| root.create_child(kind.folder()))?;
        sweep(&folder);
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let temporary = format!("{TEMPORARY}{}-{number}", std::process::id());
        let written = folder.create_file(&temporary).and_then(|mut file| {
            let written = (self.write_bytes)(&mut file, bytes).and_then(|()| file.sync_all());
            written.map_err(|e| Trouble::io("write", &folder.path().join(&temporary), e))
        });
        let name = file_name(stem);
        let renamed = written.and_then(|()| {
            // A directory or a link cannot hold what it is named for: it makes way.
            if let Err(Trouble::Distrusted(obstacle)) = folder.open_file(&name) {
                self.set_aside(&folder, &name, &Fault::Distrusted(obstacle));
            }
            folder.rename(&temporary, &name)
        });
        if let Err(trouble) = renamed {
            let _ = folder.remove(&temporary); // or the next writer sweeps it
            return Err(trouble);
        }
        folder.sync();
        Ok(())
    }

    /// Sees whether a file can be written.
    pub fn probe(&self) -> Result<(), Trouble> {
        let root = Directory::create(&self.root, self.trust)?;
        let name = format!(".probe-{}", std::process::id());
        root.create_file(&name)?;
        root.remove(&name)
    }

    /// Renames a bad entry, so that it can be looked at and is made again.
    pub fn set_aside(&self, folder: &Directory, name: &str, fault: &Fault) {
        let aside = (1..).map(|n| format!("{name}.bad-{n}")).find(|other| !folder.holds(other));
        let aside = aside.expect("numbers do not run out");
        let what = match folder.rename(name, &aside) {
            Ok(()) => format!("set aside as {}", folder.path().join(aside).display()),
            // Another process may have been first.
            Err(Trouble::Missing(_)) => return,
            Err(trouble) => format!("it cannot be set aside ({trouble}), so it is ignored"),
        };
        let path = folder.path().join(name);
        (self.warn)(&format!("{} is not used: {fault}; {what}; it will be made again", path.display()));
    }
}

/// The lock, held until this is dropped.
pub(super) struct Locked {
    root: Directory,
    _file: File,
}

/// Removes what writers that were killed have left. Whoever holds the lock is the only writer, so all of it is old.
fn sweep(folder: &Directory) {
    let names = folder.names().unwrap_or_default();
    for name in names.iter().filter(|name| name.starts_with(TEMPORARY)) {
        let _ = folder.remove(name); // what stays is tried again by the next writer
    }
}
