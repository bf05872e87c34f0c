//! Keeps compiled code and tuning results between runs.
//!
//! One entry is one file, `tuning/HASH.entry` or `modules/HASH.entry`, in an envelope with a magic, a version and a hash
//! (`envelope`). Files are written under a temporary name, flushed, and renamed, under a lock that processes
//! share; so a reader, which takes no lock, sees a whole entry or none. An entry that is damaged, of another version, or
//! not the one its name says, or that others could have written, is renamed to `*.bad-N` with a warning and made again: never
//! fatal. Where nothing can be written, or others can change the directory, everything works without a cache, with one warning.

mod content;
mod envelope;
mod error;
mod handle;
mod key;
mod maintain;
mod record;
mod store;

pub use content::{decode_entry, seal_as_every_kind};
pub use error::CacheError;
pub use handle::Cache;
pub use key::{Bucket, DeviceKey, ModuleKey, TuningKey};
pub use maintain::{EntryInfo, ImportSummary};
pub use record::{Candidate, Measurement, ModuleRecord, NO_NVRTC, Outcome, Stage, TuningRecord};
