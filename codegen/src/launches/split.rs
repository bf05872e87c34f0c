//! Splits: the loop of a streaming reduction over parts of its tiles, and what combines the parts: a kernel of its own,
//! two of them, or the programs that walk the parts.
//!
//! The *partial* kernel is the original with one more grid dimension, the part. Its loop walks its part from a state that
//! stands for nothing seen, and what it carries in the end is stored to f32 tensors, one place per part. The *combine* kernel is
//! the original with a loop over the parts in place of its own: it starts from the initial values of the text, merges one
//! stored state after the other as [`Streaming`] says, and goes on with what the text does after its loop. Parts are
//! merged in order, so that the result is the same in every launch.
//!
//! Of many parts a *group* kernel merges some at a time, side by side, and the combine kernel merges the groups. A group is
//! consecutive parts, so that the order is the same; what is rescaled how often is not.
//!
//! The *joined* kernel does both: the loop over its part, then the loop over the parts with
//! `of_part` in place of the loads, then what the text does after its loop. How a program learns
//! what another one has computed is not said: see [`crate::Fixup`].
//!
//! The references of merged states pass through `visible_or_zero`, whether the text has that or not: a part that has seen
//! nothing (`m = -inf`) then counts nothing, and NaN of a part stays NaN.

use std::collections::BTreeSet;

use flashtile_dsl::analysis::streaming::{Base, Form, Streaming, constant_fill};
use flashtile_dsl::ir::{
    Axis, AxisKind, BinaryOp, BlockData, BlockId, Direction, Elem, IndexOp, Kernel, Op, OpData, OpId, Part, ProgramDim, SizeExpr,
    Span, Type, UnaryOp, ValueData, ValueDef, ValueId,
};

use super::carried::{self, Kept};
use super::staged::{NotStaged, Staged};
use crate::rewrite::edit::{self, Place};
use crate::schedule::Fixup;

/// Why the kernel cannot be split; `None` if it can.
pub fn why_not_split(kernel: &Kernel) -> Option<String> {
    Splitter::new(kernel).err()
}

/// Splits the loop of a kernel into `count` parts. `main` walks the parts; what merges them is
/// behind it, or in `main` itself, whose programs then meet.
///
/// # Errors
/// What [`why_not_split`] says; or `count` does not divide into the groups of [`Fixup::Tree`].
pub fn split(kernel: &Kernel, count: u32, fixup: Fixup) -> Result<Staged, NotStaged> {
    let splitter = Splitter::new(kernel)?;
    match fixup {
        Fixup::Kernel => splitter.apart(count),
        Fixup::Tree => splitter.grouped(count),
        Fixup::Semaphore | Fixup::Cluster => {
            if let Some(name) = splitter.stored_by_every_part() {
                let why = format!("`{name}` is stored to with what no loop changes, which the programs of all parts would do");
                return Err(format!("{why}: fixup=kernel").into());
            }
            let mut staged = Staged::new(Vec::new(), splitter.joined(count), Vec::new(), Vec::new())?;
            staged.meets = true;
            Ok(staged)
        }
    }
}

/// How many groups `count` parts divide into: as near as possible to as many as a group has parts.
pub fn groups(count: u32) -> Option<u32> {
    let divides = |groups: &u32| count.is_multiple_of(*groups);
    (2..count).filter(divides).min_by_key(|&groups| groups.max(count / groups))
}

/// A loop that can be split, and what of its state is needed.
struct Splitter<'k> {
    kernel: &'k Kernel,
    loop_op: OpId,
    streaming: Streaming,
    /// Places of the carried values that something needs.
    needed: BTreeSet<usize>,
}

impl<'k> Splitter<'k> {
    fn new(kernel: &'k Kernel) -> Result<Self, String> {
        let is_loop = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { .. });
        let loops: Vec<OpId> = kernel.blocks[kernel.body].ops.iter().copied().filter(is_loop).collect();
        let [loop_op] = loops[..] else { return Err(format!("the kernel has {} loops, and not one", loops.len())) };
        let Op::For { axis, part, .. } = &kernel.ops[loop_op].op else { unreachable!("a loop") };
        if part.is_some() || kernel.axes[*axis].kind == AxisKind::Program {
            return Err("the loop does not walk all tiles of an axis".into());
        }
        let streaming = Streaming::of(kernel, loop_op);
        if let Some(why) = streaming.why_not_regrouped(kernel) {
            return Err(why.to_string());
        }
        let this = Self { kernel, loop_op, needed: needed(kernel, loop_op, &streaming), streaming };
        if this.needed.is_empty() {
            return Err("nothing needs what the loop carries".into());
        }
        for &slot in &this.needed {
            carried::place(kernel, this.value(slot))?;
        }
        Ok(this)
    }

    fn body(&self) -> BlockId {
        let Op::For { body, .. } = self.kernel.ops[self.loop_op].op else { unreachable!("a loop") };
        body
    }

    /// A carried value, in the body of the loop.
    fn value(&self, slot: usize) -> ValueId {
        self.kernel.blocks[self.body()].params[1 + slot]
    }

    /// Its name.
    fn name(&self, slot: usize) -> String {
        carried::name(self.kernel, self.value(slot))
    }

    fn ty(&self, slot: usize) -> &Type {
        self.kernel.ty(self.value(slot))
    }

    /// An output that is stored to with a value that does not depend on the loop.
    fn stored_by_every_part(&self) -> Option<&'k str> {
        let kernel = self.kernel;
        let mut of_loop: BTreeSet<ValueId> = kernel.ops[self.loop_op].results.iter().copied().collect();
        for &op in &kernel.blocks[kernel.body].ops {
            let data = &kernel.ops[op];
            let depends = data.op.operands().iter().any(|v| of_loop.contains(v));
            match &data.op {
                Op::Store { tensor, value, .. } | Op::Scatter { tensor, value, .. } if !of_loop.contains(value) => {
                    return Some(&kernel.params[*tensor].name);
                }
                _ if depends => of_loop.extend(&data.results),
                _ => {}
            }
        }
        None
    }

    /// A kernel for the parts, and one that merges them.
    fn apart(&self, count: u32) -> Result<Staged, NotStaged> {
        let parts = self.kept(count, "parts", &[])?;
        let (partial, combine) = (self.partial(count, &parts), self.combine(count, &parts));
        Staged::new(Vec::new(), partial, vec![combine], parts.into_iter().map(|t| t.name).collect())
    }

    /// The same, with a kernel that merges groups of parts between the two.
    fn grouped(&self, count: u32) -> Result<Staged, NotStaged> {
        let groups = groups(count).ok_or_else(|| format!("{count} parts do not divide into groups"))?;
        let parts = self.kept(count, "parts", &[])?;
        let merged = self.kept(groups, "groups", &parts)?;
        let group = self.group(count / groups, groups, &parts, &merged);
        let (partial, combine) = (self.partial(count, &parts), self.combine(groups, &merged));
        let between = parts.into_iter().chain(merged).map(|t| t.name).collect();
        Staged::new(Vec::new(), partial, vec![group, combine], between)
    }

    /// Tensors for the states of `count` parts, whose names end so and are none of `others`.
    fn kept(&self, count: u32, ending: &str, others: &[Kept]) -> Result<Vec<Kept>, String> {
        let values = self.needed.iter().map(|&slot| (slot, self.value(slot)));
        carried::kept(self.kernel, values, (ending, Some(count)), others)
    }

    fn partial(&self, count: u32, between: &[Kept]) -> Kernel {
        let mut kernel = self.kernel.clone();
        kernel.name = format!("{}_partial", self.kernel.name);
        let index = add_part(&mut kernel, count);
        self.walk_part(&mut kernel, Part { index, count });
        let results = kernel.ops[self.loop_op].results.clone();
        self.end_with_states(&mut kernel, index, between, |slot| results[slot]);
        edit::finished(kernel)
    }

    /// Lets a kernel end with its loop, and with stores of what is needed of its state as that of this part.
    fn end_with_states(&self, kernel: &mut Kernel, part: ValueId, between: &[Kept], of: impl Fn(usize) -> ValueId) {
        let tensors = carried::declare(kernel, between, Direction::Out);
        let body = kernel.body;
        let end = kernel.blocks[body].ops.iter().position(|&op| op == self.loop_op).expect("the loop is in the body");
        kernel.blocks[body].ops.truncate(end + 1);
        let stores = |op: &OpId| kernel.ops[*op].op.written().is_some();
        let before: Vec<OpId> = kernel.blocks[body].ops.iter().copied().filter(|op| !stores(op)).collect();
        kernel.blocks[body].ops = before;
        let span = kernel.ops[self.loop_op].span;
        for (t, &tensor) in between.iter().zip(&tensors) {
            edit::append(kernel, body, Op::Store { tensor, at: t.at_part(part), value: of(t.slot) }, span);
        }
    }

    /// Makes the loop walk a part of its tiles, from a state that stands for nothing seen.
    fn walk_part(&self, kernel: &mut Kernel, part: Part) {
        let Op::For { axis, body: inner, init, .. } = kernel.ops[self.loop_op].op.clone() else { unreachable!("a loop") };
        let init = self.nothing(kernel, init);
        kernel.ops[self.loop_op].op = Op::For { axis, part: Some(part), body: inner, init };
    }

    /// The initial values with what stands for nothing seen in place of those that count.
    fn nothing(&self, kernel: &mut Kernel, mut init: Vec<ValueId>) -> Vec<ValueId> {
        let span = kernel.ops[self.loop_op].span;
        for (slot, form) in self.streaming.forms.iter().enumerate() {
            let nothing = match form {
                Form::Constant => continue,
                Form::RunningMaximum { .. } => f64::NEG_INFINITY,
                Form::Sum { .. } | Form::RescaledSum { .. } => 0.0,
                Form::Other(_) => unreachable!("checked before"),
            };
            if constant_fill(kernel, init[slot]) == Some(nothing) {
                continue;
            }
            let Type::Tile(tile) = self.ty(slot).clone() else { unreachable!("verified: loops carry tiles") };
            let value = edit::insert_before(kernel, self.loop_op, Op::Constant(Elem::F32, nothing), span);
            init[slot] = edit::insert_before(kernel, self.loop_op, Op::Full { value, dims: tile.dims }, span);
        }
        init
    }

    /// Merges the parts of each of `groups` groups of `size`.
    fn group(&self, size: u32, groups: u32, from: &[Kept], to: &[Kept]) -> Kernel {
        let mut kernel = self.kernel.clone();
        kernel.name = format!("{}_group", self.kernel.name);
        let index = add_part(&mut kernel, groups);
        kernel.values[index].name = Some("group".into());
        let span = kernel.ops[self.loop_op].span;
        let each = edit::insert_before(&mut kernel, self.loop_op, Op::IndexConst(size.into()), span);
        let first = edit::insert_before(&mut kernel, self.loop_op, Op::Index(IndexOp::Mul, index, each), span);
        self.merge_stored(&mut kernel, from, size, Some(first));
        let results = kernel.ops[self.loop_op].results.clone();
        let place = |slot| self.needed.iter().position(|&s| s == slot).expect("what is stored is needed");
        self.end_with_states(&mut kernel, index, to, |slot| results[place(slot)]);
        edit::finished(kernel)
    }

    fn combine(&self, count: u32, between: &[Kept]) -> Kernel {
        let mut kernel = self.kernel.clone();
        kernel.name = format!("{}_combine", self.kernel.name);
        let results = kernel.ops[self.loop_op].results.clone();
        let Op::For { init, .. } = kernel.ops[self.loop_op].op.clone() else { unreachable!("a loop") };
        self.merge_stored(&mut kernel, between, count, None);
        for (slot, &result) in results.iter().enumerate() {
            if self.streaming.forms[slot] == Form::Constant {
                edit::replace_uses(&mut kernel, result, init[slot], &[]);
            }
        }
        edit::finished(kernel)
    }

    /// Puts a loop over `count` of the stored parts in place of the loop: those from `first` on,
    /// from nothing seen; or all, from the initial values of the text. It carries what is needed.
    fn merge_stored(&self, kernel: &mut Kernel, between: &[Kept], count: u32, first: Option<ValueId>) {
        let tensors = carried::declare(kernel, between, Direction::In);
        let Op::For { axis, init, .. } = kernel.ops[self.loop_op].op.clone() else { unreachable!("a loop") };
        let init = if first.is_some() { self.nothing(kernel, init) } else { init };
        // The loop over parts takes the place of the loop, and its axis that of the loop's.
        kernel.axes[axis] = Axis { name: "part".into(), extent: SizeExpr::constant(count.into()), kind: AxisKind::Each };
        let (merged, body) = self.merging(kernel.clone(), first, |slot, index| {
            let stored = between.iter().zip(&tensors).find(|(t, _)| t.slot == slot);
            let (t, &tensor) = stored.expect("what is needed is stored");
            Op::Load { tensor, at: t.at_part(index) }
        });
        *kernel = merged;
        let results = kernel.ops[self.loop_op].results.clone();
        let kept: Vec<ValueId> = self.needed.iter().map(|&slot| results[slot]).collect();
        for (number, &result) in kept.iter().enumerate() {
            kernel.values[result].def = ValueDef::Result(self.loop_op, number as u32);
        }
        let init = self.needed.iter().map(|&slot| init[slot]).collect();
        kernel.ops[self.loop_op].op = Op::For { axis, part: None, body, init };
        kernel.ops[self.loop_op].results = kept;
    }

    fn joined(&self, count: u32) -> Kernel {
        let mut kernel = self.kernel.clone();
        let Op::For { init, .. } = kernel.ops[self.loop_op].op.clone() else { unreachable!("a loop") };
        let span = kernel.ops[self.loop_op].span;
        let part = add_part(&mut kernel, count);
        self.walk_part(&mut kernel, Part { index: part, count });
        let own = kernel.ops[self.loop_op].results.clone();
        let axis = Axis { name: "part".into(), extent: SizeExpr::constant(count.into()), kind: AxisKind::Each };
        let axis = kernel.axes.push(axis);
        let (mut kernel, body) = self.merging(kernel, None, |slot, at| Op::OfPart { value: own[slot], part, at });
        let inside = kernel.blocks[body].ops.clone();
        let kept = self.needed.iter().map(|&slot| init[slot]).collect();
        let id = kernel.ops.push(OpData { op: Op::For { axis, part: None, body, init: kept }, results: Vec::new(), span });
        for (number, &slot) in self.needed.iter().enumerate() {
            let (ty, name) = (self.ty(slot).clone(), Some(self.name(slot)));
            let result = kernel.values.push(ValueData { ty, def: ValueDef::Result(id, number as u32), name });
            edit::replace_uses(&mut kernel, own[slot], result, &inside);
            kernel.ops[id].results.push(result);
        }
        let Place { block, index } = edit::places(&kernel)[&self.loop_op];
        kernel.blocks[block].ops.insert(index + 1, id);
        edit::finished(kernel)
    }

    /// The body of the loop over parts: what is needed is carried, read of each part (counted from the `first`), and merged.
    fn merging(&self, mut kernel: Kernel, first: Option<ValueId>, read: impl Fn(usize, ValueId) -> Op) -> (Kernel, BlockId) {
        let span = kernel.ops[self.loop_op].span;
        let body = kernel.blocks.push(BlockData::default());
        let param = |kernel: &mut Kernel, ty: Type, name: Option<String>| {
            let number = kernel.blocks[body].params.len() as u32;
            let v = kernel.values.push(ValueData { ty, def: ValueDef::BlockParam(body, number), name });
            kernel.blocks[body].params.push(v);
            v
        };
        let index = param(&mut kernel, Type::Index, Some("part".into()));
        // What is carried, and what a part adds to it.
        let carried: Vec<(usize, ValueId)> =
            self.needed.iter().map(|&slot| (slot, param(&mut kernel, self.ty(slot).clone(), Some(self.name(slot))))).collect();
        let mut merge = Merge { kernel, body, span };
        let index = first.map_or(index, |first| merge.emit(Op::Index(IndexOp::Add, first, index), None));
        let mut states = Vec::new();
        for (slot, own) in carried {
            states.push((slot, own, merge.emit(read(slot, index), Some(format!("{}_part", self.name(slot))))));
        }
        let next = self.merged(&mut merge, &states);
        merge.append_yield(next);
        (merge.kernel, body)
    }

    /// The next values of what is carried, one per state.
    fn merged(&self, merge: &mut Merge, states: &[(usize, ValueId, ValueId)]) -> Vec<ValueId> {
        // For every maximum and base: the factors of what is kept and of what a part adds.
        let mut factors: Vec<(usize, Base, ValueId, ValueId)> = Vec::new();
        let mut maxima: Vec<(usize, ValueId)> = Vec::new();
        for &(slot, own, read) in states {
            if matches!(self.streaming.forms[slot], Form::RunningMaximum { .. }) {
                let name = format!("{}_new", self.name(slot));
                maxima.push((slot, merge.emit(Op::Binary(BinaryOp::Max, own, read), Some(name))));
            }
        }
        let state = |slot: usize| *states.iter().find(|(s, ..)| *s == slot).expect("what is needed has its maximum");
        let mut next = Vec::new();
        for &(slot, own, read) in states {
            next.push(match &self.streaming.forms[slot] {
                Form::RunningMaximum { .. } => maxima.iter().find(|(s, _)| *s == slot).expect("merged above").1,
                Form::Sum { .. } => merge.emit(Op::Binary(BinaryOp::Add, own, read), None),
                Form::RescaledSum { maximum, base, .. } => {
                    let known = factors.iter().find(|(m, b, ..)| (m, b) == (maximum, base)).copied();
                    let (.., keep, take) = known.unwrap_or_else(|| {
                        let (_, m, m_part) = state(*maximum);
                        let new = maxima.iter().find(|(s, _)| s == maximum).expect("a maximum").1;
                        let reference = merge.emit(Op::Unary(UnaryOp::VisibleOrZero, new), None);
                        let keep = merge.factor(*base, m, reference, "kept");
                        let take = merge.factor(*base, m_part, reference, "taken");
                        factors.push((*maximum, *base, keep, take));
                        (*maximum, *base, keep, take)
                    });
                    let kept = merge.emit(Op::Binary(BinaryOp::Mul, own, keep), None);
                    let taken = merge.emit(Op::Binary(BinaryOp::Mul, read, take), None);
                    merge.emit(Op::Binary(BinaryOp::Add, kept, taken), None)
                }
                Form::Constant | Form::Other(_) => unreachable!("not among what is needed"),
            });
        }
        next
    }
}

/// The body of the loop over parts, as it is written.
struct Merge {
    kernel: Kernel,
    body: BlockId,
    span: Span,
}

impl Merge {
    fn emit(&mut self, op: Op, name: Option<String>) -> ValueId {
        let value = edit::insert_last(&mut self.kernel, self.body, op, self.span);
        self.kernel.values[value].name = name;
        value
    }

    /// `exp(from - reference)`.
    fn factor(&mut self, base: Base, from: ValueId, reference: ValueId, name: &str) -> ValueId {
        let function = match base {
            Base::E => UnaryOp::Exp,
            Base::Two => UnaryOp::Exp2,
        };
        let moved = self.emit(Op::Binary(BinaryOp::Sub, from, reference), None);
        self.emit(Op::Unary(function, moved), Some(name.into()))
    }

    fn append_yield(&mut self, next: Vec<ValueId>) {
        edit::append(&mut self.kernel, self.body, Op::Yield(next), self.span);
    }
}

/// The carried values whose results something uses, and the maxima of these.
fn needed(kernel: &Kernel, loop_op: OpId, streaming: &Streaming) -> BTreeSet<usize> {
    let results = &kernel.ops[loop_op].results;
    let used = |slot: &usize| !edit::users(kernel, results[*slot]).is_empty();
    let mut needed: BTreeSet<usize> = (0..results.len()).filter(|s| streaming.forms[*s] != Form::Constant).filter(used).collect();
    for slot in needed.clone() {
        if let Form::RescaledSum { maximum, .. } = streaming.forms[slot] {
            needed.insert(maximum);
        }
    }
    needed
}

/// Adds the part as the outermost dimension of the grid, and returns its index.
fn add_part(kernel: &mut Kernel, count: u32) -> ValueId {
    let program = kernel.blocks[kernel.body].ops[0];
    let Op::Program(mut dims) = kernel.ops[program].op.clone() else { unreachable!("verified: `program` is first") };
    dims.insert(0, ProgramDim::Each(SizeExpr::constant(count.into())));
    kernel.ops[program].op = Op::Program(dims);
    kernel.lists.iter_mut().flat_map(|list| &mut list.dims).for_each(|dim| *dim += 1);
    let name = Some("part".to_owned());
    let index = kernel.values.push(ValueData { ty: Type::Index, def: ValueDef::Result(program, 0), name });
    kernel.ops[program].results.insert(0, index);
    for (number, &v) in kernel.ops[program].results.clone().iter().enumerate() {
        kernel.values[v].def = ValueDef::Result(program, number as u32);
    }
    index
}
