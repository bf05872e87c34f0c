//! What a role does in one program, act after act: its statements for given trip counts, with what
//! is named by iterations made what slots hold.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::super::fault::Faults;
use crate::plan::cases::Place;
use crate::plan::visit::narrows;
use crate::plan::{
    Completion, Event, Exchange, Expr, Guard, Iteration, LoopId, OperandA, Plan, Slot, Stmt, StmtOp, TileId, VarId, Voters,
};

/// What a slot holds: the number of the program, and for a streamed tile the iterations of the
/// loops around its loop and of that, in one number. Later contents are larger.
pub(super) type Content = u128;

/// Bits of an iteration: trip counts that are tried are a few slots long.
const ITERATION_BITS: u32 = 12;
/// Bits of all iterations.
const PATH_BITS: u32 = 96;

/// A product that is issued.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Product {
    pub acc: VarId,
    pub packed: Option<VarId>,
    /// The slots of rings that it reads, with what they must hold.
    pub tiles: Vec<(TileId, Content)>,
    /// Tiles that it reads which warps have staged for each other.
    pub staged: Vec<Staged>,
}

impl Product {
    /// Whether it reads a slot with these contents.
    pub fn reads(&self, tile: TileId, content: Content) -> bool {
        self.tiles.contains(&(tile, content))
    }
}

/// A wait for products.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Settled {
    /// Those into these accumulators.
    pub into: Vec<VarId>,
    /// Those that read these slots.
    pub reads: Vec<(TileId, Content)>,
    /// How many groups it leaves in flight; `None` for any number.
    pub in_flight: Option<u32>,
}

impl Settled {
    /// Whether it waits for a product.
    pub fn names(&self, product: &Product) -> bool {
        self.into.contains(&product.acc) || self.reads.iter().any(|&(tile, content)| product.reads(tile, content))
    }
}

/// What a role does that matters to others, or to its own registers.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Act {
    Fill(TileId, Content),
    Acquire(TileId, Content),
    Release(TileId),
    Advance(TileId),
    ReleaseBefore(TileId),
    /// Reads the slot in use of a ring, and is done before the next act.
    Look(TileId, Content),
    Issue(Product),
    Settle(Settled),
    Read(VarId),
    /// A read of what was written under the same condition.
    ReadGuarded(VarId),
    Write(VarId),
    /// A write in a branch that may not be taken.
    MayWrite(VarId),
    TakeTurn,
    PassTurn,
    /// Writes the warpgroup's share of a tile that all of the role read.
    Put(Staged),
    /// Reads such a tile.
    Get(Staged),
    /// Writes rows of a warp's own that are to be added, and adds them.
    PutRows(TileId),
    AddRows(TileId),
    /// Meets the other warpgroups of the role.
    Barrier,
    /// A step of the exchange of such a tile.
    Exchange(Exchange, Staged),
}

/// A slot of a tile that warps of a role stage for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Staged {
    pub tile: TileId,
    /// Which of its slots.
    pub number: u32,
    /// What it holds.
    pub content: Content,
}

impl Staged {
    /// The tile and the number of the slot.
    pub fn place(self) -> (TileId, u32) {
        (self.tile, self.number)
    }
}

impl Act {
    /// Whether it matters to a warp alone.
    pub fn is_of_registers(&self) -> bool {
        matches!(self, Act::Read(_) | Act::ReadGuarded(_) | Act::Write(_) | Act::MayWrite(_))
    }

    /// Whether it is seen to be right in one warpgroup, since all of a role do the same: registers,
    /// and tiles that barriers of the role guard.
    pub fn is_of_role(&self, plan: &Plan) -> bool {
        match self {
            Act::Put(staged) | Act::Get(staged) => plan.tiles[staged.tile].exchange.is_none(),
            Act::PutRows(_) | Act::AddRows(_) => true,
            _ => self.is_of_registers(),
        }
    }
}

/// Index of the ring of program numbers among rings.
pub(super) fn work_ring(plan: &Plan) -> Option<TileId> {
    plan.work_ring.map(|_| plan.tiles.len())
}

/// The name of a ring.
pub(super) fn ring_name(plan: &Plan, tile: TileId) -> &str {
    plan.tiles.get(tile).map_or("the ring of programs", |t| t.name.as_str())
}

/// What does not differ between the programs of a plan.
pub(super) struct Setting<'a> {
    pub plan: &'a Plan,
    pub completion: &'a Completion,
    /// The loop around each loop.
    pub outer: &'a [Option<LoopId>],
    /// Variables by name.
    pub names: HashMap<&'a str, VarId>,
}

/// A walk through the statements of a role.
pub(super) struct Tracer<'a> {
    setting: &'a Setting<'a>,
    place: Place<'a>,
    /// Number of the program.
    program: usize,
    acts: Vec<Act>,
    /// Of the statements that they are of.
    lines: Vec<u32>,
    faults: &'a mut Faults,
    /// What is written where a flag was set, by flag.
    with_flag: BTreeMap<VarId, BTreeSet<VarId>>,
}

impl<'a> Tracer<'a> {
    /// At the beginning of a program.
    pub fn new(setting: &'a Setting<'a>, place: Place<'a>, program: usize, faults: &'a mut Faults) -> Self {
        Self { setting, place, program, acts: Vec::new(), lines: Vec::new(), faults, with_flag: BTreeMap::new() }
    }

    /// What was done, each act with the line of its statement.
    pub fn done(self) -> Vec<(u32, Act)> {
        self.lines.into_iter().zip(self.acts).collect()
    }

    /// Hands over the number of the next program, or that there is none: the role that takes
    /// programs fills the ring, the others wait for it.
    pub fn take_program(&mut self, takes: bool) {
        let Some(ring) = work_ring(self.setting.plan) else { return };
        let content = self.packed(&[]);
        if takes {
            self.acts.push(Act::Fill(ring, content));
        } else {
            self.acts.extend([Act::Acquire(ring, content), Act::Release(ring)]);
        }
        self.lines.resize(self.acts.len(), 0);
    }

    /// What a slot holds in this program, in these iterations.
    fn packed(&mut self, path: &[u32]) -> Content {
        if path.len() > (PATH_BITS / ITERATION_BITS) as usize {
            self.faults.insert("loops are nested deeper than the verifier follows");
        }
        let iteration = |n: u32| Content::from(n & ((1 << ITERATION_BITS) - 1));
        let path = path.iter().fold(0, |path, &n| path << ITERATION_BITS | iteration(n));
        (self.program as Content) << PATH_BITS | path
    }

    pub fn run(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.faults.at = stmt.line;
            self.step(&stmt.op);
            self.lines.resize(self.acts.len(), stmt.line);
        }
    }

    /// Statements with a loop at an iteration.
    fn run_at(&mut self, id: LoopId, number: u32, body: &[Stmt]) {
        let before = std::mem::replace(&mut self.place.at[id], number);
        self.run(body);
        self.place.at[id] = before;
    }

    /// The number of an iteration that must exist.
    fn existing(&mut self, iteration: Iteration) -> u32 {
        let number = self.place.number(iteration);
        if number.is_none() {
            let name = &self.setting.plan.loops[iteration.of_loop()].coordinate;
            self.faults.insert(format!("a statement is about an iteration of {name} that does not exist"));
        }
        number.unwrap_or(0)
    }

    /// A slot of a tile that warps stage for each other.
    fn staged(&mut self, tile: TileId, slot: Slot) -> Staged {
        let number = match slot {
            Slot::Only => 0,
            Slot::Of(iteration) => self.existing(iteration) % self.setting.plan.tiles[tile].slots,
        };
        Staged { tile, number, content: self.content(slot) }
    }

    /// The slot that a tile comes in: its ring, and what the slot holds.
    fn of_ring(&mut self, tile: TileId, slot: Slot) -> (TileId, Content) {
        (self.setting.plan.ring_of(tile), self.content(slot))
    }

    fn content(&mut self, slot: Slot) -> Content {
        let Slot::Of(iteration) = slot else { return self.packed(&[]) };
        let mut path = vec![self.existing(iteration)];
        let mut outer = self.setting.outer[iteration.of_loop()];
        while let Some(id) = outer {
            path.push(self.place.at[id]);
            outer = self.setting.outer[id];
        }
        path.reverse();
        self.packed(&path)
    }

    /// What a wait names, as far as it exists.
    fn settled(&mut self, wait: &StmtOp, events: &[Event]) -> Settled {
        let in_flight = self.setting.completion.in_flight(wait).and_then(|numbers| numbers.products);
        let mut settled = Settled { into: Vec::new(), reads: Vec::new(), in_flight };
        for event in events {
            match *event {
                Event::Product(v) => settled.into.push(v),
                Event::Read(_, Slot::Of(iteration)) if self.place.number(iteration).is_none() => {}
                Event::Read(tile, slot) => settled.reads.push(self.of_ring(tile, slot)),
                // The structure of the plan is wrong, which was said.
                Event::Copied(..) => {}
            }
        }
        settled
    }

    fn step(&mut self, op: &StmtOp) {
        match op {
            StmtOp::Dot { acc, zero, a, b, b_slot, .. } => {
                let (mut tiles, mut staged) = (Vec::new(), Vec::new());
                match self.setting.plan.tiles[*b].barriers {
                    Some(_) => tiles.push(self.of_ring(*b, *b_slot)),
                    None => staged.push(self.staged(*b, *b_slot)),
                }
                let packed = match a {
                    OperandA::Tile(tile, slot) if self.setting.plan.tiles[*tile].barriers.is_none() => {
                        staged.push(self.staged(*tile, *slot));
                        None
                    }
                    OperandA::Tile(tile, slot) => {
                        tiles.push(self.of_ring(*tile, *slot));
                        None
                    }
                    OperandA::Packed(v) => Some(*v),
                };
                self.acts.extend(packed.map(Act::Read));
                if !zero {
                    // Of products that write one accumulator the later waits for the earlier by
                    // itself.
                    self.acts.push(Act::Issue(Product { acc: *acc, packed, tiles, staged }));
                } else {
                    self.acts.extend([Act::Write(*acc), Act::Issue(Product { acc: *acc, packed, tiles, staged })]);
                }
            }
            StmtOp::ReadRows { to, tile, slot, .. } | StmtOp::LoadFragments { to, tile, slot, .. } => {
                let (ring, content) = self.of_ring(*tile, *slot);
                self.acts.extend([Act::Look(ring, content), Act::Write(*to)]);
            }
            StmtOp::Fill { tile, slot, .. } => {
                let content = self.content(*slot);
                self.acts.push(Act::Fill(*tile, content));
            }
            StmtOp::Acquire { tile, slot } => {
                let content = self.content(*slot);
                self.acts.push(Act::Acquire(*tile, content));
            }
            StmtOp::Release(tile) => self.acts.push(Act::Release(*tile)),
            StmtOp::Advance(tile) => self.acts.push(Act::Advance(*tile)),
            StmtOp::ReleaseBefore(tile) => self.acts.push(Act::ReleaseBefore(*tile)),
            StmtOp::Wait(events) => {
                let settled = self.settled(op, events);
                self.acts.push(Act::Settle(settled));
            }
            StmtOp::Stage { tile, slot, from, .. } => {
                let staged = self.staged(*tile, *slot);
                self.acts.extend([Act::Read(*from), Act::Put(staged)]);
            }
            StmtOp::Publish { tile, from } => {
                let staged = self.staged(*tile, Slot::Only);
                self.acts.extend([Act::Read(*from), Act::Put(staged)]);
            }
            StmtOp::Merge { to, tile, .. } => {
                let staged = self.staged(*tile, Slot::Only);
                self.acts.extend([Act::Get(staged), Act::Write(*to)]);
            }
            // A warp writes and reads a row of its own.
            StmtOp::Distribute { to, from, .. } => self.acts.extend([Act::Read(*from), Act::Write(*to)]),
            StmtOp::PutRows { tile, from } => self.acts.extend([Act::Read(*from), Act::PutRows(*tile)]),
            StmtOp::AddRows { tile, .. } => {
                op.expressions().into_iter().for_each(|e| self.reads(e));
                self.acts.push(Act::AddRows(*tile));
            }
            StmtOp::Barrier => self.acts.push(Act::Barrier),
            StmtOp::Exchange { step, tile, slot } => {
                let staged = self.staged(*tile, *slot);
                self.acts.push(Act::Exchange(*step, staged));
            }
            StmtOp::TakeTurn => self.acts.push(Act::TakeTurn),
            StmtOp::PassTurn => self.acts.push(Act::PassTurn),
            StmtOp::When { guard, body, otherwise } => match guard {
                Guard::Exists(_) | Guard::Again | Guard::OneLeft(_) | Guard::FirstPart | Guard::LastPart => {
                    self.run(if self.place.holds(guard) == Some(true) { body } else { otherwise });
                }
                Guard::Vote { condition, of: Voters::Role, .. } => {
                    self.reads(condition);
                    self.acts.push(Act::Barrier);
                    let taken = self.place.vote();
                    self.run(if taken { body } else { otherwise });
                }
                Guard::Vote { condition, flag, .. } => {
                    self.reads(condition);
                    let written = self.branches(body, otherwise);
                    if let Some(flag) = *flag {
                        self.acts.push(Act::Write(flag));
                        if !narrows(body, flag) {
                            self.with_flag.insert(flag, written);
                        }
                    }
                }
                Guard::Flag(v) => {
                    self.acts.push(Act::Read(*v));
                    let start = self.acts.len();
                    self.branches(body, otherwise);
                    let known = self.with_flag.get(v);
                    for act in &mut self.acts[start..] {
                        if let Act::Read(v) = *act
                            && known.is_some_and(|known| known.contains(&v))
                        {
                            *act = Act::ReadGuarded(v);
                        }
                    }
                }
                Guard::Cut(_) | Guard::Holds(_) => drop(self.branches(body, otherwise)),
                // Each warp does all of it, or leaves all of it.
                Guard::OwnWarps => {
                    self.branch(body);
                    self.branch(otherwise);
                }
            },
            StmtOp::Loop { id, from, unroll, body } => {
                for next in self.place.rounds(*id, *from, *unroll) {
                    self.run_at(*id, next, body);
                }
            }
            StmtOp::Step { at, body } => {
                let number = self.existing(*at);
                self.run_at(at.of_loop(), number, body);
            }
            StmtOp::SaveState(from) => self.acts.extend(from.iter().map(|&v| Act::Read(v))),
            StmtOp::LoadState { to, .. } => self.acts.extend(to.iter().map(|&v| Act::Write(v))),
            StmtOp::AwaitPart | StmtOp::PassPart | StmtOp::ClusterBarrier => {}
            StmtOp::MakeAgain { condition, .. } => self.reads(condition),
            op => {
                let uses = op.uses();
                if !uses.is_of_registers() {
                    self.faults.insert("a statement of a block of one role in specialised roles");
                }
                op.expressions().into_iter().for_each(|e| self.reads(e));
                self.acts.extend(uses.reads.into_iter().map(Act::Read));
                self.acts.extend(uses.writes.into_iter().map(Act::Write));
            }
        }
    }

    /// Branches of which any may be taken, or none: for hazards it is worse if it is, and for what
    /// is written if it is not. What both of them write is written. Gives what the first writes.
    fn branches(&mut self, body: &[Stmt], otherwise: &[Stmt]) -> BTreeSet<VarId> {
        let written = |acts: &[Act]| -> BTreeSet<VarId> {
            acts.iter().filter_map(|e| if let Act::Write(v) = e { Some(*v) } else { None }).collect()
        };
        let start = self.acts.len();
        self.branch(body);
        let middle = self.acts.len();
        self.branch(otherwise);
        let (first, second) = (written(&self.acts[start..middle]), written(&self.acts[middle..]));
        for range in [start..middle, middle..self.acts.len()] {
            forget_writes(&mut self.acts[range]);
        }
        self.acts.extend(first.intersection(&second).map(|&v| Act::Write(v)));
        first
    }

    /// What a warp does or leaves by its own choice: nothing that others wait for.
    fn branch(&mut self, body: &[Stmt]) {
        let start = self.acts.len();
        self.run(body);
        if !self.acts[start..].iter().all(Act::is_of_registers) {
            self.faults.insert("a ring, a product or a turn in a branch that a warp takes by itself");
        }
    }

    fn reads(&mut self, value: &Expr) {
        let (names, acts) = (&self.setting.names, &mut self.acts);
        value.visit(&mut |e| {
            if let Expr::Element(name, _) = e {
                acts.extend(names.get(name.as_str()).copied().map(Act::Read));
            }
        });
    }
}

/// Makes writes of a branch that may not be taken writes that may not happen. In the branch, what
/// it has written is known.
fn forget_writes(acts: &mut [Act]) {
    let mut known = BTreeSet::new();
    for act in acts {
        match *act {
            Act::Write(v) => {
                known.insert(v);
                *act = Act::MayWrite(v);
            }
            Act::Read(v) if known.contains(&v) => *act = Act::ReadGuarded(v),
            _ => {}
        }
    }
}
