//! Expressions of a plan in CUDA C: which registers of a thread an element is, how operators and
//! functions are written, and what functions need of the wrapper files.

use flashtile_templates::Wrapper;

use crate::names;
use crate::plan::{Builtin, Cast, Expr, Function, Operator, Param, Prefix, Shape, Storage, Variable};

/// What an expression is evaluated for: it decides how an element of a fragment is written.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Domain {
    /// One value per thread block.
    Uniform,
    /// Element `[mt][r]` of a row fragment.
    Row,
    /// Element `[nt][e]` of a column fragment.
    Column,
    /// Element `[mt][nt][e]` of an accumulator fragment.
    Accumulator,
    /// Pair `[mt][nt][r]` of an accumulator fragment, for packing: its lower (0) or upper (1)
    /// element.
    Pair(u8),
    /// Element `[vector_part][e]` of a vector that is spread over lanes.
    Lanes,
    /// Element `[piece][e]` of a thread's parts of the rows of a tile in shared memory.
    Part,
}

impl Domain {
    /// Whether columns from a thread's first on are constants of the code.
    fn has_constant_columns(self) -> bool {
        matches!(self, Domain::Column | Domain::Accumulator | Domain::Pair(_))
    }

    /// That in which elements of a fragment of this shape are evaluated.
    pub fn of(shape: Shape) -> Self {
        match shape {
            Shape::Uniform => Domain::Uniform,
            Shape::Row => Domain::Row,
            Shape::Column => Domain::Column,
            Shape::Accumulator => Domain::Accumulator,
        }
    }

    /// That in which elements of a variable are evaluated.
    pub fn of_variable(v: &Variable) -> Self {
        match v.storage {
            Storage::Fragment(shape) => Domain::of(shape),
            Storage::Packed => Domain::Pair(0),
            Storage::Lanes => Domain::Lanes,
            Storage::Flag => Domain::Uniform,
        }
    }
}

/// A function in C, and the wrappers that it needs.
fn function(f: Function) -> (&'static str, &'static [Wrapper]) {
    match f {
        Function::Ex2 => ("ex2", &[Wrapper::Ex2]),
        Function::Lg2 => ("lg2", &[Wrapper::Lg2]),
        Function::Reciprocal => ("rcp", &[Wrapper::Rcp]),
        Function::ReciprocalNormal => ("rcp_normal", &[Wrapper::RcpNormal]),
        Function::Tanh => ("tanh_accurate", &[Wrapper::Ex2, Wrapper::Tanh]),
        Function::TanhApprox => ("tanh_approx", &[Wrapper::TanhApprox]),
        Function::TanhAbsolute => ("tanh_absolute", &[Wrapper::Ex2, Wrapper::RcpNormal, Wrapper::TanhAbsolute]),
        Function::Sqrt => ("sqrtf", &[]),
        Function::Rsqrt => ("rsqrtf", &[]),
        Function::Sin => ("sine", &[Wrapper::Circle]),
        Function::Cos => ("cosine", &[Wrapper::Circle]),
        Function::Floor => ("floorf", &[]),
        Function::DivFull => ("div_full", &[Wrapper::DivFull]),
        Function::Abs => ("fabsf", &[]),
        Function::Max => ("fmax", &[Wrapper::Fmax]),
        Function::Min => ("fmin", &[Wrapper::Fmin]),
        Function::RoundedProduct => ("__fmul_rn", &[]),
        Function::MultiplyAdd => ("__fmaf_rn", &[]),
        Function::Most => ("most", &[Wrapper::Integer]),
        Function::Least => ("least", &[Wrapper::Integer]),
        Function::FloorDiv => ("floor_div", &[Wrapper::Integer]),
        Function::FloorRem => ("floor_rem", &[Wrapper::Integer]),
        Function::FloorDivSigned => ("floor_div_signed", &[Wrapper::IntegerSigned]),
        Function::FloorRemSigned => ("floor_rem_signed", &[Wrapper::IntegerSigned]),
        Function::MostWide => ("most_wide", &[Wrapper::IntegerWide]),
        Function::LeastWide => ("least_wide", &[Wrapper::IntegerWide]),
        Function::FloorDivWide => ("floor_div_wide", &[Wrapper::IntegerWide]),
        Function::FloorRemWide => ("floor_rem_wide", &[Wrapper::IntegerWide]),
        Function::WrapAdd => ("wrap_add", &[Wrapper::IntegerWrapping]),
        Function::WrapSub => ("wrap_sub", &[Wrapper::IntegerWrapping]),
        Function::WrapMul => ("wrap_mul", &[Wrapper::IntegerWrapping]),
        Function::MulHi => ("__umulhi", &[]),
        // A product.
        Function::Share => ("share", &[]),
        // A position.
        Function::Bits => ("bits", &[]),
        Function::VisibleOrZero => ("visible_or_zero", &[Wrapper::Infinite, Wrapper::VisibleOrZero]),
        Function::DivOrZero => ("div_or_zero", &[Wrapper::DivOrZero]),
        Function::TimesInverseOrZero => ("times_inverse_or_zero", &[Wrapper::DivOrZero]),
        Function::RoundF16 => ("widen", &[Wrapper::NarrowF16, Wrapper::Widen]),
        Function::RoundBf16 => ("widen", &[Wrapper::NarrowBf16, Wrapper::Widen]),
        Function::NarrowF16 => ("narrow_f16", &[Wrapper::NarrowF16]),
        Function::NarrowBf16 => ("narrow_bf16", &[Wrapper::NarrowBf16]),
        Function::Read => ("widen", &[Wrapper::Widen]),
        Function::TileLeast => ("tile_least", &[Wrapper::Integer, Wrapper::Widen, Wrapper::TileExtremes]),
        Function::TileMost => ("tile_most", &[Wrapper::Integer, Wrapper::Widen, Wrapper::TileExtremes]),
        Function::BlockLeast => {
            ("block_least", &[Wrapper::Integer, Wrapper::IntegerWide, Wrapper::Widen, Wrapper::BlockExtremes])
        }
        Function::BlockMost => ("block_most", &[Wrapper::Integer, Wrapper::IntegerWide, Wrapper::Widen, Wrapper::BlockExtremes]),
        Function::TilesMeeting => ("tiles_meeting", &[Wrapper::Integer, Wrapper::Search]),
        Function::TilesListed => ("tiles_listed", &[Wrapper::Integer, Wrapper::TilesListed]),
        Function::Nonzero => ("nonzero", &[Wrapper::Integer, Wrapper::Nonzero]),
        Function::TilesWithin => ("tiles_within", &[Wrapper::Integer, Wrapper::Search]),
    }
}

/// The wrappers that an expression needs.
pub(super) fn wrappers(e: &Expr) -> Vec<Wrapper> {
    let mut needed = Vec::new();
    e.visit(&mut |e| match e {
        Expr::Call(f, _) => needed.extend(function(*f).1),
        Expr::Float(x) if (*x as f32).is_infinite() => needed.push(Wrapper::Infinite),
        _ => {}
    });
    needed
}

/// The expression in C, for an element of `domain`.
pub(super) fn text(e: &Expr, domain: Domain) -> String {
    render(e, domain, 0)
}

/// A column within the thread's part of a row, and the variable with the part's first position.
fn column(position: &Expr, domain: Domain) -> (String, &str) {
    let Expr::ColumnPosition(first) = position else { unreachable!("a column position") };
    let column = match domain {
        Domain::Accumulator => "8 * nt + e % 2".to_owned(),
        Domain::Column => "8 * nt + e".to_owned(),
        Domain::Pair(e) => format!("8 * nt + {e}"),
        Domain::Part => "column + e".to_owned(),
        Domain::Row | Domain::Lanes | Domain::Uniform => unreachable!("a column position is evaluated for columns"),
    };
    (column, first)
}

/// An integer sum with positions of columns, which count once each: what it is at the first row and
/// column of the thread, and what is added to that, a constant of the code for each element.
fn apart_from_positions(e: &Expr, domain: Domain) -> Option<(Expr, String)> {
    fn walk(e: &Expr, domain: Domain, adds: bool, offset: &mut String) -> Option<Expr> {
        let mut further = |part: String| {
            let sign = if adds { '+' } else { '-' };
            offset.push_str(&format!(" {sign} ({part})"));
        };
        match e {
            Expr::ColumnPosition(_) => further(column(e, domain).0),
            Expr::RowPosition(_) => further(row(domain).to_owned()),
            Expr::Infix(operator @ (Operator::Add | Operator::Sub), a, b) => {
                let a = walk(a, domain, adds, offset)?;
                let b = walk(b, domain, adds == (*operator == Operator::Add), offset)?;
                return Some(Expr::infix(*operator, a, b));
            }
            _ => return (!e.has_column()).then(|| e.clone()),
        }
        let (Expr::ColumnPosition(first) | Expr::RowPosition(first)) = e else { unreachable!("a position") };
        Some(Expr::Name(first.clone()))
    }
    if !domain.has_constant_columns() || !e.has_column() {
        return None;
    }
    let mut offset = String::new();
    let rest = walk(e, domain, true, &mut offset)?;
    Some((rest, offset.trim_start_matches(" + ").trim_start().to_owned()))
}

/// A row within the thread's rows.
fn row(domain: Domain) -> &'static str {
    match domain {
        Domain::Accumulator => "16 * mt + 8 * (e / 2)",
        Domain::Row | Domain::Pair(_) => "16 * mt + 8 * r",
        Domain::Part => "row",
        Domain::Column | Domain::Lanes | Domain::Uniform => unreachable!("a row position is evaluated for rows"),
    }
}

fn builtin(b: Builtin) -> (&'static str, u8) {
    match b {
        Builtin::Block => ("(int)blockIdx.x", 16),
        Builtin::Program => ("program", 16),
        Builtin::FirstRow => ("first_row", 16),
        Builtin::FirstColumn => ("first_column", 16),
        Builtin::ColumnGroup => ("column_group", 16),
        Builtin::Row => ("row", 16),
        Builtin::Column => ("column + e", 12),
    }
}

/// Text with parentheses where the context binds tighter than `outer`.
fn render(e: &Expr, domain: Domain, outer: u8) -> String {
    let (text, precedence) = match e {
        Expr::Float(x) => (float_text(*x), if *x < 0.0 { 14 } else { 16 }),
        Expr::Int(x) => (x.to_string(), if *x < 0 { 14 } else { 16 }),
        Expr::Name(text) => (text.clone(), 16),
        Expr::Param(Param::Value(name) | Param::Address(name)) => (format!("params.{}", names::field(name)), 16),
        Expr::Param(Param::Stride(name, d)) => (format!("params.{}_stride{d}", names::field(name)), 16),
        Expr::Builtin(b) => {
            let (text, precedence) = builtin(*b);
            (text.to_owned(), precedence)
        }
        Expr::Element(name, shape) => (element_text(name, *shape, domain), 16),
        Expr::RowPosition(first) => (format!("{first} + {}", row(domain)), 12),
        Expr::ColumnPosition(_) => {
            let (column, first) = column(e, domain);
            (format!("{first} + {column}"), 12)
        }
        Expr::Call(Function::Share, operands) => return render(&share(operands), domain, outer),
        Expr::Call(Function::Bits, operands) => match bits(&operands[0], domain) {
            Some(text) => (text, Operator::BitOr.precedence()),
            None => return render(&operands[0], domain, outer),
        },
        Expr::Call(f, operands) => (call(*f, operands, domain), 16),
        // What is the same in all columns goes to one side, so that a column is compared as a
        // constant.
        Expr::Infix(operator, a, b) if operator.is_order() && a.is_column() && !b.has_column() => {
            let (column, first) = column(a, domain);
            (format!("{column} {} {} - {first}", operator.symbol(), render(b, domain, 12)), 10)
        }
        Expr::Infix(operator, a, b) if operator.is_order() && b.is_column() && !a.has_column() => {
            let (column, first) = column(b, domain);
            (format!("{} - {first} {} {column}", render(a, domain, 12), operator.symbol()), 10)
        }
        // Expressions have no effects: nothing is gained by a branch around the second.
        Expr::Infix(operator @ (Operator::And | Operator::Or), a, b) => {
            let operator = if *operator == Operator::And { Operator::BitAnd } else { Operator::BitOr };
            let (a, b) = (render(a, domain, 11), render(b, domain, 11));
            (format!("{a} {} {b}", operator.symbol()), operator.precedence())
        }
        Expr::Infix(operator, a, b) => {
            let p = operator.precedence();
            (format!("{} {} {}", render(a, domain, p), operator.symbol(), render(b, domain, p + 1)), p)
        }
        Expr::Prefix(operator, x) => {
            let symbol = if *operator == Prefix::Neg { '-' } else { '!' };
            (format!("{symbol}{}", render(x, domain, 15)), 14)
        }
        Expr::Cast(to, x) => {
            let name = match to {
                Cast::Float => "float",
                Cast::Int => "int",
                Cast::Wide => "i64",
            };
            // The same of a distance between positions as a number: it is converted once for all
            // elements, to which a constant is added. The sum is exact below 2^24, and else within a
            // rounding.
            let apart = if *to == Cast::Float { apart_from_positions(x, domain) } else { None };
            match apart {
                Some((rest, offset)) => (format!("({name}){} + ({name})({offset})", render(&rest, domain, 14)), 12),
                None => (format!("({name}){}", render(x, domain, 14)), 14),
            }
        }
        Expr::Select(c, a, b) => (format!("{} ? {} : {}", render(c, domain, 4), render(a, domain, 3), render(b, domain, 3)), 3),
    };
    if precedence < outer { format!("({text})") } else { text }
}

/// A position whose first one has bits clear that the elements of a thread have: by `|`, as the
/// compiler of CUDA C follows bits through no sum that is used more than once. None where elements
/// of a thread are not those of a fragment.
fn bits(position: &Expr, domain: Domain) -> Option<String> {
    let (first, tiles, within) = match (position, domain) {
        (Expr::RowPosition(first), Domain::Accumulator) => (first, "mt", "8 * (e / 2)".to_owned()),
        (Expr::RowPosition(first), Domain::Row | Domain::Pair(_)) => (first, "mt", "8 * r".to_owned()),
        (Expr::ColumnPosition(first), Domain::Accumulator) => (first, "(nt / 2)", "8 * (nt % 2) + e % 2".to_owned()),
        (Expr::ColumnPosition(first), Domain::Column) => (first, "(nt / 2)", "8 * (nt % 2) + e".to_owned()),
        (Expr::ColumnPosition(first), Domain::Pair(e)) => (first, "(nt / 2)", format!("8 * (nt % 2) + {e}")),
        _ => return None,
    };
    Some(format!("{first} + 16 * {tiles} | {within}"))
}

/// A part of a value as a product.
fn share(operands: &[Expr]) -> Expr {
    let [value, Expr::Int(count)] = operands else { unreachable!("the plan verifier wants a value and a number") };
    match value {
        Expr::Float(value) => Expr::Float(value / *count as f64),
        value => Expr::infix(Operator::Mul, value.clone(), Expr::Float(1.0 / *count as f64)),
    }
}

fn call(f: Function, operands: &[Expr], domain: Domain) -> String {
    let name = function(f).0;
    let all: Vec<_> = operands.iter().map(|e| render(e, domain, 0)).collect();
    match f {
        Function::RoundF16 => format!("{name}(narrow_f16({}))", all[0]),
        Function::RoundBf16 => format!("{name}(narrow_bf16({}))", all[0]),
        Function::Read => format!("{name}(*{})", render(&operands[0], domain, 15)),
        _ => format!("{name}({})", all.join(", ")),
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
pub(super) fn element_text(name: &str, shape: Shape, domain: Domain) -> String {
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
pub(super) fn each_text(domain: Domain, m_tiles: u32, n_tiles: u32) -> String {
    match domain {
        Domain::Uniform => String::new(),
        Domain::Row => format!("EACH(mt, {m_tiles}) EACH(r, 2) "),
        Domain::Column => format!("EACH(nt, {n_tiles}) EACH(e, 2) "),
        Domain::Accumulator => format!("EACH(mt, {m_tiles}) EACH(nt, {n_tiles}) EACH(e, 4) "),
        Domain::Pair(_) => format!("EACH(mt, {m_tiles}) EACH(nt, {n_tiles}) EACH(r, 2) "),
        Domain::Lanes => format!("EACH(vector_part, {}) EACH(e, 2) ", n_tiles.div_ceil(8)),
        Domain::Part => "EACH(e, WIDTH) ".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parentheses_only_where_needed() {
        let (a, b, c) = (Expr::name("a"), Expr::name("b"), Expr::name("c"));
        let uniform = |e: &Expr| text(e, Domain::Uniform);
        let sum = Expr::infix(Operator::Add, a.clone(), b.clone());
        assert_eq!(uniform(&Expr::infix(Operator::Mul, sum.clone(), c.clone())), "(a + b) * c");
        let nested = Expr::infix(Operator::Sub, a.clone(), Expr::infix(Operator::Sub, b, c));
        assert_eq!(uniform(&nested), "a - (b - c)");
        assert_eq!(uniform(&Expr::call(Function::Ex2, [sum])), "ex2(a + b)");
        assert_eq!(uniform(&Expr::prefix(Prefix::Neg, Expr::Float(-1.0))), "-(-1.0f)");
        let column = || Expr::ColumnPosition("j0".into());
        assert_eq!(text(&Expr::infix(Operator::Lt, column(), a.clone()), Domain::Accumulator), "8 * nt + e % 2 < a - j0");
        let one = Expr::infix(Operator::Eq, column(), Expr::Int(1));
        let both = Expr::infix(Operator::And, Expr::infix(Operator::Ge, a, column()), one);
        assert_eq!(text(&both, Domain::Accumulator), "(a - j0 >= 8 * nt + e % 2) & (j0 + 8 * nt + e % 2 == 1)");
    }

    #[test]
    fn distances_to_columns_are_converted_once_for_all_columns() {
        let (row, column) = (|| Expr::RowPosition("i0".into()), || Expr::ColumnPosition("j0".into()));
        let written = |e: Expr| text(&e.cast(Cast::Float), Domain::Accumulator);
        let distance = Expr::infix(Operator::Sub, row(), column());
        assert_eq!(written(distance.clone()), "(float)(i0 - j0) + (float)((16 * mt + 8 * (e / 2)) - (8 * nt + e % 2))");
        let back = Expr::infix(Operator::Sub, Expr::infix(Operator::Add, column(), Expr::Int(3)), row());
        assert_eq!(written(back), "(float)(j0 + 3 - i0) + (float)((8 * nt + e % 2) - (16 * mt + 8 * (e / 2)))");
        let less = Expr::infix(Operator::Sub, Expr::Int(1), column());
        assert_eq!(written(less), "(float)(1 - j0) + (float)(- (8 * nt + e % 2))");
        let product = Expr::infix(Operator::Mul, distance, Expr::Int(2));
        assert!(written(product).starts_with("(float)((i0"), "columns that do not count once are converted one by one");
        assert_eq!(text(&row().cast(Cast::Float), Domain::Row), "(float)(i0 + 16 * mt + 8 * r)");
    }

    #[test]
    fn bits_of_positions_are_told_apart() {
        let (row, column) = (Expr::RowPosition("i0".into()), Expr::ColumnPosition("j0".into()));
        let half = |of: Expr| Expr::infix(Operator::Shr, Expr::call(Function::Bits, [of]), Expr::Int(1));
        let written = |of: &Expr, domain| text(&half(of.clone()), domain);
        assert_eq!(written(&row, Domain::Accumulator), "(i0 + 16 * mt | 8 * (e / 2)) >> 1");
        assert_eq!(written(&row, Domain::Row), "(i0 + 16 * mt | 8 * r) >> 1");
        assert_eq!(written(&column, Domain::Accumulator), "(j0 + 16 * (nt / 2) | 8 * (nt % 2) + e % 2) >> 1");
        assert_eq!(written(&column, Domain::Pair(1)), "(j0 + 16 * (nt / 2) | 8 * (nt % 2) + 1) >> 1");
        assert_eq!(written(&column, Domain::Column), "(j0 + 16 * (nt / 2) | 8 * (nt % 2) + e) >> 1");
        assert_eq!(written(&column, Domain::Part), "j0 + column + e >> 1", "of a tile in shared memory");
    }

    #[test]
    fn floats_keep_their_value() {
        assert_eq!(float_text(std::f64::consts::LOG2_E), "1.442695f");
        assert_eq!("1.442695".parse::<f32>(), Ok(std::f64::consts::LOG2_E as f32));
        assert_eq!(float_text(1e-20), "1e-20f");
        assert_eq!(float_text(2.0), "2.0f");
    }
}
