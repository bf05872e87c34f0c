//! Kernels as text: what a rewrite has made, in the language that the front end reads.
//!
//! A value without a name is written where it is used if that is once, in its own block, and short;
//! others are bound by `let`, by their names where these are free. Read again, the text gives a
//! kernel that means the same, and that is written as the same text. Integers that a program id or
//! a size is made into may be made in 64 bits where they were made in 32: their lower 32 bits are
//! the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::analysis::expression::Expressions;
use crate::ir::edit::users;
use crate::ir::{
    At, AxisKind, BinaryOp, BlockId, Direction, Fill, Kernel, Op, OpId, ParamKind, ProgramDim, SizeKind, Type, ValueDef, ValueId,
};
use crate::syntax::{functions, moved_within};

/// Why a kernel has no text: it holds what only rewrites make.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{what}` has no word in kernel text")]
pub struct Unwritable {
    /// What it holds.
    pub what: String,
}

/// Longest expression that is written where it is used.
const INLINE: usize = 60;

/// The text of a kernel: a function, without `flash_kernel!` around it.
///
/// # Errors
/// [`Unwritable`]: the kernel holds what no text can say.
pub fn write(kernel: &Kernel) -> Result<String, Unwritable> {
    check(kernel)?;
    let mut writer = Writer {
        kernel: in_rust(as_written(kernel)),
        taken: taken(kernel),
        out: String::new(),
        depth: 0,
        bound: BTreeSet::new(),
    };
    writer.signature();
    writer.name_values();
    writer.block(kernel.body);
    writer.depth -= 1;
    writer.line("}");
    Ok(writer.out)
}

/// Whether a name is a word of Rust in some edition, so that Rust takes it for a name as a raw
/// identifier alone.
pub fn is_keyword(name: &str) -> bool {
    name == "gen" || syn::parse_str::<syn::Ident>(name).is_err()
}

/// The kernel with indices of data as they were written: reading the text moves them into their
/// dimensions.
fn as_written(kernel: &Kernel) -> Kernel {
    let mut made = kernel.clone();
    let mut unused = Vec::new();
    for op in made.ops.keys().collect::<Vec<_>>() {
        let (Op::Load { tensor, at } | Op::Store { tensor, at, .. }) = &mut made.ops[op].op else { continue };
        for (place, extent) in at.iter_mut().zip(&kernel.tensor(*tensor).shape) {
            if let At::Index(v) = place
                && kernel.is_of_data(*v)
                && let Some(inside) = moved_within(kernel, *v, extent)
            {
                unused.push(std::mem::replace(v, inside));
            }
        }
    }
    while let Some(v) = unused.pop() {
        let ValueDef::Result(op, _) = made.values[v].def else { continue };
        let arithmetic = matches!(made.ops[op].op, Op::Index(..) | Op::ToIndex(_) | Op::IndexConst(_) | Op::SizeOf(_));
        if arithmetic && users(&made, v).is_empty() {
            unused.extend(made.ops[op].op.operands());
            made.blocks.values_mut().for_each(|block| block.ops.retain(|&other| other != op));
        }
    }
    made
}

/// The kernel with names of its signature that Rust takes.
fn in_rust(mut kernel: Kernel) -> Kernel {
    let raw = |name: &mut String| {
        if is_keyword(name) {
            *name = format!("r#{name}");
        }
    };
    kernel.params.values_mut().for_each(|param| raw(&mut param.name));
    kernel.sizes.values_mut().for_each(|size| raw(&mut size.name));
    kernel.type_params.iter_mut().chain([&mut kernel.name]).for_each(raw);
    kernel
}

fn check(kernel: &Kernel) -> Result<(), Unwritable> {
    let refuse = |what: &str| Err(Unwritable { what: what.to_owned() });
    for (_, op) in kernel.walk() {
        match &kernel.ops[op].op {
            op @ (Op::BlockExtreme { .. } | Op::Nonzero { .. } | Op::OfPart { .. } | Op::Mask { fill: Fill::Zero, .. }) => {
                return refuse(op.mnemonic());
            }
            Op::For { part: Some(_), .. } => return refuse("part of a loop"),
            _ => {}
        }
    }
    let tensors = kernel.params.values().filter_map(|param| match &param.kind {
        ParamKind::Tensor(decl) => Some(decl),
        ParamKind::Scalar(_) => None,
    });
    for decl in tensors {
        if decl.direction == Direction::InOut {
            return refuse("inout");
        }
        if decl.shape.iter().any(|size| size.is_rounded()) {
            return refuse("ceil");
        }
    }
    match (kernel.summaries.is_empty(), kernel.lists.is_empty()) {
        (false, _) => refuse("summary"),
        (_, false) => refuse("list"),
        _ => Ok(()),
    }
}

/// Names that no value may have.
fn taken(kernel: &Kernel) -> BTreeSet<String> {
    let words = functions().map(str::to_owned).chain(["INF".to_owned()]);
    let params = kernel.params.values().map(|param| param.name.clone());
    let sizes = kernel.sizes.values().map(|size| size.name.clone());
    words.chain(params).chain(sizes).chain(kernel.type_params.iter().cloned()).collect()
}

struct Writer {
    /// The kernel, its values named as they are written: one without a name is written where it is
    /// used.
    kernel: Kernel,
    taken: BTreeSet<String>,
    out: String,
    depth: usize,
    /// Values that are bound by `let`.
    bound: BTreeSet<ValueId>,
}

impl Writer {
    fn line(&mut self, text: &str) {
        let indented = format!("{:width$}{text}", "", width = 4 * self.depth);
        writeln!(self.out, "{}", indented.trim_end()).expect("strings take what is written");
    }

    fn signature(&mut self) {
        let kernel = self.kernel.clone();
        for line in kernel.doc.lines() {
            self.line(&format!("///{}{line}", if line.starts_with(' ') || line.is_empty() { "" } else { " " }));
        }
        let types = kernel.type_params.iter().map(|name| format!("{name}: Element"));
        let consts = kernel.sizes.values().filter(|size| size.kind == SizeKind::Const);
        let generics: Vec<String> = types.chain(consts.map(|size| format!("const {}: usize", size.name))).collect();
        let generics = if generics.is_empty() { String::new() } else { format!("<{}>", generics.join(", ")) };
        self.line(&format!("pub fn {}{generics}(", kernel.name));
        self.depth += 1;
        for param in kernel.params.values() {
            let ty = match &param.kind {
                ParamKind::Scalar(elem) => kernel.elem_name(*elem).to_owned(),
                ParamKind::Tensor(decl) => {
                    let reference = if decl.direction.is_written() { "&mut " } else { "&" };
                    let shape: Vec<String> = decl.shape.iter().map(|size| kernel.size_text(size)).collect();
                    format!("{reference}Tensor<{}, ({})>", kernel.elem_name(decl.elem), shape.join(", "))
                }
            };
            self.line(&format!("{}: {ty},", param.name));
        }
        self.depth -= 1;
        self.line(") {");
        self.depth += 1;
    }

    /// A name that is free, like the wanted one.
    fn fresh(&mut self, wanted: Option<&str>) -> String {
        let wanted = wanted.filter(|name| name.starts_with(|c: char| c.is_ascii_alphabetic()));
        let candidates = |n: usize| match (wanted, n) {
            (Some(name), 0) => name.to_owned(),
            (Some(name), n) => format!("{name}{}", n + 1),
            (None, n) => format!("t{}", n + 1),
        };
        let name = (0..).map(candidates).find(|name| !self.taken.contains(name) && !is_keyword(name)).expect("names do not end");
        self.taken.insert(name.clone());
        name
    }

    /// Decides which values are bound, and names them; takes the names of the others away.
    fn name_values(&mut self) {
        let kernel = self.kernel.clone();
        let blocks: BTreeMap<OpId, BlockId> = kernel.walk().into_iter().map(|(block, op)| (op, block)).collect();
        let mut users: BTreeMap<ValueId, Vec<OpId>> = BTreeMap::new();
        for &op in blocks.keys() {
            for v in kernel.ops[op].op.operands() {
                users.entry(v).or_default().push(op);
            }
        }
        for v in self.kernel.values.keys().collect::<Vec<_>>() {
            self.kernel.values[v].name = None;
        }
        let name = |this: &mut Self, v: ValueId| {
            let name = this.fresh(kernel.values[v].name.as_deref());
            this.kernel.values[v].name = Some(name);
        };
        for (block, op) in kernel.walk() {
            let data = &kernel.ops[op];
            match &data.op {
                Op::Program(_) => {
                    for &v in &data.results {
                        name(self, v);
                        self.name_axis(v);
                    }
                }
                Op::For { body, .. } => {
                    let params = &kernel.blocks[*body].params;
                    params.iter().for_each(|&v| name(self, v));
                    self.name_axis(params[0]);
                    // After the loop a variable holds what it carried last.
                    for (&result, &param) in data.results.iter().zip(&params[1..]) {
                        let name = self.kernel.values[param].name.clone();
                        self.kernel.values[result].name = name;
                    }
                }
                // What has a name of its own, or is as short as one.
                Op::Scalar(_) | Op::Constant(..) | Op::SizeOf(_) | Op::IndexConst(_) | Op::FromIndex(_) | Op::Pos(_) => {}
                _ => {
                    let Some(&v) = data.results.first() else { continue };
                    let used = users.get(&v).map_or(&[][..], Vec::as_slice);
                    let here = used.iter().all(|user| blocks[user] == block);
                    let next = used.iter().any(|user| matches!(kernel.ops[*user].op, Op::Yield(_)));
                    let text = Expressions::new(&self.kernel).operand(v);
                    let inline = used.len() == 1 && here && text.len() <= INLINE && (!next || self.adds_to_own(&kernel, op));
                    // What a loop starts from has the name of what it carries.
                    let first = used.iter().any(|user| matches!(kernel.ops[*user].op, Op::For { .. }));
                    let named = kernel.values[v].name.is_some() && !next && !first;
                    if !inline || named {
                        name(self, v);
                        self.bound.insert(v);
                    }
                }
            }
        }
    }

    /// Gives an axis the name of its coordinate, by which the text says dimensions. Of an axis that
    /// several loops walk it is that of the loop being written.
    fn name_axis(&mut self, coordinate: ValueId) {
        if let Type::Coord(axis) = *self.kernel.ty(coordinate) {
            self.kernel.axes[axis].name = self.operand(coordinate);
        }
    }

    /// Whether an op adds something to the carried value whose next value it is.
    fn adds_to_own(&self, kernel: &Kernel, op: OpId) -> bool {
        let result = kernel.ops[op].results[0];
        let carried = match kernel.ops[op].op {
            Op::Binary(BinaryOp::Add, a, _) => a,
            Op::Dot { acc: Some(acc), .. } => acc,
            _ => return false,
        };
        let ValueDef::BlockParam(body, slot) = kernel.values[carried].def else { return false };
        let last = kernel.blocks[body].ops.last().map(|&op| &kernel.ops[op].op);
        let Some(Op::Yield(next)) = last else { return false };
        let own = slot > 0 && next.get(slot as usize - 1) == Some(&result);
        // Other carried values may have moved on when the sum is written.
        let mut work = kernel.ops[op].op.operands();
        let mut others = false;
        while let Some(v) = work.pop() {
            match kernel.values[v].def {
                ValueDef::BlockParam(block, n) => others |= block == body && n > 0 && v != carried,
                ValueDef::Result(op, _) if self.kernel.values[v].name.is_none() => work.extend(kernel.ops[op].op.operands()),
                ValueDef::Result(..) => {}
            }
        }
        own && !others
    }

    fn operand(&self, v: ValueId) -> String {
        Expressions::new(&self.kernel).operand(v)
    }

    /// What a value is, whether it has a name or not.
    fn right(&mut self, v: ValueId) -> String {
        let name = self.kernel.values[v].name.take();
        let text = self.operand(v);
        self.kernel.values[v].name = name;
        text
    }

    fn block(&mut self, block: BlockId) {
        for op in self.kernel.blocks[block].ops.clone() {
            let data = self.kernel.ops[op].clone();
            match &data.op {
                Op::Program(dims) => self.program(dims, &data.results),
                Op::For { axis, body, init, .. } => {
                    let params = self.kernel.blocks[*body].params.clone();
                    for (&param, &first) in params[1..].iter().zip(init) {
                        let (name, first) = (self.operand(param), self.operand(first));
                        self.line(&format!("let mut {name} = {first};"));
                    }
                    let extent = self.kernel.size_text(&self.kernel.axes[*axis].extent);
                    let walked = match self.kernel.axes[*axis].kind {
                        AxisKind::Each => format!("0..{extent}"),
                        AxisKind::Loop | AxisKind::Program => format!("tiles({extent})"),
                    };
                    let coordinate = self.operand(params[0]);
                    self.name_axis(params[0]);
                    self.line(&format!("for {coordinate} in {walked} {{"));
                    self.depth += 1;
                    self.block(*body);
                    self.depth -= 1;
                    self.line("}");
                }
                Op::Yield(next) => {
                    let params = self.kernel.blocks[block].params.clone();
                    for (&param, &next) in params[1..].iter().zip(next) {
                        let (name, next) = (self.operand(param), self.operand(next));
                        if name != next {
                            self.line(&format!("{name} = {next};"));
                        }
                    }
                }
                Op::Store { .. } | Op::Scatter { .. } => {
                    let text = Expressions::new(&self.kernel).statement(op).1;
                    self.line(&format!("{text};"));
                }
                _ => {
                    if let Some(&v) = data.results.first().filter(|v| self.bound.contains(v)) {
                        let (name, text) = (self.operand(v), self.right(v));
                        self.line(&format!("let {name} = {text};"));
                    }
                }
            }
        }
    }

    fn program(&mut self, dims: &[ProgramDim], results: &[ValueId]) {
        let names: Vec<String> = results.iter().map(|&v| self.operand(v)).collect();
        let names = if let [name] = names.as_slice() { name.clone() } else { format!("({})", names.join(", ")) };
        let kernel = &self.kernel;
        let dims: Vec<String> = dims
            .iter()
            .map(|dim| match dim {
                ProgramDim::Each(size) => kernel.size_text(size),
                ProgramDim::Tiles(axis) => format!("tiles({})", kernel.size_text(&kernel.axes[*axis].extent)),
            })
            .collect();
        let text = format!("let {names} = program({});", dims.join(", "));
        self.line(&text);
    }
}
