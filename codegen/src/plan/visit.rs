//! What a statement names: the expressions that it evaluates, tiles and variables. Statements that
//! it holds are not looked into, but by [`any`].

use super::{Event, Expr, GlobalTile, Guard, InputSource, OperandA, Slot, Stmt, StmtOp, TileId, VarId};

/// Whether some statement, or one that it holds, is as wanted.
pub(crate) fn any(body: &[Stmt], wanted: &impl Fn(&StmtOp) -> bool) -> bool {
    body.iter().any(|stmt| wanted(&stmt.op) || stmt.op.bodies().into_iter().any(|body| any(body, wanted)))
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
                    StmtOp::When { guard: Guard::Vote { condition, .. }, .. } => vec![condition],
                    StmtOp::Fill { at, .. } => at.$iter().collect(),
                    StmtOp::LoadState { from, .. } => from.$iter().collect(),
                    StmtOp::When { .. }
                    | StmtOp::Reduce { .. }
                    | StmtOp::QuadSum(_)
                    | StmtOp::QuadMax(_)
                    | StmtOp::Commit
                    | StmtOp::Wait(_)
                    | StmtOp::Barrier
                    | StmtOp::LoadFragments { .. }
                    | StmtOp::Dot { .. }
                    | StmtOp::Stage { .. }
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

impl StmtOp {
    /// The tiles in shared memory that it reads, writes or hands on, each with the slot if it names
    /// one.
    pub fn tiles(&self) -> Vec<(TileId, Slot)> {
        match self {
            StmtOp::Copy { tile, slot, .. }
            | StmtOp::Fill { tile, slot, .. }
            | StmtOp::Acquire { tile, slot }
            | StmtOp::LoadFragments { tile, slot, .. } => vec![(*tile, *slot)],
            StmtOp::Stage { tile, .. } | StmtOp::Release(tile) | StmtOp::Advance(tile) | StmtOp::ReleaseBefore(tile) => {
                vec![(*tile, Slot::Only)]
            }
            StmtOp::Compute { to, inputs, .. } => {
                let read = inputs.iter().filter_map(|input| match input.from {
                    InputSource::Tile(tile, slot) => Some((tile, slot)),
                    InputSource::Matrix(_) | InputSource::Row(_) | InputSource::Column(_) => None,
                });
                to.iter().map(|computed| (computed.tile, computed.slot)).chain(read).collect()
            }
            StmtOp::Dot { a, b, b_slot, .. } => match a {
                OperandA::Tile(tile, slot) => vec![(*tile, *slot), (*b, *b_slot)],
                OperandA::Packed(_) => vec![(*b, *b_slot)],
            },
            StmtOp::Wait(events) => {
                let tile = |event: &Event| match *event {
                    Event::Copied(tile, slot) | Event::Read(tile, slot) => Some((tile, slot)),
                    Event::Product(_) => None,
                };
                events.iter().filter_map(tile).collect()
            }
            StmtOp::Let { .. }
            | StmtOp::Map { .. }
            | StmtOp::Pack { .. }
            | StmtOp::Reduce { .. }
            | StmtOp::QuadSum(_)
            | StmtOp::QuadMax(_)
            | StmtOp::Commit
            | StmtOp::Barrier
            | StmtOp::Load { .. }
            | StmtOp::Store { .. }
            | StmtOp::When { .. }
            | StmtOp::Loop { .. }
            | StmtOp::Step { .. }
            | StmtOp::TakeTurn
            | StmtOp::PassTurn
            | StmtOp::Work(_)
            | StmtOp::AwaitPart
            | StmtOp::PassPart
            | StmtOp::SaveState(_)
            | StmtOp::LoadState { .. }
            | StmtOp::ClusterBarrier => Vec::new(),
        }
    }

    /// The variables that it reads or writes, but for those whose elements are in expressions.
    pub fn variables(&self) -> Vec<VarId> {
        match self {
            StmtOp::Map { to, .. } | StmtOp::Pack { to, .. } | StmtOp::Load { to, .. } | StmtOp::LoadFragments { to, .. } => {
                vec![*to]
            }
            StmtOp::Reduce { to, from, .. } => vec![*to, *from],
            StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => vec![*v],
            StmtOp::Stage { from, .. } => vec![*from],
            StmtOp::Store { variable, .. } => variable.iter().copied().collect(),
            StmtOp::Dot { acc, a: OperandA::Packed(v), .. } => vec![*acc, *v],
            StmtOp::Dot { acc, a: OperandA::Tile(..), .. } => vec![*acc],
            StmtOp::When { guard: Guard::Vote { flag, .. }, .. } => flag.iter().copied().collect(),
            StmtOp::When { guard: Guard::Flag(v), .. } => vec![*v],
            StmtOp::SaveState(all) | StmtOp::LoadState { to: all, .. } => all.clone(),
            StmtOp::Wait(events) => {
                let product = |event: &Event| if let Event::Product(v) = event { Some(*v) } else { None };
                events.iter().filter_map(product).collect()
            }
            StmtOp::Let { .. }
            | StmtOp::Copy { .. }
            | StmtOp::Compute { .. }
            | StmtOp::Commit
            | StmtOp::Barrier
            | StmtOp::When { .. }
            | StmtOp::Loop { .. }
            | StmtOp::Step { .. }
            | StmtOp::Fill { .. }
            | StmtOp::Acquire { .. }
            | StmtOp::Release(_)
            | StmtOp::Advance(_)
            | StmtOp::ReleaseBefore(_)
            | StmtOp::TakeTurn
            | StmtOp::PassTurn
            | StmtOp::Work(_)
            | StmtOp::AwaitPart
            | StmtOp::PassPart
            | StmtOp::ClusterBarrier => Vec::new(),
        }
    }
}
