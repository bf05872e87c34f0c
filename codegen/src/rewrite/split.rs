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
//! The *joined* kernel does both: the loop over its part, then the loop over the parts with `of_part` in place of the loads, then
//! what the text does after its loop. How a program learns what another one has computed is not said: see [`crate::Combine`].
//!
//! The references of merged states pass through `visible_or_zero`, whether the text has that or not: a part that has seen
//! nothing (`m = -inf`) then counts nothing, and NaN of a part stays NaN.

use std::collections::BTreeSet;

use flashtile_dsl::analysis::streaming::{Base, Form, Streaming, constant_fill};
use flashtile_dsl::ir::{
    At, Axis, AxisKind, BinaryOp, BlockData, BlockId, Dim, Direction, Elem, IndexOp, Kernel, Op, OpData, OpId, Param, ParamId,
    ParamKind, Part, ProgramDim, SizeExpr, Span, TensorDecl, Type, UnaryOp, ValueData, ValueDef, ValueId,
};

use super::edit::{self, Place};

/// A kernel in two.
#[derive(Clone, Debug)]
pub struct Split {
    /// Walks the parts.
    pub partial: Kernel,
    /// Merges them.
    pub combine: Kernel,
    /// Names of the tensors between the two, outputs of the one and inputs of the other.
    pub between: Vec<String>,
}

/// A kernel in three.
#[derive(Clone, Debug)]
pub struct GroupedSplit {
    /// Walks the parts, and merges the groups.
    pub split: Split,
    /// Merges the parts of each group. It reads what the first kernel of the split writes, and writes what the other reads.
    pub group: Kernel,
    /// Names of the tensors between the first kernel and this one.
    pub before: Vec<String>,
}

/// Walks the parts of the loop of a kernel and merges them, in one kernel: `count` programs for every one of the kernel.
///
/// # Errors
/// What [`why_not_split`] says.
pub fn split_joined(kernel: &Kernel, count: u32) -> Result<Kernel, String> {
    Ok(Splitter::new(kernel)?.joined(count))
}

/// Why the kernel cannot be split; `None` if it can.
pub fn why_not_split(kernel: &Kernel) -> Option<String> {
    Splitter::new(kernel).err()
}

/// Splits the loop of a kernel into `count` parts.
///
/// # Errors
/// What [`why_not_split`] says.
pub fn split(kernel: &Kernel, count: u32) -> Result<Split, String> {
    let splitter = Splitter::new(kernel)?;
    let between = splitter.between(count, "parts", &[]);
    Ok(Split {
        partial: splitter.partial(count, &between),
        combine: splitter.combine(count, &between),
        between: between.into_iter().map(|t| t.name).collect(),
    })
}

/// Splits the loop of a kernel into `count` parts, whose states are merged in groups first.
///
/// # Errors
/// What [`why_not_split`] says; or `count` does not divide into groups.
pub fn split_grouped(kernel: &Kernel, count: u32) -> Result<GroupedSplit, String> {
    let splitter = Splitter::new(kernel)?;
    let groups = groups(count).ok_or_else(|| format!("{count} parts do not divide into groups"))?;
    let parts = splitter.between(count, "parts", &[]);
    let merged = splitter.between(groups, "groups", &parts);
    let names = |between: Vec<Between>| between.into_iter().map(|t| t.name).collect();
    Ok(GroupedSplit {
        group: splitter.group(count / groups, groups, &parts, &merged),
        split: Split {
            partial: splitter.partial(count, &parts),
            combine: splitter.combine(groups, &merged),
            between: names(merged),
        },
        before: names(parts),
    })
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

/// A tensor between two of the kernels.
struct Between {
    name: String,
    slot: usize,
    shape: Vec<SizeExpr>,
}

impl<'k> Splitter<'k> {
    fn new(kernel: &'k Kernel) -> Result<Self, String> {
        let is_loop = |op: &OpId| matches!(kernel.ops[*op].op, Op::For { .. });
        let loops: Vec<OpId> = kernel.blocks[kernel.body].ops.iter().copied().filter(is_loop).collect();
        let [loop_op] = loops[..] else { return Err(format!("the kernel has {} loops, and not one", loops.len())) };
        let Op::For { axis, part, .. } = &kernel.ops[loop_op].op else { unreachable!("a loop") };
        if part.is_some() || kernel.axes[*axis].kind != AxisKind::Loop {
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
            this.place(slot, None)?;
        }
        Ok(this)
    }

    fn body(&self) -> BlockId {
        let Op::For { body, .. } = self.kernel.ops[self.loop_op].op else { unreachable!("a loop") };
        body
    }

    /// Name of a carried value.
    fn name(&self, slot: usize) -> String {
        let v = self.kernel.blocks[self.body()].params[1 + slot];
        self.kernel.values[v].name.clone().unwrap_or_else(|| v.to_string())
    }

    fn ty(&self, slot: usize) -> &Type {
        self.kernel.ty(self.kernel.blocks[self.body()].params[1 + slot])
    }

    /// Where a carried value is kept: the part (if there is one yet), the program, its own dimensions. Each entry with its extent.
    fn place(&self, slot: usize, part: Option<(ValueId, u32)>) -> Result<Vec<(At, SizeExpr)>, String> {
        let (kernel, name) = (self.kernel, self.name(slot));
        let Type::Tile(tile) = self.ty(slot) else { unreachable!("verified: loops carry tiles") };
        if tile.elem != Elem::F32 {
            return Err(format!("`{name}` is {}, and not f32", kernel.elem_name(tile.elem)));
        }
        let mut out: Vec<_> =
            part.map(|(index, count)| (At::Index(index), SizeExpr::constant(count.into()))).into_iter().collect();
        let program = &kernel.ops[kernel.blocks[kernel.body].ops[0]].results;
        for (dim, &v) in kernel.grid().iter().zip(program) {
            match dim {
                ProgramDim::Each(size) => out.push((At::Index(v), size.clone())),
                ProgramDim::Tiles(axis) if tile.dims.contains(&Dim::Axis(*axis)) => {}
                ProgramDim::Tiles(axis) => {
                    return Err(format!("`{name}` does not have the grid's axis `{}`", kernel.axes[*axis].name));
                }
            }
        }
        for dim in &tile.dims {
            match dim {
                Dim::Axis(axis) => {
                    let at = kernel.grid().iter().position(|d| *d == ProgramDim::Tiles(*axis));
                    let at = at.ok_or_else(|| format!("`{name}` has an axis that is not the grid's"))?;
                    out.push((At::Tile(program[at]), kernel.axes[*axis].extent.clone()));
                }
                Dim::Range(len) => out.push((At::Range { start: SizeExpr::constant(0), len: len.clone() }, len.clone())),
            }
        }
        Ok(out)
    }

    /// Tensors for the states of `count` parts, whose names end so and are none of `others`.
    fn between(&self, count: u32, ending: &str, others: &[Between]) -> Vec<Between> {
        let kernel = self.kernel;
        let mut out: Vec<Between> = Vec::new();
        for &slot in &self.needed {
            let taken = out.iter().chain(others).map(|t| t.name.as_str());
            let name = edit::free_name(kernel, &format!("{}_{ending}", self.name(slot)), taken);
            let place = self.place(slot, None).expect("checked before");
            let parts = SizeExpr::constant(count.into());
            out.push(Between {
                name,
                slot,
                shape: [parts].into_iter().chain(place.into_iter().map(|(_, extent)| extent)).collect(),
            });
        }
        out
    }

    /// Adds the tensors to a kernel.
    fn declare(kernel: &mut Kernel, between: &[Between], direction: Direction) -> Vec<ParamId> {
        let param = |t: &Between| Param {
            name: t.name.clone(),
            kind: ParamKind::Tensor(TensorDecl { elem: Elem::F32, shape: t.shape.clone(), direction }),
            span: Span::default(),
        };
        between.iter().map(|t| kernel.params.push(param(t))).collect()
    }

    fn partial(&self, count: u32, between: &[Between]) -> Kernel {
        let mut kernel = self.kernel.clone();
        kernel.name = format!("{}_partial", self.kernel.name);
        let index = add_part(&mut kernel, count);
        self.walk_part(&mut kernel, Part { index, count });
        let results = kernel.ops[self.loop_op].results.clone();
        self.end_with_states(&mut kernel, (index, count), between, |slot| results[slot]);
        edit::finished(kernel)
    }

    /// Lets a kernel end with its loop, and with stores of what is needed of its state as that of this part.
    fn end_with_states(&self, kernel: &mut Kernel, part: (ValueId, u32), between: &[Between], of: impl Fn(usize) -> ValueId) {
        let tensors = Self::declare(kernel, between, Direction::Out);
        let body = kernel.body;
        let end = kernel.blocks[body].ops.iter().position(|&op| op == self.loop_op).expect("the loop is in the body");
        kernel.blocks[body].ops.truncate(end + 1);
        let stores = |op: &OpId| matches!(kernel.ops[*op].op, Op::Store { .. });
        let before: Vec<OpId> = kernel.blocks[body].ops.iter().copied().filter(|op| !stores(op)).collect();
        kernel.blocks[body].ops = before;
        let span = kernel.ops[self.loop_op].span;
        for (t, &tensor) in between.iter().zip(&tensors) {
            let place = self.place(t.slot, Some(part)).expect("checked before");
            let at = place.into_iter().map(|(at, _)| at).collect();
            let op = Op::Store { tensor, at, value: of(t.slot) };
            let id = kernel.ops.push(OpData { op, results: Vec::new(), span });
            kernel.blocks[body].ops.push(id);
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
            let value = insert_before(kernel, self.loop_op, Op::Constant(Elem::F32, nothing), span);
            init[slot] = insert_before(kernel, self.loop_op, Op::Full { value, dims: tile.dims }, span);
        }
        init
    }

    /// Merges the parts of each of `groups` groups of `size`.
    fn group(&self, size: u32, groups: u32, from: &[Between], to: &[Between]) -> Kernel {
        let mut kernel = self.kernel.clone();
        kernel.name = format!("{}_group", self.kernel.name);
        let index = add_part(&mut kernel, groups);
        kernel.values[index].name = Some("group".into());
        let span = kernel.ops[self.loop_op].span;
        let each = insert_before(&mut kernel, self.loop_op, Op::IndexConst(size.into()), span);
        let first = insert_before(&mut kernel, self.loop_op, Op::Index(IndexOp::Mul, index, each), span);
        self.merge_stored(&mut kernel, from, size, groups * size, Some(first));
        let results = kernel.ops[self.loop_op].results.clone();
        let place = |slot| self.needed.iter().position(|&s| s == slot).expect("what is stored is needed");
        self.end_with_states(&mut kernel, (index, groups), to, |slot| results[place(slot)]);
        edit::finished(kernel)
    }

    fn combine(&self, count: u32, between: &[Between]) -> Kernel {
        let mut kernel = self.kernel.clone();
        kernel.name = format!("{}_combine", self.kernel.name);
        let results = kernel.ops[self.loop_op].results.clone();
        let Op::For { init, .. } = kernel.ops[self.loop_op].op.clone() else { unreachable!("a loop") };
        self.merge_stored(&mut kernel, between, count, count, None);
        for (slot, &result) in results.iter().enumerate() {
            if self.streaming.forms[slot] == Form::Constant {
                edit::replace_uses(&mut kernel, result, init[slot], &[]);
            }
        }
        edit::finished(kernel)
    }

    /// Puts a loop over `count` of the `all` stored parts in place of the loop: those from `first` on, from nothing seen; or all,
    /// from the initial values of the text. It carries what is needed.
    fn merge_stored(&self, kernel: &mut Kernel, between: &[Between], count: u32, all: u32, first: Option<ValueId>) {
        let tensors = Self::declare(kernel, between, Direction::In);
        let Op::For { axis, init, .. } = kernel.ops[self.loop_op].op.clone() else { unreachable!("a loop") };
        let init = if first.is_some() { self.nothing(kernel, init) } else { init };
        // The loop over parts takes the place of the loop, and its axis that of the loop's.
        kernel.axes[axis] = Axis { name: "part".into(), extent: SizeExpr::constant(count.into()), kind: AxisKind::Each };
        let stored: Vec<(usize, ParamId)> = between.iter().zip(tensors).map(|(t, tensor)| (t.slot, tensor)).collect();
        let (merged, body) = self.merging(kernel.clone(), first, |slot, index| {
            let tensor = stored.iter().find(|(s, _)| *s == slot).expect("what is needed is stored").1;
            let place = self.place(slot, Some((index, all))).expect("checked before");
            Op::Load { tensor, at: place.into_iter().map(|(at, _)| at).collect() }
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
        let place = Place { block: self.body, index: self.kernel.blocks[self.body].ops.len() };
        let value = edit::insert(&mut self.kernel, place, op, self.span);
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
        let id = self.kernel.ops.push(OpData { op: Op::Yield(next), results: Vec::new(), span: self.span });
        self.kernel.blocks[self.body].ops.push(id);
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
    let name = Some("part".to_owned());
    let index = kernel.values.push(ValueData { ty: Type::Index, def: ValueDef::Result(program, 0), name });
    kernel.ops[program].results.insert(0, index);
    for (number, &v) in kernel.ops[program].results.clone().iter().enumerate() {
        kernel.values[v].def = ValueDef::Result(program, number as u32);
    }
    index
}

fn insert_before(kernel: &mut Kernel, op: OpId, new: Op, span: Span) -> ValueId {
    let place = edit::places(kernel)[&op];
    edit::insert(kernel, place, new, span)
}
