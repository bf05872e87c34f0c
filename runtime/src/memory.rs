//! How much memory there is, asked before it is used: sizes are numbers that a user types, and an allocation that fails, or that the
//! system grants and cannot keep, ends the process.

use std::path::Path;

use flashtile_dsl::ir::{AxisKind, Dim, Entity, Op, ParamKind, SizeExpr, Type};

use crate::device::{Device, DeviceError, DeviceKind};
use crate::error::Result;
use crate::kernel::BoundKernel;

/// Allocations below this are not asked about: the question takes longer than they do.
const SMALL: u128 = 64 << 20;
/// Rows of a program of the oracle: see `verify::Reference`.
const ORACLE_ROWS: u128 = 32;
/// Bytes of a value of the oracle.
const ORACLE_BYTES: u128 = 8;

/// Free memory, and all of it, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Room {
    free: u128,
    total: u128,
}

impl Room {
    fn or_less(self, other: Self) -> Self {
        Self { free: self.free.min(other.free), total: self.total.min(other.total) }
    }

    fn hold(self, whose: &str, requested: u128) -> Result<(), DeviceError> {
        if requested <= self.free {
            return Ok(());
        }
        let bytes = |n: u128| usize::try_from(n).unwrap_or(usize::MAX);
        let device = whose.to_owned();
        Err(DeviceError::OutOfMemory { device, requested: bytes(requested), free: bytes(self.free), total: bytes(self.total) })
    }
}

/// Refuses an allocation on the host for which there is no room. `whose` is the device that asks.
pub(crate) fn host_holds(whose: &str, bytes: usize) -> Result<(), DeviceError> {
    match bytes as u128 {
        small if small < SMALL => Ok(()),
        large => host().map_or(Ok(()), |room| room.hold(whose, large)),
    }
}

/// Refuses sizes for which the tensors of a launch, or what it takes to check them, have no room. Asked before anything is allocated.
/// `sizes` has the values of all sizes by [`flashtile_dsl::ir::SizeId`]; the oracle runs so many programs.
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
        && let Some(room) = host()
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

/// The memory of the machine that this process may use, where the system tells.
fn host() -> Option<Room> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = groups(Path::new("/sys/fs/cgroup"), &own);
    Some(groups.into_iter().fold(of_meminfo(&meminfo)?, Room::or_less))
}

fn of_meminfo(text: &str) -> Option<Room> {
    let value = |name: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(name))?;
        line.trim_start_matches(':').trim().strip_suffix("kB")?.trim().parse::<u128>().ok().map(|kib| kib << 10)
    };
    Some(Room { free: value("MemAvailable")?, total: value("MemTotal")? })
}

/// The limits of the control group of this process and of those around it (cgroup v2), as `/proc/self/cgroup` names it. Where
/// the group is not there, as in a container that sees its own as the root, the root is taken.
fn groups(root: &Path, own: &str) -> Vec<Room> {
    let Some(path) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return Vec::new() };
    let named = root.join(path.trim_start_matches('/'));
    let from = if named.is_dir() { named } else { root.to_owned() };
    from.ancestors().take_while(|at| at.starts_with(root)).filter_map(of_group).collect()
}

fn of_group(at: &Path) -> Option<Room> {
    let number = |name: &str| std::fs::read_to_string(at.join(name)).ok()?.trim().parse::<u128>().ok();
    let (most, used) = (number("memory.max")?, number("memory.current")?);
    // The system gives up cached files before it refuses memory.
    let stat = std::fs::read_to_string(at.join("memory.stat")).unwrap_or_default();
    let cached = stat.lines().find_map(|l| l.strip_prefix("inactive_file ")).and_then(|n| n.trim().parse().ok()).unwrap_or(0);
    Some(Room { free: most.saturating_sub(used.saturating_sub(cached)), total: most })
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
        assert!(host_holds("cpu", usize::MAX).is_err() && host_holds("cpu", 1 << 20).is_ok());
    }

    #[test]
    fn limits_of_control_groups_count() {
        let text = "MemTotal:       16000 kB\nMemFree:  1 kB\nMemAvailable:    9000 kB\n";
        assert_eq!(of_meminfo(text), Some(Room { free: 9000 << 10, total: 16000 << 10 }));
        assert_eq!(of_meminfo("MemTotal: 1 kB\n"), None);
        let dir = tempfile::tempdir().expect("a directory");
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("creates");
            std::fs::write(path, text).expect("writes");
        };
        write("a/memory.max", "1000\n");
        write("a/memory.current", "900\n");
        write("a/memory.stat", "anon 1\ninactive_file 300\n");
        write("a/b/memory.max", "max\n");
        write("a/b/memory.current", "100\n");
        assert_eq!(groups(dir.path(), "0::/a/b\n"), [Room { free: 400, total: 1000 }]);
        assert_eq!(groups(dir.path(), "0::/elsewhere\n"), []);
        assert_eq!(groups(dir.path(), "5:memory:/a\n"), []);
    }
}
