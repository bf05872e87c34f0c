//! A function's header: type parameters, const generics, tensors with their shapes, scalars, documentation.

use std::collections::BTreeMap;

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::{
    Attribute, Expr, FnArg, GenericArgument, GenericParam, ItemFn, Lit, Meta, Pat, PathArguments, ReturnType, Safety, Token,
    Type, TypeParamBound,
};

use super::diagnostic::{Checked, Diagnostic, Reported, Reporter};
use super::position::{Positions, bare};
use super::suggest::nearest;
use crate::ir::{Builder, Direction, Elem, Param, ParamKind, SizeId, SizeKind, Span, TensorDecl};

/// Reads headers into a [`Builder`].
pub(super) struct Header<'a> {
    pub(super) positions: &'a Positions,
    pub(super) reporter: &'a Reporter,
    pub(super) builder: &'a mut Builder,
    /// Where each size is mentioned first.
    pub(super) mentioned: BTreeMap<SizeId, Span>,
}

impl Header<'_> {
    /// Reads everything but the body.
    pub(super) fn read(&mut self, function: &ItemFn) {
        let signature = &function.sig;
        self.builder.kernel.doc = self.documentation(&function.attrs);
        let qualifier = if let Some(token) = &signature.constness {
            Some(self.positions.of(token))
        } else if let Some(token) = &signature.asyncness {
            Some(self.positions.of(token))
        } else if let Some(abi) = &signature.abi {
            Some(self.positions.of(abi))
        } else if !matches!(signature.safety, Safety::Default) {
            Some(self.positions.of(&signature.safety))
        } else {
            None
        };
        if let Some(span) = qualifier {
            let error = Diagnostic::new(span, "a kernel is a plain function").help("write `pub fn name(...)`");
            self.reporter.report(error);
        }
        if let ReturnType::Type(_, ty) = &signature.output {
            let error = Diagnostic::new(self.positions.of(ty), "a kernel returns nothing")
                .label("unexpected return type")
                .help("declare an output parameter, `o: &mut Tensor<T, (M, D)>`, and `store` to it");
            self.reporter.report(error);
        }
        if let Some(clause) = &signature.generics.where_clause {
            let error = Diagnostic::new(self.positions.of(clause), "a kernel has no `where` clause")
                .help("a type parameter is bound where it is declared: `T: Element`");
            self.reporter.report(error);
        }
        self.generics(&signature.generics.params);
        // All are checked; where one has an error, the shapes are not complete.
        let read = signature.inputs.iter().map(|argument| self.parameter(argument));
        let sound = read.fold(true, |sound, read| sound & read.is_ok());
        if sound {
            self.check_determined();
        }
        if let Some(variadic) = &signature.variadic {
            let error = Diagnostic::new(self.positions.of(variadic), "a kernel has a fixed list of parameters");
            self.reporter.report(error);
        }
    }

    fn documentation(&self, attributes: &[Attribute]) -> String {
        let mut lines = Vec::new();
        for attribute in attributes {
            match &attribute.meta {
                Meta::NameValue(meta) if meta.path.is_ident("doc") => {
                    if let Expr::Lit(literal) = &meta.value
                        && let Lit::Str(text) = &literal.lit
                    {
                        let text = text.value();
                        lines.push(text.strip_prefix(' ').unwrap_or(&text).to_owned());
                    }
                }
                // For the compiler of the generated code: see the macro. The other is read by
                // `gradient`.
                meta if meta.path().is_ident("allow") || meta.path().is_ident("grad") => {}
                _ => {
                    let error =
                        Diagnostic::new(self.positions.of(attribute), "a kernel has no attributes but `allow` and `grad`")
                            .help("documentation comments (`///`), `#[allow(..)]` and `#[grad(..)]` may stand here");
                    self.reporter.report(error);
                }
            }
        }
        lines.join("\n")
    }

    fn generics(&mut self, params: &Punctuated<GenericParam, Token![,]>) {
        for param in params {
            match param {
                GenericParam::Type(param) => {
                    let name = bare(&param.ident);
                    let element = |b: &TypeParamBound| matches!(b, TypeParamBound::Trait(t) if t.path.is_ident("Element"));
                    if param.bounds.len() != 1 || !param.bounds.iter().all(element) {
                        let found = if param.bounds.is_empty() { "no bound".into() } else { self.positions_text(&param.bounds) };
                        let error = Diagnostic::new(self.positions.of(param), format!("`{name}` must be an element type"))
                            .label(format!("expected the bound `Element`, found {found}"))
                            .help(format!("write `{name}: Element`"));
                        self.reporter.report(error);
                    }
                    if let Some((_, default)) = &param.default {
                        self.no_default(default);
                    }
                    if self.fresh(&name, self.positions.of(&param.ident)) {
                        self.builder.kernel.type_params.push(name);
                    }
                }
                GenericParam::Const(param) => {
                    let name = bare(&param.ident);
                    if !matches!(&param.ty, Type::Path(path) if path.path.is_ident("usize")) {
                        let error = Diagnostic::new(self.positions.of(&param.ty), format!("`{name}` must be a `usize`"))
                            .label(format!("found {}", self.positions_text(&param.ty)))
                            .help(format!("const generics are sizes: write `const {name}: usize`"));
                        self.reporter.report(error);
                    }
                    if let Some((_, default)) = &param.default {
                        self.no_default(default);
                    }
                    if self.fresh(&name, self.positions.of(&param.ident)) {
                        self.builder.size(&name, SizeKind::Const);
                    }
                }
                GenericParam::Lifetime(param) => {
                    let error = Diagnostic::new(self.positions.of(param), "a kernel has no lifetimes")
                        .help("write `&Tensor<...>` and `&mut Tensor<...>` without them");
                    self.reporter.report(error);
                }
            }
        }
    }

    fn no_default(&self, default: &impl quote::ToTokens) {
        let error = Diagnostic::new(self.positions.of(default), "a generic parameter of a kernel has no default")
            .help("give the value where the kernel is used");
        self.reporter.report(error);
    }

    /// Whether `name` is not yet a generic or a parameter; reports it otherwise.
    fn fresh(&self, name: &str, span: Span) -> bool {
        let kernel = &self.builder.kernel;
        let taken = kernel.type_params.iter().any(|t| t == name)
            || kernel.size_named(name).is_some()
            || kernel.param_named(name).is_some();
        if taken || Elem::from_name(name).is_some() {
            let error = Diagnostic::new(span, format!("the name `{name}` is already taken"))
                .label("declared a second time")
                .help("rename one of the two");
            self.reporter.report(error);
        }
        !taken
    }

    fn parameter(&mut self, argument: &FnArg) -> Checked<()> {
        let FnArg::Typed(argument) = argument else {
            let error = Diagnostic::new(self.positions.of(argument), "a kernel has no `self`")
                .help("name the parameter: `q: &Tensor<T, (M, D)>`");
            return Err(self.reporter.report(error));
        };
        let name = match &*argument.pat {
            Pat::Ident(ident) if ident.by_ref.is_none() && ident.mutability.is_none() && ident.subpat.is_none() => &ident.ident,
            other => {
                let error = Diagnostic::new(self.positions.of(other), "expected the name of a parameter")
                    .label(format!("found {}", self.positions_text(other)))
                    .help("write `name: Type`; an output is declared in its type, `o: &mut Tensor<T, (M, D)>`");
                return Err(self.reporter.report(error));
            }
        };
        let kind = match &*argument.ty {
            Type::Reference(reference) => {
                if let Some(lifetime) = &reference.lifetime {
                    let error = Diagnostic::new(self.positions.of(lifetime), "a kernel has no lifetimes");
                    self.reporter.report(error.help("write `&Tensor<...>` and `&mut Tensor<...>` without them"));
                }
                let direction = if reference.mutability.is_some() { Direction::Out } else { Direction::In };
                self.tensor(&reference.elem, direction)
            }
            other => self.scalar(other),
        };
        let span = self.positions.of(name);
        // A parameter of wrong type still has a name: one error is enough for it.
        let kind = kind?;
        if !self.fresh(&bare(name), span) {
            return Err(Reported::before());
        }
        self.builder.kernel.params.push(Param { name: bare(name), kind, span });
        Ok(())
    }

    fn scalar(&self, ty: &Type) -> Checked<ParamKind> {
        let span = self.positions.of(ty);
        let found = self.positions_text(ty);
        let help = match ty {
            Type::Path(path) => match path.path.segments.last().map(|s| bare(&s.ident)).as_deref() {
                Some("f32") if path.path.is_ident("f32") => return Ok(ParamKind::Scalar(Elem::F32)),
                Some("i32") if path.path.is_ident("i32") => return Ok(ParamKind::Scalar(Elem::I32)),
                Some("Tensor") => "a tensor is borrowed: write `&Tensor<...>` for an input, `&mut Tensor<...>` for an output",
                Some("usize" | "u32" | "i64" | "u64") => {
                    "write `i32`; sizes of tensors need no parameter, they are known by name"
                }
                Some("f64" | "f16" | "bf16") => "write `f32`",
                _ => "a parameter is `f32`, `i32`, `&Tensor<T, (M, D)>` or `&mut Tensor<T, (M, D)>`",
            },
            _ => "a parameter is `f32`, `i32`, `&Tensor<T, (M, D)>` or `&mut Tensor<T, (M, D)>`",
        };
        let error = Diagnostic::new(span, "this is not a type of a kernel parameter").label(format!("found {found}")).help(help);
        Err(self.reporter.report(error))
    }

    fn tensor(&mut self, ty: &Type, direction: Direction) -> Checked<ParamKind> {
        let help = "a tensor has an element type and a tuple of sizes: `Tensor<T, (M, D)>`";
        let arguments = match ty {
            Type::Path(path)
                if path.qself.is_none() && path.path.segments.len() == 1 && path.path.segments[0].ident == "Tensor" =>
            {
                match &path.path.segments[0].arguments {
                    PathArguments::AngleBracketed(arguments) => Some(&arguments.args),
                    _ => None,
                }
            }
            _ => None,
        };
        let arguments: Vec<_> = arguments.into_iter().flatten().collect();
        let [GenericArgument::Type(elem), GenericArgument::Type(shape)] = arguments[..] else {
            let error = Diagnostic::new(self.positions.of(ty), "expected `Tensor<element, (sizes)>`")
                .label(format!("found {}", self.positions_text(ty)))
                .help(help);
            return Err(self.reporter.report(error));
        };
        let written = elem;
        let elem = self.element(elem);
        if let (Direction::Out, Ok(narrow)) = (direction, &elem)
            && !narrow.is_stored()
        {
            let error = Diagnostic::new(self.positions.of(written), format!("outputs of `{}` are not built", narrow.name()))
                .label("kernels load such elements, and store none");
            let help = "store `f32`, `f16`, `bf16` or `i32`, and convert the tensor after the launch";
            return Err(self.reporter.report(error.help(help)));
        }
        let dims: Vec<&Type> = match shape {
            Type::Tuple(tuple) => tuple.elems.iter().collect(),
            Type::Paren(paren) => vec![&paren.elem],
            Type::Path(_) => vec![shape],
            other => {
                let error = Diagnostic::new(self.positions.of(other), "expected a tuple of sizes")
                    .label(format!("found {}", self.positions_text(other)));
                return Err(self.reporter.report(error.help(help)));
            }
        };
        if dims.is_empty() {
            let error = Diagnostic::new(self.positions.of(shape), "a tensor has at least one dimension");
            return Err(self.reporter.report(error.help("a scalar is a parameter of type `f32` or `i32`")));
        }
        let mut shape = Vec::new();
        for dim in dims {
            shape.push(self.dimension(dim)?);
        }
        Ok(ParamKind::Tensor(TensorDecl { elem: elem?, shape, direction }))
    }

    /// The element type that a type in the kernel text names.
    pub(super) fn element(&self, ty: &Type) -> Checked<Elem> {
        element_type(ty, &self.builder.kernel.type_params, self.positions, self.reporter)
    }

    fn positions_text(&self, node: &impl quote::ToTokens) -> String {
        quoted(node)
    }
}

/// The text of a syntax node in backquotes.
pub(super) fn quoted(node: &impl quote::ToTokens) -> String {
    format!("`{}`", as_written(node.to_token_stream()))
}

/// The tokens without the array types, `[(); 64]`, that stand for dimensions: see
/// [`super::dimension`].
fn as_written(tokens: TokenStream) -> TokenStream {
    let tree = |tree: TokenTree| match tree {
        TokenTree::Group(group) => {
            let inner = as_written(group.stream());
            let trees: Vec<TokenTree> = inner.clone().into_iter().collect();
            match &trees[..] {
                [TokenTree::Group(unit), TokenTree::Punct(punct), extent @ ..]
                    if group.delimiter() == Delimiter::Bracket && unit.stream().is_empty() && punct.as_char() == ';' =>
                {
                    extent.iter().cloned().collect()
                }
                _ => TokenStream::from(TokenTree::Group(Group::new(group.delimiter(), inner))),
            }
        }
        other => TokenStream::from(other),
    };
    tokens.into_iter().map(tree).collect()
}

/// The element type that a type in the kernel text names: a type parameter, or one of
/// [`Elem::ALL`].
pub(super) fn element_type(ty: &Type, type_params: &[String], positions: &Positions, reporter: &Reporter) -> Checked<Elem> {
    let name = match ty {
        Type::Path(path) => path.path.get_ident().map(bare),
        _ => None,
    };
    let name = name.unwrap_or_default();
    if let Some(index) = type_params.iter().position(|t| *t == name) {
        return Ok(Elem::Generic(index as u32));
    }
    if let Some(elem) = Elem::from_name(&name) {
        return Ok(elem);
    }
    let own = Elem::ALL.map(Elem::name);
    let known: Vec<&str> = own.iter().copied().chain(type_params.iter().map(String::as_str)).collect();
    let all: Vec<_> = known.iter().map(|k| format!("`{k}`")).collect();
    let help = match nearest(&name, known.iter().copied()) {
        _ if matches!(&*name, "i64" | "u32" | "u64" | "i16" | "u16" | "usize" | "isize") => {
            "integers have 32 bits, `i32`, or 8; convert the tensor where it is made".to_owned()
        }
        _ if name == "f64" => "floats have up to 32 bits, `f32`; convert the tensor where it is made".to_owned(),
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("element types here are {}", all.join(", ")),
    };
    let error = Diagnostic::new(positions.of(ty), "this is not an element type").label(format!("found {}", quoted(ty)));
    Err(reporter.report(error.help(help)))
}
