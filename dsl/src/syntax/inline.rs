//! Calls of helper functions: the body of the helper is lowered in place of each call, with the
//! arguments under the names of the parameters.
//!
//! A helper knows its parameters and generics alone. An error in its body names the calls that led
//! there. Helpers that call themselves are refused, whether directly or through others.

use syn::{Expr, ExprCall, GenericArgument, PathArguments, Stmt, Type};

use super::diagnostic::{Call, Checked, Diagnostic};
use super::helper::{Frame, Generic, Helper, Kind};
use super::kernel::Lowering;
use super::operand::{Located, Number, Operand};
use super::position::bare;
use super::scope::{Meaning, Origin, Variable};
use super::signature::element_type;
use crate::ir::{Elem, HelperCall, Span, Type as IrType};

/// Most calls of helpers in one kernel: bounds the ops of helpers that call others several times.
const CALLS: usize = 1000;
/// Most calls inside one another.
const DEPTH: usize = 32;

impl<'a> Lowering<'a> {
    /// The helper that an expression calls.
    pub(super) fn called_helper(&self, expr: &Expr) -> Option<usize> {
        if let Expr::Call(call) = expr { self.called_helper_of(call) } else { None }
    }

    /// The helper that is called.
    pub(super) fn called_helper_of(&self, call: &ExprCall) -> Option<usize> {
        let Expr::Path(path) = &*call.func else { return None };
        let [segment] = path.path.segments.iter().collect::<Vec<_>>()[..] else { return None };
        self.helpers.find(&bare(&segment.ident))
    }

    /// Whether the body of a helper is being lowered.
    pub(super) fn in_helper(&self) -> bool {
        !self.frames.is_empty()
    }

    /// The element type that a type names here.
    pub(super) fn named_element(&self, ty: &Type) -> Checked<Elem> {
        let Some(frame) = self.frames.last() else {
            return element_type(ty, &self.builder.kernel.type_params, self.positions, self.reporter);
        };
        let names: Vec<String> = frame.elems.iter().map(|(name, _)| name.clone()).collect();
        match element_type(ty, &names, self.positions, self.reporter)? {
            Elem::Generic(index) => Ok(frame.elems[index as usize].1),
            elem => Ok(elem),
        }
    }

    /// Lowers a call of a helper that gives one value.
    pub(super) fn helper_value(&mut self, index: usize, call: &ExprCall) -> Checked<Located> {
        let helper = self.helpers.get(index);
        let results = self.helper_call(index, call)?;
        let count = results.len();
        match <[Located; 1]>::try_from(results) {
            Ok([value]) => Ok(value),
            Err(_) => {
                let names = ["a", "b", "c", "d", "e", "f"].iter().cycle().take(count).copied().collect::<Vec<_>>().join(", ");
                let error = Diagnostic::new(self.positions.of(call), format!("`{}` gives {count} values", helper.name))
                    .label("expected one")
                    .help(format!("name each of them: `let ({names}) = {};`", helper.usage()));
                Err(self.reporter.report(error))
            }
        }
    }

    /// Lowers a call of a helper.
    pub(super) fn helper_call(&mut self, index: usize, call: &ExprCall) -> Checked<Vec<Located>> {
        let helper = self.helpers.get(index);
        self.helpers.call(index);
        let span = self.positions.of(call);
        // All arguments are checked, whatever else is wrong.
        let arguments: Vec<_> = call.args.iter().map(|argument| self.expression(argument)).collect();
        let arguments = arguments.into_iter().collect::<Checked<Vec<_>>>();
        self.check_chain(index, span)?;
        let (elems, sizes) = self.generic_arguments(helper, call)?;
        let arguments = arguments?;
        if arguments.len() != helper.parameters.len() {
            let (name, takes) = (&helper.name, helper.parameters.len());
            let plural = if takes == 1 { "" } else { "s" };
            let error = Diagnostic::new(span, format!("`{name}` takes {takes} argument{plural}"))
                .label(format!("found {}", arguments.len()))
                .help(format!("write `{}`", helper.usage()));
            return Err(self.reporter.report(error));
        }
        let accepted = helper.parameters.iter().zip(arguments).map(|(parameter, x)| {
            let what = format!("`{}` of `{}` takes {}", parameter.name, helper.name, parameter.kind.takes());
            self.accept(parameter.kind, x, &what)
        });
        let accepted = accepted.collect::<Vec<_>>().into_iter().collect::<Checked<Vec<_>>>()?;

        self.builder.kernel.calls.push(HelperCall { name: helper.name.clone(), body: helper.span, at: span });
        self.reporter.enter(Call { name: helper.name.clone(), span });
        let outside = self.scopes.enter();
        self.frames.push(Frame { helper: index, elems, outside });
        let results = self.helper_body(helper, sizes, accepted);
        let frame = self.frames.pop().expect("pushed above");
        self.scopes.leave(frame.outside);
        self.reporter.leave();
        // What a helper gives stands where it is called.
        results.map(|results| results.into_iter().map(|operand| Located { operand, span }).collect())
    }

    /// Refuses recursion, and more calls than anybody writes.
    fn check_chain(&mut self, index: usize, span: Span) -> Checked<()> {
        if let Some(first) = self.frames.iter().position(|frame| frame.helper == index) {
            let circle = self.frames[first..].iter().map(|frame| frame.helper).chain([index]);
            let names: Vec<_> = circle.map(|helper| format!("`{}`", self.helpers.get(helper).name)).collect();
            let error = Diagnostic::new(span, "a helper calls itself")
                .label(format!("the circle is {}", names.join(" -> ")))
                .help("a helper is put in place of its call; walk what repeats in a loop");
            return Err(self.reporter.report(error));
        }
        if self.frames.len() >= DEPTH || self.builder.kernel.calls.len() >= CALLS {
            let error = Diagnostic::new(span, "too many calls of helpers")
                .label(format!("at most {CALLS} in a kernel, and {DEPTH} inside one another"))
                .help("each call is a copy of the body: walk what repeats in a loop");
            return Err(self.reporter.report(error));
        }
        Ok(())
    }

    /// The element types and sizes that a call gives.
    #[expect(clippy::type_complexity, reason = "two lists by name")]
    fn generic_arguments(
        &mut self,
        helper: &Helper,
        call: &ExprCall,
    ) -> Checked<(Vec<(String, Elem)>, Vec<(String, Span, Operand)>)> {
        let Expr::Path(path) = &*call.func else { unreachable!("a helper is called by its name") };
        let given: Vec<GenericArgument> = match path.path.segments.last().map(|segment| &segment.arguments) {
            Some(PathArguments::AngleBracketed(arguments)) => arguments.args.iter().cloned().collect(),
            _ => Vec::new(),
        };
        if given.len() != helper.generics.len() {
            let (name, takes) = (&helper.name, helper.generics.len());
            let plural = if takes == 1 { "" } else { "s" };
            let error =
                Diagnostic::new(self.positions.of(&*call.func), format!("`{name}` takes {takes} generic argument{plural}"))
                    .label(format!("found {}", given.len()))
                    .help(format!("write `{}`", helper.usage()));
            return Err(self.reporter.report(error));
        }
        let (mut elems, mut sizes) = (Vec::new(), Vec::new());
        for (generic, given) in helper.generics.iter().zip(&given) {
            match (generic, given) {
                (Generic::Type(name), GenericArgument::Type(ty)) => elems.push((name.clone(), self.named_element(ty)?)),
                (Generic::Size(name, span), given) => sizes.push((name.clone(), *span, self.generic_size(name, given)?)),
                (Generic::Type(name), other) => {
                    let error = Diagnostic::new(self.positions.of(other), format!("`{name}` is an element type"));
                    return Err(self.reporter.report(error.label("expected a type such as `T` or `f32`")));
                }
            }
        }
        Ok((elems, sizes))
    }

    /// A size that a call gives: `D`, `64`, `{ D / 2 }`.
    fn generic_size(&mut self, name: &str, given: &GenericArgument) -> Checked<Operand> {
        let found = match given {
            GenericArgument::Type(Type::Path(path)) => match path.path.get_ident() {
                Some(ident) => Some(self.named(&bare(ident), self.positions.of(ident))?),
                None => None,
            },
            GenericArgument::Const(Expr::Block(block)) => match &block.block.stmts[..] {
                [Stmt::Expr(size, None)] => Some(self.expression(size)?.operand),
                _ => None,
            },
            GenericArgument::Const(size) => Some(self.expression(size)?.operand),
            _ => None,
        };
        match found {
            Some(size @ (Operand::Size(_) | Operand::Number(Number::Int(_)))) => Ok(size),
            _ => {
                let error = Diagnostic::new(self.positions.of(given), format!("`{name}` is a size"));
                Err(self.reporter.report(error.label("expected a size such as `D`, `64` or `{ D / 2 }`")))
            }
        }
    }

    /// Lowers the body with the arguments, and gives the results.
    fn helper_body(
        &mut self,
        helper: &Helper,
        sizes: Vec<(String, Span, Operand)>,
        arguments: Vec<Operand>,
    ) -> Checked<Vec<Operand>> {
        self.scopes.open();
        for (name, span, size) in sizes {
            let meaning = Meaning::Operand(size);
            self.scopes.declare(Variable { name, meaning, origin: Origin::Param, span });
        }
        for (parameter, operand) in helper.parameters.iter().zip(arguments) {
            let (name, span) = (parameter.name.clone(), parameter.span);
            let (origin, operand) = match parameter.is_mutable {
                true => (Origin::LetMut, Operand::Value(self.materialize(Located { operand, span })?)),
                false => (Origin::Argument, operand),
            };
            self.scopes.declare(Variable { name, meaning: Meaning::Operand(operand), origin, span });
        }
        let Some((Stmt::Expr(last, None), before)) = helper.body.stmts.split_last() else {
            return Err(self.no_result(helper));
        };
        if matches!(last, Expr::ForLoop(_) | Expr::Assign(_) | Expr::Return(_)) {
            return Err(self.no_result(helper));
        }
        let errors_before = self.reporter.count();
        self.statements(before);
        let results = self.results(helper, last)?;
        // A result of statements with errors may be anything.
        self.reporter.since(errors_before)?;
        Ok(results)
    }

    fn no_result(&self, helper: &Helper) -> super::diagnostic::Reported {
        let error = Diagnostic::new(helper.name_span, format!("the body of `{}` does not end in its result", helper.name))
            .label("a helper gives the value of its last expression")
            .help("end it with the value, without `return` and without a semicolon: `x * w` or `(a, b)`");
        self.reporter.report(error)
    }

    fn results(&mut self, helper: &Helper, last: &Expr) -> Checked<Vec<Operand>> {
        let found = self.values(last)?;
        let (name, gives) = (&helper.name, helper.results.len());
        if found.len() != gives {
            let error = Diagnostic::new(self.positions.of(last), format!("`{name}` gives {gives} values"))
                .label(format!("found {}", found.len()))
                .help("the tuple of the last line has a value for each type behind `->`");
            return Err(self.reporter.report(error));
        }
        let results = helper.results.iter().zip(found).map(|(&kind, x)| {
            let what = format!("`{name}` gives {}, `{}`", kind.takes(), kind.written());
            self.accept(kind, x, &what)
        });
        results.collect::<Vec<_>>().into_iter().collect()
    }

    /// The values of a tuple, of a call that gives several, or of any other expression.
    pub(super) fn values(&mut self, expr: &Expr) -> Checked<Vec<Located>> {
        match (expr, self.called_helper(expr)) {
            (Expr::Tuple(tuple), _) => {
                // All values are checked even if one has an error.
                let values: Vec<_> = tuple.elems.iter().map(|value| self.expression(value)).collect();
                values.into_iter().collect()
            }
            (Expr::Call(call), Some(helper)) => self.helper_call(helper, call),
            _ => Ok(vec![self.expression(expr)?]),
        }
    }

    /// The operand as a parameter or a result of this kind takes it.
    fn accept(&mut self, kind: Kind, x: Located, what: &str) -> Checked<Operand> {
        let ty = match x.operand {
            Operand::Value(value) => Some(self.builder.kernel.ty(value).clone()),
            _ => None,
        };
        let scalar = match &ty {
            Some(IrType::Tile(tile)) if tile.dims.is_empty() => Some(tile.elem),
            _ => None,
        };
        match (kind, &x.operand) {
            (Kind::Tile, Operand::Number(number)) => {
                let number = Located { operand: Operand::Number(Number::Float(number.as_f64())), ..x };
                return Ok(Operand::Value(self.tile(number)?));
            }
            (Kind::Tile, Operand::Value(_) | Operand::Size(_)) if !matches!(ty, Some(IrType::Coord(_))) => {
                return Ok(Operand::Value(self.tile(x)?));
            }
            (Kind::F32, Operand::Number(number)) => return Ok(Operand::Number(Number::Float(number.as_f64()))),
            (Kind::F32, Operand::Value(_)) if scalar.is_some_and(Elem::is_float) => {
                let span = x.span;
                return Ok(self.cast(x, Elem::F32, span)?.operand);
            }
            (Kind::I32, Operand::Number(Number::Int(_)) | Operand::Size(_)) => return Ok(x.operand),
            (Kind::I32, Operand::Value(_)) if scalar == Some(Elem::I32) || ty == Some(IrType::Index) => return Ok(x.operand),
            (Kind::Bool, Operand::Value(_)) if scalar == Some(Elem::Bool) => return Ok(x.operand),
            (Kind::Coord, Operand::Value(_)) if matches!(ty, Some(IrType::Coord(_))) => return Ok(x.operand),
            (Kind::Tensor, Operand::Tensor(_)) => return Ok(x.operand),
            _ => {}
        }
        let help = match (kind, &x.operand) {
            (Kind::Tile, Operand::Value(_)) => "positions are `pos(i)`; to take the coordinate itself write `Coord`",
            (Kind::Tile, _) => "load what is needed; to take the tensor itself write `&Tensor`",
            (Kind::F32 | Kind::I32 | Kind::Bool, Operand::Value(_)) => "a tile of any shape and element type is `Tile`",
            (Kind::F32, Operand::Size(_)) => "write `i32`, which takes sizes and indices",
            (Kind::Coord, _) => "coordinates are bound by `program(.., tiles(M))` and `for j in tiles(N)`",
            (Kind::Tensor, _) => "give a parameter of the kernel that is an input",
            _ => "change the type, or give another value",
        };
        let error = Diagnostic::new(x.span, what).label(format!("found {}", self.describe(&x.operand))).help(help);
        Err(self.reporter.report(error))
    }
}
