//! Work on all cores, on threads of its own.
//!
//! A caller may hold a lock that threads of its own pool wait for, as a launcher does while it
//! chooses a schedule. In that pool the work could wait for ever: for a worker that waits for the
//! lock, or for the caller itself, which takes up another job of the pool while it waits, and that
//! job wants the lock.

use std::panic::resume_unwind;
use std::sync::OnceLock;

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// `f` of each item, in their order; one after the other where no threads can be made.
pub(crate) fn each<T: Send, R: Send>(items: Vec<T>, f: impl Fn(T) -> R + Send + Sync) -> Vec<R> {
    static POOL: OnceLock<Option<ThreadPool>> = OnceLock::new();
    let name = |n| format!("flashtile-{n}");
    let pool = POOL.get_or_init(|| if has_threads() { ThreadPoolBuilder::new().thread_name(name).build().ok() } else { None });
    let Some(pool) = pool else { return items.into_iter().map(f).collect() };
    let work = || items.into_par_iter().map(f).collect();
    if pool.current_thread_index().is_some() || rayon::current_thread_index().is_none() {
        return pool.install(work);
    }
    // A worker of another pool would take up its jobs while it waits: a plain thread does not.
    std::thread::scope(|scope| scope.spawn(|| pool.install(work)).join().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Whether threads can be made at all: not in a browser.
fn has_threads() -> bool {
    cfg!(not(target_family = "wasm"))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::sync::{Mutex, PoisonError};
    use std::time::Duration;

    use super::*;

    /// Takes its time.
    fn slow() {
        std::thread::sleep(Duration::from_micros(200));
    }

    #[test]
    fn results_are_in_order() {
        let squares = each((0..1000u64).collect(), |n| each(vec![n], |n| n * n)[0]);
        assert_eq!(squares, (0..1000).map(|n| n * n).collect::<Vec<_>>());
    }

    #[test]
    fn a_caller_may_hold_what_others_of_its_pool_wait_for() {
        let (done, waits) = channel();
        // A thread that hangs would not be joined.
        std::thread::spawn(move || {
            let pool = ThreadPoolBuilder::new().num_threads(3).build().expect("threads");
            let lock = Mutex::new(0);
            pool.install(|| {
                // Jobs between those that want the lock: their workers take up what the caller waits for.
                (0..400u32).into_par_iter().with_max_len(1).for_each(|n| {
                    if n % 4 > 0 {
                        slow();
                        return;
                    }
                    let mut total = lock.lock().unwrap_or_else(PoisonError::into_inner);
                    *total += each((0..30).collect(), |_: u32| slow()).len();
                });
            });
            done.send(lock.into_inner().unwrap_or_else(PoisonError::into_inner)).expect("is received");
        });
        assert_eq!(waits.recv_timeout(Duration::from_secs(60)), Ok(3000), "60 s are over");
    }

    #[test]
    fn a_panic_is_that_of_the_caller() {
        let pool = ThreadPoolBuilder::new().num_threads(1).build().expect("a thread");
        let panics = || each(vec![1, 2], |n| assert!(n != 2, "two"));
        let error = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| pool.install(panics))).expect_err("panics");
        assert_eq!(error.downcast_ref::<&str>().copied(), Some("two"));
    }
}
