//! Loops that walk a list of their tiles, which launches ahead have made
//! (`codegen/src/launches/lists.rs`).

use flashtile_dsl::ir::{Op, OpId, Part, ProgramDim};

use super::context::Lowering;
use super::stream::Tiles;
use crate::plan::{Cast, Expr, Function, LetType, LoopList, Operator, Param, StmtOp};

impl Lowering<'_> {
    /// The places of a list that a loop walks; `None` if its tiles are not listed.
    pub(super) fn tiles_listed(&mut self, id: OpId, part: Option<Part>, name: &str) -> Option<Tiles> {
        // Rewrites keep loops and what programs are.
        let kernel = &self.instance.kernel;
        let Op::For { axis, .. } = kernel.ops[id].op else { unreachable!("a loop") };
        let list = kernel.list(axis, &|axis| i64::from(self.block_size(axis)))?.clone();
        let tensor = kernel.params[list.tensor].name.clone();
        let program = kernel.ops[kernel.blocks[kernel.body].ops[0]].results.clone();
        let tiles = kernel.tensor(list.tensor).shape.last().expect("verified: a place for each tile").clone();
        let mut entries = Expr::Param(Param::Address(tensor.clone()));
        for (number, &dim) in list.dims.iter().enumerate() {
            let place = match kernel.grid()[dim] {
                ProgramDim::Each(_) => self.index(program[dim]),
                ProgramDim::Tiles(_) => Expr::name(self.coordinate(program[dim])),
            };
            let stride = Expr::Param(Param::Stride(tensor.clone(), number as u32));
            entries = Expr::infix(Operator::Add, entries, Expr::infix(Operator::Mul, place.cast(Cast::Wide), stride));
        }
        let count = Expr::call(Function::TilesListed, [entries.clone(), self.size(&tiles)]);
        let end = self.unique(&format!("{name}_{}", if part.is_some() { "all_end" } else { "end" }));
        self.push(StmtOp::Let { name: end.clone(), ty: LetType::Int, value: count });
        let (lo, hi) = match part {
            None => (Expr::Int(0), Expr::name(end)),
            Some(part) => self.own_share(&part, name, Expr::Int(0), Expr::name(end)),
        };
        let list = Some(LoopList { entries, entry: self.unique(&format!("{name}_entry")) });
        Some(Tiles { full_lo: lo.clone(), full_hi: lo.clone(), lo, hi, gap: None, list })
    }
}
