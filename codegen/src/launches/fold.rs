//! Rows of the heads of a group as rows of one tile.
//!
//! With grouped queries several heads read the same keys, and each has tiles of its own, which few rows do not fill:
//! `program(B, H, tiles(M))`, `q[b, h, i]`, `k[b, h * G / H]`. Here a program takes a tile of the rows of all heads of a group:
//! `program(B, G, tiles(F))`, `q[b, g, i]`, `k[b, g]`, where `F = H / G * M` is a size that the text does not have. So the tensors with
//! dimensions `(H, M)` are addressed as if they had `(G, F)`: row `m` of the `r`-th head of a group is row `r * M + m` of the group.
//! They are views, which the strides of a call allow or not ([`FoldedRows`]); the kernel made here means what the one as written means
//! on arguments of which they hold.
//!
//! The text must not tell heads of a group apart but by their place in these tensors. Where it asks for the position of a row in its
//! head, as a causal mask does, that is `pos(i) % M` here.

use std::cmp::Reverse;

use flashtile_dsl::ir::{
    At, AxisId, BinaryOp, Binding, BlockId, Dim, Elem, IndexOp, Kernel, Op, OpId, ParamId, ParamKind, ProgramDim, ReduceOp, Size,
    SizeExpr, SizeId, SizeKind, Span, Type, ValueId,
};

use super::folded::Folded;
use super::staged::{NotStaged, Staged};
use crate::abi::FoldedRows;
use crate::instance::{Facts, Instance};
use crate::rewrite::edit;

impl Facts {
    /// The common case: all float scalars positive, 16-byte alignment, rows that can be folded if
    /// the kernel has any, index arithmetic within 32 bits.
    pub fn best(kernel: &Kernel) -> Self {
        let scalars = kernel.params.values().filter_map(|p| match p.kind {
            ParamKind::Scalar(Elem::F32) => Some(p.name.clone()),
            _ => None,
        });
        Self { positive: scalars.collect(), alignment: 16, foldable: why_not_fold(kernel).is_none(), ..Self::none() }
    }
}

/// How the rows of the heads of a group are addressed as rows of one, if the kernel has such: what
/// [`Facts::foldable`] is about.
pub fn folded_rows(kernel: &Kernel, binding: &Binding) -> Option<FoldedRows> {
    first_fold(kernel).ok().map(|(main, folded)| folded.rows(&main, binding))
}

/// Why rows cannot be folded.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{why}")]
pub struct NotFolded {
    /// The reason.
    pub why: String,
    /// The operation that it is about.
    pub span: Span,
    /// What to write instead.
    pub instead: &'static str,
}

/// Why the rows of no heads can be folded; `None` if they can.
pub fn why_not_fold(kernel: &Kernel) -> Option<NotFolded> {
    first_fold(kernel).err()
}

/// Why the rows of heads that read the same tiles cannot be folded; `None` if they can, or if every head reads tiles of its own.
pub fn why_not_fold_shared(kernel: &Kernel) -> Option<NotFolded> {
    let mut kernel = kernel.clone();
    edit::remove_dead(&mut kernel);
    let candidates = Heads::candidates(&kernel);
    if candidates.iter().any(|heads| heads.fold().is_ok()) {
        return None;
    }
    let of_group = candidates.iter().find(|heads| heads.share_tiles(true));
    let of_all = || candidates.iter().find(|heads| heads.share_tiles(false));
    match of_group {
        Some(heads) => heads.fold().err(),
        // Whether these are heads, and not tokens or sequences, nothing tells but the shapes.
        None => of_all().and_then(|heads| heads.tensors().err()),
    }
}

/// Why the rows of heads that read the same keys cannot be folded, if the kernel has such: what is
/// not known of the arguments.
pub fn why_not_folded(instance: &Instance) -> Option<String> {
    let made = if instance.facts.foldable { None } else { first_fold(&instance.kernel).ok() };
    made.map(|(main, folded)| format!("it is not known that {}", folded.text(&main)))
}

/// Folds the rows of the heads of a group into one tile.
///
/// # Errors
/// What [`why_not_fold`] says.
pub fn fold(kernel: &Kernel) -> Result<Staged, NotStaged> {
    let (main, folded) = first_fold(kernel).map_err(|why| why.to_string())?;
    let mut staged = Staged::new(Vec::new(), main, Vec::new(), Vec::new())?;
    staged.folded = Some(folded);
    Ok(staged)
}

/// The kernel with the rows of the first heads that can be folded.
fn first_fold(kernel: &Kernel) -> Result<(Kernel, Folded), NotFolded> {
    let mut kernel = kernel.clone();
    edit::remove_dead(&mut kernel);
    let mut reasons = Vec::new();
    for heads in Heads::candidates(&kernel) {
        match heads.fold() {
            Ok(folded) => return Ok(folded),
            Err(why) => reasons.push((heads.count_beside(), why)),
        }
    }
    // What most tensors have beside rows are heads, and what few have, such as ids of each
    // sequence, is not.
    Err(reasons.into_iter().min_by_key(|(count, _)| Reverse(*count)).map(|(_, why)| why).unwrap_or_else(|| NotFolded {
        why: "no tensor has tiles of the grid beside another dimension of the grid".into(),
        span: kernel.name_span,
        instead: BESIDE,
    }))
}

const BESIDE: &str = "give it rows of heads, `(H, M, ..)`, and address it by the head with the rows behind, `[h, i, ..]`";
const PER_ROW: &str = "give what differs between heads a row of its own, `(H, M)` in place of `(H)`, and load it by `[h, i]`";
const OF_COLUMNS: &str = "store one number for each group, not for each head; numbers of heads prevent folding";

/// A dimension of the grid, and the tiles of rows that stand beside it in tensors.
struct Heads<'k> {
    kernel: &'k Kernel,
    /// Its place in the grid.
    place: usize,
    /// Its index, a result of `program`.
    head: ValueId,
    /// How many there are.
    extent: SizeExpr,
    /// The coordinate of the rows, another result.
    row: ValueId,
    axis: AxisId,
}

impl<'k> Heads<'k> {
    /// Pairs of grid dimensions that some load or store has side by side.
    fn candidates(kernel: &'k Kernel) -> Vec<Self> {
        let (program, grid) = (&kernel.ops[kernel.blocks[kernel.body].ops[0]].results, kernel.grid());
        let mut found = Vec::new();
        for (place, (dim, &head)) in grid.iter().zip(program).enumerate() {
            let ProgramDim::Each(extent) = dim else { continue };
            for (dim, &row) in grid.iter().zip(program) {
                let ProgramDim::Tiles(axis) = dim else { continue };
                let pair = Self { kernel, place, head, extent: extent.clone(), row, axis: *axis };
                if pair.count_beside() > 0 {
                    found.push(pair);
                }
            }
        }
        found
    }

    /// Loads and stores that have the head with the rows behind.
    fn count_beside(&self) -> usize {
        self.kernel.walk().into_iter().filter(|(_, op)| self.beside(*op).is_some()).count()
    }

    /// The tensor that an op loads or stores, and where the head stands in it with the rows behind.
    fn beside(&self, op: OpId) -> Option<(ParamId, usize)> {
        let (Op::Load { tensor, at } | Op::Store { tensor, at, .. }) = &self.kernel.ops[op].op else { return None };
        let pair = [At::Index(self.head), At::Tile(self.row)];
        at.windows(2).position(|two| *two == pair).map(|dimension| (*tensor, dimension))
    }

    fn name(&self, value: ValueId) -> String {
        self.kernel.values[value].name.clone().unwrap_or_else(|| value.to_string())
    }

    /// Whether matrices that a loop loads, such as keys, are the same for several heads: those of a
    /// group, an index of which is computed of the head, or those of all. What does not depend on
    /// the head at all may be shared by anything: by the tokens of a sequence whose rows are heads,
    /// by sequences that have weights in common. Vectors, such as a mask of keys, may be where keys
    /// are not, and so may a bias of rows and columns.
    fn share_tiles(&self, of_a_group: bool) -> bool {
        let in_loop = |block: BlockId| block != self.kernel.body;
        let of_group = |a: &At| matches!(a, At::Index(v) if *v != self.head && self.is_of_head(*v));
        let of_tiles = |op: OpId| match &self.kernel.ops[op].op {
            Op::Load { at, .. } => {
                let count = |is: fn(&At) -> bool| at.iter().filter(|a| is(a)).count();
                let of_keys = count(|a| matches!(a, At::Tile(_))) == 1 && count(|a| matches!(a, At::Range { .. })) == 1;
                of_keys && !at.contains(&At::Index(self.head)) && at.iter().any(of_group) == of_a_group
            }
            _ => false,
        };
        self.kernel.walk().into_iter().any(|(block, op)| in_loop(block) && of_tiles(op))
    }

    /// Whether an index is computed of the head.
    fn is_of_head(&self, index: ValueId) -> bool {
        index == self.head
            || match self.kernel.def(index) {
                Some((_, Op::Index(_, a, b))) => self.is_of_head(*a) || self.is_of_head(*b),
                _ => false,
            }
    }

    /// A reason against folding, about this op.
    fn refuse(&self, op: OpId, why: String, instead: &'static str) -> NotFolded {
        NotFolded { why, span: self.kernel.ops[op].span, instead }
    }

    fn fold(&self) -> Result<(Kernel, Folded), NotFolded> {
        let tensors = self.tensors()?;
        let counted = self.rows_of_positions()?;
        self.no_sum_over_rows()?;
        let (groups, indices) = self.groups()?;
        let mut kernel = self.kernel.clone();
        let size = edit::free_name(&kernel, "folded_rows", std::iter::empty());
        let folded = SizeExpr::size(kernel.sizes.push(Size { name: size.clone(), kind: SizeKind::Runtime }));
        for &(tensor, dimension) in &tensors {
            let ParamKind::Tensor(decl) = &mut kernel.params[tensor].kind else { unreachable!("it is loaded or stored") };
            decl.shape[dimension] = groups.clone();
            decl.shape[dimension + 1] = folded.clone();
        }
        if let Some(rows) = counted {
            self.wrap_positions(&mut kernel, rows);
        }
        let rows = std::mem::replace(&mut kernel.axes[self.axis].extent, folded);
        let program = kernel.blocks[kernel.body].ops[0];
        let Op::Program(dims) = &mut kernel.ops[program].op else { unreachable!("verified: `program` is first") };
        dims[self.place] = ProgramDim::Each(groups.clone());
        // What was the number of a head is that of a group.
        for &index in &indices {
            edit::replace_uses(&mut kernel, index, self.head, &[]);
        }
        let name = indices.iter().find_map(|&index| self.kernel.values[index].name.clone());
        kernel.values[self.head].name = Some(name.unwrap_or_else(|| format!("{}_group", self.name(self.head))));
        let named = |&(tensor, dimension): &(ParamId, usize)| (self.kernel.params[tensor].name.clone(), dimension as u32);
        let (heads, tensors) = (self.extent.clone(), tensors.iter().map(named).collect());
        Ok((edit::finished(kernel), Folded { size, heads, groups, rows, axis: self.axis, tensors }))
    }

    /// The tensors with heads and rows side by side, in the order of the parameters.
    fn tensors(&self) -> Result<Vec<(ParamId, usize)>, NotFolded> {
        let kernel = self.kernel;
        let ops: Vec<OpId> = kernel.walk().into_iter().map(|(_, op)| op).collect();
        let mut found: Vec<(ParamId, usize)> = ops.iter().filter_map(|&op| self.beside(op)).collect();
        found.sort_unstable();
        found.dedup();
        if let Some(two) = found.windows(2).find(|two| two[0].0 == two[1].0) {
            let param = &kernel.params[two[0].0];
            let why = format!("`{}` has the rows of a head in two places", param.name);
            return Err(NotFolded { why, span: param.span, instead: BESIDE });
        }
        for &(tensor, dimension) in &found {
            let decl = kernel.tensor(tensor);
            if decl.shape[dimension] != self.extent {
                let (param, heads) = (&kernel.params[tensor], kernel.size_text(&self.extent));
                let why = format!("`{}` has {} in the place of {heads}", param.name, kernel.size_text(&decl.shape[dimension]));
                let instead = match param.kind.is_written() {
                    true => "give its dimension the size of the grid's",
                    false => "give its dimension the size of the grid's, or write `0` in its place",
                };
                return Err(NotFolded { why, span: param.span, instead });
            }
        }
        for &op in &ops {
            let (Op::Load { tensor, at } | Op::Store { tensor, at, .. }) = &kernel.ops[op].op else { continue };
            let (head, row) = (self.name(self.head), self.name(self.row));
            let name = &kernel.params[*tensor].name;
            let pairs = usize::from(self.beside(op).is_some());
            let uses = |entry: At| at.iter().filter(|a| **a == entry).count();
            let (of_head, of_row) = (uses(At::Index(self.head)), uses(At::Tile(self.row)));
            if pairs == 0 && (of_row > 0 || found.iter().any(|(t, _)| t == tensor)) {
                return Err(self.refuse(op, format!("`{name}` is not addressed by `{head}` with `{row}` behind it"), BESIDE));
            }
            if pairs == 1 && (of_head > 1 || of_row > 1) {
                let why = format!("`{name}` is addressed by `{head}` or `{row}` in another dimension too");
                return Err(self.refuse(op, why, BESIDE));
            }
        }
        Ok(found)
    }

    /// The size that rows of a head are counted by, if the text asks for the position of a row.
    fn rows_of_positions(&self) -> Result<Option<SizeId>, NotFolded> {
        let row = self.name(self.row);
        let mut asked = false;
        for user in edit::users(self.kernel, self.row) {
            match &self.kernel.ops[user].op {
                Op::Load { .. } | Op::Store { .. } => {}
                Op::Pos(_) => asked = true,
                other => {
                    let why = format!("`{}` takes `{row}`: it tells where in its head a row is", other.mnemonic());
                    return Err(self.refuse(user, why, "use positions, `pos(i)`, of rows only"));
                }
            }
        }
        if !asked {
            return Ok(None);
        }
        let extent = &self.kernel.axes[self.axis].extent;
        let size = self.kernel.sizes.keys().find(|&size| *extent == SizeExpr::size(size));
        let why = || format!("`pos({row})` is a position among {} rows, which is not a size", self.kernel.size_text(extent));
        let refusal = || NotFolded { why: why(), span: self.kernel.name_span, instead: "walk the tiles of a size, `tiles(M)`" };
        size.map(Some).ok_or_else(refusal)
    }

    /// Makes positions of rows those in their heads.
    fn wrap_positions(&self, kernel: &mut Kernel, rows: SizeId) {
        let positions = edit::users(kernel, self.row).into_iter().filter(|&user| matches!(kernel.ops[user].op, Op::Pos(_)));
        for op in positions.collect::<Vec<_>>() {
            let (position, span) = (kernel.ops[op].results[0], kernel.ops[op].span);
            let mut place = edit::after_definition(kernel, position);
            let mut insert = |kernel: &mut Kernel, op| {
                let value = edit::insert(kernel, place, op, span);
                place.index += 1;
                value
            };
            let count = insert(kernel, Op::SizeOf(rows));
            let count = insert(kernel, Op::FromIndex(count));
            let own = insert(kernel, Op::Binary(BinaryOp::Rem, position, count));
            let Some((defined, _)) = kernel.def(own) else { unreachable!("it was just inserted") };
            edit::replace_uses(kernel, position, own, &[defined]);
        }
    }

    /// Rows of different heads must not meet in a sum or a maximum.
    fn no_sum_over_rows(&self) -> Result<(), NotFolded> {
        let rows = Dim::Axis(self.axis);
        for (_, id) in self.kernel.walk() {
            let summed = match self.kernel.ops[id].op {
                Op::Reduce(ReduceOp::Max | ReduceOp::Sum, x) => Some(x),
                Op::Dot { a, .. } => Some(a),
                _ => None,
            };
            if summed.is_some_and(|x| self.kernel.tile(x).dims.last() == Some(&rows)) {
                let what = self.kernel.ops[id].op.mnemonic();
                let why = format!("`{what}` is over the rows of `{}`, which would be of several heads", self.name(self.row));
                return Err(self.refuse(id, why, "sum over rows in a kernel of its own"));
            }
        }
        Ok(())
    }

    /// The number of groups, and the values that are the number of a head's group. Where nothing but the rows depends on the head,
    /// all heads are one group.
    fn groups(&self) -> Result<(SizeExpr, Vec<ValueId>), NotFolded> {
        let kernel = self.kernel;
        let mut found: Option<SizeExpr> = None;
        let mut indices = Vec::new();
        let mut todo = edit::users(kernel, self.head);
        while let Some(user) = todo.pop() {
            if self.beside(user).is_some() {
                continue;
            }
            let result = kernel.ops[user].results.first().copied();
            if let Some((groups, index)) = result.and_then(|v| Some((self.groups_of(v)?, v))) {
                if found.as_ref().is_some_and(|other| *other != groups) {
                    let why = format!("`{}` is in groups of several sizes", self.name(self.head));
                    return Err(self.refuse(user, why, "take one number of groups for all tensors, `h * G / H`"));
                }
                found = Some(groups);
                indices.push(index);
                continue;
            }
            match kernel.ops[user].op {
                // The product in `h * G / H`, whose users are quotients.
                Op::Index(IndexOp::Mul, ..) => {
                    let users = edit::users(kernel, kernel.ops[user].results[0]);
                    let quotient = |op: &OpId| kernel.ops[*op].results.first().is_some_and(|&v| self.groups_of(v).is_some());
                    if !users.iter().all(quotient) {
                        return Err(self.not_a_group(user));
                    }
                    todo.extend(users);
                }
                _ => return Err(self.not_a_group(user)),
            }
        }
        indices.sort_unstable();
        indices.dedup();
        Ok((found.unwrap_or_else(|| SizeExpr::constant(1)), indices))
    }

    fn not_a_group(&self, user: OpId) -> NotFolded {
        let (head, heads) = (self.name(self.head), self.kernel.size_text(&self.extent));
        let what = match &self.kernel.ops[user].op {
            Op::Load { tensor, .. } | Op::Gather { tensor, .. } | Op::Store { tensor, .. } | Op::Scatter { tensor, .. } => {
                format!("`{}`", self.kernel.params[*tensor].name)
            }
            // The number of the head in arithmetic.
            Op::FromIndex(_) | Op::Index(..) => "what is computed here".to_owned(),
            op => format!("`{}`", op.mnemonic()),
        };
        let why =
            format!("{what} tells heads apart: it takes `{head}`, and not the number of a group, `{head} * GROUPS / {heads}`");
        // What a loop loads for its own positions has no rows of heads.
        let is_of_loop = |at: &At| matches!(at, At::Tile(v) if *v != self.row);
        let along_loop = |v: &ValueId| match self.kernel.ty(*v) {
            Type::Tile(tile) => !tile.dims.is_empty() && !tile.dims.contains(&Dim::Axis(self.axis)),
            _ => false,
        };
        let of_columns = match &self.kernel.ops[user].op {
            Op::Load { at, .. } => at.iter().any(is_of_loop),
            Op::Gather { at, .. } => at.iter().any(along_loop),
            _ => false,
        };
        self.refuse(user, why, if of_columns { OF_COLUMNS } else { PER_ROW })
    }

    /// The number of groups, if the value is the number of the head's group: `h * G / H`, `h / (H / G)` or `h / R`, of as many heads
    /// each as there are.
    fn groups_of(&self, value: ValueId) -> Option<SizeExpr> {
        let kernel = self.kernel;
        let index = |v: ValueId| match kernel.def(v) {
            Some((_, Op::Index(op, a, b))) => Some((*op, *a, *b)),
            _ => None,
        };
        let Some((IndexOp::Div, left, right)) = index(value) else { return None };
        if let Some((IndexOp::Mul, a, b)) = index(left) {
            let factor = if a == self.head { b } else { a };
            let of_head = (a == self.head) != (b == self.head);
            return self.size(factor).filter(|_| of_head && self.size(right).as_ref() == Some(&self.extent));
        }
        if left != self.head {
            return None;
        }
        if let Some((IndexOp::Div, all, groups)) = index(right) {
            return self.size(groups).filter(|_| self.size(all).as_ref() == Some(&self.extent));
        }
        let share = self.size(right)?.as_constant().filter(|&share| share > 0)?;
        self.extent.div(share)
    }

    /// The size that an index is.
    fn size(&self, value: ValueId) -> Option<SizeExpr> {
        match self.kernel.def(value)?.1 {
            Op::SizeOf(size) => Some(SizeExpr::size(*size)),
            Op::IndexConst(n) => Some(SizeExpr::constant(*n)),
            _ => None,
        }
    }
}
