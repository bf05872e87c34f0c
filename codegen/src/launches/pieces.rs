//! From a kernel and a schedule to launches: the stages that the schedule asks for, one after the
//! other, and the schedule of each launch.

use flashtile_dsl::ir::{AxisKind, Binding, Dim, Kernel, ParamKind, Type};

use super::clear::clear_sums;
use super::staged::{NotStaged, Staged};
use super::stages::{NotMade, Request, STAGES};
use crate::abi::{FoldedRows, Scratch, SizeTerm};
use crate::arch::{Arch, TensorOp};
use crate::error::Error;
use crate::instance::Instance;
use crate::instruction::{warp_copy_op, warp_tensor_op};
use crate::legality;
use crate::reason::Reason;
use crate::schedule::{BlockKnobs, Schedule};

/// One launch.
#[derive(Clone, Debug)]
pub(crate) struct Piece {
    /// Its name: what its entry function has behind the name of the kernel.
    pub name: String,
    /// Its kernel.
    pub instance: Instance,
    /// Its knobs.
    pub knobs: BlockKnobs,
    /// Whether its programs read each other's values (`of_part`), as the launch knobs say.
    pub meets: bool,
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
    let (name, knobs) = (instance.kernel.name.clone(), schedule.main.clone());
    let whole = Piece { name, instance: instance.clone(), knobs, meets: false };
    let mut launches = Launches { pieces: vec![whole], main: 0, scratch: Vec::new(), folded: None, assumption: None };
    let mut reasons = Vec::new();
    for stage in STAGES.iter().filter(|stage| (stage.asked)(&schedule.launches)) {
        match (stage.make)(&request, &launches.pieces[launches.main].instance.kernel) {
            Ok(staged) => launches.apply(stage.tall, staged, arch),
            Err(NotMade::Reasons(why)) => reasons.extend(why),
            Err(NotMade::WrongKernel(faults)) => return Err(Error::WrongKernel(faults)),
        }
    }
    // Where parts of a loop are merged by a launch behind, that one adds. From the last launch on,
    // so that those before keep their places.
    for number in (0..launches.pieces.len()).rev() {
        match clear_sums(&launches.pieces[number].instance.kernel, &instance.kernel.name) {
            Some(Ok(staged)) => launches.replace(number, true, staged, arch),
            Some(Err(NotStaged::WrongKernel(faults))) => return Err(Error::WrongKernel(faults)),
            Some(Err(NotStaged::Refused(why))) => unreachable!("sums are always set to 0: {why}"),
            None => {}
        }
    }
    if reasons.is_empty() {
        reasons.extend(launches.override_beside(&instance.kernel.name, schedule));
    }
    if reasons.is_empty() { Ok(launches) } else { Err(Error::Illegal { arch: arch.name, reasons }) }
}

impl Launches {
    /// The launches beside the main one.
    pub fn beside(&self) -> impl Iterator<Item = &Piece> {
        self.pieces.iter().enumerate().filter(|(number, _)| *number != self.main).map(|(_, piece)| piece)
    }

    /// Puts what a stage makes of the kernel of the main launch in the place of that launch. Those
    /// beside it have few rows a block, or many if they are `tall`.
    fn apply(&mut self, tall: bool, staged: Staged, arch: &'static Arch) {
        self.replace(self.main, tall, staged, arch);
    }

    /// The same in the place of any launch.
    fn replace(&mut self, number: usize, tall: bool, staged: Staged, arch: &'static Arch) {
        let Piece { name, instance, knobs, meets } = self.pieces[number].clone();
        self.scratch.extend(staged.between.iter().map(|name| scratch_tensor(&staged, &instance.binding, name)));
        if let Some(folded) = &staged.folded {
            self.folded = Some(folded.rows(&staged.main, &instance.binding));
            self.assumption = Some(folded.text(&staged.main));
        }
        let of = |kernel| instance.of_launch(kernel, &staged.between, &staged.finite);
        let beside = |kernel: Kernel| {
            let (name, instance) = (kernel.name.clone(), of(kernel));
            Piece { name, knobs: beside_main(&instance, &knobs, tall, arch), instance, meets: false }
        };
        if number <= self.main {
            self.main += staged.ahead.len();
        }
        let ahead = staged.ahead.into_iter().map(beside);
        let main = Piece { name, instance: of(staged.main), knobs: knobs.clone(), meets: meets || staged.meets };
        let behind = staged.behind.into_iter().map(beside);
        self.pieces.splice(number..=number, ahead.chain([main]).chain(behind));
    }

    /// Names the launches by what their kernels have behind the name of `kernel`, and gives those
    /// beside the main one the knobs that the schedule has for them. The reasons name launches that
    /// are not there.
    fn override_beside(&mut self, kernel: &str, schedule: &Schedule) -> Vec<Reason> {
        for piece in &mut self.pieces {
            let behind = piece.name.strip_prefix(kernel).and_then(|name| name.strip_prefix('_'));
            piece.name = behind.unwrap_or(&piece.name).to_owned();
        }
        let known: Vec<String> = self.beside().map(|piece| piece.name.clone()).collect();
        let main = self.main;
        for (_, piece) in self.pieces.iter_mut().enumerate().filter(|(number, _)| *number != main) {
            if let Some(overrides) = schedule.beside.get(&piece.name) {
                piece.knobs = overrides.applied(piece.knobs.clone());
            }
        }
        let unknown = schedule.beside.keys().filter(|name| !known.contains(name));
        unknown.map(|name| Reason::Launch { name: name.clone(), known: known.clone() }).collect()
    }
}

/// The knobs of a launch beside the main one, which moves little and computes less: small blocks,
/// so that there are many, or `tall` ones.
fn beside_main(instance: &Instance, main: &BlockKnobs, tall: bool, arch: &'static Arch) -> BlockKnobs {
    let (block_m, warps) = if tall { (64, 4) } else { (16, 1) };
    let tensor_op = warp_tensor_op(instance, arch);
    let (column_groups, column_programs) = columns_shared(instance, tensor_op, tall);
    BlockKnobs {
        block_m,
        block_n: columns_needed(instance),
        warps: warps * column_groups,
        column_groups,
        column_programs,
        stages: 1,
        tensor_op,
        copy: warp_copy_op(instance, arch),
        exponential: main.exponential,
        ..BlockKnobs::default()
    }
}

/// The dimensions along the columns of what a kernel computes.
fn columns_of_tiles(kernel: &Kernel) -> impl Iterator<Item = &Dim> {
    kernel.walk().into_iter().flat_map(|(_, op)| &kernel.ops[op].results).filter_map(|&v| match kernel.ty(v) {
        Type::Tile(tile) if tile.rank() == 2 => Some(&tile.dims[1]),
        _ => None,
    })
}

/// Columns of a tile of what a launch beside the main one computes: no more than the grid has, where
/// they are few in every call.
fn columns_needed(instance: &Instance) -> u32 {
    let (kernel, most) = (&instance.kernel, BlockKnobs::default().block_n);
    let of_program = |dim: &Dim| match *dim {
        Dim::Axis(axis) if kernel.axes[axis].kind == AxisKind::Program => {
            let columns = instance.binding.size(kernel, &kernel.axes[axis].extent)?;
            u32::try_from(columns).ok()?.max(1).checked_next_multiple_of(16)
        }
        _ => None,
    };
    columns_of_tiles(kernel).map(|dim| of_program(dim).unwrap_or(most)).max().unwrap_or(most).min(most)
}

/// Column groups and programs that share the columns of what a launch beside the main one computes,
/// such as the merge of two states: there are few rows and many parts, whose loads are waited for
/// one after the other unless many warps wait side by side. `tall` launches have many rows.
fn columns_shared(instance: &Instance, tensor_op: TensorOp, tall: bool) -> (u32, u32) {
    /// Columns of a warp, at least.
    const COLUMNS: i64 = 16;
    /// Columns of 16 rows that a warp of a tall launch holds.
    const HELD: i64 = 256;
    let kernel = &instance.kernel;
    if !tensor_op.is_of_tensor_cores() || legality::why_no_column_programs(kernel).is_some() {
        return (1, 1);
    }
    let columns = columns_of_tiles(kernel).map(|dim| match dim {
        Dim::Range(len) => instance.binding.size(kernel, len),
        Dim::Axis(_) => None,
    });
    // All tiles share alike.
    let Some(columns) = columns.collect::<Option<Vec<i64>>>() else { return (1, 1) };
    let (Some(&least), Some(&most)) = (columns.iter().min(), columns.iter().max()) else { return (1, 1) };
    if tall && most <= HELD {
        return (1, 1);
    }
    let divides = |shares: i64| least / shares >= COLUMNS && columns.iter().all(|n| n % (16 * shares) == 0);
    let groups = [4, 2].into_iter().find(|&groups| divides(groups)).unwrap_or(1);
    let warps = |n: i64| (n + COLUMNS - 1) / COLUMNS;
    let programs = match groups == 1 && columns.iter().all(|&n| warps(n) == warps(most)) {
        // Of what does not divide, such as 104 columns, the last program has fewer.
        true => warps(most),
        false => (2..=most / COLUMNS).rev().find(|programs| divides(groups * programs)).unwrap_or(1),
    };
    (groups as u32, programs as u32)
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
