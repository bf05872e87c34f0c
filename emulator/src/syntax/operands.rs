//! Operands of instructions.

use super::lexer::{Token, syntax};
use super::parser::{Parser, Result};
use super::scopes::Scopes;
use super::tree::Operand;
use crate::LoadError;

impl<'t> Parser<'_, 't> {
    fn named(&mut self, scopes: &Scopes<'t>, name: &'t str) -> Result<Operand<'t>> {
        if name == "_" {
            return Ok(Operand::Sink);
        }
        if let Some(register) = scopes.find(name) {
            return Ok(Operand::Register(register));
        }
        if name == "WARP_SZ" {
            return Ok(Operand::Integer(32));
        }
        Ok(if name.starts_with('%') { Operand::Special(name) } else { Operand::Symbol(name) })
    }

    pub(super) fn operand(&mut self, scopes: &Scopes<'t>) -> Result<Operand<'t>> {
        let line = self.line();
        match self.next() {
            Some(Token::Word(name)) => {
                let first = self.named(scopes, name)?;
                if self.eat('|') {
                    let second = self.word()?;
                    let second = self.named(scopes, second)?;
                    return match (first, second) {
                        (Operand::Register(a), Operand::Register(b)) => Ok(Operand::Pair(a, b)),
                        (Operand::Sink, b @ Operand::Register(_)) => Ok(b),
                        (a @ Operand::Register(_), Operand::Sink) => Ok(a),
                        _ => Err(syntax(line, "expected two registers around `|`")),
                    };
                }
                if let Operand::Symbol(_) = first
                    && self.eat('+')
                {
                    let offset = i64::from(self.small()?);
                    return Ok(Operand::Address { base: Box::new(first), offset, coordinates: vec![] });
                }
                Ok(first)
            }
            Some(Token::Integer(n)) => Ok(Operand::Integer(n)),
            Some(Token::Single(bits)) => Ok(Operand::Single(bits)),
            Some(Token::Double(bits)) => Ok(Operand::Real(bits)),
            Some(Token::Mark('-')) => match self.next() {
                Some(Token::Integer(n)) => Ok(Operand::Integer(n.wrapping_neg())),
                Some(Token::Double(bits)) => Ok(Operand::Real((-f64::from_bits(bits)).to_bits())),
                _ => Err(syntax(line, "expected a number after `-`")),
            },
            Some(Token::Mark('!')) => {
                let name = self.word()?;
                match scopes.find(name) {
                    Some(register) => Ok(Operand::Not(register)),
                    None => Err(LoadError::Undeclared { line, name: name.to_owned() }),
                }
            }
            Some(Token::Mark('{')) => {
                let elements = self.elements(scopes)?;
                Ok(Operand::Vector(elements))
            }
            Some(Token::Mark('[')) => self.address(scopes),
            _ => {
                self.at -= 1;
                self.unexpected("an operand")
            }
        }
    }

    /// After `{`.
    fn elements(&mut self, scopes: &Scopes<'t>) -> Result<Vec<Operand<'t>>> {
        let mut elements = Vec::new();
        while !self.eat('}') {
            if matches!(self.peek(), Some(Token::Mark('{' | '['))) {
                return self.unexpected("an element");
            }
            elements.push(self.operand(scopes)?);
            self.eat(',');
        }
        Ok(elements)
    }

    /// After `[`.
    fn address(&mut self, scopes: &Scopes<'t>) -> Result<Operand<'t>> {
        let base = match self.next() {
            Some(Token::Word(name)) => self.named(scopes, name)?,
            Some(Token::Integer(n)) => Operand::Integer(n),
            _ => {
                self.at -= 1;
                return self.unexpected("an address");
            }
        };
        let mut offset = 0;
        let mut coordinates = vec![];
        loop {
            if self.eat(']') {
                return Ok(Operand::Address { base: Box::new(base), offset, coordinates });
            } else if self.eat('+') {
                let negative = self.eat('-');
                let value = i64::from(self.small()?);
                offset += if negative { -value } else { value };
            } else if self.eat('-') {
                offset -= i64::from(self.small()?);
            } else if self.eat(',') {
                self.expect('{')?;
                coordinates = self.elements(scopes)?;
            } else {
                return self.unexpected("`]`");
            }
        }
    }
}
