//! What a statement names: the expressions that it evaluates, tiles and variables. Statements that
//! it holds are not looked into, but by [`any`] and [`each`].

use super::{Event, Expr, GlobalTile, Guard, InputSource, OperandA, Slot, Stmt, StmtOp, TileId, VarId, Voters};

/// Whether some statement, or one that it holds, is as wanted.
pub(crate) fn any(body: &[Stmt], wanted: &impl Fn(&StmtOp) -> bool) -> bool {
    body.iter().any(|stmt| wanted(&stmt.op) || stmt.op.bodies().into_iter().any(|body| any(body, wanted)))
}

/// Whether some vote in the body of another one with this flag has the same flag, which then is its own.
pub(crate) fn narrows(body: &[Stmt], flag: VarId) -> bool {
    any(body, &|op| matches!(op, StmtOp::When { guard: Guard::Vote { flag: Some(own), .. }, .. } if *own == flag))
}

/// Does something with every statement, and with those that it holds.
pub(crate) fn each(body: &[Stmt], then: &mut impl FnMut(&StmtOp)) {
    for stmt in body {
        then(&stmt.op);
        stmt.op.bodies().into_iter().for_each(|body| each(body, then));
    }
}

/// The same list of expressions to look at and to change.
macro_rules! expressions {
    ($(#[$doc:meta])* $name:ident, $(#[$tile_doc:meta])* $of_tile:ident, ($($r:tt)+), $iter:ident) => {
        impl GlobalTile {
            $(#[$tile_doc])*
            pub fn $of_tile($($r)+ self) -> [$($r)+ Expr; 5] {
                let GlobalTile { origin, row_stride, rows_present, column_stride, columns_present, .. } = self;
                [origin, row_stride, rows_present, column_stride, columns_present]
            }
        }

        impl StmtOp {
            $(#[$doc])*
            pub fn $name($($r)+ self) -> Vec<$($r)+ Expr> {
                match self {
                    StmtOp::Let { value, .. } | StmtOp::Map { value, .. } | StmtOp::Pack { value, .. } => vec![value],
                    StmtOp::Copy { from, .. } | StmtOp::Load { from, .. } => from.$of_tile().into(),
                    StmtOp::Add { to, place, .. } => to.$of_tile().into_iter().chain(place).collect(),
                    StmtOp::Store { to, value, .. } => to.$of_tile().into_iter().chain([value]).collect(),
                    StmtOp::Compute { to, inputs, shared } => {
                        let mut all: Vec<_> = to.$iter().map(|computed| $($r)+ computed.value).collect();
                        all.extend(shared.$iter().map(|shared| $($r)+ shared.value));
                        for input in inputs {
                            match $($r)+ input.from {
                                InputSource::Tile(..) => {}
                                InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => {
                                    all.extend(from.$of_tile());
                                }
                            }
                        }
                        all
                    }
                    StmtOp::When { guard: Guard::Vote { condition, .. } | Guard::Holds(condition), .. }
                    | StmtOp::MakeAgain { condition, .. } => vec![condition],
                    StmtOp::Fill { at, with, .. } => {
                        let of_others = with.$iter().flat_map(|companion| companion.at.$iter());
                        at.$iter().chain(of_others).collect()
                    }
                    StmtOp::AddRows { at, .. } => at.$iter().collect(),
                    StmtOp::LoadState { from, .. } => from.$iter().collect(),
                    StmtOp::When { .. }
                    | StmtOp::Reduce { .. }
                    | StmtOp::Distribute { .. }
                    | StmtOp::QuadSum(_)
                    | StmtOp::QuadMax(_)
                    | StmtOp::Commit
                    | StmtOp::Wait(_)
                    | StmtOp::Barrier
                    | StmtOp::Exchange { .. }
                    | StmtOp::LoadFragments { .. }
                    | StmtOp::ReadRows { .. }
                    | StmtOp::Dot { .. }
                    | StmtOp::Stage { .. }
                    | StmtOp::Publish { .. }
                    | StmtOp::PutRows { .. }
                    | StmtOp::Merge { .. }
                    | StmtOp::Loop { .. }
                    | StmtOp::Step { .. }
                    | StmtOp::Acquire { .. }
                    | StmtOp::Release(_)
                    | StmtOp::Advance(_)
                    | StmtOp::ReleaseBefore(_)
                    | StmtOp::TakeTurn
                    | StmtOp::PassTurn
                    | StmtOp::Work(_)
                    | StmtOp::AwaitPart
                    | StmtOp::PassPart
                    | StmtOp::SaveState(_)
                    | StmtOp::ClusterBarrier => Vec::new(),
                }
            }
        }
    };
}

expressions! {
    /// The expressions that it evaluates.
    expressions,
    /// Where it lies, and what of it exists.
    expressions, (&), iter
}

expressions! {
    /// The expressions that it evaluates, to change.
    expressions_mut,
    /// Where it lies, and what of it exists, to change.
    expressions_mut, (&mut), iter_mut
}

/// What a statement does to what it names. Expressions are beside it ([`StmtOp::expressions`]).
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Uses<'a> {
    /// Variables that it reads, but for those whose elements are in expressions.
    pub reads: Vec<VarId>,
    /// Variables that it writes. What it keeps something of it also reads.
    pub writes: Vec<VarId>,
    /// The constant that it declares.
    pub declares: Option<&'a str>,
    /// Tiles in shared memory that it reads, writes or hands on, each with the slot if it names
    /// one.
    pub tiles: Vec<(TileId, Slot)>,
    /// What it waits for.
    pub events: &'a [Event],
    /// Tiles of tensors that it reads.
    pub loads: Vec<&'a GlobalTile>,
    /// Tiles of tensors that it writes.
    pub stores: Vec<&'a GlobalTile>,
    /// The tensor map that it reads through.
    pub map: Option<usize>,
    /// The tensor map that it adds through.
    pub adds: Option<usize>,
    /// Whether it reads the state of a part.
    pub loads_state: bool,
    /// Whether it writes the state of a part.
    pub saves_state: bool,
    /// Whether it names where programs meet.
    pub meets: bool,
}

impl Uses<'_> {
    /// Whether it reads global memory.
    pub fn reads_memory(&self) -> bool {
        !self.loads.is_empty() || self.map.is_some() || self.adds.is_some() || self.loads_state
    }

    /// Whether it does nothing that other threads wait for: registers, and tiles of tensors.
    pub fn is_of_registers(&self) -> bool {
        let does = self.declares.is_some() || !(self.reads.is_empty() && self.writes.is_empty());
        let of_tensors = !(self.loads.is_empty() && self.stores.is_empty());
        let of_maps = self.map.is_some() || self.adds.is_some();
        let of_others = !(self.tiles.is_empty() && self.events.is_empty()) || of_maps || self.meets;
        (does || of_tensors) && !of_others
    }

    /// Whether it writes global memory.
    pub fn writes_memory(&self) -> bool {
        !self.stores.is_empty() || self.adds.is_some() || self.saves_state
    }
}

impl StmtOp {
    /// Whether it is a product that reads a tile.
    pub(crate) fn multiplies(&self, tile: TileId) -> bool {
        match self {
            StmtOp::Dot { a, b, .. } => *b == tile || matches!(a, OperandA::Tile(left, _) if *left == tile),
            _ => false,
        }
    }

    /// Whether it is a vote of all warps of a role, which is a barrier too.
    pub(crate) fn is_vote_of_role(&self) -> bool {
        matches!(self, StmtOp::When { guard: Guard::Vote { of: Voters::Role, .. }, .. })
    }

    /// Whether all warps that compute meet where it begins.
    pub(crate) fn is_barrier(&self) -> bool {
        *self == StmtOp::Barrier || self.is_vote_of_role()
    }

    /// What it does to what it names.
    pub(crate) fn uses(&self) -> Uses<'_> {
        let none = Uses::default();
        match self {
            StmtOp::Let { name, .. } => Uses { declares: Some(name), ..none },
            StmtOp::Map { to, .. } | StmtOp::Pack { to, .. } => Uses { writes: vec![*to], ..none },
            StmtOp::Distribute { to, from, tile } => {
                Uses { reads: vec![*from], writes: vec![*to], tiles: vec![(*tile, Slot::Only)], ..none }
            }
            StmtOp::Reduce { to, from, .. } => Uses { reads: vec![*from], writes: vec![*to], ..none },
            StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => Uses { reads: vec![*v], writes: vec![*v], ..none },
            StmtOp::Copy { tile, slot, from } => Uses { tiles: vec![(*tile, *slot)], loads: vec![from], ..none },
            StmtOp::Fill { tile, slot, map, with, .. } => {
                let others = with.iter().map(|companion| (companion.tile, *slot));
                Uses { tiles: [(*tile, *slot)].into_iter().chain(others).collect(), map: Some(*map), ..none }
            }
            StmtOp::Acquire { tile, slot } | StmtOp::Exchange { tile, slot, .. } => Uses { tiles: vec![(*tile, *slot)], ..none },
            StmtOp::Release(tile) | StmtOp::Advance(tile) | StmtOp::ReleaseBefore(tile) => {
                Uses { tiles: vec![(*tile, Slot::Only)], ..none }
            }
            StmtOp::LoadFragments { to, tile, slot, .. } | StmtOp::ReadRows { to, tile, slot, .. } => {
                Uses { writes: vec![*to], tiles: vec![(*tile, *slot)], ..none }
            }
            StmtOp::Stage { tile, slot, from, .. } => Uses { reads: vec![*from], tiles: vec![(*tile, *slot)], ..none },
            StmtOp::Publish { tile, from } => Uses { reads: vec![*from], tiles: vec![(*tile, Slot::Only)], ..none },
            StmtOp::Merge { to, tile, .. } => Uses { writes: vec![*to], tiles: vec![(*tile, Slot::Only)], ..none },
            StmtOp::Dot { acc, zero, a, b, b_slot, .. } => {
                let mut uses = Uses { writes: vec![*acc], tiles: vec![(*b, *b_slot)], ..none };
                match a {
                    OperandA::Tile(tile, slot) => uses.tiles.insert(0, (*tile, *slot)),
                    OperandA::Packed(v) => uses.reads.push(*v),
                }
                uses.reads.extend((!zero).then_some(*acc));
                uses
            }
            StmtOp::Compute { to, inputs, .. } => {
                let mut uses = Uses { tiles: to.iter().map(|made| (made.tile, made.slot)).collect(), ..none };
                for input in inputs {
                    match &input.from {
                        InputSource::Tile(tile, slot) => uses.tiles.push((*tile, *slot)),
                        InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => {
                            uses.loads.push(from);
                        }
                    }
                }
                uses
            }
            StmtOp::Load { to, from } => Uses { writes: vec![*to], loads: vec![from], ..none },
            StmtOp::Store { to, variable, .. } => Uses { reads: variable.iter().copied().collect(), stores: vec![to], ..none },
            StmtOp::Add { to, from, .. } => Uses { reads: vec![*from], loads: vec![to], stores: vec![to], ..none },
            StmtOp::PutRows { tile, from } => Uses { reads: vec![*from], tiles: vec![(*tile, Slot::Only)], ..none },
            StmtOp::AddRows { map, at: _, tile, of: _ } => Uses { tiles: vec![(*tile, Slot::Only)], adds: Some(*map), ..none },
            StmtOp::When { guard: Guard::Vote { flag, .. }, .. } => Uses { writes: flag.iter().copied().collect(), ..none },
            StmtOp::When { guard: Guard::Flag(v), .. } => Uses { reads: vec![*v], ..none },
            StmtOp::Wait(events) => {
                let tile = |event: &Event| match *event {
                    Event::Copied(tile, slot) | Event::Read(tile, slot) => Some((tile, slot)),
                    Event::Product(_) => None,
                };
                Uses { tiles: events.iter().filter_map(tile).collect(), events, ..none }
            }
            StmtOp::SaveState(from) => Uses { reads: from.clone(), saves_state: true, meets: true, ..none },
            StmtOp::LoadState { to, .. } => Uses { writes: to.clone(), loads_state: true, meets: true, ..none },
            StmtOp::AwaitPart | StmtOp::PassPart => Uses { meets: true, ..none },
            StmtOp::When { .. }
            | StmtOp::Loop { .. }
            | StmtOp::Step { .. }
            | StmtOp::Work(_)
            | StmtOp::MakeAgain { .. }
            | StmtOp::Commit
            | StmtOp::Barrier
            | StmtOp::TakeTurn
            | StmtOp::PassTurn
            | StmtOp::ClusterBarrier => none,
        }
    }

    /// The tiles in shared memory that it reads, writes, hands on or waits for, each with the slot
    /// if it names one.
    pub fn tiles(&self) -> Vec<(TileId, Slot)> {
        self.uses().tiles
    }

    /// The variables that it reads, writes or waits for, but for those whose elements are in
    /// expressions.
    pub fn variables(&self) -> Vec<VarId> {
        let Uses { mut reads, writes, events, .. } = self.uses();
        reads.extend(writes);
        reads.extend(events.iter().filter_map(|event| if let Event::Product(v) = event { Some(*v) } else { None }));
        reads
    }
}
