//! Warp-wide instructions: shuffles, votes, matrices and tensor products.

use super::modifiers::{Modifiers, Type, unknown};
use super::operands::{Decoder, Result};
use super::operation::*;
use crate::syntax::{Class, Instruction, Operand, Register, Space};

impl<'t> Decoder<'_, 't> {
    pub(super) fn tensor(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Option<Op>> {
        Ok(Some(match m.name {
            "shfl" => self.shuffle(i, m)?,
            "vote" => self.vote(i, m)?,
            "redux" => self.reduce(i, m)?,
            "elect" => {
                m.ignore(&["sync"]);
                let (d, dp) = match self.operand(i, 0)? {
                    Operand::Pair(a, b) if b.class == Class::Predicate => (Some(a.index), b.index),
                    _ => (None, self.to_predicate(i, 0)?),
                };
                Op::Elect { d, dp, members: self.word(i, 1)? }
            }
            "activemask" => {
                m.types();
                Op::ActiveMask { d: self.to_word(i, 0)? }
            }
            "ldmatrix" | "stmatrix" => self.matrix(i, m)?,
            "movmatrix" => {
                self.count(i, &[2])?;
                m.ignore(&["sync", "aligned", "m8n8", "trans", "b16"]);
                Op::MoveMatrix { d: self.to_word(i, 0)?, a: self.word(i, 1)? }
            }
            "mma" => self.mma(i, m)?,
            "wgmma" => self.wgmma(i, m)?,
            _ => return Ok(None),
        }))
    }

    fn shuffle(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[5])?;
        m.ignore(&["sync"]);
        m.types();
        let modes = [("up", Shuffle::Up), ("down", Shuffle::Down), ("bfly", Shuffle::Butterfly), ("idx", Shuffle::Index)];
        let mode = m.any(&modes).ok_or_else(|| unknown(i, "the mode"))?;
        let (d, dp) = match self.operand(i, 0)? {
            Operand::Pair(a, b) if b.class == Class::Predicate => (a.index, Some(b.index)),
            _ => (self.to_word(i, 0)?, None),
        };
        Ok(Op::Shuffle { mode, d, dp, a: self.word(i, 1)?, b: self.word(i, 2)?, c: self.word(i, 3)?, members: self.word(i, 4)? })
    }

    fn vote(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[3])?;
        m.ignore(&["sync"]);
        m.types();
        let modes = [("all", Vote::All), ("any", Vote::Any), ("uni", Vote::Uniform), ("ballot", Vote::Ballot)];
        let mode = m.any(&modes).ok_or_else(|| unknown(i, "the mode"))?;
        let (p, negate) = match self.operand(i, 1)? {
            Operand::Not(Register { class: Class::Predicate, index }) => (*index, true),
            operand => (self.predicate_of(i, operand)?, false),
        };
        let d = if mode == Vote::Ballot { self.to_word(i, 0)? } else { self.to_predicate(i, 0)? };
        Ok(Op::Vote { mode, d, p, negate, members: self.word(i, 2)? })
    }

    fn reduce(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[3])?;
        m.ignore(&["sync"]);
        let of = m.one_type()?;
        let table = [
            ("add", (Reduction::Add, Reduction::Add)),
            ("min", (Reduction::MinUnsigned, Reduction::MinSigned)),
            ("max", (Reduction::MaxUnsigned, Reduction::MaxSigned)),
            ("and", (Reduction::And, Reduction::And)),
            ("or", (Reduction::Or, Reduction::Or)),
            ("xor", (Reduction::Xor, Reduction::Xor)),
        ];
        let (unsigned, signed) = m.any(&table).ok_or_else(|| unknown(i, "the operation"))?;
        let op = match of {
            Type::Signed(4) => signed,
            Type::Unsigned(4) | Type::Bits(4) => unsigned,
            _ => return Err(unknown(i, "this type")),
        };
        Ok(Op::Reduce { op, d: self.to_word(i, 0)?, a: self.word(i, 1)?, members: self.word(i, 2)? })
    }

    /// Registers of a vector operand, or of a single one.
    fn fragment(&mut self, i: &Instruction<'t>, n: usize, length: usize) -> Result<Vec<u32>> {
        let operand = self.operand(i, n)?;
        let parts = match operand {
            Operand::Vector(parts) => &parts[..],
            single => std::slice::from_ref(single),
        };
        if parts.len() != length {
            return Err(unknown(i, &format!("operand {n} has {} registers, not {length}", parts.len())));
        }
        parts.iter().map(|p| self.word_of(i, p)).collect()
    }

    fn matrix(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[2])?;
        m.ignore(&["sync", "aligned", "shared", "shared::cta", "b16", "m8n8"]);
        let transposed = m.take("trans");
        let count = m.any(&[("x1", 1), ("x2", 2), ("x4", 4)]).ok_or_else(|| unknown(i, "the number of matrices"))?;
        let load = m.name == "ldmatrix";
        let (data, address) = if load { (0, 1) } else { (1, 0) };
        let rows = self.fragment(i, data, count)?.into();
        let address = self.address(i, address, Space::Shared)?;
        Ok(if load { Op::LoadMatrix { d: rows, address, transposed } } else { Op::StoreMatrix { a: rows, address, transposed } })
    }

    fn factor(&self, i: &Instruction<'t>, types: &[Type]) -> Result<Factor> {
        Ok(match types {
            [Type::F32, Type::F16, Type::F16, Type::F32] | [Type::F32, Type::F16, Type::F16] => Factor::F16,
            [Type::F32, Type::Bf16, Type::Bf16, Type::F32] | [Type::F32, Type::Bf16, Type::Bf16] => Factor::Bf16,
            [Type::F32, Type::Tf32, Type::Tf32, Type::F32] => Factor::Tf32,
            _ => return Err(unknown(i, "these types")),
        })
    }

    fn mma(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        self.count(i, &[4])?;
        m.ignore(&["sync", "aligned", "row", "col"]);
        let types = m.types();
        let factor = self.factor(i, &types)?;
        let k = m.any(&[("m16n8k4", 4), ("m16n8k8", 8), ("m16n8k16", 16)]).ok_or_else(|| unknown(i, "the shape"))?;
        let (na, nb) = match (factor, k) {
            (Factor::F16 | Factor::Bf16, 16) | (Factor::Tf32, 8) => (4, 2),
            (Factor::F16 | Factor::Bf16, 8) | (Factor::Tf32, 4) => (2, 1),
            _ => return Err(unknown(i, "the shape")),
        };
        let mut a = [0; 4];
        a[..na].copy_from_slice(&self.fragment(i, 1, na)?);
        let mut b = [0; 2];
        b[..nb].copy_from_slice(&self.fragment(i, 2, nb)?);
        let four = |v: Vec<u32>| [v[0], v[1], v[2], v[3]];
        Ok(Op::Mma(Box::new(Mma { factor, k, d: four(self.fragment(i, 0, 4)?), a, b, c: four(self.fragment(i, 3, 4)?) })))
    }

    fn wgmma(&mut self, i: &Instruction<'t>, m: &Modifiers<'_, 't>) -> Result<Op> {
        m.ignore(&["sync", "aligned"]);
        if m.take("fence") {
            return Ok(Op::WgmmaFence);
        }
        if m.take("commit_group") {
            return Ok(Op::WgmmaCommit);
        }
        if m.take("wait_group") {
            return Ok(Op::WgmmaWait { pending: self.immediate(i, 0)? as u32 });
        }
        if !m.take("mma_async") {
            return Err(unknown(i, ""));
        }
        let types = m.types();
        let factor = self.factor(i, &types)?;
        let n = (1..=32).map(|e| 8 * e).find(|n| m.take(&format!("m64n{n}k16"))).ok_or_else(|| unknown(i, "the shape"))?;
        if factor == Factor::Tf32 {
            return Err(unknown(i, "tf32"));
        }
        let d = self.fragment(i, 0, n / 2)?.into();
        let in_registers = matches!(self.operand(i, 1)?, Operand::Vector(_));
        // d, a, b, scale-d, imm-scale-a, imm-scale-b, [imm-trans-a,] imm-trans-b
        self.count(i, if in_registers { &[7] } else { &[8] })?;
        let flag = |n: usize| match self.immediate(i, n)? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(unknown(i, "0 or 1 is expected")),
        };
        let sign = |n: usize| match self.immediate(i, n)? as i64 {
            1 => Ok(false),
            -1 => Ok(true),
            _ => Err(unknown(i, "1 or -1 is expected")),
        };
        let (negate_a, negate_b) = (sign(4)?, sign(5)?);
        let transposed = flag(if in_registers { 6 } else { 7 })?;
        let a_transposed = if in_registers { false } else { flag(6)? };
        let a = if in_registers {
            let f = self.fragment(i, 1, 4)?;
            LeftFactor::Registers([f[0], f[1], f[2], f[3]])
        } else {
            LeftFactor::Shared { descriptor: self.double(i, 1)?, transposed: a_transposed }
        };
        let descriptor = self.double(i, 2)?;
        let (accumulate, accumulate_constant) = match self.operand(i, 3)? {
            Operand::Integer(n) => (None, *n != 0),
            operand => (Some(self.predicate_of(i, operand)?), false),
        };
        Ok(Op::Wgmma(Box::new(Wgmma {
            factor,
            n: n as u16,
            d,
            a,
            descriptor,
            transposed,
            accumulate,
            accumulate_constant,
            negate_a,
            negate_b,
        })))
    }
}
