//! The loop of a kernel outside of its rows, as FlashAttention-1 has it: keys outside, query rows inside.
//!
//! The text says: for every tile of rows, a loop over tiles of another axis that carries a state. What the loop carries belongs
//! to the tile of rows, so the two may be exchanged ([`Dependences::forbids_exchange`]), if the state of every tile of rows is
//! kept somewhere in the meantime: in global memory. Statements that only the rows enclose are distributed to launches of their
//! own ahead and behind:
//!
//! * *start* is the original up to its loop, and stores the initial state to f32 tensors;
//! * *main* has the grid without the rows. It walks the tiles of the loop, loads once what does not depend on rows (K and V), and
//!   walks the tiles of rows inside: each loads what it needs of the rows (Q) and the state, does what the body of the loop says
//!   for one tile, and stores the state back. The tensors of the state are read and written ([`Direction::InOut`]);
//! * *finish* is the original with loads of the state in place of the loop.
//!
//! What the text divides after its loop is divided in *finish*, once, where FlashAttention-1 as published divides in every step.
//! A state of 16 bits is not kept: carried values are f32. The order in which a row sees tiles is that of the text, and so is
//! the result.

use std::collections::HashSet;

use flashtile_dsl::analysis::dependence::{Dependences, LoopKind};
use flashtile_dsl::analysis::streaming::{Form, Streaming};
use flashtile_dsl::ir::{
    AxisId, AxisKind, BlockData, BlockId, Dim, Direction, Kernel, Op, OpData, OpId, ParamId, ProgramDim, Span, Type, ValueDef,
    ValueId,
};

use super::carried::{self, Kept};
use super::staged::{NotStaged, Staged};
use crate::rewrite::edit;

/// Why the loops of the kernel cannot be exchanged; `None` if they can.
pub fn why_not_interchange(kernel: &Kernel) -> Option<String> {
    let mut kernel = kernel.clone();
    edit::remove_dead(&mut kernel);
    Nest::new(&kernel).and_then(|nest| nest.state()).err()
}

/// Exchanges the loop of a kernel with its rows. The launch ahead stores the initial state, `main`
/// reads and writes it, and the launch behind reads it.
///
/// # Errors
/// What [`why_not_interchange`] says.
pub fn interchange(kernel: &Kernel) -> Result<Staged, NotStaged> {
    let mut kernel = kernel.clone();
    edit::remove_dead(&mut kernel);
    let nest = Nest::new(&kernel)?;
    let state = nest.state()?;
    let (start, main, finish) = (nest.start(&state), nest.main(&state), nest.finish(&state));
    Staged::new(vec![start], main, vec![finish], state.into_iter().map(|s| s.name).collect())
}

/// A grid dimension of tiles and the loop in it.
struct Nest<'k> {
    kernel: &'k Kernel,
    /// The axis of the rows.
    rows: AxisId,
    /// Their coordinate, a result of `program`.
    row: ValueId,
    loop_op: OpId,
    body: BlockId,
    init: Vec<ValueId>,
    forms: Vec<Form>,
}

impl<'k> Nest<'k> {
    fn new(kernel: &'k Kernel) -> Result<Self, String> {
        let is_loop = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { .. });
        let loops: Vec<OpId> = kernel.walk().into_iter().map(|(_, op)| op).filter(is_loop).collect();
        let [loop_op] = loops[..] else { return Err(format!("the kernel has {} loops, and not one", loops.len())) };
        let Op::For { axis, part, body, init } = &kernel.ops[loop_op].op else { unreachable!("a loop") };
        if part.is_some() || kernel.axes[*axis].kind != AxisKind::Loop {
            return Err("the loop does not walk all tiles of an axis".into());
        }
        let program = &kernel.ops[kernel.blocks[kernel.body].ops[0]].results;
        let tiled = kernel.grid().iter().zip(program).filter_map(|(dim, &v)| match dim {
            ProgramDim::Tiles(axis) => Some((*axis, v)),
            ProgramDim::Each(_) => None,
        });
        let tiled: Vec<(AxisId, ValueId)> = tiled.collect();
        let [(rows, row)] = tiled[..] else {
            return Err(format!("the grid has {} tiled dimensions, and not one", tiled.len()));
        };
        let streaming = Streaming::of(kernel, loop_op);
        if streaming.stores {
            return Err("the loop stores".into());
        }
        let found = Dependences::of(kernel);
        let outer = found.loops.iter().position(|l| l.kind == LoopKind::Grid(row)).expect("a dimension of the grid is a loop");
        let inner = found.loop_of(loop_op).expect("every loop is there");
        if let Some(edge) = found.forbids_exchange(outer, inner).first() {
            return Err(format!("the {} dependence of `{}` forbids it", edge.kind, edge.what));
        }
        Ok(Self { kernel, rows, row, loop_op, body: *body, init: init.clone(), forms: streaming.forms })
    }

    /// The tensors of the state: one for every carried value that moves.
    fn state(&self) -> Result<Vec<Kept>, String> {
        let params = self.kernel.blocks[self.body].params[1..].iter().copied().enumerate();
        let moving = params.filter(|(slot, _)| self.forms[*slot] != Form::Constant);
        let state = carried::kept(self.kernel, moving, ("state", None), &[])?;
        if state.is_empty() { Err("the loop carries nothing".into()) } else { Ok(state) }
    }

    fn span(&self) -> Span {
        self.kernel.ops[self.loop_op].span
    }

    /// The ops before the loop and behind it.
    fn around(&self) -> (&[OpId], &[OpId]) {
        let ops = &self.kernel.blocks[self.kernel.body].ops;
        let at = ops.iter().position(|&op| op == self.loop_op).expect("the loop is in the body");
        (&ops[..at], &ops[at + 1..])
    }

    fn is_store(&self, op: OpId) -> bool {
        self.kernel.ops[op].op.written().is_some()
    }

    /// A copy of the kernel with the tensors of the state.
    fn with(&self, state: &[Kept], suffix: &str, direction: Direction) -> (Kernel, Vec<ParamId>) {
        let mut kernel = self.kernel.clone();
        kernel.name = format!("{}_{suffix}", kernel.name);
        let tensors = carried::declare(&mut kernel, state, direction);
        (kernel, tensors)
    }

    fn start(&self, state: &[Kept]) -> Kernel {
        let (mut kernel, tensors) = self.with(state, "start", Direction::Out);
        let body = kernel.body;
        kernel.blocks[body].ops = self.around().0.iter().copied().filter(|&op| !self.is_store(op)).collect();
        for (s, &tensor) in state.iter().zip(&tensors) {
            edit::append(&mut kernel, body, Op::Store { tensor, at: s.at(), value: self.init[s.slot] }, self.span());
        }
        edit::finished(kernel)
    }

    fn main(&self, state: &[Kept]) -> Kernel {
        let (mut kernel, tensors) = self.with(state, "interchanged", Direction::InOut);
        let (span, params) = (self.span(), kernel.blocks[self.body].params.clone());
        for (slot, &param) in params[1..].iter().enumerate().filter(|(slot, _)| self.forms[*slot] == Form::Constant) {
            edit::replace_uses(&mut kernel, param, self.init[slot], &[]);
        }
        // What depends on rows goes inside; a tile of rows does even if nothing tells its position.
        let mut of_rows: HashSet<ValueId> = params[1..].iter().copied().chain([self.row]).collect();
        let (before, _) = self.around();
        let body = self.kernel.blocks[self.body].ops.iter();
        let mut inside = |kernel: &Kernel, op: OpId| {
            let data = &kernel.ops[op];
            let rows = |v: &ValueId| matches!(kernel.ty(*v), Type::Tile(t) if t.dims.contains(&Dim::Axis(self.rows)));
            let inside = data.op.operands().iter().any(|v| of_rows.contains(v)) || data.results.iter().any(rows);
            if inside {
                of_rows.extend(&data.results);
            }
            inside
        };
        let before = before[1..].iter().copied().filter(|&op| !self.is_store(op));
        let (rows_before, before): (Vec<OpId>, Vec<OpId>) = before.partition(|&op| inside(&kernel, op));
        let body = body.copied().filter(|&op| !matches!(kernel.ops[op].op, Op::Yield(_)));
        let (rows_body, mut outer): (Vec<OpId>, Vec<OpId>) = body.partition(|&op| inside(&kernel, op));

        let program = self.remove_rows(&mut kernel);
        let inner = kernel.blocks.push(BlockData { params: vec![self.row], ops: rows_before });
        kernel.values[self.row].def = ValueDef::BlockParam(inner, 0);
        for (s, &tensor) in state.iter().zip(&tensors) {
            let read = edit::insert_last(&mut kernel, inner, Op::Load { tensor, at: s.at() }, span);
            let param = params[1 + s.slot];
            kernel.values[read].name = kernel.values[param].name.clone();
            edit::replace_uses(&mut kernel, param, read, &[]);
        }
        kernel.blocks[inner].ops.extend(rows_body);
        let last = *self.kernel.blocks[self.body].ops.last().expect("a yield");
        let next = edit::yielded(&kernel, self.body);
        for (s, &tensor) in state.iter().zip(&tensors) {
            edit::append(&mut kernel, inner, Op::Store { tensor, at: s.at(), value: next[s.slot] }, span);
        }
        edit::append(&mut kernel, inner, Op::Yield(Vec::new()), span);
        let walk = Op::For { axis: self.rows, part: None, body: inner, init: Vec::new() };
        outer.push(kernel.ops.push(OpData { op: walk, results: Vec::new(), span }));
        outer.push(last);
        kernel.ops[last].op = Op::Yield(Vec::new());
        kernel.blocks[self.body] = BlockData { params: vec![params[0]], ops: outer };
        let Op::For { axis, .. } = kernel.ops[self.loop_op].op else { unreachable!("a loop") };
        kernel.ops[self.loop_op].op = Op::For { axis, part: None, body: self.body, init: Vec::new() };
        kernel.ops[self.loop_op].results.clear();
        let whole = kernel.body;
        kernel.blocks[whole].ops = [program].into_iter().chain(before).chain([self.loop_op]).collect();
        edit::finished(kernel)
    }

    /// Takes the rows out of the grid. Returns the `program` op.
    fn remove_rows(&self, kernel: &mut Kernel) -> OpId {
        kernel.axes[self.rows].kind = AxisKind::Loop;
        let program = kernel.blocks[kernel.body].ops[0];
        let Op::Program(dims) = &mut kernel.ops[program].op else { unreachable!("verified: `program` is first") };
        dims.retain(|dim| *dim != ProgramDim::Tiles(self.rows));
        kernel.ops[program].results.retain(|&v| v != self.row);
        for (number, v) in kernel.ops[program].results.clone().into_iter().enumerate() {
            kernel.values[v].def = ValueDef::Result(program, number as u32);
        }
        program
    }

    fn finish(&self, state: &[Kept]) -> Kernel {
        let (mut kernel, tensors) = self.with(state, "finish", Direction::In);
        let results = kernel.ops[self.loop_op].results.clone();
        let (before, after) = self.around();
        let body = kernel.body;
        kernel.blocks[body].ops = before.to_vec();
        for (slot, &result) in results.iter().enumerate() {
            let value = match state.iter().zip(&tensors).find(|(s, _)| s.slot == slot) {
                Some((s, &tensor)) => {
                    let read = edit::insert_last(&mut kernel, body, Op::Load { tensor, at: s.at() }, self.span());
                    kernel.values[read].name = kernel.values[result].name.clone();
                    read
                }
                None => self.init[slot],
            };
            edit::replace_uses(&mut kernel, result, value, &[]);
        }
        kernel.blocks[body].ops.extend(after);
        edit::finished(kernel)
    }
}
