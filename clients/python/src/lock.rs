//! Locks of caches.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a cache.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is locked is a cache: it holds whole entries even after a panic.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
