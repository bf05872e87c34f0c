//! One function to one kernel: the header, the body, and what can be said only at the end.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::ItemFn;

use super::diagnostic::{Call, Checked, Diagnostic, Reporter};
use super::helper::{Frame, Helpers};
use super::operand::Operand;
use super::position::{Positions, bare};
use super::scope::{Meaning, Origin, Scopes, Variable};
use super::signature::Header;
use crate::ir::{Builder, Kernel, Op, ParamId, ParamKind, SourceText, Span, ValueId, verify};

/// The state of lowering one function. The other modules of the front end add to its methods, each on its subject.
pub(super) struct Lowering<'a> {
    pub(super) positions: &'a Positions,
    pub(super) reporter: &'a Reporter,
    pub(super) helpers: &'a Helpers,
    pub(super) builder: Builder,
    pub(super) scopes: Scopes,
    /// Parameters that the body mentions.
    pub(super) used: BTreeSet<ParamId>,
    /// Outputs that the body stores to.
    pub(super) stored: BTreeSet<ParamId>,
    /// Whether `program` has been seen.
    pub(super) has_program: bool,
    /// The calls of helpers in progress, the outermost first.
    pub(super) frames: Vec<Frame>,
}

/// Lowers a function; the kernel it gives is verified, and comes with the warnings on it.
pub(super) fn lower_kernel(
    function: &ItemFn,
    positions: &Positions,
    source: &SourceText,
    reporter: &Reporter,
    helpers: &Helpers,
) -> Checked<(Kernel, Vec<Diagnostic>)> {
    let errors_before = reporter.count();
    let mut builder = Builder::new(bare(&function.sig.ident));
    builder.kernel.source = source.clone();
    builder.kernel.name_span = positions.of(&function.sig.ident);
    Header { positions, reporter, builder: &mut builder, mentioned: BTreeMap::new() }.read(function);
    let header_is_sound = reporter.count() == errors_before;

    let mut lowering = Lowering {
        positions,
        reporter,
        helpers,
        builder,
        scopes: Scopes::default(),
        used: BTreeSet::new(),
        stored: BTreeSet::new(),
        has_program: false,
        frames: Vec::new(),
    };
    lowering.declare_parameters(function);
    lowering.body(&function.block);
    if header_is_sound {
        let body_is_sound = reporter.count() == errors_before;
        lowering.check_parameters(function, body_is_sound);
    }
    let warnings = if reporter.count() == errors_before { lowering.unused(function) } else { Vec::new() };
    let kernel = lowering.builder.finish();
    reporter.since(errors_before)?;
    if let Err(errors) = verify(&kernel) {
        for error in errors {
            let span = if error.span == Span::default() { kernel.name_span } else { error.span };
            let calls = kernel.calls_to(span).into_iter().map(Call::from).collect();
            reporter.report(Diagnostic::new(span, error.to_string()).called_by(calls));
        }
    }
    reporter.since(errors_before)?;
    Ok((kernel, warnings))
}

impl Lowering<'_> {
    /// Appends an op with one result, placed at `span`.
    pub(super) fn emit(&mut self, op: Op, span: Span) -> ValueId {
        self.builder.span = span;
        self.builder.emit(op)
    }

    fn declare_parameters(&mut self, function: &ItemFn) {
        self.scopes.open();
        let kernel = &self.builder.kernel;
        for (id, param) in kernel.params.iter() {
            let meaning = match param.kind {
                ParamKind::Tensor(_) => Meaning::Operand(Operand::Tensor(id)),
                // Becomes a value after `program`, which is the first op.
                ParamKind::Scalar(_) => Meaning::Unknown,
            };
            let (name, span) = (param.name.clone(), param.span);
            self.scopes.declare(Variable { name, meaning, origin: Origin::Param, span });
        }
        // A parameter with an error is known by name all the same.
        for argument in &function.sig.inputs {
            if let syn::FnArg::Typed(argument) = argument
                && let syn::Pat::Ident(ident) = &*argument.pat
            {
                let name = bare(&ident.ident);
                if self.scopes.find(&name).is_none() {
                    let span = self.positions.of(&ident.ident);
                    self.scopes.declare(Variable { name, meaning: Meaning::Unknown, origin: Origin::Param, span });
                }
            }
        }
    }

    /// Gives the scalar parameters their values, once `program` stands.
    pub(super) fn define_scalars(&mut self) {
        let params = self.builder.kernel.params.iter();
        let scalars = params.filter(|(_, p)| matches!(p.kind, ParamKind::Scalar(_)));
        let scalars: Vec<_> = scalars.map(|(id, p)| (id, p.name.clone(), p.span)).collect();
        for (id, name, span) in scalars {
            let value = self.emit(Op::Scalar(id), span);
            self.builder.name(value, name.clone());
            if let Some(variable) = self.scopes.find(&name) {
                self.scopes.set(variable, Meaning::Operand(Operand::Value(value)));
            }
        }
    }

    fn check_parameters(&self, function: &ItemFn, sound: bool) {
        // What stands in an expression with an error is not lowered, but mentioned.
        let mentioned = identifiers(function.block.to_token_stream());
        for (id, param) in self.builder.kernel.params.iter() {
            let output = param.kind.is_written();
            if output && !self.stored.contains(&id) {
                let error = Diagnostic::new(param.span, format!("nothing is stored to `{}`", param.name))
                    .label("declared `&mut`, an output")
                    .help(format!("add `store({}, [...], value);`, or remove the parameter", param.name));
                self.reporter.report(error);
            } else if !output && !self.used.contains(&id) && (sound || !mentioned.contains(&param.name)) {
                let error = Diagnostic::new(param.span, format!("`{}` is never used", param.name))
                    .label("unused parameter")
                    .help("use it, or remove it from the parameters");
                self.reporter.report(error);
            }
        }
    }
}

/// The names among tokens.
pub(super) fn identifiers(tokens: TokenStream) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for tree in tokens {
        match tree {
            TokenTree::Ident(ident) => {
                names.insert(bare(&ident));
            }
            TokenTree::Group(group) => names.append(&mut identifiers(group.stream())),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
    names
}
