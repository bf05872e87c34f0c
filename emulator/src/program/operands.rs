//! Operands of instructions: registers to rows, constants and special registers to rows of their own.

use std::collections::HashMap;

use super::kernel::Row;
use super::modifiers::unknown;
use crate::LoadError;
use crate::syntax::{Class, Instruction, KernelTree, Operand, Register, Space};

pub(super) type Result<T> = std::result::Result<T, LoadError>;

/// What decoding needs to know and what it adds: rows of constants.
pub(crate) struct Decoder<'a, 't> {
    pub kernel: &'a KernelTree<'t>,
    /// Address of each variable and parameter in its own space.
    pub symbols: &'a HashMap<&'t str, (Space, u64)>,
    /// Rows after those of the registers.
    pub words: Vec<Row>,
    pub doubles: Vec<(u64, bool)>,
    /// Predicates after the registers: false, true.
    pub constants: HashMap<(bool, u64), u32>,
}

impl<'t> Decoder<'_, 't> {
    pub fn operand<'i>(&self, i: &'i Instruction<'t>, n: usize) -> Result<&'i Operand<'t>> {
        i.operands.get(n).ok_or_else(|| unknown(i, &format!("operand {n} is missing")))
    }

    pub fn count(&self, i: &Instruction<'t>, counts: &[usize]) -> Result<()> {
        if counts.contains(&i.operands.len()) { Ok(()) } else { Err(unknown(i, &format!("{} operands", i.operands.len()))) }
    }

    fn constant(&mut self, value: u32) -> u32 {
        let first = self.kernel.registers[1];
        if let Some(&row) = self.constants.get(&(false, value.into())) {
            return row;
        }
        let row = self.row(Row::Constant(value));
        debug_assert!(row >= first);
        self.constants.insert((false, value.into()), row);
        row
    }

    fn row(&mut self, row: Row) -> u32 {
        if let Some(at) = self.words.iter().position(|r| *r == row) {
            return self.kernel.registers[1] + at as u32;
        }
        self.words.push(row);
        self.kernel.registers[1] + self.words.len() as u32 - 1
    }

    pub fn wide_constant(&mut self, value: u64) -> u32 {
        if let Some(&row) = self.constants.get(&(true, value)) {
            return row;
        }
        let row = self.wide_row((value, false));
        self.constants.insert((true, value), row);
        row
    }

    fn wide_row(&mut self, value: (u64, bool)) -> u32 {
        self.doubles.push(value);
        self.kernel.registers[2] + self.doubles.len() as u32 - 1
    }

    /// The address of a variable or parameter in its space. Of shared memory it is the block's own.
    fn wide_address(&mut self, space: Space, address: u64) -> u32 {
        if space != Space::Shared {
            return self.wide_constant(address);
        }
        match self.doubles.iter().position(|&d| d == (address, true)) {
            Some(at) => self.kernel.registers[2] + at as u32,
            None => self.wide_row((address, true)),
        }
    }

    /// A source of at most 32 bits.
    pub fn word_of(&mut self, i: &Instruction<'t>, operand: &Operand<'t>) -> Result<u32> {
        Ok(match operand {
            Operand::Register(Register { class: Class::Word | Class::Half, index }) => *index,
            Operand::Integer(n) => self.constant(*n as u32),
            Operand::Single(bits) => self.constant(*bits),
            Operand::Real(bits) => self.constant((f64::from_bits(*bits) as f32).to_bits()),
            Operand::Special(name) => match Row::special(name) {
                Some(row) => self.row(row),
                None => return Err(unknown(i, &format!("special register `{name}`"))),
            },
            Operand::Symbol(name) => match self.symbols.get(name) {
                Some(&(Space::Shared, address)) => self.row(Row::Shared(address as u32)),
                Some(&(_, address)) => self.constant(address as u32),
                None => return Err(LoadError::Undeclared { line: i.line, name: (*name).to_owned() }),
            },
            other => return Err(unknown(i, &format!("{other:?} is no 32-bit source"))),
        })
    }

    /// A 16-bit source: constants are cut.
    pub fn half_of(&mut self, i: &Instruction<'t>, operand: &Operand<'t>) -> Result<u32> {
        match operand {
            Operand::Integer(n) => Ok(self.constant((*n as u32) & 0xffff)),
            _ => self.word_of(i, operand),
        }
    }

    /// A 64-bit source.
    pub fn double_of(&mut self, i: &Instruction<'t>, operand: &Operand<'t>) -> Result<u32> {
        Ok(match operand {
            Operand::Register(Register { class: Class::Double, index }) => *index,
            Operand::Integer(n) => self.wide_constant(*n),
            Operand::Real(bits) => self.wide_constant(*bits),
            Operand::Symbol(name) => match self.symbols.get(name) {
                Some(&(space, address)) => self.wide_address(space, address),
                None => return Err(LoadError::Undeclared { line: i.line, name: (*name).to_owned() }),
            },
            Operand::Address { base, offset, .. } => match **base {
                Operand::Symbol(name) if self.symbols.contains_key(name) => {
                    let (space, address) = self.symbols[name];
                    self.wide_address(space, address.wrapping_add_signed(*offset))
                }
                _ => return Err(unknown(i, "its operand is no 64-bit source")),
            },
            other => return Err(unknown(i, &format!("{other:?} is no 64-bit source"))),
        })
    }

    pub fn word(&mut self, i: &Instruction<'t>, n: usize) -> Result<u32> {
        let operand = self.operand(i, n)?;
        self.word_of(i, operand)
    }

    pub fn double(&mut self, i: &Instruction<'t>, n: usize) -> Result<u32> {
        let operand = self.operand(i, n)?;
        self.double_of(i, operand)
    }

    pub fn predicate_of(&mut self, i: &Instruction<'t>, operand: &Operand<'t>) -> Result<u32> {
        match operand {
            Operand::Register(Register { class: Class::Predicate, index }) => Ok(*index),
            Operand::Integer(n) => Ok(self.kernel.registers[0] + u32::from(*n != 0)),
            other => Err(unknown(i, &format!("{other:?} is no predicate"))),
        }
    }

    pub fn predicate(&mut self, i: &Instruction<'t>, n: usize) -> Result<u32> {
        let operand = self.operand(i, n)?;
        self.predicate_of(i, operand)
    }

    /// A destination of at most 32 bits.
    pub fn to_word(&self, i: &Instruction<'t>, n: usize) -> Result<u32> {
        match self.operand(i, n)? {
            Operand::Register(Register { class: Class::Word | Class::Half, index }) => Ok(*index),
            other => Err(unknown(i, &format!("{other:?} is no 32-bit register"))),
        }
    }

    pub fn to_double(&self, i: &Instruction<'t>, n: usize) -> Result<u32> {
        match self.operand(i, n)? {
            Operand::Register(Register { class: Class::Double, index }) => Ok(*index),
            other => Err(unknown(i, &format!("{other:?} is no 64-bit register"))),
        }
    }

    pub fn to_predicate(&self, i: &Instruction<'t>, n: usize) -> Result<u32> {
        match self.operand(i, n)? {
            Operand::Register(Register { class: Class::Predicate, index }) => Ok(*index),
            other => Err(unknown(i, &format!("{other:?} is no predicate register"))),
        }
    }

    /// A constant operand.
    pub fn immediate(&self, i: &Instruction<'t>, n: usize) -> Result<u64> {
        match self.operand(i, n)? {
            Operand::Integer(value) => Ok(*value),
            other => Err(unknown(i, &format!("{other:?} is no constant"))),
        }
    }
}
