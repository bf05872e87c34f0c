//! What must hold of a plan before it can be executed symbolically: what statements name exists,
//! and tiles, fragments and expressions have the shapes that statements take.
//!
//! Nothing here depends on trip counts. Names of constants are the subject of [`super::constants`].

use std::collections::BTreeSet;

use flashtile_dsl::ir::Elem;

use super::fault::Faults;
use crate::arch::WARPGROUP;
use crate::plan::{
    Atom, Barriers, Builtin, Computed, Event, Expr, Function, GlobalTile, Guard, Input, InputSource, Iteration, LoopId, MeetBy,
    OperandA, Plan, RoleKind, Shape, Shared, SharedTile, Slot, Stmt, StmtOp, Storage, TileId, VarId, Variable, Voters, any, each,
};
use crate::schedule::{Persistent, SharedLayout};

/// The faults of a plan's structure. Only of a plan without them other faults can be looked for.
pub(super) fn faults(plan: &Plan) -> Faults {
    let mut check = Check { plan, faults: Faults::default(), branch: false, work: false, producer: false, peeled: None };
    check.declarations();
    for role in &plan.roles {
        check.producer = role.kind == RoleKind::Producer;
        check.block(&role.body);
    }
    check.faults
}

struct Check<'p> {
    plan: &'p Plan,
    faults: Faults,
    /// In statements that a program may leave out, whatever its part.
    branch: bool,
    /// In statements for each program that a block takes.
    work: bool,
    /// In statements of the producer.
    producer: bool,
    /// The loop among statements that are taken where it walks anything, which stand for its steps.
    peeled: Option<LoopId>,
}

/// For what an expression is evaluated.
#[derive(Clone, Copy)]
enum Place {
    /// A fragment of this shape, so many row tiles and column tiles.
    Fragment(Shape, u32, u32),
    /// The elements of a computed tile.
    Part,
}

impl Check<'_> {
    fn fault(&mut self, text: impl Into<String>) {
        self.faults.insert(text);
    }

    /// Places in shared memory lie apart.
    fn declarations(&mut self) {
        let plan = self.plan;
        self.roles();
        let asked = plan.roles.iter().filter_map(|role| role.registers);
        if asked.into_iter().any(|n| !n.is_multiple_of(8) || !(24..=256).contains(&n)) {
            self.fault("registers that a role asks for are no multiple of 8 from 24 to 256");
        }
        let groups = plan.column_groups;
        if !matches!(groups, 1 | 2 | 4) || !plan.computing_warps().is_multiple_of(groups) {
            self.fault("the warps that compute divide into 1, 2 or 4 column groups");
        }
        if groups > 1 && plan.is_specialized() && !plan.row_warps().is_multiple_of(WARPGROUP) {
            self.fault("column groups of consumers are whole warpgroups");
        }
        if plan.rows_per_warp == 0 || !plan.rows_per_warp.is_multiple_of(16) {
            self.fault("the rows of a warp are no multiple of 16");
        }
        for v in &plan.variables {
            let rows = match v.storage {
                Storage::Fragment(Shape::Row | Shape::Accumulator) | Storage::Packed => 16 * v.m_tiles,
                Storage::Fragment(Shape::Column | Shape::Uniform) | Storage::Lanes | Storage::Flag => 0,
            };
            let whole = v
                .across
                .is_none_or(|warps| warps.is_multiple_of(WARPGROUP) && plan.computing_warps().is_multiple_of(warps.max(1)));
            if !whole || (v.across.is_some() && v.storage != Storage::Fragment(Shape::Accumulator)) {
                self.fault(format!("{} lies across no whole number of warpgroups", v.name));
            }
            if rows > plan.rows_per_warp && v.across.is_none() {
                let most = plan.rows_per_warp;
                self.fault(format!("{} has {rows} rows of a warp, which has {most}: warps would share rows", v.name));
            }
        }
        let mut places: Vec<(u32, u32, &str)> = Vec::new();
        for tile in &plan.tiles {
            self.tile(tile);
            places.push((tile.offset, tile.offset + tile.slots * tile.slot_bytes(), &tile.name));
            places.extend(tile.mbarriers().map(|at| (at, at + 16 * tile.slots, tile.name.as_str())));
        }
        places.extend(plan.work_ring.map(|at| (at, at + plan.work_ring_bytes(), "the ring of programs")));
        if let Some(meeting) = plan.meeting.as_ref().filter(|m| m.by == MeetBy::Cluster) {
            let bytes = meeting.state_bytes(plan.computing_threads());
            places.push((meeting.offset, meeting.offset + bytes, "the state of a part"));
        }
        places.sort_unstable();
        for pair in places.windows(2) {
            let ((_, end, first), (start, _, second)) = (pair[0], pair[1]);
            if start < end {
                self.fault(format!("{first} and {second} lie in the same shared memory"));
            }
        }
        if (plan.work == Persistent::Dynamic || plan.makes_again()) != plan.work_ring.is_some() {
            self.fault("programs are handed over by a ring if and only if blocks take them dynamically or make some again");
        }
        if plan.makes_again() && (plan.work == Persistent::Off || plan.meeting.is_some()) {
            self.fault("programs are made again by blocks that stay, and do not meet");
        }
    }

    /// All warps are one role, or some produce what others consume; every ring is filled by one
    /// role.
    fn roles(&mut self) {
        let plan = self.plan;
        match &plan.roles[..] {
            [all] if all.kind == RoleKind::All => {}
            [producers @ .., consumers] if consumers.kind == RoleKind::Consumers && !producers.is_empty() => {
                if producers.iter().any(|role| role.kind != RoleKind::Producer) {
                    self.fault("the roles before the consumers are producers");
                }
            }
            _ => self.fault("a plan has a role of all warps, or producers and then consumers"),
        }
        for (number, role) in plan.roles.iter().enumerate() {
            let groups = role.warps / WARPGROUP;
            let whole = groups > 0 && role.warps.is_multiple_of(WARPGROUP);
            match role.kind {
                RoleKind::Producer if !whole || groups != 1 => {
                    self.fault(format!("the role {} is a producer, which has {WARPGROUP} warps", role.name));
                }
                RoleKind::Consumers if !whole => {
                    self.fault(format!("the warps of the role {} are no whole warpgroups of {WARPGROUP} warps", role.name));
                }
                _ => {}
            }
            if plan.roles[..number].iter().any(|other| other.name == role.name) {
                self.fault(format!("two roles are called {}", role.name));
            }
        }
        let asks = plan.roles.iter().filter(|role| role.registers.is_some()).count();
        if asks > 0 && asks < plan.roles.len() {
            self.fault("some roles ask for registers and some do not: what is left for those is not known");
        }
        if plan.threads() > 1024 {
            self.fault("a block has more than 1024 threads");
        }
        for (ring, tile) in plan.tiles.iter().enumerate() {
            if let Some(Barriers::Of(of)) = tile.barriers
                && !plan.tiles.get(of).is_some_and(|of| of.ring_at().is_some() && of.slots == tile.slots)
            {
                self.fault(format!("{} comes with what is no ring of as many slots", tile.name));
            }
            if plan.ring_roles(ring).fills.len() > 1 {
                self.fault(format!("{} is filled by two roles: each role has its own place in a ring", tile.name));
            }
        }
    }

    /// A tile has the form that copies and products want.
    fn tile(&mut self, t: &SharedTile) {
        let bytes = t.elem.bytes().unwrap_or(0) as u32;
        if t.slots == 0 || bytes == 0 || t.pitch == 0 || t.slabs == 0 {
            return self.fault(format!("{} has no bytes", t.name));
        }
        if t.columns * bytes > t.slabs * t.pitch {
            self.fault(format!("the columns of {} do not fit its pitch", t.name));
        }
        // Chunks trade places within 128 bytes, or within a shorter row.
        let whole = t.pitch.is_multiple_of(128) || (t.pitch.is_power_of_two() && t.pitch >= 32);
        let swizzled = t.layout == SharedLayout::Xor && !whole;
        if swizzled || !t.pitch.is_multiple_of(16) || !t.rows.is_multiple_of(8) {
            self.fault(format!("the rows of {} have no such layout", t.name));
        }
        // A swizzle repeats after eight rows, and begins at such a multiple.
        let aligned = if t.layout == SharedLayout::Xor && self.plan.is_specialized() { 8 * t.pitch } else { 16 };
        if !t.offset.is_multiple_of(aligned) || t.mbarriers().any(|at| !at.is_multiple_of(8)) {
            self.fault(format!("{} begins at no multiple of {aligned} bytes, or its mbarriers at none of 8", t.name));
        }
        // Warps write tiles that they share, or that each has rows of.
        let name = &t.name;
        let writes = |op: &StmtOp| match op {
            StmtOp::Stage { tile, .. } | StmtOp::Publish { tile, .. } => !t.warp_private && self.plan.tiles[*tile].name == *name,
            StmtOp::Distribute { tile, .. } | StmtOp::PutRows { tile, .. } => {
                t.warp_private && self.plan.tiles[*tile].name == *name
            }
            _ => false,
        };
        let written = || self.plan.roles.iter().any(|role| any(&role.body, &writes));
        let shared = t.barriers.is_none() && written();
        if t.barriers.is_some() != self.plan.is_specialized() && !shared {
            self.fault(format!("{} is a ring with mbarriers if and only if a producer fills it", t.name));
        }
        if t.barriers.is_none() && t.slabs != 1 && !shared {
            self.fault(format!("{} has its columns in parts, which TMA and column groups write", t.name));
        }
    }

    fn block(&mut self, body: &[Stmt]) {
        for stmt in body {
            self.faults.at = stmt.line;
            if self.producer && !is_of_producer(&stmt.op) {
                self.fault("the producer does more than fill rings");
            }
            if self.ids_exist(&stmt.op) {
                self.statement(&stmt.op);
            }
            let around = (self.branch, self.work, self.peeled);
            self.work |= matches!(stmt.op, StmtOp::Work(_));
            if let StmtOp::When { guard, body, .. } = &stmt.op {
                if let Guard::Exists(Iteration::First(id, _)) = guard
                    && holds(body, *id)
                {
                    self.peeled = Some(*id);
                } else {
                    self.branch |= !self.leaves_nothing_out(guard);
                }
            }
            stmt.op.bodies().into_iter().for_each(|body| self.block(body));
            (self.branch, self.work, self.peeled) = around;
        }
    }

    /// Whether the statements of a branch are left out only where they have nothing to do: another block
    /// or warp does it, or they are steps of a loop, of which no such one is left.
    fn leaves_nothing_out(&self, guard: &Guard) -> bool {
        match guard {
            Guard::FirstPart | Guard::LastPart | Guard::OwnWarps => true,
            Guard::OneLeft(id) => self.peeled == Some(*id),
            _ => false,
        }
    }

    /// Whether everything that a statement names by its number exists.
    fn ids_exist(&mut self, op: &StmtOp) -> bool {
        let plan = self.plan;
        let (tiles, variables) = (op.tiles(), op.variables());
        let slots = tiles.iter().filter_map(|&(_, slot)| if let Slot::Of(iteration) = slot { Some(iteration) } else { None });
        let mut loops: Vec<LoopId> = slots.map(Iteration::of_loop).collect();
        match op {
            StmtOp::When { guard: Guard::Exists(iteration), .. } => loops.push(iteration.of_loop()),
            StmtOp::When { guard: Guard::Cut(ids), .. } => loops.extend(ids),
            StmtOp::When { guard: Guard::OneLeft(id), .. } | StmtOp::Loop { id, .. } => loops.push(*id),
            StmtOp::Step { at, .. } => loops.push(at.of_loop()),
            _ => {}
        }
        let exist = tiles.iter().all(|&(tile, _)| tile < plan.tiles.len())
            && variables.iter().all(|&v| v < plan.variables.len())
            && loops.iter().all(|&l| l < plan.loops.len());
        if !exist {
            self.fault("a statement names a tile, a variable or a loop that the plan does not have");
        }
        exist
    }

    /// Bits are written by a load of truth values alone, and read by expressions alone.
    fn bits(&mut self, op: &StmtOp) {
        let loads = matches!(op, StmtOp::Load { from, .. } if from.elem == Elem::Bool);
        for v in op.variables() {
            let v = &self.plan.variables[v];
            if v.bits && !(loads && v.storage == Storage::Fragment(Shape::Accumulator)) {
                self.fault(format!("{} has bits, which a load of a matrix of truth values alone writes", v.name));
            }
        }
    }

    /// What lies across is made by a product and added to a tensor: nothing else has its rows.
    fn across(&mut self, op: &StmtOp) {
        let all = &self.plan.variables;
        let mut found: Vec<VarId> = match op {
            StmtOp::Dot { a: OperandA::Packed(v), .. } => vec![*v],
            StmtOp::Dot { .. } | StmtOp::Add { place: None, .. } | StmtOp::PutRows { .. } | StmtOp::Wait(_) => Vec::new(),
            op => op.variables(),
        };
        for e in op.expressions() {
            e.visit(&mut |e| {
                if let Expr::Element(name, _) = e {
                    found.extend(all.iter().position(|v| v.name == *name));
                }
            });
        }
        for v in found.into_iter().filter(|&v| self.plan.variables[v].across.is_some()) {
            self.fault(format!("{} lies across, and is no product that is added to a tensor", self.plan.variables[v].name));
        }
    }

    fn statement(&mut self, op: &StmtOp) {
        let plan = self.plan;
        self.bits(op);
        self.across(op);
        match op {
            StmtOp::Let { name, value, .. } => {
                let walked = plan.loops.iter().find(|info| info.list.as_ref().is_some_and(|list| list.entry == *name));
                if walked.is_some_and(|info| info.entry().as_ref() != Some(value)) {
                    self.fault(format!("{name} is not the entry of the tile that the iteration in progress walks"));
                }
                self.uniform(value);
            }
            StmtOp::Map { to, value } => {
                if let Some(place) = self.fragment(*to) {
                    self.expression(value, place);
                }
            }
            StmtOp::Pack { to, elem, value } => {
                self.is(*to, Storage::Packed);
                if !is_16_bit(*elem) {
                    self.fault(format!("{} has no 16 bits", elem.name()));
                }
                let v = &plan.variables[*to];
                self.expression(value, Place::Fragment(Shape::Accumulator, v.m_tiles, v.n_tiles));
            }
            StmtOp::Reduce { to, from, .. } => {
                self.is(*from, Storage::Fragment(Shape::Accumulator));
                self.is(*to, Storage::Fragment(Shape::Row));
                self.same(plan.variables[*to].m_tiles, plan.variables[*from].m_tiles, *to);
            }
            StmtOp::Distribute { to, from, tile } => {
                self.is(*to, Storage::Fragment(Shape::Column));
                self.is(*from, Storage::Lanes);
                self.same(plan.variables[*to].n_tiles, plan.variables[*from].n_tiles, *to);
                if plan.variables[*to].integer != plan.variables[*from].integer || plan.column_groups > 1 {
                    self.fault(format!("{} is no vector of what it is made of", plan.variables[*to].name));
                }
                let (t, columns) = (&plan.tiles[*tile], 64 * plan.variables[*to].n_tiles.div_ceil(8));
                self.in_block(*tile, &Slot::Only);
                let own = t.warp_private && t.elem == Elem::F32 && t.layout != SharedLayout::Xor;
                if !own || t.rows < plan.computing_warps() || t.columns < columns {
                    self.fault(format!("{} has no row of {columns} numbers for each warp", t.name));
                }
            }
            StmtOp::QuadSum(v) | StmtOp::QuadMax(v) => self.is(*v, Storage::Fragment(Shape::Row)),
            StmtOp::Copy { tile, slot, from } => {
                self.in_block(*tile, slot);
                let t = &plan.tiles[*tile];
                if t.elem != from.elem || from.column_stride != Expr::Int(1) {
                    self.fault(format!("{} has other elements than {}, or they do not follow each other", t.name, from.tensor));
                }
                self.global(from);
            }
            StmtOp::Compute { to, inputs, shared } => self.compute(to, inputs, shared),
            StmtOp::LoadFragments { to, tile, slot, column } => {
                match plan.is_specialized() {
                    true => {
                        self.ring(*tile);
                        self.slot(*tile, slot);
                    }
                    false => self.in_block(*tile, slot),
                }
                self.is(*to, Storage::Packed);
                let (v, t) = (&plan.variables[*to], &plan.tiles[*tile]);
                if t.slabs > 1 && !column.is_multiple_of(t.pitch / 2) {
                    self.fault(format!("{} is read from a column on at which no slab begins", t.name));
                }
                self.fits(*tile, self.rows(v.m_tiles), column + 8 * v.n_tiles);
            }
            StmtOp::ReadRows { to, tile, slot, turned } => {
                self.ring(*tile);
                self.slot(*tile, slot);
                self.is(*to, Storage::Fragment(Shape::Accumulator));
                let (v, t) = (&plan.variables[*to], &plan.tiles[*tile]);
                if v.integer || !is_16_bit(t.elem) || plan.column_groups > 1 {
                    self.fault(format!("{} is no tile of 16-bit numbers of which each warp reads rows of all columns", t.name));
                }
                let (rows, columns) = (self.rows(v.m_tiles), 8 * v.n_tiles);
                if *turned {
                    // A warp has 16 rows, which are two pieces of 16 bytes of a slab.
                    let in_pieces = v.m_tiles == 1 && v.n_tiles.is_multiple_of(2) && t.pitch == 128;
                    if !in_pieces {
                        self.fault(format!("{} is no tile of whole lines of which each warp reads 16 columns", t.name));
                    }
                    self.fits(*tile, columns, rows);
                } else {
                    self.fits(*tile, rows, columns);
                }
            }
            StmtOp::Dot { .. } => self.dot(op),
            StmtOp::Stage { tile, slot, from, turned } => {
                self.in_block(*tile, slot);
                let t = &plan.tiles[*tile];
                let is_there = match slot {
                    Slot::Only => t.slots == 1,
                    // One slot that warps exchange holds another iteration each time.
                    Slot::Of(_) => plan.is_specialized() && (t.slots > 1 || t.exchange.is_some()),
                };
                if !is_there {
                    self.fault(format!("a slot of {} is staged that it does not have", t.name));
                }
                let v = &plan.variables[*from];
                // Multiply-adds take f32 operands: left ones of a warp's own rows, and those that all
                // warps or all column groups read.
                let of_multiply_adds = t.warp_private || t.elem == Elem::F32;
                self.is(*from, if of_multiply_adds { Storage::Fragment(Shape::Accumulator) } else { Storage::Packed });
                if !of_multiply_adds && !is_16_bit(t.elem) {
                    self.fault(format!("{} is staged, but is no operand that all warps read", t.name));
                }
                if t.warp_private && plan.column_groups > 1 {
                    self.fault(format!("{} has the columns of one group, and its products take those of all", t.name));
                }
                let (rows, columns) = (self.rows(v.m_tiles), 8 * v.n_tiles * plan.column_groups);
                if *turned {
                    self.fits(*tile, columns, rows);
                    if t.warp_private || v.m_tiles != 1 || plan.column_groups > 1 || !plan.is_specialized() {
                        self.fault(format!("{} is staged by columns, and is no operand across the warps", t.name));
                    }
                } else {
                    self.fits(*tile, rows, columns);
                }
            }
            StmtOp::Publish { tile, from: v } | StmtOp::Merge { to: v, tile, .. } => {
                self.in_block(*tile, &Slot::Only);
                self.is(*v, Storage::Fragment(Shape::Row));
                let (v, t) = (&plan.variables[*v], &plan.tiles[*tile]);
                if plan.column_groups == 1 || t.elem != Elem::F32 || t.layout == SharedLayout::Xor || v.integer {
                    self.fault(format!("{} has no column for each of several column groups", t.name));
                }
                self.fits(*tile, self.rows(v.m_tiles), plan.column_groups);
            }
            StmtOp::Load { to, from } => {
                if plan.variables[*to].storage != Storage::Lanes
                    && let Some(Place::Fragment(Shape::Uniform, ..)) = self.fragment(*to)
                {
                    self.fault(format!("{} is no fragment with rows or columns", plan.variables[*to].name));
                }
                self.global(from);
            }
            StmtOp::Store { to, value, variable, shape, m_tiles, n_tiles } => {
                if self.branch {
                    self.fault("a store in a branch that may not be taken");
                }
                self.global(to);
                self.expression(value, Place::Fragment(*shape, *m_tiles, *n_tiles));
                if let Some(v) = *variable {
                    self.is(v, Storage::Fragment(*shape));
                    self.extents(&plan.variables[v].name, v, Place::Fragment(*shape, *m_tiles, *n_tiles));
                }
            }
            StmtOp::PutRows { tile, from } => self.rows_of_warps(*tile, *from),
            StmtOp::AddRows { map, at, tile, of } => {
                self.rows_of_warps(*tile, *of);
                at.iter().for_each(|e| self.uniform(e));
                let (t, v) = (&plan.tiles[*tile], &plan.variables[*of]);
                let fits = plan.maps.get(*map).is_some_and(|map| {
                    // A box has all parts of a row, or one.
                    let parts = t.woven.then_some(t.slabs);
                    let mut wanted: Vec<u32> = [t.pitch / 4].into_iter().chain(parts).chain([16 * v.m_tiles]).collect();
                    let has_all = wanted.len() <= at.len();
                    wanted.resize(at.len(), 1);
                    has_all && map.tile == wanted && map.element_bytes == 4 && map.is_split() == t.woven
                });
                if !fits {
                    self.fault(format!("{} is added through a tensor map with boxes of another shape", t.name));
                }
            }
            StmtOp::Add { to, from, place } => {
                if let Some(Place::Fragment(Shape::Uniform, ..)) = self.fragment(*from) {
                    self.fault(format!("{} is no fragment with rows or columns", plan.variables[*from].name));
                }
                if to.elem != Elem::F32 || plan.variables[*from].integer {
                    self.fault(format!("{} is added to, which takes f32", to.tensor));
                }
                if let (Some(place), Some(of)) = (place, self.fragment(*from)) {
                    self.expression(place, of);
                    if to.row_stride != Expr::Int(0) || to.column_stride != Expr::Int(0) {
                        self.fault(format!("{} is added to at places of elements, and has strides", to.tensor));
                    }
                }
                self.global(to);
            }
            StmtOp::When { guard, otherwise, .. } => self.guard(guard, otherwise),
            StmtOp::Loop { unroll: 0, .. } => self.fault("a loop makes no iterations at a time"),
            StmtOp::Fill { tile, slot: _, map, at, with } => {
                self.ring(*tile);
                self.box_of(*tile, *map, at);
                with.iter().for_each(|companion| self.box_of(companion.tile, companion.map, &companion.at));
                let mut come: Vec<TileId> = with.iter().map(|companion| companion.tile).collect();
                come.sort_unstable();
                if come != plan.companions(*tile) {
                    self.fault(format!(
                        "{} is filled without a tile that comes with it, or with another",
                        plan.tiles[*tile].name
                    ));
                }
            }
            StmtOp::Acquire { tile, .. } | StmtOp::Release(tile) | StmtOp::Advance(tile) | StmtOp::ReleaseBefore(tile) => {
                self.ring(*tile);
            }
            StmtOp::Exchange { tile, .. } => {
                let t = &plan.tiles[*tile];
                if t.exchange.is_none() || t.warp_private || !plan.is_specialized() {
                    self.fault(format!("{} is exchanged, and has no mbarriers for that", t.name));
                }
            }
            StmtOp::Wait(events) => {
                for event in events {
                    if let Event::Copied(tile, slot) = event {
                        self.in_block(*tile, slot);
                    }
                }
            }
            StmtOp::Work(_) if plan.work == Persistent::Off => self.fault("a block takes several programs, but it has one"),
            StmtOp::MakeAgain { condition, m_tiles } => {
                self.expression(condition, Place::Fragment(Shape::Row, *m_tiles, 1));
                if !self.work {
                    self.fault("a program is made again that is none of several of a block");
                }
            }
            StmtOp::LoadState { from, .. } => from.iter().for_each(|e| self.uniform(e)),
            StmtOp::Loop { .. }
            | StmtOp::Step { .. }
            | StmtOp::Commit
            | StmtOp::Barrier
            | StmtOp::TakeTurn
            | StmtOp::PassTurn
            | StmtOp::Work(_)
            | StmtOp::AwaitPart
            | StmtOp::PassPart
            | StmtOp::SaveState(_)
            | StmtOp::ClusterBarrier => {}
        }
    }

    fn guard(&mut self, guard: &Guard, otherwise: &[Stmt]) {
        match guard {
            Guard::Exists(Iteration::Behind(..) | Iteration::Last(_)) => {
                self.fault("a condition asks whether an iteration exists that comes before others");
            }
            Guard::Cut(ids) if ids.is_empty() => self.fault("a tile is cut by no loop"),
            Guard::Holds(condition) => self.uniform(condition),
            Guard::Vote { condition, m_tiles, flag, of } => {
                self.expression(condition, Place::Fragment(Shape::Row, *m_tiles, 1));
                flag.iter().for_each(|&v| self.is(v, Storage::Flag));
                if *of == Voters::Role && flag.is_some() {
                    self.fault("a vote of all warps of a role has a flag, which is of one warp");
                }
                if !otherwise.is_empty() {
                    self.fault("a vote has statements for warps that vote against it");
                }
            }
            Guard::Flag(v) => self.is(*v, Storage::Flag),
            Guard::Again if !self.plan.makes_again() => {
                self.fault("a condition asks whether the program is made again, which none is");
            }
            Guard::FirstPart | Guard::LastPart | Guard::OwnWarps if self.plan.meeting.is_none() => {
                self.fault("a condition asks for a part, but programs do not meet");
            }
            _ => {}
        }
    }

    /// What is computed, and from what, has one shape; see also [`super::block`].
    fn compute(&mut self, to: &[Computed], inputs: &[Input], shared: &[Shared]) {
        if to.is_empty() {
            self.fault("a computation makes no tile");
        }
        for Computed { tile, slot, value } in to {
            self.in_block(*tile, slot);
            self.expression(value, Place::Part);
        }
        shared.iter().for_each(|s| self.expression(&s.value, Place::Part));
        for input in inputs {
            match &input.from {
                InputSource::Tile(tile, slot) => self.in_block(*tile, slot),
                InputSource::Matrix(from) | InputSource::Row(from) | InputSource::Column(from) => self.global(from),
            }
        }
    }

    fn dot(&mut self, op: &StmtOp) {
        let StmtOp::Dot { acc, zero, a, a_turned, b, b_slot, b_column, k_major, depth, atom } = op else { unreachable!("a dot") };
        let elem = self.plan.tiles[*b].elem;
        let other = matches!(a, OperandA::Tile(tile, _) if self.plan.tiles[*tile].elem != elem);
        let takes = match atom {
            Atom::Ffma => elem == Elem::F32 && matches!(a, OperandA::Tile(..)),
            Atom::Mma { k: 8, .. } => elem == Elem::F16,
            Atom::Mma { k, .. } => is_16_bit(elem) && *k == 16,
            Atom::Wgmma => is_16_bit(elem) && self.plan.variables[*acc].m_tiles == 1 && self.plan.variables[*acc].n_tiles <= 32,
        };
        if other || !takes || *depth == 0 || !depth.is_multiple_of(16) {
            self.fault(format!("no instruction makes the product {} of such operands", self.plan.variables[*acc].name));
        }
        if (*atom == Atom::Wgmma) != self.plan.is_specialized() {
            self.fault("products are asynchronous if and only if a producer fills the rings");
        }
        self.is(*acc, Storage::Fragment(Shape::Accumulator));
        let v = &self.plan.variables[*acc];
        match a {
            OperandA::Tile(tile, slot) => {
                self.slot(*tile, slot);
                match *a_turned {
                    // Warpgroups begin where columns do that lie together.
                    true if *atom == Atom::Wgmma && self.plan.tiles[*tile].pitch == 128 => {
                        self.fits(*tile, *depth, self.rows_of(v));
                    }
                    true => self.fault(format!("{} is read by columns, which wgmma does of rows of 128 bytes", v.name)),
                    false => self.fits(*tile, self.rows_of(v), *depth),
                }
            }
            OperandA::Packed(p) => {
                self.is(*p, Storage::Packed);
                let packed = &self.plan.variables[*p];
                if packed.m_tiles != v.m_tiles || 8 * packed.n_tiles < *depth {
                    self.fault(format!("{} does not fit the product {}", packed.name, v.name));
                }
            }
        }
        if let OperandA::Tile(tile, _) = a {
            self.turned_once(*tile, *a_turned, v);
        }
        self.slot(*b, b_slot);
        // All column groups read their shares of B.
        let groups = self.plan.computing_warps() / self.plan.row_warps_of(v).max(1);
        let n = 8 * v.n_tiles * groups;
        let (rows, columns) = if *k_major { (n, *depth) } else { (*depth, n) };
        // What is read the second time is times 0: TMA has filled the left operand so.
        let padded = |a: &OperandA| matches!(a, OperandA::Tile(tile, _) if self.plan.tiles[*tile].barriers.is_some());
        let takes_narrow = *k_major && *depth == 2 * SharedTile::NARROW && padded(a);
        let is_twice = takes_narrow && self.plan.tiles[*b].is_read_twice();
        self.fits(*b, rows, b_column + if is_twice { SharedTile::NARROW } else { columns });
        if self.plan.tiles[*b].is_narrow() && !takes_narrow {
            self.fault(format!("{} has rows of 16 bytes, which only a step of 16 takes for columns", self.plan.tiles[*b].name));
        }
        // The operand of a warpgroup begins where columns do that a swizzle keeps together, as a part
        // of a tile does. Warps load 8 columns of 16 bits, two times, or as multiply-adds have them.
        let t = &self.plan.tiles[*b];
        let together = if *atom == Atom::Wgmma || t.layout == SharedLayout::Xor { t.pitch.min(128) / 2 } else { 8 };
        let share = if *k_major || groups == 1 { 0 } else { 8 * v.n_tiles };
        let begins = match atom {
            Atom::Mma { .. } if t.slabs == 1 => 16,
            Atom::Ffma if t.slabs == 1 => 8,
            _ => together,
        };
        if v.across.is_some() && (*atom != Atom::Wgmma || !zero || *k_major) {
            self.fault(format!("{} lies across, and is no product of wgmma that starts at 0", v.name));
        }
        if !b_column.is_multiple_of(together) || !share.is_multiple_of(begins) {
            self.fault(format!("the operand {} of {} begins within a part of its columns", self.plan.tiles[*b].name, v.name));
        }
    }

    /// What warps stage has the rows of a product across them for columns, and those of others for
    /// rows.
    fn turned_once(&mut self, tile: TileId, is_read_turned: bool, product: &Variable) {
        let stage = |op: &StmtOp| match op {
            StmtOp::Stage { tile: staged, turned, .. } if *staged == tile => Some(*turned),
            _ => None,
        };
        let wrong = |op: &StmtOp| stage(op).is_some_and(|turned| (turned != is_read_turned) != product.across.is_some());
        if self.plan.roles.iter().any(|role| any(&role.body, &wrong)) {
            self.fault(format!("{} is not turned once for the product {}", self.plan.tiles[tile].name, product.name));
        }
    }

    /// Rows of a tile of which each warp has so many tiles of 16.
    fn rows(&self, m_tiles: u32) -> u32 {
        16 * m_tiles * self.plan.row_warps()
    }

    /// Rows of a tile that a fragment is a product of.
    fn rows_of(&self, v: &Variable) -> u32 {
        16 * v.m_tiles * self.plan.row_warps_of(v)
    }

    /// A tile holds so many rows and columns.
    fn fits(&mut self, tile: TileId, rows: u32, columns: u32) {
        let t = &self.plan.tiles[tile];
        if t.rows != rows || t.columns < columns {
            self.fault(format!(
                "{} has {} x {} elements, where {rows} x {columns} are read or written",
                t.name, t.rows, t.columns
            ));
        }
    }

    /// A tile of a block where all warps copy.
    fn in_block(&mut self, tile: TileId, slot: &Slot) {
        self.slot(tile, slot);
        let t = &self.plan.tiles[tile];
        if t.barriers.is_some() {
            self.fault(format!("{} is a ring between roles", t.name));
        }
    }

    /// A box that fills a slot of a tile.
    fn box_of(&mut self, tile: TileId, map: usize, at: &[Expr]) {
        at.iter().for_each(|e| self.uniform(e));
        let t = &self.plan.tiles[tile];
        let fits = self.plan.maps.get(map).is_some_and(|map| {
            let bytes = map.tile.iter().product::<u32>() * map.element_bytes * t.slabs;
            map.tile.len() == at.len() && map.row_bytes() == t.pitch && bytes == t.slot_bytes()
        });
        if !fits {
            self.fault(format!("{} is filled through a tensor map with boxes of another shape", t.name));
        }
    }

    fn ring(&mut self, tile: TileId) {
        let t = &self.plan.tiles[tile];
        if t.ring_at().is_none() {
            self.fault(format!("{} is no ring between roles", t.name));
        }
    }

    fn slot(&mut self, tile: TileId, slot: &Slot) {
        let t = &self.plan.tiles[tile];
        if t.barriers.is_none() && matches!(slot, Slot::Of(Iteration::Behind(..) | Iteration::Last(_))) {
            self.fault(format!("a slot of {} is named from behind, which only rings between roles are", t.name));
        }
    }

    fn is(&mut self, v: VarId, storage: Storage) {
        let variable = &self.plan.variables[v];
        if variable.storage != storage {
            self.fault(format!("{} is {:?}, where {storage:?} is wanted", variable.name, variable.storage));
        }
    }

    fn same(&mut self, one: u32, other: u32, v: VarId) {
        if one != other {
            self.fault(format!("{} has another shape than what it is computed with", self.plan.variables[v].name));
        }
    }

    /// The place of a variable that holds one value per element.
    fn fragment(&mut self, v: VarId) -> Option<Place> {
        let variable = &self.plan.variables[v];
        match variable.storage {
            Storage::Fragment(shape) => Some(Place::Fragment(shape, variable.m_tiles, variable.n_tiles)),
            Storage::Packed | Storage::Lanes | Storage::Flag => {
                self.fault(format!("{} is no fragment of single values", variable.name));
                None
            }
        }
    }

    fn uniform(&mut self, e: &Expr) {
        self.expression(e, Place::Fragment(Shape::Uniform, 1, 1));
    }

    /// Checks a tile by way of which rows of a fragment are added.
    fn rows_of_warps(&mut self, tile: TileId, from: VarId) {
        self.in_block(tile, &Slot::Only);
        let (t, v) = (&self.plan.tiles[tile], &self.plan.variables[from]);
        let rows = 16 * v.m_tiles * self.plan.computing_warps();
        let own = t.warp_private && t.elem == Elem::F32 && t.slots == 1;
        // Boxes of rows that are swizzled over their length, each warp's at a multiple of eight.
        let boxes = t.layout == SharedLayout::Xor && matches!(t.pitch, 64 | 128) && t.offset.is_multiple_of(8 * t.pitch);
        let columns = 8 * v.n_tiles;
        if !own || !boxes || t.rows != rows || t.columns != columns || !columns.is_multiple_of(t.pitch / 4) {
            self.fault(format!("{} has no {rows} rows of {} numbers", t.name, 8 * v.n_tiles));
        }
        if v.storage != Storage::Fragment(Shape::Accumulator) || v.integer || !self.plan.is_specialized() {
            self.fault(format!("{} is not put in rows, in a plan with roles", v.name));
        }
    }

    fn global(&mut self, tile: &GlobalTile) {
        tile.expressions().into_iter().for_each(|e| self.uniform(e));
    }

    /// Every element that an expression reads has a value where the expression is evaluated.
    fn expression(&mut self, e: &Expr, place: Place) {
        let mut leaves = Vec::new();
        let mut known = true;
        e.visit(&mut |e| match e {
            Expr::Builtin(Builtin::Row | Builtin::Column) => known &= matches!(place, Place::Part),
            Expr::Builtin(Builtin::Program) => known &= self.work,
            Expr::Element(name, shape) => leaves.push((name.clone(), *shape, true)),
            Expr::RowPosition(name) => leaves.push((name.clone(), Shape::Row, false)),
            Expr::ColumnPosition(name) => leaves.push((name.clone(), Shape::Column, false)),
            _ => {}
        });
        self.bits_of_positions(e, place);
        if !known {
            self.fault("an expression asks for the row, the column or the program where there is none");
        }
        for (name, shape, is_element) in leaves {
            let Place::Fragment(of, ..) = place else { continue };
            let known = match shape {
                Shape::Uniform => true,
                Shape::Row => matches!(of, Shape::Row | Shape::Accumulator),
                Shape::Column => matches!(of, Shape::Column | Shape::Accumulator),
                Shape::Accumulator => of == Shape::Accumulator,
            };
            if !known {
                self.fault(format!("{name} has no value for each element of what is computed with it"));
            } else if is_element {
                match self.plan.variables.iter().position(|v| v.name == name) {
                    Some(v) => {
                        self.is(v, Storage::Fragment(shape));
                        self.extents(&name, v, place);
                    }
                    None if shape == Shape::Uniform => {} // a constant
                    None => self.fault(format!("{name} is no variable of the plan")),
                }
            }
        }
    }

    /// Bits that the elements of a thread have are clear in its first position. In what a `Compute`
    /// makes elements are no fragment's, and a position has no bits told apart.
    fn bits_of_positions(&mut self, e: &Expr, place: Place) {
        let (mut named, mut others) = (BTreeSet::new(), false);
        e.visit(&mut |e| {
            let Expr::Call(Function::Bits, of) = e else { return };
            match &of[0] {
                Expr::RowPosition(name) => _ = named.insert((name.clone(), true)),
                Expr::ColumnPosition(name) => _ = named.insert((name.clone(), false)),
                _ => others = true,
            }
        });
        if others {
            self.fault("something else than a position has the bits of one");
        }
        if matches!(place, Place::Part) {
            return;
        }
        for (name, is_row) in named {
            let first = if is_row { Builtin::FirstRow } else { Builtin::FirstColumn };
            let (mut defined, mut right) = (false, true);
            let mut look = |op: &StmtOp| {
                if let StmtOp::Let { name: of, value, .. } = op
                    && *of == name
                {
                    defined = true;
                    right &= value.begins_at_sixteens(first);
                }
            };
            self.plan.roles.iter().for_each(|role| each(&role.body, &mut look));
            if !(defined && right) {
                self.fault(format!("{name} has the bits of its elements, and is no multiple of 16 but for the thread's own"));
            }
        }
    }

    /// A variable has as many tiles as the place where its elements are used.
    fn extents(&mut self, name: &str, v: VarId, place: Place) {
        let Place::Fragment(_, m_tiles, n_tiles) = place else { return };
        let v = &self.plan.variables[v];
        let (rows, columns) = match v.storage {
            Storage::Fragment(Shape::Row) => (true, false),
            Storage::Fragment(Shape::Column) | Storage::Lanes => (false, true),
            Storage::Fragment(Shape::Accumulator) | Storage::Packed => (true, true),
            Storage::Fragment(Shape::Uniform) | Storage::Flag => (false, false),
        };
        if (rows && v.m_tiles != m_tiles) || (columns && v.n_tiles != n_tiles) {
            self.fault(format!("{name} has another shape than what is computed with it"));
        }
    }
}

/// Whether statements hold this loop.
fn holds(body: &[Stmt], wanted: LoopId) -> bool {
    let is_it = |stmt: &Stmt| matches!(stmt.op, StmtOp::Loop { id, .. } if id == wanted);
    body.iter().any(|stmt| is_it(stmt) || stmt.op.bodies().into_iter().any(|body| holds(body, wanted)))
}

/// Whether the producer, one warp without variables, has such statements.
fn is_of_producer(op: &StmtOp) -> bool {
    match op {
        StmtOp::Let { .. } | StmtOp::Fill { .. } | StmtOp::Loop { .. } | StmtOp::Step { .. } | StmtOp::Work(_) => true,
        StmtOp::When { guard, .. } => !matches!(guard, Guard::Vote { .. } | Guard::Flag(_) | Guard::OwnWarps),
        _ => false,
    }
}

fn is_16_bit(elem: Elem) -> bool {
    matches!(elem, Elem::F16 | Elem::Bf16)
}
