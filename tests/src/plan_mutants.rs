//! Plans with one change: a statement dropped, doubled or moved, or what it is about changed.
//!
//! [`changes`] lists every change of a plan, [`Change::of`] makes the changed plan. A change is a
//! place and what is done there, so that a list of all changes is small and any of them can be made
//! by itself.

use flashtile_codegen::plan::{Event, Guard, InputSource, Iteration, OperandA, Plan, Slot, Stmt, StmtOp};

/// The place of a statement.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    role: usize,
    /// From the outermost list inwards: a statement, and which of its lists.
    path: Vec<(usize, usize)>,
    index: usize,
}

impl Place {
    /// The list that the statement stands in.
    fn list<'p>(&self, plan: &'p mut Plan) -> &'p mut Vec<Stmt> {
        let mut list = &mut plan.roles[self.role].body;
        for &(index, body) in &self.path {
            list = list[index].op.bodies_mut().swap_remove(body);
        }
        list
    }
}

/// What is done at a place.
#[derive(Clone, PartialEq, Debug)]
enum Kind {
    Drop,
    Double,
    /// Behind the statement after it.
    Swap,
    /// To the start of its list, and to the end.
    ToStart,
    ToEnd,
    /// To the start of a list of the statement after it.
    Into(usize),
    /// To the end of a list of the statement before it.
    IntoBefore(usize),
    /// Out of its list, before or behind the statement that has the list.
    OutBefore,
    OutBehind,
    /// A wait without one of its names.
    Unname(usize),
    /// A wait for the products that read a slot in place of the copy into it, or the other way
    /// round.
    Event(usize),
    /// Another iteration of a slot.
    Iteration(usize, i32),
    /// Another variable.
    Variable(usize, usize),
    /// Another tile.
    Tile(usize, usize),
    /// The statements without their condition.
    Unguard,
    /// A list of it emptied.
    Empty(usize),
    /// Its two lists exchanged.
    Exchange,
    /// Another condition.
    Guard(Guard),
    /// A loop that starts later or earlier, or another step.
    Start(i32),
    /// A product that starts at 0, or does not.
    Zero,
    /// Variables of a state in another order.
    Reverse,
    /// Another op on the same ring.
    Ring(usize),
    /// A turn taken for a turn passed, or the other way round.
    Turn,
    /// A fill without what comes with it.
    Alone,
    /// Rows that are staged as columns, or the other way round.
    Turned,
}

/// A change of a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    place: Place,
    kind: Kind,
}

impl Change {
    /// What kind of change it is, in words.
    pub fn kind(&self) -> &'static str {
        match &self.kind {
            Kind::Drop => "drop a statement",
            Kind::Double => "execute a statement twice",
            Kind::Swap => "move a statement behind the next",
            Kind::ToStart | Kind::ToEnd => "move a statement to an end of its list",
            Kind::Into(_) | Kind::IntoBefore(_) => "move a statement into a list beside it",
            Kind::OutBefore | Kind::OutBehind => "move a statement out of its list",
            Kind::Unname(_) => "wait for less",
            Kind::Event(_) => "wait for another event",
            Kind::Iteration(..) => "name another iteration",
            Kind::Variable(..) => "name another variable",
            Kind::Tile(..) => "name another tile",
            Kind::Unguard => "drop a condition",
            Kind::Empty(_) => "empty a branch or a loop",
            Kind::Exchange => "exchange the branches",
            Kind::Guard(_) => "another condition",
            Kind::Start(_) => "start at another iteration",
            Kind::Zero => "start a product at 0, or not",
            Kind::Reverse => "reverse a state",
            Kind::Ring(_) => "another op on a ring",
            Kind::Turn => "pass a turn for taking it",
            Kind::Alone => "fill a ring alone",
            Kind::Turned => "turn what is staged",
        }
    }

    /// The changed plan, and in words what was changed.
    pub fn of(&self, plan: &Plan) -> (Plan, String) {
        let mut changed = plan.clone();
        let index = self.place.index;
        let list = self.place.list(&mut changed);
        let before = statement(&list[index].op);
        match &self.kind {
            Kind::Drop => drop(list.remove(index)),
            Kind::Double => {
                let again = list[index].clone();
                list.insert(index, again);
            }
            Kind::Swap => list.swap(index, index + 1),
            Kind::ToStart => list[..=index].rotate_right(1),
            Kind::ToEnd => list[index..].rotate_left(1),
            Kind::Into(body) => {
                let moved = list.remove(index);
                list[index].op.bodies_mut()[*body].insert(0, moved);
            }
            Kind::IntoBefore(body) => {
                let moved = list.remove(index);
                list[index - 1].op.bodies_mut()[*body].push(moved);
            }
            Kind::OutBefore | Kind::OutBehind => {
                let moved = list.remove(index);
                let mut around = self.place.clone();
                let (at, _) = around.path.pop().expect("a list of a statement");
                around.list(&mut changed).insert(at + usize::from(self.kind == Kind::OutBehind), moved);
            }
            Kind::Unguard => {
                let StmtOp::When { body, .. } = list.remove(index).op else { unreachable!("a condition") };
                list.splice(index..index, body);
            }
            Kind::Empty(body) => list[index].op.bodies_mut()[*body].clear(),
            Kind::Iteration(n, by) => shift(iterations(&mut list[index].op).swap_remove(*n), *by),
            Kind::Variable(n, to) => *variables(&mut list[index].op).swap_remove(*n) = *to,
            Kind::Tile(n, to) => *tiles(&mut list[index].op).swap_remove(*n) = *to,
            kind => change_op(&mut list[index].op, kind),
        }
        let place = &self.place;
        let text = format!("{} ({before}), statement {:?}/{} of {}", self.kind(), place.path, index, plan.roles[place.role].name);
        (changed, format!("{text}: {:?}", self.kind))
    }
}

fn change_op(op: &mut StmtOp, kind: &Kind) {
    match (op, kind) {
        (StmtOp::Wait(events), Kind::Unname(n)) => drop(events.remove(*n)),
        (StmtOp::Wait(events), Kind::Event(n)) => {
            events[*n] = match events[*n] {
                Event::Copied(tile, slot) => Event::Read(tile, slot),
                Event::Read(tile, slot) => Event::Copied(tile, slot),
                Event::Product(v) => Event::Product(v),
            }
        }
        (StmtOp::When { body, otherwise, .. }, Kind::Exchange) => std::mem::swap(body, otherwise),
        (StmtOp::When { guard, .. }, Kind::Guard(other)) => *guard = other.clone(),
        (StmtOp::Loop { from, .. }, Kind::Start(by)) => *from = from.saturating_add_signed(*by),
        (StmtOp::Step { at, .. }, Kind::Start(by)) => shift(at, *by),
        (StmtOp::Dot { zero, .. }, Kind::Zero) => *zero = !*zero,
        (StmtOp::Fill { with, .. }, Kind::Alone) => with.clear(),
        (StmtOp::Stage { turned, .. }, Kind::Turned) => *turned = !*turned,
        (StmtOp::SaveState(variables) | StmtOp::LoadState { to: variables, .. }, Kind::Reverse) => variables.reverse(),
        (op, Kind::Ring(to)) => *op = ring_ops(op).swap_remove(*to),
        (op, Kind::Turn) => *op = if *op == StmtOp::TakeTurn { StmtOp::PassTurn } else { StmtOp::TakeTurn },
        (op, kind) => unreachable!("{kind:?} of {op:?}"),
    }
}

/// The other ops that hand a ring on.
fn ring_ops(op: &StmtOp) -> Vec<StmtOp> {
    match *op {
        StmtOp::Release(tile) => vec![StmtOp::Advance(tile), StmtOp::ReleaseBefore(tile)],
        StmtOp::Advance(tile) => vec![StmtOp::Release(tile), StmtOp::ReleaseBefore(tile)],
        StmtOp::ReleaseBefore(tile) => vec![StmtOp::Release(tile), StmtOp::Advance(tile)],
        _ => Vec::new(),
    }
}

/// Another number of the same kind of iteration; 0 stays where there is none below.
fn shift(iteration: &mut Iteration, by: i32) {
    match iteration {
        Iteration::First(_, n) | Iteration::Ahead(_, n) | Iteration::Behind(_, n) => *n = n.saturating_add_signed(by),
        Iteration::Last(_) => {}
    }
}

fn slots(op: &mut StmtOp) -> Vec<&mut Slot> {
    match op {
        StmtOp::Copy { slot, .. }
        | StmtOp::LoadFragments { slot, .. }
        | StmtOp::Fill { slot, .. }
        | StmtOp::Acquire { slot, .. } => vec![slot],
        StmtOp::Dot { a, b_slot, .. } => match a {
            OperandA::Tile(_, slot) => vec![slot, b_slot],
            OperandA::Packed(_) => vec![b_slot],
        },
        StmtOp::Wait(events) => events.iter_mut().filter_map(slot_of).collect(),
        StmtOp::Compute { to, inputs, .. } => {
            let mut all: Vec<&mut Slot> = to.iter_mut().map(|t| &mut t.slot).collect();
            all.extend(inputs.iter_mut().filter_map(|i| match &mut i.from {
                InputSource::Tile(_, slot) => Some(slot),
                _ => None,
            }));
            all
        }
        _ => Vec::new(),
    }
}

/// The slot that something waited for is about.
fn slot_of(event: &mut Event) -> Option<&mut Slot> {
    match event {
        Event::Copied(_, slot) | Event::Read(_, slot) => Some(slot),
        Event::Product(_) => None,
    }
}

/// The tile of that slot.
fn tile_of(event: &mut Event) -> Option<&mut usize> {
    match event {
        Event::Copied(tile, _) | Event::Read(tile, _) => Some(tile),
        Event::Product(_) => None,
    }
}

fn named(slot: &mut Slot) -> Option<&mut Iteration> {
    match slot {
        Slot::Only => None,
        Slot::Of(iteration) => Some(iteration),
    }
}

/// The iterations that a statement names, apart from those in its lists.
fn iterations(op: &mut StmtOp) -> Vec<&mut Iteration> {
    if let StmtOp::When { guard: Guard::Exists(iteration), .. } = op {
        return vec![iteration];
    }
    slots(op).into_iter().filter_map(named).collect()
}

fn variables(op: &mut StmtOp) -> Vec<&mut usize> {
    match op {
        StmtOp::Map { to, .. } | StmtOp::Pack { to, .. } | StmtOp::LoadFragments { to, .. } | StmtOp::Load { to, .. } => vec![to],
        StmtOp::Reduce { to, from, .. } | StmtOp::Distribute { to, from, .. } => vec![to, from],
        StmtOp::QuadMax(v) | StmtOp::QuadSum(v) => vec![v],
        StmtOp::Stage { from, .. } => vec![from],
        StmtOp::Dot { acc, a, .. } => match a {
            OperandA::Packed(v) => vec![acc, v],
            OperandA::Tile(..) => vec![acc],
        },
        StmtOp::Wait(events) => {
            events.iter_mut().filter_map(|event| if let Event::Product(v) = event { Some(v) } else { None }).collect()
        }
        StmtOp::SaveState(from) => from.iter_mut().collect(),
        StmtOp::LoadState { to, .. } => to.iter_mut().collect(),
        StmtOp::When { guard: Guard::Flag(v), .. } => vec![v],
        _ => Vec::new(),
    }
}

fn tiles(op: &mut StmtOp) -> Vec<&mut usize> {
    match op {
        StmtOp::Copy { tile, .. }
        | StmtOp::LoadFragments { tile, .. }
        | StmtOp::Fill { tile, .. }
        | StmtOp::Acquire { tile, .. }
        | StmtOp::Stage { tile, .. }
        | StmtOp::Release(tile)
        | StmtOp::Advance(tile)
        | StmtOp::ReleaseBefore(tile) => vec![tile],
        StmtOp::Dot { a, b, .. } => match a {
            OperandA::Tile(tile, _) => vec![tile, b],
            OperandA::Packed(_) => vec![b],
        },
        StmtOp::Wait(events) => events.iter_mut().filter_map(tile_of).collect(),
        StmtOp::Compute { to, inputs, .. } => {
            let mut all: Vec<&mut usize> = to.iter_mut().map(|t| &mut t.tile).collect();
            all.extend(inputs.iter_mut().filter_map(|i| match &mut i.from {
                InputSource::Tile(tile, _) => Some(tile),
                _ => None,
            }));
            all
        }
        _ => Vec::new(),
    }
}

/// The name of a statement: the first word of its debug form.
fn statement(op: &StmtOp) -> String {
    let text = format!("{op:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// All changes of a plan.
pub fn changes(plan: &Plan) -> Vec<Change> {
    let mut all = Vec::new();
    for (role, of) in plan.roles.iter().enumerate() {
        walk(plan, role, &mut Vec::new(), &of.body, &mut all);
    }
    all
}

fn walk(plan: &Plan, role: usize, path: &mut Vec<(usize, usize)>, list: &[Stmt], all: &mut Vec<Change>) {
    for (index, stmt) in list.iter().enumerate() {
        let place = Place { role, path: path.clone(), index };
        let mut add = |kind| all.push(Change { place: place.clone(), kind });
        add(Kind::Drop);
        add(Kind::Double);
        if let Some(next) = list.get(index + 1) {
            add(Kind::Swap);
            (0..next.op.bodies().len()).for_each(|body| add(Kind::Into(body)));
        }
        if index > 1 {
            add(Kind::ToStart);
        }
        if index + 2 < list.len() {
            add(Kind::ToEnd);
        }
        if index > 0 {
            (0..list[index - 1].op.bodies().len()).for_each(|body| add(Kind::IntoBefore(body)));
        }
        if !path.is_empty() {
            add(Kind::OutBefore);
            add(Kind::OutBehind);
        }
        of_op(plan, &stmt.op, &mut add);
        for (body, list) in stmt.op.bodies().into_iter().enumerate() {
            path.push((index, body));
            walk(plan, role, path, list, all);
            path.pop();
        }
    }
}

/// Changes of what a statement is about.
fn of_op(plan: &Plan, op: &StmtOp, add: &mut dyn FnMut(Kind)) {
    let mut copy = op.clone();
    for (n, iteration) in iterations(&mut copy).into_iter().enumerate() {
        for by in [-1, 1] {
            let mut other = *iteration;
            shift(&mut other, by);
            if other != *iteration {
                add(Kind::Iteration(n, by));
            }
        }
    }
    for (n, &mut v) in variables(&mut copy).into_iter().enumerate() {
        for (other, data) in plan.variables.iter().enumerate() {
            if other != v && data.storage == plan.variables[v].storage {
                add(Kind::Variable(n, other));
            }
        }
    }
    for (n, &mut tile) in tiles(&mut copy).into_iter().enumerate() {
        (0..plan.tiles.len()).filter(|&other| other != tile).for_each(|other| add(Kind::Tile(n, other)));
    }
    (0..ring_ops(op).len()).for_each(|to| add(Kind::Ring(to)));
    match op {
        StmtOp::Wait(events) => {
            for (n, event) in events.iter().enumerate() {
                if events.len() > 1 {
                    add(Kind::Unname(n));
                }
                if !matches!(event, Event::Product(_)) {
                    add(Kind::Event(n));
                }
            }
        }
        StmtOp::When { guard, body, otherwise } => {
            add(Kind::Unguard);
            add(Kind::Exchange);
            [body, otherwise].into_iter().enumerate().filter(|(_, list)| !list.is_empty()).for_each(|(n, _)| add(Kind::Empty(n)));
            let other = match guard {
                Guard::FirstPart => Some(Guard::LastPart),
                Guard::LastPart => Some(Guard::FirstPart),
                Guard::OneLeft(id) => Some(Guard::Cut(vec![*id])),
                _ => None,
            };
            other.into_iter().for_each(|guard| add(Kind::Guard(guard)));
        }
        StmtOp::Loop { from, .. } => {
            add(Kind::Empty(0));
            add(Kind::Start(1));
            if *from > 0 {
                add(Kind::Start(-1));
            }
        }
        StmtOp::Step { at, .. } => {
            add(Kind::Start(1));
            if matches!(at, Iteration::First(_, n) | Iteration::Ahead(_, n) if *n > 0) {
                add(Kind::Start(-1));
            }
        }
        StmtOp::Dot { .. } => add(Kind::Zero),
        StmtOp::Fill { with, .. } if !with.is_empty() => add(Kind::Alone),
        StmtOp::Stage { .. } => add(Kind::Turned),
        StmtOp::SaveState(variables) | StmtOp::LoadState { to: variables, .. } if variables.len() > 1 => add(Kind::Reverse),
        StmtOp::TakeTurn | StmtOp::PassTurn => add(Kind::Turn),
        _ => {}
    }
}
