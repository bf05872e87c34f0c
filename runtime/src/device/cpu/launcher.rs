//! Launches on the CPU: the tile IR executed in f32, programs in parallel.
//!
//! Programs run in batches. While a batch runs the memory of the inputs is locked for reading and nothing is written;
//! the tiles that its programs store are then written by the launching thread, in program order. So no two threads
//! write, and the result does not depend on how programs were spread over threads.

#[cfg(unix)]
use std::sync::OnceLock;

use flashtile_dsl::interpret::{self, Blocks, InterpretError, Interpreter, Ir32, Stored, TensorView};
use flashtile_dsl::ir::{Elem, Entity, ParamKind};
use rayon::prelude::*;

use super::memory::{HostMemory, ReadBytes};
use crate::device::{Call, CallArgument, DeviceError, DeviceKind, Launcher, Memory};
use crate::error::{Error, Result};
use crate::kernel::{BoundKernel, KernelError};

/// Positions of a tile of every axis: small enough that the tiles of a program stay in a core's cache, large enough for
/// matrix products to be fast.
const BLOCK: usize = 64;
/// Programs that each thread runs in a batch. Bounds the memory that holds tiles not yet written.
const BATCH_PER_THREAD: usize = 16;

/// A kernel made ready for the CPU.
#[derive(Debug)]
pub(super) struct CpuLauncher {
    kernel: BoundKernel,
    blocks: Blocks,
}

impl CpuLauncher {
    pub fn new(kernel: &BoundKernel) -> Self {
        Self { kernel: kernel.clone(), blocks: Blocks::PerAxis(vec![BLOCK; kernel.ir().axes.len()]) }
    }

    /// Runs programs `from ..` as far as one batch goes; returns what they store and the number of all programs.
    fn batch(&self, call: &Call<'_>, from: usize) -> Result<(Vec<Stored<f32>>, usize, usize)> {
        let kernel = self.kernel.ir();
        let mut guards: Vec<(&HostMemory, ReadBytes<'_>)> = Vec::new();
        for (param, argument) in kernel.params.values().zip(call.arguments) {
            if let (ParamKind::Tensor(tensor), CallArgument::Tensor { memory, .. }) = (&param.kind, argument)
                && tensor.direction.is_read()
                && guards.iter().all(|(locked, _)| !std::ptr::eq(*locked, host(*memory)))
            {
                guards.push((host(*memory), host(*memory).read_bytes()?));
            }
        }
        let arguments: Vec<_> = kernel
            .params
            .values()
            .zip(call.arguments)
            .map(|(param, argument)| match (&param.kind, *argument) {
                (_, CallArgument::F32(x)) => interpret::Argument::F32(x),
                (_, CallArgument::I32(x)) => interpret::Argument::I32(x),
                (ParamKind::Tensor(tensor), _) if !tensor.direction.is_read() => interpret::Argument::Output,
                (_, CallArgument::Tensor { memory, offset, elem, shape, strides, .. }) => {
                    let locked = guards.iter().find(|(locked, _)| std::ptr::eq(*locked, host(memory)));
                    let all = locked.expect("every input is locked above").1.as_slice();
                    let first = (offset * elem.bytes().unwrap_or(1)).min(all.len());
                    interpret::Argument::Input(TensorView { elem, shape, strides, bytes: &all[first..] })
                }
            })
            .collect();
        let interpreter = Interpreter::new(kernel, self.kernel.binding(), call.sizes, &self.blocks, &arguments, Ir32);
        let interpreter = interpreter.map_err(|e| self.error(&e))?;
        let programs = interpreter.programs();
        let to = programs.min(from + BATCH_PER_THREAD * rayon::current_num_threads());
        let stored: Result<Vec<Vec<_>>, InterpretError> = (from..to).into_par_iter().map(|p| interpreter.run(p)).collect();
        let stored = stored.map_err(|e| self.error(&e))?;
        Ok((stored.into_iter().flatten().collect(), to, programs))
    }

    /// Writes what programs have stored, or adds it to what is there.
    fn put(&self, call: &Call<'_>, stored: &[Stored<f32>]) -> Result<()> {
        let params = &self.kernel.ir().params;
        stored.iter().try_for_each(|tile| match params[tile.param].kind.is_sum() {
            true => in_memory(call, tile, |_, strides, memory| tile.add(strides, memory)),
            false => in_memory(call, tile, |elem, strides, memory| tile.write(elem, strides, memory)),
        })
    }

    /// Sets sums to 0.
    fn clear_sums(&self, call: &Call<'_>) -> Result<()> {
        for (param, _) in self.kernel.ir().params.iter().filter(|(_, param)| param.kind.is_sum()) {
            let CallArgument::Tensor { shape, .. } = &call.arguments[param.index()] else {
                unreachable!("checked: a sum is a tensor")
            };
            let region = shape.iter().map(|&len| (0, len)).collect();
            let zeros = Stored { param, region, values: vec![0.0; shape.iter().product()], ints: Vec::new(), terms: 0.0 };
            in_memory(call, &zeros, |elem, strides, memory| zeros.write(elem, strides, memory))?;
        }
        Ok(())
    }

    fn error(&self, error: &InterpretError) -> Error {
        let source = &self.kernel.ir().source;
        let place = error.span().and_then(|span| source.line_column(span));
        let reason = match place {
            Some((line, column)) => format!("{}:{line}:{column}: {error}", source.name),
            None => error.to_string(),
        };
        KernelError::Execute { kernel: self.kernel.ir().name.clone(), reason }.into()
    }
}

/// Refuses a launch in a process that was forked from one that has launched: the threads that run
/// programs stayed there, and would be waited for without end.
fn needs_threads() -> Result<(), DeviceError> {
    #[cfg(unix)]
    {
        static PROCESS: OnceLock<u32> = OnceLock::new();
        let own = std::process::id();
        if *PROCESS.get_or_init(|| own) != own {
            return Err(DeviceError::Forked);
        }
    }
    Ok(())
}

impl Launcher for CpuLauncher {
    fn launch(&self, call: &Call<'_>) -> Result<()> {
        if call.stream.is_some_and(|stream| stream.kind != DeviceKind::Cpu) {
            return Err(DeviceError::OtherDevice { device: "cpu".to_owned() }.into());
        }
        needs_threads()?;
        self.clear_sums(call)?;
        let mut from = 0;
        loop {
            let (stored, to, programs) = self.batch(call, from)?;
            self.put(call, &stored)?;
            if to == programs {
                return Ok(());
            }
            from = to;
        }
    }
}

/// Memory of this device.
fn host(memory: Option<&dyn Memory>) -> &HostMemory {
    let memory = memory.expect("a launch on the CPU is given memory");
    memory.as_any().downcast_ref().expect("checked: tensors of a launch on the CPU are in its memory")
}

/// Does something with the memory of the tensor that a tile is of, from its first element on.
fn in_memory(call: &Call<'_>, tile: &Stored<f32>, then: impl FnOnce(Elem, &[usize], &mut [u8])) -> Result<()> {
    let CallArgument::Tensor { memory, offset, elem, strides, .. } = &call.arguments[tile.param.index()] else {
        unreachable!("verified: only tensors are stored to")
    };
    let mut bytes = host(*memory).write_bytes()?;
    let all = bytes.as_mut_slice();
    let first = (offset * elem.bytes().unwrap_or(1)).min(all.len());
    then(*elem, strides, &mut all[first..]);
    Ok(())
}
