//! Instructions of the tree to operations: dispatch, arithmetic, conversions and control. Memory and tensor instructions are
//! in files of their own, as are operands.

use super::modifiers::{Modifiers, Type, unknown};
use super::operands::{Decoder, Result};
use super::operation::*;
use crate::LoadError;
use crate::memory::windows;
use crate::syntax::{Class, Instruction, Operand, Register};

impl<'t> Decoder<'_, 't> {
    /// Decodes one instruction.
    pub fn decode(&mut self, i: &Instruction<'t>) -> Result<Op> {
        let m = Modifiers::new(i);
        let op = match m.name {
            "mov" => self.mov(i, &m)?,
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "min" | "max" | "and" | "or" | "xor" | "copysign" => {
                self.arithmetic(i, &m)?
            }
            "mul24" | "mad24" => return Err(unknown(i, "")),
            "not" | "neg" | "abs" | "rcp" | "sqrt" | "rsqrt" | "ex2" | "lg2" | "tanh" | "sin" | "cos" | "popc" | "clz"
            | "brev" | "bfind" => self.unary(i, &m)?,
            "shl" | "shr" => self.shift(i, &m)?,
            "shf" | "prmt" | "bfe" | "bfi" | "lop3" => self.bits(i, &m)?,
            "setp" | "set" | "testp" => self.compare(i, &m)?,
            "selp" => self.select(i, &m)?,
            "cvt" => self.convert(i, &m)?,
            "cvta" => self.window(i, &m)?,
            "bra" => {
                m.ignore(&["uni"]);
                let Some(Operand::Symbol(label)) = i.operands.first() else { return Err(unknown(i, "its operand is no label")) };
                match self.kernel.label(i.scope, label) {
                    Some(target) => Op::Branch { target },
                    None => return Err(LoadError::Undeclared { line: i.line, name: (*label).to_owned() }),
                }
            }
            "ret" | "exit" => {
                m.ignore(&["uni"]);
                Op::Exit
            }
            "trap" => Op::Trap,
            "griddepcontrol" if m.take("wait") => Op::AwaitLaunches,
            "setmaxnreg" => {
                m.types();
                m.ignore(&["sync", "aligned"]);
                let increase = m.any(&[("inc", true), ("dec", false)]).ok_or_else(|| unknown(i, "inc or dec"))?;
                match self.immediate(i, 0)? as u32 {
                    count @ 24..=256 if count % 8 == 0 => Op::SetRegisters { count, increase },
                    _ => return Err(unknown(i, "a number of registers that is no multiple of 8 from 24 to 256")),
                }
            }
            "nanosleep" | "prefetch" | "prefetchu" | "discard" | "pmevent" | "brkpt" | "griddepcontrol" => {
                m.types();
                m.ignore(&[
                    "global",
                    "L1",
                    "L2",
                    "tensormap",
                    "launch_dependents",
                    "L2::evict_last",
                    "L2::evict_normal",
                    "param",
                ]);
                Op::Nop
            }
            _ => match self.memory(i, &m)? {
                Some(op) => op,
                None => match self.tensor(i, &m)? {
                    Some(op) => op,
                    None => return Err(unknown(i, "")),
                },
            },
        };
        m.end()?;
        Ok(op)
    }

    fn mov(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[2])?;
        let of = m.one_type()?;
        match (self.operand(i, 0)?, self.operand(i, 1)?) {
            (Operand::Vector(parts), _) => {
                let [d0, d1] = self.pair(i, parts, true)?;
                Ok(match of.bytes() {
                    4 => Op::SplitHalves { d: [d0, d1], a: self.word(i, 1)? },
                    8 => Op::SplitWords { d: [d0, d1], ax: self.double(i, 1)? },
                    _ => return Err(unknown(i, "vector of this type")),
                })
            }
            (_, Operand::Vector(parts)) => {
                let [a, b] = self.pair(i, parts, false)?;
                Ok(match of.bytes() {
                    4 => Op::JoinHalves { d: self.to_word(i, 0)?, a, b },
                    8 => Op::JoinWords { dx: self.to_double(i, 0)?, a, b },
                    _ => return Err(unknown(i, "vector of this type")),
                })
            }
            _ if of == Type::Predicate => {
                let dp = self.to_predicate(i, 0)?;
                Ok(match self.operand(i, 1)? {
                    Operand::Integer(n) => Op::SetPredicate { dp, value: *n != 0 },
                    _ => Op::MovePredicate { dp, ap: self.predicate(i, 1)? },
                })
            }
            _ if of.bytes() == 8 => Ok(Op::MoveWide { dx: self.to_double(i, 0)?, ax: self.double(i, 1)? }),
            (_, operand) => {
                let a = if of.bytes() == 2 { self.half_of(i, operand)? } else { self.word_of(i, operand)? };
                Ok(Op::Move { d: self.to_word(i, 0)?, a })
            }
        }
    }

    fn pair(&mut self, i: &Instruction<'t>, parts: &[Operand<'t>], into: bool) -> Result<[u32; 2]> {
        let [a, b] = parts else { return Err(unknown(i, "vectors of two are expected")) };
        let mut one = |part: &Operand<'t>| match part {
            Operand::Sink if into => Ok(u32::MAX),
            part => self.word_of(i, part),
        };
        Ok([one(a)?, one(b)?])
    }

    fn arithmetic(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        let wide = m.take("wide");
        let high = m.take("hi");
        m.ignore(&["lo"]);
        let of = m.one_type()?;
        let flush = m.take("ftz");
        let nan = m.take("NaN");
        let saturate = m.take("sat");
        if of.bytes() == 0 {
            return self.predicate_logic(i, m);
        }
        if of == Type::F64 {
            // What the library's sine and cosine of large angles need.
            m.ignore(&["rn"]);
            if m.name != "mul" || flush || nan || saturate {
                return Err(unknown(i, "doubles"));
            }
            self.count(i, &[3])?;
            let (dx, ax, bx) = (self.to_double(i, 0)?, self.double(i, 1)?, self.double(i, 2)?);
            return Ok(Op::Wide { op: Wide::FloatMultiply, dx, ax, bx });
        }
        if matches!(of, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2) {
            return self.halves(i, m, of, flush || nan || saturate);
        }
        if of == Type::F32 {
            return self.float(i, m, flush, nan, saturate);
        }
        if wide {
            return self.multiply_wide(i, m, of);
        }
        if of.bytes() == 8 {
            return self.integers_of_64_bits(i, m, of.is_signed(), high);
        }
        if saturate {
            return Err(unknown(i, "modifier `.sat` of integers"));
        }
        self.integers(i, m, of, high)
    }

    /// Logic of predicates.
    fn predicate_logic(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        let op = match m.name {
            "and" => Logic::And,
            "or" => Logic::Or,
            "xor" => Logic::Xor,
            _ => return Err(unknown(i, "predicates")),
        };
        let (dp, ap, bp) = (self.to_predicate(i, 0)?, self.predicate(i, 1)?, self.predicate(i, 2)?);
        Ok(Op::PredicateLogic { op, dp, ap, bp })
    }

    /// Products of integers that are twice as wide as their factors.
    fn multiply_wide(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, of: Type) -> Result<Op> {
        let accumulate = m.name == "mad";
        self.count(i, &[if accumulate { 4 } else { 3 }])?;
        let signed = of.is_signed();
        Ok(match (of.bytes(), accumulate) {
            (4, _) => {
                let (dx, a, b) = (self.to_double(i, 0)?, self.word(i, 1)?, self.word(i, 2)?);
                let cx = if accumulate { Some(self.double(i, 3)?) } else { None };
                Op::MultiplyWide { dx, a, b, cx, signed }
            }
            (2, false) => Op::MultiplyHalves { d: self.to_word(i, 0)?, a: self.word(i, 1)?, b: self.word(i, 2)?, signed },
            _ => return Err(unknown(i, "")),
        })
    }

    /// Integers of 64 bits.
    fn integers_of_64_bits(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, signed: bool, high: bool) -> Result<Op> {
        if m.name == "mad" && !high {
            self.count(i, &[4])?;
            let [ax, bx, cx] = [self.double(i, 1)?, self.double(i, 2)?, self.double(i, 3)?];
            return Ok(Op::WideMultiplyAdd { dx: self.to_double(i, 0)?, ax, bx, cx });
        }
        let op = match (m.name, signed) {
            ("add", _) => Wide::Add,
            ("sub", _) => Wide::Subtract,
            ("mul", false) if high => Wide::MultiplyHighUnsigned,
            ("mul", true) if high => Wide::MultiplyHighSigned,
            ("mul", _) if !high => Wide::Multiply,
            ("div", false) => Wide::DivideUnsigned,
            ("div", true) => Wide::DivideSigned,
            ("rem", false) => Wide::RemainderUnsigned,
            ("rem", true) => Wide::RemainderSigned,
            ("min", false) => Wide::MinUnsigned,
            ("min", true) => Wide::MinSigned,
            ("max", false) => Wide::MaxUnsigned,
            ("max", true) => Wide::MaxSigned,
            ("and", _) => Wide::And,
            ("or", _) => Wide::Or,
            ("xor", _) => Wide::Xor,
            _ => return Err(unknown(i, "")),
        };
        self.count(i, &[3])?;
        Ok(Op::Wide { op, dx: self.to_double(i, 0)?, ax: self.double(i, 1)?, bx: self.double(i, 2)? })
    }

    /// Integers of 32 and of 16 bits.
    fn integers(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, of: Type, high: bool) -> Result<Op> {
        if m.name == "mad" && of.bytes() == 4 && !high {
            self.count(i, &[4])?;
            let (d, a, b, c) = (self.to_word(i, 0)?, self.word(i, 1)?, self.word(i, 2)?, self.word(i, 3)?);
            return Ok(Op::Ternary { op: Ternary::MultiplyAdd, flush: false, d, a, b, c });
        }
        if m.name == "mad" && of.bytes() == 2 && !high {
            self.count(i, &[4])?;
            let mut source = |n| self.operand(i, n).and_then(|operand| self.half_of(i, operand));
            let (a, b, c) = (source(1)?, source(2)?, source(3)?);
            return Ok(Op::Ternary { op: Ternary::MultiplyAddHalf, flush: false, d: self.to_word(i, 0)?, a, b, c });
        }
        let op = match (m.name, of.is_signed(), of.bytes()) {
            ("add", _, 4) => Binary::Add,
            ("sub", _, 4) => Binary::Subtract,
            ("mul", false, 4) if high => Binary::MultiplyHighUnsigned,
            ("mul", true, 4) if high => Binary::MultiplyHighSigned,
            ("mul", _, 4) => Binary::Multiply,
            ("add", _, 2) => Binary::AddHalf,
            ("sub", _, 2) => Binary::SubtractHalf,
            ("mul", false, 2) if high => Binary::MultiplyHighHalf,
            ("mul", _, 2) if !high => Binary::MultiplyHalf,
            ("div", false, _) => Binary::DivideUnsigned,
            ("div", true, 4) => Binary::DivideSigned,
            ("div", true, 2) => Binary::DivideSignedHalf,
            ("rem", false, _) => Binary::RemainderUnsigned,
            ("rem", true, 4) => Binary::RemainderSigned,
            ("rem", true, 2) => Binary::RemainderSignedHalf,
            ("min", false, _) => Binary::MinUnsigned,
            ("min", true, 4) => Binary::MinSigned,
            ("min", true, 2) => Binary::MinSignedHalf,
            ("max", false, _) => Binary::MaxUnsigned,
            ("max", true, 4) => Binary::MaxSigned,
            ("max", true, 2) => Binary::MaxSignedHalf,
            ("and", ..) => Binary::And,
            ("or", ..) => Binary::Or,
            ("xor", ..) => Binary::Xor,
            _ => return Err(unknown(i, "")),
        };
        self.count(i, &[3])?;
        let half = of.bytes() == 2;
        let mut source = |n| {
            let operand = self.operand(i, n)?;
            if half { self.half_of(i, operand) } else { self.word_of(i, operand) }
        };
        let (a, b) = (source(1)?, source(2)?);
        Ok(Op::Binary { op, flush: false, d: self.to_word(i, 0)?, a, b })
    }

    fn float(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, flush: bool, nan: bool, saturate: bool) -> Result<Op> {
        // Rounding to nearest is the default; `approx` and `full` are rounded correctly, which is within their error.
        if m.any(&[("rz", ()), ("rm", ()), ("rp", ())]).is_some() {
            return Err(unknown(i, "this rounding"));
        }
        m.ignore(&["rn", "approx", "full"]);
        if matches!(m.name, "fma" | "mad") {
            self.count(i, &[4])?;
            let (d, a, b, c) = (self.to_word(i, 0)?, self.word(i, 1)?, self.word(i, 2)?, self.word(i, 3)?);
            let op = if saturate { Ternary::FloatMultiplyAddSaturated } else { Ternary::FloatMultiplyAdd };
            return Ok(Op::Ternary { op, flush, d, a, b, c });
        }
        self.count(i, &[3])?;
        let op = match (m.name, nan) {
            ("add", false) => Binary::FloatAdd,
            ("sub", false) => Binary::FloatSubtract,
            ("mul", false) => Binary::FloatMultiply,
            ("div", false) => Binary::FloatDivide,
            ("min", false) => Binary::FloatMin,
            ("max", false) => Binary::FloatMax,
            ("min", true) => Binary::FloatMinNan,
            ("max", true) => Binary::FloatMaxNan,
            ("copysign", false) => Binary::CopySign,
            _ => return Err(unknown(i, "")),
        };
        if saturate {
            return Err(unknown(i, "modifier `.sat`"));
        }
        Ok(Op::Binary { op, flush, d: self.to_word(i, 0)?, a: self.word(i, 1)?, b: self.word(i, 2)? })
    }

    fn halves(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>, of: Type, modified: bool) -> Result<Op> {
        m.ignore(&["rn"]);
        let op = match m.name {
            "add" => PairOp::Add,
            "sub" => PairOp::Subtract,
            "mul" => PairOp::Multiply,
            "min" => PairOp::Min,
            "max" => PairOp::Max,
            "fma" => PairOp::MultiplyAdd,
            _ => return Err(unknown(i, "")),
        };
        if modified {
            return Err(unknown(i, "a modifier of 16-bit floats"));
        }
        let of = if matches!(of, Type::F16 | Type::F16x2) { Number::F16 } else { Number::Bf16 };
        let (a, b) = (self.word(i, 1)?, self.word(i, 2)?);
        let c = if op == PairOp::MultiplyAdd { self.word(i, 3)? } else { a };
        Ok(Op::PairArithmetic { of, op, d: self.to_word(i, 0)?, a, b, c })
    }

    fn unary(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[2])?;
        let of = m.one_type()?;
        let flush = m.take("ftz");
        m.ignore(&["approx", "rn", "full"]);
        match (m.name, of) {
            ("not", Type::Predicate) => {
                return Ok(Op::PredicateNot { dp: self.to_predicate(i, 0)?, ap: self.predicate(i, 1)? });
            }
            ("not", of) if of.bytes() == 8 => return Ok(Op::WideNot { dx: self.to_double(i, 0)?, ax: self.double(i, 1)? }),
            ("neg", of) if of.bytes() == 8 && of != Type::F64 => {
                return Ok(Op::WideNegate { dx: self.to_double(i, 0)?, ax: self.double(i, 1)? });
            }
            _ => {}
        }
        let op = match (m.name, of, flush) {
            ("not", Type::Bits(2), _) => Unary::NotHalf,
            ("not", Type::Bits(4), _) => Unary::Not,
            ("neg", Type::Signed(2), _) => Unary::NegateHalf,
            ("abs", Type::Signed(2), _) => Unary::AbsoluteHalf,
            ("neg", Type::Signed(4), _) => Unary::Negate,
            ("abs", Type::Signed(4), _) => Unary::Absolute,
            ("neg", Type::F32, false) => Unary::FloatNegate,
            ("abs", Type::F32, false) => Unary::FloatAbsolute,
            ("popc", Type::Bits(4), _) => Unary::CountBits,
            ("clz", Type::Bits(4), _) => Unary::LeadingZeros,
            ("brev", Type::Bits(4), _) => Unary::Reverse,
            ("bfind", Type::Unsigned(4), _) if m.take("shiftamt") => Unary::ShiftToTop,
            ("bfind", Type::Unsigned(4), _) => Unary::TopBit,
            ("rcp", Type::F32, false) => Unary::Reciprocal,
            ("rcp", Type::F32, true) => Unary::ReciprocalFlush,
            ("sqrt", Type::F32, false) => Unary::SquareRoot,
            ("rsqrt", Type::F32, false) => Unary::ReciprocalRoot,
            ("ex2", Type::F32, false) => Unary::Exp2,
            ("ex2", Type::F32, true) => Unary::Exp2Flush,
            ("lg2", Type::F32, false) => Unary::Log2,
            ("lg2", Type::F32, true) => Unary::Log2Flush,
            ("tanh", Type::F32, false) => Unary::Tanh,
            ("sin", Type::F32, false) => Unary::Sine,
            ("cos", Type::F32, false) => Unary::Cosine,
            _ => return Err(unknown(i, "")),
        };
        Ok(Op::Unary { op, d: self.to_word(i, 0)?, a: self.word(i, 1)? })
    }

    fn shift(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[3])?;
        let of = m.one_type()?;
        let b = self.word(i, 2)?;
        if of.bytes() == 8 {
            let op = match (m.name, of.is_signed()) {
                ("shl", _) => Shift::Left,
                (_, false) => Shift::RightUnsigned,
                (_, true) => Shift::RightSigned,
            };
            return Ok(Op::Shift { op, dx: self.to_double(i, 0)?, ax: self.double(i, 1)?, b });
        }
        let op = match (m.name, of.is_signed(), of.bytes()) {
            ("shl", _, 4) => Binary::ShiftLeft,
            ("shl", _, 2) => Binary::ShiftLeftHalf,
            ("shr", false, _) => Binary::ShiftRightUnsigned,
            ("shr", true, 4) => Binary::ShiftRightSigned,
            ("shr", true, 2) => Binary::ShiftRightSignedHalf,
            _ => return Err(unknown(i, "")),
        };
        Ok(Op::Binary { op, flush: false, d: self.to_word(i, 0)?, a: self.word(i, 1)?, b })
    }

    fn bits(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        let direction = m.any(&[("l", Ternary::FunnelLeft), ("r", Ternary::FunnelRight)]);
        let wraps = m.take("wrap");
        let of = m.one_type()?;
        if m.name == "bfi" && of.bytes() == 8 {
            self.count(i, &[5])?;
            let (dx, ax, bx) = (self.to_double(i, 0)?, self.double(i, 1)?, self.double(i, 2)?);
            return Ok(Op::InsertWide { dx, ax, bx, c: self.word(i, 3)?, length: self.word(i, 4)? });
        }
        if of.bytes() != 4 {
            return Err(unknown(i, ""));
        }
        let (d, a, b, c) = (self.to_word(i, 0)?, self.word(i, 1)?, self.word(i, 2)?, self.word(i, 3)?);
        Ok(match (m.name, direction) {
            ("shf", Some(op)) if wraps => Op::Ternary { op, flush: false, d, a, b, c },
            ("prmt", None) => Op::Ternary { op: Ternary::Permute, flush: false, d, a, b, c },
            ("bfe", None) if of.is_signed() => Op::Ternary { op: Ternary::ExtractSigned, flush: false, d, a, b, c },
            ("bfe", None) => Op::Ternary { op: Ternary::ExtractUnsigned, flush: false, d, a, b, c },
            ("bfi", None) => Op::Insert { d, a, b, c, length: self.word(i, 4)? },
            ("lop3", None) => Op::Logic3 { d, a, b, c, table: self.immediate(i, 4)? as u8 },
            _ => return Err(unknown(i, "")),
        })
    }

    fn compare(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        use Compare::{Equal, Greater, GreaterEqual, Less, LessEqual, NotEqual};
        let comparisons = [
            ("eq", (Equal, false)),
            ("ne", (NotEqual, false)),
            ("lt", (Less, false)),
            ("le", (LessEqual, false)),
            ("gt", (Greater, false)),
            ("ge", (GreaterEqual, false)),
            ("equ", (Equal, true)),
            ("neu", (NotEqual, true)),
            ("ltu", (Less, true)),
            ("leu", (LessEqual, true)),
            ("gtu", (Greater, true)),
            ("geu", (GreaterEqual, true)),
            ("lo", (Less, false)),
            ("ls", (LessEqual, false)),
            ("hi", (Greater, false)),
            ("hs", (GreaterEqual, false)),
        ];
        let types = m.types();
        if m.take("ftz") {
            return Err(unknown(i, "modifier `.ftz`"));
        }
        let numbers = m.any(&[("num", Comparable::FloatNumbers), ("nan", Comparable::FloatNan)]);
        let (compare, unordered) =
            if numbers.is_some() { (Equal, false) } else { m.any(&comparisons).ok_or_else(|| unknown(i, "the comparison"))? };
        let logic = m.any(&[("and", Logic::And), ("or", Logic::Or), ("xor", Logic::Xor)]);
        let of = *types.last().ok_or_else(|| unknown(i, "no type"))?;
        let comparable = match of {
            Type::F32 => numbers.unwrap_or(if unordered { Comparable::FloatUnordered } else { Comparable::Float }),
            Type::Signed(8) => Comparable::SignedWide,
            Type::Unsigned(8) | Type::Bits(8) => Comparable::UnsignedWide,
            Type::Signed(2) => Comparable::SignedHalf,
            Type::Signed(_) => Comparable::Signed,
            Type::Unsigned(_) | Type::Bits(_) => Comparable::Unsigned,
            _ => return Err(unknown(i, "")),
        };
        let wide = of.bytes() == 8;
        let half = of.bytes() == 2;
        let mut source = |n| {
            let operand = self.operand(i, n)?;
            if wide {
                self.double_of(i, operand)
            } else if half {
                self.half_of(i, operand)
            } else {
                self.word_of(i, operand)
            }
        };
        let (a, b) = (source(1)?, source(2)?);
        if m.name == "set" {
            self.count(i, &[3])?;
            let float = match types[..] {
                [Type::F32, _] => true,
                [Type::Unsigned(4) | Type::Signed(4), _] => false,
                _ => return Err(unknown(i, "")),
            };
            return Ok(Op::Set { compare, of: comparable, d: self.to_word(i, 0)?, a, b, float });
        }
        if m.name != "setp" || types.len() != 1 {
            return Err(unknown(i, ""));
        }
        let (dp, complement) = match self.operand(i, 0)? {
            Operand::Pair(Register { class: Class::Predicate, index: p }, Register { class: Class::Predicate, index: q }) => {
                (*p, Some(*q))
            }
            _ => (self.to_predicate(i, 0)?, None),
        };
        let with = match (logic, i.operands.get(3)) {
            (None, None) => None,
            (Some(logic), Some(Operand::Not(Register { class: Class::Predicate, index }))) => Some((logic, *index, true)),
            (Some(logic), Some(operand)) => Some((logic, self.predicate_of(i, operand)?, false)),
            _ => return Err(unknown(i, "its fourth operand")),
        };
        Ok(Op::SetP { compare, of: comparable, dp, complement, a, b, with })
    }

    fn select(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[4])?;
        let of = m.one_type()?;
        let p = self.predicate(i, 3)?;
        if of.bytes() == 8 {
            return Ok(Op::SelectWide { dx: self.to_double(i, 0)?, ax: self.double(i, 1)?, bx: self.double(i, 2)?, p });
        }
        let half = of.bytes() == 2;
        let mut source = |n| {
            let operand = self.operand(i, n)?;
            if half { self.half_of(i, operand) } else { self.word_of(i, operand) }
        };
        let (a, b) = (source(1)?, source(2)?);
        Ok(Op::Select { d: self.to_word(i, 0)?, a, b, p })
    }

    fn convert(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        let types = m.types();
        let nearest_away = m.take("rna");
        let (rounding, integral) = m.rounding();
        let saturate = m.take("sat");
        let flush = m.take("ftz");
        let relu = m.take("relu");
        let [to, from] = types[..] else { return Err(unknown(i, "two types are expected")) };
        if to == Type::Tf32 && from == Type::F32 && nearest_away {
            return Ok(Op::RoundTf32 { d: self.to_word(i, 0)?, a: self.word(i, 1)? });
        }
        if nearest_away {
            return Err(unknown(i, "modifier `.rna`"));
        }
        if matches!(to, Type::F16x2 | Type::Bf16x2) && from == Type::F32 && rounding == Some(Rounding::Nearest) {
            self.count(i, &[3])?;
            let to = if to == Type::F16x2 { Number::F16 } else { Number::Bf16 };
            return Ok(Op::Pack { to, d: self.to_word(i, 0)?, a: self.word(i, 1)?, b: self.word(i, 2)?, relu });
        }
        self.count(i, &[2])?;
        if rounding == Some(Rounding::Nearest) && !integral && !saturate && !flush && !relu {
            match (to, from) {
                (Type::F16x2, Type::E4m3x2 | Type::E5m2x2) => {
                    let of = if from == Type::E4m3x2 { SmallFloat::E4m3 } else { SmallFloat::E5m2 };
                    return Ok(Op::WidenPair { of, d: self.to_word(i, 0)?, a: self.word(i, 1)? });
                }
                (Type::F64, Type::Signed(8) | Type::Unsigned(8)) => {
                    let (dx, ax) = (self.to_double(i, 0)?, self.double(i, 1)?);
                    return Ok(Op::DoubleOfInteger { dx, ax, signed: from.is_signed() });
                }
                (Type::F32, Type::F64) => return Ok(Op::FloatOfDouble { d: self.to_word(i, 0)?, ax: self.double(i, 1)? }),
                _ => {}
            }
        }
        let (Some(to), Some(from)) = (to.number(), from.number()) else { return Err(unknown(i, "this conversion")) };
        if relu {
            return Err(unknown(i, "modifier `.relu`"));
        }
        let wide = |n: Number| matches!(n, Number::Unsigned(8) | Number::Signed(8));
        let integer = |n: Number| matches!(n, Number::Unsigned(_) | Number::Signed(_));
        // The register of a 32-bit conversion may be 64 bits wide, of which the lower half counts.
        let class = |operand: &Operand<'_>| matches!(operand, Operand::Register(Register { class: Class::Double, .. }));
        let (to_double, from_double) = (class(self.operand(i, 0)?), class(self.operand(i, 1)?));
        if wide(to) || wide(from) {
            // Of a wider register the lower bits count.
            if !integer(to) || !integer(from) || wide(to) != to_double || (wide(from) && !from_double) {
                return Err(unknown(i, "this conversion"));
            }
            let d = if to_double { self.to_double(i, 0)? } else { self.to_word(i, 0)? };
            let a = if from_double { self.double(i, 1)? } else { self.word(i, 1)? };
            return Ok(Op::ConvertIntegerWide { to, from, saturate, d, a, from_double });
        }
        let rounding = match rounding {
            Some(r) => r,
            // Conversions that are exact take none.
            None if integer(to) == integer(from) => Rounding::Nearest,
            None => return Err(unknown(i, "a rounding is expected")),
        };
        if saturate && to == Number::Bf16 {
            return Err(unknown(i, "modifier `.sat`"));
        }
        Ok(Op::Convert { to, from, rounding, integral, saturate, flush, d: self.to_word(i, 0)?, a: self.word(i, 1)? })
    }

    fn window(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[2])?;
        let to = m.take("to");
        let space = m.space();
        if m.one_type()? != Type::Unsigned(8) {
            return Err(unknown(i, "only .u64"));
        }
        Ok(Op::Window { dx: self.to_double(i, 0)?, ax: self.double(i, 1)?, base: windows::base(space), to })
    }
}
