//! Between token spans and byte ranges of the kernel text.
//!
//! proc-macro2 spans know lines and columns both in a macro and outside; byte offsets are known outside only. So a
//! position is always taken from line and column. In a macro the text is rebuilt from the tokens with every line and
//! column in its place ([`Embedded`]), and the tokens' spans are kept to point rustc's errors.

use std::sync::Arc;

use proc_macro2::{Delimiter, Ident, LineColumn, Spacing, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt as _;

use crate::ir::{SourceText, Span};

/// A name as the IR has it: that of a raw identifier, such as `r#in`, is `in`.
pub(super) fn bare(ident: &Ident) -> String {
    ident.unraw().to_string()
}

/// Maps token spans to spans of one text.
#[derive(Debug)]
pub(super) struct Positions {
    text: Arc<str>,
    /// Byte offset of the start of each line.
    line_starts: Vec<usize>,
    /// Line that tokens of the first line of the text report; `None` if tokens tell nothing.
    first_line: Option<usize>,
}

impl Positions {
    /// Positions of tokens lexed from `text`, the first line of which the tokens call `first_line`.
    pub(super) fn new(text: &Arc<str>, first_line: Option<usize>) -> Self {
        let line_starts = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
        Self { text: Arc::clone(text), line_starts, first_line }
    }

    /// The byte range of a token.
    pub(super) fn token(&self, span: proc_macro2::Span) -> Span {
        self.range(span, span)
    }

    /// The byte range from the first to the last token of a syntax node.
    pub(super) fn of(&self, node: &impl ToTokens) -> Span {
        let mut tokens = node.to_token_stream().into_iter();
        match tokens.next() {
            None => Span::default(),
            Some(first) => {
                let start = first.span();
                let end = tokens.last().unwrap_or(first).span();
                self.range(start, end)
            }
        }
    }

    /// The byte range from the start of one token to the end of another.
    pub(super) fn range(&self, first: proc_macro2::Span, last: proc_macro2::Span) -> Span {
        match (self.offset(first.start()), self.offset(last.end())) {
            (Some(start), Some(end)) if start <= end => Span { start, end },
            _ => Span::default(),
        }
    }

    fn offset(&self, at: LineColumn) -> Option<u32> {
        let line = at.line.checked_sub(self.first_line?)?;
        let start = *self.line_starts.get(line)?;
        let end = self.line_starts.get(line + 1).copied().unwrap_or(self.text.len());
        let in_line = self.text.get(start..end)?;
        let column = in_line.char_indices().map(|(offset, _)| offset).chain([in_line.len()]).nth(at.column)?;
        u32::try_from(start + column).ok()
    }
}

/// The text of a macro's input, rebuilt from its tokens.
#[derive(Debug)]
pub struct Embedded {
    /// The text: every token at its line and column, comments and spacing lost.
    pub source: SourceText,
    /// Byte ranges of the tokens with their spans, in order.
    tokens: Vec<(Span, proc_macro2::Span)>,
    /// Whether tokens are at their lines and columns: not so if another macro wrote them.
    in_place: bool,
}

impl Embedded {
    /// Rebuilds the text of `tokens`, which are in the file `name`.
    pub fn new(tokens: &TokenStream, name: &str) -> Self {
        let mut writer = Writer::default();
        writer.stream(tokens.clone());
        let text = if writer.in_place { writer.text } else { tokens.to_string() };
        let first_line = writer.first_line.unwrap_or(1);
        let source = SourceText { name: name.into(), text: text.into(), first_line: first_line as u32 };
        Self { source, tokens: writer.tokens, in_place: writer.in_place }
    }

    /// The positions of the tokens in the text.
    pub(super) fn positions(&self) -> Positions {
        Positions::new(&self.source.text, self.in_place.then_some(self.source.first_line as usize))
    }

    /// The first and last token in a range of the text, to point rustc at; the macro call where there is none.
    pub fn tokens_at(&self, span: Span) -> (proc_macro2::Span, proc_macro2::Span) {
        let mut inside = self.tokens.iter().filter(|(at, _)| at.start < span.end && at.end > span.start).map(|&(_, s)| s);
        match inside.next() {
            Some(first) if self.in_place => (first, inside.next_back().unwrap_or(first)),
            _ => (proc_macro2::Span::call_site(), proc_macro2::Span::call_site()),
        }
    }
}

/// Most lines without a token that are taken for comments of the user's.
const LONGEST_GAP: usize = 10_000;

/// Writes tokens at their lines and columns.
#[derive(Debug)]
struct Writer {
    text: String,
    tokens: Vec<(Span, proc_macro2::Span)>,
    first_line: Option<usize>,
    line: usize,
    column: usize,
    in_place: bool,
}

impl Default for Writer {
    fn default() -> Self {
        Self { text: String::new(), tokens: Vec::new(), first_line: None, line: 0, column: 0, in_place: true }
    }
}

impl Writer {
    fn stream(&mut self, tokens: TokenStream) {
        let mut tokens = tokens.into_iter().peekable();
        while let Some(tree) = tokens.next() {
            match tree {
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        Delimiter::Parenthesis => ("(", ")"),
                        Delimiter::Brace => ("{", "}"),
                        Delimiter::Bracket => ("[", "]"),
                        Delimiter::None => ("", ""),
                    };
                    self.token(open, group.span_open());
                    self.stream(group.stream());
                    self.token(close, group.span_close());
                }
                TokenTree::Punct(punct) if punct.as_char() == '#' && punct.spacing() == Spacing::Alone => {
                    let doc = match tokens.peek() {
                        Some(TokenTree::Group(g)) if same_place(g.span(), punct.span()) => doc_comment(g.stream(), punct.span()),
                        _ => None,
                    };
                    match doc {
                        Some(comment) => {
                            self.token(&comment, punct.span());
                            tokens.next();
                        }
                        None => self.token("#", punct.span()),
                    }
                }
                // Both tokens of a lifetime are at its first column.
                TokenTree::Punct(punct) if punct.as_char() == '\'' => match tokens.next() {
                    Some(TokenTree::Ident(name)) => self.token(&format!("'{name}"), punct.span()),
                    _ => unreachable!("a name follows the mark of a lifetime"),
                },
                other => self.token(&other.to_string(), other.span()),
            }
        }
    }

    fn token(&mut self, token: &str, span: proc_macro2::Span) {
        if token.is_empty() {
            return;
        }
        let at = span.start();
        if self.first_line.is_none() {
            self.first_line = Some(at.line);
            self.line = at.line;
        }
        if at.line > self.line + LONGEST_GAP || at.line < self.line || (at.line == self.line && at.column < self.column) {
            self.in_place = false;
        }
        while self.in_place && self.line < at.line {
            self.text.push('\n');
            self.line += 1;
            self.column = 0;
        }
        while self.in_place && self.column < at.column {
            self.text.push(' ');
            self.column += 1;
        }
        let start = self.text.len() as u32;
        self.text.push_str(token);
        self.tokens.push((Span { start, end: self.text.len() as u32 }, span));
        self.line += token.matches('\n').count();
        self.column = match token.rsplit_once('\n') {
            Some((_, last)) => last.chars().count(),
            None => self.column + token.chars().count(),
        };
    }
}

fn same_place(a: proc_macro2::Span, b: proc_macro2::Span) -> bool {
    (a.start().line, a.start().column) == (b.start().line, b.start().column)
}

/// The doc comment whose attribute has these tokens, if it is one, as it stands at `span`.
fn doc_comment(attribute: TokenStream, span: proc_macro2::Span) -> Option<String> {
    let trees: Vec<_> = attribute.into_iter().collect();
    let [TokenTree::Ident(name), TokenTree::Punct(_), TokenTree::Literal(literal)] = &trees[..] else { return None };
    let text = syn::parse2::<syn::LitStr>(TokenTree::Literal(literal.clone()).into()).ok()?.value();
    // A comment in `/**` and `*/` may have code behind it in its line.
    let (start, end) = (span.start(), span.end());
    let is_line = start.line == end.line && end.column.checked_sub(start.column) == Some("///".len() + text.chars().count());
    (name == "doc").then(|| if is_line { format!("///{text}") } else { format!("/**{text}*/") })
}
