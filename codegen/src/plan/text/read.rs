//! Reads the text of plans. The grammar is in [`super`].

use flashtile_dsl::ir::{SourceText, Span};

use super::super::{
    Atom, Barriers, Companion, Computed, Event, Exchange, Expr, FragmentLoads, GlobalTile, Guard, Input, InputSource, Iteration,
    LoopGap, LoopId, LoopInfo, LoopList, Meeting, OperandA, Plan, Role, RoleKind, Shape, Shared, SharedTile, Slot, Stmt, StmtOp,
    Storage, TileId, VarId, Variable, Voters,
};
use super::error::TextError;
use super::lexer::{Line, Token};
use super::read_expression::{Cursor, Elements};
use super::write::{COPIES, LAYOUTS, LET_TYPES, MEETINGS, MERGES, REDUCTIONS, SHAPES, WALKS, WORK};
use crate::abi::TensorMap;
use crate::arch::CopyOp;
use crate::schedule::Persistent;

/// Reads one plan, from its name to its last role. Also gives the number of the line after it,
/// among `lines`.
pub(super) fn plan(lines: &[Line], at: usize, source: Option<&SourceText>) -> Result<(Plan, usize), TextError> {
    let (elements, span) = (Elements::new(), Span::default());
    let mut reader = Reader { lines, at, plan: empty(), elements, span, source };
    reader.plan()?;
    Ok((reader.plan, reader.at))
}

fn empty() -> Plan {
    Plan {
        name: String::new(),
        tiles: Vec::new(),
        variables: Vec::new(),
        loops: Vec::new(),
        roles: Vec::new(),
        copy: CopyOp::Sync,
        copy_bytes: 0,
        rows_per_warp: 16,
        column_groups: 1,
        min_blocks: 0,
        maps: Vec::new(),
        work: Persistent::Off,
        programs: Expr::Int(1),
        work_ring: None,
        meeting: None,
    }
}

type Read<T> = Result<T, String>;

struct Reader<'a> {
    lines: &'a [Line],
    at: usize,
    plan: Plan,
    elements: Elements,
    /// Where in the text of the kernel statements come from.
    span: Span,
    source: Option<&'a SourceText>,
}

impl<'a> Reader<'a> {
    fn cursor(&self, line: &'a Line) -> Cursor<'_> {
        Cursor::new(&line.tokens, &self.elements)
    }

    /// The next line, if it is further in than so many spaces.
    fn next_within(&self, indent: Option<usize>) -> Option<&'a Line> {
        self.lines.get(self.at).filter(|line| indent.is_none_or(|indent| line.indent > indent))
    }

    /// One plan, from its name to its last role.
    fn plan(&mut self) -> Result<(), TextError> {
        let first = &self.lines[self.at];
        let wrong = |line: &Line, message| TextError { line: line.number, message };
        let mut cursor = self.cursor(first);
        cursor.words("plan").map_err(|e| wrong(first, e))?;
        let name = cursor.name("the name of the plan").map_err(|e| wrong(first, e))?.to_owned();
        self.plan.name = name;
        self.at += 1;
        while let Some(line) = self.next_within(Some(first.indent)) {
            self.head(line).map_err(|e| wrong(line, e))?;
            self.at += 1;
        }
        while let Some(line) = self.lines.get(self.at) {
            if !matches!(line.tokens.first(), Some(Token::Name(word)) if word == "role") {
                break;
            }
            let mut role = self.role(line).map_err(|e| wrong(line, e))?;
            self.at += 1;
            role.body = self.block(line.indent)?;
            self.plan.roles.push(role);
        }
        if self.plan.roles.is_empty() {
            return Err(wrong(first, "the plan has no role: a line `role all: N warps` begins one".into()));
        }
        Ok(())
    }

    fn role(&self, line: &'a Line) -> Read<Role> {
        let mut c = self.cursor(line);
        c.words("role")?;
        let kind = c.one_of(&RoleKind::ALL)?;
        let name = match c.peek() {
            Some(Token::Name(_)) => c.name("the name of a role")?,
            _ => kind.name(),
        };
        let name = name.to_owned();
        c.mark(":")?;
        let warps = c.number()?;
        c.words("warps")?;
        let registers = if c.takes(",") {
            let n = c.number()?;
            c.words("registers")?;
            Some(n)
        } else {
            None
        };
        c.end()?;
        Ok(Role { kind, name, warps, registers, body: Vec::new() })
    }

    /// A line that says something of the whole plan.
    fn head(&mut self, line: &'a Line) -> Read<()> {
        let elements = self.elements.clone();
        let mut c = Cursor::new(&line.tokens, &elements);
        match c.name("`programs`, `tile`, `var`, `loop` or the like")? {
            "programs" => {
                self.plan.programs = c.expression()?;
                c.mark(",")?;
                self.plan.work = c.one_of(&WORK)?;
            }
            "rows" => {
                self.plan.rows_per_warp = c.number()?;
                c.words("a warp")?;
            }
            "columns" => {
                c.words("in")?;
                self.plan.column_groups = c.number()?;
                c.words("groups")?;
            }
            "copies" => {
                self.plan.copy = c.one_of(&COPIES)?;
                c.mark(",")?;
                self.plan.copy_bytes = c.number()?;
                c.words("bytes")?;
            }
            "blocks" => {
                self.plan.min_blocks = c.number()?;
                c.words("a multiprocessor")?;
            }
            "work" => {
                c.words("ring at")?;
                self.plan.work_ring = Some(c.number()?);
            }
            "map" => {
                let map = map(&mut c)?;
                self.plan.maps.push(map);
            }
            "tile" => {
                let tile = tile(&mut c, &self.plan.tiles)?;
                self.is_new(&tile.name)?;
                self.plan.tiles.push(tile);
            }
            "var" => self.variable_line(&mut c)?,
            "loop" => {
                let info = loop_info(&mut c)?;
                self.plan.loops.push(info);
            }
            "meeting" => self.plan.meeting = Some(meeting(&mut c)?),
            other => return Err(format!("`{other}` says nothing of a plan")),
        }
        c.end()
    }

    /// Statements know tiles and variables by their names.
    fn is_new(&self, name: &str) -> Read<()> {
        let mut taken = self.plan.variables.iter().map(|v| &v.name).chain(self.plan.tiles.iter().map(|t| &t.name));
        match taken.any(|other| other == name) {
            true => Err(format!("a second tile or variable is called `{name}`")),
            false => Ok(()),
        }
    }

    fn variable_line(&mut self, c: &mut Cursor<'_>) -> Read<()> {
        let name = c.name("the name of a variable")?.to_owned();
        c.mark(":")?;
        let storage = if c.takes_word("packed") {
            Storage::Packed
        } else if c.takes_word("lanes") {
            Storage::Lanes
        } else if c.takes_word("flag") {
            Storage::Flag
        } else {
            Storage::Fragment(c.one_of(&SHAPES)?)
        };
        let bits = c.takes_word("bits");
        let integer = bits || c.takes_word("int") || storage == Storage::Flag;
        let (m_tiles, n_tiles) = extents(c)?;
        if let Storage::Fragment(shape) = storage {
            self.elements.insert(name.clone(), shape);
        }
        self.is_new(&name)?;
        let across = if c.takes_word("across") { Some(c.number()?) } else { None };
        if across.is_some() {
            c.words("warps")?;
        }
        self.plan.variables.push(Variable { name, storage, m_tiles, n_tiles, across, integer, bits });
        Ok(())
    }

    /// The statements that are further in than so many spaces.
    fn block(&mut self, indent: usize) -> Result<Vec<Stmt>, TextError> {
        let mut body = Vec::new();
        let mut depth = None;
        while let Some(line) = self.next_within(Some(indent)) {
            let wrong = |message| TextError { line: line.number, message };
            if *depth.get_or_insert(line.indent) != line.indent {
                return Err(wrong("the line is further in than the one before, which holds no statements".into()));
            }
            if line.tokens.first() == Some(&Token::Mark("#")) {
                self.span = self.place(line).map_err(wrong)?;
                self.at += 1;
                continue;
            }
            let span = self.span;
            self.at += 1;
            let op = self.statement(line)?;
            body.push(Stmt { op, span, line: line.number });
        }
        Ok(body)
    }

    /// Where a line of the kernel text begins.
    fn place(&self, line: &'a Line) -> Read<Span> {
        let mut c = self.cursor(line);
        c.mark("#")?;
        let number: u32 = c.number()?;
        c.end()?;
        let Some(source) = self.source else { return Ok(Span::default()) };
        let mut start = 0;
        for (n, text) in (1..).zip(source.text.split_inclusive('\n')) {
            if n == number {
                let start = u32::try_from(start).map_err(|_| "the text of the kernel is too long".to_owned())?;
                return Ok(Span { start, end: start + 1 });
            }
            start += text.len();
        }
        Err(format!("the text of the kernel has no line {number}"))
    }

    fn statement(&mut self, line: &'a Line) -> Result<StmtOp, TextError> {
        let wrong = |message| TextError { line: line.number, message };
        let word = match (line.tokens.first(), line.tokens.get(1)) {
            (_, Some(Token::Mark("=" | "+="))) => "",
            (Some(Token::Name(word)), _) => word.as_str(),
            _ => "",
        };
        match word {
            "when" => {
                let guard = self.guard(line).map_err(wrong)?;
                let body = self.block(line.indent)?;
                let mut otherwise = Vec::new();
                if let Some(next) = self.lines.get(self.at)
                    && next.indent == line.indent
                    && next.tokens == [Token::Name("otherwise".into())]
                {
                    self.at += 1;
                    otherwise = self.block(line.indent)?;
                }
                Ok(StmtOp::When { guard, body, otherwise })
            }
            "loop" => {
                let head = || -> Read<_> {
                    let mut c = self.cursor(line);
                    c.words("loop")?;
                    let id = self.loop_named(c.name("a loop")?)?;
                    c.words("from")?;
                    let from = c.number()?;
                    c.words("by")?;
                    let unroll = c.number()?;
                    c.end()?;
                    Ok((id, from, unroll))
                };
                let (id, from, unroll) = head().map_err(wrong)?;
                Ok(StmtOp::Loop { id, from, unroll, body: self.block(line.indent)? })
            }
            "step" => {
                let mut c = self.cursor(line);
                let at = c.words("step").and_then(|()| self.iteration(&mut c)).map_err(wrong)?;
                c.end().map_err(wrong)?;
                Ok(StmtOp::Step { at, body: self.block(line.indent)? })
            }
            "each" => {
                let mut c = self.cursor(line);
                c.words("each program").and_then(|()| c.end()).map_err(wrong)?;
                Ok(StmtOp::Work(self.block(line.indent)?))
            }
            "compute" => {
                self.cursor(line).words("compute").map_err(wrong)?;
                self.compute(line.indent)
            }
            "" => self.assignment(line).map_err(wrong),
            word => self.simple(line, word).map_err(wrong),
        }
    }

    fn variable(&self, c: &mut Cursor<'_>) -> Read<VarId> {
        let name = c.name("a variable")?;
        let found = self.plan.variables.iter().position(|v| v.name == name);
        found.ok_or_else(|| format!("the plan has no variable `{name}`"))
    }

    fn variables(&self, c: &mut Cursor<'_>) -> Read<Vec<VarId>> {
        let mut all = vec![self.variable(c)?];
        while c.takes(",") {
            all.push(self.variable(c)?);
        }
        Ok(all)
    }

    fn tile_named(&self, c: &mut Cursor<'_>) -> Read<TileId> {
        let name = c.name("a tile")?;
        let found = self.plan.tiles.iter().position(|t| t.name == name);
        found.ok_or_else(|| format!("the plan has no tile `{name}`"))
    }

    fn loop_named(&self, name: &str) -> Read<LoopId> {
        let found = self.plan.loops.iter().position(|l| l.coordinate == name);
        found.ok_or_else(|| format!("the plan has no loop `{name}`"))
    }

    fn slot(&self, c: &mut Cursor<'_>) -> Read<(TileId, Slot)> {
        let tile = self.tile_named(c)?;
        if !c.takes("[") {
            return Ok((tile, Slot::Only));
        }
        let iteration = self.iteration(c)?;
        c.mark("]")?;
        Ok((tile, Slot::Of(iteration)))
    }

    /// What a wait names: a tile or a variable.
    fn event(&self, c: &mut Cursor<'_>) -> Read<Event> {
        if let Some(Token::Name(name)) = c.peek() {
            if let Some(v) = self.plan.variables.iter().position(|v| v.name == *name) {
                c.name("a variable")?;
                return Ok(Event::Product(v));
            }
            if self.plan.tiles.iter().all(|t| t.name != *name) {
                return Err(format!("the plan has no tile or variable `{name}`"));
            }
        }
        let (tile, slot) = self.slot(c)?;
        Ok(if c.takes_word("read") { Event::Read(tile, slot) } else { Event::Copied(tile, slot) })
    }

    fn iteration(&self, c: &mut Cursor<'_>) -> Read<Iteration> {
        let id = self.loop_named(c.name("a loop")?)?;
        if c.takes("#") {
            return Ok(if c.takes_word("last") { Iteration::Last(id) } else { Iteration::First(id, c.number()?) });
        }
        Ok(if c.takes("+") {
            Iteration::Ahead(id, c.number()?)
        } else if c.takes("-") {
            Iteration::Behind(id, c.number()?)
        } else {
            Iteration::Ahead(id, 0)
        })
    }

    fn guard(&self, line: &'a Line) -> Read<Guard> {
        let mut c = self.cursor(line);
        c.words("when")?;
        let word = match (c.peek(), c.peek_at(1)) {
            (Some(Token::Name(word)), Some(Token::Name(_))) => word.as_str(),
            _ => "",
        };
        let exists = matches!(c.peek_at(1), Some(Token::Name(next)) if next == "exists");
        let holds = matches!(c.peek(), Some(Token::Name(word)) if word == "holds") && !exists;
        let guard = match word {
            _ if holds => {
                c.words("holds")?;
                Guard::Holds(c.expression()?)
            }
            "cut" if !exists => {
                c.words("cut")?;
                let mut ids = vec![self.loop_named(c.name("a loop")?)?];
                while c.takes(",") {
                    ids.push(self.loop_named(c.name("a loop")?)?);
                }
                Guard::Cut(ids)
            }
            "any" if !exists => {
                c.words("any of")?;
                let m_tiles = c.number()?;
                let of = if c.takes_word("together") { Voters::Role } else { Voters::Warp };
                c.mark(":")?;
                let condition = c.expression()?;
                let flag = if c.takes("->") { Some(self.variable(&mut c)?) } else { None };
                Guard::Vote { condition, m_tiles, flag, of }
            }
            "flag" if !exists => {
                c.words("flag")?;
                Guard::Flag(self.variable(&mut c)?)
            }
            "one" if !exists => {
                c.words("one left")?;
                Guard::OneLeft(self.loop_named(c.name("a loop")?)?)
            }
            "made" if !exists => c.words("made again").map(|()| Guard::Again)?,
            "first" if !exists => c.words("first part").map(|()| Guard::FirstPart)?,
            "last" if !exists => c.words("last part").map(|()| Guard::LastPart)?,
            "own" if !exists => c.words("own warps").map(|()| Guard::OwnWarps)?,
            _ => {
                let iteration = self.iteration(&mut c)?;
                c.words("exists")?;
                Guard::Exists(iteration)
            }
        };
        c.end()?;
        Ok(guard)
    }

    /// `VAR = ..` and `VAR += ..`.
    fn assignment(&self, line: &'a Line) -> Read<StmtOp> {
        let mut c = self.cursor(line);
        let to = self.variable(&mut c)?;
        let adds = c.takes("+=");
        if !adds {
            c.mark("=")?;
        }
        let word = match (c.peek(), c.peek_at(1)) {
            (Some(Token::Name(word)), Some(Token::Name(_))) => word.as_str(),
            (Some(Token::Name(word)), Some(Token::Mark("("))) if word == "dot" => "dot",
            _ => "",
        };
        let op = match word {
            "dot" => self.dot(&mut c, to, !adds)?,
            _ if adds => return c.expected("`dot(..)`"),
            "rowmax" | "rowsum" | "rowmax.lane" | "rowsum.lane" | "rowbound.lane" => {
                let name = word.trim_end_matches(".lane");
                let (_, operation) = REDUCTIONS.into_iter().find(|&(known, _)| known == name).expect("one of these");
                c.words(word)?;
                StmtOp::Reduce { to, from: self.variable(&mut c)?, operation, across_quad: !word.ends_with(".lane") }
            }
            "fragments" => {
                c.words("fragments")?;
                let (tile, slot) = self.slot(&mut c)?;
                let column = if c.takes_word("from") { c.number()? } else { 0 };
                StmtOp::LoadFragments { to, tile, slot, column }
            }
            "rows_of" | "columns_of" => {
                c.words(word)?;
                let (tile, slot) = self.slot(&mut c)?;
                StmtOp::ReadRows { to, tile, slot, turned: word == "columns_of" }
            }
            "load" => {
                c.words("load")?;
                StmtOp::Load { to, from: global(&mut c)? }
            }
            _ => StmtOp::Map { to, value: c.expression()? },
        };
        c.end()?;
        Ok(op)
    }

    fn dot(&self, c: &mut Cursor<'_>, acc: VarId, zero: bool) -> Read<StmtOp> {
        c.words("dot")?;
        c.mark("(")?;
        let mut a_turned = false;
        let a = if c.takes_word("packed") {
            OperandA::Packed(self.variable(c)?)
        } else {
            c.words("tile")?;
            let (tile, slot, turned) = self.shared_operand(c)?;
            a_turned = turned;
            OperandA::Tile(tile, slot)
        };
        c.mark(",")?;
        let (b, b_slot, k_major) = self.shared_operand(c)?;
        let b_column = if c.takes_word("from") { c.number()? } else { 0 };
        c.mark(")")?;
        c.words("depth")?;
        let depth = c.number()?;
        c.mark(",")?;
        let atom = match c.name("`ffma`, `wgmma` or `m16n8k16`")? {
            "ffma" => Atom::Ffma,
            "wgmma" => Atom::Wgmma,
            name @ ("m16n8k8" | "m16n8k16") => {
                let loads: Vec<(&str, FragmentLoads)> = FragmentLoads::ALL.iter().map(|&(loads, name)| (name, loads)).collect();
                let b = c.one_of(&loads)?;
                Atom::Mma { k: if name == "m16n8k8" { 8 } else { 16 }, b, batch_m: c.takes_word("batch_m") }
            }
            other => return Err(format!("no instruction for products is called `{other}`")),
        };
        Ok(StmtOp::Dot { acc, zero, a, a_turned, b, b_slot, b_column, k_major, depth, atom })
    }

    /// A slot, and whether `.t` follows it. Of a tile with one slot the dot is part of the name.
    /// An operand in shared memory: its tile, its slot, and whether it is read transposed.
    fn shared_operand(&self, c: &mut Cursor<'_>) -> Read<(TileId, Slot, bool)> {
        if let Some(Token::Name(name)) = c.peek()
            && let Some(stem) = name.strip_suffix(".t")
        {
            let found = self.plan.tiles.iter().position(|t| t.name == stem);
            c.name("a tile")?;
            return Ok((found.ok_or_else(|| format!("the plan has no tile `{stem}`"))?, Slot::Only, true));
        }
        let (tile, slot) = self.slot(c)?;
        let turned = c.takes(".");
        if turned {
            c.words("t")?;
        }
        Ok((tile, slot, turned))
    }

    /// The lines of a `compute`.
    fn compute(&mut self, indent: usize) -> Result<StmtOp, TextError> {
        let mut elements = self.elements.clone();
        let (mut to, mut inputs, mut shared) = (Vec::new(), Vec::new(), Vec::new());
        while let Some(line) = self.next_within(Some(indent)) {
            let wrong = |message| TextError { line: line.number, message };
            let mut read = || -> Read<()> {
                let mut c = Cursor::new(&line.tokens, &elements);
                let two = matches!((c.peek(), c.peek_at(1)), (Some(Token::Name(_)), Some(Token::Name(_))));
                if two && c.takes_word("in") {
                    let input = self.input(&mut c)?;
                    c.end()?;
                    let shape = match input.from {
                        InputSource::Tile(..) | InputSource::Matrix(_) => Shape::Accumulator,
                        InputSource::Row(_) => Shape::Row,
                        InputSource::Column(_) => Shape::Column,
                    };
                    elements.insert(input.name.clone(), shape);
                    inputs.push(input);
                } else if two && c.takes_word("shared") {
                    let name = c.name("the name of a value")?.to_owned();
                    c.mark(":")?;
                    let elem = c.elem()?;
                    c.mark("=")?;
                    shared.push(Shared { name, elem, value: c.expression()? });
                    c.end()?;
                } else {
                    let (tile, slot) = self.slot(&mut c)?;
                    c.mark("<-")?;
                    to.push(Computed { tile, slot, value: c.expression()? });
                    c.end()?;
                }
                Ok(())
            };
            read().map_err(wrong)?;
            self.at += 1;
        }
        if to.is_empty() {
            let line = self.lines[self.at - 1].number;
            return Err(TextError { line, message: "`compute` makes no tile: a line `TILE <- E` does".into() });
        }
        Ok(StmtOp::Compute { to, inputs, shared })
    }

    fn input(&self, c: &mut Cursor<'_>) -> Read<Input> {
        let name = c.name("the name of an input")?.to_owned();
        c.mark("=")?;
        let from = match c.name("`tile`, `matrix`, `row` or `column`")? {
            "tile" => {
                let (tile, slot) = self.slot(c)?;
                InputSource::Tile(tile, slot)
            }
            "matrix" => InputSource::Matrix(global(c)?),
            "row" => InputSource::Row(global(c)?),
            "column" => InputSource::Column(global(c)?),
            other => return Err(format!("`{other}` is neither `tile`, `matrix`, `row` nor `column`")),
        };
        Ok(Input { name, from })
    }

    /// A statement of one line that begins with its word.
    fn simple(&self, line: &'a Line, word: &str) -> Read<StmtOp> {
        let mut c = self.cursor(line);
        c.words(word)?;
        let c = &mut c;
        let op = match word {
            "let" => {
                let name = c.name("the name of a constant")?.to_owned();
                c.mark(":")?;
                let ty = c.one_of(&LET_TYPES)?;
                c.mark("=")?;
                StmtOp::Let { name, ty, value: c.expression()? }
            }
            "pack" => {
                let to = self.variable(c)?;
                c.mark(":")?;
                let elem = c.elem()?;
                c.mark("=")?;
                StmtOp::Pack { to, elem, value: c.expression()? }
            }
            "distribute" => {
                let to = self.variable(c)?;
                c.mark("<-")?;
                let from = self.variable(c)?;
                c.words("by")?;
                StmtOp::Distribute { to, from, tile: self.tile_named(c)? }
            }
            "quad_max" => StmtOp::QuadMax(self.variable(c)?),
            "quad_sum" => StmtOp::QuadSum(self.variable(c)?),
            "copy" => {
                let (tile, slot) = self.slot(c)?;
                c.mark("<-")?;
                StmtOp::Copy { tile, slot, from: global(c)? }
            }
            "cp_async.commit" => StmtOp::Commit,
            "wait" => {
                let mut events = vec![self.event(c)?];
                while c.takes(",") {
                    events.push(self.event(c)?);
                }
                StmtOp::Wait(events)
            }
            "cp_async.wait" | "wgmma.wait" => {
                return Err(format!("`{word} N` counts groups; name what is waited for: `wait TILE[j]`, `wait ACCUMULATOR`"));
            }
            "barrier" => StmtOp::Barrier,
            "reserve" | "supply" | "await" | "free" => {
                let (_, step) = *Exchange::ALL.iter().find(|(name, _)| *name == word).expect("one of these words");
                let (tile, slot) = self.slot(c)?;
                StmtOp::Exchange { step, tile, slot }
            }
            "stage" | "stage_turned" => {
                let (tile, slot) = self.slot(c)?;
                c.mark("<-")?;
                StmtOp::Stage { tile, slot, from: self.variable(c)?, turned: word == "stage_turned" }
            }
            "publish" => {
                let tile = self.tile_named(c)?;
                c.mark("<-")?;
                StmtOp::Publish { tile, from: self.variable(c)? }
            }
            "merge" => {
                let operation = c.one_of(&MERGES)?;
                let to = self.variable(c)?;
                c.mark("<-")?;
                StmtOp::Merge { to, tile: self.tile_named(c)?, operation }
            }
            "store" => self.store(c)?,
            "add" => {
                let to = global(c)?;
                let place = if c.takes_word("at") { Some(c.expression()?) } else { None };
                c.mark("<-")?;
                StmtOp::Add { to, from: self.variable(c)?, place }
            }
            "put_rows" => {
                let tile = self.tile_named(c)?;
                c.mark("<-")?;
                StmtOp::PutRows { tile, from: self.variable(c)? }
            }
            "add_rows" => {
                let (map, at) = self.box_of(c)?;
                c.mark("<-")?;
                let tile = self.tile_named(c)?;
                c.words("of")?;
                StmtOp::AddRows { map, at, tile, of: self.variable(c)? }
            }
            "fill" => self.fill(c)?,
            "acquire" => {
                let (tile, slot) = self.slot(c)?;
                StmtOp::Acquire { tile, slot }
            }
            "release" => StmtOp::Release(self.tile_named(c)?),
            "advance" => StmtOp::Advance(self.tile_named(c)?),
            "release_before" => StmtOp::ReleaseBefore(self.tile_named(c)?),
            "make_again" => {
                c.words("any of")?;
                let m_tiles = c.number()?;
                c.mark(":")?;
                StmtOp::MakeAgain { condition: c.expression()?, m_tiles }
            }
            "take_turn" => StmtOp::TakeTurn,
            "pass_turn" => StmtOp::PassTurn,
            "await_part" => StmtOp::AwaitPart,
            "pass_part" => StmtOp::PassPart,
            "save_state" => StmtOp::SaveState(self.variables(c)?),
            "load_state" => {
                let to = self.variables(c)?;
                StmtOp::LoadState { to, from: if c.takes_word("of") { Some(c.expression()?) } else { None } }
            }
            "cluster_barrier" => StmtOp::ClusterBarrier,
            other => return Err(format!("no statement begins with `{other}`")),
        };
        c.end()?;
        Ok(op)
    }

    fn store(&self, c: &mut Cursor<'_>) -> Read<StmtOp> {
        let to = global(c)?;
        c.mark("<-")?;
        let shape = c.one_of(&SHAPES)?;
        let (m_tiles, n_tiles) = extents(c)?;
        c.words("of")?;
        let value = c.expression()?;
        let variable = self.plan.stored_elements(&value, shape);
        Ok(StmtOp::Store { to, value, variable, shape, m_tiles, n_tiles })
    }

    fn fill(&self, c: &mut Cursor<'_>) -> Read<StmtOp> {
        let (tile, slot) = self.slot(c)?;
        c.mark("<-")?;
        let (map, at) = self.box_of(c)?;
        let mut with = Vec::new();
        while c.takes(",") {
            let tile = self.tile_named(c)?;
            c.mark("<-")?;
            let (map, at) = self.box_of(c)?;
            with.push(Companion { tile, map, at });
        }
        Ok(StmtOp::Fill { tile, slot, map, at, with })
    }

    /// A tensor map and where a box of it begins.
    fn box_of(&self, c: &mut Cursor<'_>) -> Read<(usize, Vec<Expr>)> {
        let name = c.name("a tensor map")?;
        let map = self.plan.maps.iter().position(|m| m.name == name);
        let map = map.ok_or_else(|| format!("the plan has no map `{name}`"))?;
        c.mark("(")?;
        let mut at = vec![c.expression()?];
        while c.takes(",") {
            at.push(c.expression()?);
        }
        c.mark(")")?;
        let dims = self.plan.maps[map].order.len();
        if at.len() != dims {
            return Err(format!("`{name}` has {dims} dimensions, not {}", at.len()));
        }
        Ok((map, at))
    }
}

/// `M x N`.
fn extents(c: &mut Cursor<'_>) -> Read<(u32, u32)> {
    let m = c.number()?;
    c.words("x")?;
    Ok((m, c.number()?))
}

fn map(c: &mut Cursor<'_>) -> Read<TensorMap> {
    let name = c.name("the name of a map")?.to_owned();
    c.words("of")?;
    let tensor = c.name("a tensor")?.to_owned();
    c.mark(":")?;
    c.words("dims")?;
    let numbers = |c: &mut Cursor<'_>| -> Read<Vec<u32>> {
        let mut all = vec![c.number()?];
        while let Some(Token::Int(_)) = c.peek() {
            all.push(c.number()?);
        }
        Ok(all)
    };
    let order = numbers(c)?;
    c.mark(",")?;
    c.words("box")?;
    let tile = numbers(c)?;
    if order.len() != tile.len() {
        return Err(format!("{} dimensions and a box of {}", order.len(), tile.len()));
    }
    let mut element_bytes = 2;
    if c.takes(",") {
        c.words("elements of")?;
        element_bytes = c.number()?;
        c.words("bytes")?;
    }
    Ok(TensorMap { name, tensor, order, tile, element_bytes })
}

/// A tile, behind those that the plan has so far.
fn tile(c: &mut Cursor<'_>, others: &[SharedTile]) -> Read<SharedTile> {
    let name = c.name("the name of a tile")?.to_owned();
    c.mark(":")?;
    let elem = c.elem()?;
    let (rows, columns) = extents(c)?;
    c.mark(",")?;
    let slots = c.number()?;
    c.words("slots")?;
    c.mark(",")?;
    c.words("pitch")?;
    let pitch = c.number()?;
    c.mark(",")?;
    let layout = c.one_of(&LAYOUTS)?;
    c.mark(",")?;
    let (mut slabs, mut woven) = (1, false);
    if let Some(Token::Int(_)) = c.peek() {
        slabs = c.number()?;
        c.words("slabs")?;
        woven = c.takes_word("woven");
        c.mark(",")?;
    }
    c.words("at")?;
    let offset = c.number()?;
    let (mut warp_private, mut barriers, mut exchange) = (false, None, None);
    while c.takes(",") {
        if c.takes_word("warp") {
            c.mark("-")?;
            c.words("private")?;
            warp_private = true;
        } else if c.takes_word("exchanged") {
            c.words("at")?;
            exchange = Some(c.number()?);
        } else if c.takes_word("comes") {
            c.words("with")?;
            let name = c.name("a tile")?;
            let ring = others.iter().position(|t| t.name == name);
            barriers = Some(Barriers::Of(ring.ok_or_else(|| format!("no line above this one is of a tile `{name}`"))?));
        } else {
            c.words("mbarriers at")?;
            barriers = Some(Barriers::At(c.number()?));
        }
    }
    if slots == 0 || rows == 0 || columns == 0 || pitch == 0 || slabs == 0 {
        return Err(format!("the tile `{name}` is empty"));
    }
    Ok(SharedTile { name, elem, rows, columns, pitch, layout, slabs, woven, slots, offset, warp_private, barriers, exchange })
}

fn loop_info(c: &mut Cursor<'_>) -> Read<LoopInfo> {
    let coordinate = c.name("the name of a loop")?.to_owned();
    c.mark(":")?;
    let lo = c.expression()?;
    c.mark("..")?;
    let hi = c.expression()?;
    c.mark(",")?;
    c.words("full")?;
    let full_lo = c.expression()?;
    c.mark("..")?;
    let full_hi = c.expression()?;
    c.mark(",")?;
    let gap = match c.takes_word("without") {
        false => None,
        true => {
            let tiles = c.expression()?;
            c.words("at")?;
            let at = c.expression()?;
            c.mark(",")?;
            Some(LoopGap { at, tiles })
        }
    };
    let list = match c.takes_word("by") {
        false => None,
        true => {
            let entry = c.name("the name of an entry")?.to_owned();
            c.words("from")?;
            let entries = c.expression()?;
            c.mark(",")?;
            Some(LoopList { entries, entry })
        }
    };
    let walk = c.one_of(&WALKS)?;
    c.words("from")?;
    let first = c.expression()?;
    c.mark(",")?;
    let slots = c.number()?;
    c.words("slots")?;
    let single = c.takes(",");
    if single {
        c.words("single positions")?;
    }
    Ok(LoopInfo { coordinate, lo, full_lo, full_hi, hi, gap, list, walk, first, slots, single })
}

fn meeting(c: &mut Cursor<'_>) -> Read<Meeting> {
    c.words("by")?;
    let by = c.one_of(&MEETINGS)?;
    c.mark(":")?;
    let parts = c.number()?;
    c.words("parts")?;
    c.mark(",")?;
    c.words("part")?;
    let part = c.name("the constant with the program's part")?.to_owned();
    c.mark(",")?;
    c.words("group")?;
    let group = c.expression()?;
    c.mark(",")?;
    c.words("memory")?;
    let memory = c.name("the parameter with the states")?.to_owned();
    c.mark(",")?;
    let bytes = c.number()?;
    c.words("bytes a thread at")?;
    Ok(Meeting { by, parts, part, group, memory, bytes, offset: c.number()? })
}

/// A tile of a tensor.
fn global(c: &mut Cursor<'_>) -> Read<GlobalTile> {
    let tensor = c.name("a tensor")?.to_owned();
    c.mark(":")?;
    let elem = c.elem()?;
    c.words("at")?;
    let origin = c.expression()?;
    c.mark(",")?;
    c.words("rows")?;
    let rows_present = c.expression()?;
    c.words("by")?;
    let row_stride = c.expression()?;
    c.mark(",")?;
    c.words("columns")?;
    let columns_present = c.expression()?;
    c.words("by")?;
    let column_stride = c.expression()?;
    let columns_full = c.takes_word("full");
    Ok(GlobalTile { tensor, elem, origin, row_stride, rows_present, column_stride, columns_present, columns_full })
}
