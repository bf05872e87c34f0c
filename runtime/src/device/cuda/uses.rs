//! Which queued work uses a piece of memory, so that a copy or a launch on one stream waits for
//! work on another.
//!
//! Two uses conflict if one of them writes. The device waits, never the host. Work that other
//! libraries queue is not known here: the caller orders it, by [`crate::Stream::wait_for`] or by
//! using the same stream.
//!
//! The device's own stream records no event until another stream needs one, so that launches
//! without a stream cost nothing more. A stream that captures a graph waits for nothing: its work
//! runs when the graph is launched, and that launch waits.

use std::sync::{Arc, Mutex, MutexGuard};

use super::event::Event;
use super::stream::CudaStream;
use crate::device::DeviceError;

/// The uses of a piece of memory. Graphs share them with the memory.
#[derive(Debug, Default)]
pub(super) struct Uses {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Work on the device's own stream for which there is no event yet.
    own: Option<Access>,
    /// Work on other streams, and on the device's own up to an event.
    others: Vec<(Arc<Event>, Access)>,
    /// Launches that are being queued.
    entered: usize,
    /// Whether the memory is gone, so that nothing may be queued any more.
    gone: bool,
}

/// What work does with memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Access {
    Read,
    Write,
}

impl Access {
    pub fn of(writes: bool) -> Self {
        if writes { Access::Write } else { Access::Read }
    }

    fn conflicts(self, other: Access) -> bool {
        self == Access::Write || other == Access::Write
    }

    pub fn and(self, other: Access) -> Access {
        Access::of(self.conflicts(other))
    }
}

impl Uses {
    /// Begins to queue a launch; [`Uses::leave`] ends it, and [`Uses::close`] waits for that. An
    /// error says that the memory is gone.
    fn enter(&self, device: &str) -> Result<(), DeviceError> {
        let mut state = self.lock();
        if state.gone {
            return Err(DeviceError::GivenBack { device: device.to_owned() });
        }
        state.entered += 1;
        Ok(())
    }

    /// Ends to queue a launch.
    fn leave(&self) {
        self.lock().entered -= 1;
    }

    /// From now on nothing is queued that uses the memory.
    pub fn close(&self) {
        self.lock().gone = true;
        // Queueing takes microseconds.
        while self.lock().entered > 0 {
            std::thread::yield_now();
        }
    }

    /// Makes a stream wait for all work elsewhere that conflicts with an access. `own` is the
    /// device's own stream.
    pub fn order(&self, access: Access, stream: &CudaStream, own: &CudaStream) -> Result<(), DeviceError> {
        let is_own = std::ptr::eq(stream, own);
        let mut state = self.lock();
        if let Some(done) = state.own.filter(|done| !is_own && done.conflicts(access)) {
            let event = own.mark()?;
            state.own = None;
            state.note(event, done);
        }
        let mut failed = None;
        state.others.retain(|(event, done)| {
            if failed.is_some() || !done.conflicts(access) || stream.has(event) {
                return true;
            }
            // Work that has ended needs no wait, now or later.
            match event.has_passed().and_then(|passed| if passed { Ok(true) } else { stream.hold_for(event).map(|()| false) }) {
                Ok(passed) => !passed,
                Err(error) => {
                    failed = Some(error);
                    true
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Notes work that was just queued on the device's own stream.
    pub fn note_own(&self, access: Access) {
        let mut state = self.lock();
        state.own = Some(state.own.map_or(access, |before| before.and(access)));
    }

    /// Notes work that was just queued on a stream which then recorded `event`.
    pub fn note(&self, event: &Arc<Event>, access: Access) {
        self.lock().note(event.clone(), access);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A poisoned lock holds uses like any other: no change of them panics half-way.
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }
}

/// A launch that is being queued: the memory that it uses stays until it has been queued and noted.
pub(super) struct Entered<'a, I: Iterator<Item = &'a Uses> + Clone> {
    uses: I,
    count: usize,
}

impl<'a, I: Iterator<Item = &'a Uses> + Clone> Entered<'a, I> {
    /// Enters all. An error says that the memory of one is gone.
    pub fn new(device: &str, uses: I) -> Result<Self, DeviceError> {
        let mut entered = Self { uses, count: 0 };
        for uses in entered.uses.clone() {
            uses.enter(device)?;
            entered.count += 1;
        }
        Ok(entered)
    }
}

impl<'a, I: Iterator<Item = &'a Uses> + Clone> Drop for Entered<'a, I> {
    fn drop(&mut self) {
        self.uses.clone().take(self.count).for_each(Uses::leave);
    }
}

impl State {
    fn note(&mut self, event: Arc<Event>, access: Access) {
        match self.others.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &event)) {
            Some((_, before)) => *before = before.and(access),
            None => self.others.push((event, access)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_do_not_conflict_with_reads() {
        use Access::{Read, Write};
        assert!(!Read.conflicts(Read));
        assert!(Read.conflicts(Write) && Write.conflicts(Read) && Write.conflicts(Write));
        assert_eq!((Read.and(Read), Read.and(Write), Write.and(Read)), (Read, Write, Write));
    }

    #[test]
    fn nothing_is_queued_after_the_end() {
        let uses = Uses::default();
        uses.enter("cuda:0").expect("memory is there");
        uses.leave();
        uses.close();
        assert_eq!(uses.enter("cuda:0"), Err(DeviceError::GivenBack { device: "cuda:0".to_owned() }));
    }

    #[test]
    fn uses_of_the_own_stream_add_up() {
        let uses = Uses::default();
        uses.note_own(Access::Write);
        uses.note_own(Access::Read);
        assert_eq!(uses.lock().own, Some(Access::Write), "a read does not hide the write before it");
    }
}
