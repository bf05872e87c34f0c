//! Launches on tensors of the same element types, shapes and strides. What follows from these is
//! checked and worked out once; a launch then looks at addresses and scalars only.
//!
//! | of a launch | depends on | found |
//! | --- | --- | --- |
//! | kinds, ranks, extents, sizes, rows, an output that overlaps itself | forms | once |
//! | indices, divisors, widths | sizes, i32 scalars | once; with i32 scalars at each launch |
//! | device, whether an output may be written | tensors | at each launch |
//! | alignment, memory that arguments share | addresses | at each launch |
//! | the variant | forms, alignment, signs of scalars, widths | at each launch, from a short list |

use std::ffi::c_void;
use std::sync::Arc;

use flashtile_dsl::analysis::reach::Width;
use flashtile_dsl::ir::Elem;

use super::argument::{Argument, ArgumentForm, ArgumentValue};
use super::signature::{MAX_ARGUMENTS, MAX_SIZES, Signature};
use crate::device::{Call, CallArgument, CallStream, Device, FixedCall, Launcher, Stream};
use crate::error::Result;
use crate::launch::ArgumentError;
use crate::tensor::{AnyTensor, Place, between};

/// What the launches of a loaded kernel go through, prepared ones too.
#[derive(Debug)]
pub(super) struct Target {
    pub device: Device,
    pub signature: Signature,
    pub launcher: Box<dyn Launcher>,
}

/// What launches on arguments of the same forms have in common.
#[derive(Debug)]
pub(super) struct Fixed {
    arguments: Vec<FixedArgument>,
    /// Positions of the outputs.
    outputs: Vec<usize>,
    sizes: Vec<i64>,
    /// `None` if it depends on i32 scalars.
    width: Option<Width>,
    /// What the device keeps; `None` on one that keeps nothing.
    device: Option<FixedCall>,
}

#[derive(Debug)]
enum FixedArgument {
    Tensor {
        elem: Elem,
        /// Of an element.
        bytes: usize,
        shape: Vec<usize>,
        strides: Vec<usize>,
        /// From the first byte to the last; 0 without elements.
        span: u64,
    },
    F32,
    I32,
}

impl FixedArgument {
    fn new(form: &ArgumentForm<'_>) -> Self {
        match *form {
            ArgumentForm::Tensor { elem, shape, strides } => {
                let bytes = elem.bytes().expect("checked: the element type of a parameter");
                let last = || shape.iter().zip(strides).map(|(n, step)| (n - 1) * step).sum::<usize>();
                let span = if shape.contains(&0) { 0 } else { ((last() + 1) * bytes) as u64 };
                FixedArgument::Tensor { elem, bytes, shape: shape.to_vec(), strides: strides.to_vec(), span }
            }
            ArgumentForm::F32 => FixedArgument::F32,
            ArgumentForm::I32 => FixedArgument::I32,
        }
    }

    fn form(&self) -> ArgumentForm<'_> {
        match self {
            FixedArgument::Tensor { elem, shape, strides, .. } => ArgumentForm::Tensor { elem: *elem, shape, strides },
            FixedArgument::F32 => ArgumentForm::F32,
            FixedArgument::I32 => ArgumentForm::I32,
        }
    }

    fn place(&self, address: u64) -> Option<Place<'_>> {
        match self {
            FixedArgument::Tensor { bytes, shape, strides, .. } => Some(Place { address, bytes: *bytes, shape, strides }),
            FixedArgument::F32 | FixedArgument::I32 => None,
        }
    }
}

impl Fixed {
    /// Of arguments of these forms, whose sizes have been found.
    pub fn new(target: &Target, forms: &[ArgumentForm<'_>], sizes: &[i64]) -> Result<Self> {
        let signature = &target.signature;
        let width = match signature.has_integers() {
            true => None,
            false => Some(signature.check_reach(&|_| 0, sizes)?),
        };
        let arguments: Vec<FixedArgument> = forms.iter().map(FixedArgument::new).collect();
        let raw: Vec<CallArgument<'_>> = forms.iter().map(|form| raw(form, 0)).collect();
        let call = Call { arguments: &raw, sizes, width: Width::Narrow, stream: None };
        Ok(Self {
            outputs: (0..arguments.len()).filter(|&index| signature.is_output(index)).collect(),
            sizes: sizes.to_vec(),
            width,
            device: target.launcher.fix(&call),
            arguments,
        })
    }

    /// Whether a launch with these arguments is one of these.
    pub fn is_of(&self, arguments: &[Argument<'_>]) -> bool {
        self.arguments.len() == arguments.len()
            && self.arguments.iter().zip(arguments).all(|(fixed, given)| fixed.form() == given.form())
    }

    /// Launches on arguments of these forms, whose devices have been checked.
    pub fn launch(&self, target: &Target, arguments: &[CallArgument<'_>], stream: Option<CallStream<'_>>) -> Result<()> {
        let width = self.check(&target.signature, arguments)?;
        let call = Call { arguments, sizes: &self.sizes, width, stream };
        match &self.device {
            Some(fixed) => target.launcher.launch_fixed(fixed, &call),
            None => target.launcher.launch(&call),
        }
    }

    /// Checks what depends on addresses and scalars.
    fn check(&self, signature: &Signature, arguments: &[CallArgument<'_>]) -> Result<Width, ArgumentError> {
        for (index, argument) in arguments.iter().enumerate() {
            signature.check_address(index, address(argument))?;
        }
        let integer = |index: usize| match arguments[index] {
            CallArgument::I32(x) => x,
            CallArgument::F32(_) | CallArgument::Tensor { .. } => 0,
        };
        let width = match self.width {
            Some(width) => width,
            None => signature.check_reach(&integer, &self.sizes)?,
        };
        for &output in &self.outputs {
            for other in 0..arguments.len() {
                if other != output && self.share(arguments, output, other) {
                    return Err(signature.aliased(output, other));
                }
            }
        }
        Ok(width)
    }

    /// Whether two arguments share memory.
    fn share(&self, arguments: &[CallArgument<'_>], a: usize, b: usize) -> bool {
        let (FixedArgument::Tensor { span: a_span, .. }, FixedArgument::Tensor { span: b_span, .. }) =
            (&self.arguments[a], &self.arguments[b])
        else {
            return false;
        };
        let (a_first, b_first) = (address(&arguments[a]), address(&arguments[b]));
        if *a_span == 0 || *b_span == 0 || a_first + a_span <= b_first || b_first + b_span <= a_first {
            return false;
        }
        let places = self.arguments[a].place(a_first).zip(self.arguments[b].place(b_first));
        places.is_some_and(|(a, b)| between(&a, &b))
    }
}

fn address(argument: &CallArgument<'_>) -> u64 {
    match *argument {
        CallArgument::Tensor { address, .. } => address,
        CallArgument::F32(_) | CallArgument::I32(_) => 0,
    }
}

/// An argument of a form, of which no more than its address is known.
fn raw<'a>(form: &ArgumentForm<'a>, address: u64) -> CallArgument<'a> {
    match *form {
        ArgumentForm::Tensor { elem, shape, strides } => {
            CallArgument::Tensor { memory: None, offset: 0, elem, address, shape, strides, writes: false }
        }
        ArgumentForm::F32 => CallArgument::F32(0.0),
        ArgumentForm::I32 => CallArgument::I32(0),
    }
}

/// A kernel made ready for arguments of certain forms: what follows from element types, shapes and
/// strides has been checked and worked out, and a launch costs the host less. Made by
/// [`LoadedKernel::prepare`](super::LoadedKernel::prepare), for clients that hold tensors of
/// another library.
///
/// ```
/// use flashtile::{ArgumentForm, ArgumentValue, Device, Elem, Kernel, Stream};
/// let device = Device::cpu();
/// let kernel = Kernel::builtin("row_softmax")?.bind(Elem::F32, [] as [(&str, i64); 0])?.on(&device)?;
/// let form = ArgumentForm::Tensor { elem: Elem::F32, shape: &[2, 3], strides: &[3, 1] };
/// let prepared = kernel.prepare(&[form, form])?;
/// let (x, mut y) = ([0.0f32; 6], [0.0f32; 6]);
/// let at = |pointer: *const f32| ArgumentValue::Address(pointer.expose_provenance() as u64);
/// // SAFETY: the launch has ended when it returns, as all of the CPU; until then nothing else uses the arrays.
/// unsafe { prepared.launch_on(&Stream::new(&device)?, &[at(x.as_ptr()), at(y.as_mut_ptr())])? };
/// assert_eq!(y, [1.0 / 3.0; 6]);
/// # Ok::<(), flashtile::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PreparedLaunch {
    target: Arc<Target>,
    fixed: Arc<Fixed>,
}

impl PreparedLaunch {
    pub(super) fn new(target: &Arc<Target>, forms: &[ArgumentForm<'_>]) -> Result<Self> {
        let mut sizes = [0; MAX_SIZES];
        let count = target.signature.check_forms(forms, &mut sizes)?;
        let fixed = Fixed::new(target, forms, &sizes[..count])?;
        Ok(Self { target: target.clone(), fixed: Arc::new(fixed) })
    }

    /// Queues a launch, with a value for each argument.
    ///
    /// # Safety
    /// Each address is that of a tensor in the sense of [`crate::Tensor::from_raw_parts`], with the
    /// element type, shape and strides that were prepared for, which others neither write nor, if
    /// the kernel writes it, read. The memory stays allocated until the work has ended. All other
    /// work on it, of this library too, is ordered with the stream, as [`Stream::from_raw_ordered`]
    /// says, whatever kind of stream it is.
    ///
    /// # Errors
    /// As [`LoadedKernel::launch`](super::LoadedKernel::launch).
    pub unsafe fn launch_on(&self, stream: &Stream, values: &[ArgumentValue]) -> Result<()> {
        let Self { target, fixed } = self;
        let mut arguments = [CallArgument::I32(0); MAX_ARGUMENTS];
        if values.len() != fixed.arguments.len() {
            return Err(target.signature.count_error(values.len()).into());
        }
        for (index, (slot, (given, value))) in arguments.iter_mut().zip(fixed.arguments.iter().zip(values)).enumerate() {
            *slot = match (given.form(), *value) {
                (form @ ArgumentForm::Tensor { .. }, ArgumentValue::Address(address)) => raw(&form, address),
                (ArgumentForm::F32, ArgumentValue::F32(x)) => CallArgument::F32(x),
                (ArgumentForm::I32, ArgumentValue::I32(x)) => CallArgument::I32(x),
                (form, value) => {
                    return Err(target.signature.value_error(index, &form, value).into());
                }
            };
        }
        let arguments = &arguments[..values.len()];
        if fixed.device.is_some() {
            return fixed.launch(target, arguments, Some(stream.of_call()));
        }
        // SAFETY: as the caller promises.
        unsafe { self.launch_in_memory(stream, arguments) }
    }

    /// Launches on a device that takes tensors in its memory, not addresses.
    ///
    /// # Safety
    /// As [`PreparedLaunch::launch_on`].
    unsafe fn launch_in_memory(&self, stream: &Stream, arguments: &[CallArgument<'_>]) -> Result<()> {
        let signature = &self.target.signature;
        let tensor = |argument: &CallArgument<'_>| match *argument {
            CallArgument::Tensor { elem, address, shape, strides, .. } => {
                let pointer = std::ptr::with_exposed_provenance_mut::<c_void>(address as usize);
                // SAFETY: as the caller promises.
                unsafe { AnyTensor::from_raw_parts(&self.target.device, elem, pointer, shape, strides) }.map(Some)
            }
            CallArgument::F32(_) | CallArgument::I32(_) => Ok(None),
        };
        // The memory of each tensor; an address that is not aligned is an error of the argument.
        self.fixed.check(signature, arguments)?;
        let tensors = arguments.iter().map(tensor).collect::<Result<Vec<_>>>()?;
        let mut given = [CallArgument::I32(0); MAX_ARGUMENTS];
        for (index, (slot, argument)) in given.iter_mut().zip(arguments).enumerate() {
            *slot = tensors[index].as_ref().map_or(*argument, |tensor| tensor.raw(signature.is_output(index)));
        }
        self.fixed.launch(&self.target, &given[..arguments.len()], Some(stream.of_call()))
    }
}
