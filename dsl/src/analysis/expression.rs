//! Ops in the notation of the kernel text, for printed forms: `l * alpha + rowsum(p)`.

use crate::ir::{
    At, CompareOp, Dim, Elem, IndexOp, Kernel, Op, OpId, Precedence as Binding, ReduceOp, SizeExpr, Spelling, ValueDef, ValueId,
};

/// Writes ops as text. Unnamed values are written out where they are used, named ones by name.
pub(crate) struct Expressions<'a> {
    kernel: &'a Kernel,
}

impl<'a> Expressions<'a> {
    pub(crate) fn new(kernel: &'a Kernel) -> Self {
        Self { kernel }
    }

    /// Whether an op is a statement of its own: it is named, or touches memory. Parameters, sizes and constants, which have
    /// names of their own, are not.
    pub(super) fn is_statement(&self, op: OpId) -> bool {
        let data = &self.kernel.ops[op];
        let named = data.results.iter().any(|&r| self.kernel.values[r].name.is_some());
        match data.op {
            Op::Load { .. } | Op::Gather { .. } | Op::Store { .. } | Op::Scatter { .. } => true,
            Op::Scalar(_) | Op::SizeOf(_) | Op::IndexConst(_) | Op::Constant(..) | Op::Pos(_) => false,
            _ => named,
        }
    }

    /// What a statement defines or touches, and its text.
    pub(crate) fn statement(&self, op: OpId) -> (String, String) {
        let data = &self.kernel.ops[op];
        let right = || self.op(op).0;
        let named = data.results.first().and_then(|&r| self.kernel.values[r].name.clone());
        match (&data.op, named) {
            (Op::Store { tensor, .. } | Op::Scatter { tensor, .. }, _)
            | (Op::Load { tensor, .. } | Op::Gather { tensor, .. }, None) => (self.kernel.params[*tensor].name.clone(), right()),
            (_, Some(name)) => (name.clone(), format!("{name} = {}", right())),
            (_, None) => (data.results.first().map_or_else(String::new, ToString::to_string), right()),
        }
    }

    /// A value where it is used.
    pub(crate) fn operand(&self, v: ValueId) -> String {
        self.value(v, Binding::Any)
    }

    fn value(&self, v: ValueId, outer: Binding) -> String {
        let data = &self.kernel.values[v];
        match (&data.name, data.def) {
            (Some(name), _) => name.clone(),
            (None, ValueDef::Result(op, _)) => {
                let (text, own) = self.op(op);
                if own < outer { format!("({text})") } else { text }
            }
            (None, ValueDef::BlockParam(..)) => v.to_string(),
        }
    }

    fn op(&self, op: OpId) -> (String, Binding) {
        let any = |v: &ValueId| self.value(*v, Binding::Any);
        let call = |name: &str, args: &[&ValueId]| {
            let args: Vec<_> = args.iter().map(|v| any(v)).collect();
            (format!("{name}({})", args.join(", ")), Binding::Atom)
        };
        let infix = |sign: &str, own: Binding, a: &ValueId, b: &ValueId| {
            (format!("{} {sign} {}", self.value(*a, own), self.value(*b, own.tighter())), own)
        };
        let kernel = self.kernel;
        match &kernel.ops[op].op {
            Op::Program(_) => ("program()".into(), Binding::Atom),
            Op::IndexConst(c) => (c.to_string(), Binding::Atom),
            Op::SizeOf(s) => (kernel.size_name(*s).into(), Binding::Atom),
            Op::Index(op, a, b) => match op {
                IndexOp::Add => infix("+", Binding::Sum, a, b),
                IndexOp::Sub => infix("-", Binding::Sum, a, b),
                IndexOp::Mul => infix("*", Binding::Product, a, b),
                IndexOp::Div => infix("/", Binding::Product, a, b),
                IndexOp::Rem => infix("%", Binding::Product, a, b),
                IndexOp::Min => call("min", &[a, b]),
                IndexOp::Max => call("max", &[a, b]),
            },
            Op::Constant(Elem::F32, c) if c.is_infinite() => (if *c < 0.0 { "-INF" } else { "INF" }.into(), Binding::Prefix),
            Op::Constant(Elem::F32, c) => (format!("{c:?}"), Binding::Atom),
            Op::Constant(_, c) => (c.to_string(), Binding::Atom),
            Op::Scalar(p) => (kernel.params[*p].name.clone(), Binding::Atom),
            Op::FromIndex(v) | Op::ToIndex(v) => {
                let text = self.value(*v, Binding::Atom);
                (text, Binding::Atom)
            }
            Op::Pos(v) => call("pos", &[v]),
            Op::Full { value, dims } => {
                let dims: Vec<_> = dims.iter().map(|d: &Dim| kernel.dim_text(d)).collect();
                let shape = if dims.len() == 1 { dims[0].clone() } else { format!("({})", dims.join(", ")) };
                match kernel.def(*value) {
                    Some((_, Op::Constant(_, 0.0))) => (format!("zeros({shape})"), Binding::Atom),
                    _ => (format!("full({shape}, {})", any(value)), Binding::Atom),
                }
            }
            Op::Load { tensor, at } => (format!("load({})", self.place(*tensor, at)), Binding::Atom),
            Op::Gather { tensor, at } => {
                let entries: Vec<_> = at.iter().map(any).collect();
                (format!("load({}, [{}])", kernel.params[*tensor].name, entries.join(", ")), Binding::Atom)
            }
            op @ Op::BlockExtreme { tensor, at, block, .. } => {
                (format!("{}({}, {block})", op.mnemonic(), self.place(*tensor, at)), Binding::Atom)
            }
            op @ Op::Nonzero { tensor, at } => (format!("{}({})", op.mnemonic(), self.place(*tensor, at)), Binding::Atom),
            Op::Store { tensor, at, value } => {
                let sums = self.kernel.params[*tensor].kind.is_sum();
                let word = if sums { "add" } else { "store" };
                (format!("{word}({}, {})", self.place(*tensor, at), any(value)), Binding::Atom)
            }
            Op::Scatter { tensor, at, value } => {
                let entries: Vec<_> = at.iter().map(any).collect();
                let name = &kernel.params[*tensor].name;
                (format!("add({name}, [{}], {})", entries.join(", "), any(value)), Binding::Atom)
            }
            Op::Unary(op, x) => match op.row().spelling {
                Spelling::Prefix(sign) => (format!("{sign}{}", self.value(*x, Binding::Prefix)), Binding::Prefix),
                Spelling::Call | Spelling::Infix(..) => call(op.row().mnemonic, &[x]),
            },
            Op::Binary(op, a, b) => match op.row().spelling {
                Spelling::Infix(sign, own) => infix(sign, own, a, b),
                Spelling::Call | Spelling::Prefix(_) => call(op.row().mnemonic, &[a, b]),
            },
            Op::Compare(op, a, b) => {
                let sign = match op {
                    CompareOp::Eq => "==",
                    CompareOp::Ne => "!=",
                    CompareOp::Lt => "<",
                    CompareOp::Le => "<=",
                    CompareOp::Gt => ">",
                    CompareOp::Ge => ">=",
                };
                let tight = Binding::Comparison.tighter();
                let sides = (self.value(*a, tight), self.value(*b, tight));
                (format!("{} {sign} {}", sides.0, sides.1), Binding::Comparison)
            }
            Op::Select { cond, on_true, on_false } => call("select", &[cond, on_true, on_false]),
            op @ Op::Mask { x, keep, .. } => call(op.mnemonic(), &[x, keep]),
            Op::Cast(elem, x) => {
                (format!("{}.to::<{}>()", self.value(*x, Binding::Atom), kernel.elem_name(*elem)), Binding::Atom)
            }
            Op::OfPart { value, at, .. } => call("of_part", &[value, at]),
            Op::Transpose(x) => (format!("{}.t()", self.value(*x, Binding::Atom)), Binding::Atom),
            Op::Dot { a, b, acc: None } => call("dot", &[a, b]),
            Op::Dot { a, b, acc: Some(acc) } => {
                (format!("{} + dot({}, {})", self.value(*acc, Binding::Sum), any(a), any(b)), Binding::Sum)
            }
            Op::Reduce(ReduceOp::Max, x) => call("rowmax", &[x]),
            Op::Reduce(ReduceOp::Sum, x) => call("rowsum", &[x]),
            Op::For { .. } => ("for".into(), Binding::Atom),
            Op::Yield(_) => ("yield".into(), Binding::Atom),
        }
    }

    /// `q, [b, h, i, ..]`.
    fn place(&self, tensor: crate::ir::ParamId, at: &[At]) -> String {
        let shape = &self.kernel.tensor(tensor).shape;
        let entry = |(a, extent): (&At, &SizeExpr)| match a {
            At::Index(v) | At::Tile(v) => self.value(*v, Binding::Any),
            At::Range { start, len } => {
                let end = start.add(len);
                let from = if start.as_constant() == Some(0) { String::new() } else { self.kernel.size_text(start) };
                let to = if end == *extent { String::new() } else { self.kernel.size_text(&end) };
                format!("{from}..{to}")
            }
        };
        let entries: Vec<_> = at.iter().zip(shape).map(entry).collect();
        format!("{}, [{}]", self.kernel.params[tensor].name, entries.join(", "))
    }
}
