//! The printed form of a plan. The grammar is in [`super`].

use std::fmt;

use flashtile_dsl::ir::{ReduceOp, SourceText};

use super::super::{
    Atom, Barriers, Event, Expr, GlobalTile, Guard, InputSource, Iteration, LetType, LoopId, MeetBy, OperandA, Plan, Reduction,
    SharedTile, Slot, Stmt, StmtOp, Storage, TileId, VarId, Voters,
};
use crate::arch::CopyOp;
use crate::schedule::{Persistent, SharedLayout, Walk};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(None))
    }
}

impl Plan {
    /// The printed form. With the text of the kernel, it says from which line of it statements
    /// come.
    pub fn text(&self, source: Option<&SourceText>) -> String {
        let mut writer = Writer { plan: self, source, line: None, depth: 0, out: String::new() };
        writer.head();
        for role in &self.roles {
            let registers = role.registers.map(|n| format!(", {n} registers")).unwrap_or_default();
            let kind = role.kind.name();
            let name = if role.name == kind { String::new() } else { format!(" {}", role.name) };
            writer.put(&format!("role {kind}{name}: {} warps{registers}", role.warps));
            writer.inner(&role.body);
        }
        writer.out
    }
}

/// How a shape is called.
pub(super) const SHAPES: [(&str, super::super::Shape); 4] = [
    ("uniform", super::super::Shape::Uniform),
    ("row", super::super::Shape::Row),
    ("column", super::super::Shape::Column),
    ("accumulator", super::super::Shape::Accumulator),
];

pub(super) const LAYOUTS: [(&str, SharedLayout); 3] =
    [("plain", SharedLayout::Plain), ("padded", SharedLayout::Padded), ("xor", SharedLayout::Xor)];

pub(super) const COPIES: [(&str, CopyOp); 3] = [("sync", CopyOp::Sync), ("cp_async", CopyOp::CpAsync), ("tma", CopyOp::Tma)];

pub(super) const WORK: [(&str, Persistent); 3] =
    [("once", Persistent::Off), ("static", Persistent::Static), ("dynamic", Persistent::Dynamic)];

pub(super) const WALKS: [(&str, Walk); 3] =
    [("ascending", Walk::Ascending), ("descending", Walk::Descending), ("last_first", Walk::LastFirst)];
pub(super) const MEETINGS: [(&str, MeetBy); 2] = [("semaphore", MeetBy::Semaphore), ("cluster", MeetBy::Cluster)];

pub(super) const REDUCTIONS: [(&str, Reduction); 3] =
    [("rowmax", Reduction::Max), ("rowsum", Reduction::Sum), ("rowbound", Reduction::Bound)];
pub(super) const MERGES: [(&str, ReduceOp); 2] = [("max", ReduceOp::Max), ("sum", ReduceOp::Sum)];
pub(super) const LET_TYPES: [(&str, LetType); 3] = [("float", LetType::Float), ("int", LetType::Int), ("wide", LetType::Wide)];

/// The name of a value in one of these tables.
pub(super) fn named<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, v)| v == value).map(|(name, _)| *name).expect("every value has a row")
}

struct Writer<'a> {
    plan: &'a Plan,
    source: Option<&'a SourceText>,
    /// Line of the kernel text that was named last.
    line: Option<u32>,
    depth: usize,
    out: String,
}

impl Writer<'_> {
    fn put(&mut self, text: &str) {
        self.out.push_str(&"  ".repeat(self.depth));
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn head(&mut self) {
        let plan = self.plan;
        let (threads, bytes) = (plan.threads(), plan.shared_bytes());
        self.put(&format!("// {threads} threads, {bytes} bytes of shared memory"));
        self.put(&format!("plan {}", plan.name));
        self.depth += 1;
        self.put(&format!("programs {}, {}", plan.programs, named(&WORK, &plan.work)));
        self.put(&format!("rows {} a warp", plan.rows_per_warp));
        if plan.column_groups > 1 {
            self.put(&format!("columns in {} groups", plan.column_groups));
        }
        self.put(&format!("copies {}, {} bytes", named(&COPIES, &plan.copy), plan.copy_bytes));
        if plan.min_blocks > 0 {
            self.put(&format!("blocks {} a multiprocessor", plan.min_blocks));
        }
        if let Some(at) = plan.work_ring {
            self.put(&format!("work ring at {at}"));
        }
        for map in &plan.maps {
            let numbers = |all: &[u32]| all.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
            let (order, tile) = (numbers(&map.order), numbers(&map.tile));
            let elements = match map.element_bytes {
                2 => String::new(),
                bytes => format!(", elements of {bytes} bytes"),
            };
            self.put(&format!("map {} of {}: dims {order}, box {tile}{elements}", map.name, map.tensor));
        }
        plan.tiles.iter().for_each(|t| self.tile(t));
        for v in &plan.variables {
            let kind = match v.storage {
                Storage::Fragment(shape) => named(&SHAPES, &shape),
                Storage::Packed => "packed",
                Storage::Lanes => "lanes",
                Storage::Flag => "flag",
            };
            let holds = match v.storage {
                _ if v.bits => " bits",
                Storage::Flag => "",
                _ if v.integer => " int",
                _ => "",
            };
            let across = v.across.map_or(String::new(), |warps| format!(" across {warps} warps"));
            self.put(&format!("var {}: {kind}{holds} {} x {}{across}", v.name, v.m_tiles, v.n_tiles));
        }
        for l in &plan.loops {
            let walk = named(&WALKS, &l.walk);
            let single = if l.single { ", single positions" } else { "" };
            let (bounds, full) = (format!("{} .. {}", l.lo, l.hi), format!("{} .. {}", l.full_lo, l.full_hi));
            let gap = l.gap.as_ref().map_or(String::new(), |gap| format!("without {} at {}, ", gap.tiles, gap.at));
            let list = l.list.as_ref().map_or(String::new(), |list| format!("by {} from {}, ", list.entry, list.entries));
            self.put(&format!(
                "loop {}: {bounds}, full {full}, {gap}{list}{walk} from {}, {} slots{single}",
                l.coordinate, l.first, l.slots
            ));
        }
        if let Some(m) = &plan.meeting {
            self.put(&format!(
                "meeting by {}: {} parts, part {}, group {}, memory {}, {} bytes a thread at {}",
                named(&MEETINGS, &m.by),
                m.parts,
                m.part,
                m.group,
                m.memory,
                m.bytes,
                m.offset
            ));
        }
        self.depth -= 1;
    }

    fn tile(&mut self, t: &SharedTile) {
        let woven = if t.woven { " woven" } else { "" };
        let slabs = if t.slabs == 1 { String::new() } else { format!(", {} slabs{woven}", t.slabs) };
        let private = if t.warp_private { ", warp-private" } else { "" };
        let barriers = t.barriers.map(|barriers| match barriers {
            Barriers::At(at) => format!(", mbarriers at {at}"),
            Barriers::Of(ring) => format!(", comes with {}", self.tile_name(ring)),
        });
        let exchange = t.exchange.map(|at| format!(", exchanged at {at}"));
        let barriers = barriers.into_iter().chain(exchange).collect::<String>();
        self.put(&format!(
            "tile {}: {} {} x {}, {} slots, pitch {}, {}{slabs}, at {}{private}{barriers}",
            t.name,
            t.elem.name(),
            t.rows,
            t.columns,
            t.slots,
            t.pitch,
            named(&LAYOUTS, &t.layout),
            t.offset
        ));
    }

    fn inner(&mut self, body: &[Stmt]) {
        self.depth += 1;
        for stmt in body {
            if let Some(source) = self.source
                && let Some((line, _)) = source.line_column(stmt.span)
                && self.line != Some(line)
            {
                self.line = Some(line);
                self.put(&format!("#{line}"));
            }
            self.statement(&stmt.op);
        }
        self.depth -= 1;
    }

    fn variable(&self, v: VarId) -> &str {
        &self.plan.variables[v].name
    }

    fn variables(&self, all: &[VarId]) -> String {
        all.iter().map(|&v| self.variable(v)).collect::<Vec<_>>().join(", ")
    }

    fn tile_name(&self, tile: TileId) -> &str {
        &self.plan.tiles[tile].name
    }

    fn slot(&self, tile: TileId, slot: Slot) -> String {
        match slot {
            Slot::Only => self.tile_name(tile).to_owned(),
            Slot::Of(iteration) => format!("{}[{}]", self.tile_name(tile), self.iteration(iteration)),
        }
    }

    fn event(&self, event: Event) -> String {
        match event {
            Event::Copied(tile, slot) => self.slot(tile, slot),
            Event::Product(v) => self.variable(v).to_owned(),
            Event::Read(tile, slot) => format!("{} read", self.slot(tile, slot)),
        }
    }

    fn iteration(&self, iteration: Iteration) -> String {
        let name = |id: LoopId| &self.plan.loops[id].coordinate;
        match iteration {
            Iteration::First(id, n) => format!("{}#{n}", name(id)),
            Iteration::Ahead(id, 0) => name(id).clone(),
            Iteration::Ahead(id, n) => format!("{}+{n}", name(id)),
            Iteration::Behind(id, n) => format!("{}-{n}", name(id)),
            Iteration::Last(id) => format!("{}#last", name(id)),
        }
    }

    fn global(&self, t: &GlobalTile) -> String {
        let GlobalTile { tensor, elem, origin, row_stride, rows_present, column_stride, columns_present, columns_full } = t;
        let full = if *columns_full { " full" } else { "" };
        format!(
            "{tensor}: {} at {origin}, rows {rows_present} by {row_stride}, columns {columns_present} by {column_stride}{full}",
            elem.name()
        )
    }

    fn guard(&self, guard: &Guard) -> String {
        let name = |id: LoopId| self.plan.loops[id].coordinate.as_str();
        match guard {
            Guard::Exists(iteration) => format!("{} exists", self.iteration(*iteration)),
            Guard::Holds(condition) => format!("holds {condition}"),
            Guard::Cut(ids) => format!("cut {}", ids.iter().map(|&id| name(id)).collect::<Vec<_>>().join(", ")),
            Guard::Vote { condition, m_tiles, flag, of } => {
                let flag = flag.map(|v| format!(" -> {}", self.variable(v))).unwrap_or_default();
                let together = if *of == Voters::Role { " together" } else { "" };
                format!("any of {m_tiles}{together}: {condition}{flag}")
            }
            Guard::Flag(v) => format!("flag {}", self.variable(*v)),
            Guard::OneLeft(id) => format!("one left {}", name(*id)),
            Guard::Again => "made again".into(),
            Guard::FirstPart => "first part".into(),
            Guard::LastPart => "last part".into(),
            Guard::OwnWarps => "own warps".into(),
        }
    }

    fn statement(&mut self, op: &StmtOp) {
        let text = match op {
            StmtOp::When { guard, body, otherwise } => {
                self.put(&format!("when {}", self.guard(guard)));
                self.inner(body);
                if !otherwise.is_empty() {
                    self.put("otherwise");
                    self.inner(otherwise);
                }
                return;
            }
            StmtOp::Loop { id, from, unroll, body } => {
                self.put(&format!("loop {} from {from} by {unroll}", self.plan.loops[*id].coordinate));
                return self.inner(body);
            }
            StmtOp::Step { at, body } => {
                self.put(&format!("step {}", self.iteration(*at)));
                return self.inner(body);
            }
            StmtOp::Work(body) => {
                self.put("each program");
                return self.inner(body);
            }
            StmtOp::Compute { to, inputs, shared } => {
                self.put("compute");
                self.depth += 1;
                for input in inputs {
                    let from = match &input.from {
                        InputSource::Tile(tile, slot) => format!("tile {}", self.slot(*tile, *slot)),
                        InputSource::Matrix(from) => format!("matrix {}", self.global(from)),
                        InputSource::Row(from) => format!("row {}", self.global(from)),
                        InputSource::Column(from) => format!("column {}", self.global(from)),
                    };
                    self.put(&format!("in {} = {from}", input.name));
                }
                for s in shared {
                    self.put(&format!("shared {}: {} = {}", s.name, s.elem.name(), s.value));
                }
                for t in to {
                    self.put(&format!("{} <- {}", self.slot(t.tile, t.slot), t.value));
                }
                self.depth -= 1;
                return;
            }
            op => self.simple(op),
        };
        self.put(&text);
    }

    /// A statement of one line.
    fn simple(&self, op: &StmtOp) -> String {
        match op {
            StmtOp::Let { name, ty, value } => format!("let {name}: {} = {value}", named(&LET_TYPES, ty)),
            StmtOp::Map { to, value } => format!("{} = {value}", self.variable(*to)),
            StmtOp::Pack { to, elem, value } => format!("pack {}: {} = {value}", self.variable(*to), elem.name()),
            StmtOp::Reduce { to, from, operation, across_quad } => {
                let name = named(&REDUCTIONS, operation);
                let lane = if *across_quad { "" } else { ".lane" };
                format!("{} = {name}{lane} {}", self.variable(*to), self.variable(*from))
            }
            StmtOp::Distribute { to, from, tile } => {
                format!("distribute {} <- {} by {}", self.variable(*to), self.variable(*from), self.tile_name(*tile))
            }
            StmtOp::QuadMax(v) => format!("quad_max {}", self.variable(*v)),
            StmtOp::QuadSum(v) => format!("quad_sum {}", self.variable(*v)),
            StmtOp::Copy { tile, slot, from } => format!("copy {} <- {}", self.slot(*tile, *slot), self.global(from)),
            StmtOp::Commit => "cp_async.commit".into(),
            StmtOp::Wait(events) => {
                format!("wait {}", events.iter().map(|event| self.event(*event)).collect::<Vec<_>>().join(", "))
            }
            StmtOp::Barrier => "barrier".into(),
            StmtOp::Exchange { step, tile, slot } => format!("{} {}", step.name(), self.slot(*tile, *slot)),
            StmtOp::LoadFragments { to, tile, slot, column } => {
                let from = if *column > 0 { format!(" from {column}") } else { String::new() };
                format!("{} = fragments {}{from}", self.variable(*to), self.slot(*tile, *slot))
            }
            StmtOp::ReadRows { to, tile, slot, turned } => {
                let word = if *turned { "columns_of" } else { "rows_of" };
                format!("{} = {word} {}", self.variable(*to), self.slot(*tile, *slot))
            }
            StmtOp::Dot { .. } => self.dot(op),
            StmtOp::Stage { tile, slot, from, turned } => {
                let word = if *turned { "stage_turned" } else { "stage" };
                format!("{word} {} <- {}", self.slot(*tile, *slot), self.variable(*from))
            }
            StmtOp::Publish { tile, from } => format!("publish {} <- {}", self.tile_name(*tile), self.variable(*from)),
            StmtOp::Merge { to, tile, operation } => {
                format!("merge {} {} <- {}", named(&MERGES, operation), self.variable(*to), self.tile_name(*tile))
            }
            StmtOp::Add { to, from, place } => {
                let place = place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
                format!("add {}{place} <- {}", self.global(to), self.variable(*from))
            }
            StmtOp::PutRows { tile, from } => format!("put_rows {} <- {}", self.tile_name(*tile), self.variable(*from)),
            StmtOp::AddRows { map, at, tile, of } => {
                format!("add_rows {} <- {} of {}", self.box_of(*map, at), self.tile_name(*tile), self.variable(*of))
            }
            StmtOp::Load { to, from } => format!("{} = load {}", self.variable(*to), self.global(from)),
            StmtOp::Store { to, value, shape, m_tiles, n_tiles, .. } => {
                format!("store {} <- {} {m_tiles} x {n_tiles} of {value}", self.global(to), named(&SHAPES, shape))
            }
            StmtOp::Fill { tile, slot, map, at, with } => {
                let with: String =
                    with.iter().map(|c| format!(", {} <- {}", self.tile_name(c.tile), self.box_of(c.map, &c.at))).collect();
                format!("fill {} <- {}{with}", self.slot(*tile, *slot), self.box_of(*map, at))
            }
            StmtOp::Acquire { tile, slot } => format!("acquire {}", self.slot(*tile, *slot)),
            StmtOp::Release(tile) => format!("release {}", self.tile_name(*tile)),
            StmtOp::Advance(tile) => format!("advance {}", self.tile_name(*tile)),
            StmtOp::ReleaseBefore(tile) => format!("release_before {}", self.tile_name(*tile)),
            StmtOp::MakeAgain { condition, m_tiles } => format!("make_again any of {m_tiles}: {condition}"),
            StmtOp::TakeTurn => "take_turn".into(),
            StmtOp::PassTurn => "pass_turn".into(),
            StmtOp::AwaitPart => "await_part".into(),
            StmtOp::PassPart => "pass_part".into(),
            StmtOp::SaveState(from) => format!("save_state {}", self.variables(from)),
            StmtOp::LoadState { to, from } => {
                let rank = from.as_ref().map_or_else(String::new, |rank| format!(" of {rank}"));
                format!("load_state {}{rank}", self.variables(to))
            }
            StmtOp::ClusterBarrier => "cluster_barrier".into(),
            StmtOp::When { .. } | StmtOp::Loop { .. } | StmtOp::Step { .. } | StmtOp::Work(_) | StmtOp::Compute { .. } => {
                unreachable!("statements of several lines are written by `statement`")
            }
        }
    }

    /// A tensor map and where a box of it begins.
    fn box_of(&self, map: usize, at: &[Expr]) -> String {
        let at: Vec<String> = at.iter().map(Expr::to_string).collect();
        format!("{}({})", self.plan.maps[map].name, at.join(", "))
    }

    fn dot(&self, op: &StmtOp) -> String {
        let StmtOp::Dot { acc, zero, a, a_turned, b, b_slot, b_column, k_major, depth, atom } = op else { unreachable!("a dot") };
        let a = match a {
            OperandA::Tile(tile, slot) => format!("tile {}{}", self.slot(*tile, *slot), if *a_turned { ".t" } else { "" }),
            OperandA::Packed(v) => format!("packed {}", self.variable(*v)),
        };
        let from = if *b_column == 0 { String::new() } else { format!(" from {b_column}") };
        let b = format!("{}{}{from}", self.slot(*b, *b_slot), if *k_major { ".t" } else { "" });
        let atom = match atom {
            Atom::Ffma => "ffma".into(),
            Atom::Mma { k, b, batch_m } => {
                format!("m16n8k{k} {}{}", b.name(), if *batch_m { " batch_m" } else { "" })
            }
            Atom::Wgmma => "wgmma".to_owned(),
        };
        let sign = if *zero { "=" } else { "+=" };
        format!("{} {sign} dot({a}, {b}) depth {depth}, {atom}", self.variable(*acc))
    }
}
