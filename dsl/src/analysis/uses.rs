//! What the integers of an input mean, by how the kernel uses them: identifiers, lengths, positions, distances, classes.
//!
//! Every integer value is a sum of places (positions, program ids), of inputs, of sizes and of constants. A comparison says
//! what its inputs mean by what else stands in it: one position makes a length of it, two make a distance, another input makes
//! identifiers of both, constants alone make classes. Where an input becomes an index or a float, that says it too. What an
//! input means is what the strongest of its uses says ([`Meaning`] is in that order).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::ir::{
    At, AxisKind, BinaryOp, CompareOp, Elem, IndexOp, Kernel, Op, ParamId, ParamKind, ProgramDim, SizeExpr, SizeId, UnaryOp,
    ValueDef, ValueId,
};

/// What an integer input holds. The order is that of strength.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Meaning {
    /// Addresses something of this extent: `0 .. extent`.
    Index(SizeExpr),
    /// Is equal to one of the places of this extent, each of which counts `over` positions: `0 .. extent / over`.
    Place {
        /// Extent of the axis or of the grid's dimension.
        extent: SizeExpr,
        /// Positions for each place.
        over: i64,
    },
    /// Bounds places of this extent: `0 ..= extent / over`.
    Length {
        /// Extent of the axis or of the grid's dimension.
        extent: SizeExpr,
        /// Positions for each place.
        over: i64,
    },
    /// Bounds, or is added to, the distance of places: `0 ..` the least of these extents, or the
    /// largest.
    Distance {
        /// Extents of the places.
        extents: Vec<SizeExpr>,
        /// Places are counted from their ends, as those of queries that are the last of the keys:
        /// one query may be as far from a key as there are keys.
        from_ends: bool,
    },
    /// Compared for equality with these other inputs.
    Ids(Vec<ParamId>),
    /// Compared in order with these other inputs.
    Order(Vec<ParamId>),
    /// Compared with constants alone; these are the values that make a difference.
    Classes(BTreeSet<i64>),
    /// Computed with, as a number.
    Number,
    /// Nothing says what it means.
    Unknown,
}

impl Meaning {
    /// The distance of the places of a form, which have these extents.
    fn distance(extents: &[SizeExpr], form: &Form) -> Self {
        let counted = |extent: &SizeExpr| form.sizes.iter().any(|size| size == extent);
        Self::Distance { extents: extents.to_vec(), from_ends: extents.len() > 1 && extents.iter().any(counted) }
    }

    /// Where it is a distance, the number that it is below.
    pub fn reach(&self, extent: &dyn Fn(&SizeExpr) -> i64) -> Option<i64> {
        let Self::Distance { extents, from_ends } = self else { return None };
        let each = extents.iter().map(extent);
        if *from_ends { each.max() } else { each.min() }
    }
}

/// What one integer input means.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    /// Its values.
    pub meaning: Meaning,
    /// Values with which it is compared besides, such as the label of what is to be ignored.
    pub marks: BTreeSet<i64>,
}

impl Use {
    /// The printed form.
    pub fn text(&self, kernel: &Kernel) -> String {
        let over = |over: i64| if over == 1 { String::new() } else { format!(" / {over}") };
        let names = |with: &[ParamId]| {
            let names: Vec<&str> = with.iter().map(|p| kernel.params[*p].name.as_str()).collect();
            names.join(", ")
        };
        let numbers = |values: &BTreeSet<i64>| values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let mut text = match &self.meaning {
            Meaning::Index(extent) => format!("index below {}", kernel.size_text(extent)),
            Meaning::Place { extent, over: by } => format!("place below {}{}", kernel.size_text(extent), over(*by)),
            Meaning::Length { extent, over: by } => format!("length up to {}{}", kernel.size_text(extent), over(*by)),
            Meaning::Distance { extents, from_ends } => {
                let extents: Vec<String> = extents.iter().map(|e| kernel.size_text(e)).collect();
                let or = if *from_ends { " or " } else { " and " };
                format!("distance below {}", extents.join(or))
            }
            Meaning::Ids(with) => format!("ids, equal to some of {}", names(with)),
            Meaning::Order(with) => format!("numbers in order with {}", names(with)),
            Meaning::Classes(values) => format!("one of {}", numbers(values)),
            Meaning::Number => "small number".to_owned(),
            Meaning::Unknown => "small number, for want of a use that says more".to_owned(),
        };
        if !self.marks.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(text, "; some are {}", numbers(&self.marks));
        }
        text
    }
}

/// What the integer inputs of a kernel mean: tensors that it reads, and scalars.
pub fn uses(kernel: &Kernel) -> BTreeMap<ParamId, Use> {
    let mut finder = Finder { kernel, forms: Forms::new(kernel), found: BTreeMap::new() };
    for (_, op) in kernel.walk() {
        finder.op(&kernel.ops[op].op);
    }
    let integer = |kind: &ParamKind| match kind {
        ParamKind::Tensor(t) => t.elem.is_integer() && t.direction.is_read(),
        ParamKind::Scalar(elem) => *elem == Elem::I32,
    };
    let all = kernel.params.iter().filter(|(_, p)| integer(&p.kind));
    all.map(|(id, _)| (id, finder.found.remove(&id).unwrap_or_default().resolved())).collect()
}

/// Pairs of sizes `(H, G)` of which the kernel maps a program id below `H` to an index below `G` that several share: `h * G / H`, or
/// `h / (H / G)`.
pub fn groupings(kernel: &Kernel) -> Vec<(SizeId, SizeId)> {
    let size = |v: ValueId| match kernel.def(v) {
        Some((_, Op::SizeOf(size))) => Some(*size),
        _ => None,
    };
    let mut found = Vec::new();
    for (_, op) in kernel.walk() {
        let Op::Index(IndexOp::Div, a, b) = kernel.ops[op].op else { continue };
        let pair = match (kernel.def(a), size(b), kernel.def(b)) {
            (Some((_, Op::Index(IndexOp::Mul, x, y))), Some(heads), _) => {
                [*x, *y].into_iter().find_map(size).map(|groups| (heads, groups))
            }
            (_, None, Some((_, Op::Index(IndexOp::Div, x, y)))) => size(*x).zip(size(*y)),
            _ => None,
        };
        found.extend(pair.filter(|pair| pair.0 != pair.1 && !found.contains(pair)));
    }
    found
}

/// A place that varies: the value that it comes from, and how many positions it counts as one.
type Place = (ValueId, i64);

/// An integer as a sum.
#[derive(Clone, Default, Debug)]
pub(super) struct Form {
    /// Places with their extents; coefficients are not kept, but those of places that cancel.
    places: BTreeMap<Place, (SizeExpr, i64)>,
    params: BTreeMap<ParamId, i64>,
    sizes: BTreeSet<SizeExpr>,
    constant: i64,
}

impl Form {
    fn plus(mut self, other: &Self, factor: i64) -> Self {
        for (place, (extent, coefficient)) in &other.places {
            let own = &mut self.places.entry(*place).or_insert_with(|| (extent.clone(), 0)).1;
            *own = own.saturating_add(factor.saturating_mul(*coefficient));
        }
        for (param, coefficient) in &other.params {
            let own = self.params.entry(*param).or_insert(0);
            *own = own.saturating_add(factor.saturating_mul(*coefficient));
        }
        self.places.retain(|_, (_, c)| *c != 0);
        self.params.retain(|_, c| *c != 0);
        self.sizes.extend(other.sizes.iter().cloned());
        self.constant = self.constant.saturating_add(other.constant.saturating_mul(factor));
        self
    }

    fn is_constant(&self) -> bool {
        self.places.is_empty() && self.params.is_empty() && self.sizes.is_empty()
    }

    /// The inputs in it.
    pub(super) fn params(&self) -> impl Iterator<Item = ParamId> + '_ {
        self.params.keys().copied()
    }

    /// The sizes in it.
    pub(super) fn sizes(&self) -> impl Iterator<Item = &SizeExpr> + '_ {
        self.sizes.iter()
    }

    /// What is added to all else.
    pub(super) fn constant(&self) -> i64 {
        self.constant
    }

    /// Extents of the places in it, each with the positions that it counts as one.
    pub(super) fn extents(&self) -> impl Iterator<Item = (&SizeExpr, i64)> + '_ {
        self.places.iter().map(|((_, over), (extent, _))| (extent, *over))
    }
}

/// The sums that integer values are. Each is found once, however often the text repeats it.
pub(super) struct Forms<'a> {
    kernel: &'a Kernel,
    known: RefCell<BTreeMap<ValueId, Form>>,
}

impl<'a> Forms<'a> {
    pub(super) fn new(kernel: &'a Kernel) -> Self {
        Self { kernel, known: RefCell::default() }
    }

    /// The sum that a value is, as far as it is one: of a product, a minimum or a choice every part is taken for a summand.
    pub(super) fn of(&self, value: ValueId) -> Form {
        if let Some(form) = self.known.borrow().get(&value) {
            return form.clone();
        }
        let form = form(self.kernel, value, &|v| self.of(v));
        self.known.borrow_mut().insert(value, form.clone());
        form
    }
}

fn form(kernel: &Kernel, value: ValueId, of: &dyn Fn(ValueId) -> Form) -> Form {
    let place = |extent: &SizeExpr| Form { places: [((value, 1), (extent.clone(), 1))].into(), ..Form::default() };
    let (op, result) = match kernel.values[value].def {
        ValueDef::Result(op, result) => (&kernel.ops[op].op, result),
        ValueDef::BlockParam(..) => {
            let is_walked = |op: &&Op| matches!(op, Op::For { body, .. } if kernel.blocks[*body].params.first() == Some(&value));
            let walked = kernel.walk().into_iter().map(|(_, op)| &kernel.ops[op].op).find(is_walked);
            return match walked {
                Some(Op::For { axis, .. }) if kernel.axes[*axis].kind == AxisKind::Each => place(&kernel.axes[*axis].extent),
                _ => Form::default(),
            };
        }
    };
    match op {
        Op::Program(dims) => match &dims[result as usize] {
            ProgramDim::Each(size) => place(size),
            ProgramDim::Tiles(axis) => place(&kernel.axes[*axis].extent),
        },
        Op::Pos(_) => match kernel.tile(value).dims.first() {
            Some(crate::ir::Dim::Axis(axis)) => place(&kernel.axes[*axis].extent),
            _ => Form::default(),
        },
        Op::IndexConst(n) => Form { constant: *n, ..Form::default() },
        Op::Constant(_, x) => Form { constant: *x as i64, ..Form::default() },
        Op::SizeOf(size) => Form { sizes: [SizeExpr::size(*size)].into(), ..Form::default() },
        Op::Scalar(param) | Op::Load { tensor: param, .. } | Op::Gather { tensor: param, .. } => {
            Form { params: [(*param, 1)].into(), ..Form::default() }
        }
        Op::FromIndex(x) | Op::ToIndex(x) | Op::Transpose(x) | Op::Full { value: x, .. } | Op::Unary(UnaryOp::Abs, x) => of(*x),
        Op::Cast(Elem::I32, x) if kernel.tile(*x).elem == Elem::I32 => of(*x),
        Op::Unary(UnaryOp::Neg, x) => Form::default().plus(&of(*x), -1),
        Op::Index(IndexOp::Add, a, b) | Op::Binary(BinaryOp::Add, a, b) => of(*a).plus(&of(*b), 1),
        Op::Index(IndexOp::Sub, a, b) | Op::Binary(BinaryOp::Sub, a, b) => of(*a).plus(&of(*b), -1),
        Op::Index(IndexOp::Mul, a, b) | Op::Binary(BinaryOp::Mul, a, b) => {
            let (a, b) = (of(*a), of(*b));
            match (a.is_constant(), b.is_constant()) {
                (true, _) => Form::default().plus(&b, a.constant),
                (_, true) => Form::default().plus(&a, b.constant),
                _ => Form { constant: 0, ..a.plus(&b, 1) },
            }
        }
        Op::Index(IndexOp::Div, a, b) | Op::Binary(BinaryOp::Div, a, b) => {
            let (mut a, b) = (of(*a), of(*b));
            if b.is_constant() && b.constant > 1 {
                let by = b.constant;
                a.places = a.places.into_iter().map(|((v, over), x)| ((v, over.saturating_mul(by)), x)).collect();
                a.constant = a.constant.div_euclid(by);
                return a;
            }
            a.plus(&b, 1)
        }
        Op::Index(IndexOp::Rem, a, b) | Op::Binary(BinaryOp::Rem, a, b) => {
            let (mut a, b) = (of(*a), of(*b));
            if b.is_constant() && b.constant > 0 {
                a.places.values_mut().for_each(|(extent, _)| *extent = SizeExpr::constant(b.constant));
                return a;
            }
            a.plus(&b, 1)
        }
        Op::Index(_, a, b) | Op::Binary(_, a, b) => of(*a).plus(&of(*b), 1),
        Op::Select { on_true, on_false, .. } => of(*on_true).plus(&of(*on_false), 1),
        _ => Form::default(),
    }
}

/// What was seen of one input.
#[derive(Default)]
struct Seen {
    meanings: Vec<Meaning>,
    /// Constants with which it is compared for equality.
    marks: BTreeSet<i64>,
}

impl Seen {
    fn resolved(self) -> Use {
        let Self { mut meanings, mut marks } = self;
        // Uses of the same kind are one: all the inputs that it is compared with, all classes.
        let mut classes = BTreeSet::new();
        let (mut equal, mut ordered) = (Vec::new(), Vec::new());
        for meaning in &meanings {
            match meaning {
                Meaning::Classes(values) => classes.extend(values),
                Meaning::Ids(with) => equal.extend(with),
                Meaning::Order(with) => ordered.extend(with),
                _ => {}
            }
        }
        meanings.sort();
        let meaning = match meanings.into_iter().next() {
            Some(Meaning::Classes(_)) => {
                marks.clear();
                Meaning::Classes(classes)
            }
            Some(Meaning::Ids(_)) => Meaning::Ids(distinct(equal)),
            Some(Meaning::Order(_)) => Meaning::Order(distinct(ordered)),
            Some(other) => other,
            None => Meaning::Unknown,
        };
        Use { meaning, marks }
    }
}

fn distinct(mut params: Vec<ParamId>) -> Vec<ParamId> {
    params.sort();
    params.dedup();
    params
}

struct Finder<'a> {
    kernel: &'a Kernel,
    forms: Forms<'a>,
    found: BTreeMap<ParamId, Seen>,
}

impl Finder<'_> {
    fn say(&mut self, param: ParamId, meaning: Meaning) {
        self.found.entry(param).or_default().meanings.push(meaning);
    }

    fn op(&mut self, op: &Op) {
        let kernel = self.kernel;
        match op {
            Op::Compare(compare, left, right)
                if kernel.tile(*left).elem == Elem::I32 && kernel.tile(*right).elem == Elem::I32 =>
            {
                let (a, b) = (self.forms.of(*left), self.forms.of(*right));
                let difference = self.forms.of(*left).plus(&b, -1);
                self.comparison(*compare, &difference);
                // Elements of one input at two places: the difference of the forms does not show
                // it.
                let both: Vec<ParamId> = a.params().filter(|p| b.params().any(|q| q == *p)).collect();
                for param in both.into_iter().filter(|p| difference.params().all(|q| q != *p)) {
                    let equality = matches!(compare, CompareOp::Eq | CompareOp::Ne);
                    self.say(param, if equality { Meaning::Ids(vec![param]) } else { Meaning::Order(vec![param]) });
                }
            }
            Op::Cast(elem, x) if elem.is_float() && kernel.tile(*x).elem == Elem::I32 => {
                let form = self.forms.of(*x);
                let extents: Vec<SizeExpr> = form.extents().map(|(extent, _)| extent.clone()).collect();
                for param in form.params() {
                    let meaning = if extents.is_empty() { Meaning::Number } else { Meaning::distance(&extents, &form) };
                    self.say(param, meaning);
                }
            }
            Op::Binary(BinaryOp::Div | BinaryOp::Rem, a, b) | Op::Index(IndexOp::Div | IndexOp::Rem, a, b) => {
                // A block of positions: of one alone, every position would be in a block of its own.
                let extents: Vec<SizeExpr> = self.forms.of(*a).extents().map(|(extent, _)| extent.clone()).collect();
                let is_scalar = |param: &ParamId| matches!(kernel.params[*param].kind, ParamKind::Scalar(_));
                for param in self.forms.of(*b).params().filter(is_scalar).filter(|_| !extents.is_empty()) {
                    self.say(param, Meaning::Distance { extents: extents.clone(), from_ends: false });
                }
            }
            Op::Gather { tensor, at } | Op::Scatter { tensor, at, .. } => {
                for (at, extent) in at.iter().zip(&kernel.tensor(*tensor).shape) {
                    // What is added to a position has another meaning, by its other uses.
                    let form = self.forms.of(*at);
                    for param in form.params().filter(|_| form.extents().next().is_none()) {
                        self.say(param, Meaning::Index(extent.clone()));
                    }
                }
            }
            Op::Load { tensor, at } | Op::Store { tensor, at, .. } => {
                for (at, extent) in at.iter().zip(&kernel.tensor(*tensor).shape) {
                    if let At::Index(index) = at {
                        for param in self.forms.of(*index).params() {
                            self.say(param, Meaning::Index(extent.clone()));
                        }
                    }
                }
                if let Op::Store { value, .. } = op
                    && kernel.tile(*value).elem == Elem::I32
                {
                    for param in self.forms.of(*value).params() {
                        self.say(param, Meaning::Number);
                    }
                }
            }
            _ => {}
        }
    }

    /// What a comparison with 0 says of the inputs in the form.
    fn comparison(&mut self, op: CompareOp, form: &Form) {
        let equality = matches!(op, CompareOp::Eq | CompareOp::Ne);
        let extents: Vec<(SizeExpr, i64)> = form.extents().map(|(extent, over)| (extent.clone(), over)).collect();
        for param in form.params() {
            let others: Vec<ParamId> = form.params().filter(|p| *p != param).collect();
            let meaning = match &extents[..] {
                [(extent, over)] if equality => Meaning::Place { extent: extent.clone(), over: *over },
                [(extent, over)] => Meaning::Length { extent: extent.clone(), over: *over },
                [_, _, ..] => Meaning::distance(&extents.iter().map(|(extent, _)| extent.clone()).collect::<Vec<_>>(), form),
                [] if !others.is_empty() && equality => Meaning::Ids(others),
                [] if !others.is_empty() => Meaning::Order(others),
                [] => match form.sizes.iter().next() {
                    Some(extent) => Meaning::Length { extent: extent.clone(), over: 1 },
                    None => {
                        // `c * x + constant` is compared with 0.
                        let coefficient = form.params[&param];
                        let at = form.constant.saturating_neg() / coefficient;
                        if equality {
                            self.found.entry(param).or_default().marks.insert(at);
                        }
                        Meaning::Classes(classes(op, coefficient > 0, at))
                    }
                },
            };
            self.say(param, meaning);
        }
    }
}

/// The values on both sides of a comparison with a constant.
fn classes(op: CompareOp, ascending: bool, at: i64) -> BTreeSet<i64> {
    let above = at.saturating_add(1);
    let below = at.saturating_sub(1);
    let other = match (op, ascending) {
        // A bit is 0 or 1.
        (CompareOp::Eq | CompareOp::Ne, _) => {
            if at == 1 {
                0
            } else {
                above
            }
        }
        (CompareOp::Gt | CompareOp::Le, true) | (CompareOp::Lt | CompareOp::Ge, false) => above,
        _ => below,
    };
    [at, other].into()
}
