//! From a kernel and a schedule to launches: the stages that the schedule asks for, one after the
//! other, and the schedule of each launch.

use flashtile_dsl::ir::{Binding, Kernel, ParamKind};

use super::staged::Staged;
use super::stages::{NotMade, Request, STAGES, Stage};
use crate::abi::{FoldedRows, Scratch, SizeTerm};
use crate::arch::Arch;
use crate::error::Error;
use crate::instance::Instance;
use crate::instruction::{warp_copy_op, warp_tensor_op};
use crate::schedule::Schedule;

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
    /// How the launches see the tensors of a call, if not as the kernel text does.
    pub folded: Option<FoldedRows>,
    /// What they assume of the arguments, in words.
    pub assumption: Option<String>,
}

/// The launches of an instance under a schedule.
///
/// # Errors
/// [`Error::Illegal`] with the reasons of all stages; [`Error::WrongKernel`].
pub(crate) fn launches(instance: &Instance, schedule: &Schedule, arch: &'static Arch) -> Result<Launches, Error> {
    let request = Request { instance, schedule, arch };
    let whole = Piece { instance: instance.clone(), schedule: schedule.clone() };
    let mut launches = Launches { pieces: vec![whole], main: 0, scratch: Vec::new(), folded: None, assumption: None };
    let mut reasons = Vec::new();
    for stage in STAGES.iter().filter(|stage| (stage.asked)(schedule)) {
        match (stage.make)(&request, &launches.pieces[launches.main].instance.kernel) {
            Ok(staged) => launches.apply(stage, staged, arch),
            Err(NotMade::Reasons(why)) => reasons.extend(why),
            Err(NotMade::WrongKernel(faults)) => return Err(Error::WrongKernel(faults)),
        }
    }
    if reasons.is_empty() { Ok(launches) } else { Err(Error::Illegal { arch: arch.name, reasons }) }
}

impl Launches {
    /// Puts what a stage makes of the kernel of the main launch in the place of that launch.
    fn apply(&mut self, stage: &Stage, staged: Staged, arch: &'static Arch) {
        let Piece { instance, mut schedule } = self.pieces[self.main].clone();
        self.scratch.extend(staged.between.iter().map(|name| scratch_tensor(&staged, &instance.binding, name)));
        if let Some(folded) = &staged.folded {
            self.folded = Some(folded.rows(&staged.main, &instance.binding));
            self.assumption = Some(folded.text(&staged.main));
        }
        if !staged.meets {
            (stage.off)(&mut schedule);
        }
        let of = |kernel| Instance { kernel, ..instance.clone() };
        let beside = |kernel| {
            let instance = of(kernel);
            Piece { schedule: beside_main(&instance, &schedule, stage.tall, arch), instance }
        };
        let number = self.main;
        self.main += staged.ahead.len();
        let ahead = staged.ahead.into_iter().map(beside);
        let main = Piece { instance: of(staged.main), schedule: schedule.clone() };
        let behind = staged.behind.into_iter().map(beside);
        self.pieces.splice(number..=number, ahead.chain([main]).chain(behind));
    }
}

/// The schedule of a launch beside the main one, which moves little and computes less: small
/// blocks, so that there are many, or `tall` ones.
fn beside_main(instance: &Instance, main: &Schedule, tall: bool, arch: &'static Arch) -> Schedule {
    let (block_m, warps) = if tall { (64, 4) } else { (16, 1) };
    Schedule {
        block_m,
        warps,
        stages: 1,
        tensor_op: warp_tensor_op(instance, arch),
        copy: warp_copy_op(instance, arch),
        exponential: main.exponential,
        ..Schedule::default()
    }
}

/// The scratch tensor of a parameter of the kernels.
fn scratch_tensor(staged: &Staged, binding: &Binding, name: &str) -> Scratch {
    let declared = |kernel: &'_ Kernel| {
        let param = kernel.param_named(name)?;
        match &kernel.params[param].kind {
            ParamKind::Tensor(decl) => Some(Scratch {
                name: name.to_owned(),
                elem: binding.elem(kernel, decl.elem),
                shape: decl.shape.iter().map(|size| SizeTerm::of(kernel, binding, size)).collect(),
            }),
            ParamKind::Scalar(_) => None,
        }
    };
    staged.kernels().find_map(declared).expect("a kernel declares what lies between")
}
