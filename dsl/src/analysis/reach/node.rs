//! The integer values of a kernel as a list of nodes, operands first.

use std::collections::HashMap;
use std::ops::Index;

use super::call::{MAX_SIZE, Values};
use super::interval::Interval;
use crate::ir::{
    BinaryOp, Elem, Entity, IndexOp, Kernel, Op, ParamId, Precedence, ProgramDim, SizeExpr, SizeId, Spelling, Type, UnaryOp,
    ValueDef, ValueId,
};

/// Depth to which an expression is printed.
const DEPTH: usize = 6;

/// One integer value.
#[derive(Clone, PartialEq, Debug)]
pub enum Node {
    /// A constant.
    Constant(i64),
    /// A size.
    Size(SizeId, String),
    /// An i32 scalar parameter.
    Scalar(ParamId, String),
    /// A program id, the index of a loop, or a position: 0 and up, less than the extent.
    Below(SizeExpr, String),
    /// `-x`.
    Negated(usize),
    /// `|x|`.
    Absolute(usize),
    /// An operation on two values.
    Binary(BinaryOp, usize, usize),
    /// One of two values.
    Either(usize, usize),
    /// An `i32` as an index.
    Widened(usize),
    /// It depends on loaded elements, or is no integer arithmetic.
    Unknown,
}

impl Node {
    /// Whether it takes several values in one call.
    pub fn varies(&self) -> bool {
        matches!(self, Node::Below(..))
    }

    fn operands(&self) -> impl Iterator<Item = usize> {
        let (a, b) = match self {
            Node::Binary(_, a, b) | Node::Either(a, b) => (Some(*a), Some(*b)),
            Node::Negated(a) | Node::Absolute(a) | Node::Widened(a) => (Some(*a), None),
            Node::Constant(_) | Node::Size(..) | Node::Scalar(..) | Node::Below(..) | Node::Unknown => (None, None),
        };
        a.into_iter().chain(b)
    }
}

/// What is known of a node in one call.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    /// The values that it takes.
    pub range: Interval,
    /// A bound of the absolute value of every sum of terms of it.
    pub magnitude: i128,
    /// The product of the absolute values of its divisors.
    pub divisors: i128,
}

/// The value of a leaf in a call.
pub(super) fn in_call(leaf: &Node, call: &Values<'_>) -> Interval {
    match leaf {
        Node::Constant(c) => Interval::point(*c),
        Node::Size(id, _) => Interval::point(call.sizes[id.index()]),
        Node::Scalar(id, _) => Interval::point((call.scalar)(*id).into()),
        Node::Below(extent, _) => {
            let extent = extent.eval(|id| call.sizes.get(id.index()).copied()).unwrap_or(0);
            Interval::new(0, i128::from(extent) - 1)
        }
        _ => Interval::Unknown,
    }
}

/// The values of a leaf in any call. `size` has the value of a size that is known before.
pub(super) fn in_any_call(leaf: &Node, size: &dyn Fn(&SizeExpr) -> Option<i64>) -> Interval {
    match leaf {
        Node::Constant(c) => Interval::point(*c),
        Node::Size(id, _) => match size(&SizeExpr::size(*id)) {
            Some(value) => Interval::point(value),
            None => Interval::new(0, MAX_SIZE.into()),
        },
        Node::Scalar(..) => Interval::I32,
        Node::Below(extent, _) => Interval::new(0, i128::from(size(extent).unwrap_or(MAX_SIZE)) - 1),
        _ => Interval::Unknown,
    }
}

/// The nodes of a kernel.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Nodes {
    nodes: Vec<Node>,
    known: HashMap<ValueId, usize>,
}

impl Index<usize> for Nodes {
    type Output = Node;

    fn index(&self, node: usize) -> &Node {
        &self.nodes[node]
    }
}

impl Nodes {
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    fn push(&mut self, node: Node) -> usize {
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// The node of a value that was asked for before.
    pub fn known(&self, value: ValueId) -> Option<usize> {
        self.known.get(&value).copied()
    }

    /// The node of a number: one for all that ask.
    pub fn constant(&mut self, n: i64) -> usize {
        let known = self.nodes.iter().position(|node| *node == Node::Constant(n));
        known.unwrap_or_else(|| self.push(Node::Constant(n)))
    }

    /// Whether a node depends on what is loaded.
    pub fn is_of_data(&self, node: usize) -> bool {
        self.below(node).into_iter().any(|n| self.nodes[n] == Node::Unknown)
    }

    /// The node of an index, an integer tile, or the positions along a coordinate.
    pub fn of(&mut self, kernel: &Kernel, value: ValueId) -> usize {
        if let Some(&known) = self.known.get(&value) {
            return known;
        }
        let name = || kernel.values[value].name.clone().unwrap_or_else(|| value.to_string());
        if let Type::Coord(axis) = kernel.ty(value) {
            // The positions along a coordinate: the same leaf wherever they are asked for.
            let axis = &kernel.axes[*axis];
            let leaf = self.push(Node::Below(axis.extent.clone(), format!("pos({})", axis.name)));
            self.known.insert(value, leaf);
            return leaf;
        }
        let node = match (kernel.values[value].def, kernel.def(value).map(|(_, op)| op)) {
            (ValueDef::Result(_, number), Some(Op::Program(dims))) => match &dims[number as usize] {
                ProgramDim::Each(size) => Node::Below(size.clone(), name()),
                ProgramDim::Tiles(_) => Node::Unknown,
            },
            (ValueDef::BlockParam(body, 0), _) if *kernel.ty(value) == Type::Index => {
                let axis = kernel.ops.values().find_map(|data| match data.op {
                    Op::For { axis, body: b, .. } if b == body => Some(axis),
                    _ => None,
                });
                axis.map_or(Node::Unknown, |axis| Node::Below(kernel.axes[axis].extent.clone(), name()))
            }
            (_, Some(op)) => self.op(kernel, op),
            (_, None) => Node::Unknown,
        };
        // A view of a value is the value.
        let node = match node {
            Node::Either(a, b) if a == b => a,
            node => self.push(node),
        };
        self.known.insert(value, node);
        node
    }

    fn op(&mut self, kernel: &Kernel, op: &Op) -> Node {
        let integer = |v: &ValueId| kernel.tile(*v).elem == Elem::I32;
        match op {
            Op::IndexConst(c) => Node::Constant(*c),
            Op::Constant(Elem::I32, c) => Node::Constant(*c as i64),
            Op::SizeOf(size) => Node::Size(*size, kernel.size_name(*size).to_owned()),
            Op::Scalar(param) if kernel.params[*param].kind == crate::ir::ParamKind::Scalar(Elem::I32) => {
                Node::Scalar(*param, kernel.params[*param].name.clone())
            }
            Op::Index(op, a, b) => {
                let (a, b) = (self.of(kernel, *a), self.of(kernel, *b));
                Node::Binary(of_index(*op), a, b)
            }
            Op::Binary(op, a, b) if integer(a) && integer(b) => {
                let (a, b) = (self.of(kernel, *a), self.of(kernel, *b));
                Node::Binary(*op, a, b)
            }
            Op::Unary(UnaryOp::Neg, x) if integer(x) => Node::Negated(self.of(kernel, *x)),
            Op::Unary(UnaryOp::Abs, x) if integer(x) => Node::Absolute(self.of(kernel, *x)),
            Op::Pos(c) => self.view(kernel, *c),
            Op::ToIndex(x) => Node::Widened(self.of(kernel, *x)),
            Op::FromIndex(x) => self.view(kernel, *x),
            Op::Full { value, .. } | Op::Transpose(value) if integer(value) => self.view(kernel, *value),
            Op::Cast(Elem::I32, x) if integer(x) => self.view(kernel, *x),
            Op::Select { on_true, on_false, .. } if integer(on_true) => {
                let (a, b) = (self.of(kernel, *on_true), self.of(kernel, *on_false));
                Node::Either(a, b)
            }
            _ => Node::Unknown,
        }
    }

    /// The value itself.
    fn view(&mut self, kernel: &Kernel, value: ValueId) -> Node {
        let node = self.of(kernel, value);
        Node::Either(node, node)
    }

    /// The nodes that a node is computed from, itself included, operands first.
    pub fn below(&self, node: usize) -> Vec<usize> {
        let mut wanted = vec![false; node + 1];
        wanted[node] = true;
        for at in (0..=node).rev() {
            if wanted[at] {
                self.nodes[at].operands().for_each(|x| wanted[x] = true);
            }
        }
        (0..=node).filter(|&at| wanted[at]).collect()
    }

    /// Whether analyses of masks may take the node apart: it depends on nothing that is loaded or chosen, and no product
    /// is one of two positions.
    pub fn is_form(&self, node: usize) -> bool {
        self.below(node).into_iter().all(|n| match self.nodes[n] {
            Node::Unknown | Node::Either(..) => false,
            Node::Binary(op, ..) if op.row().index.is_none() => false,
            Node::Binary(BinaryOp::Mul, a, b) => [a, b].iter().any(|&x| self.below(x).iter().all(|&n| !self.nodes[n].varies())),
            _ => true,
        })
    }

    /// Whether the node is a sum of what a launch knows, in which nothing is multiplied or divided.
    pub fn is_sum(&self, node: usize) -> bool {
        let adds =
            matches!(self.nodes[node], Node::Binary(BinaryOp::Add | BinaryOp::Sub, ..) | Node::Negated(_) | Node::Absolute(_));
        let simple = |n: usize| match self.nodes[n] {
            Node::Unknown | Node::Either(..) => false,
            Node::Binary(op, ..) => matches!(op, BinaryOp::Add | BinaryOp::Sub | BinaryOp::Min | BinaryOp::Max),
            _ => true,
        };
        adds && self.below(node).into_iter().all(simple)
    }

    /// Evaluates all nodes, leaves as `leaf` says.
    pub fn evaluate(&self, known: &mut [Known], leaf: impl Fn(&Node) -> Interval) {
        for node in 0..self.nodes.len() {
            known[node] = self.one(node, known, |_, x| leaf(x));
        }
    }

    /// Evaluates these nodes, operands first.
    pub fn evaluate_some(&self, some: &[usize], known: &mut [Known], leaf: impl Fn(usize, &Node) -> Interval) {
        for &node in some {
            known[node] = self.one(node, known, &leaf);
        }
    }

    fn one(&self, node: usize, known: &[Known], leaf: impl Fn(usize, &Node) -> Interval) -> Known {
        let range = |n: &usize| known[*n].range;
        let magnitude = |n: &usize| known[*n].magnitude;
        let both = |a: &usize, b: &usize| known[*a].divisors.saturating_mul(known[*b].divisors);
        let (range, magnitude, divisors) = match &self.nodes[node] {
            Node::Negated(x) => (range(x).negated(), magnitude(x), known[*x].divisors),
            Node::Absolute(x) => (range(x).absolute(), magnitude(x), known[*x].divisors),
            Node::Widened(x) => match range(x) {
                within if within.is_within(Interval::I32) || within.is_empty() => (within, magnitude(x), known[*x].divisors),
                // It wraps.
                _ => (Interval::Unknown, 0, 1),
            },
            Node::Either(a, b) => (range(a).hull(range(b)), magnitude(a).max(magnitude(b)), both(a, b)),
            Node::Binary(op, a, b) => {
                let (x, y) = (range(a), range(b));
                let (m, n) = (magnitude(a), magnitude(b));
                match op {
                    BinaryOp::Add => (x.plus(y), m.saturating_add(n), both(a, b)),
                    BinaryOp::Sub => (x.minus(y), m.saturating_add(n), both(a, b)),
                    BinaryOp::Mul => (x.times(y), m.saturating_mul(n), both(a, b)),
                    BinaryOp::Min => (x.least(y), m.saturating_add(n), both(a, b)),
                    BinaryOp::Max => (x.most(y), m.saturating_add(n), both(a, b)),
                    BinaryOp::Div => {
                        let quotient = x.floor_div(y);
                        let divisors = both(a, b).saturating_mul(y.magnitude().max(1));
                        (quotient, quotient.magnitude(), divisors)
                    }
                    BinaryOp::Rem => {
                        let divisors = both(a, b).saturating_mul(y.magnitude().max(1));
                        (x.floor_rem(y), m.saturating_add(y.magnitude()), divisors)
                    }
                    // The bits of 32-bit integers: an operand that wraps is not known.
                    _ => match (x.ends(), y.ends()) {
                        (Some(a), Some(b)) if x.is_within(Interval::I32) && y.is_within(Interval::I32) => {
                            let [least, most] = match op.row().integer {
                                // Of one value each the result is known, as a bisection expects.
                                Some(exact) if x.len() == 1 && y.len() == 1 => [exact(a[0] as i32, b[0] as i32).into(); 2],
                                _ => (op.row().range)(a.map(|x| x as i64), b.map(|x| x as i64)),
                            };
                            let range = Interval::new(least.into(), most.into());
                            (range, range.magnitude(), 1)
                        }
                        _ if x.is_empty() || y.is_empty() => (Interval::Empty, 0, 1),
                        _ => (Interval::Unknown, 0, 1),
                    },
                }
            }
            other => {
                let range = leaf(node, other);
                (range, range.magnitude(), 1)
            }
        };
        Known { range, magnitude, divisors }
    }

    /// The node, as in the kernel text.
    pub fn text(&self, node: usize) -> String {
        self.render(node, Precedence::Any, DEPTH)
    }

    fn render(&self, node: usize, outer: Precedence, depth: usize) -> String {
        let sub = |n: &usize, outer| self.render(*n, outer, depth - 1);
        if depth == 0 {
            return "..".into();
        }
        let (text, own) = match &self.nodes[node] {
            Node::Constant(c) => (c.to_string(), if *c < 0 { Precedence::Sum } else { Precedence::Atom }),
            Node::Size(_, name) | Node::Scalar(_, name) | Node::Below(_, name) => (name.clone(), Precedence::Atom),
            Node::Negated(x) => (format!("-{}", sub(x, Precedence::Atom)), Precedence::Product),
            Node::Absolute(x) => (format!("abs({})", sub(x, Precedence::Any)), Precedence::Atom),
            Node::Widened(x) => return self.render(*x, outer, depth),
            Node::Either(..) => ("select(..)".into(), Precedence::Atom),
            Node::Unknown => ("..".into(), Precedence::Atom),
            Node::Binary(op, a, b) => match op.row().spelling {
                Spelling::Infix(sign, own) => (format!("{} {sign} {}", sub(a, own), sub(b, own.tighter())), own),
                Spelling::Call | Spelling::Prefix(_) => {
                    (format!("{}({}, {})", op.row().mnemonic, sub(a, Precedence::Any), sub(b, Precedence::Any)), Precedence::Atom)
                }
            },
        };
        if own < outer { format!("({text})") } else { text }
    }
}

fn of_index(op: IndexOp) -> BinaryOp {
    match op {
        IndexOp::Add => BinaryOp::Add,
        IndexOp::Sub => BinaryOp::Sub,
        IndexOp::Mul => BinaryOp::Mul,
        IndexOp::Div => BinaryOp::Div,
        IndexOp::Rem => BinaryOp::Rem,
        IndexOp::Min => BinaryOp::Min,
        IndexOp::Max => BinaryOp::Max,
    }
}
