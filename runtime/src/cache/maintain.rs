//! What a person asks of the cache: list, verify, export, import, clear.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::content::{self, Content};
use super::envelope::{Fault, Kind};
use super::store::{Store, file_name, is_entry};
use super::{Cache, CacheError, TuningRecord};
use crate::files;
use crate::private::{Directory, Trouble};

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
    /// Results of tuning that were there and know more by now.
    pub merged: usize,
    /// Entries that were there already and stay as they are.
    pub present: usize,
}

fn failed(action: &'static str, path: &Path, e: &io::Error) -> CacheError {
    CacheError::Io { action, path: path.display().to_string(), reason: e.to_string() }
}

/// The error of a request that met this trouble.
fn refused(store: &Store, trouble: Trouble) -> CacheError {
    match trouble {
        Trouble::Io { action, path, error } => failed(action, &path, &error),
        Trouble::Missing(path) => failed("open", &path, &io::ErrorKind::NotFound.into()),
        Trouble::Distrusted(_) => {
            CacheError::Distrusted { root: store.root().display().to_string(), reason: trouble.to_string() }
        }
    }
}

/// A result of tuning with what another one of its key knows more, if it does.
fn more(kind: Kind, present: &[u8], other: &[u8]) -> Option<Vec<u8>> {
    if kind != Kind::Tuning {
        return None;
    }
    let [before, other] = [present, other].map(|bytes| TuningRecord::unseal(bytes).ok());
    let (before, other) = (before?, other?);
    let mut merged = before.clone();
    merged.merge(&other);
    (merged != before).then(|| merged.seal())
}

/// A file that is named as an entry, and its bytes or why it has none.
struct Listed {
    kind: Kind,
    name: String,
    path: PathBuf,
    bytes: Result<Vec<u8>, Fault>,
}

impl Listed {
    /// What it holds, if it is a good entry under its own name.
    fn check(&self) -> Result<String, Fault> {
        let (kind, stem, description) = content::describe(self.bytes.as_ref().map_err(Clone::clone)?)?;
        if self.name == file_name(&stem) && kind == self.kind { Ok(description) } else { Err(Fault::Key) }
    }
}

impl Cache {
    /// Every entry, good or bad. Changes nothing.
    ///
    /// # Errors
    /// [`CacheError::Unavailable`], [`CacheError::Distrusted`], or the directory cannot be read.
    pub fn list(&self) -> Result<Vec<EntryInfo>, CacheError> {
        let mut all = Vec::new();
        self.each(|_, listed| all.push(info(&listed)))?;
        Ok(all)
    }

    /// Checks every entry and sets the bad ones aside. Gives what [`Cache::list`] does.
    ///
    /// # Errors
    /// As [`Cache::list`].
    pub fn verify(&self) -> Result<Vec<EntryInfo>, CacheError> {
        let store = self.store()?;
        let mut all = Vec::new();
        self.each(|folder, listed| {
            all.push(info(&listed));
            if let Err(fault) = listed.check() {
                store.set_aside(folder, &listed.name, &fault);
            }
        })?;
        Ok(all)
    }

    /// Makes the directory if it is missing, and writes a file there to see whether entries can be kept.
    ///
    /// # Errors
    /// Why entries cannot be kept: [`CacheError::Unavailable`], [`CacheError::Distrusted`] or [`CacheError::Io`].
    pub fn probe(&self) -> Result<(), CacheError> {
        let store = self.store()?;
        store.probe().map_err(|trouble| refused(store, trouble))
    }

    /// Writes every good entry to one file. Gives their number.
    ///
    /// # Errors
    /// [`CacheError::Io`]; then what was there before stays.
    pub fn export(&self, to: &Path) -> Result<usize, CacheError> {
        let mut out = Vec::from(EXPORT_MAGIC);
        let mut count = 0;
        self.each(|_, listed| {
            if let (Ok(_), Ok(bytes)) = (listed.check(), &listed.bytes) {
                out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
                out.extend_from_slice(bytes);
                count += 1;
            }
        })?;
        files::write(to, &out).map_err(|e| failed("write", to, &e))?;
        Ok(count)
    }

    /// Adds the entries of an export. All of it is checked before any of it is written. Results of
    /// tuning that are there get what the export knows more ([`super::TuningRecord::merge`]), and
    /// other entries that are there stay.
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
        let io = |trouble: Trouble| refused(store, trouble);
        let locked = store.lock().map_err(io)?;
        let mut summary = ImportSummary::default();
        for (kind, stem, entry) in entries {
            let folder = store.folder(kind).map_err(io)?;
            let present = folder.and_then(|folder| folder.read(&file_name(&stem)).ok());
            let is_same = |bytes: &Vec<u8>| content::describe(bytes).is_ok_and(|(k, s, _)| k == kind && s == stem);
            match present.filter(is_same) {
                None => {
                    store.write_file(&locked, kind, &stem, entry).map_err(io)?;
                    summary.added += 1;
                }
                Some(present) => match more(kind, &present, entry) {
                    None => summary.present += 1,
                    Some(merged) => {
                        store.write_file(&locked, kind, &stem, &merged).map_err(io)?;
                        summary.merged += 1;
                    }
                },
            }
        }
        Ok(summary)
    }

    /// Removes every entry, good or bad, and what was set aside. Gives their number. An installed compiler stays, and so does, with
    /// a warning, a directory that holds files.
    ///
    /// # Errors
    /// As [`Cache::list`].
    pub fn clear(&self) -> Result<usize, CacheError> {
        let store = self.store()?;
        let io = |trouble: Trouble| refused(store, trouble);
        let folders = Kind::ALL.map(|kind| store.folder(kind).map_err(io));
        let folders: Vec<Directory> = folders.into_iter().filter_map(Result::transpose).collect::<Result<_, _>>()?;
        if folders.is_empty() {
            return Ok(0);
        }
        let _locked = store.lock().map_err(io)?;
        let mut count = 0;
        for folder in folders {
            for name in folder.names().map_err(io)? {
                match folder.remove(&name) {
                    Ok(()) => count += 1,
                    Err(Trouble::Missing(_)) => {}
                    Err(trouble) => store.warn(&format!("{trouble}; remove it by hand")),
                }
            }
        }
        Ok(count)
    }

    /// Visits every file that is named as an entry.
    fn each(&self, mut visit: impl FnMut(&Directory, Listed)) -> Result<(), CacheError> {
        let store = self.store()?;
        for kind in Kind::ALL {
            let Some(folder) = store.folder(kind).map_err(|trouble| refused(store, trouble))? else { continue };
            for name in folder.names().map_err(|trouble| refused(store, trouble))? {
                if !is_entry(&name) {
                    continue;
                }
                let bytes = match folder.read(&name) {
                    Ok(bytes) => Ok(bytes),
                    // Another process may have set it aside or cleared it.
                    Err(Trouble::Missing(_)) => continue,
                    Err(Trouble::Distrusted(distrust)) => Err(Fault::Distrusted(distrust)),
                    Err(trouble @ Trouble::Io { .. }) => return Err(refused(store, trouble)),
                };
                let path = folder.path().join(&name);
                visit(&folder, Listed { kind, name, path, bytes });
            }
        }
        Ok(())
    }
}

fn info(listed: &Listed) -> EntryInfo {
    let (description, fault) = match listed.check() {
        Ok(description) => (description, None),
        Err(fault) => ("not usable".to_owned(), Some(fault.to_string())),
    };
    EntryInfo { path: listed.path.clone(), bytes: listed.bytes.as_ref().map_or(0, |b| b.len() as u64), description, fault }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use flashtile_codegen::{Facts, Schedule};
    use flashtile_dsl::ir::Binding;

    use super::super::{Bucket, Candidate, DeviceKey, ModuleKey, ModuleRecord, Outcome, TuningKey};
    use super::*;
    use crate::toolchain::PtxasReport;
    use crate::tuner::InputData;

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
        assert_eq!(cache.import(&file), Ok(ImportSummary { added: 0, merged: 0, present: 3 }));
        let other = Cache::with_warnings(dir.path().join("other"), |_| {});
        assert_eq!(other.import(&file), Ok(ImportSummary { added: 3, merged: 0, present: 0 }));
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
    fn an_import_adds_to_results_of_tuning() {
        let dir = tempfile::tempdir().expect("a directory");
        let [own, other] = ["own", "other"].map(|name| Cache::with_warnings(dir.path().join(name), |_| {}));
        let device = DeviceKey { name: "GPU".into(), capability: (9, 0), sms: 132, memory_bytes: 1, driver: (13, 0) };
        let key = TuningKey::new(("k", "h"), Binding::default(), Facts::none(), Bucket::default(), "sm_90a", device);
        let record = |block_m, predicted| {
            let schedule = Schedule::default().with_main(|main| main.block_m = block_m);
            let candidate = Candidate { outcome: Outcome::Predicted, ..Candidate::new(schedule, predicted) };
            let (sizes, data) = (BTreeMap::new(), InputData::default());
            let (winner, complete, candidates) = (Some(0), false, vec![candidate]);
            TuningRecord { key: key.clone(), nvrtc: (13, 0), sizes, data, winner, complete, candidates }
        };
        assert!(own.keep_tuning(&record(64, 2.0)) && other.keep_tuning(&record(128, 1.0)));
        let file = dir.path().join("other.export");
        assert_eq!(other.export(&file), Ok(1));
        assert_eq!(own.import(&file), Ok(ImportSummary { added: 0, merged: 1, present: 0 }));
        let found = own.tuning(&key).expect("is there");
        assert_eq!((found.candidates.len(), found.winning().map(|w| w.schedule.main.block_m)), (2, Some(128)));
        assert_eq!(own.import(&file), Ok(ImportSummary { added: 0, merged: 0, present: 1 }));
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
