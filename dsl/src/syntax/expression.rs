//! Expressions: literals, names, operators, method calls, and what to write instead of the rest of Rust.

use syn::{BinOp, Expr, ExprCall, ExprMethodCall, GenericArgument, Lit, UnOp};

use super::builtin::BUILTINS;
use super::diagnostic::{Checked, Diagnostic, Reported};
use super::elsewhere::instead_of;
use super::kernel::Lowering;
use super::operand::{Located, Number, Operand, SizeTree};
use super::position::bare;
use super::scope::Meaning;
use super::signature::quoted;
use super::suggest::nearest;
use crate::ir::{BinaryOp, CompareOp, SizeExpr, Span, Type, UnaryOp};

impl Lowering<'_> {
    /// Lowers an expression.
    pub(super) fn expression(&mut self, expr: &Expr) -> Checked<Located> {
        let span = self.positions.of(expr);
        let operand = match expr {
            Expr::Paren(paren) => self.expression(&paren.expr)?.operand,
            Expr::Group(group) => self.expression(&group.expr)?.operand,
            Expr::Lit(literal) => Operand::Number(self.literal(&literal.lit, span)?),
            Expr::Path(path) => match path.path.get_ident() {
                Some(ident) => self.named(&bare(ident), span)?,
                None => {
                    let error = Diagnostic::new(span, "expected a name").label(format!("found {}", quoted(path)));
                    return Err(self.reporter.report(error.help("names in a kernel have no path and no type arguments")));
                }
            },
            Expr::Unary(unary) => {
                let operand = self.expression(&unary.expr);
                match &unary.op {
                    UnOp::Neg(_) => return self.unary(UnaryOp::Neg, operand?, span),
                    UnOp::Not(_) => return self.unary(UnaryOp::Not, operand?, span),
                    _ => {
                        let error = Diagnostic::new(span, "there is nothing to dereference").help("remove the `*`");
                        return Err(self.reporter.report(error));
                    }
                }
            }
            Expr::Binary(binary) => {
                // Both sides are checked even if one has an error.
                let (left, right) = (self.expression(&binary.left), self.expression(&binary.right));
                let (left, right) = (left?, right?);
                return match operator(&binary.op) {
                    Some(Operator::Binary(op)) => self.binary(op, left, right, span),
                    Some(Operator::Compare(op)) => self.compare(op, left, right, span),
                    None => {
                        let (message, help) = ("an assignment has no value", "write it as a statement of its own");
                        let error = Diagnostic::new(self.positions.of(&binary.op), message).label("not supported").help(help);
                        Err(self.reporter.report(error))
                    }
                };
            }
            Expr::Call(call) => return self.call(call),
            Expr::MethodCall(call) => return self.method(call, span),
            other => return Err(self.unsupported(other)),
        };
        Ok(Located { operand, span })
    }

    /// Lowers an expression over sizes: the extent of an axis, a bound of a range.
    pub(super) fn size(&mut self, expr: &Expr) -> Checked<SizeExpr> {
        let Located { operand, span } = self.expression(expr)?;
        let size = match &operand {
            Operand::Number(Number::Int(value)) => SizeTree::Const(*value).to_expr(),
            Operand::Size(tree) => tree.to_expr(),
            _ => {
                let sizes: Vec<_> = self.builder.kernel.sizes.values().map(|s| format!("`{}`", s.name)).collect();
                let error = Diagnostic::new(span, "expected a size").label(format!("found {}", self.describe(&operand)));
                let help = if sizes.is_empty() {
                    "sizes are the dimensions of tensors and const generics".into()
                } else {
                    format!("the sizes of this kernel are {}", sizes.join(", "))
                };
                return Err(self.reporter.report(error.help(help)));
            }
        };
        size.ok_or_else(|| {
            let error = Diagnostic::new(span, "this is not a linear expression of sizes").label("not linear, or beyond 2^30");
            self.reporter.report(error.help("sizes may be added, subtracted, and multiplied or divided by constants"))
        })
    }

    /// What an operand is, for messages.
    pub(super) fn describe(&self, operand: &Operand) -> String {
        let kernel = &self.builder.kernel;
        match operand {
            Operand::Value(value) => match kernel.ty(*value) {
                Type::Index => "an index".into(),
                Type::Coord(axis) => format!("the coordinate `{}`", kernel.axes[*axis].name),
                ty => kernel.type_text(ty),
            },
            Operand::Number(Number::Int(_)) => "an integer".into(),
            Operand::Number(Number::Float(_)) => "a number".into(),
            Operand::Size(SizeTree::Size(size)) => format!("the size `{}`", kernel.size_name(*size)),
            Operand::Size(_) => "a size".into(),
            Operand::Tensor(param) => format!("the tensor `{}`", kernel.params[*param].name),
        }
    }

    fn literal(&self, literal: &Lit, span: Span) -> Checked<Number> {
        let (parsed, suffix) = match literal {
            Lit::Int(int) if int.suffix() == "f32" => (int.base10_parse().map(Number::Float).ok(), ""),
            Lit::Int(int) => (int.base10_parse().map(Number::Int).ok(), int.suffix()),
            Lit::Float(float) => (float.base10_parse().map(Number::Float).ok(), float.suffix()),
            _ => {
                let error = Diagnostic::new(span, "this literal is not a number").label(format!("found {}", quoted(literal)));
                return Err(self.reporter.report(error.help("kernels compute with numbers; a condition is a comparison")));
            }
        };
        if !["", "f32", "i32"].contains(&suffix) {
            let error = Diagnostic::new(span, format!("a literal has no suffix `{suffix}`"));
            return Err(self.reporter.report(error.help("leave it out: literals take the type of what they meet")));
        }
        match parsed {
            Some(number) if number.as_f64().is_finite() => Ok(number),
            _ => Err(self.reporter.report(Diagnostic::new(span, "this number is too large"))),
        }
    }

    /// What a name means.
    pub(super) fn named(&mut self, name: &str, span: Span) -> Checked<Operand> {
        if let Some(id) = self.scopes.find(name) {
            self.scopes.set_read(id, true);
            if let Some(param) = self.builder.kernel.param_named(name)
                && self.scopes.get(id).span == self.builder.kernel.params[param].span
            {
                self.used.insert(param);
            }
            return match &self.scopes.get(id).meaning {
                Meaning::Operand(operand) => Ok(operand.clone()),
                // Its error was reported where it was declared.
                Meaning::Unknown => Err(Reported::before()),
            };
        }
        if let Some(size) = self.builder.kernel.size_named(name).filter(|_| !self.in_helper()) {
            return Ok(Operand::Size(SizeTree::Size(size)));
        }
        if name == "INF" {
            return Ok(Operand::Number(Number::Float(f64::INFINITY)));
        }
        Err(self.unknown_name(name, span))
    }

    /// Reports a name that means nothing.
    pub(super) fn unknown_name(&self, name: &str, span: Span) -> Reported {
        if BUILTINS.iter().any(|b| b.name == name) {
            let error = Diagnostic::new(span, format!("`{name}` is a function")).label("expected a value");
            return self.reporter.report(error.help(format!("call it: `{name}(...)`")));
        }
        let kernel = &self.builder.kernel;
        if self.in_helper() && (kernel.size_named(name).is_some() || kernel.param_named(name).is_some()) {
            let error = Diagnostic::new(span, format!("`{name}` is of the kernel, and not known here"))
                .label("a helper knows its parameters alone");
            let help = match kernel.size_named(name) {
                Some(_) => {
                    format!("give the helper a parameter `{}: i32`, or a generic `const {name}: usize`", name.to_lowercase())
                }
                None => format!("give the helper a parameter `{name}`"),
            };
            return self.reporter.report(error.help(help));
        }
        if kernel.type_params.iter().any(|t| t == name) {
            let error = Diagnostic::new(span, format!("`{name}` is a type")).label("expected a value");
            return self.reporter.report(error.help(format!("to convert a value write `x.to::<{name}>()`")));
        }
        let sizes = kernel.sizes.values().map(|s| s.name.as_str()).filter(|_| !self.in_helper());
        let names = self.scopes.names().chain(sizes).chain(["INF"]);
        let error = Diagnostic::new(span, format!("`{name}` is not defined")).label("unknown here");
        self.reporter.report(match (instead_of(name), nearest(name, names)) {
            (Some(instead), _) => error.help(instead),
            (_, Some(near)) => error.help(format!("did you mean `{near}`?")),
            (None, None) => error.help("define it before with `let`, or declare it as a parameter"),
        })
    }

    fn call(&mut self, call: &ExprCall) -> Checked<Located> {
        let span = self.positions.of(call);
        if let Some(helper) = self.called_helper_of(call) {
            return self.helper_value(helper, call);
        }
        let name = match &*call.func {
            Expr::Path(path) => path.path.get_ident().map(bare),
            _ => None,
        };
        let name_span = self.positions.of(&*call.func);
        let Some(name) = name else {
            let error =
                Diagnostic::new(name_span, "expected the name of a function").label(format!("found {}", quoted(&*call.func)));
            return Err(self.reporter.report(error.help("functions in a kernel have no path and no type arguments")));
        };
        match BUILTINS.iter().find(|b| b.name == name) {
            Some(builtin) => self.builtin(builtin, call, span),
            None => {
                for argument in &call.args {
                    // Names in the arguments count as used, and their errors are worth telling.
                    // Indices in brackets are those of a misspelt `load`, `store` or `add`.
                    let indices = match argument {
                        Expr::Array(indices) => indices.elems.iter().filter(|index| !matches!(index, Expr::Range(_))).collect(),
                        other => vec![other],
                    };
                    for value in indices {
                        let _reported = self.expression(value);
                    }
                }
                let error = Diagnostic::new(name_span, format!("there is no function `{name}`")).label("unknown");
                let names = || BUILTINS.iter().map(|b| b.name).chain(self.helpers.names());
                Err(self.reporter.report(match (instead_of(&name), nearest(&name, names())) {
                    (Some(instead), _) => error.help(instead),
                    (_, Some(near)) => error.help(format!("did you mean `{near}`?")),
                    (None, None) => {
                        let all: Vec<_> = names().collect();
                        error.help(format!("the functions are {}", all.join(", ")))
                    }
                }))
            }
        }
    }

    fn method(&mut self, call: &ExprMethodCall, span: Span) -> Checked<Located> {
        let receiver = self.expression(&call.receiver)?;
        let name = bare(&call.method);
        match name.as_str() {
            "t" if call.args.is_empty() && call.turbofish.is_none() => self.transpose(receiver, span),
            "to" if call.args.is_empty() => {
                let types: Vec<_> = call.turbofish.iter().flat_map(|t| &t.args).collect();
                let [GenericArgument::Type(ty)] = types[..] else {
                    let error = Diagnostic::new(self.positions.of(&call.method), "`to` takes 1 element type");
                    return Err(self.reporter.report(error.help("write `x.to::<T>()`, `x.to::<f32>()` or `x.to::<bf16>()`")));
                };
                let elem = self.named_element(ty)?;
                self.cast(receiver, elem, span)
            }
            _ => {
                let function = BUILTINS.iter().any(|b| b.name == name);
                let help = match name.as_str() {
                    "t" => "write `x.t()`".to_owned(),
                    "to" => "write `x.to::<T>()`".to_owned(),
                    _ if function => format!("call it as a function: `{name}(...)`"),
                    other if instead_of(other).is_some() => instead_of(other).unwrap_or_default().to_owned(),
                    _ => "the methods are `.t()` and `.to::<T>()`".to_owned(),
                };
                let error = Diagnostic::new(self.positions.of(&call.method), format!("there is no method `{name}` like this"));
                Err(self.reporter.report(error.label("unknown").help(help)))
            }
        }
    }

    /// Reports an expression of Rust that the language does not have.
    pub(super) fn unsupported(&self, expr: &Expr) -> Reported {
        let written;
        let (what, help) = match expr {
            Expr::If(_) | Expr::Match(_) => ("branches", "choose element by element with `select(condition, a, b)`"),
            Expr::While(_) | Expr::Loop(_) => ("loops without an axis", "write `for j in tiles(N) { ... }`"),
            Expr::ForLoop(_) => ("loops inside expressions", "write the loop as a statement of its own"),
            Expr::Break(_) | Expr::Continue(_) => {
                ("jumps out of loops", "declare what is not needed with `mask`; loops then stop early by themselves")
            }
            Expr::Return(_) if self.in_helper() => ("returns", "end the helper with its result, without `return`"),
            Expr::Return(_) => ("returns", "store results with `store(o, [...], value);`"),
            Expr::Closure(_) => ("closures", "write the expression out, or bind its parts with `let`"),
            Expr::Cast(cast) => {
                let ty = quote::ToTokens::to_token_stream(&cast.ty).to_string();
                let is_element =
                    ["f32", "f16", "bf16", "i32"].contains(&ty.as_str()) || self.builder.kernel.type_params.contains(&ty);
                written = match is_element {
                    true => format!("write `x.to::<{ty}>()`"),
                    false => "write `x.to::<T>()`, `x.to::<f32>()` or `x.to::<i32>()`".to_owned(),
                };
                ("`as` casts", &*written)
            }
            Expr::Index(index) => match &*index.expr {
                Expr::Path(path) if path.path.get_ident().is_some() => {
                    let name = quote::ToTokens::to_token_stream(path);
                    written = format!("write `load({name}, [..])`, with an index for each dimension");
                    ("indexing", &*written)
                }
                _ => ("indexing", "write `load(q, [b, h, i, ..])`"),
            },
            Expr::Array(_) | Expr::Repeat(_) => {
                ("arrays", "several values of one kind are the elements of a tile or of a tensor")
            }
            Expr::Tuple(_) => ("tuples as values", "bind each value to a name, `let (x, y) = (.., ..);`"),
            Expr::Range(_) => ("ranges as values", "a range stands in the brackets of `load` and `store`"),
            Expr::Reference(_) => ("references", "remove the `&`"),
            Expr::Assign(_) => ("assignments inside expressions", "compare with `==`, or write it as a statement of its own"),
            Expr::Block(_) => ("blocks as values", "write the statements in the kernel's own block"),
            Expr::Field(_) => ("fields", "values have only the methods `.t()` and `.to::<T>()`"),
            Expr::Macro(_) => ("macros", "write the expression out"),
            Expr::Let(_) => ("`let` inside expressions", "write it as a statement of its own"),
            _ => ("this expression of Rust", "a kernel has `let`, assignment, `for j in tiles(N)`, `store` and arithmetic"),
        };
        // Only the first token: bodies of branches and loops would be underlined whole.
        let first = quote::ToTokens::to_token_stream(expr).into_iter().next();
        let span = match expr {
            Expr::If(_) | Expr::Match(_) | Expr::While(_) | Expr::Loop(_) | Expr::ForLoop(_) => {
                first.map_or_else(Span::default, |tree| self.positions.token(tree.span()))
            }
            other => self.positions.of(other),
        };
        self.reporter.report(Diagnostic::new(span, format!("a kernel has no {what}")).label("not supported").help(help))
    }
}

/// A binary operator that the language has.
enum Operator {
    Binary(BinaryOp),
    Compare(CompareOp),
}

fn operator(op: &BinOp) -> Option<Operator> {
    Some(match op {
        BinOp::Eq(_) => Operator::Compare(CompareOp::Eq),
        BinOp::Ne(_) => Operator::Compare(CompareOp::Ne),
        BinOp::Lt(_) => Operator::Compare(CompareOp::Lt),
        BinOp::Le(_) => Operator::Compare(CompareOp::Le),
        BinOp::Gt(_) => Operator::Compare(CompareOp::Gt),
        BinOp::Ge(_) => Operator::Compare(CompareOp::Ge),
        _ => Operator::Binary(BinaryOp::written(&quote::ToTokens::to_token_stream(op).to_string())?),
    })
}
