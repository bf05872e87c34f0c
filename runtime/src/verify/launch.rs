//! Launches with arguments in memory of the host: they are copied to a device, run there, and copied back.

use flashtile_dsl::interpret::HostTensor;
use flashtile_dsl::ir::Elem;

use crate::error::Result;
use crate::launch::{Argument, LoadedKernel};
use crate::tensor::AnyTensor;

/// An argument in memory of the host.
#[derive(Clone, PartialEq, Debug)]
pub enum HostArgument {
    /// A tensor that is read.
    Input(HostTensor),
    /// A tensor that is written.
    Output(HostTensor),
    /// An f32 scalar.
    F32(f32),
    /// An i32 scalar.
    I32(i32),
}

impl HostArgument {
    /// The tensor, if it is one.
    pub fn tensor(&self) -> Option<&HostTensor> {
        match self {
            HostArgument::Input(tensor) | HostArgument::Output(tensor) => Some(tensor),
            HostArgument::F32(_) | HostArgument::I32(_) => None,
        }
    }
}

/// Launches `kernel` on its device and writes back the outputs: all of their memory, so that a stray write shows.
///
/// # Errors
/// The launch fails, or the device is out of memory.
pub fn run(kernel: &LoadedKernel, arguments: &mut [HostArgument]) -> Result<()> {
    struct PlacedTensor {
        memory: AnyTensor,
        view: AnyTensor,
        output: bool,
    }
    enum Placed {
        Tensor(Box<PlacedTensor>),
        F32(f32),
        I32(i32),
    }
    let device = kernel.device();
    let place = |tensor: &HostTensor, output| {
        let elements = tensor.bytes.len() / tensor.elem.bytes().unwrap_or(1);
        let memory = AnyTensor::from_bytes(device, tensor.elem, &[elements], &tensor.bytes)?;
        let view = memory.view(&tensor.shape, &tensor.strides, tensor.offset)?;
        Ok(Placed::Tensor(Box::new(PlacedTensor { memory, view, output })))
    };
    let placed = arguments
        .iter()
        .map(|argument| match argument {
            HostArgument::Input(tensor) => place(tensor, false),
            HostArgument::Output(tensor) => place(tensor, true),
            HostArgument::F32(x) => Ok(Placed::F32(*x)),
            HostArgument::I32(x) => Ok(Placed::I32(*x)),
        })
        .collect::<Result<Vec<_>>>()?;
    let launched: Vec<Argument<'_>> = placed
        .iter()
        .map(|p| match p {
            Placed::Tensor(tensor) if tensor.output => Argument::Output(&tensor.view),
            Placed::Tensor(tensor) => Argument::Input(&tensor.view),
            Placed::F32(x) => Argument::F32(*x),
            Placed::I32(x) => Argument::I32(*x),
        })
        .collect();
    kernel.launch(&launched)?;
    device.synchronize()?;
    for (argument, placed) in arguments.iter_mut().zip(&placed) {
        if let (HostArgument::Output(tensor), Placed::Tensor(placed)) = (argument, placed) {
            tensor.bytes = placed.memory.to_bytes()?;
        }
    }
    Ok(())
}

/// A value rounded to an element type.
pub(super) fn rounded(elem: Elem, x: f64) -> f64 {
    match elem {
        Elem::F32 => f64::from(x as f32),
        Elem::F16 => half::f16::from_f64(x).to_f64(),
        Elem::Bf16 => half::bf16::from_f64(x).to_f64(),
        // Kernels store no other floats.
        _ => x,
    }
}
