//! Ops of the text form: their attributes and operands, by mnemonic.

use super::lex::{DOTS, Token};
use super::reader::{Read, Reader};
use crate::ir::elementwise::{BinaryOp, IndexOp, UnaryOp};
use crate::ir::entity::ValueId;
use crate::ir::op::{At, CompareOp, Fill, Op, ProgramDim, ReduceOp};

const INDEX_OPS: [IndexOp; 7] =
    [IndexOp::Add, IndexOp::Sub, IndexOp::Mul, IndexOp::Div, IndexOp::Rem, IndexOp::Min, IndexOp::Max];

const COMPARE_OPS: [CompareOp; 6] = [CompareOp::Eq, CompareOp::Ne, CompareOp::Lt, CompareOp::Le, CompareOp::Gt, CompareOp::Ge];

impl Reader<'_> {
    /// Reads what follows a mnemonic. `for` is read with its block.
    pub(super) fn op(&mut self, mnemonic: &str) -> Read<Op> {
        match mnemonic {
            "program" => {
                let mut dims = Vec::new();
                while self.peek().is_some_and(|token| *token != Token::Punct(';')) {
                    dims.push(if self.take_word("tiles") {
                        self.expect('(')?;
                        let axis = self.axis()?;
                        self.expect(')')?;
                        ProgramDim::Tiles(axis)
                    } else {
                        ProgramDim::Each(self.extent()?)
                    });
                    if !self.take(',') {
                        break;
                    }
                }
                Ok(Op::Program(dims))
            }
            "index" => Ok(Op::IndexConst(self.integer()?)),
            "size" => Ok(Op::SizeOf(self.named_size()?)),
            "const" => {
                let elem = self.elem()?;
                Ok(Op::Constant(elem, self.float()?))
            }
            "scalar" => Ok(Op::Scalar(self.param()?)),
            "from_index" => self.one(Op::FromIndex),
            "to_index" => self.one(Op::ToIndex),
            "pos" => self.one(Op::Pos),
            "full" => {
                let dims = self.dims()?;
                self.expect(',')?;
                Ok(Op::Full { value: self.value()?, dims })
            }
            "load_tile" => Ok(Op::Load { tensor: self.param()?, at: self.at()? }),
            "gather" => {
                let (tensor, at) = (self.param()?, self.positions()?);
                Ok(Op::Gather { tensor, at })
            }
            "scatter_add" => {
                let (tensor, at) = (self.param()?, self.positions()?);
                self.expect(',')?;
                Ok(Op::Scatter { tensor, at, value: self.value()? })
            }
            "block_min" | "block_max" => {
                let (tensor, at) = (self.param()?, self.at()?);
                self.expect_word("of")?;
                let block = self.count()?;
                Ok(Op::BlockExtreme { tensor, at, block, largest: mnemonic == "block_max" })
            }
            "nonzero" => {
                let tensor = self.param()?;
                Ok(Op::Nonzero { tensor, at: self.at()? })
            }
            "store_tile" => {
                let (tensor, at) = (self.param()?, self.at()?);
                self.expect(',')?;
                Ok(Op::Store { tensor, at, value: self.value()? })
            }
            "select" => {
                let cond = self.value()?;
                self.expect(',')?;
                self.two(|on_true, on_false| Op::Select { cond, on_true, on_false })
            }
            "mask" => self.two(|x, keep| Op::Mask { x, keep, fill: Fill::NegInf }),
            "mask_zero" => self.two(|x, keep| Op::Mask { x, keep, fill: Fill::Zero }),
            "cast" => {
                let elem = self.elem()?;
                self.expect(',')?;
                Ok(Op::Cast(elem, self.value()?))
            }
            "transpose" => self.one(Op::Transpose),
            "dot" => {
                let a = self.value()?;
                self.expect(',')?;
                let b = self.value()?;
                let acc = if self.take(',') {
                    self.expect_word("acc")?;
                    Some(self.value()?)
                } else {
                    None
                };
                Ok(Op::Dot { a, b, acc })
            }
            "of_part" => {
                let value = self.value()?;
                self.expect(',')?;
                self.two(|part, at| Op::OfPart { value, part, at })
            }
            "rowmax" => self.one(|x| Op::Reduce(ReduceOp::Max, x)),
            "rowsum" => self.one(|x| Op::Reduce(ReduceOp::Sum, x)),
            "yield" => {
                let mut values = Vec::new();
                while let Some(Token::Value(_)) = self.peek() {
                    values.push(self.value()?);
                    if !self.take(',') {
                        break;
                    }
                }
                Ok(Op::Yield(values))
            }
            other => self.family(other),
        }
    }

    /// Ops that differ in an operator: the mnemonic is looked up among those that [`Op::mnemonic`] gives.
    fn family(&mut self, mnemonic: &str) -> Read<Op> {
        let any = ValueId(0);
        if let Some(op) = INDEX_OPS.into_iter().find(|&op| Op::Index(op, any, any).mnemonic() == mnemonic) {
            return self.two(|a, b| Op::Index(op, a, b));
        }
        if let Some(op) = UnaryOp::ALL.iter().copied().find(|op| op.row().mnemonic == mnemonic) {
            return self.one(|x| Op::Unary(op, x));
        }
        if let Some(op) = BinaryOp::ALL.iter().copied().find(|op| op.row().mnemonic == mnemonic) {
            return self.two(|a, b| Op::Binary(op, a, b));
        }
        if let Some(op) = COMPARE_OPS.into_iter().find(|&op| Op::Compare(op, any, any).mnemonic() == mnemonic) {
            return self.two(|a, b| Op::Compare(op, a, b));
        }
        self.error(format!("there is no op `{mnemonic}`"))
    }

    fn one(&mut self, op: impl FnOnce(ValueId) -> Op) -> Read<Op> {
        Ok(op(self.value()?))
    }

    fn two(&mut self, op: impl FnOnce(ValueId, ValueId) -> Op) -> Read<Op> {
        let a = self.value()?;
        self.expect(',')?;
        Ok(op(a, self.value()?))
    }

    /// Entries of a gather or a scatter.
    fn positions(&mut self) -> Read<Vec<ValueId>> {
        self.expect('[')?;
        self.list(']', Self::value)
    }

    fn at(&mut self) -> Read<Vec<At>> {
        self.expect('[')?;
        self.list(']', |reader| {
            if let Some(Token::Value(_)) = reader.peek() {
                return Ok(At::Index(reader.value()?));
            }
            if reader.take_word("tile") {
                return Ok(At::Tile(reader.value()?));
            }
            let start = reader.size(0)?;
            reader.expect(DOTS)?;
            let len = reader.size(0)?.sub(&start);
            reader.reasonable(&len)?;
            Ok(At::Range { start, len })
        })
    }

    fn float(&mut self) -> Read<f64> {
        let negative = self.take('-');
        let text = match self.next("a number")? {
            Token::Number(text) => text,
            Token::Word(word) if word == "inf" || word == "NaN" => word,
            other => return self.error(format!("expected a number, found {other}")),
        };
        match text.parse::<f64>() {
            Ok(value) => Ok(if negative { -value } else { value }),
            Err(_) => self.error(format!("`{text}` is not a number")),
        }
    }
}
