//! From a plan to CUDA C: every statement becomes one typed context, rendered by its template.

use std::collections::BTreeSet;

use flashtile_dsl::ir::{Elem, Kernel, ParamKind, ReduceOp, SizeKind};
use flashtile_templates::expr::{Domain, Expr, Function, Shape, each_text, element_text};
use flashtile_templates::{
    Barrier, Commit, CopyTile, Declare, DotFfma, DotMma, KernelFile, Let, LoadFragments, LoadGlobal, Loop, Map, Pack, ParamField,
    QuadMax, QuadSum, Reduce, Renderer, Stage, StoreColumn, StoreElements, StoreFragment, StoreRow, Template, TileNote, Vote,
    Wait, When, Wrapper,
};

use crate::abi::{Abi, Field};
use crate::arch::{Arch, CopyOp, TensorOp};
use crate::error::Error;
use crate::instance::Instance;
use crate::plan::{GlobalTile, Guard, Iteration, OperandA, Plan, Slot, Stmt, StmtOp, Storage, TileId, VarId};
use crate::schedule::{Edges, Fragments, Schedule};

/// What is emitted beside the plan.
pub struct Emission<'a> {
    pub plan: &'a Plan,
    pub instance: &'a Instance,
    pub schedule: &'a Schedule,
    pub arch: &'static Arch,
    pub abi: &'a Abi,
    pub assumptions: Vec<String>,
}

/// Marks the line that nested statements take the place of.
const BODY: &str = "/* body */";

/// Bytes per asynchronous or vector copy under the facts, or 0 for element by element.
pub fn copy_bytes(instance: &Instance, schedule: &Schedule) -> u32 {
    match (schedule.copy, instance.facts.alignment) {
        (CopyOp::Sync, 16) => 16,
        (CopyOp::Sync, _) => 0,
        (_, bytes) => bytes,
    }
}

/// The whole file.
pub fn emit(emission: &Emission<'_>) -> Result<String, Error> {
    let renderer = Renderer::new()?;
    let mut writer = Writer { e: emission, renderer, wrappers: BTreeSet::new(), line: None, depth: 1 };
    let mut body = String::new();
    writer.shared_names(&mut body)?;
    for v in &emission.plan.variables {
        body.push_str(&writer.declare(v)?);
    }
    for role in &emission.plan.roles {
        body.push_str(&writer.block(&role.body)?);
    }
    writer.file(body)
}

struct Writer<'a> {
    e: &'a Emission<'a>,
    renderer: Renderer,
    wrappers: BTreeSet<Wrapper>,
    /// Line of the kernel text that the last `#line` named.
    line: Option<u32>,
    depth: usize,
}

impl Writer<'_> {
    fn plan(&self) -> &Plan {
        self.e.plan
    }

    fn kernel(&self) -> &Kernel {
        &self.e.instance.kernel
    }

    fn render<T: Template>(&self, context: &T) -> Result<String, Error> {
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
    fn text(&mut self, e: &Expr, domain: Domain) -> String {
        let mut needed = Vec::new();
        e.visit(&mut |e| match e {
            Expr::Call(f, _) => needed.push(*f),
            Expr::Float(x) if x.is_infinite() => drop(self.wrappers.insert(Wrapper::Infinite)),
            _ => {}
        });
        for f in needed {
            self.need(f);
        }
        e.text(domain)
    }

    fn need(&mut self, f: Function) {
        let wrappers: &[Wrapper] = match f {
            Function::Ex2 => &[Wrapper::Ex2],
            Function::Lg2 => &[Wrapper::Lg2],
            Function::Tanh => &[Wrapper::Ex2, Wrapper::Tanh],
            Function::Abs | Function::RoundedProduct => &[],
            Function::Max => &[Wrapper::Fmax],
            Function::Min => &[Wrapper::Fmin],
            Function::Most | Function::Least | Function::FloorDiv | Function::FloorRem => &[Wrapper::Integer],
            Function::VisibleOrZero => &[Wrapper::Infinite, Wrapper::VisibleOrZero],
            Function::DivOrZero | Function::TimesInverseOrZero => &[Wrapper::DivOrZero],
            Function::RoundF16 => &[Wrapper::NarrowF16, Wrapper::Widen],
            Function::RoundBf16 => &[Wrapper::NarrowBf16, Wrapper::Widen],
            Function::NarrowF16 => &[Wrapper::NarrowF16],
            Function::NarrowBf16 => &[Wrapper::NarrowBf16],
            Function::Widen => &[Wrapper::Widen],
        };
        self.wrappers.extend(wrappers);
    }

    fn uniform(&mut self, e: &Expr) -> String {
        self.text(e, Domain::Uniform)
    }

    fn let_text(&mut self, name: &str, integer: bool, value: &Expr) -> Result<String, Error> {
        let value = self.uniform(value);
        self.render(&Let { r#type: if integer { "int" } else { "float" }.into(), name: name.into(), value })
    }

    fn declare(&self, v: &crate::plan::Variable) -> Result<String, Error> {
        let (ty, extents) = match v.storage {
            Storage::Fragment(Shape::Uniform) => (if v.integer { "int" } else { "float" }, String::new()),
            Storage::Fragment(Shape::Row) => ("float", format!("[{}][2]", v.m_tiles)),
            Storage::Fragment(Shape::Column) => ("float", format!("[{}][2]", v.n_tiles)),
            Storage::Fragment(Shape::Accumulator) => ("float", format!("[{}][{}][4]", v.m_tiles, v.n_tiles)),
            Storage::Packed => ("u32", format!("[{}][{}][2]", v.m_tiles, v.n_tiles)),
        };
        let ty = if v.integer && matches!(v.storage, Storage::Fragment(_)) { "int" } else { ty };
        self.render(&Declare { r#type: ty.into(), name: v.name.clone(), extents })
    }

    /// Constants every statement may use: the thread's first row and column, lane offsets within tiles.
    fn shared_names(&mut self, body: &mut String) -> Result<(), Error> {
        let rows_per_warp = self.e.schedule.block_m / self.e.schedule.warps;
        body.push_str(&self.let_text("first_row", true, &Expr::name(format!("warp * {rows_per_warp} + lane / 4")))?);
        body.push_str(&self.let_text("first_column", true, &Expr::name("2 * (lane % 4)"))?);
        if self.e.schedule.tensor_op == TensorOp::Ffma {
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

    fn block(&mut self, stmts: &[Stmt]) -> Result<String, Error> {
        let mut out = String::new();
        for stmt in stmts {
            if let Some((line, _)) = self.kernel().source.line_column(stmt.span)
                && self.line != Some(line)
                && !self.kernel().source.name.is_empty()
            {
                self.line = Some(line);
                out.push_str(&format!("#line {line} \"{}\"\n", self.kernel().source.name.replace('\\', "/")));
            }
            out.push_str(&self.statement(&stmt.op)?);
        }
        Ok(out)
    }

    fn statement(&mut self, op: &StmtOp) -> Result<String, Error> {
        match op {
            StmtOp::Let { name, integer, value } => self.let_text(name, *integer, value),
            StmtOp::Map { to, value } => self.map(*to, value),
            StmtOp::Pack { to, value } => self.pack(*to, value),
            StmtOp::Reduce { to, from, operation, across_quad } => {
                let v = &self.plan().variables[*from];
                let (m_tiles, n_tiles) = (v.m_tiles, v.n_tiles);
                let operation = if *operation == ReduceOp::Max { "max" } else { "sum" };
                if operation == "max" {
                    self.wrappers.insert(Wrapper::Fmax);
                }
                if *across_quad {
                    self.wrappers.extend([Wrapper::Fmax, Wrapper::Quad]);
                }
                let (to, from) = (self.name(*to), self.name(*from));
                self.render(&Reduce { to, from, m_tiles, n_tiles, operation, across_quad: *across_quad })
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
            StmtOp::Commit => self.render(&Commit {}),
            StmtOp::Wait(pending) => self.render(&Wait { pending: *pending }),
            StmtOp::Barrier => self.render(&Barrier {}),
            StmtOp::LoadFragments { to, tile, slot } => self.load_fragments(*to, *tile, *slot),
            StmtOp::Dot { .. } => self.dot(op),
            StmtOp::Stage { tile, from } => self.stage(*tile, *from),
            StmtOp::Load { to, from } => self.load(*to, from),
            StmtOp::Store { .. } => self.store(op),
            StmtOp::When { guard: Guard::Vote { condition, m_tiles }, body } => {
                let condition = self.text(condition, Domain::Row);
                let each = each_text(Domain::Row, *m_tiles, 1);
                self.depth += 2;
                let body = self.block(body);
                self.depth -= 2;
                self.nested(&Vote { each, condition, body: BODY.into() }, body?)
            }
            StmtOp::When { guard, body } => {
                let condition = self.guard(guard);
                self.depth += 1;
                let body = self.block(body);
                self.depth -= 1;
                let rare = matches!(guard, Guard::Cut(_));
                self.nested(&When { condition, rare, body: BODY.into() }, body?)
            }
            StmtOp::Loop { id, body } => {
                let l = self.plan().loops[*id].clone();
                self.depth += 1;
                let body = self.block(body);
                self.depth -= 1;
                let (from, to) = (self.uniform(&l.lo), self.uniform(&l.hi));
                self.nested(&Loop { coordinate: l.coordinate, from, to, body: BODY.into() }, body?)
            }
        }
    }

    /// Renders a template whose body is already rendered and indented: it takes the place of the marker's line.
    fn nested<T: Template>(&self, context: &T, body: String) -> Result<String, Error> {
        let text = self.render(context)?;
        let (head, tail) = text.split_once(BODY).expect("the template has a body");
        let (head, tail) = (head.trim_end_matches(' '), tail.trim_start_matches('\n'));
        Ok(format!("{head}{body}{tail}"))
    }

    fn name(&self, v: VarId) -> String {
        self.plan().variables[v].name.clone()
    }

    fn each(&self, v: VarId, domain: Domain) -> String {
        let v = &self.plan().variables[v];
        each_text(domain, v.m_tiles, v.n_tiles)
    }

    fn map(&mut self, to: VarId, value: &Expr) -> Result<String, Error> {
        let domain = self.plan().domain(to);
        let Storage::Fragment(shape) = self.plan().variables[to].storage else { unreachable!("maps write fragments") };
        let value = self.text(value, domain);
        let (each, to) = (self.each(to, domain), element_text(&self.name(to), shape, domain));
        self.render(&Map { each, to, value })
    }

    fn operand_elem(&self) -> Elem {
        let elem = self.kernel().type_params.first().map(|_| Elem::Generic(0)).unwrap_or(Elem::F16);
        self.e.instance.binding.elem(self.kernel(), elem)
    }

    fn pack_wrapper(&mut self, elem: Elem) -> &'static str {
        if elem == Elem::Bf16 {
            self.wrappers.insert(Wrapper::PackBf16);
            "pack_bf16"
        } else {
            self.wrappers.insert(Wrapper::PackF16 { pair_convert: self.e.arch.capability >= (8, 0) });
            "pack_f16"
        }
    }

    fn pack(&mut self, to: VarId, value: &Expr) -> Result<String, Error> {
        let elem = self.operand_elem();
        let pack = self.pack_wrapper(elem).to_owned();
        let (lower, upper) = (self.text(value, Domain::Pair(0)), self.text(value, Domain::Pair(1)));
        let each = self.each(to, Domain::Pair(0));
        self.render(&Pack { each, to: format!("{}[mt][nt][r]", self.name(to)), pack, lower, upper })
    }

    /// Shared address of a slot.
    fn slot_address(&self, tile: TileId, slot: Slot) -> String {
        let t = &self.plan().tiles[tile];
        let base = if t.offset == 0 { "shared".to_owned() } else { format!("shared + {}", t.offset) };
        let number = match slot {
            Slot::Only => return base,
            Slot::Of(_) if t.slots == 1 => return base,
            Slot::Of(Iteration::First(_, n)) => match n % t.slots {
                0 => return base,
                n => n.to_string(),
            },
            Slot::Of(Iteration::Ahead(id, n)) => {
                let l = &self.plan().loops[id];
                let from = match &l.lo {
                    Expr::Int(0) => l.coordinate.clone(),
                    lo => format!("{} - {}", l.coordinate, lo.text(Domain::Uniform)),
                };
                match (from.contains(' '), n) {
                    (false, 0) => format!("{from} % {}", t.slots),
                    (true, 0) => format!("({from}) % {}", t.slots),
                    (_, n) => format!("({from} + {n}) % {}", t.slots),
                }
            }
        };
        format!("{base} + {number} * {}", t.slot_bytes())
    }

    fn copy(&mut self, tile: TileId, slot: Slot, from: &GlobalTile) -> Result<String, Error> {
        let bytes = copy_bytes(self.e.instance, self.e.schedule);
        self.wrappers.extend([Wrapper::Integer, Wrapper::Tile]);
        match self.e.schedule.copy {
            CopyOp::Sync => self.wrappers.extend([Wrapper::SharedAccess, Wrapper::CopySync { bytes }]),
            _ => self.wrappers.extend([Wrapper::CpAsync { bytes }, Wrapper::CopyCpAsync { bytes }]),
        }
        let t = self.plan().tiles[tile].clone();
        let context = CopyTile {
            rows: t.rows,
            columns: t.columns,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            to: self.slot_address(tile, slot),
            from: self.uniform(&from.origin),
            row_stride: self.uniform(&from.row_stride),
            rows_present: self.uniform(&from.rows_present),
            columns_present: self.uniform(&from.columns_present),
        };
        self.render(&context)
    }

    /// Address of this warp's rows of a tile.
    fn warp_rows(&self, tile: TileId, slot: Slot) -> String {
        let t = &self.plan().tiles[tile];
        format!("{} + warp * {}", self.slot_address(tile, slot), t.rows / self.e.schedule.warps * t.pitch)
    }

    fn load_fragments(&mut self, to: VarId, tile: TileId, slot: Slot) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::Tile, Wrapper::LdmatrixX4]);
        let (v, t) = (&self.plan().variables[to], &self.plan().tiles[tile]);
        self.render(&LoadFragments {
            to: v.name.clone(),
            from: self.warp_rows(tile, slot),
            m_tiles: v.m_tiles,
            k_tiles: v.n_tiles / 2,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            lane_offset: format!("lane_rows_{}", t.pitch),
        })
    }

    fn dot(&mut self, op: &StmtOp) -> Result<String, Error> {
        let StmtOp::Dot { acc, zero, a, b, b_slot, k_major, depth, last } = op else { unreachable!("a dot") };
        let (v, tb) = (self.plan().variables[*acc].clone(), self.plan().tiles[*b].clone());
        let note = match a {
            OperandA::Tile(tile, _) => self.plan().tiles[*tile].name.clone(),
            OperandA::Packed(p) => self.name(*p),
        };
        let note =
            format!("{} {} {note} * {}{}", v.name, if *zero { "=" } else { "+=" }, tb.name, if *k_major { "^T" } else { "" });
        if self.e.schedule.tensor_op == TensorOp::Ffma {
            let OperandA::Tile(tile, slot) = a else { unreachable!("the scalar path stages A in shared memory") };
            self.wrappers.extend([Wrapper::SharedAccess, Wrapper::Tile]);
            let ta = self.plan().tiles[*tile].clone();
            return self.render(&DotFfma {
                note,
                zero: *zero,
                acc: v.name,
                m_tiles: v.m_tiles,
                n_tiles: v.n_tiles,
                depth: *depth,
                a: self.slot_address(*tile, *slot),
                a_pitch: ta.pitch,
                a_swizzle: ta.swizzle(),
                a_row: "first_row".into(),
                b: self.slot_address(*b, *b_slot),
                b_pitch: tb.pitch,
                b_swizzle: tb.swizzle(),
                k_major: *k_major,
            });
        }
        let shape = if self.e.schedule.tensor_op == TensorOp::MmaM16n8k8 { "m16n8k8" } else { "m16n8k16" };
        self.wrappers.extend([Wrapper::Tile, Wrapper::Mma { shape, elem: tb.elem.name() }]);
        let fragments = match self.e.schedule.fragments {
            Fragments::Single => "single",
            Fragments::Preload if *last => "preload",
            Fragments::Paired | Fragments::Preload => "paired",
            Fragments::DoubleBuffer => "double_buffer",
        };
        let width = if fragments == "single" { "x2" } else { "x4" };
        self.wrappers.insert(if fragments == "single" { Wrapper::LdmatrixX2 } else { Wrapper::LdmatrixX4 });
        let batch_m = self.e.schedule.batch_m;
        let register = |n: usize| match a {
            OperandA::Packed(p) => format!("{}[mt][2 * kt + {}][{}]", self.name(*p), n / 2, n % 2).replace(" + 0]", "]"),
            OperandA::Tile(..) => format!("a[{}][{n}]", if batch_m { "mt" } else { "0" }),
        };
        let registers = [0, 1, 2, 3].map(register);
        let (a_address, a_pitch, a_swizzle) = match a {
            OperandA::Tile(tile, slot) => {
                let t = &self.plan().tiles[*tile];
                (self.warp_rows(*tile, *slot), t.pitch, t.swizzle())
            }
            OperandA::Packed(_) => (String::new(), 0, 0),
        };
        if matches!(a, OperandA::Tile(..)) {
            self.wrappers.insert(Wrapper::LdmatrixX4);
        }
        let [a0, a1, a2, a3] = registers;
        self.render(&DotMma {
            note,
            zero: *zero,
            acc: v.name,
            m_tiles: v.m_tiles,
            n_tiles: v.n_tiles,
            k_tiles: depth / 16,
            a_shared: matches!(a, OperandA::Tile(..)),
            a: a_address,
            a_pitch,
            a_swizzle,
            a_lane: format!("lane_rows_{a_pitch}"),
            a0,
            a1,
            a2,
            a3,
            b: self.slot_address(*b, *b_slot),
            b_pitch: tb.pitch,
            b_swizzle: tb.swizzle(),
            b_lane: format!("lane_{}_{}", if *k_major { "pairs" } else { "rows" }, tb.pitch),
            k_major: *k_major,
            load_b: format!("ldmatrix_{width}{}", if *k_major { "" } else { "_trans" }),
            fragments,
            batch_m,
        })
    }

    fn stage(&mut self, tile: TileId, from: VarId) -> Result<String, Error> {
        self.wrappers.extend([Wrapper::SharedAccess, Wrapper::Tile]);
        let (v, t) = (&self.plan().variables[from], &self.plan().tiles[tile]);
        self.render(&Stage {
            to: self.slot_address(tile, Slot::Only),
            from: v.name.clone(),
            m_tiles: v.m_tiles,
            n_tiles: v.n_tiles,
            pitch: t.pitch,
            swizzle: t.swizzle(),
            row: "first_row".into(),
        })
    }

    fn load(&mut self, to: VarId, from: &GlobalTile) -> Result<String, Error> {
        self.wrappers.insert(Wrapper::Widen);
        let domain = self.plan().domain(to);
        let Storage::Fragment(shape) = self.plan().variables[to].storage else { unreachable!("loads write fragments") };
        let (rank, row, column) = match shape {
            Shape::Accumulator => (2, row_text(domain), column_text(domain)),
            Shape::Row => (1, row_text(domain), String::new()),
            Shape::Column => (1, column_text(domain), String::new()),
            Shape::Uniform => unreachable!("scalars are read by a let"),
        };
        let context = LoadGlobal {
            each: self.each(to, domain),
            to: element_text(&self.name(to), shape, domain),
            rank,
            row,
            column,
            from: parenthesized(&self.uniform(&from.origin)),
            row_stride: self.uniform(&from.row_stride),
            rows_present: self.uniform(&from.rows_present),
            columns_present: self.uniform(&from.columns_present),
        };
        self.render(&context)
    }

    fn store(&mut self, op: &StmtOp) -> Result<String, Error> {
        let StmtOp::Store { to, value, variable, shape, m_tiles, n_tiles } = op else { unreachable!("a store") };
        let elem = self.e.instance.binding.elem(self.kernel(), self.kernel().tensor(to.tensor).elem);
        let origin = self.uniform(&to.origin);
        let row_stride = self.uniform(&to.row_stride);
        let rows_present = self.uniform(&to.rows_present);
        let columns_present = self.uniform(&to.columns_present);
        let quad = *shape == Shape::Accumulator
            && matches!(elem, Elem::F16 | Elem::Bf16)
            && self.e.instance.facts.alignment == 16
            && n_tiles % 4 == 0
            && to.columns_full;
        if let (true, Some(v)) = (quad, variable) {
            let pack = self.pack_wrapper(elem);
            self.wrappers.insert(Wrapper::StoreQuad { pack });
            return self.render(&StoreFragment {
                to: origin,
                from: self.name(*v),
                m_tiles: *m_tiles,
                n_tiles: *n_tiles,
                row_stride,
                first_row: "first_row".into(),
                rows_present,
            });
        }
        let narrowed = match elem {
            Elem::F16 => Expr::call(Function::NarrowF16, [value.clone()]),
            Elem::Bf16 => Expr::call(Function::NarrowBf16, [value.clone()]),
            _ => value.clone(),
        };
        let origin = parenthesized(&origin);
        match shape {
            Shape::Accumulator => {
                let value = self.text(&narrowed, Domain::Accumulator);
                self.render(&StoreElements {
                    to: origin,
                    m_tiles: *m_tiles,
                    n_tiles: *n_tiles,
                    row_stride,
                    row: row_text(Domain::Accumulator),
                    column: column_text(Domain::Accumulator),
                    rows_present,
                    columns_present,
                    value,
                })
            }
            Shape::Row => {
                let value = self.text(&narrowed, Domain::Row);
                self.render(&StoreRow {
                    to: origin,
                    m_tiles: *m_tiles,
                    row_stride,
                    row: row_text(Domain::Row),
                    rows_present,
                    value,
                })
            }
            Shape::Column => {
                let value = self.text(&narrowed, Domain::Column);
                self.render(&StoreColumn {
                    to: origin,
                    n_tiles: *n_tiles,
                    column_stride: row_stride,
                    column: column_text(Domain::Column),
                    columns_present: rows_present,
                    value,
                })
            }
            Shape::Uniform => {
                let value = self.uniform(&narrowed);
                self.depth += 1;
                let body = self.render(&flashtile_templates::Assign { name: format!("*{origin}"), value });
                self.depth -= 1;
                self.nested(&When { condition: "threadIdx.x == 0".into(), rare: false, body: BODY.into() }, body?)
            }
        }
    }

    fn guard(&mut self, guard: &Guard) -> String {
        match guard {
            Guard::Exists(iteration) => {
                let (id, number) = match *iteration {
                    Iteration::First(id, n) => (id, (self.plan().loops[id].lo.clone(), n)),
                    Iteration::Ahead(id, n) => (id, (Expr::name(self.plan().loops[id].coordinate.clone()), n)),
                };
                let tile = match number {
                    (base, 0) => base,
                    (base, n) => Expr::infix("+", base, Expr::Int(i64::from(n))),
                };
                let condition = Expr::infix("<", tile, self.plan().loops[id].hi.clone());
                self.uniform(&condition)
            }
            Guard::Vote { .. } => unreachable!("votes have a template of their own"),
            Guard::Cut(id) => {
                debug_assert_eq!(self.e.schedule.edges, Edges::Split);
                let l = self.plan().loops[*id].clone();
                let after = Expr::infix(">=", Expr::name(l.coordinate.clone()), l.full_hi);
                let condition = if l.full_lo == l.lo {
                    after
                } else {
                    Expr::infix("||", Expr::infix("<", Expr::name(l.coordinate), l.full_lo), after)
                };
                self.uniform(&condition)
            }
        }
    }

    fn file(mut self, body: String) -> Result<String, Error> {
        let e = self.e;
        if e.plan.shared_bytes() > 0 {
            self.wrappers.insert(Wrapper::SharedAddress);
        }
        let mut wrappers = vec![format!("constexpr int THREADS = {};", e.plan.threads())];
        for wrapper in &self.wrappers {
            wrappers.push(wrapper.render(&self.renderer)?);
        }
        let kernel = self.kernel();
        let mut generics: Vec<String> = Vec::new();
        for (name, elem) in &e.instance.binding.types {
            generics.push(format!("{name} = {}", elem.name()));
        }
        for (name, value) in &e.instance.binding.consts {
            generics.push(format!("{name} = {value}"));
        }
        let text = self.renderer.render(&KernelFile {
            name: kernel.name.clone(),
            generics: if generics.is_empty() { String::new() } else { format!("<{}>", generics.join(", ")) },
            doc: kernel.doc.lines().map(|l| l.trim().to_owned()).collect(),
            arch: e.arch.name.into(),
            compute: e.arch.name.replace("sm_", "compute_"),
            schedule: e.schedule.to_string(),
            assumptions: e.assumptions.clone(),
            tiles: e
                .plan
                .tiles
                .iter()
                .map(|t| TileNote {
                    name: t.name.clone(),
                    offset: t.offset,
                    slots: t.slots,
                    rows: t.rows,
                    columns: t.columns,
                    elem: t.elem.name().into(),
                    pitch: t.pitch,
                    layout: format!("{:?}", t.layout).to_lowercase(),
                })
                .collect(),
            threads: e.plan.threads(),
            min_blocks: e.schedule.min_blocks,
            shared_bytes: e.plan.shared_bytes(),
            version: env!("CARGO_PKG_VERSION").into(),
            wrappers,
            fields: self.fields(),
            entry: e.abi.entry.clone(),
            body,
        })?;
        Ok(text)
    }

    fn fields(&self) -> Vec<ParamField> {
        let kernel = self.kernel();
        let elem_type = |name: &str| {
            let param = kernel.param_named(name).expect("the ABI names parameters of the kernel");
            match &kernel.params[param].kind {
                ParamKind::Tensor(t) => (self.e.instance.binding.elem(kernel, t.elem), t.output),
                ParamKind::Scalar(e) => (*e, false),
            }
        };
        let c_type = |e: Elem| match e {
            Elem::F32 => "float",
            Elem::I32 | Elem::Bool => "int",
            Elem::F16 => "f16",
            Elem::Bf16 => "bf16",
            Elem::Generic(_) => unreachable!("bound"),
        };
        let field = |f: &Field| match f {
            Field::Pointer(name) => {
                let (elem, output) = elem_type(name);
                let shape = &kernel.tensor(kernel.param_named(name).expect("a parameter")).shape;
                let shape: Vec<_> = shape.iter().map(|s| kernel.size_text(s)).collect();
                let qualifier = if output { "" } else { "const " };
                ParamField {
                    r#type: format!("{qualifier}{}*", c_type(elem)),
                    name: name.clone(),
                    note: format!("({})", shape.join(", ")),
                }
            }
            Field::Stride(name, d) => {
                ParamField { r#type: "i64".into(), name: format!("{name}_stride{d}"), note: "in elements".into() }
            }
            Field::Size(name) => ParamField { r#type: "int".into(), name: name.clone(), note: String::new() },
            Field::Scalar(name) => {
                ParamField { r#type: c_type(elem_type(name).0).into(), name: name.clone(), note: String::new() }
            }
            Field::Workspace(bytes) => {
                ParamField { r#type: "u32*".into(), name: "workspace".into(), note: format!("{bytes} bytes, zero") }
            }
        };
        self.e.abi.fields.iter().map(field).collect()
    }
}

/// Row within the tile's origin.
fn row_text(domain: Domain) -> String {
    Expr::RowPosition("first_row".into()).text(domain)
}

/// Column within the tile's origin.
fn column_text(domain: Domain) -> String {
    Expr::ColumnPosition("first_column".into()).text(domain)
}

fn parenthesized(text: &str) -> String {
    if text.contains(' ') { format!("({text})") } else { text.to_owned() }
}

/// The parameter block of a kernel: tensors (pointer, strides but the last), run-time sizes, scalars.
pub fn fields(instance: &Instance) -> Vec<Field> {
    let kernel = &instance.kernel;
    let mut fields = Vec::new();
    for param in kernel.params.values() {
        if let ParamKind::Tensor(t) = &param.kind {
            fields.push(Field::Pointer(param.name.clone()));
            for d in 0..t.shape.len().saturating_sub(1) {
                fields.push(Field::Stride(param.name.clone(), d as u32));
            }
        }
    }
    fields.extend(kernel.sizes.values().filter(|s| s.kind == SizeKind::Runtime).map(|s| Field::Size(s.name.clone())));
    for param in kernel.params.values() {
        if let ParamKind::Scalar(_) = param.kind {
            fields.push(Field::Scalar(param.name.clone()));
        }
    }
    fields
}
