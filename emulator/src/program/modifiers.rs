//! An opcode's modifiers, taken one after another; what is left over at the end is not known.

use std::cell::RefCell;

use super::operation::{Number, Rounding};
use crate::LoadError;
use crate::syntax::{Instruction, Space};

/// A type as a modifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Type {
    Bits(u8),
    Unsigned(u8),
    Signed(u8),
    F16,
    Bf16,
    F16x2,
    Bf16x2,
    E4m3x2,
    E5m2x2,
    Tf32,
    F32,
    F64,
    Predicate,
}

impl Type {
    pub fn parse(word: &str) -> Option<Self> {
        let sized = |digits: &str| match digits {
            "8" => Some(1),
            "16" => Some(2),
            "32" => Some(4),
            "64" => Some(8),
            _ => None,
        };
        match word {
            "f16" => return Some(Type::F16),
            "bf16" => return Some(Type::Bf16),
            "f16x2" => return Some(Type::F16x2),
            "bf16x2" => return Some(Type::Bf16x2),
            "e4m3x2" => return Some(Type::E4m3x2),
            "e5m2x2" => return Some(Type::E5m2x2),
            "tf32" => return Some(Type::Tf32),
            "f32" => return Some(Type::F32),
            "f64" => return Some(Type::F64),
            "pred" => return Some(Type::Predicate),
            _ => {}
        }
        Some(match word.split_at_checked(1)? {
            ("b", digits) => Type::Bits(sized(digits)?),
            ("u", digits) => Type::Unsigned(sized(digits)?),
            ("s", digits) => Type::Signed(sized(digits)?),
            _ => return None,
        })
    }

    /// Bytes; 0 of predicates.
    pub fn bytes(self) -> u8 {
        match self {
            Type::Bits(n) | Type::Unsigned(n) | Type::Signed(n) => n,
            Type::F16 | Type::Bf16 | Type::E4m3x2 | Type::E5m2x2 => 2,
            Type::F16x2 | Type::Bf16x2 | Type::Tf32 | Type::F32 => 4,
            Type::F64 => 8,
            Type::Predicate => 0,
        }
    }

    pub fn is_signed(self) -> bool {
        matches!(self, Type::Signed(_))
    }

    /// As an operand of a conversion.
    pub fn number(self) -> Option<Number> {
        Some(match self {
            Type::Unsigned(n) | Type::Bits(n) => Number::Unsigned(n),
            Type::Signed(n) => Number::Signed(n),
            Type::F16 => Number::F16,
            Type::Bf16 => Number::Bf16,
            Type::F32 => Number::F32,
            _ => return None,
        })
    }
}

/// The parts of an opcode.
pub(crate) struct Modifiers<'i, 't> {
    instruction: &'i Instruction<'t>,
    /// First part, such as `add`.
    pub name: &'t str,
    parts: RefCell<Vec<&'t str>>,
}

impl<'i, 't> Modifiers<'i, 't> {
    pub fn new(instruction: &'i Instruction<'t>) -> Self {
        let mut parts = instruction.opcode.split('.');
        let name = parts.next().unwrap_or_default();
        Self { instruction, name, parts: RefCell::new(parts.collect()) }
    }

    /// Whether the modifier is there; takes it.
    pub fn take(&self, modifier: &str) -> bool {
        let mut parts = self.parts.borrow_mut();
        let at = parts.iter().position(|p| *p == modifier);
        if let Some(at) = at {
            parts.remove(at);
        }
        at.is_some()
    }

    /// Takes the first of these that is there.
    pub fn any<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        choices.iter().find(|(name, _)| self.take(name)).map(|&(_, value)| value)
    }

    /// Takes modifiers that change nothing here, such as cache hints.
    pub fn ignore(&self, modifiers: &[&str]) {
        self.parts.borrow_mut().retain(|p| !modifiers.contains(p));
    }

    /// The types, in order; takes them.
    pub fn types(&self) -> Vec<Type> {
        let mut types = vec![];
        self.parts.borrow_mut().retain(|part| match Type::parse(part) {
            Some(t) => {
                types.push(t);
                false
            }
            None => true,
        });
        types
    }

    /// The only type.
    pub fn one_type(&self) -> Result<Type, LoadError> {
        match self.types()[..] {
            [t] => Ok(t),
            _ => Err(self.unknown("exactly one type is expected")),
        }
    }

    /// The state space, generic if there is none.
    pub fn space(&self) -> Space {
        let spaces = [
            ("global", Space::Global),
            ("shared", Space::Shared),
            ("shared::cta", Space::Shared),
            ("shared::cluster", Space::Shared),
            ("local", Space::Local),
            ("param", Space::Param),
            ("param::entry", Space::Param),
            ("const", Space::Const),
        ];
        self.any(&spaces).unwrap_or(Space::Generic)
    }

    /// The rounding of a conversion to an integer or to a float; `integral` says which kind was found.
    pub fn rounding(&self) -> (Option<Rounding>, bool) {
        use Rounding::{Down, Nearest, Up, Zero};
        if let Some(r) = self.any(&[("rn", Nearest), ("rz", Zero), ("rm", Down), ("rp", Up)]) {
            return (Some(r), false);
        }
        match self.any(&[("rni", Nearest), ("rzi", Zero), ("rmi", Down), ("rpi", Up)]) {
            Some(r) => (Some(r), true),
            None => (None, false),
        }
    }

    /// Nothing may be left.
    pub fn end(&self) -> Result<(), LoadError> {
        match self.parts.borrow().first() {
            None => Ok(()),
            Some(part) => Err(self.unknown(&format!("modifier `.{part}`"))),
        }
    }

    pub fn unknown(&self, why: &str) -> LoadError {
        unknown(self.instruction, why)
    }
}

/// An error that names the instruction.
pub(crate) fn unknown(instruction: &Instruction<'_>, why: &str) -> LoadError {
    LoadError::UnknownInstruction { line: instruction.line, instruction: instruction.opcode.to_owned(), why: why.to_owned() }
}
