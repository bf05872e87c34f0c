//! The program of a block: its place in the grid, and the order in which blocks take programs.

use flashtile_dsl::analysis::index::Trend;
use flashtile_dsl::analysis::mask::{LoopMasks, MaskOptions, loop_masks};
use flashtile_dsl::analysis::predicate::Summaries;
use flashtile_dsl::ir::{Op, ProgramDim, ValueId};

use super::context::{Home, Lowering};
use crate::blocks;
use crate::elementwise_tiles::sharing_dims;
use crate::instance::Instance;
use crate::plan::{Builtin, Expr, Function, LetType, MeetBy, Operator, StmtOp};
use crate::schedule::{BlockKnobs, Persistent, WorkOrder};

/// How the trip count of the kernel's first loop, and of those in it, moves with the last grid coordinate, if that is a
/// tile coordinate.
pub fn trip_trend(instance: &Instance, schedule: &BlockKnobs) -> Option<Trend> {
    let kernel = &instance.kernel;
    let first = first_loops(instance, schedule);
    let &program = kernel.blocks[kernel.body].ops.first()?;
    let (Op::Program(dims), Some(&last)) = (&kernel.ops[program].op, kernel.ops[program].results.last()) else { return None };
    if !matches!(dims.last(), Some(ProgramDim::Tiles(_)))
        || dims[..dims.len() - 1].iter().any(|d| matches!(d, ProgramDim::Tiles(_)))
    {
        return None;
    }
    let trends = first.iter().map(|walked| walked.trips_trend(kernel, last));
    trends.reduce(|all, trend| all?.with(trend?))?
}

/// Whether the trip count of the kernel's first loop, or of one in it, depends on what is loaded: then
/// only the data tell which programs are long.
pub fn trips_are_loaded(instance: &Instance, schedule: &BlockKnobs) -> bool {
    first_loops(instance, schedule).iter().any(|walked| walked.trips().is_loaded())
}

/// Whether the kernel's first loop, and those in it, begin at the same tile for all rows, so that the
/// first tile which a program walks may show each of its rows something. Behind the lower edge of a
/// sliding window, or of a document, it shows some rows nothing.
pub fn rows_begin_alike(instance: &Instance, schedule: &BlockKnobs) -> bool {
    let kernel = &instance.kernel;
    let first = first_loops(instance, schedule);
    let Some(Op::Program(dims)) = kernel.blocks[kernel.body].ops.first().map(|&op| &kernel.ops[op].op) else { return true };
    let results = &kernel.ops[kernel.blocks[kernel.body].ops[0]].results;
    let tiles = dims.iter().zip(results).filter(|(dim, _)| matches!(dim, ProgramDim::Tiles(_)));
    let begins_alike = |at| first.iter().all(|walked| walked.runs.lo.trend(kernel, at) == Some(Trend::Constant));
    tiles.into_iter().all(|(_, &at)| begins_alike(at))
}

/// The tiles of the kernel's first loop and of those in it, with all summarised that can be; none if it
/// has no loop.
fn first_loops(instance: &Instance, schedule: &BlockKnobs) -> Vec<LoopMasks> {
    let kernel = &instance.kernel;
    let mut loops = kernel.walk().into_iter().filter(|&(_, op)| matches!(kernel.ops[op].op, Op::For { .. }));
    let first = loops.next();
    // In program order, so up to the next one of the program itself.
    let inside = loops.take_while(|(home, _)| *home != kernel.body);
    let options = MaskOptions { early_stop: schedule.early_stop, summaries: Summaries::All, ..MaskOptions::default() };
    let block = |axis| i64::from(blocks::block(kernel, schedule, axis));
    let size = |size: &_| instance.binding.size(kernel, size);
    first.into_iter().chain(inside).map(|(_, op)| loop_masks(kernel, op, &block, &size, options)).collect()
}

impl Lowering<'_> {
    /// Finds this block's program in the grid. Blocks are numbered along x; how numbers map to programs is the work order.
    pub(super) fn program(&mut self, dims: &[ProgramDim], results: &[ValueId]) {
        let names: Vec<String> = results.iter().map(|&r| self.value_name(r)).collect();
        let counts: Vec<Expr> = dims.iter().zip(&names).map(|(dim, name)| self.program_count(dim, name)).collect();
        self.program_counts.clone_from(&counts);
        let mut number = self.program_number();
        let shared = self.schedule.column_programs;
        if shared > 1 {
            let name = self.unique("column_program");
            self.push_int(&name, Expr::infix(Operator::Rem, number.clone(), Expr::Int(shared.into())));
            self.column_program = Some(Expr::name(name));
            number = Expr::infix(Operator::Div, number, Expr::Int(shared.into()));
        }
        let last = dims.len().saturating_sub(1);
        // In a cluster the parts of the same rows are blocks that follow each other; else parts are outermost.
        let first = usize::from(self.is_clustered());
        if let Some(parts) = self.cluster() {
            self.push_int(&names[0], Expr::infix(Operator::Rem, Expr::Builtin(Builtin::Block), Expr::Int(parts.into())));
        }
        if self.schedule.order == WorkOrder::Lpt {
            number = self.lpt(&counts[first..], &names[last]);
        }
        let split = if self.schedule.order == WorkOrder::Lpt { last } else { dims.len() };
        let mut fastest: Vec<usize> = (first..split).rev().collect();
        if self.schedule.share_tiles {
            let sharing = sharing_dims(self.kernel);
            fastest.sort_by_key(|d| !sharing.contains(d));
        }
        for &d in &fastest {
            let slowest = fastest.last() == Some(&d);
            let value = if slowest { number.clone() } else { Expr::infix(Operator::Rem, number.clone(), counts[d].clone()) };
            self.push_int(&names[d], value);
            number = Expr::infix(Operator::Div, number, counts[d].clone());
        }
        for ((dim, &result), name) in dims.iter().zip(results).zip(names) {
            match dim {
                ProgramDim::Each(_) => drop(self.homes.insert(result, Home::Inline(Expr::name(name)))),
                ProgramDim::Tiles(axis) => self.enter_tile(result, *axis, name),
            }
        }
    }

    /// Whether the parts of a loop are walked by the blocks of a cluster.
    pub(super) fn is_clustered(&self) -> bool {
        self.cluster().is_some()
    }

    /// Blocks of a cluster, each of which walks one part.
    fn cluster(&self) -> Option<u32> {
        self.meets.filter(|meets| meets.by == MeetBy::Cluster).map(|meets| meets.parts)
    }

    /// Number of the program that the block runs.
    fn program_number(&self) -> Expr {
        if let Some(parts) = self.cluster() {
            return Expr::infix(Operator::Div, Expr::Builtin(Builtin::Block), Expr::Int(parts.into()));
        }
        Expr::Builtin(if self.schedule.persistent == Persistent::Off { Builtin::Block } else { Builtin::Program })
    }

    /// Number of programs of a launch.
    pub(super) fn programs(&self) -> Expr {
        let count = |dim: &ProgramDim| match dim {
            ProgramDim::Each(size) => self.size(size),
            ProgramDim::Tiles(axis) => {
                let block = i64::from(self.block_size(*axis));
                let raised = Expr::infix(Operator::Add, self.size(&self.kernel.axes[*axis].extent), Expr::Int(block - 1));
                Expr::infix(Operator::Div, raised, Expr::Int(block))
            }
        };
        let shared = (self.schedule.column_programs > 1).then(|| Expr::Int(self.schedule.column_programs.into()));
        let counts = self.kernel.grid().iter().map(count).chain(shared);
        counts.reduce(|a, b| Expr::infix(Operator::Mul, a, b)).unwrap_or(Expr::Int(1))
    }

    pub(super) fn push_int(&mut self, name: &str, value: Expr) {
        self.push(StmtOp::Let { name: name.to_owned(), ty: LetType::Int, value });
    }

    /// Number of programs along one dimension of the grid.
    pub(super) fn program_count(&mut self, dim: &ProgramDim, name: &str) -> Expr {
        match dim {
            ProgramDim::Each(size) => self.size(size),
            ProgramDim::Tiles(axis) => {
                let block = i64::from(self.block_size(*axis));
                let raised = Expr::infix(Operator::Add, self.size(&self.kernel.axes[*axis].extent), Expr::Int(block - 1));
                let count = self.unique(&format!("{name}_tiles"));
                self.push_int(&count, Expr::infix(Operator::Div, raised, Expr::Int(block)));
                Expr::name(count)
            }
        }
    }

    /// Sections of `section` outer programs; in a section the tiles with the longest loops first, outer programs fastest.
    /// Defines the tile coordinate and returns the number of the outer program.
    pub(super) fn lpt(&mut self, counts: &[Expr], tile: &str) -> Expr {
        let (tiles, outer) = (counts.last().expect("a grid dimension").clone(), &counts[..counts.len() - 1]);
        let outer = outer.iter().cloned().reduce(|a, b| Expr::infix(Operator::Mul, a, b)).unwrap_or(Expr::Int(1));
        let section = Expr::Int(i64::from(self.schedule.section));
        let programs = self.unique("section_programs");
        self.push_int(&programs, Expr::infix(Operator::Mul, tiles.clone(), section.clone()));
        let first = self.unique("section_first");
        let block = self.program_number();
        let number = Expr::infix(Operator::Div, block.clone(), Expr::name(programs.clone()));
        self.push_int(&first, Expr::infix(Operator::Mul, number, section.clone()));
        let size = self.unique("section_size");
        self.push_int(
            &size,
            Expr::call(Function::Least, [section, Expr::infix(Operator::Sub, outer, Expr::name(first.clone()))]),
        );
        let within = self.unique("within_section");
        self.push_int(&within, Expr::infix(Operator::Rem, block, Expr::name(programs)));
        let rank = Expr::infix(Operator::Div, Expr::name(within.clone()), Expr::name(size.clone()));
        let value = match trip_trend(self.instance, self.schedule) {
            Some(Trend::Rising) => Expr::infix(Operator::Sub, Expr::infix(Operator::Sub, tiles, Expr::Int(1)), rank),
            _ => rank,
        };
        self.push_int(tile, value);
        Expr::infix(Operator::Add, Expr::name(first), Expr::infix(Operator::Rem, Expr::name(within), Expr::name(size)))
    }
}
