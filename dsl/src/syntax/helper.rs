//! The headers of helper functions: `fn` with a return type. A helper takes and gives values of the
//! language, and is lowered where it is called: see [`super::inline`].

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};

use syn::{FnArg, GenericParam, ItemFn, Meta, Pat, PathArguments, ReturnType, Safety, Type, TypeParamBound};

use super::diagnostic::{Diagnostic, Reporter, Severity};
use super::position::{Positions, bare};
use super::scope::VariableId;
use super::signature::quoted;
use crate::ir::{Elem, Kernel, Span};

/// What a parameter takes, or a helper gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Any value of the language but a coordinate: a tile of any shape and element type, or a
    /// scalar.
    Tile,
    /// A float that is the same in the whole tile.
    F32,
    /// An integer that is the same in the whole tile: a size, an index, an `i32`.
    I32,
    /// A truth value that is the same in the whole tile.
    Bool,
    /// The coordinate of a tile.
    Coord,
    /// An input tensor of the kernel.
    Tensor,
}

impl Kind {
    /// The type, as it is written.
    pub(super) fn written(self) -> &'static str {
        match self {
            Kind::Tile => "Tile",
            Kind::F32 => "f32",
            Kind::I32 => "i32",
            Kind::Bool => "bool",
            Kind::Coord => "Coord",
            Kind::Tensor => "&Tensor",
        }
    }

    /// What it takes, in words.
    pub(super) fn takes(self) -> &'static str {
        match self {
            Kind::Tile => "a tile or a scalar",
            Kind::F32 => "a float",
            Kind::I32 => "an integer that is the same in the whole program",
            Kind::Bool => "a truth value that is the same in the whole program",
            Kind::Coord => "the coordinate of a tile",
            Kind::Tensor => "an input tensor",
        }
    }
}

/// A generic parameter of a helper.
#[derive(Clone, Debug)]
pub(super) enum Generic {
    /// `T: Element`
    Type(String),
    /// `const D: usize`
    Size(String, Span),
}

/// A parameter of a helper.
#[derive(Clone, Debug)]
pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) span: Span,
    pub(super) kind: Kind,
    /// Whether the helper may assign it, in its own body.
    pub(super) is_mutable: bool,
}

/// A helper whose header is sound.
#[derive(Debug)]
pub(super) struct Helper {
    pub(super) name: String,
    pub(super) name_span: Span,
    pub(super) generics: Vec<Generic>,
    pub(super) parameters: Vec<Parameter>,
    /// What it gives; more than one for a tuple.
    pub(super) results: Vec<Kind>,
    /// From the first token to the last.
    pub(super) span: Span,
    pub(super) body: syn::Block,
}

impl Helper {
    /// How it is called, for messages.
    pub(super) fn usage(&self) -> String {
        let names: Vec<_> = self.parameters.iter().map(|p| p.name.as_str()).collect();
        let generics = self.generics.iter().map(|g| match g {
            Generic::Type(name) | Generic::Size(name, _) => name.as_str(),
        });
        let generics = generics.collect::<Vec<_>>().join(", ");
        let turbofish = if generics.is_empty() { String::new() } else { format!("::<{generics}>") };
        format!("{}{turbofish}({})", self.name, names.join(", "))
    }
}

/// The helpers of a text.
#[derive(Debug, Default)]
pub(super) struct Helpers {
    list: Vec<Helper>,
    /// Those that a kernel calls, maybe through others.
    called: RefCell<BTreeSet<usize>>,
}

impl Helpers {
    /// Adds a helper, unless its header has an error, which is reported.
    pub(super) fn add(&mut self, function: &ItemFn, positions: &Positions, reporter: &Reporter) {
        let errors_before = reporter.count();
        let mut header = Header { positions, reporter, names: BTreeSet::new() };
        let helper = header.read(function);
        if let Some(other) = self.list.iter().find(|other| other.name == helper.name) {
            let error = Diagnostic::new(helper.name_span, format!("two functions are called `{}`", other.name))
                .label("the second one")
                .help("rename one of them");
            reporter.report(error);
        }
        if reporter.since(errors_before).is_ok() {
            self.list.push(helper);
        }
    }

    /// Reports kernels that have the name of a helper.
    pub(super) fn check_names<'k>(&self, kernels: impl Iterator<Item = &'k Kernel>, reporter: &Reporter) {
        for kernel in kernels.filter(|kernel| self.find(&kernel.name).is_some()) {
            let error = Diagnostic::new(kernel.name_span, format!("two functions are called `{}`", kernel.name))
                .label("a kernel; the other one is a helper")
                .help("rename one of them");
            reporter.report(error);
        }
    }

    /// The helper of this name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|helper| helper.name == name)
    }

    /// A helper.
    pub(super) fn get(&self, index: usize) -> &Helper {
        &self.list[index]
    }

    /// Their names.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|helper| helper.name.as_str())
    }

    /// Marks a helper as called.
    pub(super) fn call(&self, index: usize) {
        self.called.borrow_mut().insert(index);
    }

    /// A warning on each helper that no kernel calls.
    pub(super) fn unused(&self) -> Vec<Diagnostic> {
        let called = self.called.borrow();
        let unused = |(index, helper): &(usize, &Helper)| !called.contains(index) && !helper.name.starts_with('_');
        let warning = |(_, helper): (usize, &Helper)| {
            let name = &helper.name;
            Diagnostic::new(helper.name_span, format!("`{name}` is never called"))
                .label("no kernel calls this helper, so that its body is not checked")
                .help(format!("remove it, or call it `_{name}`"))
                .severity(Severity::Warning)
        };
        self.list.iter().enumerate().filter(unused).map(warning).collect()
    }
}

/// A call in progress.
#[derive(Debug)]
pub(super) struct Frame {
    /// The helper.
    pub(super) helper: usize,
    /// The element types under the names of its type parameters.
    pub(super) elems: Vec<(String, Elem)>,
    /// The names visible at the call.
    pub(super) outside: Vec<HashMap<String, VariableId>>,
}

/// Reads the header of one helper.
struct Header<'a> {
    positions: &'a Positions,
    reporter: &'a Reporter,
    /// Generics and parameters so far.
    names: BTreeSet<String>,
}

impl Header<'_> {
    fn read(&mut self, function: &ItemFn) -> Helper {
        let signature = &function.sig;
        let (name, name_span) = (bare(&signature.ident), self.positions.of(&signature.ident));
        self.check_plain(function);
        let generics = signature.generics.params.iter().filter_map(|param| self.generic(param)).collect();
        let parameters = signature.inputs.iter().filter_map(|argument| self.parameter(argument)).collect();
        let results = match &signature.output {
            ReturnType::Type(_, ty) => self.results(ty),
            ReturnType::Default => Vec::new(),
        };
        let (span, body) = (self.positions.of(function), (*function.block).clone());
        Helper { name, name_span, generics, parameters, results, span, body }
    }

    fn check_plain(&self, function: &ItemFn) {
        let signature = &function.sig;
        let refuse = |span: Option<Span>, message: &str, help: &str| {
            if let Some(span) = span {
                self.reporter.report(Diagnostic::new(span, message).help(help));
            }
        };
        let plain = ("a helper is a plain function", "write `fn name(x: Tile) -> Tile`");
        refuse(signature.constness.as_ref().map(|t| self.positions.of(t)), plain.0, plain.1);
        refuse(signature.asyncness.as_ref().map(|t| self.positions.of(t)), plain.0, plain.1);
        refuse(signature.abi.as_ref().map(|t| self.positions.of(t)), plain.0, plain.1);
        let is_safe = matches!(signature.safety, Safety::Default);
        refuse((!is_safe).then(|| self.positions.of(&signature.safety)), plain.0, plain.1);
        let clause = signature.generics.where_clause.as_ref().map(|c| self.positions.of(c));
        refuse(clause, "a helper has no `where` clause", "a type parameter is bound where it is declared: `T: Element`");
        let variadic = signature.variadic.as_ref().map(|v| self.positions.of(v));
        refuse(variadic, "a helper has a fixed list of parameters", "name each parameter: `x: Tile`");
        for attribute in &function.attrs {
            let documents = matches!(&attribute.meta, Meta::NameValue(meta) if meta.path.is_ident("doc"));
            if !documents && !attribute.path().is_ident("allow") {
                let help = "documentation comments (`///`) and `#[allow(..)]` may stand here";
                refuse(Some(self.positions.of(attribute)), "a helper has no attributes but `allow`", help);
            }
        }
    }

    /// Whether the name is the first of its kind; reports it otherwise.
    fn fresh(&mut self, name: &str, span: Span) -> bool {
        let fresh = self.names.insert(name.to_owned());
        if !fresh {
            let error = Diagnostic::new(span, format!("the name `{name}` is already taken")).label("declared a second time");
            self.reporter.report(error.help("rename one of the two"));
        }
        fresh
    }

    fn generic(&mut self, param: &GenericParam) -> Option<Generic> {
        match param {
            GenericParam::Type(param) => {
                let (name, span) = (bare(&param.ident), self.positions.of(&param.ident));
                let element = |b: &TypeParamBound| matches!(b, TypeParamBound::Trait(t) if t.path.is_ident("Element"));
                if param.bounds.len() != 1 || !param.bounds.iter().all(element) || param.default.is_some() {
                    let error = Diagnostic::new(self.positions.of(param), format!("`{name}` must be an element type"));
                    self.reporter.report(error.help(format!("write `{name}: Element`")));
                }
                self.fresh(&name, span).then_some(Generic::Type(name))
            }
            GenericParam::Const(param) => {
                let (name, span) = (bare(&param.ident), self.positions.of(&param.ident));
                if !matches!(&param.ty, Type::Path(path) if path.path.is_ident("usize")) || param.default.is_some() {
                    let error = Diagnostic::new(self.positions.of(param), format!("`{name}` must be a `usize`"));
                    self.reporter.report(error.help(format!("write `const {name}: usize`")));
                }
                self.fresh(&name, span).then_some(Generic::Size(name, span))
            }
            GenericParam::Lifetime(param) => {
                let error = Diagnostic::new(self.positions.of(param), "a helper has no lifetimes");
                self.reporter.report(error.help("remove it: a tensor is taken as `&Tensor`"));
                None
            }
        }
    }

    fn parameter(&mut self, argument: &FnArg) -> Option<Parameter> {
        let FnArg::Typed(argument) = argument else {
            let error = Diagnostic::new(self.positions.of(argument), "a helper has no `self`");
            self.reporter.report(error.help("name the parameter: `x: Tile`"));
            return None;
        };
        let ident = match &*argument.pat {
            Pat::Ident(ident) if ident.by_ref.is_none() && ident.subpat.is_none() => ident,
            other => {
                let error = Diagnostic::new(self.positions.of(other), "expected the name of a parameter");
                self.reporter.report(error.label(format!("found {}", quoted(other))).help("write `x: Tile`"));
                return None;
            }
        };
        let (name, span, is_mutable) = (bare(&ident.ident), self.positions.of(&ident.ident), ident.mutability.is_some());
        let kind = self.kind(&argument.ty)?;
        if is_mutable && matches!(kind, Kind::Coord | Kind::Tensor) {
            let error = Diagnostic::new(span, format!("`{name}` cannot be assigned")).label(kind.takes());
            self.reporter.report(error.help("remove the `mut`"));
        }
        self.fresh(&name, span).then_some(Parameter { name, span, kind, is_mutable })
    }

    fn kind(&self, ty: &Type) -> Option<Kind> {
        let named = |ty: &Type| match ty {
            Type::Path(path) if path.qself.is_none() => path.path.get_ident().map(bare),
            _ => None,
        };
        let is_tensor = |ty: &Type| match ty {
            Type::Path(path) => path.path.segments.last().is_some_and(|segment| segment.ident == "Tensor"),
            _ => false,
        };
        let has_shape = |ty: &Type| match ty {
            Type::Path(path) => path.path.segments.iter().any(|segment| !matches!(segment.arguments, PathArguments::None)),
            _ => false,
        };
        let help = match (named(ty).as_deref(), ty) {
            (Some("Tile"), _) => return Some(Kind::Tile),
            (Some("f32"), _) => return Some(Kind::F32),
            (Some("i32"), _) => return Some(Kind::I32),
            (Some("bool"), _) => return Some(Kind::Bool),
            (Some("Coord"), _) => return Some(Kind::Coord),
            (_, Type::Reference(reference)) if is_tensor(&reference.elem) => {
                match (reference.mutability.is_some(), has_shape(&reference.elem)) {
                    (true, _) => "a helper stores nothing: give the tile back, and store it in the kernel",
                    (false, true) => "write `&Tensor`: shape and element type are those of the tensor that is given",
                    (false, false) => return Some(Kind::Tensor),
                }
            }
            (Some("usize" | "u32" | "i64" | "u64"), _) => "write `i32`, which takes sizes and indices too",
            (Some("f16" | "bf16" | "f64"), _) => "write `Tile`, which takes values of every element type, or `f32`",
            (_, other) if is_tensor(other) => "write `&Tensor`",
            _ => "the types are `Tile`, `f32`, `i32`, `bool`, `Coord` and `&Tensor`",
        };
        let error = Diagnostic::new(self.positions.of(ty), "this is not a type of a helper's parameter");
        self.reporter.report(error.label(format!("found {}", quoted(ty))).help(help));
        None
    }

    fn results(&self, ty: &Type) -> Vec<Kind> {
        let types: Vec<&Type> = match ty {
            Type::Tuple(tuple) => tuple.elems.iter().collect(),
            Type::Paren(paren) => vec![&paren.elem],
            other => vec![other],
        };
        let is_tuple = matches!(ty, Type::Tuple(_));
        if is_tuple && types.len() < 2 {
            let error =
                Diagnostic::new(self.positions.of(ty), "a helper gives a value, or several").label("a tuple of less than two");
            self.reporter.report(error.help("write `-> Tile` or `-> (Tile, Tile)`"));
        }
        let result = |ty: &&Type| {
            let kind = match ty {
                Type::Path(_) => self.kind(ty),
                _ => None,
            };
            if !matches!(kind, Some(Kind::Tile | Kind::F32 | Kind::I32 | Kind::Bool)) {
                let error = Diagnostic::new(self.positions.of(*ty), "this is not a type that a helper gives");
                self.reporter
                    .report(error.label(format!("found {}", quoted(*ty))).help("the types are `Tile`, `f32`, `i32` and `bool`"));
            }
            kind
        };
        types.iter().filter_map(result).collect()
    }
}
