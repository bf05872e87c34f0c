//! The elementwise ops, one row each: how an op is written, what it takes, what it computes, and
//! what analyses ask of it.
//!
//! A row is all that this crate knows of an op. These read it, and name no op that they do not
//! treat in a way of its own:
//!
//! * the text form (its printer and its parser), the words of kernels and their diagnostics, the
//!   printed forms of analyses;
//! * the verifier and result types: [`UnaryRow::operand`], [`BinaryRow::operands`];
//! * the interpreter, and the folding of literals: the meaning in f32, f64, `i32` or truth values;
//! * classes of values ([`UnaryRow::others`]), ranges of integers ([`BinaryRow::range`]), counts of
//!   special functions, magnitudes of inputs, and what a code generator may do with an approximate
//!   operand.
//!
//! What code an op becomes is told by the code generator's own table, of which this crate knows
//! nothing.
//!
//! An analysis that looks for a form (a sum, a rescaled product) names the ops of the form, and
//! expects nothing of any other.

use serde::{Deserialize, Serialize};

/// Integer arithmetic on indices. Division and remainder round towards negative infinity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum IndexOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Floor division.
    Div,
    /// Remainder of floor division.
    Rem,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
}

/// How an op is written in a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spelling {
    /// As a function that has the name of the mnemonic.
    Call,
    /// As an operator before its operand.
    Prefix(&'static str),
    /// As an operator between its operands, which binds so tightly.
    Infix(&'static str, Precedence),
}

/// How tightly an operator binds, loosest first: as in Rust.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Precedence {
    /// Nothing binds: any expression.
    Any,
    /// `||`
    Or,
    /// `&&`
    And,
    /// `==`, `<` and the others.
    Comparison,
    /// `|`
    BitOr,
    /// `^`
    BitXor,
    /// `&`
    BitAnd,
    /// `<<`, `>>`
    Shift,
    /// `+`, `-`
    Sum,
    /// `*`, `/`, `%`
    Product,
    /// Operators before their operand.
    Prefix,
    /// Names, numbers and calls.
    Atom,
}

impl Precedence {
    /// The next tighter one: that of the right operand of an operator, which groups from the left.
    pub fn tighter(self) -> Self {
        use Precedence::{And, Any, Atom, BitAnd, BitOr, BitXor, Comparison, Or, Prefix, Product, Shift, Sum};
        match self {
            Any => Or,
            Or => And,
            And => Comparison,
            Comparison => BitOr,
            BitOr => BitXor,
            BitXor => BitAnd,
            BitAnd => Shift,
            Shift => Sum,
            Sum => Product,
            Product => Prefix,
            Prefix | Atom => Atom,
        }
    }
}

/// What elements an op takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operands {
    /// Floats, or integers; of two operands both are of one kind.
    Numbers,
    /// Floats.
    Floats,
    /// Integers.
    Integers,
    /// Truth values.
    Truths,
}

/// One operand of a row of elements: the elements, or the one that all are.
pub type RowOperand<'a, T> = Result<&'a [T], T>;

/// `f` of the elements of two operands, appended to `out`.
#[inline]
pub(crate) fn map_row<A: Copy, B: Copy, O>(
    a: RowOperand<'_, A>,
    b: RowOperand<'_, B>,
    columns: usize,
    out: &mut Vec<O>,
    f: impl Fn(A, B) -> O,
) {
    match (a, b) {
        (Ok(a), Ok(b)) => out.extend(a.iter().zip(b).map(|(&a, &b)| f(a, b))),
        (Ok(a), Err(b)) => out.extend(a.iter().map(|&a| f(a, b))),
        (Err(a), Ok(b)) => out.extend(b.iter().map(|&b| f(a, b))),
        (Err(a), Err(b)) => out.extend((0..columns).map(|_| f(a, b))),
    }
}

/// A function of one float, in both precisions.
#[derive(Clone, Copy, Debug)]
pub struct FloatUnary {
    /// In f32.
    pub single: fn(f32) -> f32,
    /// In f64: what tests compare with.
    pub double: fn(f64) -> f64,
}

/// A function of two floats, of a whole row at once, so that a compiler may vectorise it.
#[derive(Clone, Copy, Debug)]
pub struct FloatBinary {
    /// In f32.
    pub single: fn(RowOperand<'_, f32>, RowOperand<'_, f32>, usize, &mut Vec<f32>),
    /// In f64: what tests compare with.
    pub double: fn(RowOperand<'_, f64>, RowOperand<'_, f64>, usize, &mut Vec<f64>),
}

impl FloatBinary {
    /// The value for two numbers.
    pub fn of(&self, x: f64, y: f64) -> f64 {
        let mut out = Vec::with_capacity(1);
        (self.double)(Err(x), Err(y), 1, &mut out);
        out[0]
    }
}

/// One body for both precisions.
macro_rules! float {
    (|$x:ident| $body:expr) => {
        Some(FloatUnary { single: |$x: f32| -> f32 { $body }, double: |$x: f64| -> f64 { $body } })
    };
    (|$x:ident, $y:ident| $body:expr) => {
        Some(FloatBinary {
            single: |a, b, columns, out| map_row(a, b, columns, out, |$x: f32, $y: f32| -> f32 { $body }),
            double: |a, b, columns, out| map_row(a, b, columns, out, |$x: f64, $y: f64| -> f64 { $body }),
        })
    };
}

/// What is known of an elementwise function of one operand.
#[derive(Clone, Copy, Debug)]
pub struct UnaryRow {
    /// Its name in the text form, and in kernels if it is called there.
    pub mnemonic: &'static str,
    /// How it is written in a kernel.
    pub spelling: Spelling,
    /// What it takes.
    pub operand: Operands,
    /// What it computes of a float.
    pub float: Option<FloatUnary>,
    /// What it computes of an integer.
    pub integer: Option<fn(i32) -> i32>,
    /// What it computes of a truth value.
    pub truth: Option<fn(bool) -> bool>,
    /// One result for each class of results (infinities, 0, 1, other numbers, NaN) that finite
    /// operands other than 0 and 1 may have, in f32 and after rounding. Results of infinities, 0, 1
    /// and NaN follow from `float`.
    pub others: &'static [f64],
    /// Whether it takes the special function unit, once per element.
    pub special: bool,
    /// Whether the result has the size of the operand: it is linear up to the sign.
    pub linear: bool,
    /// Whether the result of floats is exact in any type that holds the operand.
    pub exact: bool,
    /// Whether inputs of a check should make the operand positive.
    pub wants_positive: bool,
    /// Whether no result is negative. (A result may be NaN.)
    pub never_negative: bool,
    /// Whether it grows as an exponential: an argument that is large by a wrong reference shows.
    pub exponential: bool,
    /// Whether a small change of the operand may be a large one of the result: the operand may not
    /// be an approximation.
    pub jumps: bool,
}

impl UnaryRow {
    /// A function of floats that is called by its mnemonic and of which nothing else is known.
    const FLOAT: Self = Self {
        mnemonic: "",
        spelling: Spelling::Call,
        operand: Operands::Floats,
        float: None,
        integer: None,
        truth: None,
        others: &[f64::NEG_INFINITY, 0.0, 1.0, 2.0, f64::INFINITY, f64::NAN],
        special: false,
        linear: false,
        exact: false,
        wants_positive: false,
        never_negative: false,
        exponential: false,
        jumps: false,
    };
}

/// What is known of an elementwise function of two operands.
#[derive(Clone, Copy, Debug)]
pub struct BinaryRow {
    /// Its name in the text form, and in kernels if it is called there.
    pub mnemonic: &'static str,
    /// How it is written in a kernel.
    pub spelling: Spelling,
    /// What it takes.
    pub operands: Operands,
    /// What it computes of floats.
    pub float: Option<FloatBinary>,
    /// What it computes of integers, in 32 bits.
    pub integer: Option<fn(i32, i32) -> i32>,
    /// What it computes of truth values.
    pub truth: Option<fn(bool, bool) -> bool>,
    /// The operation on indices that is the same. Analyses of masks and indices take such an op for
    /// arithmetic on integers without end, and see to it that it does not wrap where that matters.
    pub index: Option<IndexOp>,
    /// Of an op on integers that is no arithmetic of indices: the least and the largest result,
    /// from those of the operands, which are within 32 bits.
    pub range: fn([i64; 2], [i64; 2]) -> [i64; 2],
    /// Whether an integer second operand that nothing loads may not be 0.
    pub divides: bool,
    /// Whether the result of floats is one of the operands.
    pub exact: bool,
    /// Whether it takes the special function unit, once per element of floats.
    pub special: bool,
    /// The literals that the second operand may be; any if there is none.
    pub literals: Option<[i64; 2]>,
}

const I32: [i64; 2] = [i32::MIN as i64, i32::MAX as i64];

impl BinaryRow {
    /// A function of numbers that is called by its mnemonic.
    const NUMBERS: Self = Self {
        mnemonic: "",
        spelling: Spelling::Call,
        operands: Operands::Numbers,
        float: None,
        integer: None,
        truth: None,
        index: None,
        range: |_, _| I32,
        divides: false,
        exact: false,
        special: false,
        literals: None,
    };
}

macro_rules! table {
    ($(#[$doc:meta])* $name:ident, $row:ident; $($(#[$op_doc:meta])* $op:ident => $value:expr,)+) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$op_doc])* $op,)+
        }

        impl $name {
            /// Every op, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$op),+];

            /// What is known of the op.
            pub fn row(self) -> &'static $row {
                const ROWS: &[$row] = &[$($value),+];
                &ROWS[self as usize]
            }
        }
    };
}

table! {
    /// Elementwise functions of one operand.
    UnaryOp, UnaryRow;
    /// Negation.
    Neg => UnaryRow {
        mnemonic: "neg",
        spelling: Spelling::Prefix("-"),
        operand: Operands::Numbers,
        float: float!(|x| -x),
        integer: Some(i32::wrapping_neg),
        others: &[1.0, 2.0],
        linear: true,
        exact: true,
        ..UnaryRow::FLOAT
    },
    /// Absolute value.
    Abs => UnaryRow {
        mnemonic: "abs",
        operand: Operands::Numbers,
        float: float!(|x| x.abs()),
        integer: Some(i32::wrapping_abs),
        others: &[1.0, 2.0],
        linear: true,
        exact: true,
        never_negative: true,
        ..UnaryRow::FLOAT
    },
    /// e to the x.
    Exp => UnaryRow {
        mnemonic: "exp",
        float: float!(|x| x.exp()),
        others: &[0.0, 1.0, 2.0, f64::INFINITY],
        special: true,
        never_negative: true,
        exponential: true,
        ..UnaryRow::FLOAT
    },
    /// 2 to the x.
    Exp2 => UnaryRow {
        mnemonic: "exp2",
        float: float!(|x| x.exp2()),
        others: &[0.0, 1.0, 2.0, f64::INFINITY],
        special: true,
        never_negative: true,
        exponential: true,
        ..UnaryRow::FLOAT
    },
    /// Natural logarithm.
    Ln => UnaryRow {
        mnemonic: "ln",
        float: float!(|x| x.ln()),
        others: &[0.0, 1.0, 2.0, f64::NAN],
        special: true,
        wants_positive: true,
        ..UnaryRow::FLOAT
    },
    /// Base-2 logarithm.
    Log2 => UnaryRow {
        mnemonic: "log2",
        float: float!(|x| x.log2()),
        others: &[0.0, 1.0, 2.0, f64::NAN],
        special: true,
        wants_positive: true,
        ..UnaryRow::FLOAT
    },
    /// Hyperbolic tangent.
    Tanh => UnaryRow {
        mnemonic: "tanh",
        float: float!(|x| x.tanh()),
        others: &[0.0, 1.0, 0.5],
        special: true,
        ..UnaryRow::FLOAT
    },
    /// Logical not, of a bool tile.
    Not => UnaryRow {
        mnemonic: "not",
        spelling: Spelling::Prefix("!"),
        operand: Operands::Truths,
        truth: Some(|x| !x),
        ..UnaryRow::FLOAT
    },
    /// 0 where the operand is `-inf`, else the operand.
    VisibleOrZero => UnaryRow {
        mnemonic: "visible_or_zero",
        float: float!(|x| if x.is_infinite() && x < 0.0 { 0.0 } else { x }),
        others: &[2.0],
        linear: true,
        exact: true,
        ..UnaryRow::FLOAT
    },
    /// Square root.
    Sqrt => UnaryRow {
        mnemonic: "sqrt",
        float: float!(|x| x.sqrt()),
        others: &[1.0, 2.0, f64::NAN],
        special: true,
        wants_positive: true,
        never_negative: true,
        ..UnaryRow::FLOAT
    },
    /// Reciprocal of the square root.
    Rsqrt => UnaryRow {
        mnemonic: "rsqrt",
        float: float!(|x| 1.0 / x.sqrt()),
        others: &[1.0, 2.0, f64::NAN],
        special: true,
        wants_positive: true,
        ..UnaryRow::FLOAT
    },
    /// Sine of an angle in radians.
    Sin => UnaryRow {
        mnemonic: "sin",
        float: float!(|x| x.sin()),
        others: &[0.0, 1.0, 0.5],
        special: true,
        ..UnaryRow::FLOAT
    },
    /// Cosine of an angle in radians.
    Cos => UnaryRow {
        mnemonic: "cos",
        float: float!(|x| x.cos()),
        others: &[0.0, 1.0, 0.5],
        special: true,
        ..UnaryRow::FLOAT
    },
    /// Largest whole number that is not larger.
    Floor => UnaryRow {
        mnemonic: "floor",
        float: float!(|x| x.floor()),
        others: &[0.0, 1.0, 2.0],
        exact: true,
        jumps: true,
        ..UnaryRow::FLOAT
    },
}

table! {
    /// Elementwise functions of two operands.
    BinaryOp, BinaryRow;
    /// Sum.
    Add => BinaryRow {
        mnemonic: "add",
        spelling: Spelling::Infix("+", Precedence::Sum),
        float: float!(|x, y| x + y),
        integer: Some(i32::wrapping_add),
        index: Some(IndexOp::Add),
        ..BinaryRow::NUMBERS
    },
    /// Difference.
    Sub => BinaryRow {
        mnemonic: "sub",
        spelling: Spelling::Infix("-", Precedence::Sum),
        float: float!(|x, y| x - y),
        integer: Some(i32::wrapping_sub),
        index: Some(IndexOp::Sub),
        ..BinaryRow::NUMBERS
    },
    /// Product.
    Mul => BinaryRow {
        mnemonic: "mul",
        spelling: Spelling::Infix("*", Precedence::Product),
        float: float!(|x, y| x * y),
        integer: Some(i32::wrapping_mul),
        index: Some(IndexOp::Mul),
        ..BinaryRow::NUMBERS
    },
    /// Quotient. Of integers: floor division.
    Div => BinaryRow {
        mnemonic: "div",
        spelling: Spelling::Infix("/", Precedence::Product),
        float: float!(|x, y| x / y),
        integer: Some(|x, y| floor_div(x.into(), y.into()) as i32),
        index: Some(IndexOp::Div),
        divides: true,
        special: true,
        ..BinaryRow::NUMBERS
    },
    /// Remainder of floor division, of integers only.
    Rem => BinaryRow {
        mnemonic: "rem",
        spelling: Spelling::Infix("%", Precedence::Product),
        operands: Operands::Integers,
        integer: Some(|x, y| floor_rem(x.into(), y.into()) as i32),
        index: Some(IndexOp::Rem),
        divides: true,
        ..BinaryRow::NUMBERS
    },
    /// Larger operand (a number wins over NaN).
    Max => BinaryRow {
        mnemonic: "max",
        float: float!(|x, y| x.max(y)),
        exact: true,
        integer: Some(i32::max),
        index: Some(IndexOp::Max),
        ..BinaryRow::NUMBERS
    },
    /// Smaller operand (a number wins over NaN).
    Min => BinaryRow {
        mnemonic: "min",
        float: float!(|x, y| x.min(y)),
        exact: true,
        integer: Some(i32::min),
        index: Some(IndexOp::Min),
        ..BinaryRow::NUMBERS
    },
    /// Quotient, and 0 where both operands are 0.
    DivOrZero => BinaryRow {
        mnemonic: "div_or_zero",
        operands: Operands::Floats,
        float: float!(|x, y| if x == 0.0 && y == 0.0 { 0.0 } else { x / y }),
        special: true,
        ..BinaryRow::NUMBERS
    },
    /// Logical and, of bool tiles.
    And => BinaryRow {
        mnemonic: "and",
        spelling: Spelling::Infix("&&", Precedence::And),
        operands: Operands::Truths,
        truth: Some(|x, y| x && y),
        ..BinaryRow::NUMBERS
    },
    /// Logical or, of bool tiles.
    Or => BinaryRow {
        mnemonic: "or",
        spelling: Spelling::Infix("||", Precedence::Or),
        operands: Operands::Truths,
        truth: Some(|x, y| x || y),
        ..BinaryRow::NUMBERS
    },
    /// Bitwise and, of integers.
    BitAnd => BinaryRow {
        mnemonic: "bit_and",
        spelling: Spelling::Infix("&", Precedence::BitAnd),
        operands: Operands::Integers,
        integer: Some(|x, y| x & y),
        range: |a, b| match (a[0] >= 0, b[0] >= 0) {
            (true, true) => [0, a[1].min(b[1])],
            (true, false) => [0, a[1]],
            (false, true) => [0, b[1]],
            (false, false) => [I32[0], a[1].max(b[1])],
        },
        ..BinaryRow::NUMBERS
    },
    /// Bitwise or, of integers.
    BitOr => BinaryRow {
        mnemonic: "bit_or",
        spelling: Spelling::Infix("|", Precedence::BitOr),
        operands: Operands::Integers,
        integer: Some(|x, y| x | y),
        range: |a, b| if a[0] >= 0 && b[0] >= 0 { [a[0].max(b[0]), all_bits(a[1].max(b[1]))] } else { I32 },
        ..BinaryRow::NUMBERS
    },
    /// Bitwise exclusive or, of integers.
    BitXor => BinaryRow {
        mnemonic: "bit_xor",
        spelling: Spelling::Infix("^", Precedence::BitXor),
        operands: Operands::Integers,
        integer: Some(|x, y| x ^ y),
        range: |a, b| if a[0] >= 0 && b[0] >= 0 { [0, all_bits(a[1].max(b[1]))] } else { I32 },
        ..BinaryRow::NUMBERS
    },
    /// Shift to the left by the lower five bits of the second operand.
    Shl => BinaryRow {
        mnemonic: "shl",
        spelling: Spelling::Infix("<<", Precedence::Shift),
        operands: Operands::Integers,
        integer: Some(|x, y| x.wrapping_shl(y as u32)),
        range: |a, b| {
            let fits = b[0] == b[1] && (0..32).contains(&b[0]) && a[0] << b[0] >= I32[0] && a[1] << b[0] <= I32[1];
            if fits { [a[0] << b[0], a[1] << b[0]] } else { I32 }
        },
        literals: Some([0, 31]),
        ..BinaryRow::NUMBERS
    },
    /// Shift to the right by the lower five bits of the second operand; the sign fills up.
    Shr => BinaryRow {
        mnemonic: "shr",
        spelling: Spelling::Infix(">>", Precedence::Shift),
        operands: Operands::Integers,
        integer: Some(|x, y| x.wrapping_shr(y as u32)),
        range: |a, b| {
            // What is shifted moves towards 0, or towards -1 if it is negative.
            let [fewest, most] = if b[0] >= 0 && b[1] < 32 { b } else { [0, 31] };
            [(a[0] >> fewest).min(a[0] >> most), (a[1] >> fewest).max(a[1] >> most)]
        },
        literals: Some([0, 31]),
        ..BinaryRow::NUMBERS
    },
    /// The upper 32 bits of the product of two integers, both taken without sign.
    MulHi => BinaryRow {
        mnemonic: "mul_hi",
        operands: Operands::Integers,
        integer: Some(|x, y| ((u64::from(x as u32) * u64::from(y as u32)) >> 32) as i32),
        range: |a, b| if a[0] >= 0 && b[0] >= 0 { [(a[0] * b[0]) >> 32, (a[1] * b[1]) >> 32] } else { I32 },
        ..BinaryRow::NUMBERS
    },
}

/// The largest number that has no bit above the highest of `x`, which is not negative.
fn all_bits(x: i64) -> i64 {
    (1 << (64 - x.leading_zeros())) - 1
}

impl UnaryOp {
    /// The op that is written as this operator before its operand.
    pub fn written(operator: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| matches!(op.row().spelling, Spelling::Prefix(own) if own == operator))
    }

    /// Whether it makes 0 of 0.
    pub fn keeps_zero(self) -> bool {
        self.row().float.is_some_and(|f| (f.double)(0.0) == 0.0)
    }
}

impl BinaryOp {
    /// The op that is written as this operator between its operands.
    pub fn written(operator: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|op| matches!(op.row().spelling, Spelling::Infix(own, _) if own == operator))
    }
}

/// Quotient rounded towards negative infinity; 0 if the divisor is.
pub(crate) fn floor_div(a: i64, b: i64) -> i64 {
    if b == 0 {
        return 0;
    }
    let quotient = a.wrapping_div(b);
    if a.wrapping_rem(b) != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient }
}

/// Remainder of the floor division; `a` if the divisor is 0.
pub(crate) fn floor_rem(a: i64, b: i64) -> i64 {
    a.wrapping_sub(b.wrapping_mul(floor_div(a, b)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_says_what_it_computes_of_what_it_takes() {
        for op in UnaryOp::ALL {
            let row = op.row();
            let (float, integer, truth) = (row.float.is_some(), row.integer.is_some(), row.truth.is_some());
            assert_eq!((float, integer, truth), wanted(row.operand), "{op:?}");
            assert!(!matches!(row.spelling, Spelling::Infix(..)), "{op:?}");
        }
        for op in BinaryOp::ALL {
            let row = op.row();
            let (float, integer, truth) = (row.float.is_some(), row.integer.is_some(), row.truth.is_some());
            assert_eq!((float, integer, truth), wanted(row.operands), "{op:?}");
            assert!(!matches!(row.spelling, Spelling::Prefix(_)), "{op:?}");
        }
    }

    fn wanted(operands: Operands) -> (bool, bool, bool) {
        match operands {
            Operands::Numbers => (true, true, false),
            Operands::Floats => (true, false, false),
            Operands::Integers => (false, true, false),
            Operands::Truths => (false, false, true),
        }
    }

    #[test]
    fn words_and_operators_are_told_apart() {
        let unary = UnaryOp::ALL.iter().map(|op| (op.row().mnemonic, format!("1 {:?}", op.row().spelling)));
        let binary = BinaryOp::ALL.iter().map(|op| (op.row().mnemonic, format!("2 {:?}", op.row().spelling)));
        let all: Vec<_> = unary.chain(binary).collect();
        for (k, (mnemonic, spelling)) in all.iter().enumerate() {
            for (other, same) in &all[..k] {
                assert!(mnemonic != other && (spelling != same || spelling.ends_with("Call")), "{mnemonic} and {other}");
            }
        }
    }

    #[test]
    fn ranges_hold_all_results() {
        let samples = [i32::MIN, i32::MIN + 1, -65536, -7, -2, -1, 0, 1, 2, 3, 5, 8, 30, 31, 1000, 65536, i32::MAX - 1, i32::MAX];
        for op in BinaryOp::ALL.iter().filter(|op| op.row().index.is_none()) {
            let Some(meaning) = op.row().integer else { continue };
            let pairs = || samples.iter().enumerate().flat_map(|(k, &lo)| samples[k..].iter().map(move |&hi| [lo, hi]));
            for a in pairs() {
                for b in pairs() {
                    let [least, most] = (op.row().range)(a.map(i64::from), b.map(i64::from));
                    let within = |of: [i32; 2]| samples.into_iter().filter(move |x| (of[0]..=of[1]).contains(x));
                    for x in within(a) {
                        for y in within(b) {
                            let value = i64::from(meaning(x, y));
                            assert!((least..=most).contains(&value), "{op:?}({x}, {y}) = {value} of {a:?} and {b:?}");
                        }
                    }
                }
            }
        }
    }
}
