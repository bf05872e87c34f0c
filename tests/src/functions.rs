//! Lengths of functions, in lines, read from the sources by `syn`.
//!
//! A function is as long as its text from `fn` to its closing brace; comments before it do not
//! count. Tests are not read, and neither are functions that a macro makes.

use proc_macro2::Span;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Block, Signature};

use crate::sources::is_test;

/// A function of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of its `fn`, from 1.
    pub line: usize,
    /// Lines of its text.
    pub lines: usize,
    /// Lines of its body without the largest `match` in it.
    pub beside_match: usize,
}

impl Function {
    /// Whether it has more lines than `most`, and is no flat match: beside its largest `match` the
    /// body of a flat match has at most `beside` lines.
    pub fn is_longer(&self, most: usize, beside: usize) -> bool {
        self.lines > most && self.beside_match > beside
    }
}

/// The functions of a file, of its types and traits too.
pub fn functions(file: &syn::File) -> Vec<Function> {
    let mut found = Functions(Vec::new());
    found.visit_file(file);
    found.0
}

struct Functions(Vec<Function>);

impl Functions {
    fn note(&mut self, signature: &Signature, body: &Block) {
        let mut largest = LargestMatch(0);
        largest.visit_block(body);
        let first = signature.fn_token.span.start().line;
        let braces = &body.brace_token.span;
        let (open, close) = (braces.open().start().line, braces.close().end().line);
        self.0.push(Function {
            name: signature.ident.to_string(),
            line: first,
            lines: close - first + 1,
            beside_match: (close - open).saturating_sub(1 + largest.0),
        });
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        let attributes: &[Attribute] = match item {
            syn::Item::Fn(item) => &item.attrs,
            syn::Item::Impl(item) => &item.attrs,
            syn::Item::Mod(item) => &item.attrs,
            syn::Item::Trait(item) => &item.attrs,
            _ => &[],
        };
        if !is_test(attributes) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.note(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            self.note(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(body) = &function.default {
            self.note(&function.sig, body);
        }
        visit::visit_trait_item_fn(self, function);
    }
}

/// Lines of the largest `match`.
struct LargestMatch(usize);

impl<'ast> Visit<'ast> for LargestMatch {
    fn visit_expr_match(&mut self, found: &'ast syn::ExprMatch) {
        self.0 = self.0.max(lines(found.span()));
        visit::visit_expr_match(self, found);
    }
}

/// Lines from the first to the last of a span.
fn lines(span: Span) -> usize {
    span.end().line - span.start().line + 1
}
