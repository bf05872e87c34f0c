//! Expressions of a plan: what each element of a fragment, a bound of a loop or an address is.
//!
//! An expression says what is computed, not in which language. An element of a fragment stands for
//! every element that a statement computes; which registers of which thread these are is decided
//! where text is made (`emit/expression.rs`). The printed form of an expression is in `text.rs`.

/// Shape of a fragment: which rows and columns of a tile it has a value for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// One value.
    Uniform,
    /// A value for each row.
    Row,
    /// A value for each column.
    Column,
    /// A value for each row and column, in the layout of a product's accumulator.
    Accumulator,
}

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $text:literal),+ $(,)?) => {
        /// A function of values.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Function { $($(#[$doc])* $name),+ }

        impl Function {
            /// All of them.
            pub const ALL: &[Function] = &[$(Function::$name),+];

            /// The name in the text of a plan.
            pub fn name(self) -> &'static str {
                match self { $(Function::$name => $text),+ }
            }
        }
    };
}

functions! {
    /// 2^x.
    Ex2 = "ex2",
    /// log2 x.
    Lg2 = "lg2",
    /// 1 / x.
    Reciprocal = "rcp",
    /// 1 / x, for x of at least 1.
    ReciprocalNormal = "rcp_normal",
    /// tanh.
    Tanh = "tanh",
    /// tanh to 2^-11.
    TanhApprox = "tanh_approx",
    /// tanh to an absolute error of 2^-22.
    TanhAbsolute = "tanh_absolute",
    /// Square root, correctly rounded.
    Sqrt = "sqrt",
    /// 1 / sqrt x.
    Rsqrt = "rsqrt",
    /// sin.
    Sin = "sin",
    /// cos.
    Cos = "cos",
    /// The integer at or below x.
    Floor = "floor",
    /// Quotient to two units in the last place.
    DivFull = "div_full",
    /// |x|.
    Abs = "abs",
    /// Larger float.
    Max = "max",
    /// Smaller float.
    Min = "min",
    /// Product rounded by itself, never fused with a sum.
    RoundedProduct = "mul_rn",
    /// `a * b + c`, rounded once.
    MultiplyAdd = "fma",
    /// Larger integer.
    Most = "most",
    /// Smaller integer.
    Least = "least",
    /// Integer division towards negative infinity, by what is positive.
    FloorDiv = "floor_div",
    /// Its remainder.
    FloorRem = "floor_rem",
    /// [`Function::FloorDiv`] by what may be negative or 0.
    FloorDivSigned = "floor_div_signed",
    /// Its remainder, which has the sign of the divisor.
    FloorRemSigned = "floor_rem_signed",
    /// [`Function::Most`] in 64 bits.
    MostWide = "most_wide",
    /// [`Function::Least`] in 64 bits.
    LeastWide = "least_wide",
    /// [`Function::FloorDiv`] in 64 bits.
    FloorDivWide = "floor_div_wide",
    /// [`Function::FloorRem`] in 64 bits.
    FloorRemWide = "floor_rem_wide",
    /// Sum of integers that wraps around at 32 bits.
    WrapAdd = "wrap_add",
    /// Difference that wraps around.
    WrapSub = "wrap_sub",
    /// Product that wraps around.
    WrapMul = "wrap_mul",
    /// Upper 32 bits of the product of two numbers without a sign.
    MulHi = "mul_hi",
    /// The same position, written so that the compiler of CUDA C sees which bits differ among the
    /// elements of a thread: 8 in rows, and 1 and 8 in columns, of a first one which has these bits
    /// clear ([`Expr::begins_at_sixteens`]).
    Bits = "bits",
    /// What each has of a value that so many share, for a sum over them that is taken later. They
    /// are a power of two, so that it is exact.
    Share = "share",
    /// 0 where `-inf`.
    VisibleOrZero = "visible_or_zero",
    /// Quotient, 0 for 0 / 0.
    DivOrZero = "div_or_zero",
    /// Product with a reciprocal, 0 for 0 * (1 / 0).
    TimesInverseOrZero = "times_inverse_or_zero",
    /// Rounds to f16 and back.
    RoundF16 = "round_f16",
    /// Rounds to bf16 and back.
    RoundBf16 = "round_bf16",
    /// To f16.
    NarrowF16 = "narrow_f16",
    /// To bf16.
    NarrowBf16 = "narrow_bf16",
    /// The element at an address, widened to 32 bits.
    Read = "read",
    /// The least of integers in global memory: the address of the first, the stride, how many.
    TileLeast = "tile_least",
    /// The largest of them.
    TileMost = "tile_most",
    /// The least integer of a block in global memory: the address of the first integer of all, the
    /// stride, how many there are, how many a block has, the number of the block. The lanes of a
    /// row ask together.
    BlockLeast = "block_least",
    /// The largest of it.
    BlockMost = "block_most",
    /// The run from the first to the last of the tiles whose least and largest integer leave room
    /// for one in a range: the addresses of the least and of the largest of the first tile, the
    /// stride, how many tiles, the ends of the range. Of its 64 bits the upper half is the first
    /// tile, the lower one past the last. All lanes of a warp ask together.
    TilesMeeting = "tiles_meeting",
    /// The run of the first tile whose integers all are in a range, with those after it.
    TilesWithin = "tiles_within",
    /// How many entries a list has before the first that is negative: the address of the first, how
    /// many there may be. All lanes of a warp ask together.
    TilesListed = "tiles_listed",
    /// The entry of a list of the integers that are not 0: the address of the first integer, the
    /// stride, how many there are, the number of the entry. All lanes of a warp ask together.
    Nonzero = "nonzero",
}

impl Function {
    /// How many operands it takes.
    pub fn operands(self) -> usize {
        match self {
            Function::TilesMeeting | Function::TilesWithin => 6,
            Function::BlockLeast | Function::BlockMost => 5,
            Function::Nonzero => 4,
            Function::MultiplyAdd | Function::TileLeast | Function::TileMost => 3,
            Function::DivFull
            | Function::Max
            | Function::Min
            | Function::RoundedProduct
            | Function::Most
            | Function::Least
            | Function::FloorDiv
            | Function::FloorRem
            | Function::FloorDivSigned
            | Function::FloorRemSigned
            | Function::MostWide
            | Function::LeastWide
            | Function::FloorDivWide
            | Function::FloorRemWide
            | Function::WrapAdd
            | Function::WrapSub
            | Function::WrapMul
            | Function::MulHi
            | Function::DivOrZero
            | Function::TimesInverseOrZero
            | Function::Share
            | Function::TilesListed => 2,
            _ => 1,
        }
    }

    /// Whether it reads memory.
    pub fn reads_memory(self) -> bool {
        matches!(
            self,
            Function::Read
                | Function::TileLeast
                | Function::TileMost
                | Function::BlockLeast
                | Function::BlockMost
                | Function::TilesMeeting
                | Function::TilesWithin
                | Function::TilesListed
                | Function::Nonzero
        )
    }

    /// The function that does the same in 64 bits, of one that computes with integers.
    fn wide(self) -> Option<Self> {
        match self {
            Function::Most | Function::MostWide => Some(Function::MostWide),
            Function::Least | Function::LeastWide => Some(Function::LeastWide),
            Function::FloorDiv | Function::FloorDivSigned | Function::FloorDivWide => Some(Function::FloorDivWide),
            Function::FloorRem | Function::FloorRemSigned | Function::FloorRemWide => Some(Function::FloorRemWide),
            _ => None,
        }
    }
}

macro_rules! operators {
    ($($name:ident = $text:literal $precedence:literal),+ $(,)?) => {
        /// An operator between two values.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[expect(missing_docs, reason = "the symbols say it")]
        pub enum Operator { $($name),+ }

        impl Operator {
            /// All of them.
            pub const ALL: &[Operator] = &[$(Operator::$name),+];

            /// The symbol in the text of a plan.
            pub fn symbol(self) -> &'static str {
                match self { $(Operator::$name => $text),+ }
            }

            /// How tightly it binds: the order of C.
            pub fn precedence(self) -> u8 {
                match self { $(Operator::$name => $precedence),+ }
            }
        }
    };
}

operators! {
    Mul = "*" 13, Div = "/" 13, Rem = "%" 13,
    Add = "+" 12, Sub = "-" 12,
    Shl = "<<" 11, Shr = ">>" 11,
    Lt = "<" 10, Le = "<=" 10, Gt = ">" 10, Ge = ">=" 10,
    Eq = "==" 9, Ne = "!=" 9,
    BitAnd = "&" 8, BitXor = "^" 7, BitOr = "|" 6,
    And = "&&" 5, Or = "||" 4,
}

impl Operator {
    /// Whether it compares numbers by their order.
    pub fn is_order(self) -> bool {
        matches!(self, Operator::Lt | Operator::Le | Operator::Gt | Operator::Ge)
    }
}

/// An operator before a value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Prefix {
    /// `-x`.
    Neg,
    /// `!x`.
    Not,
}

/// To what a value is converted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cast {
    /// An integer to f32.
    Float,
    /// To an integer of 32 bits, towards zero.
    Int,
    /// An integer to 64 bits.
    Wide,
}

impl Cast {
    /// The name in the text of a plan.
    pub fn name(self) -> &'static str {
        match self {
            Cast::Float => "float",
            Cast::Int => "int",
            Cast::Wide => "wide",
        }
    }
}

/// A parameter of the launch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Param {
    /// A run-time size or a scalar, of this name in the kernel text.
    Value(String),
    /// The address of a tensor.
    Address(String),
    /// The stride in elements of a dimension of a tensor.
    Stride(String, u32),
}

/// What a thread knows of itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Builtin {
    /// Number of the block.
    Block,
    /// Number of the program that the block has taken, inside of [`super::StmtOp::Work`].
    Program,
    /// First row of the thread in a tile of rows.
    FirstRow,
    /// First column of the thread in a tile of columns: in its share, if there are column groups.
    FirstColumn,
    /// Column group of the thread's warp.
    ColumnGroup,
    /// Row, in its tile, of the element that a [`super::StmtOp::Compute`] makes.
    Row,
    /// Column, in its tile, of the element that a [`super::StmtOp::Compute`] makes.
    Column,
}

impl Builtin {
    /// All of them.
    pub const ALL: &[Builtin] = &[
        Builtin::Block,
        Builtin::Program,
        Builtin::FirstRow,
        Builtin::FirstColumn,
        Builtin::ColumnGroup,
        Builtin::Row,
        Builtin::Column,
    ];

    /// The name in the text of a plan.
    pub fn name(self) -> &'static str {
        match self {
            Builtin::Block => "block.number",
            Builtin::Program => "block.program",
            Builtin::FirstRow => "thread.row",
            Builtin::FirstColumn => "thread.column",
            Builtin::ColumnGroup => "warp.column_group",
            Builtin::Row => "element.row",
            Builtin::Column => "element.column",
        }
    }
}

/// An expression.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr {
    /// Float constant; f32 in generated code.
    Float(f64),
    /// Integer constant.
    Int(i64),
    /// A constant of the plan: of a [`super::StmtOp::Let`], a loop's coordinate, a shared value of
    /// a [`super::StmtOp::Compute`].
    Name(String),
    /// A parameter of the launch.
    Param(Param),
    /// What a thread knows of itself.
    Builtin(Builtin),
    /// An element of a fragment.
    Element(String, Shape),
    /// Position along an axis that runs over rows: the constant with this name has the thread's
    /// first.
    RowPosition(String),
    /// Position along an axis that runs over columns: the constant with this name has the thread's
    /// first.
    ColumnPosition(String),
    /// Function application.
    Call(Function, Vec<Expr>),
    /// Operator between two values.
    Infix(Operator, Box<Expr>, Box<Expr>),
    /// Operator before a value.
    Prefix(Prefix, Box<Expr>),
    /// The second where the first holds, else the third.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Conversion.
    Cast(Cast, Box<Expr>),
}

impl Expr {
    /// A constant of the plan.
    pub fn name(text: impl Into<String>) -> Self {
        Expr::Name(text.into())
    }

    /// A run-time size or a scalar.
    pub fn param(name: impl Into<String>) -> Self {
        Expr::Param(Param::Value(name.into()))
    }

    /// Function application; the least and the most of two integer constants are folded.
    pub fn call(function: Function, operands: impl Into<Vec<Expr>>) -> Self {
        let operands = operands.into();
        match (function, &operands[..]) {
            (Function::Least, &[Expr::Int(a), Expr::Int(b)]) => Expr::Int(a.min(b)),
            (Function::Most, &[Expr::Int(a), Expr::Int(b)]) => Expr::Int(a.max(b)),
            _ => Expr::Call(function, operands),
        }
    }

    /// Operator before a value.
    pub fn prefix(operator: Prefix, x: Expr) -> Self {
        Expr::Prefix(operator, Box::new(x))
    }

    /// Conversion.
    pub fn cast(self, to: Cast) -> Self {
        Expr::Cast(to, Box::new(self))
    }

    /// Operator between two values; integer constants are folded.
    pub fn infix(operator: Operator, lhs: Expr, rhs: Expr) -> Self {
        match (operator, &lhs, &rhs) {
            (Operator::Add, Expr::Int(a), Expr::Int(b)) => return Expr::Int(a + b),
            (Operator::Sub, Expr::Int(a), Expr::Int(b)) => return Expr::Int(a - b),
            (Operator::Mul, Expr::Int(a), Expr::Int(b)) => return Expr::Int(a * b),
            (Operator::Mul, Expr::Int(0), _) | (Operator::Mul, _, Expr::Int(0)) => return Expr::Int(0),
            (Operator::Add | Operator::Sub, _, Expr::Int(0)) | (Operator::Mul | Operator::Div, _, Expr::Int(1)) => return lhs,
            (Operator::Add, Expr::Int(0), _) | (Operator::Mul, Expr::Int(1), _) => return rhs,
            _ => {}
        }
        Expr::Infix(operator, Box::new(lhs), Box::new(rhs))
    }

    /// The same integer expression, computed in 64 bits: leaves are widened, and so are all
    /// operations on them.
    pub fn wide(self) -> Self {
        match self {
            Expr::Int(_) | Expr::Cast(Cast::Wide, _) => self,
            Expr::Infix(operator @ (Operator::Add | Operator::Sub | Operator::Mul | Operator::Div | Operator::Rem), a, b) => {
                Expr::Infix(operator, Box::new(a.wide()), Box::new(b.wide()))
            }
            Expr::Prefix(Prefix::Neg, x) => Expr::prefix(Prefix::Neg, x.wide()),
            Expr::Call(function, operands) => match function.wide() {
                Some(wide) => Expr::Call(wide, operands.into_iter().map(Expr::wide).collect()),
                None => Expr::Call(function, operands).cast(Cast::Wide),
            },
            other => other.cast(Cast::Wide),
        }
    }

    /// Whether a first position is a multiple of 16 and the `first` one of the thread: less than 8 in
    /// rows, and even and less than 8 in columns.
    pub fn begins_at_sixteens(&self, first: Builtin) -> bool {
        fn is_of_sixteens(e: &Expr) -> bool {
            match e {
                Expr::Infix(Operator::Add, a, b) => is_of_sixteens(a) && is_of_sixteens(b),
                Expr::Infix(Operator::Mul, _, by) => matches!(by.as_ref(), Expr::Int(by) if by % 16 == 0),
                Expr::Int(n) => n % 16 == 0,
                _ => false,
            }
        }
        match self {
            Expr::Infix(Operator::Add, a, b) => {
                a.begins_at_sixteens(first) && is_of_sixteens(b) || b.begins_at_sixteens(first) && is_of_sixteens(a)
            }
            e => *e == Expr::Builtin(first),
        }
    }

    /// Whether it depends on a position.
    pub fn has_position(&self) -> bool {
        let mut found = false;
        self.visit(&mut |e| found |= matches!(e, Expr::RowPosition(_) | Expr::ColumnPosition(_)));
        found
    }

    /// Calls `visit` with every operand.
    pub fn operands<'a>(&'a self, visit: &mut impl FnMut(&'a Expr)) {
        match self {
            Expr::Call(_, operands) => operands.iter().for_each(visit),
            Expr::Infix(_, a, b) => [a, b].into_iter().for_each(|e| visit(e)),
            Expr::Prefix(_, x) | Expr::Cast(_, x) => visit(x),
            Expr::Select(c, a, b) => [c, a, b].into_iter().for_each(|e| visit(e)),
            Expr::Float(_)
            | Expr::Int(_)
            | Expr::Name(_)
            | Expr::Param(_)
            | Expr::Builtin(_)
            | Expr::Element(..)
            | Expr::RowPosition(_)
            | Expr::ColumnPosition(_) => {}
        }
    }

    /// Every node, outermost first.
    pub fn visit<'a>(&'a self, visit: &mut impl FnMut(&'a Expr)) {
        fn walk<'a>(e: &'a Expr, visit: &mut dyn FnMut(&'a Expr)) {
            visit(e);
            e.operands(&mut |e| walk(e, visit));
        }
        walk(self, visit);
    }

    /// Every name of the plan in it, to change.
    pub fn names_mut(&mut self, change: &mut impl FnMut(&mut String)) {
        match self {
            Expr::Name(name) | Expr::Element(name, _) | Expr::RowPosition(name) | Expr::ColumnPosition(name) => change(name),
            Expr::Call(_, operands) => operands.iter_mut().for_each(|e| e.names_mut(change)),
            Expr::Infix(_, a, b) => [a, b].into_iter().for_each(|e| e.names_mut(change)),
            Expr::Prefix(_, x) | Expr::Cast(_, x) => x.names_mut(change),
            Expr::Select(c, a, b) => [c, a, b].into_iter().for_each(|e| e.names_mut(change)),
            Expr::Float(_) | Expr::Int(_) | Expr::Param(_) | Expr::Builtin(_) => {}
        }
    }

    /// The name of the plan that this node is, if it is one.
    pub fn own_name(&self) -> Option<&str> {
        match self {
            Expr::Name(name) | Expr::Element(name, _) | Expr::RowPosition(name) | Expr::ColumnPosition(name) => Some(name),
            _ => None,
        }
    }

    /// Whether it is a column position.
    pub fn is_column(&self) -> bool {
        matches!(self, Expr::ColumnPosition(_))
    }

    /// Whether it differs from column to column.
    pub fn has_column(&self) -> bool {
        let mut found = false;
        self.visit(&mut |e| found |= e.is_column() || matches!(e, Expr::Element(_, Shape::Column | Shape::Accumulator)));
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_expressions_compute_nothing_in_32_bits() {
        let product = Expr::infix(Operator::Mul, Expr::name("h"), Expr::param("G"));
        let share = Expr::call(Function::FloorDiv, [product, Expr::param("H")]);
        let index = Expr::infix(Operator::Add, share, Expr::Int(1)).wide();
        assert_eq!(index.to_string(), "floor_div_wide(wide(h) * wide(params.G), wide(params.H)) + 1");
        assert_eq!(index.clone().wide(), index);
    }
}
