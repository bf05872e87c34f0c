//! Elements of a thread that have a number in common, since it is made of bits of positions in which
//! they do not differ.
//!
//! The elements of a fragment differ in a few bits of their positions:
//!
//! | bits | of a row | of a column |
//! | --- | --- | --- |
//! | 1 | | the two of a pair |
//! | 8 | the two halves of a tile | the two tiles of 16 columns |
//! | 16 and up | tiles | pairs of tiles |
//!
//! What is computed of [`Function::Bits`], shifted or masked, differs only in what is left of these.
//! The compiler of CUDA C computes it once for elements that have it in common, and keeps it in one
//! register.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{Expr, Function, Operator, Plan, Shape, StmtOp, Storage, VarId, Variable, each};

/// Bits of positions in which elements of a thread differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bits {
    rows: u32,
    columns: u32,
}

/// Bits of the positions of a fragment's rows, and of its columns.
const ROWS: u32 = !7;
const COLUMNS: u32 = !6;

impl Bits {
    const fn of(shape: Shape) -> Self {
        let (rows, columns) = match shape {
            Shape::Uniform => (0, 0),
            Shape::Row => (ROWS, 0),
            Shape::Column => (0, COLUMNS),
            Shape::Accumulator => (ROWS, COLUMNS),
        };
        Self { rows, columns }
    }

    fn or(self, other: Self) -> Self {
        Self { rows: self.rows | other.rows, columns: self.columns | other.columns }
    }

    fn of_these(self, all: Self) -> Self {
        Self { rows: self.rows & all.rows, columns: self.columns & all.columns }
    }

    fn masked(self, mask: u32) -> Self {
        Self { rows: self.rows & mask, columns: self.columns & mask }
    }

    /// How many numbers a thread has, if its elements in so many tiles differ in these.
    fn numbers(self, m_tiles: u32, n_tiles: u32) -> u32 {
        let some = |bits: u32, mask: u32, count: u32| if bits & mask == 0 { 1 } else { count };
        let rows = some(self.rows, 8, 2) * some(self.rows, !15, m_tiles);
        let (eights, tiles) = if n_tiles == 1 { (1, 1) } else { (2, n_tiles.div_ceil(2)) };
        rows * some(self.columns, 1, 2) * some(self.columns, 8, eights) * some(self.columns, !15, tiles)
    }
}

/// What elements of a thread have in common in a plan.
pub(crate) struct Alike {
    /// In what the elements of variables differ that are made of bits.
    variables: HashMap<String, Bits>,
}

impl Alike {
    /// Looks at all statements of a plan. What is assigned in several places differs in what any of
    /// these leaves. What differs in all bits that its shape has is a variable as any other, and so
    /// is what something else than elementwise work writes.
    pub fn of(plan: &Plan) -> Self {
        let mut alike = Self { variables: HashMap::new() };
        let mut others: HashSet<VarId> = HashSet::new();
        let mut look = |op: &StmtOp| {
            let bits = match op {
                StmtOp::Map { value, .. } if alike.is_of_bits(value) => alike.differs(value),
                _ => Bits::of(Shape::Accumulator),
            };
            for v in op.variables() {
                let Variable { name, storage, .. } = &plan.variables[v];
                let all = if let Storage::Fragment(shape) = storage { Bits::of(*shape) } else { Bits::default() };
                let bits = alike.variables.remove(name).unwrap_or_default().or(bits.of_these(all));
                if bits == all || others.contains(&v) {
                    others.insert(v);
                } else {
                    alike.variables.insert(name.clone(), bits);
                }
            }
        };
        plan.roles.iter().for_each(|role| each(&role.body, &mut look));
        alike
    }

    /// The registers of a variable, with one for all elements that are alike.
    pub fn registers(&self, v: &Variable) -> u32 {
        match (self.variables.get(&v.name), v.storage) {
            (Some(bits), Storage::Fragment(_)) => bits.numbers(v.m_tiles, v.n_tiles).min(v.registers()),
            _ => v.registers(),
        }
    }

    /// Whether some of an expression is made of bits of positions.
    pub fn is_of_bits(&self, e: &Expr) -> bool {
        let mut found = false;
        e.visit(&mut |e| {
            found |= match e {
                Expr::Call(Function::Bits, _) => true,
                Expr::Element(name, _) => self.variables.contains_key(name),
                _ => false,
            }
        });
        found
    }

    /// Looks at an expression and its operands, innermost first: at each, with how many numbers of it
    /// a thread computes for the elements of a variable, and a number that others of the same text
    /// have too.
    pub fn walk(&self, e: &Expr, v: &Variable, look: &mut impl FnMut(&Expr, u32, u64)) {
        self.seen(e, &mut |e, seen| look(e, seen.bits.numbers(v.m_tiles, v.n_tiles), seen.text));
    }

    fn differs(&self, e: &Expr) -> Bits {
        self.seen(e, &mut |_, _| {}).bits
    }

    fn seen(&self, e: &Expr, look: &mut impl FnMut(&Expr, Seen)) -> Seen {
        let mut operands = Vec::new();
        e.operands(&mut |operand| operands.push(self.seen(operand, look)));
        let of_operands = operands.iter().fold(Bits::default(), |all, operand| all.or(operand.bits));
        let (bits, places) = match e {
            Expr::Element(name, shape) => (self.variables.get(name).copied().unwrap_or(Bits::of(*shape)), None),
            Expr::RowPosition(_) => (Bits::of(Shape::Row), None),
            Expr::ColumnPosition(_) => (Bits::of(Shape::Column), None),
            Expr::Call(Function::Bits, _) => (of_operands, Some(0)),
            Expr::Infix(operator @ (Operator::Shr | Operator::BitAnd), _, by) => match (operands[0].places, by.as_ref()) {
                (Some(places), &Expr::Int(by @ 0..=0x7FFF_FFFF)) => {
                    let shifted = places + if *operator == Operator::Shr { by as u32 } else { 0 };
                    let mask = if *operator == Operator::Shr { u32::MAX } else { by as u32 };
                    (of_operands.masked(mask.checked_shl(shifted).unwrap_or(0)), Some(shifted))
                }
                _ => (of_operands, None),
            },
            _ => (of_operands, None),
        };
        let seen = Seen { bits, places, text: text_of(e, &operands) };
        look(e, seen);
        seen
    }
}

/// What is known of an expression.
#[derive(Clone, Copy)]
struct Seen {
    bits: Bits,
    /// By how many places the bits of a position are shifted, if it is some of these.
    places: Option<u32>,
    /// A number that expressions of the same text have.
    text: u64,
}

fn text_of(e: &Expr, operands: &[Seen]) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::mem::discriminant(e).hash(&mut hasher);
    match e {
        Expr::Float(x) => x.to_bits().hash(&mut hasher),
        Expr::Int(x) => x.hash(&mut hasher),
        Expr::Name(name) | Expr::RowPosition(name) | Expr::ColumnPosition(name) | Expr::Element(name, _) => {
            name.hash(&mut hasher);
        }
        Expr::Param(param) => param.hash(&mut hasher),
        Expr::Builtin(builtin) => builtin.hash(&mut hasher),
        Expr::Call(function, _) => function.hash(&mut hasher),
        Expr::Infix(operator, ..) => operator.hash(&mut hasher),
        Expr::Prefix(prefix, _) => prefix.hash(&mut hasher),
        Expr::Cast(cast, _) => cast.hash(&mut hasher),
        Expr::Select(..) => {}
    }
    operands.iter().for_each(|operand| operand.text.hash(&mut hasher));
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none() -> Alike {
        Alike { variables: HashMap::new() }
    }

    fn bits(position: Expr) -> Expr {
        Expr::call(Function::Bits, [position])
    }

    #[test]
    fn elements_differ_in_the_bits_that_are_left() {
        let (row, column) = (|| bits(Expr::RowPosition("i".into())), || bits(Expr::ColumnPosition("j".into())));
        let shift = |e, by| Expr::infix(Operator::Shr, e, Expr::Int(by));
        let mask = |e, by| Expr::infix(Operator::BitAnd, e, Expr::Int(by));
        let numbers = |e: &Expr| none().differs(e).numbers(2, 8);
        assert_eq!(numbers(&row()), 4);
        assert_eq!(numbers(&shift(row(), 4)), 2, "tiles");
        assert_eq!(numbers(&mask(row(), 7)), 1, "eight rows of a tile are those of other lanes");
        assert_eq!(numbers(&column()), 16);
        assert_eq!(numbers(&shift(column(), 1)), 8);
        assert_eq!(numbers(&shift(column(), 4)), 4);
        assert_eq!(numbers(&shift(mask(column(), 7), 1)), 1);
        assert_eq!(numbers(&mask(shift(column(), 3), 1)), 2, "the tiles of 16 columns");
        assert_eq!(numbers(&mask(column(), 1)), 2);
        let both = Expr::infix(Operator::BitXor, shift(row(), 4), shift(column(), 4));
        assert_eq!(numbers(&both), 8, "one of eight");
        assert_eq!(numbers(&Expr::infix(Operator::BitXor, both, Expr::Element("s".into(), Shape::Accumulator))), 64);
    }

    #[test]
    fn the_same_text_has_the_same_number() {
        let text = |e: &Expr| none().seen(e, &mut |_, _| {}).text;
        let sum = |a: &str| Expr::infix(Operator::Add, Expr::name(a), Expr::Int(1));
        assert_eq!(text(&sum("a")), text(&sum("a")));
        assert_ne!(text(&sum("a")), text(&sum("b")));
        assert_ne!(text(&sum("a")), text(&Expr::infix(Operator::Sub, Expr::name("a"), Expr::Int(1))));
    }
}
