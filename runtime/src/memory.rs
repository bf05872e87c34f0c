//! How much memory a launch and its check take, asked before anything is allocated: sizes are
//! numbers that a user types, and an allocation that fails, or that the system grants and cannot
//! keep, ends the process.

use flashtile_dsl::ir::{AxisKind, Dim, Entity, Op, ParamKind, SizeExpr, Type};

use crate::device::{Device, DeviceKind, Room, SMALL, host_room};
use crate::error::Result;
use crate::kernel::BoundKernel;

/// Rows of a program of the oracle: see `verify::Reference`.
const ORACLE_ROWS: u128 = 32;
/// Bytes of a value of the oracle.
const ORACLE_BYTES: u128 = 8;

/// Refuses sizes for which the tensors of a launch, or what it takes to check them, have no room.
/// Asked before anything is allocated. `sizes` has the values of all sizes by
/// [`flashtile_dsl::ir::SizeId`]; the oracle runs so many programs.
pub(crate) fn require(kernel: &BoundKernel, sizes: &[i64], device: &Device, programs: usize) -> Result<()> {
    let needs = Needs::of(kernel, sizes, programs);
    let on_host = device.info().kind != DeviceKind::Cuda;
    if let (false, Some(free)) = (on_host, device.backend().free_memory()?) {
        Room { free: free as u128, total: device.info().memory_bytes.into() }.hold(&device.info().id, needs.tensors)?;
    }
    let of_device = match device.info().kind {
        DeviceKind::Cuda => 0,
        DeviceKind::Cpu => needs.tensors,
        // Which bytes were written is kept beside them, and what is copied there lies in two places for a moment.
        _ => needs.tensors.saturating_add(needs.tensors / 8).saturating_add(needs.largest),
    };
    let whole = of_device.saturating_add(needs.copies).saturating_add(needs.oracle);
    let whose = if on_host { device.info().id.as_str() } else { "the host" };
    if whole >= SMALL
        && let Some(room) = host_room()
    {
        room.hold(whose, whole)?;
    }
    Ok(())
}

/// Bytes that a launch with drawn inputs, and its check, take.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Needs {
    /// All tensors.
    tensors: u128,
    /// The largest one.
    largest: u128,
    /// Copies on the host: of the inputs, and of an output when it is read.
    copies: u128,
    /// What the programs of the oracle hold that run at once.
    oracle: u128,
}

impl Needs {
    fn of(kernel: &BoundKernel, sizes: &[i64], programs: usize) -> Self {
        let ir = kernel.ir();
        let size = |s: &SizeExpr| {
            let value = s.eval(|id| sizes.get(id.index()).copied());
            u128::try_from(value.unwrap_or(0)).unwrap_or(0)
        };
        let product = |factors: &mut dyn Iterator<Item = u128>| factors.fold(1, u128::saturating_mul);
        let mut needs = Self::default();
        for param in ir.params.values() {
            let ParamKind::Tensor(tensor) = &param.kind else { continue };
            let width = kernel.binding().elem(ir, tensor.elem).bytes().unwrap_or(4) as u128;
            let bytes = product(&mut tensor.shape.iter().map(size)).saturating_mul(width);
            needs.tensors = needs.tensors.saturating_add(bytes);
            needs.largest = needs.largest.max(bytes);
            if tensor.direction.is_read() {
                needs.copies = needs.copies.saturating_add(bytes);
            }
        }
        needs.copies = needs.copies.saturating_add(needs.largest);
        let length = |dim: &Dim| match dim {
            Dim::Range(len) => size(len),
            Dim::Axis(axis) => match (ir.axes[*axis].kind, size(&ir.axes[*axis].extent)) {
                (AxisKind::Program, extent) => extent.min(ORACLE_ROWS),
                (AxisKind::Loop, extent) => extent,
                _ => 1,
            },
        };
        let mut program = 0u128;
        for (_, op) in ir.walk() {
            if matches!(ir.ops[op].op, Op::Transpose(_)) {
                continue; // another view of what is there
            }
            for &result in &ir.ops[op].results {
                if let Type::Tile(tile) = ir.ty(result) {
                    program = program.saturating_add(product(&mut tile.dims.iter().map(length)).saturating_mul(ORACLE_BYTES));
                }
            }
        }
        let at_once = programs.min(rayon::current_num_threads()) as u128;
        needs.oracle = program.saturating_mul(at_once);
        needs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Kernel;
    use flashtile_dsl::ir::Elem;

    fn attention() -> BoundKernel {
        Kernel::builtin("attention").expect("a built-in").bind(Elem::F16, [("D", 64)]).expect("binds")
    }

    /// Sizes of attention by their names.
    fn sizes(kernel: &BoundKernel, given: &[(&str, i64)]) -> Vec<i64> {
        kernel.ir().sizes.values().map(|s| given.iter().find(|(n, _)| *n == s.name).map_or(64, |g| g.1)).collect()
    }

    #[test]
    fn what_a_launch_takes_is_counted() {
        let kernel = attention();
        let of = |m, n| Needs::of(&kernel, &sizes(&kernel, &[("B", 1), ("H", 2), ("G", 1), ("M", m), ("N", n)]), 1);
        let (small, large) = (of(8, 128), of(8, 1 << 20));
        // q and o: 2 x 8 x 64; k and v: 128 x 64; lse: 2 x 8, in f32.
        assert_eq!(small.tensors, 2 * (2 * 2 * 8 * 64) + 2 * (2 * 128 * 64) + 4 * 2 * 8);
        assert_eq!(small.largest, 2 * 128 * 64);
        assert_eq!(small.copies, 2 * (2 * 8 * 64) + 2 * (2 * 128 * 64) + small.largest);
        // A program of the oracle holds the keys, the values and some tiles of scores.
        let keys = (1u128 << 20) * 64 * 8;
        assert!((2 * keys..4 * keys).contains(&large.oracle), "{}", large.oracle / keys);
        let huge = of(i64::from(i32::MAX), i64::from(i32::MAX));
        assert!(huge.tensors > 1 << 38 && huge.oracle > 1 << 40);
    }

    #[test]
    fn sizes_beyond_memory_are_refused_before_anything_is_allocated() {
        let kernel = attention();
        let huge = sizes(&kernel, &[("B", 2), ("H", 32), ("G", 32), ("M", i64::from(i32::MAX)), ("N", 1)]);
        for device in [Device::cpu(), Device::emulator()] {
            let error = require(&kernel, &huge, &device, 12).expect_err("no machine has that").to_string();
            assert!(error.starts_with(&format!("out of memory on {device}: ")), "{error}");
            assert!(require(&kernel, &sizes(&kernel, &[]), &device, 12).is_ok());
        }
    }
}
