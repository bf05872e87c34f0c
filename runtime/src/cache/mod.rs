//! Keeps compiled code and tuning results between runs.

mod error;

pub use error::CacheError;

/// The cache. Clones are the same cache.
#[derive(Clone, Debug)]
pub struct Cache {}

impl Cache {
    /// The cache of the process: `FLASHTILE_CACHE`, or the platform's directory for caches.
    pub fn shared() -> Self {
        Cache {}
    }
}
