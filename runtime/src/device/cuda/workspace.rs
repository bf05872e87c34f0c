//! Workspaces: small memory that a kernel finds zeroed and leaves zeroed, such as the counters of dynamic scheduling.
//!
//! Launches that may overlap need workspaces of their own: one per stream, and one for every launch that is captured into a
//! graph. They are handed out from memory that is allocated when the kernel is loaded, since a capture must not allocate.

use std::sync::Mutex;

use super::context::Cuda;
use super::memory::DeviceMemory;
use super::stream::CudaStream;
use crate::device::{DeviceError, Memory};

/// Workspaces of one allocation.
const CHUNK: usize = 256;
/// Distance of workspaces: a sector of memory, so that atomics of two launches do not meet.
const ALIGNMENT: usize = 32;

/// The workspaces of a loaded kernel.
#[derive(Debug)]
pub(super) struct Workspaces {
    /// Bytes from one to the next; 0 if the kernel has none.
    stride: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    chunks: Vec<DeviceMemory>,
    used: usize,
    by_stream: Vec<(usize, u64)>,
}

impl Workspaces {
    /// Workspaces of so many bytes, the first of them allocated.
    pub fn new(gpu: &Cuda, bytes: u64) -> Result<Self, DeviceError> {
        let stride = usize::try_from(bytes).unwrap_or(usize::MAX / CHUNK - ALIGNMENT).next_multiple_of(ALIGNMENT);
        let mut state = State::default();
        if stride > 0 {
            state.chunks.push(gpu.allocate_memory(CHUNK * stride)?);
        }
        Ok(Self { stride, state: Mutex::new(state) })
    }

    /// The address for a launch on `stream`; 0 if the kernel has no workspace.
    pub fn address(&self, gpu: &Cuda, stream: &CudaStream) -> Result<u64, DeviceError> {
        if self.stride == 0 {
            return Ok(0);
        }
        let captured = stream.is_capturing()?;
        let key = stream.raw().addr();
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        if !captured && let Some((_, address)) = state.by_stream.iter().find(|(of, _)| *of == key) {
            return Ok(*address);
        }
        if state.used == state.chunks.len() * CHUNK {
            state.chunks.push(gpu.allocate_memory(CHUNK * self.stride)?);
        }
        let chunk = state.chunks.last().expect("the first is allocated with the kernel");
        let address = chunk.address() + (state.used % CHUNK * self.stride) as u64;
        state.used += 1;
        if !captured {
            state.by_stream.push((key, address));
        }
        Ok(address)
    }
}
