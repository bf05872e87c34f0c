//! CUDA C expressions as data, and their text.

/// What an expression is evaluated for: it decides how an element of a fragment is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Domain {
    /// One value per thread block.
    Uniform,
    /// Element `[mt][r]` of a row fragment.
    Row,
    /// Element `[nt][e]` of a column fragment.
    Column,
    /// Element `[mt][nt][e]` of an accumulator fragment.
    Accumulator,
    /// Pair `[mt][nt][r]` of an accumulator fragment, for packing: its lower (0) or upper (1) element.
    Pair(u8),
    /// Element `[piece][e]` of a thread's parts of the rows of a tile in shared memory.
    Part,
}

/// Shape of a fragment variable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shape {
    /// One value.
    Uniform,
    /// `[m_tiles][2]`.
    Row,
    /// `[n_tiles][2]`.
    Column,
    /// `[m_tiles][n_tiles][4]`.
    Accumulator,
}

/// Functions of the wrapper files.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Function {
    /// 2^x.
    Ex2,
    /// log2 x.
    Lg2,
    /// 1 / x.
    Reciprocal,
    /// 1 / x, for x of at least 1.
    ReciprocalNormal,
    /// tanh.
    Tanh,
    /// tanh to 2^-11.
    TanhApprox,
    /// tanh to an absolute error of 2^-22.
    TanhAbsolute,
    /// Quotient to two units in the last place.
    DivFull,
    /// |x|.
    Abs,
    /// Larger.
    Max,
    /// Smaller.
    Min,
    /// Product rounded by itself, never fused with a sum.
    RoundedProduct,
    /// `a * b + c`, rounded once.
    MultiplyAdd,
    /// Larger integer.
    Most,
    /// Smaller integer.
    Least,
    /// Integer division towards negative infinity, by what is positive.
    FloorDiv,
    /// Its remainder.
    FloorRem,
    /// [`Function::FloorDiv`] by what may be negative.
    FloorDivSigned,
    /// Its remainder, which has the sign of the divisor.
    FloorRemSigned,
    /// [`Function::Most`] in 64 bits.
    MostWide,
    /// [`Function::Least`] in 64 bits.
    LeastWide,
    /// [`Function::FloorDiv`] in 64 bits.
    FloorDivWide,
    /// [`Function::FloorRem`] in 64 bits.
    FloorRemWide,
    /// 0 where `-inf`.
    VisibleOrZero,
    /// Quotient, 0 for 0 / 0.
    DivOrZero,
    /// Product with a reciprocal, 0 for 0 * (1 / 0).
    TimesInverseOrZero,
    /// Rounds to f16 and back.
    RoundF16,
    /// Rounds to bf16 and back.
    RoundBf16,
    /// To f16.
    NarrowF16,
    /// To bf16.
    NarrowBf16,
    /// Widening read of a scalar element.
    Widen,
    /// A function of CUDA's own, of this name: it needs no wrapper.
    Library(&'static str),
}

impl Function {
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

    fn text(self) -> &'static str {
        match self {
            Function::Ex2 => "ex2",
            Function::Lg2 => "lg2",
            Function::Reciprocal => "rcp",
            Function::ReciprocalNormal => "rcp_normal",
            Function::Tanh => "tanh_accurate",
            Function::TanhApprox => "tanh_approx",
            Function::TanhAbsolute => "tanh_absolute",
            Function::DivFull => "div_full",
            Function::Abs => "fabsf",
            Function::Max => "fmax",
            Function::Min => "fmin",
            Function::RoundedProduct => "__fmul_rn",
            Function::MultiplyAdd => "__fmaf_rn",
            Function::Most => "most",
            Function::Least => "least",
            Function::FloorDiv => "floor_div",
            Function::FloorRem => "floor_rem",
            Function::FloorDivSigned => "floor_div_signed",
            Function::FloorRemSigned => "floor_rem_signed",
            Function::MostWide => "most_wide",
            Function::LeastWide => "least_wide",
            Function::FloorDivWide => "floor_div_wide",
            Function::FloorRemWide => "floor_rem_wide",
            Function::VisibleOrZero => "visible_or_zero",
            Function::DivOrZero => "div_or_zero",
            Function::TimesInverseOrZero => "times_inverse_or_zero",
            Function::RoundF16 | Function::RoundBf16 | Function::Widen => "widen",
            Function::NarrowF16 => "narrow_f16",
            Function::NarrowBf16 => "narrow_bf16",
            Function::Library(name) => name,
        }
    }
}

/// An expression.
#[derive(Clone, PartialEq, Debug)]
pub enum Expr {
    /// Float constant.
    Float(f64),
    /// Integer constant.
    Int(i64),
    /// A variable that is the same for all elements, or any other primary text.
    Name(String),
    /// An element of a fragment.
    Element(String, Shape),
    /// Position along an axis that runs over rows: the thread's first row is in the named variable.
    RowPosition(String),
    /// Position along an axis that runs over columns: the thread's first column is in the named variable.
    ColumnPosition(String),
    /// Function application.
    Call(Function, Vec<Expr>),
    /// C operator.
    Infix(&'static str, Box<Expr>, Box<Expr>),
    /// C prefix operator.
    Prefix(&'static str, Box<Expr>),
    /// `cond ? a : b`.
    Select(Box<Expr>, Box<Expr>, Box<Expr>),
    /// Conversion of an integer expression to float.
    ToFloat(Box<Expr>),
    /// Conversion of an expression to int, towards zero.
    ToInt(Box<Expr>),
    /// 64-bit conversion of an integer expression.
    ToWide(Box<Expr>),
}

impl Expr {
    /// A name.
    pub fn name(text: impl Into<String>) -> Self {
        Expr::Name(text.into())
    }

    /// Function of one operand.
    pub fn call(function: Function, operands: impl Into<Vec<Expr>>) -> Self {
        Expr::Call(function, operands.into())
    }

    /// Operator application; integer constants are folded.
    pub fn infix(operator: &'static str, lhs: Expr, rhs: Expr) -> Self {
        match (operator, &lhs, &rhs) {
            ("+", Expr::Int(a), Expr::Int(b)) => return Expr::Int(a + b),
            ("-", Expr::Int(a), Expr::Int(b)) => return Expr::Int(a - b),
            ("*", Expr::Int(a), Expr::Int(b)) => return Expr::Int(a * b),
            ("*", Expr::Int(0), _) | ("*", _, Expr::Int(0)) => return Expr::Int(0),
            ("+" | "-", _, Expr::Int(0)) | ("*" | "/", _, Expr::Int(1)) => return lhs,
            ("+", Expr::Int(0), _) | ("*", Expr::Int(1), _) => return rhs,
            _ => {}
        }
        Expr::Infix(operator, Box::new(lhs), Box::new(rhs))
    }

    /// The same integer expression, computed in 64 bits: leaves are widened, and so are all operations on them.
    pub fn wide(self) -> Self {
        match self {
            Expr::Int(_) | Expr::ToWide(_) => self,
            Expr::Infix(operator @ ("+" | "-" | "*" | "/" | "%"), a, b) => {
                Expr::Infix(operator, Box::new(a.wide()), Box::new(b.wide()))
            }
            Expr::Prefix("-", x) => Expr::Prefix("-", Box::new(x.wide())),
            Expr::Call(function, operands) => match function.wide() {
                Some(wide) => Expr::Call(wide, operands.into_iter().map(Expr::wide).collect()),
                None => Expr::ToWide(Box::new(Expr::Call(function, operands))),
            },
            other => Expr::ToWide(Box::new(other)),
        }
    }

    /// The expression in C, for an element of `domain`.
    pub fn text(&self, domain: Domain) -> String {
        self.render(domain, 0)
    }

    /// Every node, outermost first.
    pub fn visit(&self, visit: &mut impl FnMut(&Expr)) {
        visit(self);
        match self {
            Expr::Call(_, operands) => operands.iter().for_each(|e| e.visit(visit)),
            Expr::Infix(_, a, b) => {
                a.visit(visit);
                b.visit(visit);
            }
            Expr::Prefix(_, x) | Expr::ToFloat(x) | Expr::ToInt(x) | Expr::ToWide(x) => x.visit(visit),
            Expr::Select(c, a, b) => {
                c.visit(visit);
                a.visit(visit);
                b.visit(visit);
            }
            Expr::Float(_)
            | Expr::Int(_)
            | Expr::Name(_)
            | Expr::Element(..)
            | Expr::RowPosition(_)
            | Expr::ColumnPosition(_) => {}
        }
    }

    fn is_column(&self) -> bool {
        matches!(self, Expr::ColumnPosition(_))
    }

    fn has_column(&self) -> bool {
        let mut found = false;
        self.visit(&mut |e| found |= e.is_column() || matches!(e, Expr::Element(_, Shape::Column | Shape::Accumulator)));
        found
    }

    /// A column within the thread's part of a row, and the variable with the part's first position.
    fn column(&self, domain: Domain) -> (String, &str) {
        let Expr::ColumnPosition(first) = self else { unreachable!("a column position") };
        let column = match domain {
            Domain::Accumulator => "8 * nt + e % 2".to_owned(),
            Domain::Column => "8 * nt + e".to_owned(),
            Domain::Pair(e) => format!("8 * nt + {e}"),
            Domain::Part => "column + e".to_owned(),
            Domain::Row | Domain::Uniform => unreachable!("a column position is evaluated for columns"),
        };
        (column, first)
    }

    /// Text with parentheses where the context binds tighter than `outer`.
    fn render(&self, domain: Domain, outer: u8) -> String {
        let (text, precedence) = match self {
            Expr::Float(x) => (float_text(*x), if *x < 0.0 { 14 } else { 16 }),
            Expr::Int(x) => (x.to_string(), if *x < 0 { 14 } else { 16 }),
            Expr::Name(text) => (text.clone(), 16),
            Expr::Element(name, shape) => (element_text(name, *shape, domain), 16),
            Expr::RowPosition(first) => (
                match domain {
                    Domain::Accumulator => format!("{first} + 16 * mt + 8 * (e / 2)"),
                    Domain::Row | Domain::Pair(_) => format!("{first} + 16 * mt + 8 * r"),
                    Domain::Part => format!("{first} + row"),
                    Domain::Column | Domain::Uniform => unreachable!("a row position is evaluated for rows"),
                },
                12,
            ),
            Expr::ColumnPosition(_) => {
                let (column, first) = self.column(domain);
                (format!("{first} + {column}"), 12)
            }
            Expr::Call(function @ (Function::RoundF16 | Function::RoundBf16), operands) => {
                let narrow = if *function == Function::RoundF16 { Function::NarrowF16 } else { Function::NarrowBf16 };
                (format!("widen({}({}))", narrow.text(), operands[0].render(domain, 0)), 16)
            }
            Expr::Call(function, operands) => {
                let operands: Vec<_> = operands.iter().map(|e| e.render(domain, 0)).collect();
                (format!("{}({})", function.text(), operands.join(", ")), 16)
            }
            // What is the same in all columns goes to one side, so that a column is compared as a constant.
            Expr::Infix(operator @ ("<" | "<=" | ">" | ">="), a, b) if a.is_column() && !b.has_column() => {
                let (column, first) = a.column(domain);
                (format!("{column} {operator} {} - {first}", b.render(domain, 12)), 10)
            }
            Expr::Infix(operator @ ("<" | "<=" | ">" | ">="), a, b) if b.is_column() && !a.has_column() => {
                let (column, first) = b.column(domain);
                (format!("{} - {first} {operator} {column}", a.render(domain, 12)), 10)
            }
            // Expressions have no effects: nothing is gained by a branch around the second.
            Expr::Infix(operator @ ("&&" | "||"), a, b) => {
                let (operator, p) = if *operator == "&&" { ("&", 8) } else { ("|", 6) };
                (format!("{} {operator} {}", a.render(domain, 11), b.render(domain, 11)), p)
            }
            Expr::Infix(operator, a, b) => {
                let p = infix_precedence(operator);
                (format!("{} {operator} {}", a.render(domain, p), b.render(domain, p + 1)), p)
            }
            Expr::Prefix(operator, x) => (format!("{operator}{}", x.render(domain, 15)), 14),
            Expr::ToFloat(x) => (format!("(float){}", x.render(domain, 14)), 14),
            Expr::ToInt(x) => (format!("(int){}", x.render(domain, 14)), 14),
            Expr::ToWide(x) => (format!("(i64){}", x.render(domain, 14)), 14),
            Expr::Select(c, a, b) => (format!("{} ? {} : {}", c.render(domain, 4), a.render(domain, 3), b.render(domain, 3)), 3),
        };
        if precedence < outer { format!("({text})") } else { text }
    }
}

fn infix_precedence(operator: &str) -> u8 {
    match operator {
        "*" | "/" | "%" => 13,
        "+" | "-" => 12,
        "<<" | ">>" => 11,
        "<" | "<=" | ">" | ">=" => 10,
        "==" | "!=" => 9,
        "&" => 8,
        "^" => 7,
        "|" => 6,
        other => unreachable!("no operator {other} is emitted"),
    }
}

/// A float literal that reads back to the same f32.
fn float_text(x: f64) -> String {
    let x = x as f32;
    if x.is_infinite() {
        return if x > 0.0 { "INFINITE" } else { "-INFINITE" }.into();
    }
    let mut text = format!("{x:?}");
    if !text.contains(['.', 'e']) {
        text.push_str(".0");
    }
    text + "f"
}

/// How an element of the fragment `name` is written for an element of `domain`.
pub fn element_text(name: &str, shape: Shape, domain: Domain) -> String {
    match (shape, domain) {
        (Shape::Uniform, _) => name.to_owned(),
        (Shape::Row, Domain::Row | Domain::Pair(_)) => format!("{name}[mt][r]"),
        (Shape::Row, Domain::Accumulator) => format!("{name}[mt][e / 2]"),
        (Shape::Column, Domain::Column) => format!("{name}[nt][e]"),
        (Shape::Column, Domain::Accumulator) => format!("{name}[nt][e % 2]"),
        (Shape::Column, Domain::Pair(e)) => format!("{name}[nt][{e}]"),
        (Shape::Accumulator, Domain::Accumulator) => format!("{name}[mt][nt][e]"),
        (Shape::Accumulator, Domain::Pair(e)) => format!("{name}[mt][nt][2 * r + {e}]"),
        (Shape::Row, Domain::Part) => format!("{name}[piece]"),
        (Shape::Column, Domain::Part) => format!("{name}[piece][e]"),
        (Shape::Accumulator, Domain::Part) => format!("{name}[piece][e]"),
        (shape, domain) => unreachable!("a {shape:?} fragment is not evaluated for {domain:?}"),
    }
}

/// The `EACH` loops over the elements of a domain.
pub fn each_text(domain: Domain, m_tiles: u32, n_tiles: u32) -> String {
    match domain {
        Domain::Uniform => String::new(),
        Domain::Row => format!("EACH(mt, {m_tiles}) EACH(r, 2) "),
        Domain::Column => format!("EACH(nt, {n_tiles}) EACH(e, 2) "),
        Domain::Accumulator => format!("EACH(mt, {m_tiles}) EACH(nt, {n_tiles}) EACH(e, 4) "),
        Domain::Pair(_) => format!("EACH(mt, {m_tiles}) EACH(nt, {n_tiles}) EACH(r, 2) "),
        Domain::Part => "EACH(e, WIDTH) ".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_only_where_needed() {
        let (a, b, c) = (Expr::name("a"), Expr::name("b"), Expr::name("c"));
        let sum = Expr::infix("+", a.clone(), b.clone());
        assert_eq!(Expr::infix("*", sum.clone(), c.clone()).text(Domain::Uniform), "(a + b) * c");
        assert_eq!(Expr::infix("-", a.clone(), Expr::infix("-", b, c)).text(Domain::Uniform), "a - (b - c)");
        assert_eq!(Expr::call(Function::Ex2, [sum]).text(Domain::Uniform), "ex2(a + b)");
        assert_eq!(Expr::Prefix("-", Box::new(Expr::Float(-1.0))).text(Domain::Uniform), "-(-1.0f)");
        let column = || Expr::ColumnPosition("j0".into());
        assert_eq!(Expr::infix("<", column(), a.clone()).text(Domain::Accumulator), "8 * nt + e % 2 < a - j0");
        let both = Expr::infix("&&", Expr::infix(">=", a, column()), Expr::infix("==", column(), Expr::Int(1)));
        assert_eq!(both.text(Domain::Accumulator), "(a - j0 >= 8 * nt + e % 2) & (j0 + 8 * nt + e % 2 == 1)");
    }

    #[test]
    fn wide_expressions_compute_nothing_in_32_bits() {
        let product = Expr::infix("*", Expr::name("h"), Expr::name("params.G"));
        let share = Expr::call(Function::FloorDiv, [product, Expr::name("params.H")]);
        let index = Expr::infix("+", share, Expr::Int(1)).wide();
        assert_eq!(index.text(Domain::Uniform), "floor_div_wide((i64)h * (i64)params.G, (i64)params.H) + 1");
        assert_eq!(index.clone().wide(), index);
    }

    #[test]
    fn floats_keep_their_value() {
        assert_eq!(float_text(std::f64::consts::LOG2_E), "1.442695f");
        assert_eq!("1.442695".parse::<f32>(), Ok(std::f64::consts::LOG2_E as f32));
        assert_eq!(float_text(1e-20), "1e-20f");
        assert_eq!(float_text(2.0), "2.0f");
    }
}
