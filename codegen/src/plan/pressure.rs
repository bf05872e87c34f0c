//! Register pressure of a plan: how many registers its variables need at the widest moment.
//!
//! A variable is live from its first write to its last read; of one that is read in a loop it was
//! written before, what the loop writes last lives to the loop's end. An operand read for the last
//! time where another variable is written gives its registers to it. The compiler decides in the
//! end, and also needs registers for addresses; see [`crate::Resources`].

use std::collections::HashSet;

use super::{
    Alike, Computed, Event, Expr, Function, Guard, Input, InputSource, OperandA, Parts, Plan, Shape, Slot, Stmt, StmtOp, Storage,
    VarId, any, each,
};

/// Registers of all variables live at the widest moment.
pub fn peak(plan: &Plan) -> u32 {
    let transient = transients(plan);
    let ranges = vec![Vec::new(); plan.variables.len()];
    let mut live = Liveness { plan, at: 0, ranges, transient, borders: Vec::new(), choice: false, computing: Vec::new() };
    for role in &plan.roles {
        live.block(&role.body);
    }
    let (pairs, alike) = (in_pairs(plan), Alike::of(plan));
    let registers = |v: usize, at: usize| {
        let covering = live.ranges[v].iter().filter(|(from, to)| (*from..*to).contains(&at));
        let whole = alike.registers(&plan.variables[v]) / if pairs.contains(&v) { 2 } else { 1 };
        covering.map(|&(from, to)| if passing(&live.borders, from, to) { whole / 4 } else { whole }).max().unwrap_or(0)
    };
    let computing = |at: usize| live.computing.iter().filter(|c| c.0 == at).map(|c| c.1).sum::<u32>();
    let total = |at| (0..plan.variables.len()).map(|v| registers(v, at)).sum::<u32>() + computing(at);
    (0..=live.at).map(total).max().unwrap_or(0)
}

/// Matrices of 16-bit elements that come as pairs of rows, or from a ring: a register holds two of
/// their elements until these are used.
fn in_pairs(plan: &Plan) -> HashSet<VarId> {
    let mut found = HashSet::new();
    let mut look = |op: &StmtOp| match op {
        StmtOp::Load { to, from } if from.comes_in_pairs() => _ = found.insert(*to),
        StmtOp::ReadRows { to, .. } => _ = found.insert(*to),
        _ => {}
    };
    plan.roles.iter().for_each(|role| each(&role.body, &mut look));
    found
}

/// Registers of the asynchronous products that are in flight at once: their accumulators, and their
/// operands in registers. Nothing of these can be moved elsewhere.
pub fn most_in_flight(plan: &Plan) -> u32 {
    let mut walk = InFlight { plan, issued: Vec::new(), most: 0 };
    for role in &plan.roles {
        walk.issued.clear();
        walk.block(&role.body);
    }
    walk.most
}

/// How many products a step has: of the loop that has most.
pub fn products_of_a_step(plan: &Plan) -> usize {
    fn most(body: &[Stmt]) -> usize {
        let of = |stmt: &Stmt| match &stmt.op {
            StmtOp::Loop { body, .. } => body.iter().filter(|stmt| matches!(stmt.op, StmtOp::Dot { .. })).count().max(most(body)),
            op => op.bodies().into_iter().map(most).max().unwrap_or(0),
        };
        body.iter().map(of).max().unwrap_or(0)
    }
    plan.roles.iter().map(|role| most(&role.body)).max().unwrap_or(0)
}

/// Registers of operands that asynchronous products of a loop of several steps read and the loop
/// does not write: they lie in registers from before it on.
pub fn lent_operands(plan: &Plan) -> u32 {
    fn most(plan: &Plan, body: &[Stmt]) -> u32 {
        let of = |stmt: &Stmt| {
            let inside = stmt.op.bodies().into_iter().map(|body| most(plan, body)).max().unwrap_or(0);
            let StmtOp::Loop { unroll: 2.., body, .. } = &stmt.op else { return inside };
            let (mut read, mut packed) = (HashSet::new(), HashSet::new());
            each(body, &mut |op| match op {
                StmtOp::Dot { a: OperandA::Packed(v), atom, .. } if atom.is_asynchronous() => _ = read.insert(*v),
                StmtOp::Pack { to, .. } => _ = packed.insert(*to),
                _ => {}
            });
            read.difference(&packed).map(|&v| plan.variables[v].registers()).sum::<u32>().max(inside)
        };
        body.iter().map(of).max().unwrap_or(0)
    }
    plan.roles.iter().map(|role| most(plan, &role.body)).max().unwrap_or(0)
}

/// Registers of the largest copy of a loop that passes through registers: it begins all its loads
/// before it stores any.
pub fn copies_in_registers(plan: &Plan) -> u32 {
    // Copies by the element have few loads in flight.
    if plan.is_asynchronous() || plan.copy_bytes != 16 {
        return 0;
    }
    let mut most = 0;
    let mut copy = |op: &StmtOp| {
        if let StmtOp::Copy { tile, .. } = op {
            most = most.max(4 * plan.tiles[*tile].slot_bytes().div_ceil(16 * plan.threads()));
        }
    };
    let mut look = |op: &StmtOp| {
        if let StmtOp::Loop { body, .. } = op {
            each(body, &mut copy);
        }
    };
    plan.roles.iter().for_each(|role| each(&role.body, &mut look));
    most
}

/// Registers for single elements that are read at positions of rows and columns: the index of each
/// column, the address of each row, and elements that are read ahead.
pub fn reads_of_pairs(plan: &Plan) -> u32 {
    /// Elements in flight at once.
    const AHEAD: u32 = 8;
    let mut most = 0;
    let mut look = |op: &StmtOp| {
        let (StmtOp::Map { to, value } | StmtOp::Pack { to, value, .. }) = op else { return };
        let variable = &plan.variables[*to];
        let pairs = matches!(variable.storage, Storage::Fragment(Shape::Accumulator) | Storage::Packed);
        if pairs && reads_columns(value) {
            most = most.max(2 * variable.n_tiles + 4 * variable.m_tiles + AHEAD);
        }
    };
    plan.roles.iter().for_each(|role| each(&role.body, &mut look));
    most
}

/// Whether an expression reads elements in memory whose address depends on the column.
fn reads_columns(value: &Expr) -> bool {
    let mut found = false;
    value.visit(&mut |e| {
        found |= matches!(e, Expr::Call(Function::Read, operands) if operands.iter().any(Expr::has_column));
    });
    found
}

/// How many tiles loops stream through rings for products: each role keeps its place in each of
/// these.
pub fn streamed_tiles(plan: &Plan) -> u32 {
    let of = |ring: usize| move |op: &StmtOp| matches!(op, StmtOp::Fill { tile, slot: Slot::Of(_), .. } if *tile == ring);
    let read = |read: usize| move |op: &StmtOp| matches!(op, StmtOp::ReadRows { tile, .. } if *tile == read);
    let streamed = |&tile: &usize| {
        let filled = plan.roles.iter().any(|role| any(&role.body, &of(plan.ring_of(tile))));
        filled && !plan.roles.iter().any(|role| any(&role.body, &read(tile)))
    };
    (0..plan.tiles.len()).filter(streamed).count() as u32
}

/// Products that were issued and not waited for, in their order: the variables of each, the
/// accumulator first.
struct InFlight<'a> {
    plan: &'a Plan,
    issued: Vec<Vec<VarId>>,
    most: u32,
}

impl InFlight<'_> {
    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            match &stmt.op {
                StmtOp::Dot { acc, a, atom, .. } if atom.is_asynchronous() => {
                    let packed = if let OperandA::Packed(v) = a { Some(*v) } else { None };
                    self.issued.push([*acc].into_iter().chain(packed).collect());
                    let held: HashSet<VarId> = self.issued.iter().flatten().copied().collect();
                    self.most = self.most.max(held.iter().map(|&v| self.plan.variables[v].registers()).sum());
                }
                // Products end in the order of their issue.
                StmtOp::Wait(events) => {
                    let into = |v: VarId| self.issued.iter().rposition(|product| product[0] == v);
                    let done = events.iter().filter_map(|event| if let Event::Product(v) = event { into(*v) } else { None });
                    if let Some(last) = done.max() {
                        self.issued.drain(..=last);
                    }
                }
                // What a turn leaves in flight is so in the next.
                StmtOp::Loop { body, .. } => (0..2).for_each(|_| self.block(body)),
                op => op.bodies().into_iter().for_each(|body| self.block(body)),
            }
        }
    }
}

/// Registers that a `Compute` needs by itself: the inputs of the parts in progress as they are stored, and one part of each
/// tile widened.
fn compute_registers(plan: &Plan, to: &[Computed], inputs: &[Input]) -> u32 {
    let parts = Parts::of(plan, to, inputs);
    let chunk = |input: &Input| match &input.from {
        InputSource::Tile(tile, _) => parts.width * plan.tiles[*tile].elem.bytes().unwrap_or(4) as u32 / 4,
        // Read 16 bytes at a time, and widened where they are used.
        InputSource::Matrix(_) | InputSource::Column(_) => 4,
        InputSource::Row(_) => 1,
    };
    parts.batch * inputs.iter().map(chunk).sum::<u32>() + parts.width * to.len() as u32
}

/// Fragments that no product, branch condition or store reads: they are done with where the statements after them are.
fn transients(plan: &Plan) -> HashSet<VarId> {
    fn lasting(body: &[Stmt], found: &mut HashSet<VarId>) {
        for stmt in body {
            match &stmt.op {
                StmtOp::Dot { acc, a, .. } => {
                    found.insert(*acc);
                    if let OperandA::Packed(v) = a {
                        found.insert(*v);
                    }
                }
                StmtOp::Store { variable: Some(v), .. } => {
                    found.insert(*v);
                }
                _ => {}
            }
            for body in stmt.op.bodies() {
                lasting(body, found);
            }
        }
    }
    let mut found = HashSet::new();
    for role in &plan.roles {
        lasting(&role.body, &mut found);
    }
    let accumulator = |v: &VarId| plan.variables[*v].storage == Storage::Fragment(Shape::Accumulator);
    (0..plan.variables.len()).filter(|v| accumulator(v) && !found.contains(v)).collect()
}

/// Whether a fragment lives for so short a run of elementwise statements that the compiler computes and consumes it piece by
/// piece.
fn passing(borders: &[usize], from: usize, to: usize) -> bool {
    to - from <= 4 && !borders.iter().any(|&b| from < b && b <= to)
}

struct Liveness<'a> {
    plan: &'a Plan,
    at: usize,
    /// From a write that keeps nothing of what was there to the last read before the next such write.
    ranges: Vec<Vec<(usize, usize)>>,
    /// Accumulators that only elementwise statements and row sums read.
    transient: HashSet<VarId>,
    /// Statements that are not elementwise: products, branches, loops, barriers.
    borders: Vec<usize>,
    /// Whether a warp may leave the statements out, so that what was there before may live on.
    choice: bool,
    /// Statements that need registers of their own, and how many.
    computing: Vec<(usize, u32)>,
}

impl Liveness<'_> {
    /// A write of the whole variable, which `keeps` something of it or not.
    fn write(&mut self, v: VarId, keeps: bool) {
        let at = self.at;
        let keeps = keeps || (self.choice && !self.transient.contains(&v));
        match self.ranges[v].last_mut() {
            Some(range) if keeps => range.1 = range.1.max(at + 1),
            _ => self.ranges[v].push((at, at + 1)),
        }
    }

    fn read(&mut self, v: VarId) {
        let at = self.at;
        match self.ranges[v].last_mut() {
            Some(range) => range.1 = range.1.max(at),
            None => self.ranges[v].push((at, at)),
        }
    }

    fn reads(&mut self, value: &Expr) {
        let mut names = Vec::new();
        value.visit(&mut |e| {
            if let Expr::Element(name, _) = e {
                names.push(name.clone());
            }
        });
        for name in names {
            if let Some(v) = self.plan.variables.iter().position(|v| v.name == name) {
                self.read(v);
            }
        }
    }

    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.at += 1;
            let elementwise = matches!(
                stmt.op,
                StmtOp::Map { .. } | StmtOp::Pack { .. } | StmtOp::Reduce { across_quad: false, .. } | StmtOp::Let { .. }
            );
            if !elementwise {
                self.borders.push(self.at);
            }
            match &stmt.op {
                StmtOp::When { guard, body, otherwise } => {
                    let Guard::Vote { condition, .. } = guard else {
                        self.block(body);
                        self.block(otherwise);
                        continue;
                    };
                    self.reads(condition);
                    let outer = std::mem::replace(&mut self.choice, true);
                    self.block(body);
                    self.choice = outer;
                }
                StmtOp::Loop { body, .. } => {
                    let start = self.at;
                    self.block(body);
                    let end = self.at + 1;
                    for ranges in &mut self.ranges {
                        let enters = ranges.iter().any(|range| range.0 <= start && range.1 > start);
                        if let Some(last) = ranges.last_mut().filter(|_| enters) {
                            last.1 = last.1.max(end);
                        }
                    }
                }
                StmtOp::Step { body, .. } | StmtOp::Work(body) => self.block(body),
                op => self.simple(op),
            }
        }
    }

    /// A statement that holds no others.
    fn simple(&mut self, op: &StmtOp) {
        let (expressions, uses) = (op.expressions(), op.uses());
        expressions.iter().for_each(|e| self.reads(e));
        uses.reads.iter().for_each(|&v| self.read(v));
        if let StmtOp::Dot { a: OperandA::Packed(v), .. } = op {
            // Read while the accumulator is written.
            self.ranges[*v].last_mut().expect("just read").1 += 1;
        }
        for &v in &uses.writes {
            let own = &self.plan.variables[v].name;
            let mut keeps = uses.reads.contains(&v);
            let mut look = |e: &Expr| keeps |= matches!(e, Expr::Element(name, _) if name == own);
            expressions.iter().for_each(|e| e.visit(&mut look));
            self.write(v, keeps);
        }
        if let StmtOp::Compute { to, inputs, .. } = op {
            self.computing.push((self.at, compute_registers(self.plan, to, inputs)));
        }
    }
}
