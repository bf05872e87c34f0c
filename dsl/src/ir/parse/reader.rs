//! Lines of the text form: the header, blocks, and the parts that ops are made of.

use std::collections::HashMap;

use super::lex::{Token, tokens};
use crate::ir::entity::{AxisId, BlockId, Entity, OpId, ParamId, SizeId, ValueId};
use crate::ir::kernel::{
    Axis, AxisKind, BlockData, Direction, Kernel, OpData, Param, ParamKind, Size, SizeKind, Span, Summary, TensorDecl, TileList,
    ValueData, ValueDef,
};
use crate::ir::op::{Op, Part};
use crate::ir::size::SizeExpr;
use crate::ir::types::{Dim, Elem, TileType, Type};

/// Deepest nesting of loops and of brackets in sizes.
const NESTING: usize = 32;

/// Reads a text line by line.
pub(super) struct Reader<'t> {
    lines: std::iter::Enumerate<std::str::Lines<'t>>,
    /// Number of the current line, from 1.
    line: usize,
    /// What is left of the current line.
    tokens: std::iter::Peekable<std::vec::IntoIter<Token>>,
    pub(super) kernel: Kernel,
    /// Axes by their text-form names.
    axes: HashMap<String, AxisId>,
    values: HashMap<u32, ValueId>,
}

/// Why a text is not the text form of a kernel.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TextError {
    /// Line of the text, from 1.
    pub line: usize,
    /// What was expected and what was found.
    pub message: String,
}

pub(super) type Read<T> = Result<T, TextError>;

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self {
            lines: text.lines().enumerate(),
            line: 0,
            tokens: Vec::new().into_iter().peekable(),
            kernel: Kernel::default(),
            axes: HashMap::new(),
            values: HashMap::new(),
        }
    }

    pub(super) fn error<T>(&self, message: impl Into<String>) -> Read<T> {
        Err(TextError { line: self.line, message: message.into() })
    }

    /// Goes to the next line that says something.
    fn next_line(&mut self) -> Read<()> {
        for (n, line) in self.lines.by_ref() {
            self.line = n + 1;
            if line.trim().is_empty() || line.trim_start().starts_with("//") {
                continue;
            }
            let tokens = tokens(line).map_err(|message| TextError { line: n + 1, message })?;
            self.tokens = tokens.into_iter().peekable();
            return Ok(());
        }
        self.line += 1;
        self.error("the text ends before the kernel is closed with `}`")
    }

    pub(super) fn next(&mut self, wanted: &str) -> Read<Token> {
        match self.tokens.next() {
            Some(token) => Ok(token),
            None => self.error(format!("expected {wanted}, found the end of the line")),
        }
    }

    /// Takes the token if it is this character.
    pub(super) fn take(&mut self, c: char) -> bool {
        self.tokens.next_if_eq(&Token::Punct(c)).is_some()
    }

    /// Takes the token if it is this word.
    pub(super) fn take_word(&mut self, word: &str) -> bool {
        self.tokens.next_if(|token| matches!(token, Token::Word(w) if w == word)).is_some()
    }

    pub(super) fn peek(&mut self) -> Option<&Token> {
        self.tokens.peek()
    }

    pub(super) fn expect(&mut self, c: char) -> Read<()> {
        let wanted = Token::Punct(c);
        match self.next(&wanted.to_string())? {
            token if token == wanted => Ok(()),
            other => self.error(format!("expected {wanted}, found {other}")),
        }
    }

    pub(super) fn expect_word(&mut self, word: &str) -> Read<()> {
        if self.take_word(word) {
            return Ok(());
        }
        match self.tokens.next() {
            Some(other) => self.error(format!("expected `{word}`, found {other}")),
            None => self.error(format!("expected `{word}`, found the end of the line")),
        }
    }

    pub(super) fn word(&mut self, wanted: &str) -> Read<String> {
        match self.next(wanted)? {
            Token::Word(word) => Ok(word),
            other => self.error(format!("expected {wanted}, found {other}")),
        }
    }

    fn end_of_line(&mut self) -> Read<()> {
        match self.tokens.next() {
            None => Ok(()),
            Some(token) => self.error(format!("expected the end of the line, found {token}")),
        }
    }

    /// `item, item, ...` up to `close`, which is taken.
    pub(super) fn list<T>(&mut self, close: char, mut item: impl FnMut(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let mut items = Vec::new();
        if self.take(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.take(close) {
                return Ok(items);
            }
            self.expect(',')?;
        }
    }

    /// Reads the kernel.
    pub(super) fn kernel(mut self) -> Read<Kernel> {
        self.next_line()?;
        self.expect_word("kernel")?;
        self.kernel.name = self.word("the kernel's name")?;
        self.expect('{')?;
        self.end_of_line()?;
        let body = self.kernel.blocks.push(BlockData::default());
        self.kernel.body = body;
        self.next_line()?;
        while self.header()? {
            self.end_of_line()?;
            self.next_line()?;
        }
        self.block(body, 0)?;
        for (n, line) in self.lines.by_ref() {
            if !line.trim().is_empty() && !line.trim_start().starts_with("//") {
                return Err(TextError { line: n + 1, message: "expected the end of the text after the kernel".into() });
            }
        }
        Ok(self.kernel)
    }

    /// Reads a line of the header; `false` if it is none.
    fn header(&mut self) -> Read<bool> {
        if self.take_word("doc") {
            match self.next("a string")? {
                Token::Text(text) => self.kernel.doc = text,
                other => return self.error(format!("expected a string, found {other}")),
            }
        } else if self.take_word("type") {
            let name = self.word("the name of a type parameter")?;
            self.kernel.type_params.push(name);
        } else if self.take_word("size") {
            let name = self.word("the name of a size")?;
            let kind = match self.word("`runtime` or `const`")?.as_str() {
                "runtime" => SizeKind::Runtime,
                "const" => SizeKind::Const,
                other => return self.error(format!("expected `runtime` or `const`, found `{other}`")),
            };
            self.kernel.sizes.push(Size { name, kind });
        } else if self.take_word("param") {
            let name = self.word("the name of a parameter")?;
            self.expect(':')?;
            let kind = if self.take('&') { self.tensor()? } else { ParamKind::Scalar(self.elem()?) };
            self.kernel.params.push(Param { name, kind, span: Span::default() });
        } else if self.take_word("summary") {
            self.summary()?;
        } else if self.take_word("axis") {
            self.axis_line()?;
        } else if self.take_word("list") {
            self.tile_list()?;
        } else {
            return Ok(false);
        }
        Ok(true)
    }

    /// `of: least, most of blocks of 128 along 1`, behind `summary`.
    fn summary(&mut self) -> Read<()> {
        let of = self.param()?;
        self.expect(':')?;
        let least = self.param()?;
        self.expect(',')?;
        let most = self.param()?;
        for word in ["of", "blocks", "of"] {
            self.expect_word(word)?;
        }
        let block = self.count()?;
        self.expect_word("along")?;
        let dim = self.integer()?;
        let Ok(dim) = usize::try_from(dim) else { return self.error("a dimension is not negative") };
        self.kernel.summaries.push(Summary { of, dim, block, least, most });
        Ok(())
    }

    /// `j: tiles of 128 in kept for 64 rows at 0, 2`, behind `list`.
    fn tile_list(&mut self) -> Read<()> {
        let axis = self.axis()?;
        self.expect(':')?;
        for word in ["tiles", "of"] {
            self.expect_word(word)?;
        }
        let block = self.count()?;
        self.expect_word("in")?;
        let tensor = self.param()?;
        self.expect_word("for")?;
        let rows = self.count()?;
        self.expect_word("rows")?;
        let mut dims = Vec::new();
        if self.take_word("at") {
            loop {
                let dim = self.integer()?;
                let Ok(dim) = usize::try_from(dim) else { return self.error("a dimension is not negative") };
                dims.push(dim);
                if !self.take(',') {
                    break;
                }
            }
        }
        self.kernel.lists.push(TileList { axis, block, rows, tensor, dims });
        Ok(())
    }

    /// A positive number of elements.
    pub(super) fn count(&mut self) -> Read<u32> {
        match u32::try_from(self.integer()?) {
            Ok(count) if count > 0 => Ok(count),
            _ => self.error("a block has a positive number of elements"),
        }
    }

    fn tensor(&mut self) -> Read<ParamKind> {
        let direction = match self.take_word("mut") {
            true => Direction::Out,
            false if self.take_word("inout") => Direction::InOut,
            false if self.take_word("sum") => Direction::Sum,
            false => Direction::In,
        };
        self.expect_word("tensor")?;
        self.expect('<')?;
        let elem = self.elem()?;
        self.expect(',')?;
        self.expect('(')?;
        let shape = self.list(')', |reader| reader.extent())?;
        self.expect('>')?;
        Ok(ParamKind::Tensor(TensorDecl { elem, shape, direction }))
    }

    fn axis_line(&mut self) -> Read<()> {
        let text = self.word("the name of an axis")?;
        self.expect(':')?;
        let kind = match self.word("`program`, `loop` or `each`")?.as_str() {
            "program" => AxisKind::Program,
            "loop" => AxisKind::Loop,
            "each" => AxisKind::Each,
            other => return self.error(format!("expected `program`, `loop` or `each`, found `{other}`")),
        };
        self.expect_word("over")?;
        let extent = self.extent()?;
        // `j.2` is an axis called `j` whose name is not its alone.
        let number = format!(".{}", self.kernel.axes.len());
        let name = text.strip_suffix(&number).unwrap_or(&text).to_owned();
        let axis = self.kernel.axes.push(Axis { name, extent, kind });
        match self.axes.insert(text.clone(), axis) {
            None => Ok(()),
            Some(_) => self.error(format!("the axis `{text}` is declared twice")),
        }
    }

    /// Reads lines up to the `}` that closes the block.
    fn block(&mut self, block: BlockId, depth: usize) -> Read<()> {
        if depth > NESTING {
            return self.error(format!("loops are nested more than {NESTING} deep"));
        }
        loop {
            if self.take('}') {
                return self.end_of_line();
            }
            self.op_line(block, depth)?;
            self.next_line()?;
        }
    }

    fn op_line(&mut self, block: BlockId, depth: usize) -> Read<()> {
        let results = self.typed_values('=')?;
        let mnemonic = self.word("an op")?;
        let (op, names) = if mnemonic == "for" {
            let axis = self.axis()?;
            let part = if self.take_word("part") {
                let index = self.value()?;
                self.expect_word("of")?;
                let Ok(count) = u32::try_from(self.integer()?) else { return self.error("a number of parts is positive") };
                Some(Part { index, count })
            } else {
                None
            };
            self.expect('(')?;
            let init = self.list(')', Self::value)?;
            self.expect('{')?;
            let names = self.names(results.len())?;
            self.next_line()?;
            self.expect_word("params")?;
            let params = self.typed_values(';')?;
            let body = self.kernel.blocks.push(BlockData::default());
            let param_names = self.names_after_semicolon(params.len())?;
            for (n, (param, name)) in params.into_iter().zip(param_names).enumerate() {
                let value = self.define(param, ValueDef::BlockParam(body, n as u32), name)?;
                self.kernel.blocks[body].params.push(value);
            }
            self.next_line()?;
            self.block(body, depth + 1)?;
            (Op::For { axis, part, body, init }, names)
        } else {
            let op = self.op(&mnemonic)?;
            (op, self.names(results.len())?)
        };
        let id = OpId::from_index(self.kernel.ops.len());
        self.kernel.ops.push(OpData { op, results: Vec::new(), span: Span::default() });
        for (n, (result, name)) in results.into_iter().zip(names).enumerate() {
            let value = self.define(result, ValueDef::Result(id, n as u32), name)?;
            self.kernel.ops[id].results.push(value);
        }
        self.kernel.blocks[block].ops.push(id);
        Ok(())
    }

    /// `%1: type, %2: type` and the character after, which is taken; a semicolon may be missing.
    fn typed_values(&mut self, close: char) -> Read<Vec<(u32, Type)>> {
        let mut values = Vec::new();
        while let Some(Token::Value(_)) = self.peek() {
            let Token::Value(number) = self.next("a value")? else { return self.error("expected a value") };
            self.expect(':')?;
            values.push((number, self.ty()?));
            if self.take(close) || (close == ';' && self.peek().is_none()) {
                return Ok(values);
            }
            self.expect(',')?;
        }
        if values.is_empty() { Ok(values) } else { self.error("expected a value after `,`") }
    }

    fn define(&mut self, (number, ty): (u32, Type), def: ValueDef, name: Option<String>) -> Read<ValueId> {
        let value = self.kernel.values.push(ValueData { ty, def, name });
        match self.values.insert(number, value) {
            None => Ok(value),
            Some(_) => self.error(format!("`%{number}` is defined twice")),
        }
    }

    /// `; name, name` at the end of a line, for so many values; nothing means no names.
    fn names(&mut self, count: usize) -> Read<Vec<Option<String>>> {
        self.take(';');
        self.names_after_semicolon(count)
    }

    fn names_after_semicolon(&mut self, count: usize) -> Read<Vec<Option<String>>> {
        let mut names = Vec::new();
        while self.peek().is_some() {
            match self.next("a name")? {
                Token::Word(name) if name == "_" => names.push(None),
                Token::Word(name) | Token::Text(name) => names.push(Some(name)),
                other => return self.error(format!("expected a name, found {other}")),
            }
            if self.peek().is_some() {
                self.expect(',')?;
            }
        }
        match names.len() {
            0 => Ok(vec![None; count]),
            found if found == count => Ok(names),
            found => self.error(format!("expected {count} names, found {found}")),
        }
    }

    pub(super) fn value(&mut self) -> Read<ValueId> {
        match self.next("a value")? {
            Token::Value(number) => match self.values.get(&number) {
                Some(&value) => Ok(value),
                None => self.error(format!("`%{number}` is not defined before this line")),
            },
            other => self.error(format!("expected a value, found {other}")),
        }
    }

    pub(super) fn axis(&mut self) -> Read<AxisId> {
        let name = self.word("an axis")?;
        match self.axes.get(&name) {
            Some(&axis) => Ok(axis),
            None => self.error(format!("there is no axis `{name}`")),
        }
    }

    pub(super) fn param(&mut self) -> Read<ParamId> {
        let name = self.word("a parameter")?;
        match self.kernel.param_named(&name) {
            Some(param) => Ok(param),
            None => self.error(format!("there is no parameter `{name}`")),
        }
    }

    pub(super) fn named_size(&mut self) -> Read<SizeId> {
        let name = self.word("a size")?;
        match self.kernel.size_named(&name) {
            Some(size) => Ok(size),
            None => self.error(format!("there is no size `{name}`")),
        }
    }

    pub(super) fn elem(&mut self) -> Read<Elem> {
        let name = self.word("an element type")?;
        match self.kernel.type_params.iter().position(|t| *t == name) {
            Some(index) => Ok(Elem::Generic(index as u32)),
            None => match Elem::from_name(&name) {
                Some(elem) => Ok(elem),
                None => self.error(format!("there is no element type `{name}`")),
            },
        }
    }

    pub(super) fn dims(&mut self) -> Read<Vec<Dim>> {
        self.expect('(')?;
        self.list(')', |reader| {
            let name = match reader.peek() {
                Some(Token::Word(name)) => name.clone(),
                _ => String::new(),
            };
            let axis = reader.axes.get(&name).copied();
            match axis {
                Some(axis) => reader.word("an axis").map(|_| Dim::Axis(axis)),
                None => Ok(Dim::Range(reader.size(0)?)),
            }
        })
    }

    fn ty(&mut self) -> Read<Type> {
        if self.take_word("index") {
            return Ok(Type::Index);
        }
        if self.take_word("coord") {
            self.expect('<')?;
            let axis = self.axis()?;
            self.expect('>')?;
            return Ok(Type::Coord(axis));
        }
        if self.take_word("tile") {
            self.expect('<')?;
            let elem = self.elem()?;
            self.expect(',')?;
            let dims = self.dims()?;
            self.expect('>')?;
            return Ok(Type::Tile(TileType::new(elem, dims)));
        }
        Ok(Type::Tile(TileType::scalar(self.elem()?)))
    }

    pub(super) fn integer(&mut self) -> Read<i64> {
        let negative = self.take('-');
        match self.next("an integer")? {
            Token::Number(text) => {
                let signed = if negative { format!("-{text}") } else { text };
                signed.parse().or_else(|_| self.error(format!("`{signed}` is not a 64-bit integer")))
            }
            other => self.error(format!("expected an integer, found {other}")),
        }
    }

    /// A size expression: sums of products and quotients by constants.
    pub(super) fn size(&mut self, depth: usize) -> Read<SizeExpr> {
        if depth > NESTING {
            return self.error(format!("brackets are nested more than {NESTING} deep"));
        }
        let mut sum = self.size_product(depth)?;
        loop {
            sum = if self.take('+') {
                sum.add(&self.size_product(depth)?)
            } else if self.take('-') {
                sum.sub(&self.size_product(depth)?)
            } else {
                return Ok(sum);
            };
            self.reasonable(&sum)?;
        }
    }

    fn size_product(&mut self, depth: usize) -> Read<SizeExpr> {
        let negative = self.take('-');
        let mut product = self.size_factor(depth)?;
        loop {
            let (result, operator) = if self.take('*') {
                let factor = self.size_factor(depth)?;
                let result = match (product.as_constant(), factor.as_constant()) {
                    (_, Some(constant)) => Some(product.mul(constant)),
                    (Some(constant), None) => Some(factor.mul(constant)),
                    (None, None) => None,
                };
                (result, "product with")
            } else if self.take('/') {
                let divisor = self.size_factor(depth)?.as_constant();
                (divisor.and_then(|d| product.div(d)), "quotient by")
            } else {
                return Ok(if negative { product.mul(-1) } else { product });
            };
            let Some(result) = result else { return self.error(format!("a size is a {operator} a constant")) };
            self.reasonable(&result)?;
            product = result;
        }
    }

    fn size_factor(&mut self, depth: usize) -> Read<SizeExpr> {
        if self.take('(') {
            let size = self.size(depth + 1)?;
            self.expect(')')?;
            return Ok(size);
        }
        if let Some(Token::Number(_)) = self.peek() {
            let size = SizeExpr::constant(self.integer()?);
            self.reasonable(&size)?;
            return Ok(size);
        }
        Ok(SizeExpr::size(self.named_size()?))
    }

    /// The extent of a dimension or axis: a size, or how many blocks hold it, `ceil(N / 128)`.
    pub(super) fn extent(&mut self) -> Read<SizeExpr> {
        // A size is followed by no bracket, so that one may be called `ceil`.
        let mut ahead = self.tokens.clone();
        let called = [ahead.next(), ahead.next()];
        if called != [Some(Token::Word("ceil".into())), Some(Token::Punct('('))] {
            return self.size(0);
        }
        self.expect_word("ceil")?;
        self.expect('(')?;
        let exact = self.size(0)?;
        self.expect(')')?;
        Ok(exact.ceil())
    }

    /// Refuses numbers whose arithmetic might overflow.
    pub(super) fn reasonable(&self, size: &SizeExpr) -> Read<()> {
        if size.is_small() {
            return Ok(());
        }
        self.error("a number in a size is beyond 2^30, or a divisor beyond 2^10")
    }
}
