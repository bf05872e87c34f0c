//! Loops whose masks read what is loaded for single positions: which tiles they hide is known once
//! all elements of a tile were looked at, which a launch ahead may do.

use std::collections::{BTreeMap, BTreeSet};

use super::predicate::defined_in;
use super::unchanged::{Unchanged, unchanged};
use super::visible::program_values;
use crate::ir::{At, AxisId, AxisKind, BinaryOp, Direction, Elem, Kernel, Op, OpId, ParamId, ProgramDim, SizeExpr, ValueId};

/// The masks of a loop, and those that hide tiles.
struct Hiding {
    /// All masks of the body, in order, with those of loops inside it.
    masks: Vec<OpId>,
    /// A tile of which all masks of one of these groups keep nothing may be skipped, the first tile
    /// as well as the others.
    groups: Vec<Vec<OpId>>,
}

/// Which masks of a loop hide tiles.
///
/// # Panics
/// If `loop_op` is not a `for`.
fn hiding(kernel: &Kernel, loop_op: OpId) -> Hiding {
    let Op::For { body, .. } = &kernel.ops[loop_op].op else { panic!("a loop is analysed") };
    let inner = defined_in(kernel, *body);
    let of_body = |op: &OpId| kernel.ops[*op].results.iter().all(|r| inner.contains(r));
    let is_mask = |op: &OpId| matches!(kernel.ops[*op].op, Op::Mask { .. });
    let masks: Vec<OpId> = kernel.walk().into_iter().map(|(_, op)| op).filter(is_mask).filter(of_body).collect();
    let hides = |masks: &[OpId]| {
        let proof = unchanged(kernel, loop_op, &masks.iter().copied().collect());
        !masks.is_empty() && matches!(proof, Unchanged::Always | Unchanged::Unseen)
    };
    let mut groups: Vec<Vec<OpId>> = masks.iter().map(|&mask| vec![mask]).filter(|group| hides(group)).collect();
    if groups.is_empty() && hides(&masks) {
        groups.push(masks.clone());
    }
    Hiding { masks, groups }
}

/// A loop whose tiles can be listed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The axis of the loop.
    pub axis: AxisId,
    /// The coordinate of the loop.
    pub coordinate: ValueId,
    /// What its masks keep. A tile may be skipped where all masks of one group keep nothing.
    pub groups: Vec<Vec<ValueId>>,
    /// What all masks keep, those too that hide no tile; `None` where that cannot be computed ahead,
    /// so that every tile counts as cut.
    pub all: Option<Vec<ValueId>>,
    /// The coordinate of the rows that masks look at, and its axis.
    pub rows: Option<(ValueId, AxisId)>,
    /// Rows that look alike, in a run of so many from a multiple of it on; the same of the loop.
    pub alike: (i64, i64),
    /// The dimensions of the grid that masks look at, by number.
    pub dims: Vec<usize>,
}

impl Listed {
    /// How many groups of positions that look alike a tile of these rows and columns has.
    pub fn groups_of_a_tile(&self, rows: i64, columns: i64) -> i64 {
        (rows / self.alike.0) * (columns / self.alike.1)
    }
}

/// What is to list of a loop, if masks that hide tiles read what is loaded for single positions.
///
/// # Errors
/// Why a launch ahead cannot tell what they hide.
///
/// # Panics
/// If `loop_op` is not a `for`.
pub fn listed(
    kernel: &Kernel,
    loop_op: OpId,
    block: &dyn Fn(AxisId) -> i64,
    size: &dyn Fn(&SizeExpr) -> Option<i64>,
) -> Result<Option<Listed>, String> {
    let Op::For { axis, part, body, .. } = kernel.ops[loop_op].op else { panic!("a loop is analysed") };
    let is_outer = kernel.blocks[kernel.body].ops.contains(&loop_op);
    if !is_outer || part.is_some() || kernel.axes[axis].kind != AxisKind::Loop || kernel.grid().is_empty() {
        return Ok(None);
    }
    let coordinate = kernel.blocks[body].params[0];
    let keeps = |masks: &[OpId]| masks.iter().map(|&mask| keep(kernel, mask)).collect::<Vec<_>>();
    let hiding = hiding(kernel, loop_op);
    let mut seen = Seen::new(kernel, size, coordinate);
    let (mut groups, mut refused) = (Vec::new(), None);
    for masks in &hiding.groups {
        let before = seen.clone();
        match keeps(masks).into_iter().try_for_each(|v| seen.look(v)) {
            Ok(()) => groups.push(keeps(masks)),
            Err(why) => {
                seen = before;
                refused = Some(why);
            }
        }
    }
    if !seen.loaded {
        return refused.map_or(Ok(None), Err);
    }
    let whole = Seen::new(kernel, size, coordinate);
    if let Some((coarse, groups, all)) = whole.in_groups(&hiding, &groups, &keeps) {
        return coarse.listed(axis, block, groups, Some(all)).map(Some);
    }
    let before = seen.clone();
    let all = keeps(&hiding.masks);
    let all = match all.iter().try_for_each(|&v| seen.look(v)) {
        Ok(()) => Some(all),
        Err(_) => {
            seen = before;
            None
        }
    };
    seen.listed(axis, block, groups, all).map(Some)
}

fn keep(kernel: &Kernel, mask: OpId) -> ValueId {
    match kernel.ops[mask].op {
        Op::Mask { keep, .. } => keep,
        _ => unreachable!("a mask"),
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.abs() } else { gcd(b, a % b) }
}

/// What predicates look at.
#[derive(Clone)]
struct Seen<'a> {
    kernel: &'a Kernel,
    size: &'a dyn Fn(&SizeExpr) -> Option<i64>,
    /// The coordinate of the loop.
    coordinate: ValueId,
    /// Whether they read what is loaded for single positions of the loop.
    loaded: bool,
    /// Results of `program`.
    program: BTreeSet<ValueId>,
    /// By coordinate, the lengths of the runs in which positions are looked at, each beginning at a
    /// multiple of it: `S` of `pos(j) / S`, 1 of a position by itself.
    steps: BTreeMap<ValueId, Vec<i64>>,
    known: BTreeSet<ValueId>,
}

impl<'a> Seen<'a> {
    fn new(kernel: &'a Kernel, size: &'a dyn Fn(&SizeExpr) -> Option<i64>, coordinate: ValueId) -> Self {
        let (program, known) = (BTreeSet::new(), BTreeSet::new());
        Self { kernel, size, coordinate, loaded: false, program, steps: BTreeMap::new(), known }
    }

    /// What is to list of a loop over `axis` whose predicates were looked at.
    ///
    /// # Errors
    /// Why a launch ahead cannot do it.
    fn listed(
        &self,
        axis: AxisId,
        block: &dyn Fn(AxisId) -> i64,
        groups: Vec<Vec<ValueId>>,
        all: Option<Vec<ValueId>>,
    ) -> Result<Listed, String> {
        let (kernel, coordinate) = (self.kernel, self.coordinate);
        let program = program_values(kernel);
        let dims: Vec<usize> = (0..program.len()).filter(|&dim| self.program.contains(&program[dim])).collect();
        let mut rows = dims.iter().filter_map(|&dim| match kernel.grid()[dim] {
            ProgramDim::Tiles(axis) => Some((program[dim], axis)),
            ProgramDim::Each(_) => None,
        });
        let (first, other) = (rows.next(), rows.next());
        if other.is_some() {
            return Err("masks look at the rows of two axes of the grid".into());
        }
        let alike = |position: Option<ValueId>, block: i64| {
            let steps = position.and_then(|v| self.steps.get(&v)).into_iter().flatten();
            steps.fold(block, |common, &step| gcd(common, step))
        };
        let alike = (first.map_or(1, |(v, rows)| alike(Some(v), block(rows))), alike(Some(coordinate), block(axis)));
        Ok(Listed { axis, coordinate, groups, all, rows: first, alike, dims })
    }

    /// What masks say by groups of positions alone, where they look at single ones too: of
    /// `listed && (whole || pos(i) >= pos(j))`, whose `listed` and `whole` are loaded for blocks, a
    /// tile may be skipped where `listed` keeps nothing, and nothing is masked in it where `listed`
    /// and `whole` keep all. So a launch ahead reads blocks, not positions. Gives what was looked
    /// at, the groups, and what all masks keep at least; `None` where that says too little.
    fn in_groups(
        self,
        hiding: &Hiding,
        groups: &[Vec<ValueId>],
        keeps: &dyn Fn(&[OpId]) -> Vec<ValueId>,
    ) -> Option<(Self, Vec<Vec<ValueId>>, Vec<ValueId>)> {
        let is_grouped = |v: &ValueId| self.is_grouped(*v);
        let all = keeps(&hiding.masks);
        if all.iter().all(is_grouped) {
            return None; // nothing is looked at by itself
        }
        let weaker = |group: &Vec<ValueId>| group.iter().map(|&v| self.implied(v)).collect::<Option<Vec<_>>>();
        let groups: Vec<Vec<ValueId>> = groups.iter().filter_map(weaker).collect();
        let all: Vec<ValueId> = all.into_iter().map(|v| self.implying(v)).collect::<Option<Vec<_>>>()?.concat();
        let mut seen = self;
        groups.iter().flatten().try_for_each(|&v| seen.look(v)).ok()?;
        if groups.is_empty() || !seen.loaded {
            return None;
        }
        all.iter().try_for_each(|&v| seen.look(v)).ok()?;
        Some((seen, groups, all))
    }

    /// Whether a predicate looks at positions in groups alone.
    fn is_grouped(&self, value: ValueId) -> bool {
        let mut seen = Self::new(self.kernel, self.size, self.coordinate);
        seen.look(value).is_ok() && seen.steps.values().flatten().all(|&step| step > 1)
    }

    /// What looks at groups alone and holds wherever a predicate does.
    fn implied(&self, value: ValueId) -> Option<ValueId> {
        match self.kernel.def(value)?.1 {
            _ if self.is_grouped(value) => Some(value),
            Op::Binary(BinaryOp::And, a, b) => self.implied(*a).or_else(|| self.implied(*b)),
            _ => None,
        }
    }

    /// What looks at groups alone, and where all of it holds a predicate does.
    fn implying(&self, value: ValueId) -> Option<Vec<ValueId>> {
        match self.kernel.def(value)?.1 {
            _ if self.is_grouped(value) => Some(vec![value]),
            Op::Binary(BinaryOp::Or, a, b) => self.implying(*a).or_else(|| self.implying(*b)),
            Op::Binary(BinaryOp::And, a, b) => Some([self.implying(*a)?, self.implying(*b)?].concat()),
            _ => None,
        }
    }

    /// Looks at what a value is made of.
    ///
    /// # Errors
    /// Why it cannot be computed ahead.
    fn look(&mut self, value: ValueId) -> Result<(), String> {
        let kernel = self.kernel;
        let name = || kernel.values[value].name.clone().unwrap_or_else(|| value.to_string());
        let Some((_, op)) = kernel.def(value) else {
            return Err(format!("masks look at `{}`, which a loop carries", name()));
        };
        if matches!(op, Op::Program(_)) {
            self.program.insert(value);
            return Ok(());
        }
        if !self.known.insert(value) {
            return Ok(());
        }
        match op {
            Op::Binary(BinaryOp::Div, position, by) if self.grouped(*position, *by).is_some() => {
                let (coordinate, step) = self.grouped(*position, *by).expect("just asked");
                self.position(coordinate, step)
            }
            Op::Pos(coordinate) => self.position(*coordinate, 1),
            Op::Load { tensor, at } => {
                self.is_input(*tensor)?;
                // What is loaded for each position of the loop alone is summarised, which is less work.
                let own = at.contains(&At::Tile(self.coordinate));
                self.loaded |= own && at.iter().filter(|at| matches!(at, At::Tile(_))).count() > 1;
                at.iter().try_for_each(|at| match at {
                    At::Index(v) => self.look(*v),
                    At::Tile(c) => self.position(*c, 1),
                    At::Range { .. } => Err("masks look at whole rows that are loaded".into()),
                })
            }
            Op::Gather { tensor, at } => {
                self.is_input(*tensor)?;
                self.loaded |= at.iter().any(|&v| self.walks(v));
                at.iter().try_for_each(|&v| self.look(v))
            }
            Op::Constant(..) | Op::Scalar(_) | Op::IndexConst(_) | Op::SizeOf(_) => Ok(()),
            Op::Full { .. } | Op::Transpose(_) | Op::FromIndex(_) | Op::ToIndex(_) | Op::Index(..) => self.operands(op),
            op if op.is_elementwise() && !matches!(op, Op::Mask { .. }) => self.operands(op),
            op => Err(format!("masks look at what `{}` makes", op.mnemonic())),
        }
    }

    fn operands(&mut self, op: &Op) -> Result<(), String> {
        op.operands().into_iter().try_for_each(|v| self.look(v))
    }

    fn is_input(&self, tensor: ParamId) -> Result<(), String> {
        let param = &self.kernel.params[tensor];
        match self.kernel.tensor(tensor).direction {
            Direction::In => Ok(()),
            _ => Err(format!("masks look at `{}`, which the kernel writes", param.name)),
        }
    }

    fn position(&mut self, coordinate: ValueId, step: i64) -> Result<(), String> {
        if coordinate != self.coordinate {
            if !program_values(self.kernel).contains(&coordinate) {
                return Err("masks look at positions of another loop".into());
            }
            self.program.insert(coordinate);
        }
        self.steps.entry(coordinate).or_default().push(step);
        Ok(())
    }

    /// The coordinate whose positions are divided by a number that is known, and the number.
    fn grouped(&self, position: ValueId, by: ValueId) -> Option<(ValueId, i64)> {
        let kernel = self.kernel;
        let Some((_, &Op::Pos(coordinate))) = kernel.def(position) else { return None };
        let step = match *kernel.def(by)?.1 {
            Op::Constant(Elem::I32, c) => c as i64,
            Op::FromIndex(v) => match *kernel.def(v)?.1 {
                Op::IndexConst(c) => c,
                Op::SizeOf(size) => (self.size)(&SizeExpr::size(size))?,
                _ => return None,
            },
            _ => return None,
        };
        (step > 0).then_some((coordinate, step))
    }

    /// Whether a value depends on positions of the loop.
    fn walks(&self, value: ValueId) -> bool {
        value == self.coordinate || self.kernel.def(value).is_some_and(|(_, op)| op.operands().into_iter().any(|v| self.walks(v)))
    }
}
