//! Type rules of elementwise operations: what literals, sizes and indices become, which element types meet, and how
//! shapes broadcast.

use super::diagnostic::{Checked, Diagnostic, Reported};
use super::kernel::Lowering;
use super::operand::{Located, Number, Operand, SizeTree};
use crate::ir::{
    BinaryOp, CompareOp, Dim, Elem, Fill, IndexOp, Op, Operands, Span, Spelling, TileType, Type, UnaryOp, ValueId, broadcast,
};

/// Arithmetic on two integer literals; `None` on overflow and division by zero.
fn fold_int(op: IndexOp, a: i64, b: i64) -> Option<i64> {
    match op {
        IndexOp::Add => a.checked_add(b),
        IndexOp::Sub => a.checked_sub(b),
        IndexOp::Mul => a.checked_mul(b),
        IndexOp::Div => {
            let (quotient, remainder) = (a.checked_div(b)?, a.checked_rem(b)?);
            Some(if remainder != 0 && (remainder < 0) != (b < 0) { quotient - 1 } else { quotient })
        }
        IndexOp::Rem => {
            let remainder = a.checked_rem(b)?;
            Some(if remainder != 0 && (remainder < 0) != (b < 0) { remainder + b } else { remainder })
        }
        IndexOp::Min => Some(a.min(b)),
        IndexOp::Max => Some(a.max(b)),
    }
}

/// Arithmetic on two literals of which one is a float; `None` where the result is not a number.
fn fold_float(op: BinaryOp, a: f64, b: f64) -> Option<f64> {
    let result = op.row().float?.of(a, b);
    (!result.is_nan()).then_some(result)
}

impl Lowering<'_> {
    /// The operand as a tile: a literal becomes an f32 or i32 constant, an index an i32.
    pub(super) fn tile(&mut self, x: Located) -> Checked<ValueId> {
        let elem = match x.operand {
            Operand::Number(Number::Int(_)) => Elem::I32,
            _ => Elem::F32,
        };
        self.tile_like(x, elem)
    }

    /// The operand as a tile; a literal becomes a constant of `elem`.
    pub(super) fn tile_like(&mut self, x: Located, elem: Elem) -> Checked<ValueId> {
        match &x.operand {
            Operand::Value(value) => match self.builder.kernel.ty(*value) {
                Type::Tile(_) => Ok(*value),
                Type::Index => Ok(self.emit(Op::FromIndex(*value), x.span)),
                Type::Coord(axis) => {
                    let name = self.builder.kernel.axes[*axis].name.clone();
                    let error = Diagnostic::new(x.span, format!("`{name}` is the coordinate of a tile, not a number"))
                        .label("expected a value")
                        .help(format!("its positions are `pos({name})`"));
                    Err(self.reporter.report(error))
                }
            },
            Operand::Number(Number::Int(value)) if elem == Elem::I32 => match i32::try_from(*value) {
                Ok(value) => Ok(self.emit(Op::Constant(Elem::I32, f64::from(value)), x.span)),
                Err(_) => {
                    let error = Diagnostic::new(x.span, "this number does not fit an i32").label(format!("found {value}"));
                    Err(self.reporter.report(error))
                }
            },
            // What is folded from literals may leave the range of its type; `INF` is a number of its own.
            Operand::Number(number) if number.as_f64().is_finite() && (number.as_f64() as f32).is_infinite() => {
                let error =
                    Diagnostic::new(x.span, "this number does not fit an f32").label(format!("found {:e}", number.as_f64()));
                Err(self.reporter.report(error.help("the largest f32 is 3.4028235e38; infinity is `INF`")))
            }
            Operand::Number(number) => Ok(self.emit(Op::Constant(Elem::F32, number.as_f64()), x.span)),
            Operand::Size(_) => {
                let index = self.index(x.clone())?;
                Ok(self.emit(Op::FromIndex(index), x.span))
            }
            Operand::Tensor(param) => {
                let (name, rank) = {
                    let kernel = &self.builder.kernel;
                    (kernel.params[*param].name.clone(), kernel.tensor(*param).shape.len())
                };
                let at = vec![".."; rank].join(", ");
                let error = Diagnostic::new(x.span, format!("`{name}` is a tensor, not a value"))
                    .label("expected a tile")
                    .help(format!("load what is needed: `load({name}, [{at}])`, with an index or a coordinate for a dimension"));
                Err(self.reporter.report(error))
            }
        }
    }

    /// The operand as an index; the caller knows it to be integral and the same in the whole program.
    pub(super) fn index(&mut self, x: Located) -> Checked<ValueId> {
        self.builder.span = x.span;
        match &x.operand {
            Operand::Number(Number::Int(value)) => Ok(self.emit(Op::IndexConst(*value), x.span)),
            Operand::Size(tree) => Ok(tree.emit(&mut self.builder)),
            Operand::Value(value) => match self.builder.kernel.ty(*value) {
                Type::Index => Ok(*value),
                Type::Tile(t) if t.dims.is_empty() && t.elem == Elem::I32 => Ok(self.emit(Op::ToIndex(*value), x.span)),
                _ => Err(self.not_an_index(&x)),
            },
            _ => Err(self.not_an_index(&x)),
        }
    }

    fn not_an_index(&self, x: &Located) -> Reported {
        let error = Diagnostic::new(x.span, "expected an index").label(format!("found {}", self.describe(&x.operand)));
        self.reporter.report(
            error.help("an index is an integer that is the same in the whole program: a program id, a size, an i32 scalar"),
        )
    }

    /// The operand as a rank-0 value; a literal becomes an f32.
    pub(super) fn scalar(&mut self, x: Located) -> Checked<ValueId> {
        let found = self.describe(&x.operand);
        let span = x.span;
        let value = self.tile_like(x, Elem::F32)?;
        if self.builder.kernel.tile(value).dims.is_empty() {
            return Ok(value);
        }
        let error = Diagnostic::new(span, "expected a scalar").label(format!("found {found}"));
        Err(self.reporter.report(error.help("a tile is filled with one number")))
    }

    /// An i32 as an f32 where `elem` is a float.
    pub(super) fn cast_integer_like(&mut self, value: ValueId, elem: Elem, span: Span) -> ValueId {
        if elem.is_float() && self.builder.kernel.tile(value).elem == Elem::I32 {
            self.emit(Op::Cast(Elem::F32, value), span)
        } else {
            value
        }
    }

    fn is_index(&self, x: &Located) -> bool {
        match &x.operand {
            Operand::Number(Number::Int(_)) | Operand::Size(_) => true,
            Operand::Value(value) => *self.builder.kernel.ty(*value) == Type::Index,
            _ => false,
        }
    }

    fn size_tree(x: &Located) -> Option<SizeTree> {
        match &x.operand {
            Operand::Number(Number::Int(value)) => Some(SizeTree::Const(*value)),
            Operand::Size(tree) => Some(tree.clone()),
            _ => None,
        }
    }

    /// A function of one operand.
    pub(super) fn unary(&mut self, op: UnaryOp, x: Located, span: Span) -> Checked<Located> {
        let at = |operand| Located { operand, span };
        if op == UnaryOp::Neg {
            match &x.operand {
                Operand::Number(Number::Int(value)) => {
                    if let Some(value) = value.checked_neg() {
                        return Ok(at(Operand::Number(Number::Int(value))));
                    }
                }
                Operand::Number(Number::Float(value)) => return Ok(at(Operand::Number(Number::Float(-value)))),
                _ if self.is_index(&x) => {
                    let zero = Located { operand: Operand::Number(Number::Int(0)), span };
                    return self.binary(BinaryOp::Sub, zero, x, span);
                }
                _ => {}
            }
        }
        let takes = op.row().operand;
        let (found, x_span) = (self.describe(&x.operand), x.span);
        let wanted = if takes == Operands::Floats { Elem::F32 } else { Elem::I32 };
        let value = self.tile_like(x, wanted)?;
        let is_bool = self.builder.kernel.tile(value).elem == Elem::Bool;
        if is_bool != (takes == Operands::Truths) {
            let error = if takes == Operands::Truths {
                Diagnostic::new(x_span, "`!` takes a truth value")
                    .help("compare first: `!(a < b)`; to negate a number write `-x`")
            } else {
                Diagnostic::new(x_span, "expected numbers")
                    .help("make numbers of truth values with `select(condition, 1.0, 0.0)`")
            };
            return Err(self.reporter.report(error.label(format!("found {found}"))));
        }
        let value = if takes != Operands::Floats { value } else { self.cast_integer_like(value, Elem::F32, span) };
        Ok(at(Operand::Value(self.emit(Op::Unary(op, value), span))))
    }

    /// Arithmetic on two operands.
    pub(super) fn binary(&mut self, op: BinaryOp, a: Located, b: Located, span: Span) -> Checked<Located> {
        let row = op.row();
        if row.operands == Operands::Truths {
            return self.logic(op, a, b, span);
        }
        if row.divides && b.operand == Operand::Number(Number::Int(0)) && self.is_integral(&a) {
            let error = Diagnostic::new(b.span, "division by zero").label("this is 0");
            return Err(self.reporter.report(error));
        }
        if let (Some(index_op), true, true) = (row.index, self.is_index(&a), self.is_index(&b)) {
            return self.index_arithmetic(index_op, a, b, span);
        }
        if row.operands == Operands::Integers && row.index.is_none() {
            return self.integers(op, a, b, span);
        }
        if let (Operand::Number(x), Operand::Number(y)) = (&a.operand, &b.operand) {
            return match fold_float(op, x.as_f64(), y.as_f64()) {
                Some(value) => Ok(Located { operand: Operand::Number(Number::Float(value)), span }),
                None => {
                    Err(self.reporter.report(Diagnostic::new(span, "this constant is not a number").label("evaluates to NaN")))
                }
            };
        }
        let floats_only = row.operands == Operands::Floats;
        let (found_a, found_b) = (self.describe(&a.operand), self.describe(&b.operand));
        let (a, b) = self.unify(a, b, floats_only)?;
        if row.operands == Operands::Integers && self.builder.kernel.tile(a).elem != Elem::I32 {
            let error = Diagnostic::new(span, "the remainder `%` is for integers")
                .label(format!("found {found_a} and {found_b}"))
                .help("of positions and indices it is defined: `pos(j) % 64`");
            return Err(self.reporter.report(error));
        }
        self.check_broadcast(a, b, span)?;
        Ok(Located { operand: Operand::Value(self.emit(Op::Binary(op, a, b), span)), span })
    }

    /// An op that has a meaning for 32-bit integers alone: literals are folded, an index becomes an
    /// `i32`.
    fn integers(&mut self, op: BinaryOp, a: Located, b: Located, span: Span) -> Checked<Located> {
        let row = op.row();
        let written = match row.spelling {
            Spelling::Infix(sign, _) => format!("`{sign}`"),
            Spelling::Call | Spelling::Prefix(_) => format!("`{}`", row.mnemonic),
        };
        for x in [&a, &b] {
            let integer = match &x.operand {
                Operand::Value(value) => match self.builder.kernel.ty(*value) {
                    Type::Tile(t) => t.elem == Elem::I32,
                    Type::Index => true,
                    // Reported where it is made a tile.
                    Type::Coord(_) => true,
                },
                Operand::Number(number) => matches!(number, Number::Int(_)),
                Operand::Size(_) | Operand::Tensor(_) => true,
            };
            if !integer {
                let error = Diagnostic::new(x.span, format!("{written} is for integers"))
                    .label(format!("found {}", self.describe(&x.operand)))
                    .help("it works on the bits of `i32` values; truth values are joined with `&&`, `||` and `!`");
                return Err(self.reporter.report(error));
            }
        }
        if let (Some([least, most]), Operand::Number(Number::Int(value))) = (row.literals, &b.operand)
            && !(least..=most).contains(value)
        {
            let error = Diagnostic::new(b.span, format!("{written} takes a number from {least} to {most}"));
            return Err(self.reporter.report(error.label(format!("found {value}"))));
        }
        if let (Operand::Number(Number::Int(x)), Operand::Number(Number::Int(y))) = (&a.operand, &b.operand)
            && let (Ok(x), Ok(y), Some(meaning)) = (i32::try_from(*x), i32::try_from(*y), row.integer)
        {
            return Ok(Located { operand: Operand::Number(Number::Int(meaning(x, y).into())), span });
        }
        let (a, b) = (self.tile_like(a, Elem::I32), self.tile_like(b, Elem::I32));
        let (a, b) = (a?, b?);
        self.check_broadcast(a, b, span)?;
        Ok(Located { operand: Operand::Value(self.emit(Op::Binary(op, a, b), span)), span })
    }

    /// Whether the operand is an integer of some kind.
    fn is_integral(&self, x: &Located) -> bool {
        match &x.operand {
            Operand::Value(value) => match self.builder.kernel.ty(*value) {
                Type::Tile(t) => t.elem == Elem::I32,
                _ => true,
            },
            _ => self.is_index(x),
        }
    }

    fn index_arithmetic(&mut self, op: IndexOp, a: Located, b: Located, span: Span) -> Checked<Located> {
        if let (Operand::Number(Number::Int(x)), Operand::Number(Number::Int(y))) = (&a.operand, &b.operand) {
            return match fold_int(op, *x, *y) {
                Some(value) => Ok(Located { operand: Operand::Number(Number::Int(value)), span }),
                None => Err(self.reporter.report(Diagnostic::new(span, "this integer is too large").label("overflows 64 bits"))),
            };
        }
        if let (Some(x), Some(y)) = (Self::size_tree(&a), Self::size_tree(&b)) {
            return Ok(Located { operand: Operand::Size(SizeTree::Op(op, Box::new(x), Box::new(y))), span });
        }
        let (a, b) = (self.index(a)?, self.index(b)?);
        Ok(Located { operand: Operand::Value(self.emit(Op::Index(op, a, b), span)), span })
    }

    fn logic(&mut self, op: BinaryOp, a: Located, b: Located, span: Span) -> Checked<Located> {
        let (a, b) = (self.truth(a), self.truth(b));
        let (a, b) = (a?, b?);
        self.check_broadcast(a, b, span)?;
        Ok(Located { operand: Operand::Value(self.emit(Op::Binary(op, a, b), span)), span })
    }

    /// The operand, which must be a bool tile.
    fn truth(&mut self, x: Located) -> Checked<ValueId> {
        if let Operand::Value(value) = x.operand
            && matches!(self.builder.kernel.ty(value), Type::Tile(t) if t.elem == Elem::Bool)
        {
            return Ok(value);
        }
        let error = Diagnostic::new(x.span, "expected a condition").label(format!("found {}", self.describe(&x.operand)));
        Err(self.reporter.report(error.help("compare: `pos(i) >= pos(j)`")))
    }

    /// A comparison.
    pub(super) fn compare(&mut self, op: CompareOp, a: Located, b: Located, span: Span) -> Checked<Located> {
        let (a, b) = self.unify(a, b, false)?;
        let (a, b) = self.same_elem(a, b, span);
        self.check_broadcast(a, b, span)?;
        Ok(Located { operand: Operand::Value(self.emit(Op::Compare(op, a, b), span)), span })
    }

    /// `select(condition, a, b)`.
    pub(super) fn select(&mut self, condition: Located, a: Located, b: Located, span: Span) -> Checked<Located> {
        let cond = self.truth(condition);
        let both_bool = [&a, &b].iter().all(|x| self.elem(x) == Some(Elem::Bool));
        let (a, b) = if both_bool {
            let (a, b) = (self.truth(a), self.truth(b));
            (a?, b?)
        } else {
            let (a, b) = self.unify(a, b, false)?;
            self.same_elem(a, b, span)
        };
        let cond = cond?;
        let dims = self.check_broadcast(a, b, span)?;
        let cond_dims = self.builder.kernel.tile(cond).dims.clone();
        if broadcast(&dims, &cond_dims).is_none() {
            return Err(self.broadcast_error(TileType::new(Elem::Bool, dims), TileType::new(Elem::Bool, cond_dims), span));
        }
        let op = match self.masked(cond, a, b, span) {
            Some(mask) => mask,
            None => Op::Select { cond, on_true: a, on_false: b },
        };
        Ok(Located { operand: Operand::Value(self.emit(op, span)), span })
    }

    /// `select(keep, x, -INF)` and `select(hidden, -INF, x)` of a matrix are masks, from which loop bounds follow. A condition with a
    /// dimension that the matrix lacks makes none.
    fn masked(&mut self, cond: ValueId, a: ValueId, b: ValueId, span: Span) -> Option<Op> {
        let kernel = &self.builder.kernel;
        let (x, kept) = match (kernel.is_negative_infinity(a), kernel.is_negative_infinity(b)) {
            (false, true) => (a, true),
            (true, false) => (b, false),
            _ => return None,
        };
        let (tile, condition) = (kernel.tile(x), kernel.tile(cond));
        if tile.rank() != 2 || !tile.elem.is_float() || broadcast(&tile.dims, &condition.dims).as_ref() != Some(&tile.dims) {
            return None;
        }
        let keep = match (kept, kernel.def(cond)) {
            (true, _) => cond,
            (false, Some((_, &Op::Unary(UnaryOp::Not, keep)))) => keep,
            (false, _) => self.emit(Op::Unary(UnaryOp::Not, cond), span),
        };
        Some(Op::Mask { x, keep, fill: Fill::NegInf })
    }

    /// `mask(x, keep)`.
    pub(super) fn mask(&mut self, x: Located, keep: Located, span: Span) -> Checked<Located> {
        let x_span = x.span;
        let keep_span = keep.span;
        let keep = self.truth(keep);
        let found = self.describe(&x.operand);
        let value = self.tile_like(x, Elem::F32)?;
        if self.builder.kernel.tile(value).elem == Elem::Bool {
            let error = Diagnostic::new(x_span, "expected numbers to mask").label(format!("found {found}"));
            return Err(self.reporter.report(error.help("write `mask(scores, keep)`; conditions are joined with `&&`")));
        }
        let (x, keep) = (self.cast_integer_like(value, Elem::F32, span), keep?);
        let (x_type, keep_type) = (self.builder.kernel.tile(x).clone(), self.builder.kernel.tile(keep).clone());
        if broadcast(&x_type.dims, &keep_type.dims).as_ref() != Some(&x_type.dims) {
            let text = |t: &TileType| self.builder.kernel.type_text(&Type::Tile(t.clone()));
            let error = Diagnostic::new(keep_span, "the condition has a dimension that the masked tile lacks")
                .label(format!("{} masks {}", text(&keep_type), text(&x_type)))
                .help("use positions of the tile's own axes only, in the order of its dimensions");
            return Err(self.reporter.report(error));
        }
        Ok(Located { operand: Operand::Value(self.emit(Op::Mask { x, keep, fill: Fill::NegInf }, span)), span })
    }

    /// `x.to::<elem>()`.
    pub(super) fn cast(&mut self, x: Located, elem: Elem, span: Span) -> Checked<Located> {
        let (found, x_span) = (self.describe(&x.operand), x.span);
        let integer = elem == Elem::I32 && self.elem(&x).is_none_or(|of| !of.is_float());
        let value = self.tile_like(x, if integer { Elem::I32 } else { Elem::F32 })?;
        let from = self.builder.kernel.tile(value).elem;
        if from == elem {
            return Ok(Located { operand: Operand::Value(value), span });
        }
        let possible = elem == Elem::I32 || (elem.is_float() && !elem.is_narrow());
        if from == Elem::Bool || !possible {
            let help = if from == Elem::Bool {
                "make numbers of truth values with `select(condition, 1.0, 0.0)`"
            } else if elem == Elem::Bool {
                "compare: `x != 0`"
            } else {
                "elements of one byte are in memory only: a load widens them, and nothing is rounded to them"
            };
            let to = self.builder.kernel.elem_name(elem).to_owned();
            let error = Diagnostic::new(x_span, format!("cannot convert to {to}")).label(format!("found {found}"));
            return Err(self.reporter.report(error.help(help)));
        }
        Ok(Located { operand: Operand::Value(self.emit(Op::Cast(elem, value), span)), span })
    }

    /// The element type that the operand has; a literal and a tensor have none.
    fn elem(&self, x: &Located) -> Option<Elem> {
        match &x.operand {
            Operand::Value(value) => match self.builder.kernel.ty(*value) {
                Type::Tile(t) => Some(t.elem),
                Type::Index | Type::Coord(_) => Some(Elem::I32),
            },
            Operand::Number(Number::Float(_)) => Some(Elem::F32),
            Operand::Size(_) => Some(Elem::I32),
            Operand::Number(Number::Int(_)) | Operand::Tensor(_) => None,
        }
    }

    /// Both operands as numeric tiles: both i32, or both floats.
    fn unify(&mut self, a: Located, b: Located, floats_only: bool) -> Checked<(ValueId, ValueId)> {
        for x in [&a, &b] {
            if self.elem(x) == Some(Elem::Bool) {
                let error = Diagnostic::new(x.span, "expected numbers").label(format!("found {}", self.describe(&x.operand)));
                let help = "make numbers of truth values with `select(condition, 1.0, 0.0)`; join conditions with `&&` and `||`";
                return Err(self.reporter.report(error.help(help)));
            }
        }
        let float = floats_only || [&a, &b].iter().any(|x| self.elem(x).is_some_and(Elem::is_float));
        let elem = if float { Elem::F32 } else { Elem::I32 };
        let (a_span, b_span) = (a.span, b.span);
        let (a, b) = (self.tile_like(a, elem), self.tile_like(b, elem));
        let (a, b) = (a?, b?);
        Ok((self.cast_integer_like(a, elem, a_span), self.cast_integer_like(b, elem, b_span)))
    }

    /// Two float tiles of different element types as f32.
    fn same_elem(&mut self, a: ValueId, b: ValueId, span: Span) -> (ValueId, ValueId) {
        if self.builder.kernel.tile(a).elem == self.builder.kernel.tile(b).elem {
            return (a, b);
        }
        let mut widen = |value| match self.builder.kernel.tile(value).elem {
            Elem::F32 => value,
            _ => self.emit(Op::Cast(Elem::F32, value), span),
        };
        (widen(a), widen(b))
    }

    /// Dimensions of an elementwise result; reports shapes that do not go together.
    fn check_broadcast(&mut self, a: ValueId, b: ValueId, span: Span) -> Checked<Vec<Dim>> {
        let (a, b) = (self.builder.kernel.tile(a).clone(), self.builder.kernel.tile(b).clone());
        match broadcast(&a.dims, &b.dims) {
            Some(dims) => Ok(dims),
            None => Err(self.broadcast_error(a, b, span)),
        }
    }

    fn broadcast_error(&self, a: TileType, b: TileType, span: Span) -> Reported {
        let reversed: Vec<_> = b.dims.iter().rev().cloned().collect();
        let help = if a.dims == reversed {
            "transpose one of them with `.t()`".to_owned()
        } else {
            let text = |dims: &[Dim]| dims.iter().map(|d| self.builder.kernel.dim_text(d)).collect::<Vec<_>>().join(", ");
            format!("the dimensions of one must occur in the other, in order: ({}) and ({}) do not", text(&a.dims), text(&b.dims))
        };
        let text = |t: TileType| self.builder.kernel.type_text(&Type::Tile(t));
        let error = Diagnostic::new(span, "these shapes do not go together").label(format!("{} and {}", text(a), text(b)));
        self.reporter.report(error.help(help))
    }
}
