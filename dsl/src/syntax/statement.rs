//! Statements: `let`, `program`, assignment, and what to write instead of the rest of Rust.

use std::collections::BTreeSet;

use syn::{Block, Expr, ExprCall, ExprTuple, Local, Pat, PatIdent, PatTuple, Stmt};

use super::diagnostic::{Checked, Diagnostic};
use super::kernel::Lowering;
use super::operand::{Located, Number, Operand};
use super::position::bare;
use super::scope::{Meaning, Origin, Variable, compound};
use super::signature::quoted;
use crate::ir::{AxisKind, Elem, Op, ProgramDim, SizeExpr, Span, Type, ValueId};

/// The call, if the expression calls the function `name`.
pub(super) fn call_of<'e>(expr: &'e Expr, name: &str) -> Option<&'e ExprCall> {
    match expr {
        Expr::Call(call) if matches!(&*call.func, Expr::Path(path) if path.path.is_ident(name)) => Some(call),
        _ => None,
    }
}

impl Lowering<'_> {
    /// Lowers the body of the function.
    pub(super) fn body(&mut self, block: &Block) {
        let first_is_program = matches!(block.stmts.first(), Some(Stmt::Local(Local { init: Some(init), .. })) if call_of(&init.expr, "program").is_some());
        if !first_is_program {
            let span = block.stmts.first().map_or(self.builder.kernel.name_span, |s| self.positions.of(s));
            let error = Diagnostic::new(span, "a kernel begins with `program`")
                .label(if block.stmts.is_empty() { "this kernel is empty" } else { "found another statement" })
                .help("say what one program works on: `let (b, h, i) = program(B, H, tiles(M));`");
            self.reporter.report(error);
        }
        self.scopes.open();
        self.block(block);
        self.scopes.close();
    }

    pub(super) fn block(&mut self, block: &Block) {
        self.statements(&block.stmts);
    }

    pub(super) fn statements(&mut self, statements: &[Stmt]) {
        for statement in statements {
            // Errors are on the list; the statements after are checked all the same.
            let _reported = self.statement(statement);
        }
    }

    fn statement(&mut self, statement: &Stmt) -> Checked<()> {
        match statement {
            Stmt::Local(local) => self.local(local),
            Stmt::Expr(Expr::Assign(assign), _) if matches!(&*assign.left, Expr::Tuple(_)) => {
                let Expr::Tuple(targets) = &*assign.left else { unreachable!("just seen") };
                self.assign_several(targets, &assign.right)
            }
            Stmt::Expr(Expr::Assign(assign), _) => {
                let value = self.expression(&assign.right);
                self.assign(&assign.left, value)
            }
            Stmt::Expr(Expr::Binary(binary), _) if compound(&binary.op).is_some() => {
                let op = compound(&binary.op).expect("just seen");
                let span = self.positions.of(binary);
                let target = match &*binary.left {
                    Expr::Path(path) => path.path.get_ident().and_then(|ident| self.scopes.find(&bare(ident))),
                    _ => None,
                };
                let was_read = target.is_some_and(|id| self.scopes.is_read(id));
                let left = self.expression(&binary.left);
                if let Some(id) = target {
                    self.scopes.set_read(id, was_read);
                }
                let operands = left.and_then(|left| Ok((left, self.expression(&binary.right)?)));
                let value = operands.and_then(|(left, right)| self.binary(op, left, right, span));
                self.assign(&binary.left, value)
            }
            Stmt::Expr(Expr::ForLoop(inner), _) => self.for_loop(inner),
            Stmt::Expr(expr, _) => match ["store", "add"].into_iter().find_map(|word| Some((word, call_of(expr, word)?))) {
                Some((word, call)) if self.in_helper() => {
                    let error = Diagnostic::new(self.positions.of(call), "a helper stores nothing").label(format!("a `{word}`"));
                    Err(self.reporter.report(error.help("give the tile back, and store it in the kernel")))
                }
                Some((word, call)) => self.store(word, call),
                None => {
                    if matches!(expr, Expr::Call(_) | Expr::Path(_) | Expr::Lit(_) | Expr::MethodCall(_) | Expr::Binary(_)) {
                        self.expression(expr)?;
                        let error = Diagnostic::new(self.positions.of(expr), "the value of this statement is not used")
                            .label("has no effect")
                            .help("bind it, `let x = ...;`, or store it, `store(o, [...], ...);`");
                        return Err(self.reporter.report(error));
                    }
                    Err(self.unsupported(expr))
                }
            },
            Stmt::Item(item) => {
                let error = Diagnostic::new(self.positions.of(item), "a kernel declares nothing inside")
                    .label("an item of Rust")
                    .help("move it out of the kernel; constants can be `let`");
                Err(self.reporter.report(error))
            }
            Stmt::Macro(call) => {
                let error = Diagnostic::new(self.positions.of(call), "a kernel calls no macros")
                    .label(format!("found {}", quoted(&call.mac.path)));
                Err(self.reporter.report(error.help("write the expression out")))
            }
        }
    }

    fn local(&mut self, local: &Local) -> Checked<()> {
        let result = self.try_local(local);
        if result.is_err() {
            self.declare_unknown(&local.pat);
        }
        result
    }

    /// Declares the names of a pattern whose value had an error, so that their uses are no errors again.
    fn declare_unknown(&mut self, pattern: &Pat) {
        match pattern {
            Pat::Ident(ident) => {
                let origin = if ident.mutability.is_some() { Origin::LetMut } else { Origin::Let };
                let span = self.positions.of(&ident.ident);
                self.scopes.declare(Variable { name: bare(&ident.ident), meaning: Meaning::Unknown, origin, span });
            }
            Pat::Tuple(tuple) => tuple.elems.iter().for_each(|p| self.declare_unknown(p)),
            Pat::Type(typed) => self.declare_unknown(&typed.pat),
            _ => {}
        }
    }

    fn try_local(&mut self, local: &Local) -> Checked<()> {
        let Some(init) = &local.init else {
            let error = Diagnostic::new(self.positions.of(local), "a variable needs a value")
                .label("nothing is assigned here")
                .help("give it one where it is declared: `let mut l = zeros(i);`");
            return Err(self.reporter.report(error));
        };
        if let Some((token, _)) = &init.diverge {
            let error = Diagnostic::new(self.positions.of(token), "`let ... else` is not supported");
            return Err(self.reporter.report(error.help("choose element by element with `select(condition, a, b)`")));
        }
        if let Some(call) = call_of(&init.expr, "program") {
            return self.program(&local.pat, call);
        }
        match (&local.pat, &*init.expr) {
            (Pat::Tuple(names), Expr::Tuple(_)) => self.several(names, &init.expr),
            (Pat::Tuple(names), value) if self.called_helper(value).is_some() => self.several(names, value),
            (pattern, value) => {
                let ident = self.variable(pattern)?;
                let value = self.expression(value)?;
                let operand = self.bound(ident, value)?;
                self.declare(ident, operand);
                Ok(())
            }
        }
    }

    /// How many values an expression gives.
    fn count(&self, value: &Expr) -> usize {
        match (value, self.called_helper(value)) {
            (Expr::Tuple(values), _) => values.elems.len(),
            (_, Some(helper)) => self.helpers.get(helper).results.len(),
            (_, None) => 1,
        }
    }

    /// `let (a, mut b) = (x, y);`, `let (a, b) = helper(x);`: all values are computed before a name
    /// is bound.
    fn several(&mut self, names: &PatTuple, value: &Expr) -> Checked<()> {
        let (bound, given) = (names.elems.len(), self.count(value));
        if bound != given {
            let error = Diagnostic::new(self.positions.of(names), format!("{bound} names are bound to {given} values"))
                .label(format!("expected {given}"))
                .help("give each value a name: `let (x, y) = (.., ..);`");
            // Its own errors are worth telling, and names in it count as used.
            let _reported = self.values(value);
            return Err(self.reporter.report(error));
        }
        let mut idents = Vec::new();
        for name in &names.elems {
            let ident = self.variable(name)?;
            if idents.iter().any(|other: &&PatIdent| other.ident == ident.ident) {
                let error = Diagnostic::new(self.positions.of(&ident.ident), format!("`{}` is named twice", ident.ident));
                return Err(self.reporter.report(error.label("the second time").help("give each value its own name")));
            }
            idents.push(ident);
        }
        let values = self.values(value)?;
        let operands = idents.iter().zip(values).map(|(ident, value)| self.bound(ident, value));
        let operands = operands.collect::<Vec<_>>().into_iter().collect::<Checked<Vec<_>>>()?;
        for (ident, operand) in idents.into_iter().zip(operands) {
            self.declare(ident, operand);
        }
        Ok(())
    }

    /// `(a, b) = (x, y);`, `(a, b) = helper(x);`: all values are computed before a variable is
    /// assigned.
    fn assign_several(&mut self, targets: &ExprTuple, value: &Expr) -> Checked<()> {
        let (assigned, given) = (targets.elems.len(), self.count(value));
        let values = self.values(value);
        if assigned != given {
            let error = Diagnostic::new(self.positions.of(targets), format!("{assigned} variables are assigned {given} values"))
                .label(format!("expected {given}"))
                .help("assign each value: `(x, y) = (.., ..);`");
            return Err(self.reporter.report(error));
        }
        let values = values?;
        let results: Vec<_> = targets.elems.iter().zip(values).map(|(target, value)| self.assign(target, Ok(value))).collect();
        results.into_iter().collect()
    }

    /// What a variable of this pattern holds.
    fn bound(&mut self, ident: &PatIdent, value: Located) -> Checked<Operand> {
        match ident.mutability {
            Some(_) => Ok(Operand::Value(self.materialize(value)?)),
            None => Ok(value.operand),
        }
    }

    fn declare(&mut self, ident: &PatIdent, operand: Operand) {
        let (name, span) = (bare(&ident.ident), self.positions.of(&ident.ident));
        let origin = if ident.mutability.is_some() { Origin::LetMut } else { Origin::Let };
        self.name(&operand, &name);
        self.scopes.declare(Variable { name, meaning: Meaning::Operand(operand), origin, span });
    }

    /// The variable that a pattern binds.
    fn variable<'p>(&self, pattern: &'p Pat) -> Checked<&'p PatIdent> {
        match pattern {
            Pat::Ident(ident) if ident.by_ref.is_none() && ident.subpat.is_none() => Ok(ident),
            Pat::Type(typed) => {
                let error = Diagnostic::new(self.positions.of(&typed.ty), "variables have no type annotations")
                    .label("types are inferred")
                    .help("remove it; to convert a value write `.to::<T>()`");
                Err(self.reporter.report(error))
            }
            Pat::Tuple(tuple) => {
                let error = Diagnostic::new(self.positions.of(tuple), "several names are bound to one value")
                    .label(format!("found {}", quoted(tuple)))
                    .help("give a value for each name, `let (x, y) = (.., ..);`; of the functions only `program` gives several");
                Err(self.reporter.report(error))
            }
            other => {
                let error = Diagnostic::new(self.positions.of(other), "expected the name of a variable")
                    .label(format!("found {}", quoted(other)))
                    .help("write `let name = ...;`");
                Err(self.reporter.report(error))
            }
        }
    }

    /// Names the value of an operand after a variable, unless it has a name.
    fn name(&mut self, operand: &Operand, name: &str) {
        if let Operand::Value(value) = operand
            && self.builder.kernel.values[*value].name.is_none()
        {
            self.builder.name(*value, name);
        }
    }

    /// The value of a mutable variable: a literal becomes an f32, an index if it is integral.
    pub(super) fn materialize(&mut self, value: Located) -> Checked<ValueId> {
        let span = value.span;
        match value.operand {
            Operand::Value(v) if matches!(self.builder.kernel.ty(v), Type::Coord(_)) => {
                let error = Diagnostic::new(span, "a coordinate cannot be assigned").label(self.describe(&value.operand));
                Err(self.reporter.report(error.help("bind it with `let` alone, or use `pos(...)`")))
            }
            Operand::Value(v) => Ok(v),
            Operand::Number(Number::Float(_)) => self.tile(value),
            Operand::Number(Number::Int(_)) | Operand::Size(_) => self.index(value),
            Operand::Tensor(_) => self.tile(value),
        }
    }

    fn assign(&mut self, target: &Expr, value: Checked<Located>) -> Checked<()> {
        let name = match target {
            Expr::Path(path) => path.path.get_ident().map(bare),
            _ => None,
        };
        let span = self.positions.of(target);
        let Some(name) = name else {
            let error = Diagnostic::new(span, "only a variable can be assigned")
                .label(format!("found {}", quoted(target)))
                .help("tensors are written with `store(o, [...], value);`");
            return Err(self.reporter.report(error));
        };
        let Some(id) = self.scopes.find(&name) else {
            return Err(self.unknown_name(&name, span));
        };
        let variable = self.scopes.get(id).clone();
        let refusal = match variable.origin {
            Origin::LetMut => None,
            Origin::Let => Some(("is not mutable", format!("declare it with `let mut {name}`"))),
            Origin::Param => match variable.meaning {
                Meaning::Operand(Operand::Tensor(_)) => Some(("is a tensor", format!("write `store({name}, [...], value);`"))),
                _ => Some(("is a parameter", format!("copy it first: `let mut {name}_now = {name};`"))),
            },
            Origin::Argument => Some(("is a parameter", format!("declare it with `mut {name}: ..`"))),
            Origin::Coordinate => Some(("is the coordinate of a tile", "it advances by itself; use another name".into())),
            Origin::Position => Some(("is the index of a loop", "it advances by itself; use another name".into())),
        };
        if let Some((what, help)) = refusal {
            let error = Diagnostic::new(span, format!("`{name}` {what} and cannot be assigned"));
            return Err(self.reporter.report(error.label("assigned here").help(help)));
        }
        let value = value?;
        let Meaning::Operand(Operand::Value(current)) = variable.meaning else { return Ok(()) };
        let next = self.convert_to_type_of(current, &name, value)?;
        self.name(&Operand::Value(next), &name);
        self.scopes.set(id, Meaning::Operand(Operand::Value(next)));
        Ok(())
    }

    /// The value to assign to a variable that holds `current`: of the same type.
    fn convert_to_type_of(&mut self, current: ValueId, name: &str, value: Located) -> Checked<ValueId> {
        let span = value.span;
        let found = self.describe(&value.operand);
        let wanted = self.builder.kernel.ty(current).clone();
        let next = match (&wanted, &value.operand) {
            (Type::Index, Operand::Number(Number::Int(_)) | Operand::Size(_)) => self.index(value)?,
            (Type::Tile(t), Operand::Number(_) | Operand::Size(_)) if t.dims.is_empty() => {
                let tile = self.tile_like(value, t.elem)?;
                self.cast_integer_like(tile, t.elem, span)
            }
            (Type::Tile(t), &Operand::Value(v)) if t.dims.is_empty() && *self.builder.kernel.ty(v) == Type::Index => {
                let tile = self.emit(Op::FromIndex(v), span);
                self.cast_integer_like(tile, t.elem, span)
            }
            (_, Operand::Value(v)) => *v,
            (_, _) => self.tile(value)?,
        };
        if *self.builder.kernel.ty(next) == wanted {
            return Ok(next);
        }
        let wanted_text = self.builder.kernel.type_text(&wanted);
        let help = match (&wanted, self.builder.kernel.ty(next)) {
            (Type::Tile(a), Type::Tile(b)) if a.dims == b.dims => {
                format!(
                    "convert it, `.to::<{}>()`, or convert the value that `{name}` begins with",
                    self.builder.kernel.elem_name(a.elem)
                )
            }
            (_, Type::Tile(b)) if !b.dims.is_empty() => {
                let dims: Vec<_> = b.dims.iter().map(|d| self.builder.kernel.dim_text(d)).collect();
                let dims = if dims.len() == 1 { dims[0].clone() } else { format!("({})", dims.join(", ")) };
                let zeros = match b.elem {
                    Elem::I32 => format!("zeros({dims}).to::<i32>()"),
                    _ => format!("zeros({dims})"),
                };
                format!("begin with a tile of that shape, `let mut {name} = {zeros};`, or use another variable")
            }
            _ => format!("`{name}` keeps the type it was declared with; use another variable"),
        };
        let error = Diagnostic::new(span, format!("the type of `{name}` would change"));
        Err(self.reporter.report(error.label(format!("expected {wanted_text}, found {found}")).help(help)))
    }

    /// The size whose tiles `tiles(size)` means.
    pub(super) fn tiles(&mut self, call: &ExprCall) -> Checked<SizeExpr> {
        match call.args.first() {
            Some(argument) if call.args.len() == 1 => self.size(argument),
            _ => {
                let error = Diagnostic::new(self.positions.of(call), "`tiles` takes 1 argument")
                    .label(format!("found {}", call.args.len()))
                    .help("write `tiles(M)`, with the size whose positions are walked");
                Err(self.reporter.report(error))
            }
        }
    }

    /// `let pattern = program(...)`.
    fn program(&mut self, pattern: &Pat, call: &ExprCall) -> Checked<()> {
        let span = self.positions.of(call);
        if self.has_program {
            let error = Diagnostic::new(span, "a kernel has one `program`").label("the second one");
            return Err(self.reporter.report(error.help("remove it; the first one names everything")));
        }
        self.has_program = true;
        if !self.builder.kernel.ops.is_empty() {
            let error = Diagnostic::new(span, "`program` must be the first statement").label("found after another statement");
            self.reporter.report(error.help("move it to the beginning of the kernel"));
        }
        let names: Option<Vec<_>> = match pattern {
            Pat::Tuple(tuple) => tuple.elems.iter().map(program_name).collect(),
            other => program_name(other).map(|ident| vec![ident]),
        };
        let Some(names) = names else {
            let error = Diagnostic::new(self.positions.of(pattern), "expected a name for each argument of `program`")
                .label(format!("found {}", quoted(pattern)))
                .help("write `let (b, h, i) = program(B, H, tiles(M));`");
            let reported = self.reporter.report(error);
            self.define_scalars();
            return Err(reported);
        };
        let mut seen = BTreeSet::new();
        for name in &names {
            if !seen.insert(bare(name)) {
                let error = Diagnostic::new(self.positions.of(*name), format!("`{name}` is named twice"));
                self.reporter.report(error.label("the second time").help("give each dimension its own name"));
            }
        }
        let result = self.grid(&names, call, span);
        self.define_scalars();
        result
    }

    fn grid(&mut self, names: &[&syn::Ident], call: &ExprCall, span: Span) -> Checked<()> {
        if names.len() != call.args.len() || names.is_empty() {
            let (expected, found) = (call.args.len(), names.len());
            let error = Diagnostic::new(span, format!("`program` has {expected} arguments, but {found} names are bound"))
                .help("name each dimension: `let (b, h, i) = program(B, H, tiles(M));`");
            return Err(self.reporter.report(error));
        }
        let mut dims = Vec::new();
        for (name, argument) in names.iter().zip(&call.args) {
            let dim = match call_of(argument, "tiles") {
                Some(tiles) => {
                    let extent = self.tiles(tiles);
                    extent.map(|extent| ProgramDim::Tiles(self.builder.axis(bare(name), extent, AxisKind::Program)))
                }
                None => self.size(argument).map(ProgramDim::Each),
            };
            dims.push(dim);
        }
        let dims = dims.into_iter().collect::<Checked<Vec<_>>>()?;
        self.builder.span = span;
        let (_, results) = self.builder.append(Op::Program(dims));
        for (name, value) in names.iter().zip(results) {
            self.builder.name(value, bare(name));
            let origin = if matches!(self.builder.kernel.ty(value), Type::Coord(_)) { Origin::Coordinate } else { Origin::Let };
            let variable = Variable {
                name: bare(name),
                meaning: Meaning::Operand(Operand::Value(value)),
                origin,
                span: self.positions.of(*name),
            };
            self.scopes.declare(variable);
        }
        Ok(())
    }
}

/// The name that a pattern of `program` binds.
fn program_name(pattern: &Pat) -> Option<&syn::Ident> {
    match pattern {
        Pat::Ident(ident) if ident.mutability.is_none() && ident.by_ref.is_none() && ident.subpat.is_none() => Some(&ident.ident),
        _ => None,
    }
}
