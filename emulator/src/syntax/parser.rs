//! Tokens to a tree. Directives that say nothing of execution (`.pragma`, `.section`, performance hints) are passed over;
//! an unknown one is an error.

use std::collections::HashMap;

use super::lexer::{Lexeme, Token, lex, syntax};
use super::scopes::Scopes;
use super::tree::{Class, Instruction, KernelTree, Location, Parameter, Register, Space, Tree, Variable};
use crate::LoadError;

pub(super) type Result<T> = std::result::Result<T, LoadError>;

/// Parses a PTX text.
pub(crate) fn parse(text: &str) -> Result<Tree<'_>> {
    let tokens = lex(text)?;
    let mut parser = Parser { tokens: &tokens, at: 0, tree: Tree::default(), latest: HashMap::new() };
    parser.module()?;
    Ok(parser.tree)
}

/// Most registers of a class, which bounds the memory of a warp.
const MOST_REGISTERS: u32 = 1 << 17;

/// Most bytes of a variable or parameter, and the largest alignment.
const MOST_BYTES: u64 = 1 << 24;

pub(super) struct Parser<'a, 't> {
    tokens: &'a [Lexeme<'t>],
    pub(super) at: usize,
    tree: Tree<'t>,
    /// The latest location of each file, line and column: what `inlined_at` refers to.
    latest: HashMap<(u32, u32, u32), u32>,
}

impl<'t> Parser<'_, 't> {
    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |l| l.line)
    }

    pub(super) fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).map(|l| l.token)
    }

    pub(super) fn next(&mut self) -> Option<Token<'t>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub(super) fn eat(&mut self, mark: char) -> bool {
        let there = self.peek() == Some(Token::Mark(mark));
        self.at += usize::from(there);
        there
    }

    fn eat_word(&mut self, word: &str) -> bool {
        let there = self.peek() == Some(Token::Word(word));
        self.at += usize::from(there);
        there
    }

    pub(super) fn unexpected<T>(&self, wanted: &str) -> Result<T> {
        let found = match self.peek() {
            None => "the end".to_owned(),
            Some(Token::Word(w)) => format!("`{w}`"),
            Some(Token::Mark(c)) => format!("`{c}`"),
            Some(other) => format!("{other:?}"),
        };
        Err(syntax(self.line(), format!("expected {wanted}, found {found}")))
    }

    pub(super) fn expect(&mut self, mark: char) -> Result<()> {
        if self.eat(mark) { Ok(()) } else { self.unexpected(&format!("`{mark}`")) }
    }

    pub(super) fn word(&mut self) -> Result<&'t str> {
        match self.peek() {
            Some(Token::Word(word)) => {
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a name"),
        }
    }

    pub(super) fn small(&mut self) -> Result<u32> {
        match self.peek() {
            Some(Token::Integer(n)) if n <= u64::from(u32::MAX) => {
                self.at += 1;
                Ok(n as u32)
            }
            _ => self.unexpected("an integer"),
        }
    }

    fn alignment(&mut self) -> Result<u32> {
        match self.small()? {
            n if n.is_power_of_two() && n <= 1 << 16 => Ok(n),
            n => Err(syntax(self.line(), format!("an alignment of {n}"))),
        }
    }

    /// Up to the end of the statement.
    fn skip_statement(&mut self) -> Result<()> {
        while let Some(token) = self.next() {
            if token == Token::Mark(';') {
                return Ok(());
            }
        }
        self.unexpected("`;`")
    }

    fn module(&mut self) -> Result<()> {
        while let Some(token) = self.peek() {
            let Token::Word(word) = token else { return self.unexpected("a directive") };
            self.at += 1;
            match word {
                ".version" => {
                    self.next();
                }
                ".target" => {
                    self.tree.target = self.word()?;
                    while self.eat(',') {
                        self.word()?;
                    }
                }
                ".address_size" => {
                    if self.small()? != 64 {
                        return Err(syntax(self.line(), "only 64-bit addresses are supported"));
                    }
                }
                ".file" => self.file()?,
                ".section" => self.section()?,
                ".extern" | ".visible" | ".weak" | ".common" => {}
                ".entry" => self.kernel()?,
                ".global" | ".shared" | ".const" => {
                    let space = space(word).expect("matched above");
                    let variables = self.variables(space)?;
                    self.tree.variables.extend(variables);
                }
                ".pragma" => self.skip_statement()?,
                _ => return Err(syntax(self.line(), format!("the directive `{word}` is not supported at module level"))),
            }
        }
        Ok(())
    }

    fn file(&mut self) -> Result<()> {
        let number = self.small()?;
        match self.next() {
            Some(Token::Text(name)) => self.tree.files.push((number, name)),
            _ => return self.unexpected("a file name"),
        }
        while self.eat(',') {
            self.small()?;
        }
        Ok(())
    }

    fn section(&mut self) -> Result<()> {
        self.word()?;
        self.expect('{')?;
        while let Some(token) = self.next() {
            if token == Token::Mark('}') {
                return Ok(());
            }
        }
        self.unexpected("`}`")
    }

    /// Type of a declaration: bytes of an element.
    fn element(&mut self) -> Result<u32> {
        let word = self.word()?;
        type_bytes(word).ok_or_else(|| syntax(self.line(), format!("`{word}` is not a type of variables")))
    }

    /// `.align 4 .b8 a[16] = {..}, b;`
    fn variables(&mut self, space: Space) -> Result<Vec<Variable<'t>>> {
        let mut align = None;
        let element = loop {
            if self.eat_word(".align") {
                align = Some(self.alignment()?);
            } else if self.eat_word(".attribute") {
                return self.unexpected("a variable without attributes");
            } else {
                break self.element()?;
            }
        };
        let mut all = Vec::new();
        loop {
            let name = self.word()?;
            let mut count: u64 = 1;
            while self.eat('[') {
                let side = if self.peek() == Some(Token::Mark(']')) { 0 } else { u64::from(self.small()?) };
                count = count.saturating_mul(side);
                self.expect(']')?;
            }
            let bytes = count.saturating_mul(element.into());
            if bytes > MOST_BYTES {
                return Err(syntax(self.line(), format!("`{name}` is too large")));
            }
            let bytes = bytes as u32;
            let mut initial = Vec::new();
            if self.eat('=') {
                let braces = self.eat('{');
                loop {
                    let negative = self.eat('-');
                    let value = match self.next() {
                        Some(Token::Integer(n)) => n,
                        Some(Token::Single(bits)) => bits.into(),
                        Some(Token::Double(bits)) => bits,
                        _ => return self.unexpected("a constant"),
                    };
                    let value = if negative { value.wrapping_neg() } else { value };
                    initial.extend_from_slice(&value.to_le_bytes()[..element as usize]);
                    if !braces || !self.eat(',') {
                        break;
                    }
                }
                if braces {
                    self.expect('}')?;
                }
            }
            all.push(Variable { name, space, align: align.unwrap_or(element), bytes, initial });
            if !self.eat(',') {
                break;
            }
        }
        self.expect(';')?;
        Ok(all)
    }

    fn parameter(&mut self) -> Result<Parameter<'t>> {
        if !self.eat_word(".param") {
            return self.unexpected("`.param`");
        }
        let mut align = None;
        let element = loop {
            if self.eat_word(".align") {
                align = Some(self.alignment()?);
            } else if self.eat_word(".ptr") || [".global", ".shared", ".const", ".local"].iter().any(|s| self.eat_word(s)) {
                // What a pointer points to is known when it is used.
            } else if let Some(Token::Word(word)) = self.peek()
                && let Some(bytes) = type_bytes(word)
            {
                self.at += 1;
                // `.u64 .ptr .align 1 name`: the alignment is that of the target.
                if self.eat_word(".ptr") {
                    while let Some(Token::Word(".global" | ".shared" | ".const" | ".local")) = self.peek() {
                        self.at += 1;
                    }
                    if self.eat_word(".align") {
                        self.small()?;
                    }
                }
                break bytes;
            } else {
                return self.unexpected("a type");
            }
        };
        let name = self.word()?;
        let mut bytes = element;
        if self.eat('[') {
            bytes = bytes.saturating_mul(self.small()?);
            if u64::from(bytes) > MOST_BYTES {
                return Err(syntax(self.line(), format!("`{name}` is too large")));
            }
            self.expect(']')?;
        }
        Ok(Parameter { name, align: align.unwrap_or(element), bytes })
    }

    fn kernel(&mut self) -> Result<()> {
        let line = self.line();
        let name = self.word()?;
        let mut kernel = KernelTree {
            name,
            line,
            parameters: vec![],
            variables: vec![],
            instructions: vec![],
            labels: HashMap::new(),
            scopes: vec![],
            registers: [0; 3],
            max_threads: None,
            min_blocks: 0,
            max_registers: None,
            cluster: [1; 3],
        };
        if self.eat('(') {
            while !self.eat(')') {
                kernel.parameters.push(self.parameter()?);
                self.eat(',');
            }
        }
        while let Some(Token::Word(word)) = self.peek() {
            self.at += 1;
            match word {
                ".maxntid" | ".reqntid" => {
                    let mut threads = self.small()?;
                    while self.eat(',') {
                        threads = threads.saturating_mul(self.small()?);
                    }
                    kernel.max_threads = Some(threads);
                }
                ".explicitcluster" => {}
                ".reqnctapercluster" => {
                    kernel.cluster = [self.small()?, 1, 1];
                    for d in 1..3 {
                        if self.eat(',') {
                            kernel.cluster[d] = self.small()?;
                        }
                    }
                    if kernel.cluster.contains(&0) {
                        return Err(syntax(self.line(), "a cluster of no blocks".to_owned()));
                    }
                }
                ".minnctapersm" => kernel.min_blocks = self.small()?,
                ".maxnreg" => kernel.max_registers = Some(self.small()?),
                ".maxclusterrank" => {
                    self.small()?;
                }
                _ => return Err(syntax(self.line(), format!("the directive `{word}` of a kernel is not supported"))),
            }
        }
        self.expect('{')?;
        let mut scopes = Scopes::new();
        let mut location = None;
        while !scopes.open.is_empty() {
            self.statement(&mut kernel, &mut scopes, &mut location)?;
        }
        kernel.scopes = scopes.parents;
        kernel.registers = scopes.counts;
        self.tree.kernels.push(kernel);
        Ok(())
    }

    fn statement(&mut self, kernel: &mut KernelTree<'t>, scopes: &mut Scopes<'t>, location: &mut Option<u32>) -> Result<()> {
        let line = self.line();
        match self.peek() {
            Some(Token::Mark('{')) => {
                self.at += 1;
                scopes.enter();
            }
            Some(Token::Mark('}')) => {
                self.at += 1;
                scopes.open.pop();
            }
            Some(Token::Mark(';')) => self.at += 1,
            Some(Token::Mark('@')) => {
                self.at += 1;
                let negated = self.eat('!');
                let name = self.word()?;
                let guard = match scopes.find(name) {
                    Some(Register { class: Class::Predicate, index }) => Some((index, negated)),
                    Some(_) => return Err(syntax(line, format!("`{name}` guards an instruction and is no predicate"))),
                    None => return Err(LoadError::Undeclared { line, name: name.to_owned() }),
                };
                let instruction = self.instruction(scopes, guard, *location)?;
                kernel.instructions.push(instruction);
            }
            Some(Token::Word(word)) if word.starts_with('.') => {
                self.at += 1;
                match word {
                    ".reg" => self.registers(scopes)?,
                    ".loc" => *location = Some(self.location()?),
                    ".pragma" => self.skip_statement()?,
                    ".shared" | ".local" | ".const" | ".global" => {
                        let variables = self.variables(space(word).expect("matched above"))?;
                        kernel.variables.extend(variables);
                    }
                    _ => return Err(syntax(line, format!("the directive `{word}` is not supported in a kernel"))),
                }
            }
            Some(Token::Word(word)) if self.tokens.get(self.at + 1).map(|l| l.token) == Some(Token::Mark(':')) => {
                self.at += 2;
                let scope = scopes.open.last().map_or(0, |s| s.id);
                if kernel.labels.insert((scope, word), kernel.instructions.len() as u32).is_some() {
                    return Err(syntax(line, format!("the label `{word}` is there twice")));
                }
            }
            Some(Token::Word(_)) => {
                let instruction = self.instruction(scopes, None, *location)?;
                kernel.instructions.push(instruction);
            }
            _ => return self.unexpected("an instruction"),
        }
        Ok(())
    }

    fn registers(&mut self, scopes: &mut Scopes<'t>) -> Result<()> {
        let line = self.line();
        let word = self.word()?;
        let class = match word {
            ".pred" => Class::Predicate,
            ".b128" => return Err(syntax(line, "128-bit registers are not supported")),
            _ => match type_bytes(word) {
                Some(1 | 2) => Class::Half,
                Some(4) => Class::Word,
                Some(8) => Class::Double,
                _ => return Err(syntax(line, format!("`{word}` is not a type of registers"))),
            },
        };
        loop {
            let name = self.word()?;
            if self.eat('<') {
                let count = self.small()?;
                self.expect('>')?;
                let first = scopes.take(class, count);
                let scope = scopes.open.last_mut().expect("a statement is in a scope");
                scope.families.insert(name, (class, first, count));
            } else {
                let index = scopes.take(class, 1);
                let scope = scopes.open.last_mut().expect("a statement is in a scope");
                scope.names.insert(name, Register { class, index });
            }
            if scopes.counts.iter().any(|c| *c > MOST_REGISTERS) {
                return Err(syntax(line, format!("more than {MOST_REGISTERS} registers of a class")));
            }
            if !self.eat(',') {
                break;
            }
        }
        self.expect(';')
    }

    /// `.loc file line column [, function_name label [+ offset], inlined_at file line column]` (PTX ISA 11.5.3).
    fn location(&mut self) -> Result<u32> {
        let place = (self.small()?, self.small()?, self.small()?);
        let mut parent = None;
        while self.eat(',') {
            match self.word()? {
                "function_name" => {
                    self.word()?;
                    if self.eat('+') {
                        self.small()?;
                    }
                }
                "inlined_at" => {
                    let call = (self.small()?, self.small()?, self.small()?);
                    parent = Some(match self.latest.get(&call) {
                        Some(&known) => known,
                        None => self.place(call, None),
                    });
                }
                _ => return self.unexpected("`function_name` or `inlined_at`"),
            }
        }
        Ok(self.place(place, parent))
    }

    fn place(&mut self, (file, line, column): (u32, u32, u32), parent: Option<u32>) -> u32 {
        let location = Location { file, line, column, parent };
        if let Some(&known) = self.latest.get(&(file, line, column))
            && self.tree.locations[known as usize] == location
        {
            return known;
        }
        let index = self.tree.locations.len() as u32;
        self.tree.locations.push(location);
        self.latest.insert((file, line, column), index);
        index
    }

    fn instruction(&mut self, scopes: &Scopes<'t>, guard: Option<(u32, bool)>, location: Option<u32>) -> Result<Instruction<'t>> {
        let line = self.line();
        let opcode = self.word()?;
        let mut operands = Vec::new();
        if !self.eat(';') {
            loop {
                operands.push(self.operand(scopes)?);
                if !self.eat(',') {
                    break;
                }
            }
            self.expect(';')?;
        }
        let scope = scopes.open.last().map_or(0, |s| s.id);
        Ok(Instruction { line, location, guard, opcode, operands, scope })
    }
}

fn space(word: &str) -> Option<Space> {
    Some(match word {
        ".global" => Space::Global,
        ".shared" => Space::Shared,
        ".local" => Space::Local,
        ".const" => Space::Const,
        ".param" => Space::Param,
        _ => return None,
    })
}

/// Bytes of a fundamental type (PTX ISA 5.2).
fn type_bytes(word: &str) -> Option<u32> {
    Some(match word {
        ".b8" | ".u8" | ".s8" => 1,
        ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => 2,
        ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => 4,
        ".b64" | ".u64" | ".s64" | ".f64" => 8,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::syntax::Operand;

    fn kernel(body: &str) -> String {
        format!(".version 9.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 k_param_0)\n{{\n{body}\n}}\n")
    }

    #[test]
    fn scopes_hide_registers_and_labels() {
        let text = kernel(
            ".reg .pred %p<2>; .reg .b32 %r<4>;\n{ .reg .pred p; W: setp.eq.s32 p, %r1, 0; @p bra W; }\n{ .reg .pred p; W: @!p bra W; }\nret;",
        );
        let tree = parse(&text).expect("parses");
        let k = &tree.kernels[0];
        assert_eq!(k.registers, [4, 4, 0]);
        assert_eq!(k.instructions.len(), 4);
        assert_eq!(k.instructions[1].guard, Some((2, false)));
        assert_eq!(k.instructions[2].guard, Some((3, true)));
        let targets: Vec<_> = [1, 2].map(|i: usize| k.label(k.instructions[i].scope, "W")).into();
        assert_eq!(targets, [Some(0), Some(2)]);
        assert_eq!(k.label(0, "W"), None);
    }

    #[test]
    fn a_location_leads_out_to_the_line_of_the_kernel() {
        let text = kernel(
            ".loc 2 13 3\n.loc 1 149 9, function_name $L0, inlined_at 2 13 3\n.loc 1 26 12, function_name $L1+4, inlined_at 1 149 9\nret;",
        ) + ".file 1 \"a.cu\"\n.file 2 \"a.rs\"\n.section .debug_str\n{\n$L0:\n.b8 95,0\n}\n";
        let tree = parse(&text).expect("parses");
        let mut at = tree.kernels[0].instructions[0].location;
        let mut lines = vec![];
        while let Some(index) = at {
            let location = tree.locations[index as usize];
            lines.push((location.file, location.line));
            at = location.parent;
        }
        assert_eq!(lines, [(1, 26), (1, 149), (2, 13)]);
        assert_eq!(tree.files, [(1, "a.cu"), (2, "a.rs")]);
    }

    #[test]
    fn operands_of_all_kinds() {
        let text = kernel(
            ".reg .b32 %r<9>; .reg .b64 %rd<3>; .reg .pred %p<2>; .reg .f32 %f<3>;\n\
            ld.shared.v2.b32 {%r1, _}, [%r2+-8];\n shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;\n\
            cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2,%r3}], [%r4];\n\
            selp.f32 %f1, 0f3F800000, %f2, %p1;\n mov.u32 %r1, %tid.x;",
        );
        let tree = parse(&text).expect("parses");
        let all = &tree.kernels[0].instructions;
        assert!(matches!(&all[0].operands[1], Operand::Address { offset: -8, .. }));
        assert!(matches!(&all[0].operands[0], Operand::Vector(v) if v[1] == Operand::Sink));
        assert!(matches!(&all[1].operands[0], Operand::Pair(..)));
        assert!(matches!(&all[2].operands[1], Operand::Address { coordinates, .. } if coordinates.len() == 2));
        assert_eq!(all[3].operands[1], Operand::Single(0x3f80_0000));
        assert_eq!(all[4].operands[1], Operand::Special("%tid.x"));
    }

    #[test]
    fn faults_name_their_line() {
        let fault = |body: &str| parse(&kernel(body)).expect_err("is wrong").to_string();
        assert_eq!(fault("ret"), "line 7: expected an operand, found `}`");
        assert_eq!(fault("\n@%p9 bra L;"), "line 7: `%p9` is not declared");
        assert_eq!(fault("call f;\n.callprototype x;"), "line 7: the directive `.callprototype` is not supported in a kernel");
    }
}
