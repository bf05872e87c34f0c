//! Vectors along the columns of a product that are added to it, as a further step of the product.
//!
//! Columns of a gradient compute `exp(dot(k, q.t()) * scale - lse)` and `dot(v, grad_o.t()) + delta`.
//! Each of their lanes needs `lse` and `delta` of all its columns, in registers. Here a launch ahead
//! takes such a vector apart into three numbers of the element type of the operands, whose sum is
//! the vector to 24 bits, and the product gets them with a left operand of ones:
//!
//! ```text
//! exp((dot(k, q.t()) + dot(ones, parts(-lse / scale).t())) * scale)
//! ```
//!
//! The product sums in `f32`, and ones times parts are exact. Ones come from memory, by a launch of
//! their own: where a product takes them from registers and another one has an operand there, ptxas
//! 13.0 makes all products of the step wait for each other (C7512).
//!
//! A vector that is added behind a positive
//! factor is divided by it ahead. What lies between, masks and other sums, stays where it
//! is: a hidden element is `-inf` whatever is added to it.
//!
//! Vectors may be infinite: the first part is infinite then, and the others are 0. Where an
//! exponential of the sum is the same for the largest numbers and for `-inf`, vectors are made
//! finite, and a product may read their rows twice ([`crate::plan::SharedTile::NARROW`]).

use std::collections::HashSet;

use flashtile_dsl::analysis::hidden::HiddenElements;
use flashtile_dsl::ir::{
    At, AxisKind, BinaryOp, CompareOp, Dim, Direction, Elem, Fill, Kernel, Op, OpId, ProgramDim, ReduceOp, SizeExpr, Span,
    TensorDecl, Type, UnaryOp, ValueDef, ValueId,
};

use super::ahead::{Ahead, ahead, by_launch, program};
use super::staged::{NotStaged, Staged};
use crate::instance::Instance;
use crate::rewrite::edit::AmongTiles;
use crate::rewrite::{PARTS_WIDTH, Scale, edit, positive};

/// Numbers that a vector is taken apart into: each has 8 bits of `bf16`, which makes 24.
const PARTS: i64 = 3;

/// The largest number of `bf16`, which the vectors of one product share as a limit. What is finite
/// stays finite: a row whose keys all have a bias of -3e38 still has scores.
const MOST: f64 = 3.3895313892515355e38;

/// A vector that is added to a product.
struct Term {
    /// The sum or difference of a matrix and the vector.
    sum: OpId,
    /// The vector, and whether it is subtracted.
    vector: Ahead,
    negative: bool,
    /// The product, and the factor between the two.
    dot: ValueId,
    factor: Option<Scale>,
    /// The tile of the program whose rows the product has.
    rows: ValueId,
    /// Name of the tensor of its parts.
    name: String,
    /// Whether its numbers may be infinite.
    may_be_infinite: bool,
    /// The largest finite number.
    limit: f64,
}

/// Why no vector of a kernel can be a step of a product; `None` if one can.
pub fn why_not_terms(instance: &Instance) -> Option<String> {
    terms(instance).err()
}

/// Makes vectors that are added to products steps of these.
///
/// # Errors
/// What [`why_not_terms`] says.
pub fn terms_of_products(instance: &Instance) -> Result<Staged, NotStaged> {
    let kernel = &instance.kernel;
    let terms = terms(instance)?;
    let groups = by_launch(&terms, |term| term.vector.program(kernel));
    let ahead = groups.iter().map(|(suffix, group)| taking_apart(kernel, group, format!("{}_terms{suffix}", kernel.name)));
    let mut ahead: Vec<Kernel> = ahead.collect();
    let mut between: Vec<String> = terms.iter().map(|term| term.name.clone()).collect();
    let mut main = kernel.clone();
    let mut ones: Vec<(ValueId, ValueId)> = Vec::new();
    // The outermost sum first: what is left of it is the sum inside.
    for term in terms.iter().rev() {
        let known = ones.iter().find(|(rows, _)| *rows == term.rows).map(|&(_, ones)| ones);
        let left = known.unwrap_or_else(|| {
            let name = edit::free_name(kernel, "ones", between.iter().map(String::as_str));
            ahead.push(of_ones(kernel, term, &name, ones.len()));
            let left = load_ones(&mut main, kernel, term, &name);
            between.push(name);
            ones.push((term.rows, left));
            left
        });
        add_step(&mut main, kernel, term, left);
    }
    let mut staged = Staged::new(ahead, edit::finished(main), Vec::new(), between)?;
    staged.finite = terms.iter().filter(|term| !term.may_be_infinite).map(|term| term.name.clone()).collect();
    Ok(staged)
}

/// The instance that is left if vectors are steps of products, if any can be. None for a kernel that
/// came out wrong, too: generating code under a schedule that asks for it says so.
pub(crate) fn with_terms(instance: &Instance) -> Option<Instance> {
    Some(terms_of_products(instance).ok()?.main_of(instance))
}

/// The vectors that can be steps of products.
fn terms(instance: &Instance) -> Result<Vec<Term>, String> {
    let kernel = &instance.kernel;
    let hidden = HiddenElements::new(kernel, &|_| false);
    let mut found: Vec<Term> = Vec::new();
    let mut why = "no vector along columns is added to a product".to_owned();
    for (_, sum) in kernel.walk() {
        for (matrix, vector, negative) in summands(kernel, sum) {
            let Some((dot, factor)) = product_below(instance, matrix, None) else { continue };
            let Some((_, &Op::Dot { b, .. })) = kernel.def(dot) else { unreachable!("it is a product") };
            let elem = instance.binding.elem(kernel, kernel.tile(b).elem);
            if elem != Elem::Bf16 {
                why = format!("parts of {} do not hold every f32; those of bf16 do", elem.name());
                continue;
            }
            let Some(rows) = rows_of(kernel, dot) else {
                why = "the product has no rows of the program's own".into();
                continue;
            };
            if hidden.condition(vector).is_some() {
                why = "a mask hides elements of the vector".into();
                continue;
            }
            match ahead(kernel, vector) {
                Ok(ahead) if !defined_before(kernel, &ahead, dot) => {
                    why = "an index of the vector is computed behind the product".into();
                }
                Ok(ahead) => {
                    let wanted = format!("{}_parts", tensor_of(kernel, &ahead));
                    let name = edit::free_name(kernel, &wanted, found.iter().map(|term| term.name.as_str()));
                    let may_be_infinite = keeps_infinities(kernel, sum);
                    found.push(Term { sum, vector: ahead, negative, dot, factor, rows, name, may_be_infinite, limit: MOST });
                    break;
                }
                Err(reason) => why = reason,
            }
        }
    }
    let products: Vec<ValueId> = found.iter().map(|term| term.dot).collect();
    for term in &mut found {
        term.limit = MOST / products.iter().filter(|dot| **dot == term.dot).count() as f64;
    }
    if found.is_empty() { Err(why) } else { Ok(found) }
}

/// Whether what follows from a sum differs by whether it is infinite or as large as a number can be:
/// not where exponentials and products alone are made of it.
fn keeps_infinities(kernel: &Kernel, sum: OpId) -> bool {
    let (mut work, mut seen) = (kernel.ops[sum].results.clone(), HashSet::new());
    while let Some(v) = work.pop() {
        for user in edit::users(kernel, v).into_iter().filter(|user| seen.insert(*user)) {
            match kernel.ops[user].op {
                Op::Unary(UnaryOp::Exp | UnaryOp::Exp2 | UnaryOp::Tanh, _) | Op::Dot { .. } => {}
                Op::Reduce(ReduceOp::Max, _) | Op::Store { .. } | Op::Scatter { .. } | Op::Yield(_) => return true,
                _ => work.extend(&kernel.ops[user].results),
            }
        }
    }
    false
}

/// A sum as a matrix and a vector along its columns: the matrix, the vector, and whether it is
/// subtracted.
fn summands(kernel: &Kernel, op: OpId) -> Vec<(ValueId, ValueId, bool)> {
    let along = |matrix: ValueId, vector: ValueId| {
        let (Type::Tile(matrix), Type::Tile(vector)) = (kernel.ty(matrix), kernel.ty(vector)) else { return false };
        let ([_, columns @ Dim::Axis(_)], [own]) = (&matrix.dims[..], &vector.dims[..]) else { return false };
        vector.elem.is_float() && columns == own
    };
    match kernel.ops[op].op {
        Op::Binary(BinaryOp::Add, a, b) if along(a, b) => vec![(a, b, false)],
        Op::Binary(BinaryOp::Add, a, b) if along(b, a) => vec![(b, a, false)],
        Op::Binary(BinaryOp::Sub, a, b) if along(a, b) => vec![(a, b, true)],
        _ => Vec::new(),
    }
}

/// The product that `value` is the only use of, by way of sums, masks and at most one positive
/// factor, with the factor.
fn product_below(instance: &Instance, value: ValueId, factor: Option<Scale>) -> Option<(ValueId, Option<Scale>)> {
    let kernel = &instance.kernel;
    if edit::users(kernel, value).len() != 1 || kernel.tile(value).rank() != 2 {
        return None;
    }
    let below = |x: ValueId| matches!(kernel.ty(x), Type::Tile(_)).then(|| product_below(instance, x, factor)).flatten();
    match *kernel.def(value)?.1 {
        Op::Dot { .. } => Some((value, factor)),
        Op::Mask { x, fill: Fill::NegInf, .. } | Op::Binary(BinaryOp::Sub, x, _) => below(x),
        Op::Binary(BinaryOp::Add, a, b) => below(a).or_else(|| below(b)),
        Op::Binary(BinaryOp::Mul, a, b) if factor.is_none() => {
            let scaled = [(a, b), (b, a)].into_iter().find_map(|(x, by)| Some((x, positive(kernel, by, &instance.facts)?)));
            let (x, scale) = scaled?;
            product_below(instance, x, Some(scale))
        }
        _ => None,
    }
}

/// The tile of the program whose rows a product has.
fn rows_of(kernel: &Kernel, dot: ValueId) -> Option<ValueId> {
    let Dim::Axis(axis) = kernel.tile(dot).dims[0] else { return None };
    let program = *kernel.blocks[kernel.body].ops.first()?;
    let results = &kernel.ops[program].results;
    results.iter().copied().find(|&v| *kernel.ty(v) == Type::Coord(axis))
}

/// Whether all indices of a vector are there where the product is made.
fn defined_before(kernel: &Kernel, vector: &Ahead, dot: ValueId) -> bool {
    let places = edit::places(kernel);
    let (dot, _) = kernel.def(dot).expect("it is a product");
    vector.indices.keys().all(|&index| match kernel.values[index].def {
        ValueDef::Result(op, _) => places[&op].block != places[&dot].block || places[&op].index < places[&dot].index,
        ValueDef::BlockParam(..) => true,
    })
}

/// Name of the tensor that a vector is loaded from, or of a vector that is loaded from none.
fn tensor_of(kernel: &Kernel, vector: &Ahead) -> String {
    let loaded = vector.ops.iter().find_map(|&op| match kernel.ops[op].op {
        Op::Load { tensor, .. } | Op::Gather { tensor, .. } => Some(kernel.params[tensor].name.clone()),
        _ => None,
    });
    loaded.or_else(|| kernel.values[vector.value].name.clone()).unwrap_or_else(|| "term".into())
}

/// The tensor of the parts of a term, in the terms of the original.
fn parts_decl(kernel: &Kernel, term: &Term, direction: Direction) -> TensorDecl {
    let Some((_, &Op::Dot { b, .. })) = kernel.def(term.dot) else { unreachable!("it is a product") };
    let place = term.vector.place(kernel).into_iter().map(|(_, extent)| extent);
    TensorDecl { elem: kernel.tile(b).elem, shape: place.chain([SizeExpr::constant(PARTS_WIDTH)]).collect(), direction }
}

/// The kernel that takes vectors apart whose programs are alike. The parts of an element are the
/// columns of its row, which one store writes.
fn taking_apart(original: &Kernel, terms: &[&Term], name: String) -> Kernel {
    let values: Vec<&Ahead> = terms.iter().map(|term| &term.vector).collect();
    let (mut kernel, span) = program(original, &values, name);
    let width = SizeExpr::constant(PARTS_WIDTH);
    let (_, column) = edit::add_program_axis(&mut kernel, "part", width, AmongTiles::Last);
    for term in terms {
        let decl = parts_decl(original, term, Direction::Out);
        let elem = decl.elem;
        let tensor = edit::add_tensor(&mut kernel, &term.name, decl);
        let whole = addend(&mut kernel, term, span);
        let row = row_of_parts(&mut kernel, whole, elem, column, span);
        let place = term.vector.place(original).into_iter().map(|(at, _)| at);
        let at = place.chain([At::Tile(column)]).collect();
        let body = kernel.body;
        edit::append(&mut kernel, body, Op::Store { tensor, at, value: row }, span);
    }
    edit::finished(kernel)
}

fn insert(kernel: &mut Kernel, op: Op, span: Span) -> ValueId {
    edit::insert_last(kernel, kernel.body, op, span)
}

/// What is added to the product itself, for each column.
fn addend(kernel: &mut Kernel, term: &Term, span: Span) -> ValueId {
    let mut value = term.vector.value;
    if kernel.tile(value).elem != Elem::F32 {
        value = insert(kernel, Op::Cast(Elem::F32, value), span);
    }
    if term.negative {
        value = insert(kernel, Op::Unary(UnaryOp::Neg, value), span);
    }
    let whole = value;
    if let Some(scale) = term.factor {
        let by = insert(kernel, scale.op(), span);
        value = insert(kernel, Op::Binary(BinaryOp::Div, value, by), span);
    }
    let mut number = |x: f64| insert(kernel, Op::Constant(Elem::F32, x), span);
    let (infinity, most, least) = (number(f64::INFINITY), number(term.limit), number(-term.limit));
    let below = insert(kernel, Op::Binary(BinaryOp::Min, value, most), span);
    let kept = insert(kernel, Op::Binary(BinaryOp::Max, below, least), span);
    let cond = if term.may_be_infinite {
        let magnitude = insert(kernel, Op::Unary(UnaryOp::Abs, whole), span);
        insert(kernel, Op::Compare(CompareOp::Lt, magnitude, infinity), span)
    } else {
        // What is no number stays none.
        insert(kernel, Op::Compare(CompareOp::Eq, value, value), span)
    };
    insert(kernel, Op::Select { cond, on_true: kept, on_false: value }, span)
}

/// The parts of a vector, the largest first, as numbers of `f32` that `elem` has. What is not finite
/// is its own first part.
fn parts(kernel: &mut Kernel, whole: ValueId, elem: Elem, span: Span) -> Vec<ValueId> {
    let dims = kernel.tile(whole).dims.clone();
    let zero = insert(kernel, Op::Constant(Elem::F32, 0.0), span);
    let zeros = insert(kernel, Op::Full { value: zero, dims }, span);
    let infinity = insert(kernel, Op::Constant(Elem::F32, f64::INFINITY), span);
    let magnitude = insert(kernel, Op::Unary(UnaryOp::Abs, whole), span);
    let finite = insert(kernel, Op::Compare(CompareOp::Lt, magnitude, infinity), span);
    let (mut rest, mut out) = (whole, Vec::new());
    for number in 0..PARTS {
        let part = insert(kernel, Op::Cast(elem, rest), span);
        let taken = insert(kernel, Op::Cast(Elem::F32, part), span);
        out.push(taken);
        if number + 1 < PARTS {
            let left = insert(kernel, Op::Binary(BinaryOp::Sub, rest, taken), span);
            rest = insert(kernel, Op::Select { cond: finite, on_true: left, on_false: zeros }, span);
        }
    }
    out
}

/// The parts of a vector in the columns of its rows, and zeros behind them.
fn row_of_parts(kernel: &mut Kernel, whole: ValueId, elem: Elem, column: ValueId, span: Span) -> ValueId {
    let parts = parts(kernel, whole, elem, span);
    let own = insert(kernel, Op::Pos(column), span);
    let mut row = insert(kernel, Op::Constant(Elem::F32, 0.0), span);
    for (number, part) in parts.into_iter().enumerate().rev() {
        let number = insert(kernel, Op::Constant(Elem::I32, number as f64), span);
        let cond = insert(kernel, Op::Compare(CompareOp::Eq, own, number), span);
        row = insert(kernel, Op::Select { cond, on_true: part, on_false: row }, span);
    }
    insert(kernel, Op::Cast(elem, row), span)
}

/// The tensor of ones that stands at the left of the parts of a term: all rows of its axis.
fn ones_decl(kernel: &Kernel, term: &Term, direction: Direction) -> TensorDecl {
    let &Type::Coord(axis) = kernel.ty(term.rows) else { unreachable!("a tile of the program") };
    let shape = vec![kernel.axes[axis].extent.clone(), SizeExpr::constant(PARTS_WIDTH)];
    TensorDecl { elem: parts_decl(kernel, term, direction).elem, shape, direction }
}

/// Where the ones of a tile of rows lie.
fn place_of_ones(rows: ValueId) -> Vec<At> {
    vec![At::Tile(rows), At::Range { start: SizeExpr::constant(0), len: SizeExpr::constant(PARTS_WIDTH) }]
}

/// The kernel that writes ones for all rows.
fn of_ones(original: &Kernel, term: &Term, name: &str, number: usize) -> Kernel {
    let suffix = if number == 0 { String::new() } else { format!("_{number}") };
    let mut b = edit::beside(original, format!("{}_ones{suffix}", original.name));
    b.span = original.ops[term.sum].span;
    let decl = ones_decl(original, term, Direction::Out);
    let (extent, elem) = (decl.shape[0].clone(), decl.elem);
    let to = edit::add_tensor(&mut b.kernel, name, decl);
    let rows = b.axis("row", extent, AxisKind::Program);
    let (_, place) = b.append(Op::Program(vec![ProgramDim::Tiles(rows)]));
    b.name(place[0], "row");
    let one = b.emit(Op::Constant(Elem::F32, 1.0));
    let full = b.emit(Op::Full { value: one, dims: vec![Dim::Axis(rows), Dim::Range(SizeExpr::constant(PARTS_WIDTH))] });
    let value = b.emit(Op::Cast(elem, full));
    b.append(Op::Store { tensor: to, at: place_of_ones(place[0]), value });
    b.finish()
}

/// Loads the ones of the program's rows, and gives them.
fn load_ones(kernel: &mut Kernel, original: &Kernel, term: &Term, name: &str) -> ValueId {
    let tensor = edit::add_tensor(kernel, name, ones_decl(original, term, Direction::In));
    let (entry, at) = (edit::entry(kernel), place_of_ones(term.rows));
    edit::insert(kernel, entry, Op::Load { tensor, at }, original.ops[term.sum].span)
}

/// Makes a vector a step of the product that it is added to, with ones at the left.
fn add_step(kernel: &mut Kernel, original: &Kernel, term: &Term, ones: ValueId) {
    let span = original.ops[term.sum].span;
    let tensor = edit::add_tensor(kernel, &term.name, parts_decl(original, term, Direction::In));
    let place = term.vector.place(original).into_iter().map(|(at, _)| at);
    let at = place.chain([At::Range { start: SizeExpr::constant(0), len: SizeExpr::constant(PARTS_WIDTH) }]).collect();
    let mut next = edit::after_definition(kernel, term.dot);
    let mut behind = |kernel: &mut Kernel, op: Op| {
        let value = edit::insert(kernel, next, op, span);
        next.index += 1;
        value
    };
    let loaded = behind(kernel, Op::Load { tensor, at });
    let turned = behind(kernel, Op::Transpose(loaded));
    let with = behind(kernel, Op::Dot { a: ones, b: turned, acc: Some(term.dot) });
    let (step, _) = kernel.def(with).expect("it was made here");
    kernel.values[with].name.clone_from(&original.values[term.dot].name);
    edit::replace_uses(kernel, term.dot, with, &[step]);
    // The sum as it is by now: of several in a row each has lost those before it.
    let (sum, left) = (kernel.ops[term.sum].results[0], kernel.ops[term.sum].op.operands());
    let matrix = left.into_iter().find(|&v| kernel.tile(v).rank() == 2).expect("a sum of a matrix and a vector");
    edit::replace_uses(kernel, sum, matrix, &[]);
}
