//! From a file, or the input of `flash_kernel!`, to the functions in it, each lowered to a kernel.

use std::str::FromStr;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use quote::ToTokens;
use syn::{Item, Visibility};

use super::builtin::words;
use super::diagnostic::{Diagnostic, Diagnostics, Reporter};
use super::elsewhere::instead_of;
use super::gradient::{self, Gradients};
use super::helper::Helpers;
use super::kernel::{identifiers, lower_kernel};
use super::position::{Embedded, Positions};
use super::{attributes, dimension, limit};
use crate::ir::{Kernel, SourceText, Span};

/// Reads every kernel of a text.
///
/// The text has bare functions, or functions inside `flash_kernel! { ... }`; whatever Rust stands beside a
/// `flash_kernel!` is ignored.
///
/// # Errors
/// Every error of every kernel.
///
/// ```
/// use flashtile_dsl::ir::SourceText;
///
/// let text = "pub fn double(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
///     let i = program(tiles(N));
///     store(y, [i], 2.0 * load(x, [i]));
/// }";
/// let source = SourceText { name: "double.rs".into(), text: text.into(), first_line: 1 };
/// let kernels = flashtile_dsl::syntax::parse(&source).expect("no errors");
/// assert_eq!(kernels[0].name, "double");
/// ```
pub fn parse(source: &SourceText) -> Result<Vec<Kernel>, Diagnostics> {
    parse_with_warnings(source).map(|parsed| parsed.kernels)
}

/// The kernels of a text, and what is worth a warning in it.
#[derive(Clone, PartialEq, Debug)]
pub struct Parsed {
    /// The kernels.
    pub kernels: Vec<Kernel>,
    /// The warnings on each of them, in the order of the text.
    pub warnings: Vec<Vec<Diagnostic>>,
}

/// Reads every kernel of a text as [`parse`] does, with the warnings.
///
/// # Errors
/// Every error of every kernel.
pub fn parse_with_warnings(source: &SourceText) -> Result<Parsed, Diagnostics> {
    let mut warnings = Vec::new();
    let reporter = Reporter::new();
    let mut kernels = Vec::new();
    match TokenStream::from_str(&source.text) {
        Ok(tokens) => {
            let positions = Positions::new(&source.text, Some(1));
            let inputs = macro_inputs(&tokens);
            let inputs = if inputs.is_empty() { vec![tokens] } else { inputs };
            let functions = inputs.into_iter().flat_map(|tokens| functions(tokens, &positions, source, &reporter));
            for function in functions {
                kernels.push(function.kernel);
                warnings.push(function.warnings);
            }
            check_names(&kernels, &reporter);
        }
        Err(error) => {
            let span = Positions::new(&source.text, Some(1)).token(error.span());
            reporter.report(Diagnostic::new(span, "this is not Rust").label("no token starts here, or a bracket is not closed"));
        }
    }
    finish(reporter, kernels, source, Span::default()).map(|kernels| Parsed { kernels, warnings })
}

/// A kernel read by the macro, with what the generated code repeats.
#[derive(Debug)]
pub struct Function {
    /// The kernel.
    pub kernel: Kernel,
    /// The warnings on it.
    pub warnings: Vec<Diagnostic>,
    /// What its `#[grad(..)]` asks for, if it has one.
    pub gradients: Option<Gradients>,
    /// Its `#[allow(..)]` attributes, for the generated code.
    pub allowed: Vec<syn::Attribute>,
    /// Its visibility.
    pub visibility: Visibility,
    /// Its name, with the place in the user's file.
    pub ident: Ident,
}

/// Reads the input of `flash_kernel!`, whose text `embedded` is.
///
/// # Errors
/// Every error of every kernel; [`Embedded::tokens_at`] tells where.
pub fn parse_macro(tokens: TokenStream, embedded: &Embedded) -> Result<Vec<Function>, Diagnostics> {
    let reporter = Reporter::new();
    let functions = functions(tokens, &embedded.positions(), &embedded.source, &reporter);
    let kernels: Vec<_> = functions.iter().map(|f| f.kernel.clone()).collect();
    check_names(&kernels, &reporter);
    finish(reporter, kernels, &embedded.source, Span::default()).map(|_| functions)
}

fn finish(reporter: Reporter, kernels: Vec<Kernel>, source: &SourceText, end: Span) -> Result<Vec<Kernel>, Diagnostics> {
    if kernels.is_empty() && reporter.count() == 0 {
        let help = "write `pub fn name(...) { ... }`, bare or inside `flash_kernel! { ... }`";
        reporter.report(Diagnostic::new(end, "there is no kernel here").help(help));
    }
    match reporter.take() {
        list if list.is_empty() => Ok(kernels),
        list => Err(Diagnostics { list, source: source.clone() }),
    }
}

/// Reports kernels that share a name.
fn check_names(kernels: &[Kernel], reporter: &Reporter) {
    for (n, kernel) in kernels.iter().enumerate() {
        if kernels[..n].iter().any(|other| other.name == kernel.name) {
            let error = Diagnostic::new(kernel.name_span, format!("two kernels are called `{}`", kernel.name))
                .label("the second one")
                .help("rename one of them");
            reporter.report(error);
        }
    }
}

/// The contents of every `flash_kernel! { ... }` in a file, wherever it stands.
fn macro_inputs(tokens: &TokenStream) -> Vec<TokenStream> {
    let mut inputs = Vec::new();
    let mut open = vec![tokens.clone().into_iter()];
    let mut before: [Option<TokenTree>; 2] = [None, None];
    while let Some(tokens) = open.last_mut() {
        let Some(tree) = tokens.next() else {
            open.pop();
            continue;
        };
        if let TokenTree::Group(group) = &tree {
            let called = matches!(&before, [Some(TokenTree::Ident(name)), Some(TokenTree::Punct(bang))]
                if name == "flash_kernel" && bang.as_char() == '!');
            if called {
                inputs.push(group.stream());
            } else {
                open.push(group.stream().into_iter());
            }
        }
        let [_, last] = before;
        before = [last, Some(tree)];
    }
    inputs
}

/// Lowers each kernel among `tokens`; what has errors is left out.
fn functions(tokens: TokenStream, positions: &Positions, source: &SourceText, reporter: &Reporter) -> Vec<Function> {
    if limit::check(tokens.clone(), positions, reporter).is_err() {
        return Vec::new();
    }
    let items: Vec<_> = items(tokens).into_iter().filter_map(|item| function(item, positions, reporter)).collect();
    items.iter().for_each(|function| attributes::check(function, positions, reporter));
    let (helpers, kernels): (Vec<_>, Vec<_>) = items.into_iter().partition(is_helper);
    let mut known = Helpers::default();
    let words = words();
    for helper in &helpers {
        let ident = &helper.sig.ident;
        if words.iter().any(|word| ident == word) {
            let error = Diagnostic::new(positions.of(ident), format!("`{ident}` is a word of the language"));
            reporter.report(error.label("the name of a helper").help("give the helper another name"));
        }
        known.add(helper, positions, reporter);
    }
    let mut functions: Vec<Function> = Vec::new();
    for function in kernels {
        if let Ok((kernel, warnings)) = lower_kernel(&function, positions, source, reporter, &known) {
            let gradients = gradient::read(&function.attrs, &kernel, positions, reporter);
            let allowed = function.attrs.into_iter().filter(|a| a.path().is_ident("allow")).collect();
            let (visibility, ident) = (function.vis, function.sig.ident);
            functions.push(Function { kernel, warnings, gradients, allowed, visibility, ident });
        }
    }
    known.check_names(functions.iter().map(|f| &f.kernel), reporter);
    // What is wrong in a helper is told once, with the first kernel that calls it.
    let mut told: Vec<Diagnostic> = Vec::new();
    for function in &mut functions {
        function.warnings.retain(|warning| !told.contains(warning));
        told.extend(function.warnings.iter().cloned());
    }
    if let Some(first) = functions.first_mut() {
        first.warnings.extend(known.unused());
    }
    functions
}

/// Whether a function is a helper: it gives something, and does not begin as a kernel does.
fn is_helper(function: &syn::ItemFn) -> bool {
    let returns = matches!(function.sig.output, syn::ReturnType::Type(..));
    returns && !identifiers(function.block.to_token_stream()).contains("program")
}

/// The function that an item is; reports what it is otherwise.
fn function(item: TokenStream, positions: &Positions, reporter: &Reporter) -> Option<syn::ItemFn> {
    match syn::parse2::<Item>(dimension::wrap(item)) {
        Ok(Item::Fn(function)) => return Some(function),
        Ok(other) => {
            let error = Diagnostic::new(positions.of(&other), "only functions are kernels")
                .label("not a function")
                .help("move it out of the kernel text");
            reporter.report(error);
        }
        Err(errors) => {
            for error in errors {
                let (said, word) = (error.to_string(), error.span().source_text());
                let help = match word.as_deref().and_then(instead_of) {
                    None if said.contains("cannot be chained") => Some("write `a < b && b < c`"),
                    help => help,
                };
                let error = Diagnostic::new(positions.token(error.span()), format!("syntax error: {said}"));
                reporter.report(help.into_iter().fold(error, Diagnostic::help));
            }
        }
    }
    None
}

/// Splits tokens after each item, that is after `{ ... }` and after `;`, so that a syntax error spoils one item only.
fn items(tokens: TokenStream) -> Vec<TokenStream> {
    let mut items = vec![TokenStream::new()];
    for tree in tokens {
        let ends = match &tree {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(punct) => punct.as_char() == ';',
            _ => false,
        };
        items.last_mut().expect("never empty").extend([tree]);
        if ends {
            items.push(TokenStream::new());
        }
    }
    items.retain(|item| !item.is_empty());
    items
}
