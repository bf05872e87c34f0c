//! The writer of a launch's text: statements become templates, expressions become text, and what
//! they need of wrappers is noted.

use std::collections::BTreeSet;

use flashtile_dsl::ir::{Elem, Kernel, ParamKind};
use flashtile_templates::{
    Barrier, Commit, Declare, Distribute, Let, Loop, LoopPairs, Map, Otherwise, Pack, QuadMax, QuadSum, Reduce, Renderer, Settle,
    Step, Template, Vote, Wait, When, Wrapper,
};

use super::expression::{Domain, each_text, element_text, text, wrappers};
use crate::abi::Abi;
use crate::arch::Arch;
use crate::error::Error;
use crate::instance::Instance;
use crate::plan::{
    Atom, Completion, Event, Expr, Guard, InFlight, Iteration, LetType, Operator, Plan, Reduction, Shape, Slot, Stmt, StmtOp,
    Storage, TileId, VarId, any,
};
use crate::schedule::{Schedule, Walk};

/// When a launch waits for the one before it, which has not ended when this one begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaunchWait {
    /// It begins when that one has ended.
    Never,
    /// Before it touches global memory.
    First,
    /// When all is done: it needs nothing of the launches before it. The one after it waits for all
    /// of them through this one.
    Last,
}

/// A launch to emit.
pub struct Emission<'a> {
    pub plan: &'a Plan,
    pub instance: &'a Instance,
    pub arch: &'static Arch,
    pub abi: &'a Abi,
    pub wait: LaunchWait,
    /// Whether the launch after this one may begin early.
    pub next_is_early: bool,
}

/// What the head of the file says of all launches.
pub struct Head<'a> {
    /// The kernel of the text.
    pub instance: &'a Instance,
    pub schedule: &'a Schedule,
    pub arch: &'static Arch,
    pub assumptions: &'a [String],
    /// Why not `wgmma`.
    pub fallback: Option<&'a str>,
}

/// Marks the line that nested statements take the place of.
pub(super) const BODY: &str = "/* body */";
/// The number of a warp among those of its role, where the compiler has to know that it is the same
/// in all lanes.
pub(super) const UNIFORM_WARP: &str = "uniform_warp";

pub(super) struct Writer<'a> {
    pub(super) e: &'a Emission<'a>,
    pub(super) renderer: &'static Renderer,
    pub(super) wrappers: BTreeSet<Wrapper>,
    /// Line of the kernel text that the last `#line` named.
    pub(super) line: Option<u32>,
    pub(super) depth: usize,
    /// The role that statements are of.
    pub(super) role: usize,
    /// How many groups each wait leaves in flight.
    pub(super) completion: Completion,
}

impl Writer<'_> {
    pub(super) fn plan(&self) -> &Plan {
        self.e.plan
    }

    pub(super) fn kernel(&self) -> &Kernel {
        &self.e.instance.kernel
    }

    /// What the name of a function of a type of 16 bits ends with: the type, where the kernel has both.
    pub(super) fn suffix(&self, elem: Elem) -> &'static str {
        let (kernel, binding) = (self.kernel(), &self.e.instance.binding);
        let tensors = kernel.params.values().filter_map(|param| match &param.kind {
            ParamKind::Tensor(tensor) => Some(tensor.elem),
            ParamKind::Scalar(_) => None,
        });
        let values = kernel.values.values().filter_map(|value| value.ty.tile().map(|tile| tile.elem));
        let found: BTreeSet<Elem> = tensors.chain(values).map(|elem| binding.elem(kernel, elem)).collect();
        match (found.contains(&Elem::F16) && found.contains(&Elem::Bf16), elem) {
            (true, Elem::F16) => "_f16",
            (true, Elem::Bf16) => "_bf16",
            _ => "",
        }
    }

    /// Waits for the launch before, if this is where it does.
    pub(super) fn wait_for_launch(&mut self, here: LaunchWait) -> String {
        self.launch_call(self.e.wait == here, "wait_for_previous_launch();")
    }

    /// Waits for the launch before, if it needs anything of it, and lets the one after begin, if
    /// that one may.
    pub(super) fn meet_launches(&mut self) -> String {
        self.wait_for_launch(LaunchWait::First) + &self.launch_call(self.e.next_is_early, "let_next_launch_begin();")
    }

    pub(super) fn launch_call(&mut self, wanted: bool, call: &str) -> String {
        if !wanted {
            return String::new();
        }
        self.wrappers.insert(Wrapper::DependentLaunch);
        format!("{}{call}\n", "  ".repeat(self.depth))
    }

    pub(super) fn render<T: Template>(&self, context: &T) -> Result<String, Error> {
        let text = self.renderer.render(context)?;
        let mut out = String::new();
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            if !line.starts_with('#') {
                out.push_str(&"  ".repeat(self.depth));
            }
            out.push_str(line);
            out.push('\n');
        }
        Ok(out)
    }

    /// Text of an expression; notes the wrappers it needs.
    pub(super) fn text(&mut self, e: &Expr, domain: Domain) -> String {
        let needed = wrappers(e);
        if needed.iter().any(|wrapper| matches!(wrapper, Wrapper::TileExtremes | Wrapper::Search)) {
            self.wrappers.insert(Wrapper::WarpExtremes { redux: self.e.arch.capability >= (8, 0) });
        }
        self.wrappers.extend(needed);
        text(e, domain)
    }

    pub(super) fn uniform(&mut self, e: &Expr) -> String {
        self.text(e, Domain::Uniform)
    }

    pub(super) fn let_text(&mut self, name: &str, ty: LetType, value: &Expr) -> Result<String, Error> {
        let value = self.uniform(value);
        let ty = match ty {
            LetType::Float => "float",
            LetType::Int => "int",
            LetType::Wide => "i64",
        };
        self.render(&Let { r#type: ty.into(), name: name.into(), value })
    }

    pub(super) fn declare(&self, v: &crate::plan::Variable) -> Result<String, Error> {
        let (ty, extents) = match v.storage {
            Storage::Fragment(Shape::Uniform) => (if v.integer { "int" } else { "float" }, String::new()),
            Storage::Fragment(Shape::Row) => ("float", format!("[{}][2]", v.m_tiles)),
            Storage::Fragment(Shape::Column) => ("float", format!("[{}][2]", v.n_tiles)),
            Storage::Fragment(Shape::Accumulator) if v.bits => {
                let r#type = format!("Bits<{}, {}>", v.m_tiles, v.n_tiles);
                return self.render(&Declare { r#type, name: v.name.clone(), extents: String::new() });
            }
            Storage::Fragment(Shape::Accumulator) => ("float", format!("[{}][{}][4]", v.m_tiles, v.n_tiles)),
            Storage::Lanes => ("float", format!("[{}][2]", v.n_tiles.div_ceil(8))),
            Storage::Packed => ("u32", format!("[{}][{}][2]", v.m_tiles, v.n_tiles)),
            Storage::Flag => ("bool", String::new()),
        };
        let ty = if v.integer && matches!(v.storage, Storage::Fragment(_) | Storage::Lanes) { "int" } else { ty };
        self.render(&Declare { r#type: ty.into(), name: v.name.clone(), extents })
    }

    /// What every statement may name: constants and the variables of the plan.
    pub(super) fn names(&mut self, body: &mut String) -> Result<(), Error> {
        self.shared_names(body)?;
        for v in &self.e.plan.variables {
            body.push_str(&self.declare(v)?);
        }
        Ok(())
    }

    /// Constants: the thread's first row and column, lane offsets within tiles.
    pub(super) fn shared_names(&mut self, body: &mut String) -> Result<(), Error> {
        let (groups, row_warps) = (self.plan().column_groups, self.plan().row_warps());
        let first_row = match groups {
            1 => format!("warp * {} + lane / 4", self.plan().rows_per_warp),
            _ => format!("warp % {row_warps} * {} + lane / 4", self.plan().rows_per_warp),
        };
        if groups > 1 {
            let value = format!("warp / {row_warps}");
            body.push_str(&self.render(&Let { r#type: "int".into(), name: "column_group".into(), value })?);
        }
        for (name, value) in [("first_row", first_row), ("first_column", "2 * (lane % 4)".to_owned())] {
            body.push_str(&self.render(&Let { r#type: "int".into(), name: name.into(), value })?);
        }
        if !self.plan().roles.iter().any(|role| any(&role.body, &loads_fragments)) {
            return Ok(());
        }
        let kinds: BTreeSet<(u32, u32)> = self.plan().tiles.iter().map(|t| (t.pitch, t.swizzle())).collect();
        for (pitch, swizzle) in kinds {
            self.wrappers.insert(Wrapper::Tile);
            for (name, row, chunk) in [("rows", "lane % 16", "lane / 16"), ("pairs", "lane % 8 + lane / 16 * 8", "lane / 8 % 2")]
            {
                let offset = format!("tile_offset<{pitch}, {swizzle}>({row}, {chunk})");
                body.push_str(&self.render(&Let {
                    r#type: "u32".into(),
                    name: format!("lane_{name}_{pitch}"),
                    value: offset,
                })?);
            }
        }
        Ok(())
    }

    pub(super) fn block(&mut self, stmts: &[Stmt]) -> Result<String, Error> {
        let (mut out, mut at) = (String::new(), 0);
        while at < stmts.len() {
            let run = self.run_with_branches(&stmts[at..]);
            let these = &stmts[at..at + run.unwrap_or(1)];
            out.push_str(&if run.is_some() { self.run(these)? } else { self.statements(these)? });
            at += these.len();
        }
        Ok(out)
    }

    /// Statements one after the other.
    pub(super) fn statements(&mut self, stmts: &[Stmt]) -> Result<String, Error> {
        let mut out = String::new();
        for stmt in stmts {
            if let Some((line, _)) = self.kernel().source.line_column(stmt.span)
                && self.line != Some(line)
                && !self.kernel().source.name.is_empty()
            {
                self.line = Some(line);
                let name = file_in_directives(&self.kernel().source.name);
                out.push_str(&format!("#line {line} \"{name}\"\n"));
            }
            out.push_str(&self.statement(&stmt.op)?);
        }
        Ok(out)
    }

    pub(super) fn statement(&mut self, op: &StmtOp) -> Result<String, Error> {
        match op {
            StmtOp::Let { name, ty, value } => self.let_text(name, *ty, value),
            StmtOp::Map { to, value } => self.map(*to, value),
            StmtOp::Pack { to, elem, value } => self.pack(*to, *elem, value),
            StmtOp::Reduce { to, from, operation, across_quad } => {
                let v = &self.plan().variables[*from];
                let (m_tiles, n_tiles) = (v.m_tiles, v.n_tiles);
                let (operation, wrapper) = match operation {
                    Reduction::Sum => ("sum", None),
                    Reduction::Max => ("max", Some(Wrapper::Fmax)),
                    Reduction::Bound => ("bound", Some(Wrapper::MaxOfThree)),
                };
                self.wrappers.extend(wrapper);
                if *across_quad {
                    self.wrappers.extend([Wrapper::Fmax, Wrapper::Quad]);
                }
                let (to, from) = (self.name(*to), self.name(*from));
                self.render(&Reduce { to, from, m_tiles, n_tiles, operation, across_quad: *across_quad })
            }
            StmtOp::Distribute { to, from, tile } => {
                self.wrappers.insert(Wrapper::SharedAccess);
                let (n_tiles, pitch) = (self.plan().variables[*to].n_tiles, self.plan().tiles[*tile].pitch);
                let integer = self.plan().variables[*to].integer;
                let (to, from, tile) = (self.name(*to), self.name(*from), self.slot_address(*tile, Slot::Only));
                self.render(&Distribute { to, from, tile, pitch, parts: n_tiles.div_ceil(8), n_tiles, integer })
            }
            StmtOp::QuadMax(v) => {
                self.wrappers.extend([Wrapper::Fmax, Wrapper::Quad]);
                self.render(&QuadMax { name: self.name(*v), m_tiles: self.plan().variables[*v].m_tiles })
            }
            StmtOp::QuadSum(v) => {
                self.wrappers.extend([Wrapper::Fmax, Wrapper::Quad]);
                self.render(&QuadSum { name: self.name(*v), m_tiles: self.plan().variables[*v].m_tiles })
            }
            StmtOp::Copy { tile, slot, from } => self.copy(*tile, *slot, from),
            StmtOp::Compute { to, inputs, shared } => self.compute(to, inputs, shared),
            StmtOp::Commit => self.render(&Commit {}),
            StmtOp::Wait(events) => self.wait(op, events),
            StmtOp::Barrier => {
                let barrier = self.barrier_of_computing();
                self.render(&Barrier { barrier })
            }
            StmtOp::Exchange { step, tile, slot } => self.exchange(*step, *tile, *slot),
            StmtOp::LoadFragments { to, tile, slot, column } => self.load_fragments(*to, *tile, *slot, *column),
            StmtOp::ReadRows { to, tile, slot, turned } => self.read_rows(*to, *tile, *slot, *turned),
            StmtOp::Dot { .. } => self.dot(op),
            StmtOp::Stage { tile, slot, from, turned: true } => self.stage_turned(*tile, *slot, *from),
            StmtOp::Stage { tile, slot, from, turned: false } => self.stage(*tile, *slot, *from),
            StmtOp::Publish { tile, from } => self.publish(*tile, *from),
            StmtOp::Merge { to, tile, operation } => self.merge(*to, *tile, *operation),
            StmtOp::Load { to, from } => self.load(*to, from),
            StmtOp::Store { .. } => self.store(op),
            StmtOp::Add { to, from, place: None } => self.add(to, *from),
            StmtOp::Add { to, from, place: Some(place) } => self.add_at(to, place, *from),
            StmtOp::PutRows { tile, from } => self.put_rows(*tile, *from),
            StmtOp::AddRows { .. } => self.add_rows(op),
            StmtOp::When { guard: Guard::Vote { condition, m_tiles, flag, of }, body, .. } => {
                let any = self.any_of(*of);
                let flag = flag.map(|v| self.name(v)).unwrap_or_default();
                let condition = self.text(condition, Domain::Row);
                let each = each_text(Domain::Row, *m_tiles, 1);
                self.depth += 2;
                let body = self.block(body);
                self.depth -= 2;
                self.nested(&Vote { each, condition, flag, any, body: BODY.into() }, body?)
            }
            StmtOp::When { guard, body, otherwise } => {
                let condition = self.guard(guard);
                let body = self.inner(body)?;
                let mut text = self.nested(&When { condition, rare: guard.is_rare(), body: BODY.into() }, body)?;
                if !otherwise.is_empty() {
                    let body = self.inner(otherwise)?;
                    text.push_str(&self.nested(&Otherwise { body: BODY.into() }, body)?);
                }
                Ok(text)
            }
            StmtOp::Loop { id, from: at, unroll, body } => {
                let (at, l) = (*at, self.plan().loops[*id].clone());
                let from = self.uniform(&l.place(Iteration::First(*id, at)));
                let descending = l.walk == Walk::Descending;
                let (to, coordinate) = (self.uniform(&if descending { l.lo.clone() } else { l.end() }), l.coordinate);
                if *unroll > 1 {
                    let (unroll, inner) = (*unroll, self.inner(body)?);
                    return self.nested(&LoopPairs { coordinate, from, to, descending, unroll, body: BODY.into() }, inner);
                }
                if l.single
                    && let Some(how) = self.loads_ahead(*id, at, body)
                {
                    return self.loop_ahead(*id, (from, to), body, &how);
                }
                let unroll = match l.single {
                    true => self.positions_at_once(body),
                    false => u32::from(self.plan().is_specialized()),
                };
                let body = self.inner(body)?;
                self.nested(&Loop { coordinate, from, to, descending, unroll, body: BODY.into() }, body)
            }
            StmtOp::Step { at, body } => {
                let (coordinate, value) = self.step_coordinate(*at);
                let before = match at {
                    Iteration::Behind(id, _) => self.uniform(&self.plan().loops[*id].place(*at)),
                    _ => String::new(),
                };
                let body = self.inner(body)?;
                self.nested(&Step { coordinate, value, before, body: BODY.into() }, body)
            }
            StmtOp::Work(body) => self.work(body),
            StmtOp::MakeAgain { condition, m_tiles } => self.make_again(condition, *m_tiles),
            StmtOp::Fill { .. } => self.fill(op),
            StmtOp::Acquire { tile, .. } => self.acquire(*tile),
            StmtOp::Release(tile) => self.release(*tile),
            StmtOp::Advance(tile) => self.advance(*tile),
            StmtOp::ReleaseBefore(tile) => self.release_before(*tile),
            StmtOp::TakeTurn => self.take_turn(),
            StmtOp::PassTurn => self.pass_turn(),
            StmtOp::AwaitPart => self.await_part(),
            StmtOp::PassPart => self.pass_part(),
            StmtOp::SaveState(from) => self.save_state(from),
            StmtOp::LoadState { to, from } => self.load_state(to, from.as_ref()),
            StmtOp::ClusterBarrier => self.cluster_barrier(),
        }
    }

    /// Waits until what is named is done.
    fn wait(&mut self, op: &StmtOp, events: &[Event]) -> Result<String, Error> {
        // A wait that is left out would let what follows read what is still being written.
        let unknown = || Error::WrongPlan(vec![format!("a wait for {} has no number", self.names_of(events))]);
        let in_flight = self.completion.in_flight(op).filter(|numbers| *numbers != InFlight::default()).ok_or_else(unknown)?;
        let mut out = String::new();
        if let Some(pending) = in_flight.copies {
            out.push_str(&self.render(&Wait { pending })?);
        }
        if let Some(pending) = in_flight.products {
            let product = |event: &Event| if let Event::Product(v) = event { Some(self.name(*v)) } else { None };
            let ready = events.iter().filter_map(product).collect();
            out.push_str(&self.render(&Settle { pending, ready })?);
        }
        Ok(out)
    }

    /// What a wait names.
    fn names_of(&self, events: &[Event]) -> String {
        let name = |event: &Event| match event {
            Event::Copied(tile, _) | Event::Read(tile, _) => self.plan().tiles[*tile].name.clone(),
            Event::Product(v) => self.name(*v),
        };
        events.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    /// Statements one level deeper.
    pub(super) fn inner(&mut self, body: &[Stmt]) -> Result<String, Error> {
        self.depth += 1;
        let text = self.block(body);
        self.depth -= 1;
        text
    }

    /// Renders a template whose body is already rendered and indented: it takes the place of the
    /// marker's line.
    pub(super) fn nested<T: Template>(&self, context: &T, body: String) -> Result<String, Error> {
        let text = self.render(context)?;
        Ok(with_body(&text, &body))
    }

    /// The same of a template with two bodies.
    pub(super) fn nested_twice<T: Template>(&self, context: &T, [first, second]: [String; 2]) -> Result<String, Error> {
        let text = self.render(context)?;
        Ok(with_body(&with_body(&text, &first), &second))
    }

    pub(super) fn name(&self, v: VarId) -> String {
        self.plan().variables[v].name.clone()
    }

    pub(super) fn each(&self, v: VarId, domain: Domain) -> String {
        let v = &self.plan().variables[v];
        each_text(domain, v.m_tiles, v.n_tiles)
    }

    pub(super) fn map(&mut self, to: VarId, value: &Expr) -> Result<String, Error> {
        let domain = Domain::of_variable(&self.plan().variables[to]);
        let Storage::Fragment(shape) = self.plan().variables[to].storage else { unreachable!("maps write fragments") };
        let value = self.text(value, domain);
        let (each, to) = (self.each(to, domain), element_text(&self.name(to), shape, domain));
        self.render(&Map { each, to, value })
    }

    pub(super) fn pack_wrapper(&mut self, elem: Elem) -> &'static str {
        if elem == Elem::Bf16 {
            self.wrappers.insert(Wrapper::PackBf16);
            "pack_bf16"
        } else {
            self.wrappers.insert(Wrapper::PackF16 { pair_convert: self.e.arch.capability >= (8, 0) });
            "pack_f16"
        }
    }

    pub(super) fn pack(&mut self, to: VarId, elem: Elem, value: &Expr) -> Result<String, Error> {
        let pack = self.pack_wrapper(elem).to_owned();
        let (lower, upper) = (self.text(value, Domain::Pair(0)), self.text(value, Domain::Pair(1)));
        let each = self.each(to, Domain::Pair(0));
        self.render(&Pack { each, to: format!("{}[mt][nt][r]", self.name(to)), pack, lower, upper })
    }

    /// Shared address of a slot.
    pub(super) fn slot_address(&self, tile: TileId, slot: Slot) -> String {
        let t = &self.plan().tiles[tile];
        let base = if t.offset == 0 { "shared".to_owned() } else { format!("shared + {}", t.offset) };
        if t.barriers.is_some() {
            let ring = &self.plan().tiles[self.plan().ring_of(tile)].name;
            let here = if t.slots > 1 { format!(" + {ring}_slot * {}", t.slot_bytes()) } else { String::new() };
            return format!("{base}{here}");
        }
        match self.slot_number(tile, slot).as_str() {
            "0" => base,
            number => format!("{base} + {number} * {}", t.slot_bytes()),
        }
    }

    /// The number of a slot of a tile that is no ring between roles.
    pub(super) fn slot_number(&self, tile: TileId, slot: Slot) -> String {
        let t = &self.plan().tiles[tile];
        match slot {
            Slot::Of(Iteration::Behind(..) | Iteration::Last(_)) => unreachable!("only rings between roles are read behind"),
            Slot::Only => "0".into(),
            Slot::Of(_) if t.slots == 1 => "0".into(),
            Slot::Of(Iteration::First(_, n)) => (n % t.slots).to_string(),
            Slot::Of(Iteration::Ahead(id, n)) => {
                let from = text(&self.plan().loops[id].number(), Domain::Uniform);
                match (from.contains(' '), n) {
                    (false, 0) => format!("{from} % {}", t.slots),
                    (true, 0) => format!("({from}) % {}", t.slots),
                    (_, n) => format!("({from} + {n}) % {}", t.slots),
                }
            }
        }
    }

    pub(super) fn guard(&mut self, guard: &Guard) -> String {
        match guard {
            Guard::Exists(iteration) => {
                let (Iteration::First(id, _) | Iteration::Ahead(id, _)) = *iteration else {
                    unreachable!("what came before exists");
                };
                let condition = self.plan().loops[id].exists(*iteration);
                self.uniform(&condition)
            }
            Guard::Vote { .. } => unreachable!("votes have a template of their own"),
            Guard::Flag(v) => self.name(*v),
            Guard::Again => "made_again".into(),
            Guard::FirstPart | Guard::LastPart | Guard::OwnWarps => {
                let meeting = self.plan().meeting.as_ref().expect("verified: programs meet");
                let (part, parts) = (&meeting.part, meeting.parts);
                match guard {
                    Guard::FirstPart => format!("{part} == 0"),
                    Guard::LastPart => format!("{part} == {}", parts - 1),
                    _ => format!("warp % {parts} == {part}"),
                }
            }
            Guard::OneLeft(id) => {
                let l = self.plan().loops[*id].clone();
                let trips = Expr::infix(Operator::Rem, l.count(), Expr::Int(2));
                self.uniform(&Expr::infix(Operator::Eq, trips, Expr::Int(0)))
            }
            Guard::Holds(condition) => self.uniform(condition),
            Guard::Cut(ids) => {
                let conditions = ids.iter().map(|&id| self.plan().loops[id].is_cut());
                let condition = conditions.reduce(|a, b| Expr::infix(Operator::Or, a, b)).expect("a loop cuts the tile");
                self.uniform(&condition)
            }
        }
    }
}

pub(super) fn parenthesized(text: &str) -> String {
    if text.contains(' ') { format!("({text})") } else { text.to_owned() }
}

/// The text with a body in place of the first marker's line.
fn with_body(text: &str, body: &str) -> String {
    let (head, tail) = text.split_once(BODY).expect("the template has a body");
    let (head, tail) = (head.trim_end_matches(' '), tail.trim_start_matches('\n'));
    format!("{head}{body}{tail}")
}

/// Whether a statement loads fragments with `ldmatrix`.
fn loads_fragments(op: &StmtOp) -> bool {
    let mma = matches!(op, StmtOp::Dot { atom: Atom::Mma { .. }, .. });
    mma || matches!(op, StmtOp::LoadFragments { .. } | StmtOp::ReadRows { .. })
}

/// The name of a file in a `#line` directive: between quotes, on one line.
fn file_in_directives(name: &str) -> String {
    let shown = |c: char| match c {
        '\\' => '/',
        c if c.is_control() => '?',
        c => c,
    };
    name.chars().map(shown).collect::<String>().replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_of_a_file_is_one_word_of_a_directive() {
        let names = ["k.rs", "a b.rs", "a\"b.rs", "c:\\k.rs", "two\nlines.rs", "größe.rs"];
        let shown = ["k.rs", "a b.rs", "a\\\"b.rs", "c:/k.rs", "two?lines.rs", "größe.rs"];
        assert_eq!(names.map(file_in_directives), shown);
    }
}
