//! Random calls: shapes with zeros and large sizes, strides with gaps, misaligned addresses,
//! scalars of every sign.

use std::fmt::Write as _;

use flashtile_dsl::ir::{Elem, Entity, ParamKind, SizeKind};

use super::recorder::WORKSPACE;
use crate::device::Device;
use crate::error::{ArgumentError, BundleError, DeviceError, Error, Result, TensorError};
use crate::kernel::BoundKernel;
use crate::launch::{Argument, LoadedKernel};
use crate::tensor::AnyTensor;
use flashtile_dsl::inputs::Random;

/// An argument of a call.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Given {
    Tensor { elem: Elem, output: bool, address: u64, extents: Vec<usize>, strides: Vec<usize> },
    F32(f32),
    I32(i32),
}

/// What is wrong with a call, at most one thing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    Nothing,
    Extent,
    Stride,
    Address,
    Overlap,
}

/// A call of a kernel with random arguments.
pub(super) fn random(kernel: &BoundKernel, random: &mut Random) -> Vec<Given> {
    let ir = kernel.ir();
    // Of 12 calls one has large sizes, and of 5 one has a single large one.
    let large = random.below(12) == 0;
    let single = (random.below(5) == 0).then(|| random.below(ir.sizes.len() as u64) as usize);
    let sizes: Vec<i64> = ir
        .sizes
        .values()
        .enumerate()
        .map(|(number, size)| match size.kind {
            SizeKind::Const => kernel.binding().consts[&size.name],
            SizeKind::Runtime if single == Some(number) => random.of(&[1 << 29, 1 << 30, (1 << 30) + (1 << 20)]),
            SizeKind::Runtime if single.is_some() => random.of(&[1, 1, 1, 2]),
            SizeKind::Runtime if large => random.of(&[1, 2, 3, 7, 1000, 46_341, 65_536, (1 << 24) + 1, (1 << 31) - (1 << 16)]),
            SizeKind::Runtime => random.of(&[1, 1, 2, 2, 4, 4, 8, 3, 0, 16, 33, 64, 100, 128, 129, 512, 600]),
        })
        .collect();
    let plant = match random.below(4) {
        0 => random.of(&[Plant::Extent, Plant::Stride, Plant::Address, Plant::Overlap]),
        _ => Plant::Nothing,
    };
    let odd = random.below(4);
    let mut next = 1u64 << 32;
    let mut given: Vec<Given> = Vec::new();
    for param in ir.params.values() {
        given.push(match &param.kind {
            ParamKind::Scalar(elem) if kernel.binding().elem(ir, *elem) == Elem::I32 => {
                Given::I32(random.of(&[1, 1, 2, 2, 3, 5, 0, -1, i32::MAX, i32::MIN]))
            }
            ParamKind::Scalar(_) => Given::F32(random.of(&[0.125, 1.0, 2.5, 0.0, -0.0, -1.0, f32::INFINITY, f32::NAN])),
            ParamKind::Tensor(t) => {
                let elem = kernel.binding().elem(ir, t.elem);
                let extent =
                    |e: &flashtile_dsl::ir::SizeExpr| e.eval(|s| sizes.get(s.index()).copied()).unwrap_or(0).max(0) as usize;
                let extents: Vec<usize> = t.shape.iter().map(extent).collect();
                let strides = strides(&extents, random);
                let bytes = elem.bytes().expect("in memory") as u64;
                // Of four calls one has an address that 16 bytes do not divide.
                let address = next + if odd == 0 { bytes * random.below(9) } else { 0 };
                let reach = |(&n, &s): (&usize, &usize)| ((n.max(1) - 1) as u64).saturating_mul(s as u64);
                let last = extents.iter().zip(&strides).map(reach).fold(0, u64::saturating_add);
                next = next.saturating_add(last.saturating_add(64).saturating_mul(bytes)).min(1 << 61).next_multiple_of(4096);
                Given::Tensor { elem, output: t.direction.is_written(), address, extents, strides }
            }
        });
    }
    spoil(&mut given, plant, random);
    given
}

/// Strides of rows, outer dimensions in any order, sometimes with gaps.
fn strides(extents: &[usize], random: &mut Random) -> Vec<usize> {
    let mut strides = vec![1; extents.len()];
    let outer = extents.len().saturating_sub(1);
    let mut order: Vec<usize> = (0..outer).rev().collect();
    if outer > 1 && random.below(3) == 0 {
        let (a, b) = (random.below(outer as u64) as usize, random.below(outer as u64) as usize);
        order.swap(a, b);
    }
    let gap = random.of(&[0, 0, 0, 0, 0, 8, 1, 4]);
    let mut step = extents.last().map_or(1, |&n| n.max(1)) + gap;
    for d in order {
        strides[d] = step;
        // Sizes of large calls in all would be beyond what an address can say.
        step = step.saturating_mul(extents[d].max(1)).min(1 << 36);
    }
    strides
}

fn spoil(given: &mut [Given], plant: Plant, random: &mut Random) {
    let tensors: Vec<usize> = (0..given.len()).filter(|&n| matches!(given[n], Given::Tensor { .. })).collect();
    let chosen = tensors[random.below(tensors.len() as u64) as usize];
    let other = given.iter().find_map(|g| match g {
        Given::Tensor { address, output: false, .. } => Some(*address),
        _ => None,
    });
    let Given::Tensor { address, extents, strides, elem, output } = &mut given[chosen] else { unreachable!("a tensor") };
    let rank = extents.len() as u64;
    match plant {
        Plant::Nothing => {}
        Plant::Extent => extents[random.below(rank) as usize] += 1,
        Plant::Stride => {
            if let Some(last) = strides.last_mut() {
                *last = 2;
            }
        }
        Plant::Address => *address += if elem.bytes() == Some(1) { 0 } else { 1 },
        Plant::Overlap if *output => *address = other.expect("an input"),
        Plant::Overlap => strides[0] = 0,
    }
}

/// The call as a line of the file that the C program reads.
pub(super) fn line(kernel: usize, call: &[Given]) -> String {
    let mut out = format!("{kernel} {WORKSPACE}");
    for given in call {
        match given {
            Given::F32(x) => write!(out, " {}", x.to_bits()),
            Given::I32(x) => write!(out, " {x}"),
            Given::Tensor { address, extents, strides, .. } => {
                let numbers: Vec<String> = extents.iter().chain(strides).map(ToString::to_string).collect();
                write!(out, " {address} {}", numbers.join(" "))
            }
        }
        .expect("strings take it");
    }
    out + "\n"
}

/// Launches the call from Rust; the status that the C launcher is to return.
pub(super) fn launch(loaded: &LoadedKernel, call: &[Given]) -> (u32, String) {
    let device = loaded.device();
    match queue(loaded, device, call) {
        Ok(()) => (0, String::new()),
        Err(error) => (status(&error), error.to_string()),
    }
}

fn queue(loaded: &LoadedKernel, device: &Device, call: &[Given]) -> Result<()> {
    let tensor = |given: &Given| match given {
        Given::Tensor { elem, address, extents, strides, .. } => {
            let pointer = std::ptr::without_provenance_mut(usize::try_from(*address).expect("64 bits"));
            // SAFETY: the memory of a recorder is an address that nobody reads or writes.
            unsafe { AnyTensor::from_raw_parts(device, *elem, pointer, extents, strides) }.map(Some)
        }
        Given::F32(_) | Given::I32(_) => Ok(None),
    };
    let tensors = call.iter().map(tensor).collect::<Result<Vec<_>>>()?;
    let arguments: Vec<Argument<'_>> = call
        .iter()
        .zip(&tensors)
        .map(|(given, tensor)| match (given, tensor) {
            (Given::F32(x), _) => (*x).into(),
            (Given::I32(x), _) => (*x).into(),
            (Given::Tensor { output, .. }, tensor) => {
                let tensor = tensor.as_ref().expect("made above");
                if *output { Argument::Output(tensor) } else { Argument::Input(tensor) }
            }
        })
        .collect();
    loaded.launch(&arguments)
}

/// `flashtile_status` of an error.
fn status(error: &Error) -> u32 {
    match error {
        Error::Tensor(TensorError::Misaligned { .. } | TensorError::Null(_)) => 3,
        Error::Tensor(TensorError::TooLarge(_) | TensorError::Bounds { .. }) => 1,
        Error::Argument(error) => match error {
            ArgumentError::NotContiguous { .. } => 2,
            ArgumentError::Misaligned { .. } => 3,
            ArgumentError::Overlapping { .. } | ArgumentError::Aliased { .. } => 4,
            ArgumentError::Outside { .. }
            | ArgumentError::Division { .. }
            | ArgumentError::Overflow { .. }
            | ArgumentError::Undecided { .. } => 5,
            _ => 1,
        },
        Error::Bundle(BundleError::NoVariant { .. }) => 6,
        Error::Device(DeviceError::GridTooLarge { .. }) => 7,
        other => panic!("{other}"),
    }
}
