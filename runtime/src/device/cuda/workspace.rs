//! Workspaces: small memory that a kernel finds zeroed and leaves zeroed, such as the counters of dynamic scheduling; and
//! scratch, memory for what one launch of a call leaves to a later one.
//!
//! Launches that may overlap need workspaces of their own: one per stream, and one for every launch that is captured into a
//! graph. They are handed out from memory that is allocated when the kernel is loaded, since a capture must not allocate.
//!
//! Scratch may be large, and its size depends on the call. A stream has memory as large as its largest call so far. A capture
//! takes over the memory of its stream, for good: its graph may run beside what is launched later.

use std::sync::{Arc, Mutex};

use super::gpu::Cuda;
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
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes from one to the next in the latest chunk; 0 if the kernel has none.
    stride: usize,
    /// Memory of so many workspaces each. Those of smaller ones stay, for launches and graphs that have theirs there.
    chunks: Vec<DeviceMemory>,
    /// Workspaces of the latest chunk that are taken.
    used: usize,
    /// Stream, address and bytes.
    by_stream: Vec<(usize, u64, usize)>,
}

impl Workspaces {
    /// Workspaces of so many bytes, the first of them allocated.
    pub fn new(gpu: &Cuda, bytes: u64) -> Result<Self, DeviceError> {
        let mut state = State::default();
        if bytes > 0 {
            state.grow(gpu, bytes)?;
        }
        Ok(Self { state: Mutex::new(state) })
    }

    /// The address of so many bytes for a launch on `stream`; 0 for none. Larger ones than ever before are allocated, which a
    /// capture must not do.
    pub fn address(&self, gpu: &Cuda, stream: &CudaStream, bytes: u64) -> Result<u64, DeviceError> {
        if bytes == 0 {
            return Ok(0);
        }
        let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
        let captured = stream.is_capturing()?;
        let key = stream.raw().addr();
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let own = state.by_stream.iter().position(|(of, ..)| *of == key);
        if let Some(own) = own.filter(|_| !captured) {
            let (_, address, room) = state.by_stream[own];
            if wanted <= room {
                return Ok(address);
            }
            state.by_stream.remove(own);
        }
        if wanted > state.stride && captured {
            return Err(DeviceError::ScratchInCapture { device: gpu.context().id.clone(), bytes: wanted });
        }
        if wanted > state.stride || state.used == CHUNK {
            let bytes = bytes.max(state.stride as u64);
            state.grow(gpu, bytes)?;
        }
        let (stride, used) = (state.stride, state.used);
        let chunk = state.chunks.last().expect("the first is allocated with the kernel");
        let address = chunk.address() + (used * stride) as u64;
        state.used += 1;
        if !captured {
            state.by_stream.push((key, address, stride));
        }
        Ok(address)
    }
}

impl State {
    /// Another chunk, of workspaces of so many bytes.
    fn grow(&mut self, gpu: &Cuda, bytes: u64) -> Result<(), DeviceError> {
        let stride = usize::try_from(bytes).unwrap_or(usize::MAX / CHUNK - ALIGNMENT).next_multiple_of(ALIGNMENT);
        self.chunks.push(gpu.allocate_memory(CHUNK * stride)?);
        (self.stride, self.used) = (stride, 0);
        Ok(())
    }
}

/// The scratch memory of a loaded kernel.
#[derive(Debug, Default)]
pub(super) struct ScratchMemory {
    state: Mutex<Owned>,
}

#[derive(Debug, Default)]
struct Owned {
    by_stream: Vec<(usize, Arc<DeviceMemory>)>,
    /// By capture and stream.
    captured: Vec<((u64, usize), Arc<DeviceMemory>)>,
}

impl ScratchMemory {
    /// Memory of at least so many bytes for a call on `stream`, which nothing uses that is not ordered by that stream.
    pub fn get(&self, gpu: &Cuda, stream: &CudaStream, bytes: usize) -> Result<Arc<DeviceMemory>, DeviceError> {
        let (capture, key) = (stream.capture()?, stream.raw().addr());
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        let own = state.by_stream.iter().position(|(of, _)| *of == key);
        let large = |memory: &Arc<DeviceMemory>| memory.bytes() >= bytes;
        if let Some(capture) = capture {
            if let Some((_, memory)) = state.captured.iter().find(|(of, memory)| *of == (capture, key) && large(memory)) {
                return Ok(memory.clone());
            }
            let Some(own) = own.filter(|&own| large(&state.by_stream[own].1)) else {
                return Err(DeviceError::ScratchInCapture { device: gpu.context().id.clone(), bytes });
            };
            let (_, memory) = state.by_stream.remove(own);
            state.captured.push(((capture, key), memory.clone()));
            return Ok(memory);
        }
        if let Some(own) = own {
            if large(&state.by_stream[own].1) {
                return Ok(state.by_stream[own].1.clone());
            }
            // Freeing it waits for what still uses it.
            state.by_stream.remove(own);
        }
        let memory = Arc::new(gpu.allocate_memory(bytes)?);
        state.by_stream.push((key, memory.clone()));
        Ok(memory)
    }
}
