//! The functions of the language: a table of names and usages, and the lowering of each call.

use std::sync::LazyLock;

use syn::{Expr, ExprCall};

use super::diagnostic::{Checked, Diagnostic};
use super::kernel::Lowering;
use super::operand::{Located, Number, Operand};
use crate::ir::{BinaryOp, Dim, Elem, Op, Operands, ReduceOp, Span, Spelling, Type, UnaryOp};

/// A function of the language.
#[derive(Debug)]
pub(super) struct Builtin {
    /// Its name.
    pub(super) name: &'static str,
    /// How it is written, for messages; as many arguments as it takes.
    usage: String,
    arity: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Program,
    Tiles,
    Load,
    Store,
    Dot,
    Mask,
    Pos,
    Full,
    Zeros,
    Select,
    Reduce(ReduceOp),
    Unary(UnaryOp),
    Binary(BinaryOp),
}

fn builtin(name: &'static str, usage: &str, arity: usize, kind: Kind) -> Builtin {
    Builtin { name, usage: usage.to_owned(), arity, kind }
}

/// Every function of the language: those of this table, then the elementwise ops that are called.
/// (`program`, whose arguments are as many as the grid has dimensions, and `tiles` are lowered with
/// the statements they belong to.)
pub(super) static BUILTINS: LazyLock<Vec<Builtin>> = LazyLock::new(|| {
    let mut all = vec![
        builtin("program", "let (b, h, i) = program(B, H, tiles(M));", 0, Kind::Program),
        builtin("tiles", "for j in tiles(N) { ... }", 1, Kind::Tiles),
        builtin("load", "load(q, [b, h, i, ..])", 2, Kind::Load),
        builtin("store", "store(o, [b, h, i, ..], value);", 3, Kind::Store),
        builtin("add", "add(o, [b, h, i, ..], value);", 3, Kind::Store),
        builtin("dot", "dot(a, b)", 2, Kind::Dot),
        builtin("mask", "mask(x, keep)", 2, Kind::Mask),
        builtin("pos", "pos(i)", 1, Kind::Pos),
        builtin("full", "full((i, D), value)", 2, Kind::Full),
        builtin("zeros", "zeros((i, D))", 1, Kind::Zeros),
        builtin("select", "select(condition, a, b)", 3, Kind::Select),
        builtin("rowmax", "rowmax(x)", 1, Kind::Reduce(ReduceOp::Max)),
        builtin("rowsum", "rowsum(x)", 1, Kind::Reduce(ReduceOp::Sum)),
    ];
    for op in BinaryOp::ALL.iter().filter(|op| op.row().spelling == Spelling::Call) {
        let name = op.row().mnemonic;
        all.push(builtin(name, &format!("{name}(a, b)"), 2, Kind::Binary(*op)));
    }
    for op in UnaryOp::ALL.iter().filter(|op| op.row().spelling == Spelling::Call) {
        let name = op.row().mnemonic;
        all.push(builtin(name, &format!("{name}(x)"), 1, Kind::Unary(*op)));
    }
    all
});

/// What is written otherwise than as a call of a function, and is no elementwise op: methods,
/// constants, element types, comparisons.
const OTHER_WORDS: &[&str] = &[
    "x.t()",
    "x.to::<T>()",
    "INF",
    "f32",
    "f16",
    "bf16",
    "i32",
    "a == b",
    "a != b",
    "a < b",
    "a <= b",
    "a > b",
    "a >= b",
    "let",
    "let mut",
    "for",
];

/// The names of the functions of the language, which no variable may have in written text.
pub(crate) fn functions() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().map(|builtin| builtin.name)
}

/// Every word of the language, as it is written.
pub fn words() -> Vec<String> {
    let mut words: Vec<String> = BUILTINS.iter().map(|builtin| builtin.name.to_owned()).collect();
    words.extend(OTHER_WORDS.iter().map(ToString::to_string));
    for op in UnaryOp::ALL {
        if let Spelling::Prefix(sign) = op.row().spelling {
            words.push(format!("{sign}a"));
        }
    }
    for op in BinaryOp::ALL {
        if let Spelling::Infix(sign, _) = op.row().spelling {
            words.push(format!("a {sign} b"));
            if op.row().operands != Operands::Truths {
                words.push(format!("{sign}="));
            }
        }
    }
    words
}

impl Lowering<'_> {
    /// Lowers a call of a function of the table.
    pub(super) fn builtin(&mut self, builtin: &Builtin, call: &ExprCall, span: Span) -> Checked<Located> {
        let misplaced = |what: &str| {
            let error = Diagnostic::new(span, format!("`{}` {what}", builtin.name)).label("not a value");
            error.help(format!("write `{}`", builtin.usage))
        };
        match builtin.kind {
            Kind::Program => return Err(self.reporter.report(misplaced("is bound by the first `let` of the kernel"))),
            Kind::Tiles => return Err(self.reporter.report(misplaced("stands in `program(...)` or after `in` of a loop"))),
            Kind::Store => return Err(self.reporter.report(misplaced("is a statement"))),
            _ => {}
        }
        self.check_arity(builtin, call, span)?;
        let operand = match builtin.kind {
            Kind::Load => return self.load(call),
            Kind::Full => {
                let dims = self.dims(&call.args[0]);
                let value = self.expression(&call.args[1]);
                let (dims, value) = (dims?, value?);
                let scalar = self.scalar(value)?;
                Operand::Value(self.emit(Op::Full { value: scalar, dims }, span))
            }
            Kind::Zeros => {
                let dims = self.dims(&call.args[0])?;
                let value = self.emit(Op::Constant(Elem::F32, 0.0), span);
                Operand::Value(self.emit(Op::Full { value, dims }, span))
            }
            kind => {
                let arguments: Vec<_> = call.args.iter().map(|argument| self.expression(argument)).collect();
                let arguments = arguments.into_iter().collect::<Checked<Vec<_>>>()?;
                return match (kind, &arguments[..]) {
                    (Kind::Unary(op), [x]) => self.unary(op, x.clone(), span),
                    (Kind::Binary(op), [a, b]) => self.binary(op, a.clone(), b.clone(), span),
                    (Kind::Reduce(op), [x]) => self.reduce(op, x.clone(), span),
                    (Kind::Dot, [a, b]) => self.dot(a.clone(), b.clone(), span),
                    (Kind::Mask, [x, keep]) => self.mask(x.clone(), keep.clone(), span),
                    (Kind::Select, [condition, a, b]) => self.select(condition.clone(), a.clone(), b.clone(), span),
                    (Kind::Pos, [x]) => self.pos(x, span),
                    _ => unreachable!("arity and kind are checked above"),
                };
            }
        };
        Ok(Located { operand, span })
    }

    /// Reports a wrong number of arguments.
    fn check_arity(&mut self, builtin: &Builtin, call: &ExprCall, span: Span) -> Checked<()> {
        let found = call.args.len();
        if found == builtin.arity {
            return Ok(());
        }
        let plural = if builtin.arity == 1 { "" } else { "s" };
        let error = Diagnostic::new(span, format!("`{}` takes {} argument{plural}", builtin.name, builtin.arity))
            .label(format!("found {found}"))
            .help(format!("write `{}`", builtin.usage));
        Err(self.reporter.report(error))
    }

    /// Checks the number of arguments of `store`, which is a statement.
    pub(super) fn check_store_arity(&mut self, word: &str, call: &ExprCall) -> Checked<()> {
        let store = BUILTINS.iter().find(|b| b.name == word).expect("in the table");
        let span = self.positions.of(call);
        self.check_arity(store, call, span)
    }

    fn pos(&mut self, x: &Located, span: Span) -> Checked<Located> {
        match x.operand {
            Operand::Value(value) if matches!(self.builder.kernel.ty(value), Type::Coord(_)) => {
                Ok(Located { operand: Operand::Value(self.emit(Op::Pos(value), span)), span })
            }
            _ => {
                let error = Diagnostic::new(x.span, "`pos` takes the coordinate of a tile")
                    .label(format!("found {}", self.describe(&x.operand)))
                    .help("coordinates are bound by `program(.., tiles(M))` and `for j in tiles(N)`");
                Err(self.reporter.report(error))
            }
        }
    }

    /// Dimensions of a new tile: `i`, `(i, D)`, `(i, j)`.
    fn dims(&mut self, expr: &Expr) -> Checked<Vec<Dim>> {
        let parts: Vec<&Expr> = match expr {
            Expr::Tuple(tuple) => tuple.elems.iter().collect(),
            Expr::Paren(paren) => vec![&paren.expr],
            Expr::Array(_) | Expr::Repeat(_) => {
                let error = Diagnostic::new(self.positions.of(expr), "dimensions stand in parentheses").label("in brackets");
                return Err(self.reporter.report(error.help("write `i`, or `(i, D)` for two dimensions")));
            }
            other => vec![other],
        };
        let dims: Vec<_> = parts.iter().map(|part| self.dim(part)).collect();
        let dims = dims.into_iter().collect::<Checked<Vec<_>>>()?;
        let span = self.positions.of(expr);
        if dims.is_empty() {
            let error = Diagnostic::new(span, "a new tile has dimensions").label("found none");
            return Err(self.reporter.report(error.help("write `zeros(i)` or `zeros((i, D))`; a scalar is a literal")));
        }
        self.check_dims(&dims, span)?;
        Ok(dims)
    }

    fn dim(&mut self, expr: &Expr) -> Checked<Dim> {
        let Located { operand, span } = self.expression(expr)?;
        if let Operand::Value(value) = operand
            && let Type::Coord(axis) = self.builder.kernel.ty(value)
        {
            return Ok(Dim::Axis(*axis));
        }
        if !matches!(operand, Operand::Size(_) | Operand::Number(Number::Int(_))) {
            let error = Diagnostic::new(span, "expected a dimension").label(format!("found {}", self.describe(&operand)));
            return Err(self.reporter.report(error.help("a dimension is a coordinate such as `i`, or a const size such as `D`")));
        }
        let length = self.size(expr)?;
        self.check_const(&length, span)?;
        Ok(Dim::Range(length))
    }

    /// Reports dimensions that no tile may have.
    pub(super) fn check_dims(&mut self, dims: &[Dim], span: Span) -> Checked<()> {
        if dims.len() > 2 {
            let names: Vec<_> = dims.iter().map(|d| self.builder.kernel.dim_text(d)).collect();
            let error = Diagnostic::new(span, "a tile has at most 2 dimensions")
                .label(format!("found {}: ({})", dims.len(), names.join(", ")))
                .help("address the outer dimensions by an index, from `program` or a literal");
            return Err(self.reporter.report(error));
        }
        if let [Dim::Axis(a), Dim::Axis(b)] = dims
            && a == b
        {
            let name = &self.builder.kernel.axes[*a].name;
            let error = Diagnostic::new(span, format!("both dimensions of this tile are `{name}`"));
            let help = "the dimensions of a tile are different axes: walk the other with `for j in tiles(...)`";
            return Err(self.reporter.report(error.help(help)));
        }
        Ok(())
    }
}
