//! Type rules of what sees a tile as a matrix: products, transposition, row-wise reductions.

use super::diagnostic::{Checked, Diagnostic};
use super::kernel::Lowering;
use super::operand::{Located, Operand};
use crate::ir::{Elem, Op, ReduceOp, Span, TileType, Type, ValueId};

impl Lowering<'_> {
    /// The operand as a matrix; `what` wants it.
    fn matrix(&mut self, x: Located, what: &str) -> Checked<ValueId> {
        let (found, span) = (self.describe(&x.operand), x.span);
        let value = self.tile(x)?;
        if self.builder.kernel.tile(value).rank() == 2 {
            return Ok(value);
        }
        let error =
            Diagnostic::new(span, format!("{what} takes a matrix")).label(format!("expected 2 dimensions, found {found}"));
        let is_row = self.builder.kernel.tile(value).rank() == 1;
        let help = match what {
            "rowsum" if is_row => {
                "to sum up one number for each row, add all of them to one place of an f32 output, such as that of a batch: \
                 `add(total, [b + 0 * pos(i)], x)`"
            }
            _ => "a matrix is a load with two dimensions that no index addresses, such as `load(q, [b, h, i, ..])`",
        };
        Err(self.reporter.report(error.help(help)))
    }

    fn text(&self, tile: &TileType) -> String {
        self.builder.kernel.type_text(&Type::Tile(tile.clone()))
    }

    /// What is loaded from elements of one byte as a tile that is computed: a product does not read
    /// such memory itself.
    fn widened(&mut self, value: ValueId, span: Span) -> ValueId {
        let kernel = &self.builder.kernel;
        let mut loaded = value;
        while let Some((_, &Op::Transpose(x))) = kernel.def(loaded) {
            loaded = x;
        }
        match kernel.def(loaded) {
            Some((_, Op::Load { tensor, .. }))
                if kernel.tensor(*tensor).elem.is_narrow() && kernel.tile(value).elem == Elem::F32 =>
            {
                self.emit(Op::Cast(Elem::F32, value), span)
            }
            _ => value,
        }
    }

    /// `dot(a, b)`.
    pub(super) fn dot(&mut self, a: Located, b: Located, span: Span) -> Checked<Located> {
        let (a_span, b_span) = (a.span, b.span);
        let (a, b) = (self.matrix(a, "`dot`"), self.matrix(b, "`dot`"));
        let (a, b) = (self.widened(a?, a_span), self.widened(b?, b_span));
        let (left, right) = (self.builder.kernel.tile(a).clone(), self.builder.kernel.tile(b).clone());
        for (tile, span) in [(&left, a_span), (&right, b_span)] {
            if !tile.elem.is_float() {
                let error = Diagnostic::new(span, "`dot` multiplies floats").label(format!("found {}", self.text(tile)));
                return Err(self.reporter.report(error.help("convert it, `.to::<f32>()`")));
            }
        }
        if left.elem != right.elem {
            let (wide, narrow) = if left.elem == Elem::F32 { (&left, &right) } else { (&right, &left) };
            let side = if std::ptr::eq(wide, &left) { "left" } else { "right" };
            let error = Diagnostic::new(span, "the operands of `dot` have different element types")
                .label(format!("{} and {}", self.text(&left), self.text(&right)))
                .help(format!("convert the {side} one: `.to::<{}>()`", self.builder.kernel.elem_name(narrow.elem)));
            return Err(self.reporter.report(error));
        }
        let (inner_left, inner_right) = (&left.dims[1], &right.dims[0]);
        if inner_left != inner_right {
            let kernel = &self.builder.kernel;
            let transposed = if left.dims[1] == right.dims[1] {
                "transpose the right one: `.t()`".to_owned()
            } else if left.dims[0] == right.dims[0] {
                "transpose the left one: `.t()`".to_owned()
            } else {
                format!("(m, k) times (k, n): here k is {} and {}", kernel.dim_text(inner_left), kernel.dim_text(inner_right))
            };
            let error = Diagnostic::new(span, "the inner dimensions of `dot` differ")
                .label(format!("{} and {}", self.text(&left), self.text(&right)))
                .help(transposed);
            return Err(self.reporter.report(error));
        }
        self.check_dims(&[left.dims[0].clone(), right.dims[1].clone()], span)?;
        let value = self.emit(Op::Dot { a, b, acc: None }, span);
        Ok(Located { operand: Operand::Value(value), span })
    }

    /// `x.t()`.
    pub(super) fn transpose(&mut self, x: Located, span: Span) -> Checked<Located> {
        let value = self.matrix(x, "`.t()`")?;
        Ok(Located { operand: Operand::Value(self.emit(Op::Transpose(value), span)), span })
    }

    /// `rowmax(x)`, `rowsum(x)`.
    pub(super) fn reduce(&mut self, op: ReduceOp, x: Located, span: Span) -> Checked<Located> {
        let (found, x_span) = (self.describe(&x.operand), x.span);
        let name = match op {
            ReduceOp::Max => "`rowmax`",
            ReduceOp::Sum => "`rowsum`",
        };
        let value = self.matrix(x, name)?;
        if self.builder.kernel.tile(value).elem == Elem::Bool {
            let error = Diagnostic::new(x_span, "expected numbers").label(format!("found {found}"));
            return Err(self.reporter.report(error.help("make numbers of truth values with `select(condition, 1.0, 0.0)`")));
        }
        let value = self.cast_integer_like(value, Elem::F32, span);
        Ok(Located { operand: Operand::Value(self.emit(Op::Reduce(op, value), span)), span })
    }
}
