//! What is made once for calls of a kind, and kept for later calls.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::kernel::BoundKernel;
use crate::launch::LoadedKernel;

/// Entries that are kept. Beyond that all are dropped: keys then vary without end, and making an
/// entry takes microseconds.
const MOST: usize = 4096;

/// What was made for calls of a kind, by what calls of the kind have in common.
#[derive(Debug)]
pub struct Kept<K, V> {
    all: Mutex<HashMap<K, Arc<KeptEntry<K, V>>>>,
    /// That of the call before, which is found without a key of its own.
    recent: Mutex<Option<Arc<KeptEntry<K, V>>>>,
}

/// An entry of [`Kept`].
#[derive(Debug)]
pub struct KeptEntry<K, V> {
    /// What calls of the kind have in common.
    pub key: K,
    /// What was made for them.
    pub value: V,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Self { all: Mutex::default(), recent: Mutex::default() }
    }
}

impl<K: Clone + Eq + Hash, V> Kept<K, V> {
    /// The entry of a kind of call, made if there is none. `is_it` says whether a key is that of
    /// the call, without one being made: calls of the same kind mostly follow each other.
    ///
    /// # Errors
    /// As `make`; nothing is kept then.
    pub fn get<E>(
        &self,
        is_it: impl Fn(&K) -> bool,
        key: impl FnOnce() -> K,
        make: impl FnOnce(&K) -> Result<V, E>,
    ) -> Result<Arc<KeptEntry<K, V>>, E> {
        if let Some(recent) = self.recent(is_it) {
            return Ok(recent);
        }
        let key = key();
        if let Some(entry) = self.known(&key) {
            return Ok(entry);
        }
        // No lock is held: `make` may call what calls this.
        let value = make(&key)?;
        Ok(self.keep(key, value))
    }

    /// The entry of the call before, if its key is that of this call.
    pub fn recent(&self, is_it: impl Fn(&K) -> bool) -> Option<Arc<KeptEntry<K, V>>> {
        lock(&self.recent).as_ref().filter(|recent| is_it(&recent.key)).cloned()
    }

    /// The entry of a key, if there is one.
    pub fn known(&self, key: &K) -> Option<Arc<KeptEntry<K, V>>> {
        let entry = lock(&self.all).get(key).cloned()?;
        *lock(&self.recent) = Some(entry.clone());
        Some(entry)
    }

    /// Keeps what was made for a kind of call.
    pub fn keep(&self, key: K, value: V) -> Arc<KeptEntry<K, V>> {
        let entry = Arc::new(KeptEntry { key: key.clone(), value });
        let mut all = lock(&self.all);
        let full = (all.len() >= MOST).then(|| std::mem::take(&mut *all));
        all.insert(key, entry.clone());
        drop(all);
        let before = lock(&self.recent).replace(entry.clone());
        // No lock is held: what is dropped may call what calls this.
        drop((full, before));
        entry
    }

    /// Drops all entries.
    pub fn clear(&self) {
        lock(&self.all).clear();
        lock(&self.recent).take();
    }
}

/// Kernels made ready, by the device and by the types and constants that they are bound to.
#[derive(Debug)]
pub struct LoadedKernels<P> {
    all: Mutex<Vec<(P, Arc<LoadedKernel>)>>,
}

impl<P> Default for LoadedKernels<P> {
    fn default() -> Self {
        Self { all: Mutex::default() }
    }
}

impl<P: PartialEq> LoadedKernels<P> {
    /// The kernel on a device, made ready if it is not yet. Two calls that come at once may both
    /// make it ready; one of the results is kept.
    ///
    /// # Errors
    /// As `load`.
    pub fn get<E>(
        &self,
        place: P,
        bound: &BoundKernel,
        load: impl FnOnce() -> Result<LoadedKernel, E>,
    ) -> Result<Arc<LoadedKernel>, E> {
        let find = |all: &[(P, Arc<LoadedKernel>)]| {
            let is_it =
                |(known, kernel): &&(P, Arc<LoadedKernel>)| *known == place && kernel.kernel().binding() == bound.binding();
            all.iter().find(is_it).map(|(_, kernel)| kernel.clone())
        };
        if let Some(kernel) = find(&lock(&self.all)) {
            return Ok(kernel);
        }
        let kernel = Arc::new(load()?);
        let mut all = lock(&self.all);
        if let Some(kernel) = find(&all) {
            return Ok(kernel);
        }
        all.push((place, kernel.clone()));
        Ok(kernel)
    }

    /// Forgets all kernels. Those that are in use live on.
    pub fn clear(&self) {
        lock(&self.all).clear();
    }
}

/// Locks a cache, which holds whole entries even after a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[test]
    fn an_entry_is_made_once_for_a_kind_of_call() {
        let kept = Kept::<u32, u32>::default();
        let mut made = Vec::new();
        for call in [3, 3, 5, 3, 5, 5] {
            let entry = kept.get(
                |key| *key == call,
                || call,
                |key| {
                    made.push(*key);
                    Ok::<_, Infallible>(key * 10)
                },
            );
            let Ok(entry) = entry;
            assert_eq!((entry.key, entry.value), (call, call * 10));
        }
        assert_eq!(made, [3, 5]);
        kept.clear();
        let Ok(entry) = kept.get(|key| *key == 3, || 3, |_| Ok::<_, Infallible>(7));
        assert_eq!(entry.value, 7);
    }

    #[test]
    fn what_could_not_be_made_is_tried_again() {
        let kept = Kept::<u32, u32>::default();
        assert_eq!(kept.get(|key| *key == 1, || 1, |_| Err("no")).expect_err("not made"), "no");
        let Ok(entry) = kept.get(|key| *key == 1, || 1, |_| Ok::<_, Infallible>(2));
        assert_eq!(entry.value, 2);
    }

    #[test]
    fn keys_without_end_are_forgotten() {
        let kept = Kept::<usize, ()>::default();
        for call in 0..2 * MOST {
            let Ok(_) = kept.get(|key| *key == call, || call, |_| Ok::<_, Infallible>(()));
            assert!(lock(&kept.all).len() <= MOST);
        }
    }
}
