//! Which launches a schedule makes of a kernel: one, or several with tensors between them.
//!
//! A launch has a kernel of its own, in tile IR, and a schedule of its own; each goes the same way to a plan and to text. What
//! one launch leaves to a later one are *scratch* tensors: outputs of the one kernel and inputs of the other, which are no
//! parameters of the kernel text.

use flashtile_dsl::ir::{Kernel, ParamKind};

use crate::abi::Scratch;
use crate::arch::Arch;
use crate::generate;
use crate::instance::Instance;
use crate::rewrite;
use crate::schedule::{OperandB, Schedule};
use crate::space;

/// Parts that a loop may be split into.
const MAX_SPLITS: u32 = 64;

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Its kernel.
    pub instance: Instance,
    /// Its schedule, of which no knob asks for further launches.
    pub schedule: Schedule,
}

/// The launches, in order.
#[derive(Clone, Debug)]
pub(crate) struct Launches {
    pub pieces: Vec<Piece>,
    /// The one that the knobs of the schedule are about.
    pub main: usize,
    pub scratch: Vec<Scratch>,
}

/// The launches of an instance under a schedule.
///
/// # Errors
/// Reasons against the schedule.
pub(crate) fn launches(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Launches, Vec<String>> {
    if schedule.operand_b == OperandB::Precomputed {
        return precomputed(instance, schedule, arch);
    }
    let whole = Schedule { splits: 1, ..schedule.clone() };
    if schedule.splits == 1 {
        let pieces = vec![Piece { instance: instance.clone(), schedule: whole }];
        return Ok(Launches { pieces, main: 0, scratch: Vec::new() });
    }
    if !(1..=MAX_SPLITS).contains(&schedule.splits) {
        return Err(vec![format!("splits={} is not between 1 and {MAX_SPLITS}", schedule.splits)]);
    }
    let split = rewrite::split(&instance.kernel, schedule.splits)
        .map_err(|why| vec![format!("splits={} needs one streaming reduction: {why}", schedule.splits)])?;
    let of = |kernel: &Kernel| Instance { kernel: kernel.clone(), ..instance.clone() };
    let combine = of(&split.combine);
    let combine_schedule = follower(&combine, &whole, arch);
    let scratch = split.between.iter().map(|name| scratch(instance, &split.partial, name)).collect();
    let pieces =
        vec![Piece { instance: of(&split.partial), schedule: whole }, Piece { instance: combine, schedule: combine_schedule }];
    Ok(Launches { pieces, main: 0, scratch })
}

/// The launches of an instance whose right operands are computed ahead.
fn precomputed(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Launches, Vec<String>> {
    let precomputed =
        rewrite::precompute(&instance.kernel).map_err(|why| vec![format!("operand_b=precomputed has nothing to do: {why}")])?;
    let of = |kernel: &Kernel| Instance { kernel: kernel.clone(), ..instance.clone() };
    let rest = launches(&of(&precomputed.main), &Schedule { operand_b: OperandB::Inline, ..schedule.clone() }, arch)?;
    let mut pieces = Vec::new();
    for kernel in &precomputed.ahead {
        let instance = of(kernel);
        let schedule = Schedule { block_m: 64, warps: 4, ..follower(&instance, schedule, arch) };
        pieces.push(Piece { instance, schedule });
    }
    let main = pieces.len() + rest.main;
    let between = precomputed.between.iter().map(|name| scratch(instance, &precomputed.main, name));
    let scratch = between.chain(rest.scratch).collect();
    pieces.extend(rest.pieces);
    Ok(Launches { pieces, main, scratch })
}

/// The schedule of a launch that moves little and computes less: small blocks, so that there are many.
fn follower(instance: &Instance, main: &Schedule, arch: &'static Arch) -> Schedule {
    Schedule {
        block_m: 16,
        warps: 1,
        stages: 1,
        tensor_op: space::warp_tensor_op(instance, arch),
        copy: space::warp_copy_op(instance, arch),
        exponential: main.exponential,
        ..Schedule::default()
    }
}

/// The scratch tensor of a parameter.
fn scratch(instance: &Instance, kernel: &Kernel, name: &str) -> Scratch {
    let param = kernel.param_named(name).expect("the kernel has what lies between");
    let ParamKind::Tensor(decl) = &kernel.params[param].kind else { unreachable!("a tensor") };
    Scratch {
        name: name.to_owned(),
        elem: instance.binding.elem(kernel, decl.elem),
        shape: decl.shape.iter().map(|size| generate::term(instance, size)).collect(),
    }
}
