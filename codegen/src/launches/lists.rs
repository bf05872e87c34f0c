//! Tiles of which masks leave something, listed ahead for loops whose masks read what is loaded for
//! single positions: block lists, matrices of truth values, whatever is gathered.
//!
//! Two launches ahead make the lists. The first looks at all elements of a tile and says whether
//! masks keep none, some or all of them. Where positions are only looked at in groups, as by
//! `pos(j) / 64`, one position stands for its group: a list of blocks is read once a block. The
//! second launch writes one after the other the tiles of which anything is left. The loop then walks
//! its list (`codegen/src/lower/listed.rs`). What is computed does not change, whatever is loaded.

use std::collections::HashMap;

use flashtile_dsl::analysis::listed::{Listed, listed};
use flashtile_dsl::ir::{
    At, AxisId, AxisKind, BinaryOp, Builder, CompareOp, Dim, Direction, Elem, IndexOp, Kernel, Op, ParamId, ProgramDim, ReduceOp,
    SizeExpr, TensorDecl, TileList, Type, UnaryOp, ValueId,
};

use super::staged::{NotStaged, Staged};
use crate::instance::Instance;
use crate::rewrite::edit;

/// Why no loop has tiles to list; `None` if one has.
pub fn why_not_list(instance: &Instance) -> Option<String> {
    listable(instance, &|_| 64).err()
}

const NOTHING: &str = "no mask that hides tiles reads what is loaded for single positions of a loop";

/// Lists the tiles of loops.
///
/// # Errors
/// What [`why_not_list`] says.
pub fn list(instance: &Instance, block: &dyn Fn(AxisId) -> i64) -> Result<Staged, NotStaged> {
    let kernel = &instance.kernel;
    let mut main = kernel.clone();
    let (mut ahead, mut between) = (Vec::new(), Vec::new());
    for (number, found) in listable(instance, block)?.into_iter().enumerate() {
        let number = if number == 0 { String::new() } else { (number + 1).to_string() };
        let name = |main: &Kernel, what: &str| edit::free_name(main, &format!("{what}{number}"), std::iter::empty());
        let (kept, list) = (name(&main, "tiles_kept"), name(&main, "tiles_listed"));
        let shape = shape(&found, kernel, block);
        let decl = |direction| TensorDecl { elem: Elem::I32, shape: shape.clone(), direction };
        let tensor = edit::add_tensor(&mut main, &list, decl(Direction::In));
        let blocks = |axis: AxisId| u32::try_from(block(axis)).expect("a block size");
        main.lists.push(TileList {
            axis: found.axis,
            block: blocks(found.axis),
            rows: found.rows.map_or(1, |rows| blocks(rows.1)),
            tensor,
            dims: found.dims.clone(),
        });
        let of = |what: &str| format!("{}_{what}{number}", kernel.name);
        ahead.push(classifier(instance, &found, block, of("tiles_kept"), (&kept, decl(Direction::Out))));
        let tensors = [(&kept, decl(Direction::In)), (&list, decl(Direction::Out))];
        ahead.push(compactor(kernel, &found, of("tiles_listed"), tensors));
        between.extend([kept, list]);
    }
    Staged::new(ahead, edit::finished(main), Vec::new(), between)
}

/// The extents of a list.
fn shape(listed: &Listed, kernel: &Kernel, block: &dyn Fn(AxisId) -> i64) -> Vec<SizeExpr> {
    let tiles = |axis: AxisId| kernel.axes[axis].extent.div(block(axis)).expect("a block is not empty").ceil();
    let of_grid = listed.dims.iter().map(|&dim| match &kernel.grid()[dim] {
        ProgramDim::Each(extent) => extent.clone(),
        ProgramDim::Tiles(axis) => tiles(*axis),
    });
    of_grid.chain([tiles(listed.axis)]).collect()
}

/// The loops whose tiles can be listed, at least one.
fn listable(instance: &Instance, block: &dyn Fn(AxisId) -> i64) -> Result<Vec<Listed>, String> {
    let kernel = &instance.kernel;
    let mut found = Vec::new();
    let mut refused = None;
    for &id in kernel.blocks[kernel.body].ops.iter().filter(|&&id| matches!(kernel.ops[id].op, Op::For { .. })) {
        match listed(kernel, id, block, &|size| instance.binding.size(kernel, size)) {
            Ok(listed) => found.extend(listed),
            Err(why) => refused = refused.or(Some(why)),
        }
    }
    if found.is_empty() { Err(refused.unwrap_or_else(|| NOTHING.into())) } else { Ok(found) }
}

fn program_values(kernel: &Kernel) -> &[ValueId] {
    &kernel.ops[kernel.blocks[kernel.body].ops[0]].results
}

/// The kernel that says of each tile whether masks keep nothing of it (0), something (1) or all (2).
fn classifier(
    instance: &Instance,
    found: &Listed,
    block: &dyn Fn(AxisId) -> i64,
    name: String,
    (output, decl): (&str, TensorDecl),
) -> Kernel {
    let kernel = &instance.kernel;
    let mut b = edit::beside(kernel, name);
    let tile = b.axis("tile", decl.shape.last().expect("tiles of the loop").clone(), AxisKind::Program);
    let output = edit::add_tensor(&mut b.kernel, output, decl.clone());
    let (dims, last) = (found.dims.len(), ProgramDim::Tiles(tile));
    let (_, place) = b.append(Op::Program(decl.shape[..dims].iter().cloned().map(ProgramDim::Each).chain([last]).collect()));
    let known = found.dims.iter().zip(&place).map(|(&dim, &v)| (program_values(kernel)[dim], v)).collect();
    let tiles = place[dims];
    b.name(tiles, "tile");
    let mut copy = Copy { kernel, b, known, params: HashMap::new(), rows: None, columns: None };

    let (kept, lost) = copy.looked_at(found, tiles, tile, block);
    // A tile that memory cuts is not kept as a whole.
    let at = copy.b.emit(Op::Pos(tiles));
    let one = copy.integer(1);
    let behind = copy.b.emit(Op::Binary(BinaryOp::Add, at, one));
    let length = copy.integer(block(found.axis));
    let behind = copy.b.emit(Op::Binary(BinaryOp::Mul, behind, length));
    let columns = copy.size(&kernel.axes[found.axis].extent);
    let end = copy.b.emit(Op::FromIndex(columns));
    let cut = copy.b.emit(Op::Compare(CompareOp::Gt, behind, end));
    let cut = copy.b.emit(Op::Binary(BinaryOp::Or, cut, lost));
    let [nothing, some, all] = [0, 1, 2].map(|n| copy.integer(n));
    let of_kept = copy.b.emit(Op::Select { cond: cut, on_true: some, on_false: all });
    let value = copy.b.emit(Op::Select { cond: kept, on_true: of_kept, on_false: nothing });
    let at = place[..dims].iter().map(|&v| At::Index(v)).chain([At::Tile(tiles)]).collect();
    copy.b.append(Op::Store { tensor: output, at, value });
    copy.b.finish()
}

/// The kernel that lists the tiles of which something is kept.
fn compactor(kernel: &Kernel, found: &Listed, name: String, [kept, listed]: [(&String, TensorDecl); 2]) -> Kernel {
    let mut b = edit::beside(kernel, name);
    let (dims, shape) = (found.dims.len(), &listed.1.shape);
    let number = b.axis("number", shape.last().expect("tiles of the loop").clone(), AxisKind::Program);
    let [kept, listed] = [&kept, &listed].map(|(name, decl)| edit::add_tensor(&mut b.kernel, name, decl.clone()));
    let each = shape[..dims].iter().cloned().map(ProgramDim::Each);
    let (_, place) = b.append(Op::Program(each.chain([ProgramDim::Tiles(number)]).collect()));
    b.name(place[dims], "number");
    let at: Vec<At> = place[..dims].iter().map(|&v| At::Index(v)).chain([At::Tile(place[dims])]).collect();
    let value = b.emit(Op::Nonzero { tensor: kept, at: at.clone() });
    b.append(Op::Store { tensor: listed, at, value });
    b.finish()
}

/// Copies predicates into another kernel, at other positions.
struct Copy<'k> {
    kernel: &'k Kernel,
    b: Builder,
    /// What values of the one kernel are in the other.
    known: HashMap<ValueId, ValueId>,
    params: HashMap<ParamId, ParamId>,
    /// The coordinate of the rows, the position that stands for it, and as an index the nearest one
    /// that exists.
    rows: Option<(ValueId, ValueId, ValueId)>,
    /// The coordinate of the loop, and the positions that stand for it.
    columns: Option<(ValueId, ValueId)>,
}

impl Copy<'_> {
    fn float(&mut self, x: f64) -> ValueId {
        self.b.emit(Op::Constant(Elem::F32, x))
    }

    fn integer(&mut self, n: i64) -> ValueId {
        self.b.emit(Op::Constant(Elem::I32, n as f64))
    }

    fn index(&mut self, n: i64) -> ValueId {
        self.b.emit(Op::IndexConst(n))
    }

    /// A size as an index.
    fn size(&mut self, size: &SizeExpr) -> ValueId {
        if let Some(size) = size.as_size() {
            return self.b.emit(Op::SizeOf(size));
        }
        let (terms, constant, divisor) = size.parts();
        let mut sum = self.index(constant);
        for (&size, &factor) in terms {
            let (size, factor) = (self.b.emit(Op::SizeOf(size)), self.index(factor));
            let term = self.b.emit(Op::Index(IndexOp::Mul, size, factor));
            sum = self.b.emit(Op::Index(IndexOp::Add, sum, term));
        }
        let divisor = self.index(divisor);
        self.b.emit(Op::Index(IndexOp::Div, sum, divisor))
    }

    /// Whether it was so before, or is at one of the columns: 1 or 0.
    fn any(&mut self, before: ValueId, here: ValueId) -> ValueId {
        let [one, zero] = [1.0, 0.0].map(|x| self.float(x));
        let here = self.b.emit(Op::Select { cond: here, on_true: one, on_false: zero });
        let here = self.b.emit(Op::Reduce(ReduceOp::Max, here));
        self.b.emit(Op::Binary(BinaryOp::Max, before, here))
    }

    fn param(&mut self, param: ParamId) -> ParamId {
        let copied = &self.kernel.params[param];
        *self.params.entry(param).or_insert_with(|| self.b.kernel.params.push(copied.clone()))
    }

    /// Of each of `tiles`, whether masks of every group keep something, and whether masks lose
    /// something.
    fn looked_at(&mut self, found: &Listed, tiles: ValueId, tile: AxisId, block: &dyn Fn(AxisId) -> i64) -> (ValueId, ValueId) {
        let zero = self.float(0.0);
        let nothing = self.b.emit(Op::Full { value: zero, dims: vec![Dim::Axis(tile)] });
        // What is kept by the masks of each group, and what is lost.
        let mut state = vec![nothing; found.groups.len() + 1];
        let rows = found.rows.map(|(v, axis)| {
            let count = SizeExpr::constant(block(axis) / found.alike.0);
            (v, axis, self.b.axis("row", count, AxisKind::Each))
        });
        let inner = self.b.axis("column", SizeExpr::constant(block(found.axis) / found.alike.1), AxisKind::Loop);
        let mut started = Vec::new();
        let mut row_exists = None;
        if let Some((v, axis, each)) = rows {
            let (step, carried) = self.b.begin_for(each, &state);
            started.push((each, std::mem::replace(&mut state, carried)));
            row_exists = Some(self.enter_row(v, &self.kernel.axes[axis].extent, step, [block(axis), found.alike.0]));
        }
        let (column, carried) = self.b.begin_for(inner, &state);
        started.push((inner, std::mem::replace(&mut state, carried)));
        let mut exists = self.enter_columns(found, tiles, column, block(found.axis));
        if let Some(row) = row_exists {
            exists = self.b.emit(Op::Binary(BinaryOp::And, exists, row));
        }
        let mut next = Vec::with_capacity(state.len());
        for (group, &so_far) in found.groups.iter().zip(&state) {
            let kept = self.joined(group, BinaryOp::Or);
            let here = self.b.emit(Op::Binary(BinaryOp::And, exists, kept));
            next.push(self.any(so_far, here));
        }
        let lost = match &found.all {
            Some(keeps) => {
                let kept = self.joined(keeps, BinaryOp::And);
                let lost = self.b.emit(Op::Unary(UnaryOp::Not, kept));
                self.b.emit(Op::Binary(BinaryOp::And, exists, lost))
            }
            None => exists,
        };
        next.push(self.any(*state.last().expect("what is lost is carried"), lost));
        for (axis, init) in started.into_iter().rev() {
            next = self.b.end_for(axis, init, next);
        }
        let lost = next.pop().expect("what is lost is carried");
        let kept = next.into_iter().reduce(|x, y| self.b.emit(Op::Binary(BinaryOp::Min, x, y))).expect("there are groups");
        let half = self.float(0.5);
        let [kept, lost] = [kept, lost].map(|x| self.b.emit(Op::Compare(CompareOp::Gt, x, half)));
        (kept, lost)
    }

    /// Makes row `step` of those that are looked at the row, and gives whether it exists.
    fn enter_row(&mut self, rows: ValueId, extent: &SizeExpr, step: ValueId, [block, alike]: [i64; 2]) -> ValueId {
        let [block, alike, one] = [block, alike, 1].map(|n| self.index(n));
        let first = self.b.emit(Op::Index(IndexOp::Mul, self.known[&rows], block));
        let step = self.b.emit(Op::Index(IndexOp::Mul, step, alike));
        let row = self.b.emit(Op::Index(IndexOp::Add, first, step));
        let count = self.size(extent);
        let row = self.b.emit(Op::Index(IndexOp::Min, row, count));
        let last = self.b.emit(Op::Index(IndexOp::Sub, count, one));
        let nearest = self.b.emit(Op::Index(IndexOp::Min, row, last));
        let (at, end) = (self.b.emit(Op::FromIndex(row)), self.b.emit(Op::FromIndex(count)));
        self.rows = Some((rows, at, nearest));
        self.b.emit(Op::Compare(CompareOp::Lt, at, end))
    }

    /// Makes the columns that are looked at the positions of the loop, and gives which exist.
    fn enter_columns(&mut self, found: &Listed, tiles: ValueId, column: ValueId, block: i64) -> ValueId {
        let (at, within) = (self.b.emit(Op::Pos(tiles)), self.b.emit(Op::Pos(column)));
        let [block, alike] = [block, found.alike.1].map(|n| self.integer(n));
        let first = self.b.emit(Op::Binary(BinaryOp::Mul, at, block));
        let within = self.b.emit(Op::Binary(BinaryOp::Mul, within, alike));
        let position = self.b.emit(Op::Binary(BinaryOp::Add, first, within));
        self.columns = Some((found.coordinate, position));
        let columns = self.size(&self.kernel.axes[found.axis].extent);
        let end = self.b.emit(Op::FromIndex(columns));
        self.b.emit(Op::Compare(CompareOp::Lt, position, end))
    }

    /// Predicates, joined.
    fn joined(&mut self, keeps: &[ValueId], op: BinaryOp) -> ValueId {
        let keeps: Vec<ValueId> = keeps.iter().map(|&keep| self.value(keep)).collect();
        keeps.into_iter().reduce(|x, y| self.b.emit(Op::Binary(op, x, y))).expect("a group has masks")
    }

    /// A position of the original, here.
    fn position(&self, coordinate: ValueId) -> ValueId {
        let rows = self.rows.iter().find_map(|&(of, position, _)| (of == coordinate).then_some(position));
        let columns = self.columns.iter().find_map(|&(of, position)| (of == coordinate).then_some(position));
        rows.or(columns).expect("looked at: of the rows or of the loop")
    }

    /// A value of the original, here.
    fn value(&mut self, value: ValueId) -> ValueId {
        if let Some(&known) = self.known.get(&value) {
            return known;
        }
        let kernel = self.kernel;
        let (_, op) = kernel.def(value).expect("looked at: nothing that is carried");
        let copied = match op {
            Op::Pos(coordinate) => self.position(*coordinate),
            Op::Full { value, .. } | Op::Transpose(value) => self.value(*value),
            Op::Scalar(param) => {
                let param = self.param(*param);
                self.b.emit(Op::Scalar(param))
            }
            Op::Load { tensor, at } => self.load(*tensor, at),
            Op::Gather { tensor, at } => {
                let at = at.iter().map(|&v| self.value(v)).collect();
                let tensor = self.param(*tensor);
                self.b.emit(Op::Gather { tensor, at })
            }
            op => {
                let operands: HashMap<ValueId, ValueId> = op.operands().into_iter().map(|v| (v, self.value(v))).collect();
                let op = op.map_operands(|v| operands[&v]);
                self.b.emit(op)
            }
        };
        self.known.insert(value, copied);
        copied
    }

    /// What a load gives: of the rows one, of the loop those at the positions.
    fn load(&mut self, tensor: ParamId, at: &[At]) -> ValueId {
        let entries: Vec<ValueId> = at
            .iter()
            .map(|at| match at {
                At::Index(v) => self.value(*v),
                At::Tile(c) => match self.rows {
                    Some((rows, _, nearest)) if rows == *c => nearest,
                    _ => self.position(*c),
                },
                At::Range { .. } => unreachable!("looked at: no rows"),
            })
            .collect();
        let tensor = self.param(tensor);
        let indices = entries.iter().all(|&v| *self.b.kernel.ty(v) == Type::Index);
        match indices {
            true => self.b.emit(Op::Load { tensor, at: entries.into_iter().map(At::Index).collect() }),
            false => self.b.emit(Op::Gather { tensor, at: entries }),
        }
    }
}
