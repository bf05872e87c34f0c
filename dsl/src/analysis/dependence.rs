//! Dependences of a kernel: statements, edges, components, parallel loops, legal interchanges, and what may run ahead.
//!
//! A statement is what the kernel text binds, assigns, loads or stores; the unnamed ops that feed it belong to it. Loops are
//! the dimensions of the grid and the `for`s, outermost first. SSA form gives the flow of values (RAW); what a `for` carries
//! is a variable, read through a block parameter and written by the statement that the loop yields, so that a flow from one
//! iteration to the next has distance 1, and the variable's place is overwritten (WAR, WAW). Inputs are never written, and
//! outputs never read; a store that a loop repeats at one place would be a WAW. Kernels of the text are analysed: tensors that are both
//! read and written come of rewrites alone.
//!
//! Components are strongly connected by flow alone: WAR and WAW vanish when a variable is renamed, which SSA form is. The
//! statements of the published analysis of the forward pass are in [`super::nest`].

use std::collections::{BTreeMap, BTreeSet};

use super::expression::Expressions;
use super::nest::{Distance, Kind, carrier, exchanged, survives};
use super::ranges::{Range, ranges};
use crate::ir::{At, BlockId, Kernel, Op, OpId, ValueDef, ValueId};

/// A loop of the nest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loop {
    /// Name of its coordinate or index.
    pub name: String,
    /// What runs it.
    pub kind: LoopKind,
    /// How many of the loops enclose it, with their indices.
    pub outer: Vec<usize>,
}

/// What runs a loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LoopKind {
    /// The grid; the value is the coordinate or index of the program.
    Grid(ValueId),
    /// A `for`.
    For(OpId),
}

/// A statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Statement {
    /// The variable that it defines or assigns, or the tensor that it loads from or stores to.
    pub name: String,
    /// Its text.
    pub text: String,
    /// Enclosing loops, outermost first, as indices into [`Dependences::loops`].
    pub loops: Vec<usize>,
    /// Its ops, in order. Empty for a statement that only passes a value on (`m = m_new`).
    pub ops: Vec<OpId>,
    /// The carried variable that it writes: the loop and the place among what that carries.
    pub assigns: Option<(OpId, usize)>,
}

/// A dependence between statements, by their indices (`S1` has index 0).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Edge {
    /// Statement that comes first.
    pub source: usize,
    /// Statement that comes later.
    pub target: usize,
    /// Kind.
    pub kind: Kind,
    /// The variable or tensor.
    pub what: String,
    /// Distance along each common loop, outermost first.
    pub vector: Vec<Distance>,
    /// The common loops.
    pub loops: Vec<usize>,
}

impl Edge {
    /// The loop that carries it, as an index into [`Dependences::loops`].
    pub fn carried_by(&self) -> Option<usize> {
        carrier(&self.vector).map(|k| self.loops[k])
    }
}

/// Statements that depend on each other in a circle.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Component {
    /// The statements.
    pub statements: Vec<usize>,
    /// The loops that carry the circle.
    pub carried_by: Vec<usize>,
}

/// The dependences of a kernel.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dependences {
    /// Loops: the grid's, then the `for`s in text order.
    pub loops: Vec<Loop>,
    /// Statements in text order.
    pub statements: Vec<Statement>,
    /// Edges, ordered.
    pub edges: Vec<Edge>,
    /// Components with a circle, in order.
    pub components: Vec<Component>,
    /// Compile-time ranges of tiles, and the statements that reduce over each.
    pub ranges: Vec<(Range, Vec<usize>)>,
}

impl Dependences {
    /// Analyses a kernel.
    pub fn of(kernel: &Kernel) -> Self {
        let mut found = Finder::new(kernel);
        found.statements(kernel.body, &mut (0..found.loops.len()).collect());
        let edges = found.edges();
        let components = components(found.statements.len(), &edges);
        let statements_of = |range: &Range| range.reduced_by.iter().filter_map(|op| found.of_op.get(op).copied()).collect();
        let ranges = ranges(kernel)
            .into_iter()
            .map(|range| {
                let by = statements_of(&range);
                (range, by)
            })
            .collect();
        Self { loops: found.loops, statements: found.statements, edges, components, ranges }
    }

    /// Whether no dependence is carried by a loop: its iterations may run at the same time.
    pub fn is_parallel(&self, index: usize) -> bool {
        self.edges.iter().all(|e| e.carried_by() != Some(index))
    }

    /// The edges that forbid to exchange loops `a` and `b`, which are in one nest. Empty: legal. Statements that only one of
    /// them encloses have to be distributed first, which the caller sees to.
    pub fn forbids_exchange(&self, a: usize, b: usize) -> Vec<&Edge> {
        let against = |e: &&Edge| {
            let (Some(x), Some(y)) = (e.loops.iter().position(|&l| l == a), e.loops.iter().position(|&l| l == b)) else {
                return false;
            };
            !survives(&e.vector, &exchanged(e.loops.len(), x, y))
        };
        self.edges.iter().filter(against).collect()
    }

    /// Whether loop `a` encloses loop `b` or the other way round.
    pub fn are_nested(&self, a: usize, b: usize) -> bool {
        self.loops[a].outer.contains(&b) || self.loops[b].outer.contains(&a)
    }

    /// The index of the loop of a `for`.
    pub fn loop_of(&self, op: OpId) -> Option<usize> {
        self.loops.iter().position(|l| l.kind == LoopKind::For(op))
    }
}

/// For each op of a loop body, inner loops and their bodies included, the carried values (by their place) that it depends
/// on, directly or through other ops of the same iteration.
///
/// # Panics
/// If `loop_op` is not a `for`.
pub fn carried_dependences(kernel: &Kernel, loop_op: OpId) -> BTreeMap<OpId, BTreeSet<usize>> {
    let Op::For { body, .. } = kernel.ops[loop_op].op else { panic!("a loop is asked about") };
    let mut of_value: BTreeMap<ValueId, BTreeSet<usize>> = BTreeMap::new();
    for (k, &v) in kernel.blocks[body].params[1..].iter().enumerate() {
        of_value.insert(v, BTreeSet::from([k]));
    }
    let mut of_op = BTreeMap::new();
    visit_block(kernel, body, &mut of_value, &mut of_op);
    of_op
}

fn visit_block(
    kernel: &Kernel,
    block: BlockId,
    of_value: &mut BTreeMap<ValueId, BTreeSet<usize>>,
    of_op: &mut BTreeMap<OpId, BTreeSet<usize>>,
) {
    for &op in &kernel.blocks[block].ops {
        let data = &kernel.ops[op];
        let mut set = BTreeSet::new();
        for v in data.op.operands() {
            set.extend(of_value.get(&v).into_iter().flatten());
        }
        if let Op::For { body, .. } = data.op {
            // What the inner loop carries depends on all that it reads: one pass finds it, a second spreads it.
            for _ in 0..2 {
                for &p in &kernel.blocks[body].params[1..] {
                    of_value.insert(p, set.clone());
                }
                visit_block(kernel, body, of_value, of_op);
                set.extend(kernel.blocks[body].ops.iter().flat_map(|o| of_op[o].iter().copied()).collect::<Vec<_>>());
            }
        }
        for &r in &data.results {
            of_value.insert(r, set.clone());
        }
        of_op.insert(op, set);
    }
}

/// The ops directly in a loop body that depend on no carried value: they may run an iteration (or more) ahead.
///
/// # Panics
/// If `loop_op` is not a `for`.
pub fn may_run_ahead(kernel: &Kernel, loop_op: OpId) -> Vec<OpId> {
    let Op::For { body, .. } = kernel.ops[loop_op].op else { panic!("a loop is asked about") };
    let of_op = carried_dependences(kernel, loop_op);
    let free =
        |op: &OpId| of_op[op].is_empty() && !matches!(kernel.ops[*op].op, Op::Store { .. } | Op::Scatter { .. } | Op::Yield(_));
    kernel.blocks[body].ops.iter().copied().filter(free).collect()
}

/// Collects statements and edges.
struct Finder<'a> {
    kernel: &'a Kernel,
    expressions: Expressions<'a>,
    loops: Vec<Loop>,
    statements: Vec<Statement>,
    /// The statement of each op.
    of_op: BTreeMap<OpId, usize>,
    /// The statement that writes a carried variable.
    assignments: BTreeMap<(OpId, usize), usize>,
    /// The `for` of each loop body.
    for_of: BTreeMap<BlockId, OpId>,
}

impl<'a> Finder<'a> {
    fn new(kernel: &'a Kernel) -> Self {
        let name = |v: ValueId| kernel.values[v].name.clone().unwrap_or_else(|| v.to_string());
        let program = kernel.blocks[kernel.body].ops.first().map(|&op| &kernel.ops[op]);
        let mut loops = Vec::new();
        if let Some(data) = program.filter(|data| matches!(data.op, Op::Program(_))) {
            for (k, &v) in data.results.iter().enumerate() {
                loops.push(Loop { name: name(v), kind: LoopKind::Grid(v), outer: (0..k).collect() });
            }
        }
        Self {
            kernel,
            expressions: Expressions::new(kernel),
            loops,
            statements: Vec::new(),
            of_op: BTreeMap::new(),
            assignments: BTreeMap::new(),
            for_of: BTreeMap::new(),
        }
    }

    /// Statements of a block; `around` are the loops around it.
    fn statements(&mut self, block: BlockId, around: &mut Vec<usize>) {
        let kernel = self.kernel;
        let mut pending: Vec<OpId> = Vec::new();
        for &op in &kernel.blocks[block].ops {
            match &kernel.ops[op].op {
                Op::Program(_) => {}
                Op::For { body, .. } => {
                    let coordinate = kernel.blocks[*body].params[0];
                    let name = kernel.values[coordinate].name.clone().unwrap_or_else(|| coordinate.to_string());
                    self.for_of.insert(*body, op);
                    self.loops.push(Loop { name, kind: LoopKind::For(op), outer: around.clone() });
                    around.push(self.loops.len() - 1);
                    self.statements(*body, around);
                    around.pop();
                }
                Op::Yield(next) => self.assign(block, next, around),
                _ if self.expressions.is_statement(op) => {
                    let mut ops = self.own(op, &mut pending);
                    ops.push(op);
                    self.push(op, ops, around);
                }
                _ => pending.push(op),
            }
        }
    }

    /// Takes the pending ops that `op` is computed from.
    fn own(&self, op: OpId, pending: &mut Vec<OpId>) -> Vec<OpId> {
        let mut wanted: BTreeSet<OpId> = BTreeSet::new();
        let mut work = vec![op];
        while let Some(op) = work.pop() {
            for v in self.kernel.ops[op].op.operands() {
                let def = self.kernel.def(v).map(|(def, _)| def);
                if let Some(def) = def.filter(|&def| pending.contains(&def) && wanted.insert(def)) {
                    work.push(def);
                }
            }
        }
        pending.retain(|o| !wanted.contains(o));
        wanted.into_iter().collect()
    }

    fn push(&mut self, op: OpId, ops: Vec<OpId>, around: &[usize]) {
        let (name, text) = self.expressions.statement(op);
        for &o in &ops {
            self.of_op.insert(o, self.statements.len());
        }
        self.statements.push(Statement { name, text, loops: around.to_vec(), ops, assigns: None });
    }

    /// The statements that write what a loop carries: those that define the yielded values under the variable's name, and a
    /// statement of its own for each other.
    fn assign(&mut self, block: BlockId, next: &[ValueId], around: &[usize]) {
        let loop_op = self.for_of[&block];
        for (k, &v) in next.iter().enumerate() {
            let variable = self.kernel.blocks[block].params[1 + k];
            if v == variable {
                continue;
            }
            let name = self.kernel.values[variable].name.clone().unwrap_or_else(|| variable.to_string());
            let own = match self.kernel.values[v].def {
                ValueDef::Result(op, _) if self.kernel.blocks[block].ops.contains(&op) => self.of_op.get(&op).copied(),
                _ => None,
            };
            let place = match own {
                Some(s) if self.statements[s].name == name && self.statements[s].assigns.is_none() => s,
                _ => {
                    let text = format!("{name} = {}", self.expressions.operand(v));
                    self.statements.push(Statement { name, text, loops: around.to_vec(), ops: vec![], assigns: None });
                    self.statements.len() - 1
                }
            };
            self.statements[place].assigns = Some((loop_op, k));
            self.assignments.insert((loop_op, k), place);
        }
    }

    fn edges(&self) -> Vec<Edge> {
        let mut out = BTreeSet::new();
        for (s, statement) in self.statements.iter().enumerate() {
            let mut reads: Vec<ValueId> = statement.ops.iter().flat_map(|&op| self.kernel.ops[op].op.operands()).collect();
            if let (Some((loop_op, k)), true) = (statement.assigns, statement.ops.is_empty()) {
                reads.push(self.yielded(loop_op)[k]);
            }
            for v in reads {
                self.flow(s, v, None, &mut out);
            }
            if let Some((loop_op, _)) = statement.assigns {
                // The next iteration overwrites what this one wrote.
                out.insert(self.edge(s, s, Kind::Waw, statement.name.clone(), Some(loop_op)));
            }
            for &op in &statement.ops {
                if let Op::Store { at, .. } = &self.kernel.ops[op].op {
                    out.extend(self.repeated_store(s, at));
                }
            }
        }
        out.into_iter().collect()
    }

    fn yielded(&self, loop_op: OpId) -> &[ValueId] {
        let Op::For { body, .. } = self.kernel.ops[loop_op].op else { unreachable!("only loops carry") };
        match self.kernel.blocks[body].ops.last().map(|&op| &self.kernel.ops[op].op) {
            Some(Op::Yield(next)) => next,
            _ => panic!("verified: a loop body ends in a yield"),
        }
    }

    /// Edges for statement `s` reading `v`, within an iteration or, if `through` is a loop, from its previous iteration.
    fn flow(&self, s: usize, v: ValueId, through: Option<OpId>, out: &mut BTreeSet<Edge>) {
        match self.kernel.values[v].def {
            ValueDef::Result(op, k) => match &self.kernel.ops[op].op {
                // The last value of a carried variable, or its initial one.
                Op::For { init, .. } => {
                    self.flow(s, init[k as usize], through, out);
                    if let Some(&w) = self.assignments.get(&(op, k as usize)) {
                        out.insert(self.edge(w, s, Kind::Raw, self.statements[w].name.clone(), None));
                    }
                }
                // An unnamed op that two statements share belongs to both.
                unnamed if !self.expressions.is_statement(op) => {
                    if self.of_op.get(&op) != Some(&s) {
                        unnamed.operands().into_iter().for_each(|v| self.flow(s, v, through, out));
                    }
                }
                _ => {
                    if let Some(&w) = self.of_op.get(&op).filter(|&&w| w != s || through.is_some()) {
                        out.insert(self.edge(w, s, Kind::Raw, self.statements[w].name.clone(), through));
                    }
                }
            },
            ValueDef::BlockParam(_, 0) => {}
            ValueDef::BlockParam(block, k) => {
                let loop_op = self.for_of[&block];
                let Op::For { init, .. } = &self.kernel.ops[loop_op].op else { unreachable!("only loops carry") };
                let k = k as usize - 1;
                self.flow(s, init[k], None, out);
                if let Some(&w) = self.assignments.get(&(loop_op, k)) {
                    let name = self.statements[w].name.clone();
                    out.insert(self.edge(w, s, Kind::Raw, name.clone(), Some(loop_op)));
                    if w != s {
                        out.insert(self.edge(s, w, Kind::War, name, None));
                    }
                }
            }
        }
    }

    /// A store in a loop whose coordinate is not in its address writes one place again and again.
    fn repeated_store(&self, s: usize, at: &[At]) -> Vec<Edge> {
        let mut seen: BTreeSet<ValueId> = BTreeSet::new();
        let mut work: Vec<ValueId> =
            at.iter().filter_map(|a| if let At::Index(v) | At::Tile(v) = a { Some(*v) } else { None }).collect();
        while let Some(v) = work.pop() {
            if seen.insert(v) {
                work.extend(self.kernel.def(v).into_iter().flat_map(|(_, op)| op.operands()));
            }
        }
        let fixed = |l: &&usize| match self.loops[**l].kind {
            LoopKind::Grid(v) => !seen.contains(&v),
            LoopKind::For(op) => match self.kernel.ops[op].op {
                Op::For { body, .. } => !seen.contains(&self.kernel.blocks[body].params[0]),
                _ => false,
            },
        };
        let statement = &self.statements[s];
        let edge = |l: &usize| {
            let vector = statement.loops.iter().map(|k| if k == l { Distance::Positive } else { Distance::Exact(0) }).collect();
            let (what, loops) = (statement.name.clone(), statement.loops.clone());
            Edge { source: s, target: s, kind: Kind::Waw, what, vector, loops }
        };
        statement.loops.iter().filter(fixed).map(edge).collect()
    }

    fn edge(&self, source: usize, target: usize, kind: Kind, what: String, through: Option<OpId>) -> Edge {
        let (a, b) = (&self.statements[source].loops, &self.statements[target].loops);
        let loops: Vec<usize> = a.iter().zip(b).take_while(|(x, y)| x == y).map(|(x, _)| *x).collect();
        let carried = |l: &usize| through.is_some_and(|op| self.loops[*l].kind == LoopKind::For(op));
        let vector = loops.iter().map(|l| Distance::Exact(i64::from(carried(l)))).collect();
        Edge { source, target, kind, what, vector, loops }
    }
}

/// Strongly connected components of the flow, those without a circle left out, in order of their first statement.
fn components(count: usize, edges: &[Edge]) -> Vec<Component> {
    let flow: Vec<&Edge> = edges.iter().filter(|e| e.kind == Kind::Raw).collect();
    let reach = |from: usize| {
        let mut seen = BTreeSet::new();
        let mut work = vec![from];
        while let Some(s) = work.pop() {
            for e in flow.iter().filter(|e| e.source == s) {
                if seen.insert(e.target) {
                    work.push(e.target);
                }
            }
        }
        seen
    };
    let reaches: Vec<BTreeSet<usize>> = (0..count).map(reach).collect();
    let mut placed: BTreeSet<usize> = BTreeSet::new();
    let mut out = Vec::new();
    for s in 0..count {
        if placed.contains(&s) || !reaches[s].contains(&s) {
            continue;
        }
        let statements: Vec<usize> = (s..count).filter(|&t| reaches[s].contains(&t) && reaches[t].contains(&s)).collect();
        placed.extend(&statements);
        let inside = |e: &&&Edge| statements.contains(&e.source) && statements.contains(&e.target);
        let carried: BTreeSet<usize> = flow.iter().filter(inside).filter_map(|e| e.carried_by()).collect();
        out.push(Component { statements, carried_by: carried.into_iter().collect() });
    }
    out
}
