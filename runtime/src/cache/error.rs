//! Errors of explicit requests to the cache. Its use by launches and tuning never fails: it warns.

/// Why a request to the cache failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// There is no cache: it is turned off, or its directory cannot be made.
    #[error("there is no cache: {0}; set FLASHTILE_CACHE to a directory that can be written")]
    Unavailable(String),
    /// Others can change the directory, so that nothing in it can be trusted.
    #[error("the cache in {root} is not used: {reason}; what lies in a cache runs with your rights")]
    Distrusted {
        /// The directory of the cache.
        root: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A file cannot be read or written.
    #[error("failed to {action} {path}: {reason}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// The file.
        path: String,
        /// Why.
        reason: String,
    },
    /// A file to import is not an export of the cache, or is damaged.
    #[error("{path} cannot be imported: {reason}; export it again with `flashtile cache export`")]
    Foreign {
        /// The file.
        path: String,
        /// What is wrong with it.
        reason: String,
    },
}
