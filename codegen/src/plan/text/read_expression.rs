//! Reads expressions of the text of a plan.

use std::collections::HashMap;

use flashtile_dsl::ir::Elem;

use super::super::{Builtin, Cast, Expr, Function, Operator, Param, Prefix, Shape};
use super::lexer::Token;

/// What names of elements mean.
pub(super) type Elements = HashMap<String, Shape>;

/// A place in a line.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    tokens: &'a [Token],
    at: usize,
    elements: &'a Elements,
}

/// Of operators before a value.
const PREFIX: u8 = 14;

impl<'a> Cursor<'a> {
    pub fn new(tokens: &'a [Token], elements: &'a Elements) -> Self {
        Self { tokens, at: 0, elements }
    }

    pub fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    pub fn peek_at(&self, ahead: usize) -> Option<&'a Token> {
        self.tokens.get(self.at + ahead)
    }

    pub fn is_done(&self) -> bool {
        self.at == self.tokens.len()
    }

    fn found(&self) -> String {
        match self.peek() {
            None => "the end of the line".into(),
            Some(Token::Name(name)) => format!("`{name}`"),
            Some(Token::Int(n)) => format!("`{n}`"),
            Some(Token::Float(x)) => format!("`{x}`"),
            Some(Token::Mark(mark)) => format!("`{mark}`"),
        }
    }

    /// That something else is expected here.
    pub fn expected<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("expected {what}, found {}", self.found()))
    }

    /// Takes a mark, if it is the next word.
    pub fn takes(&mut self, mark: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Mark(m)) if *m == mark);
        self.at += usize::from(is_next);
        is_next
    }

    /// Takes a word, if it is the next.
    pub fn takes_word(&mut self, word: &str) -> bool {
        let is_next = matches!(self.peek(), Some(Token::Name(name)) if name == word);
        self.at += usize::from(is_next);
        is_next
    }

    pub fn mark(&mut self, mark: &str) -> Result<(), String> {
        if self.takes(mark) { Ok(()) } else { self.expected(&format!("`{mark}`")) }
    }

    /// Words, one after the other.
    pub fn words(&mut self, words: &str) -> Result<(), String> {
        for word in words.split(' ') {
            if !self.takes_word(word) {
                return self.expected(&format!("`{word}`"));
            }
        }
        Ok(())
    }

    pub fn name(&mut self, what: &str) -> Result<&'a str, String> {
        match self.peek() {
            Some(Token::Name(name)) => {
                self.at += 1;
                Ok(name)
            }
            _ => self.expected(what),
        }
    }

    /// One of the names of a table.
    pub fn one_of<T: Copy>(&mut self, table: &[(&str, T)]) -> Result<T, String> {
        let row = match self.peek() {
            Some(Token::Name(name)) => table.iter().find(|(text, _)| text == name),
            _ => None,
        };
        let Some((_, value)) = row else {
            let names: Vec<String> = table.iter().map(|(name, _)| format!("`{name}`")).collect();
            return self.expected(&names.join(" or "));
        };
        self.at += 1;
        Ok(*value)
    }

    pub fn number<T: TryFrom<i64>>(&mut self) -> Result<T, String> {
        match self.peek() {
            Some(Token::Int(n)) if T::try_from(*n).is_ok() => {
                self.at += 1;
                Ok(T::try_from(*n).ok().expect("just tested"))
            }
            _ => self.expected("a number"),
        }
    }

    /// An element type.
    pub fn elem(&mut self) -> Result<Elem, String> {
        self.one_of(&Elem::ALL.map(|elem| (elem.name(), elem)))
    }

    pub fn end(&self) -> Result<(), String> {
        if self.is_done() { Ok(()) } else { self.expected("the end of the line") }
    }

    /// The expression from here to where no operator continues it.
    pub fn expression(&mut self) -> Result<Expr, String> {
        self.bound(0)
    }

    /// An expression of operators that bind at least so tightly.
    fn bound(&mut self, least: u8) -> Result<Expr, String> {
        let mut lhs = self.prefixed()?;
        while let Some(Token::Mark(mark)) = self.peek()
            && let Some(operator) = Operator::named(mark)
            && operator.precedence() >= least
        {
            self.at += 1;
            let rhs = self.bound(operator.precedence() + 1)?;
            lhs = Expr::Infix(operator, Box::new(lhs), Box::new(rhs));
        }
        Ok(lhs)
    }

    fn prefixed(&mut self) -> Result<Expr, String> {
        if self.takes("!") {
            return Ok(Expr::prefix(Prefix::Not, self.bound(PREFIX)?));
        }
        if !self.takes("-") {
            return self.atom();
        }
        // A number right after the sign is a negative number.
        match self.peek() {
            Some(Token::Int(_) | Token::Float(_)) => {}
            Some(Token::Name(name)) if name == "float.infinity" => {}
            _ => return Ok(Expr::prefix(Prefix::Neg, self.bound(PREFIX)?)),
        }
        match self.atom()? {
            Expr::Int(n) => Ok(Expr::Int(-n)),
            Expr::Float(x) => Ok(Expr::Float(-x)),
            _ => self.expected("a number"),
        }
    }

    fn atom(&mut self) -> Result<Expr, String> {
        let token = self.peek();
        match token {
            Some(Token::Int(n)) => {
                self.at += 1;
                Ok(Expr::Int(*n))
            }
            Some(Token::Float(x)) => {
                self.at += 1;
                Ok(Expr::Float(*x))
            }
            Some(Token::Mark("(")) => {
                self.at += 1;
                let inner = self.expression()?;
                self.mark(")")?;
                Ok(inner)
            }
            Some(Token::Name(name)) => {
                self.at += 1;
                if self.takes("(") { self.call(name) } else { self.named(name) }
            }
            _ => self.expected("an expression"),
        }
    }

    fn named(&self, name: &str) -> Result<Expr, String> {
        if let Some(&shape) = self.elements.get(name) {
            return Ok(Expr::Element(name.to_owned(), shape));
        }
        if let Some(builtin) = Builtin::ALL.iter().find(|b| b.name() == name) {
            return Ok(Expr::Builtin(*builtin));
        }
        if name == "float.infinity" {
            return Ok(Expr::Float(f64::INFINITY));
        }
        let parts: Vec<&str> = name.split('.').collect();
        match parts[..] {
            [name] => Ok(Expr::name(name)),
            ["params", name] => Ok(Expr::param(name)),
            ["params", name, "address"] => Ok(Expr::Param(Param::Address(name.to_owned()))),
            ["params", name, stride] => match stride.strip_prefix("stride").and_then(|d| d.parse().ok()) {
                Some(d) => Ok(Expr::Param(Param::Stride(name.to_owned(), d))),
                None => Err(format!("`{stride}` is neither `address` nor `stride` with a number")),
            },
            _ => Err(format!("`{name}` is no name of the plan, no parameter and nothing that a thread knows")),
        }
    }

    /// What follows a name and an opening parenthesis.
    fn call(&mut self, name: &str) -> Result<Expr, String> {
        if name == "row" || name == "column" {
            let first = self.name("the constant with the first position")?.to_owned();
            self.mark(")")?;
            return Ok(if name == "row" { Expr::RowPosition(first) } else { Expr::ColumnPosition(first) });
        }
        let mut operands = Vec::new();
        loop {
            operands.push(self.expression()?);
            if !self.takes(",") {
                break;
            }
        }
        self.mark(")")?;
        let count = operands.len();
        let takes = |wanted: usize| {
            if wanted == count { Ok(()) } else { Err(format!("`{name}` takes {wanted} operands, not {count}")) }
        };
        if name == "select" {
            takes(3)?;
            let [condition, yes, no] = operands.try_into().expect("just counted");
            return Ok(Expr::Select(Box::new(condition), Box::new(yes), Box::new(no)));
        }
        if let Some(cast) = [Cast::Float, Cast::Int, Cast::Wide].into_iter().find(|c| c.name() == name) {
            takes(1)?;
            let [x] = operands.try_into().expect("just counted");
            return Ok(x.cast(cast));
        }
        let function = Function::ALL.iter().copied().find(|f| f.name() == name);
        let function = function.ok_or_else(|| format!("no function is called `{name}`"))?;
        takes(function.operands())?;
        Ok(Expr::Call(function, operands))
    }
}
