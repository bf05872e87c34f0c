//! What a person asks of the cache: list, verify, export, import, clear.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::content;
use super::envelope::{Fault, Kind};
use super::store::SUFFIX;
use super::{Cache, CacheError};

/// First bytes of an export: then for each entry its length (u64, little-endian) and its bytes.
const EXPORT_MAGIC: &[u8; 16] = b"flashtile-export";

/// An entry, or what is wrong with it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EntryInfo {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes.
    pub bytes: u64,
    /// What it holds, in one line.
    pub description: String,
    /// What is wrong with it; `None` for a good entry.
    pub fault: Option<String>,
}

/// What came of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ImportSummary {
    /// Entries that were added.
    pub added: usize,
    /// Entries that were there already and stay as they are.
    pub present: usize,
}

fn failed(action: &'static str, path: &Path, e: &io::Error) -> CacheError {
    CacheError::Io { action, path: path.display().to_string(), reason: e.to_string() }
}

impl Cache {
    /// Every entry, good or bad. Changes nothing.
    ///
    /// # Errors
    /// [`CacheError::Unavailable`], or the directory cannot be read.
    pub fn list(&self) -> Result<Vec<EntryInfo>, CacheError> {
        let mut all = Vec::new();
        for (path, bytes) in self.files()? {
            let (description, fault) = match check(&path, &bytes) {
                Ok(description) => (description, None),
                Err(fault) => ("not usable".to_owned(), Some(fault.to_string())),
            };
            all.push(EntryInfo { path, bytes: bytes.len() as u64, description, fault });
        }
        Ok(all)
    }

    /// Checks every entry and sets the bad ones aside. Gives what [`Cache::list`] does.
    ///
    /// # Errors
    /// [`CacheError::Unavailable`], or the directory cannot be read.
    pub fn verify(&self) -> Result<Vec<EntryInfo>, CacheError> {
        let all = self.list()?;
        for (path, bytes) in self.files()? {
            if let Err(fault) = check(&path, &bytes) {
                self.store()?.set_aside(&path, &fault);
            }
        }
        Ok(all)
    }

    /// Writes every good entry to one file. Gives their number.
    ///
    /// # Errors
    /// [`CacheError::Io`]; then the file is removed.
    pub fn export(&self, to: &Path) -> Result<usize, CacheError> {
        let mut out = Vec::from(EXPORT_MAGIC);
        let mut count = 0;
        for (path, bytes) in self.files()? {
            if check(&path, &bytes).is_ok() {
                out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                out.extend_from_slice(&bytes);
                count += 1;
            }
        }
        let partial = to.with_extension(format!("partial-{}", std::process::id()));
        let written = fs::File::create(&partial).and_then(|mut file| {
            file.write_all(&out)?;
            file.sync_all()
        });
        let renamed = written.and_then(|()| fs::rename(&partial, to));
        renamed.map_err(|e| {
            let _ = fs::remove_file(&partial);
            failed("write", to, &e)
        })?;
        Ok(count)
    }

    /// Adds the entries of an export. All of it is checked before any of it is written; entries that are there stay.
    ///
    /// # Errors
    /// [`CacheError::Foreign`] if the file is no export or damaged, [`CacheError::Io`].
    pub fn import(&self, from: &Path) -> Result<ImportSummary, CacheError> {
        let store = self.store()?;
        let bytes = fs::read(from).map_err(|e| failed("read", from, &e))?;
        let foreign = |reason: String| CacheError::Foreign { path: from.display().to_string(), reason };
        let mut rest = bytes.strip_prefix(EXPORT_MAGIC).ok_or_else(|| foreign("it is no export of the cache".to_owned()))?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let mut len = [0u8; 8];
            rest.read_exact(&mut len).map_err(|_| foreign("it is cut short".to_owned()))?;
            let len = usize::try_from(u64::from_le_bytes(len)).unwrap_or(usize::MAX);
            let (entry, after) = rest.split_at_checked(len).ok_or_else(|| foreign("it is cut short".to_owned()))?;
            let (kind, stem, _) = content::describe(entry).map_err(|fault| foreign(fault.to_string()))?;
            entries.push((kind, stem, entry));
            rest = after;
        }
        let io = |e: io::Error| failed("write", store.root(), &e);
        let _lock = store.lock().map_err(io)?;
        let mut summary = ImportSummary::default();
        for (kind, stem, entry) in entries {
            let path = store.path(kind, &stem);
            if fs::read(&path).is_ok_and(|present| check(&path, &present).is_ok()) {
                summary.present += 1;
            } else {
                store.write_file(kind, &stem, entry).map_err(io)?;
                summary.added += 1;
            }
        }
        Ok(summary)
    }

    /// Removes every entry, good or bad, and what was set aside. Gives their number. An installed compiler stays.
    ///
    /// # Errors
    /// [`CacheError::Io`].
    pub fn clear(&self) -> Result<usize, CacheError> {
        let store = self.store()?;
        if !store.root().exists() {
            return Ok(0);
        }
        let _lock = store.lock().map_err(|e| failed("lock", store.root(), &e))?;
        let mut count = 0;
        for kind in Kind::ALL {
            let mut paths = store.entries(kind).map_err(|e| failed("read", store.root(), &e))?;
            paths.extend(store.leftovers(kind));
            for path in paths {
                fs::remove_file(&path).map_err(|e| failed("remove", &path, &e))?;
                count += 1;
            }
        }
        Ok(count)
    }

    fn files(&self) -> Result<Vec<(PathBuf, Vec<u8>)>, CacheError> {
        let store = self.store()?;
        let mut files = Vec::new();
        for kind in Kind::ALL {
            for path in store.entries(kind).map_err(|e| failed("read", store.root(), &e))? {
                match fs::read(&path) {
                    Ok(bytes) => files.push((path, bytes)),
                    // Another process may have set it aside or cleared it.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                    Err(e) => return Err(failed("read", &path, &e)),
                }
            }
        }
        Ok(files)
    }
}

/// Whether a file is a good entry under its own name; gives its description.
fn check(path: &Path, bytes: &[u8]) -> Result<String, Fault> {
    let (kind, stem, description) = content::describe(bytes)?;
    let named = path.file_name().is_some_and(|n| n.to_string_lossy() == format!("{stem}.{SUFFIX}"));
    let placed = path.parent().and_then(Path::file_name).is_some_and(|f| f == kind.folder());
    if named && placed { Ok(description) } else { Err(Fault::Key) }
}

#[cfg(test)]
mod tests {
    use super::super::{ModuleKey, ModuleRecord};
    use super::*;
    use crate::toolchain::PtxasReport;

    fn filled() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().expect("a directory");
        let cache = Cache::with_warnings(dir.path().join("cache"), |_| {});
        for source in ["a", "b", "c"] {
            let report = PtxasReport { registers: 99, ..PtxasReport::default() };
            let (cubin, ptx) = (vec![1, 2, 3], String::new());
            let key = ModuleKey::new(source, "sm_80");
            assert!(cache.keep_module(&ModuleRecord { key, nvrtc: (13, 0), report, cubin, ptx }));
        }
        (dir, cache)
    }

    #[test]
    fn list_and_verify_tell_and_verify_sets_aside() {
        let (_dir, cache) = filled();
        let list = cache.list().expect("lists");
        assert_eq!(list.len(), 3);
        assert_eq!(list[0].description, "code for sm_80 by NVRTC 13.0: 99 registers, 3 bytes");
        fs::write(&list[1].path, "nonsense").expect("writes");
        assert_eq!(cache.list().expect("lists")[1].fault.as_deref(), Some("it is not an entry of the cache"));
        let faults = cache.verify().expect("verifies").iter().filter(|e| e.fault.is_some()).count();
        assert_eq!((faults, cache.list().expect("lists").len()), (1, 2));
    }

    #[test]
    fn an_export_can_be_imported_and_a_damaged_one_changes_nothing() {
        let (dir, cache) = filled();
        let file = dir.path().join("all.export");
        assert_eq!(cache.export(&file), Ok(3));
        assert_eq!(cache.import(&file), Ok(ImportSummary { added: 0, present: 3 }));
        let other = Cache::with_warnings(dir.path().join("other"), |_| {});
        assert_eq!(other.import(&file), Ok(ImportSummary { added: 3, present: 0 }));
        assert_eq!(other.list().expect("lists").len(), 3);
        let mut bytes = fs::read(&file).expect("reads");
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        fs::write(&file, bytes).expect("writes");
        let third = Cache::with_warnings(dir.path().join("third"), |_| {});
        assert!(matches!(third.import(&file), Err(CacheError::Foreign { .. })));
        assert_eq!(third.list(), Ok(vec![]));
        assert!(matches!(third.import(Path::new("/nonexistent")), Err(CacheError::Io { action: "read", .. })));
    }

    #[test]
    fn clear_removes_entries_and_what_was_set_aside() {
        let (_dir, cache) = filled();
        fs::write(&cache.list().expect("lists")[0].path, "nonsense").expect("writes");
        cache.verify().expect("verifies");
        assert_eq!(cache.clear(), Ok(3));
        assert_eq!((cache.list(), cache.clear()), (Ok(vec![]), Ok(0)));
        assert!(matches!(Cache::disabled().clear(), Err(CacheError::Unavailable(_))));
    }
}
