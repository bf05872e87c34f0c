//! Kernels built by hand for the tests of the analyses.

use crate::ir::{
    At, AxisId, AxisKind, BinaryOp, Builder, CompareOp, Dim, Direction, Elem, Fill, Kernel, Op, OpId, Param, ParamKind,
    ProgramDim, ReduceOp, SizeExpr, SizeKind, Span, TensorDecl, UnaryOp, ValueId,
};

/// How a sample attention differs from the built-in one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Softmax {
    /// `m_ref = visible_or_zero(m_new)`.
    Named,
    /// Plain arithmetic: NaN where nothing is visible.
    Plain,
    /// The accumulator forgets to be rescaled.
    Unscaled,
    /// The accumulator counts tiles.
    Counting,
    /// Starts from an attention sink: `m` from a loaded number, `l` from 1.
    Sink,
    /// The same without `visible_or_zero`.
    PlainSink,
    /// The same as `Sink`, with `acc / l` stored, which is NaN for a row that sees nothing after a hidden tile and 0 before.
    DividedSink,
}

impl Softmax {
    fn has_sink(self) -> bool {
        matches!(self, Softmax::Sink | Softmax::PlainSink | Softmax::DividedSink)
    }
}

/// Coordinates and sizes that a predicate may speak of.
pub struct Scope {
    /// Coordinate of the query rows.
    pub i: ValueId,
    /// Coordinate of the keys.
    pub j: ValueId,
    /// The size M.
    pub m: crate::ir::SizeId,
    /// The size N.
    pub n: crate::ir::SizeId,
}

impl Scope {
    /// `pos(i)`.
    pub fn row(&self, b: &mut Builder) -> ValueId {
        b.emit(Op::Pos(self.i))
    }

    /// `pos(j)`.
    pub fn column(&self, b: &mut Builder) -> ValueId {
        b.emit(Op::Pos(self.j))
    }

    /// An integer that is loaded.
    pub fn loaded(&self, b: &mut Builder) -> ValueId {
        let tensor = once(b, "number", SizeExpr::constant(1));
        let first = b.emit(Op::IndexConst(0));
        b.emit(Op::Load { tensor, at: vec![At::Index(first)] })
    }

    /// An integer of each row that is loaded.
    pub fn loaded_of_row(&self, b: &mut Builder) -> ValueId {
        let tensor = once(b, "number_of_row", SizeExpr::size(self.m));
        b.emit(Op::Load { tensor, at: vec![At::Tile(self.i)] })
    }

    /// An integer of each column that is loaded, from the tensor of this name.
    pub fn loaded_of_column(&self, b: &mut Builder, name: &str) -> ValueId {
        let tensor = once(b, name, SizeExpr::size(self.n));
        b.emit(Op::Load { tensor, at: vec![At::Tile(self.j)] })
    }

    /// `N - M`.
    pub fn shift(&self, b: &mut Builder) -> ValueId {
        let n = b.emit(Op::SizeOf(self.n));
        let m = b.emit(Op::SizeOf(self.m));
        let d = b.emit(Op::Index(crate::ir::IndexOp::Sub, n, m));
        b.emit(Op::FromIndex(d))
    }
}

/// An integer constant.
pub fn integer(b: &mut Builder, c: i64) -> ValueId {
    b.emit(Op::Constant(Elem::I32, c as f64))
}

/// `x op y`.
pub fn binary(b: &mut Builder, op: BinaryOp, x: ValueId, y: ValueId) -> ValueId {
    b.emit(Op::Binary(op, x, y))
}

/// `pos(i) + N - M >= pos(j)`.
pub fn causal(b: &mut Builder, s: &Scope) -> ValueId {
    let (row, shift, column) = (s.row(b), s.shift(b), s.column(b));
    let row = binary(b, BinaryOp::Add, row, shift);
    b.emit(Op::Compare(CompareOp::Ge, row, column))
}

fn tensor(b: &mut Builder, name: &str, elem: Elem, shape: Vec<SizeExpr>, output: bool) -> crate::ir::ParamId {
    let kind = ParamKind::Tensor(TensorDecl { elem, shape, direction: if output { Direction::Out } else { Direction::In } });
    b.kernel.params.push(Param { name: name.into(), kind, span: Span::default() })
}

/// A tensor of integers, which is declared once.
fn once(b: &mut Builder, name: &str, extent: SizeExpr) -> crate::ir::ParamId {
    b.kernel.param_named(name).unwrap_or_else(|| tensor(b, name, Elem::I32, vec![extent], false))
}

/// Builds a predicate.
pub type Predicate<'a> = &'a dyn Fn(&mut Builder, &Scope) -> ValueId;

/// Attention over one head with the masks that `masks` builds, one after the other.
pub fn attention(softmax: Softmax, masks: &[Predicate<'_>]) -> (Kernel, OpId, Scope) {
    let mut b = Builder::new("sample");
    b.kernel.type_params.push("T".into());
    let d = b.size("D", SizeKind::Const);
    let (m_size, n_size) = (b.size("M", SizeKind::Runtime), b.size("N", SizeKind::Runtime));
    let (d, m_extent, n_extent) = (SizeExpr::size(d), SizeExpr::size(m_size), SizeExpr::size(n_size));
    let elem = Elem::Generic(0);
    let q = tensor(&mut b, "q", elem, vec![m_extent.clone(), d.clone()], false);
    let k = tensor(&mut b, "k", elem, vec![n_extent.clone(), d.clone()], false);
    let v = tensor(&mut b, "v", elem, vec![n_extent.clone(), d.clone()], false);
    let scale = b.kernel.params.push(Param { name: "scale".into(), kind: ParamKind::Scalar(Elem::F32), span: Span::default() });
    let o = tensor(&mut b, "o", elem, vec![m_extent.clone(), d.clone()], true);

    let rows = b.axis("i", m_extent, AxisKind::Program);
    let (_, ids) = b.append(Op::Program(vec![ProgramDim::Tiles(rows)]));
    let i = b.name(ids[0], "i");
    let range = || At::Range { start: SizeExpr::constant(0), len: d.clone() };
    let q_i = b.emit(Op::Load { tensor: q, at: vec![At::Tile(i), range()] });
    b.name(q_i, "q_i");
    let full = |b: &mut Builder, name: &str, c: f64, dims: Vec<Dim>| {
        let value = b.emit(Op::Constant(Elem::F32, c));
        let value = b.emit(Op::Full { value, dims });
        b.name(value, name)
    };
    let (m, l) = if softmax.has_sink() {
        let sinks = tensor(&mut b, "sinks", Elem::F32, vec![SizeExpr::constant(1)], false);
        let first = b.emit(Op::IndexConst(0));
        let value = b.emit(Op::Load { tensor: sinks, at: vec![At::Index(first)] });
        let m = b.emit(Op::Full { value, dims: vec![Dim::Axis(rows)] });
        (b.name(m, "m"), full(&mut b, "l", 1.0, vec![Dim::Axis(rows)]))
    } else {
        let m = full(&mut b, "m", f64::NEG_INFINITY, vec![Dim::Axis(rows)]);
        (m, full(&mut b, "l", 0.0, vec![Dim::Axis(rows)]))
    };
    let acc = full(&mut b, "acc", 0.0, vec![Dim::Axis(rows), Dim::Range(d.clone())]);

    let keys: AxisId = b.axis("j", n_extent, AxisKind::Loop);
    let init = vec![m, l, acc];
    let (j, carried) = b.begin_for(keys, &init);
    let scope = Scope { i, j, m: m_size, n: n_size };
    let (m, l, acc) = (carried[0], carried[1], carried[2]);
    let k_j = b.emit(Op::Load { tensor: k, at: vec![At::Tile(j), range()] });
    let k_t = b.emit(Op::Transpose(k_j));
    let s = b.emit(Op::Dot { a: q_i, b: k_t, acc: None });
    let factor = b.emit(Op::Scalar(scale));
    let mut s = binary(&mut b, BinaryOp::Mul, s, factor);
    b.name(s, "s");
    for mask in masks {
        let keep = mask(&mut b, &scope);
        s = b.emit(Op::Mask { x: s, keep, fill: Fill::NegInf });
        b.name(s, "s");
    }
    let row_max = b.emit(Op::Reduce(ReduceOp::Max, s));
    let m_new = binary(&mut b, BinaryOp::Max, m, row_max);
    b.name(m_new, "m_new");
    let m_ref = match softmax {
        Softmax::Plain | Softmax::PlainSink => m_new,
        _ => {
            let v = b.emit(Op::Unary(UnaryOp::VisibleOrZero, m_new));
            b.name(v, "m_ref")
        }
    };
    let moved = binary(&mut b, BinaryOp::Sub, m, m_ref);
    let alpha = b.emit(Op::Unary(UnaryOp::Exp, moved));
    b.name(alpha, "alpha");
    let moved = binary(&mut b, BinaryOp::Sub, s, m_ref);
    let p = b.emit(Op::Unary(UnaryOp::Exp, moved));
    b.name(p, "p");
    let sum = b.emit(Op::Reduce(ReduceOp::Sum, p));
    let l_scaled = binary(&mut b, BinaryOp::Mul, l, alpha);
    let l_new = binary(&mut b, BinaryOp::Add, l_scaled, sum);
    b.name(l_new, "l");
    let p_cast = b.emit(Op::Cast(elem, p));
    let v_j = b.emit(Op::Load { tensor: v, at: vec![At::Tile(j), range()] });
    let product = b.emit(Op::Dot { a: p_cast, b: v_j, acc: None });
    let acc_scaled = match softmax {
        Softmax::Unscaled => acc,
        Softmax::Counting => {
            let one = b.emit(Op::Constant(Elem::F32, 1.0));
            binary(&mut b, BinaryOp::Add, acc, one)
        }
        _ => binary(&mut b, BinaryOp::Mul, acc, alpha),
    };
    let acc_new = binary(&mut b, BinaryOp::Add, acc_scaled, product);
    b.name(acc_new, "acc");
    let results = b.end_for(keys, init, vec![m_new, l_new, acc_new]);
    let division = if softmax == Softmax::DividedSink { BinaryOp::Div } else { BinaryOp::DivOrZero };
    let out = binary(&mut b, division, results[2], results[1]);
    b.append(Op::Store { tensor: o, at: vec![At::Tile(i), range()], value: out });
    let kernel = b.finish();
    let (_, loop_op) =
        kernel.walk().into_iter().find(|&(_, op)| matches!(kernel.ops[op].op, Op::For { .. })).expect("the sample has a loop");
    (kernel, loop_op, scope)
}
