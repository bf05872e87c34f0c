//! How large the floats of a kernel are, and which inputs make them of order 1.
//!
//! An activation, a mask or a bias can be checked only where it acts: where what it is given is of order 1. With normal inputs
//! a product over `K` terms grows as `sqrt(K)`, and a `tanh` behind it is a sign. So the typical size of every value is
//! computed from sizes of inputs, and inputs are scaled down where something of another order meets a function that is not
//! linear, or a sum with an input that is. What stays linear up to a store is left alone: errors are relative there.
//!
//! * A float value is a sum of terms, each with a size and the *sources* that it is linear in: inputs and products (`dot`).
//! * A scalar that multiplies something large becomes its inverse (`scale` becomes `D^-1/2`), one that divides becomes of its
//!   size (a cap, a temperature), one that is added becomes a quarter of it (an epsilon).
//! * A product that is too large is made smaller by its operands: each tensor of the two by the root of what is too much.
//! * Inputs under a logarithm or a division are positive.
//! * A tensor that multiplies a constant which stands for "hidden" ([`HIDES`]), as in `s + (1.0 -
//!   keep) * -1e30`, holds truth values.
//!
//! The walk also notes which inputs exponents are linear in ([`Magnitudes::exponents`]). A check with large values of those
//! sees whether a kernel subtracts the right maximum before it takes exponentials.
//!
//! Sizes are estimates: sums of `n` numbers of either sign count `sqrt(n)`, of positive ones `n`, and an exponential is 1.

use std::collections::{BTreeMap, BTreeSet};

use super::uses::Forms;
use crate::ir::{BinaryOp, BlockId, Dim, Elem, Entity, Kernel, Op, OpId, ParamId, ParamKind, ReduceOp, SizeExpr, ValueId};

/// What is more than this is too large: sums of a few terms of order 1 are not.
const LIMIT: f64 = 1.5;
/// A scalar that nothing fixes: neither 0 nor 1, so that it shows where it is left out.
const SCALAR: f64 = 0.75;
/// A divisor of what is of order 1: so near to it that a `tanh` behind it bends.
const DIVISOR: f64 = 1.5;
/// A summand, as a share of what it is added to.
const SUMMAND: f64 = 0.25;
/// A constant among scores that is at least so large stands for something else than a score: it
/// hides what it is added to.
pub const HIDES: f64 = 32768.0;
/// Products of values of more terms than this have one term.
const TERMS: usize = 64;
/// Loops in more loops than this are walked once.
const DEPTH: usize = 4;
/// Inputs are changed no more often than this.
const ROUNDS: usize = 32;

/// What the float inputs of a kernel hold.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Magnitudes {
    /// Standard deviations of tensors, where they are not 1.
    pub scales: BTreeMap<ParamId, f64>,
    /// Tensors that must be positive.
    pub positive: BTreeSet<ParamId>,
    /// Tensors of floats that are truth values, 0 and 1.
    pub truths: BTreeSet<ParamId>,
    /// Values of the f32 scalars.
    pub scalars: BTreeMap<ParamId, f64>,
    /// Inputs that make the arguments of exponentials large: of each summand that is linear in inputs, a scalar, else a tensor.
    pub exponents: BTreeSet<ParamId>,
}

/// Finds them for sizes that `size` gives. `known` gives the typical size of inputs whose values are fixed.
pub fn magnitudes(
    kernel: &Kernel,
    size: &dyn Fn(&SizeExpr) -> Option<i64>,
    known: &dyn Fn(ParamId) -> Option<f64>,
) -> Magnitudes {
    let scalars = kernel.params.iter().filter(|(_, p)| matches!(p.kind, ParamKind::Scalar(elem) if elem != Elem::I32));
    let scalars = scalars.map(|(id, _)| (id, known(id).unwrap_or(SCALAR))).collect();
    let mut found = Magnitudes { scalars, ..Magnitudes::default() };
    let given: BTreeMap<ParamId, f64> = kernel.params.keys().filter_map(|id| Some((id, known(id)?))).collect();
    let mut fixed: BTreeSet<ParamId> = given.keys().copied().collect();
    for _ in 0..ROUNDS {
        found.exponents.clear();
        let mut pass = Pass {
            kernel,
            size,
            given: &given,
            magnitudes: found,
            fixed,
            forms: Forms::new(kernel),
            depth: 0,
            values: vec![None; kernel.values.len()],
            operands: BTreeMap::new(),
            change: None,
        };
        pass.block(kernel.body);
        let change = pass.change.take();
        (found, fixed) = (pass.magnitudes, pass.fixed);
        match change {
            None => break,
            Some(Change::Scalar(param, too_large)) => {
                fixed.insert(param);
                *found.scalars.entry(param).or_insert(SCALAR) /= too_large;
            }
            Some(Change::Tensors(tensors, too_large)) => {
                for tensor in tensors {
                    *found.scales.entry(tensor).or_insert(1.0) /= too_large;
                }
            }
        }
    }
    found
}

/// What to make smaller, and by what factor.
enum Change {
    Scalar(ParamId, f64),
    Tensors(BTreeSet<ParamId>, f64),
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Source {
    Param(ParamId),
    Dot(OpId),
}

/// A summand of a value.
#[derive(Clone, PartialEq, Debug)]
struct Term {
    /// What it is linear in.
    factors: BTreeSet<Source>,
    size: f64,
}

/// A float value.
#[derive(Clone, PartialEq, Debug, Default)]
struct Value {
    terms: Vec<Term>,
    positive: bool,
}

impl Value {
    fn plain(size: f64, positive: bool) -> Self {
        Self { terms: vec![Term { factors: BTreeSet::new(), size }], positive }
    }

    fn size(&self) -> f64 {
        self.terms.iter().map(|t| t.size * t.size).sum::<f64>().sqrt()
    }

    fn times(mut self, factor: f64) -> Self {
        self.terms.iter_mut().for_each(|t| t.size *= factor);
        self
    }

    /// Terms of both; of the same sources the larger.
    fn joined(mut self, other: &Self) -> Self {
        for term in &other.terms {
            match self.terms.iter_mut().find(|t| t.factors == term.factors) {
                Some(own) => own.size = own.size.max(term.size),
                None => self.terms.push(term.clone()),
            }
        }
        self.positive &= other.positive;
        self
    }

    fn sources(&self) -> BTreeSet<Source> {
        self.terms.iter().flat_map(|t| t.factors.iter().copied()).collect()
    }
}

/// One walk over the kernel.
struct Pass<'a> {
    kernel: &'a Kernel,
    size: &'a dyn Fn(&SizeExpr) -> Option<i64>,
    /// Typical sizes of inputs that are not to be changed.
    given: &'a BTreeMap<ParamId, f64>,
    magnitudes: Magnitudes,
    /// Scalars whose value something has fixed.
    fixed: BTreeSet<ParamId>,
    forms: Forms<'a>,
    /// Loops around what is walked.
    depth: usize,
    values: Vec<Option<Value>>,
    /// Terms of both operands of a product.
    operands: BTreeMap<OpId, [Vec<Term>; 2]>,
    /// The first thing that is too large.
    change: Option<Change>,
}

impl Pass<'_> {
    fn extent(&self, extent: &SizeExpr) -> f64 {
        (self.size)(extent).map_or(1.0, |n| n.max(1) as f64)
    }

    fn dim(&self, dim: &Dim) -> f64 {
        match dim {
            Dim::Axis(axis) => self.extent(&self.kernel.axes[*axis].extent),
            Dim::Range(len) => self.extent(len),
        }
    }

    fn value(&self, value: ValueId) -> Value {
        self.values[value.index()].clone().unwrap_or_default()
    }

    /// Walks a block; gives what it yields.
    fn block(&mut self, block: BlockId) -> Vec<Value> {
        let kernel = self.kernel;
        for &id in &kernel.blocks[block].ops {
            let data = &kernel.ops[id];
            match &data.op {
                Op::Yield(values) => return values.iter().map(|v| self.value(*v)).collect(),
                Op::For { body, init, .. } => {
                    let mut carried: Vec<Value> = init.iter().map(|v| self.value(*v)).collect();
                    // The second time every carried value has all of its terms. Deep nests are walked once.
                    self.depth += 1;
                    let passes = if self.depth <= DEPTH { 2 } else { 1 };
                    for _ in 0..passes {
                        for (param, value) in kernel.blocks[*body].params.iter().skip(1).zip(&carried) {
                            self.values[param.index()] = Some(value.clone());
                        }
                        let next = self.block(*body);
                        carried = next.iter().zip(&carried).map(|(next, last)| next.clone().joined(last)).collect();
                    }
                    self.depth -= 1;
                    for (result, value) in data.results.iter().zip(carried) {
                        self.values[result.index()] = Some(value);
                    }
                }
                Op::Store { value, .. } | Op::Scatter { value, .. } => {
                    let value = self.value(*value);
                    self.meets(&value);
                }
                op => {
                    if let [result] = *data.results
                        && kernel.ty(result).tile().is_some_and(|t| t.elem.is_float())
                    {
                        let value = self.computed(id, op);
                        self.values[result.index()] = Some(value);
                    }
                }
            }
        }
        Vec::new()
    }

    fn computed(&mut self, id: OpId, op: &Op) -> Value {
        let kernel = self.kernel;
        match op {
            Op::Constant(_, x) => match x.is_finite() {
                true => Value::plain(x.abs(), *x >= 0.0),
                false => Value::plain(0.0, false),
            },
            Op::Scalar(param) => {
                let size = self.magnitudes.scalars.get(param).copied().unwrap_or(SCALAR);
                Value { terms: vec![Term { factors: [Source::Param(*param)].into(), size }], positive: true }
            }
            Op::Load { tensor, .. } | Op::Gather { tensor, .. } => {
                let own = self.magnitudes.scales.get(tensor).or_else(|| self.given.get(tensor));
                let size = own.copied().unwrap_or(1.0);
                let positive = self.magnitudes.positive.contains(tensor);
                Value { terms: vec![Term { factors: [Source::Param(*tensor)].into(), size }], positive }
            }
            Op::Cast(_, x) if !kernel.tile(*x).elem.is_float() => Value::plain(self.integer(*x), false),
            Op::Cast(_, x) | Op::Transpose(x) | Op::Full { value: x, .. } | Op::Mask { x, .. } | Op::OfPart { value: x, .. } => {
                self.value(*x)
            }
            Op::Unary(op, x) => {
                // Of a number for the whole program no maximum is taken: a large one overflows.
                let has_maximum =
                    kernel.tile(*x).rank() > 0 || matches!(kernel.def(*x), Some((_, Op::Binary(BinaryOp::Sub, ..))));
                let (row, x) = (op.row(), self.value(*x));
                if row.linear {
                    return Value { positive: row.never_negative, ..x };
                }
                if row.wants_positive {
                    self.is_positive(&x);
                }
                self.bends(&x);
                if row.exponential && has_maximum {
                    self.is_exponent(&x);
                }
                Value::plain(1.0, row.never_negative)
            }
            Op::Select { on_true, on_false, .. } => self.value(*on_true).joined(&self.value(*on_false)),
            Op::Reduce(op, x) => {
                let value = self.value(*x);
                let count = kernel.tile(*x).dims.last().map_or(1.0, |d| self.dim(d));
                match (op, value.positive) {
                    (ReduceOp::Max, _) => value,
                    (ReduceOp::Sum, true) => value.times(count),
                    (ReduceOp::Sum, false) => value.times(count.sqrt()),
                }
            }
            Op::Binary(op, a, b) => self.binary(*op, *a, *b),
            Op::Dot { a, b, acc } => {
                let count = self.dim(&kernel.tile(*a).dims[1]);
                let (a, b) = (self.value(*a), self.value(*b));
                self.meets(&a);
                self.meets(&b);
                let positive = a.positive && b.positive;
                let size = a.size() * b.size() * if positive { count } else { count.sqrt() };
                self.operands.insert(id, [a.terms, b.terms]);
                let product = Value { terms: vec![Term { factors: [Source::Dot(id)].into(), size }], positive };
                match acc {
                    Some(acc) => self.value(*acc).joined(&product),
                    None => product,
                }
            }
            _ => Value::plain(1.0, false),
        }
    }

    fn binary(&mut self, op: BinaryOp, a: ValueId, b: ValueId) -> Value {
        let (x, y) = (self.value(a), self.value(b));
        match op {
            BinaryOp::Add | BinaryOp::Sub => {
                for (scalar, other) in [(self.scalar(a), &y), (self.scalar(b), &x)] {
                    if let Some(scalar) = scalar.filter(|s| !self.fixed.contains(s)) {
                        self.fix(scalar, SUMMAND * other.size());
                    }
                }
                let sum = self.value(a).joined(&self.value(b));
                Value { positive: sum.positive && op == BinaryOp::Add, ..sum }
            }
            BinaryOp::Mul => {
                if let Some(truths) = self.truths_that_hide(a, &y).or_else(|| self.truths_that_hide(b, &x)) {
                    self.magnitudes.truths.extend(truths);
                    return Value::plain(0.0, false);
                }
                for (scalar, other) in [(self.scalar(a), &y), (self.scalar(b), &x)] {
                    // By a constant it is itself in another unit, such as a share in 65536ths.
                    let is_large = other.size() > LIMIT && !other.sources().is_empty();
                    if let Some(scalar) = scalar.filter(|s| is_large && !self.fixed.contains(s)) {
                        self.fix(scalar, 1.0 / other.size());
                    }
                }
                let (x, y) = (self.value(a), self.value(b));
                if !x.sources().is_disjoint(&y.sources()) {
                    self.bends(&x);
                    self.bends(&y);
                    return Value::plain(x.size() * y.size(), a == b || (x.positive && y.positive));
                }
                if x.terms.len() * y.terms.len() > TERMS {
                    let factors = &x.sources() | &y.sources();
                    let positive = x.positive && y.positive;
                    return Value { terms: vec![Term { factors, size: x.size() * y.size() }], positive };
                }
                let pairs = x.terms.iter().flat_map(|s| y.terms.iter().map(move |t| (s, t)));
                let term = |(s, t): (&Term, &Term)| Term { factors: &s.factors | &t.factors, size: s.size * t.size };
                Value { terms: pairs.map(term).collect(), positive: x.positive && y.positive }
            }
            BinaryOp::Div | BinaryOp::DivOrZero => {
                if let Some(scalar) = self.scalar(b).filter(|s| !self.fixed.contains(s)) {
                    self.fix(scalar, if x.size() > LIMIT { x.size() } else { DIVISOR });
                }
                let y = self.value(b);
                self.is_positive(&y);
                let positive = x.positive && y.positive;
                Value { positive, ..x.times(1.0 / y.size().max(1e-6)) }
            }
            BinaryOp::Max | BinaryOp::Min => {
                let positive = op == BinaryOp::Max && (x.positive || y.positive);
                Value { positive, ..x.joined(&y) }
            }
            _ => Value::plain(1.0, false),
        }
    }

    /// The tensors that another value is made of alone, if this one is a constant that hides: they
    /// are truth values.
    fn truths_that_hide(&self, constant: ValueId, other: &Value) -> Option<BTreeSet<ParamId>> {
        let hides = match self.kernel.def(constant)?.1 {
            Op::Full { value, .. } => self.kernel.def(*value)?.1,
            op => op,
        };
        if !matches!(hides, Op::Constant(_, x) if x.is_finite() && x.abs() >= HIDES) {
            return None;
        }
        let of_tensor = |source: &Source| match source {
            Source::Param(param) => self.is_float_tensor(*param).then_some(*param),
            Source::Dot(_) => None,
        };
        let tensors: BTreeSet<ParamId> = other.sources().iter().map(of_tensor).collect::<Option<_>>()?;
        (!tensors.is_empty()).then_some(tensors)
    }

    /// The scalar parameter that a value is.
    fn scalar(&self, value: ValueId) -> Option<ParamId> {
        match self.kernel.def(value)?.1 {
            Op::Scalar(param) => Some(*param),
            Op::Full { value, .. } => self.scalar(*value),
            _ => None,
        }
    }

    /// Gives a scalar its value, here and where it is used later.
    fn fix(&mut self, param: ParamId, value: f64) {
        if value > 0.0 && self.fixed.insert(param) {
            self.magnitudes.scalars.insert(param, value);
            for (_, id) in self.kernel.walk() {
                let of_param = matches!(self.kernel.ops[id].op, Op::Scalar(p) if p == param);
                if let ([result], true) = (&self.kernel.ops[id].results[..], of_param) {
                    let term = Term { factors: [Source::Param(param)].into(), size: value };
                    self.values[result.index()] = Some(Value { terms: vec![term], positive: true });
                }
            }
        }
    }

    fn is_positive(&mut self, value: &Value) {
        for term in &value.terms {
            if let Some(Source::Param(param)) = term.factors.first()
                && term.factors.len() == 1
                && self.is_float_tensor(*param)
            {
                self.magnitudes.positive.insert(*param);
            }
        }
    }

    fn is_float_tensor(&self, param: ParamId) -> bool {
        let is_float = matches!(&self.kernel.params[param].kind, ParamKind::Tensor(t) if t.elem.is_float());
        is_float && !self.given.contains_key(&param)
    }

    /// Typical size of what an integer input holds. Numbers of one byte take all the values of
    /// their type, evenly.
    fn typical_integer(&self, param: ParamId) -> f64 {
        let narrow = match &self.kernel.params[param].kind {
            ParamKind::Tensor(t) if t.elem.is_narrow() => t.elem.integers(),
            _ => None,
        };
        narrow.map_or(2.0, |ends| (ends.map(|x| (x * x) as f64).iter().sum::<f64>() / 3.0).sqrt())
    }

    /// Typical size of an integer value.
    fn integer(&self, value: ValueId) -> f64 {
        let form = self.forms.of(value);
        let places = form.extents().map(|(extent, over)| self.extent(extent) / over as f64 / 2.0).fold(0.0, f64::max);
        let sizes = form.sizes().map(|size| self.extent(size)).fold(0.0, f64::max);
        let params = form.params().map(|param| self.typical_integer(param)).fold(0.0, f64::max);
        match [places, sizes, params].into_iter().find(|size| *size > 0.0) {
            Some(size) => size,
            None => form.constant().unsigned_abs() as f64,
        }
    }

    /// The value meets a function that is not linear: each of its terms should be of order 1.
    fn bends(&mut self, value: &Value) {
        for term in &value.terms {
            if term.size > LIMIT {
                self.too_large(value, term, term.size);
            }
        }
    }

    /// Notes for each term of an exponent the input that scales it: one scalar if there is any, because it scales nothing else.
    fn is_exponent(&mut self, value: &Value) {
        for term in &value.terms {
            let is_scalar = |p: &ParamId| matches!(self.kernel.params[*p].kind, ParamKind::Scalar(elem) if elem != Elem::I32);
            match self.inputs_of(&term.factors).into_iter().find(is_scalar) {
                Some(scalar) => self.magnitudes.exponents.extend([scalar]),
                None => {
                    let tensors = self.tensors(std::slice::from_ref(term));
                    self.magnitudes.exponents.extend(tensors);
                }
            }
        }
    }

    /// The value goes where only sums matter: products should not drown the inputs that are added to them.
    fn meets(&mut self, value: &Value) {
        let of_product = |t: &&Term| t.factors.iter().any(|s| matches!(s, Source::Dot(_)));
        let added = value.terms.iter().filter(|t| !of_product(t) && !t.factors.is_empty() && t.size > 0.0);
        let Some(least) = added.map(|t| t.size).reduce(f64::min) else { return };
        for term in value.terms.iter().filter(of_product) {
            if term.size > LIMIT * least {
                self.too_large(value, term, term.size / least);
            }
        }
    }

    /// Notes what makes a term of a value smaller, if something can.
    fn too_large(&mut self, value: &Value, term: &Term, by: f64) {
        if self.change.is_some() {
            return;
        }
        let scalar = self.inputs_of(&term.factors).into_iter().find(|p| {
            matches!(self.kernel.params[*p].kind, ParamKind::Scalar(elem) if elem != Elem::I32) && !self.fixed.contains(p)
        });
        if let Some(scalar) = scalar {
            let has = |t: &&Term| self.inputs_of(&t.factors).contains(&scalar);
            let all = value.terms.iter().filter(has).map(|t| t.size * t.size).sum::<f64>().sqrt();
            self.change = Some(Change::Scalar(scalar, all.max(by)));
            return;
        }
        for source in &term.factors {
            if let Source::Dot(dot) = source {
                let sides = self.operands.get(dot).cloned().unwrap_or_default();
                let sides: Vec<BTreeSet<ParamId>> = sides.iter().map(|terms| self.tensors(terms)).collect();
                let share = match sides.iter().filter(|side| !side.is_empty()).count() {
                    0 => continue,
                    2 => by.sqrt(),
                    _ => by,
                };
                self.change = Some(Change::Tensors(sides.into_iter().flatten().collect(), share));
                return;
            }
        }
        let tensors = self.tensors(std::slice::from_ref(term));
        if !tensors.is_empty() {
            self.change = Some(Change::Tensors(tensors, by));
        }
    }

    /// All inputs that sources are linear in, through products. A product may be made of itself, by
    /// what a loop carries.
    fn inputs_of(&self, sources: &BTreeSet<Source>) -> BTreeSet<ParamId> {
        let (mut inputs, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut open: Vec<Source> = sources.iter().copied().collect();
        while let Some(source) = open.pop() {
            match source {
                Source::Param(param) => {
                    inputs.insert(param);
                }
                Source::Dot(dot) if seen.insert(dot) => {
                    let terms = self.operands.get(&dot).into_iter().flatten().flatten();
                    open.extend(terms.flat_map(|term| &term.factors));
                }
                Source::Dot(_) => {}
            }
        }
        inputs
    }

    /// For each term, the float tensor of most dimensions that it is linear in.
    fn tensors(&self, terms: &[Term]) -> BTreeSet<ParamId> {
        let rank = |p: &ParamId| match &self.kernel.params[*p].kind {
            ParamKind::Tensor(t) => t.shape.len(),
            ParamKind::Scalar(_) => 0,
        };
        let of = |t: &Term| {
            let inputs = self.inputs_of(&t.factors).into_iter().filter(|p| self.is_float_tensor(*p));
            inputs.max_by_key(|p| (rank(p), std::cmp::Reverse(*p)))
        };
        terms.iter().filter_map(of).collect()
    }
}
