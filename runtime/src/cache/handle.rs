//! [`Cache`]: the handle through which launches and tuning use the cache.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::CacheError;
use super::content::Content;
use super::key::{ModuleKey, TuningKey};
use super::record::{ModuleRecord, TuningRecord};
use super::store::{SUFFIX, Store};
use crate::location;

/// The cache, or none. Clones are the same cache.
///
/// ```
/// use flashtile::cache::Cache;
/// let cache = Cache::at("/home/me/flashtile-example");
/// assert_eq!(cache.directory().map(|d| d.ends_with("flashtile-example")), Some(true));
/// assert_eq!(Cache::disabled().directory(), None);
/// ```
#[derive(Clone)]
pub struct Cache {
    store: Option<Arc<Store>>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.directory() {
            Some(directory) => write!(f, "Cache({})", directory.display()),
            None => f.write_str("Cache(disabled)"),
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self::shared()
    }
}

impl Cache {
    /// The cache of the process: `FLASHTILE_CACHE`, or `flashtile` in the platform's directory for caches. Warnings go
    /// to standard error.
    pub fn shared() -> Self {
        static SHARED: OnceLock<Cache> = OnceLock::new();
        SHARED.get_or_init(|| location::directory().map_or_else(Self::disabled, Self::at)).clone()
    }

    /// A cache in a directory, which is made when something is written. Warnings go to standard error. A directory that others can
    /// change is not used: whoever writes an entry decides what code runs.
    pub fn at(directory: impl Into<PathBuf>) -> Self {
        Self::with_warnings(directory, |line| eprintln!("flashtile: warning: {line}"))
    }

    /// A cache in a directory, with warnings told to `warn`, one line each.
    pub fn with_warnings(directory: impl Into<PathBuf>, warn: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self { store: Some(Arc::new(Store::new(directory.into(), location::trust(), Arc::new(warn)))) }
    }

    /// No cache: nothing is found, nothing kept.
    pub fn disabled() -> Self {
        Self { store: None }
    }

    /// The directory, unless the cache is disabled.
    pub fn directory(&self) -> Option<&Path> {
        self.store.as_ref().map(|s| s.root())
    }

    /// The result of tuning for this key.
    pub fn tuning(&self, key: &TuningKey) -> Option<TuningRecord> {
        self.store.as_ref()?.read::<TuningRecord>(&key.file_stem()).filter(|r| r.key == *key)
    }

    /// What is known of the same kernel, types, facts and device for other sizes.
    pub fn tunings_of_other_sizes(&self, key: &TuningKey) -> Vec<TuningRecord> {
        let Some(store) = &self.store else { return Vec::new() };
        let (family, own) = (key.family_stem(), key.file_stem());
        // A directory that is not trusted or cannot be read is told of where the entry itself is looked for.
        let names = store.folder(TuningRecord::KIND).ok().flatten().and_then(|folder| folder.names().ok()).unwrap_or_default();
        let stems = names.iter().filter_map(|name| name.strip_suffix(SUFFIX)?.strip_suffix('.'));
        let others = stems.filter(|stem| stem.starts_with(&family) && *stem != own);
        others.filter_map(|stem| store.read::<TuningRecord>(stem)).filter(|r| r.key.is_family_of(key)).collect()
    }

    /// Keeps a result of tuning, merged with what another process kept meanwhile. Whether it was kept.
    pub fn keep_tuning(&self, record: &TuningRecord) -> bool {
        self.merge_tuning(record).is_some()
    }

    /// Keeps a result of tuning, and gives what is kept by now: merged with what was there
    /// ([`TuningRecord::merge`]). `None` if it could not be kept.
    pub fn merge_tuning(&self, record: &TuningRecord) -> Option<TuningRecord> {
        self.update_tuning(record, |present| {
            let mut merged = record.clone();
            present.iter().for_each(|other| merged.merge(other));
            merged
        })
    }

    /// Keeps a result of tuning in place of what was there. Gives it if it could be kept.
    pub fn replace_tuning(&self, record: &TuningRecord) -> Option<TuningRecord> {
        self.update_tuning(record, |_| record.clone())
    }

    fn update_tuning(
        &self,
        record: &TuningRecord,
        update: impl FnOnce(Option<TuningRecord>) -> TuningRecord,
    ) -> Option<TuningRecord> {
        let mut kept = None;
        let written = self.store.as_ref()?.update::<TuningRecord>(&record.file_stem(), |present| {
            let updated = update(present);
            kept = Some(updated.clone());
            updated
        });
        kept.filter(|_| written)
    }

    /// Compiled code for this key. If `nvrtc` is known, code of another version is not taken.
    pub fn module(&self, key: &ModuleKey, nvrtc: Option<(u32, u32)>) -> Option<ModuleRecord> {
        let record = self.store.as_ref()?.read::<ModuleRecord>(&key.file_stem())?;
        (record.key == *key && nvrtc.is_none_or(|v| v == record.nvrtc)).then_some(record)
    }

    /// Keeps compiled code. Whether it was kept.
    pub fn keep_module(&self, record: &ModuleRecord) -> bool {
        let Some(store) = &self.store else { return false };
        store.update::<ModuleRecord>(&record.file_stem(), |_| record.clone())
    }

    pub(super) fn store(&self) -> Result<&Store, CacheError> {
        let none =
            || CacheError::Unavailable("neither FLASHTILE_CACHE nor HOME says where it is, or it is turned off".to_owned());
        self.store.as_deref().ok_or_else(none)
    }
}

#[cfg(test)]
mod tests {
    use super::super::envelope::VERSION;
    use super::super::record::{Candidate, Measurement, Outcome};
    use super::super::store::Store;
    use super::super::{Bucket, DeviceKey, NO_NVRTC};
    use super::*;
    use crate::toolchain::PtxasReport;
    use crate::tuner::InputData;
    use flashtile_codegen::{Facts, Schedule};
    use flashtile_dsl::ir::Binding;
    use std::collections::BTreeMap;
    use std::fs::{self, File};
    use std::io::{self, Write};
    use std::sync::Mutex;

    type Warnings = Arc<Mutex<Vec<String>>>;

    fn cache(directory: &Path) -> (Cache, Warnings) {
        let warnings = Warnings::default();
        let told = warnings.clone();
        (Cache::with_warnings(directory, move |line| told.lock().expect("no panic").push(line.to_owned())), warnings)
    }

    fn module(code: u8) -> ModuleRecord {
        ModuleRecord {
            key: ModuleKey::new("source", "sm_80"),
            nvrtc: (13, 0),
            report: PtxasReport { registers: 128, ..PtxasReport::default() },
            cubin: vec![code; 1000],
            ptx: "ptx".to_owned(),
        }
    }

    fn tuning(block_m: u32, median: f64) -> TuningRecord {
        let device = DeviceKey { name: "GPU".into(), capability: (9, 0), sms: 132, memory_bytes: 1, driver: (13, 0) };
        let key = TuningKey::new(("k", "h"), Binding::default(), Facts::none(), Bucket::default(), "sm_90a", device);
        let schedule = Schedule::default().with_main(|main| main.block_m = block_m);
        let mut candidate = Candidate::new(schedule, 1e-3);
        candidate.outcome = Outcome::Measured;
        candidate.measured = Some(Measurement { median, min: median, repetitions: 20 });
        TuningRecord {
            key,
            nvrtc: (13, 0),
            sizes: BTreeMap::from([("N".to_owned(), 7)]),
            data: InputData::default(),
            winner: Some(0),
            complete: true,
            candidates: vec![candidate],
        }
    }

    fn only_entry(directory: &Path, folder: &str) -> PathBuf {
        let mut entries = fs::read_dir(directory.join(folder)).expect("is there").flatten().map(|e| e.path());
        let first = entries.next().expect("one entry");
        assert_eq!(entries.next(), None);
        first
    }

    #[test]
    fn what_is_kept_is_found_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cache, warnings) = cache(dir.path());
        assert_eq!(cache.module(&module(1).key, None), None);
        assert!(cache.keep_module(&module(1)) && cache.keep_module(&module(2)) && cache.keep_tuning(&tuning(64, 1.0)));
        assert_eq!(cache.module(&module(0).key, None), Some(module(2)));
        assert_eq!(cache.module(&module(0).key, Some((13, 0))), Some(module(2)));
        assert_eq!(cache.module(&module(0).key, Some((12, 9))), None);
        assert_eq!(cache.tuning(&tuning(0, 0.0).key), Some(tuning(64, 1.0)));
        assert_eq!(*warnings.lock().expect("no panic"), Vec::<String>::new());
    }

    #[test]
    fn a_flipped_byte_is_set_aside_with_a_warning_and_made_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cache, warnings) = cache(dir.path());
        cache.keep_module(&module(1));
        let path = only_entry(dir.path(), "modules");
        for n in 1..=2 {
            let mut bytes = fs::read(&path).expect("reads");
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x10;
            fs::write(&path, bytes).expect("writes");
            assert_eq!(cache.module(&module(1).key, None), None);
            assert!(!path.exists() && path.with_file_name(format!("{}.bad-{n}", name(&path))).exists());
            assert_eq!(cache.module(&module(1).key, None), None, "and no second warning");
            assert!(cache.keep_module(&module(1)));
            assert_eq!(cache.module(&module(1).key, None), Some(module(1)));
        }
        let warnings = warnings.lock().expect("no panic");
        assert_eq!(warnings.len(), 2);
        assert!(warnings[0].contains("its hash does not match its content; set aside as"), "{}", warnings[0]);
    }

    fn name(path: &Path) -> String {
        path.file_name().expect("a file").to_string_lossy().into_owned()
    }

    #[test]
    fn an_entry_of_another_version_or_key_is_set_aside() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cache, warnings) = cache(dir.path());
        cache.keep_tuning(&tuning(64, 1.0));
        let path = only_entry(dir.path(), "tuning");
        let good = fs::read(&path).expect("reads");
        for version in 1..VERSION {
            let mut older = good.clone();
            older[16..20].copy_from_slice(&version.to_le_bytes());
            fs::write(&path, older).expect("writes");
            assert_eq!(cache.tuning(&tuning(64, 1.0).key), None);
        }
        // A whole entry under the name of another key.
        let mut other = tuning(64, 1.0);
        other.key.arch = "sm_80".to_owned();
        cache.keep_tuning(&other);
        let mut entries = fs::read_dir(dir.path().join("tuning")).expect("is there").flatten().map(|e| e.path());
        let other_path = entries.find(|p| p.extension().is_some_and(|e| e == "entry")).expect("the other");
        fs::write(&other_path, good).expect("writes");
        assert_eq!(cache.tuning(&other.key), None);
        let warnings = warnings.lock().expect("no panic");
        assert_eq!(warnings.len(), 4, "one for each earlier version, and one for the key");
        for (warning, version) in warnings.iter().zip(1..VERSION) {
            let told = format!("it is of format version {version}, and this is version 4");
            assert!(warning.contains(&told), "{warning}");
        }
        assert!(warnings[3].contains("it holds the entry of another key"), "{}", warnings[2]);
    }

    #[test]
    fn a_place_that_cannot_be_written_warns_once() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let (cache, warnings) = cache(file.path());
        assert!(!cache.keep_module(&module(1)) && !cache.keep_tuning(&tuning(64, 1.0)));
        assert_eq!(cache.module(&module(1).key, None), None);
        let warnings = warnings.lock().expect("no panic");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("going on without keeping results"));
    }

    #[test]
    fn a_full_disk_warns_and_leaves_the_old_entry() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cache, _) = cache(dir.path());
        cache.keep_module(&module(1));
        let warnings = Warnings::default();
        let told = warnings.clone();
        let warn = Arc::new(move |line: &str| told.lock().expect("no panic").push(line.to_owned()));
        let full = |file: &mut File, bytes: &[u8]| {
            file.write_all(&bytes[..bytes.len() / 2])?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        let full = Cache { store: Some(Arc::new(Store::with_writer(dir.path().to_owned(), warn, full))) };
        assert!(!full.keep_module(&module(2)));
        assert_eq!(full.module(&module(1).key, None), Some(module(1)));
        only_entry(dir.path(), "modules"); // and no temporary file beside it
        assert_eq!(warnings.lock().expect("no panic").len(), 1);
    }

    #[test]
    fn what_a_killed_writer_left_is_swept() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cache, _) = cache(dir.path());
        cache.keep_module(&module(1));
        fs::write(dir.path().join("modules/.tmp-1-1"), "half").expect("writes");
        cache.keep_module(&module(2));
        only_entry(dir.path(), "modules");
    }

    #[test]
    fn evidence_of_two_processes_is_merged() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cache, _) = cache(dir.path());
        cache.keep_tuning(&tuning(64, 1.0));
        cache.keep_tuning(&tuning(128, 0.5));
        cache.keep_tuning(&tuning(32, 2.0));
        let merged = cache.tuning(&tuning(0, 0.0).key).expect("was kept");
        let mut blocks: Vec<_> = merged.candidates.iter().map(|c| c.schedule.main.block_m).collect();
        blocks.sort_unstable();
        assert_eq!(blocks, [32, 64, 128]);
        assert_eq!(merged.winning().map(|w| w.schedule.main.block_m), Some(128));
    }

    #[test]
    fn the_models_choice_gives_way_to_evidence_and_never_replaces_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let (cache, _) = cache(dir.path());
        let mut choice = tuning(16, 9.0);
        choice.nvrtc = NO_NVRTC;
        choice.complete = false;
        choice.candidates[0].measured = None;
        choice.candidates[0].outcome = Outcome::Predicted;
        cache.keep_tuning(&choice);
        assert_eq!(cache.tuning(&choice.key), Some(choice.clone()));
        cache.keep_tuning(&tuning(64, 1.0));
        cache.keep_tuning(&choice);
        assert_eq!(cache.tuning(&choice.key), Some(tuning(64, 1.0)));
    }
}
