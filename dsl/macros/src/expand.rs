//! Kernels to typed handles, errors to compile errors.

use flashtile_dsl::analysis::hints::hints_unbound;
use flashtile_dsl::ir::{SizeKind, Span};
use flashtile_dsl::syntax::{Diagnostic, Embedded, Function, parse_macro, without_fragments};
use proc_macro2::{Ident, TokenStream};
use quote::{quote, quote_spanned};

use crate::gradient::{self, Parts};
use crate::types::{bindings, identifier, parameters};

/// The expansion of `flash_kernel! { input }`.
pub(crate) fn expand(input: TokenStream) -> TokenStream {
    let input = without_fragments(input);
    let embedded = Embedded::new(&input, "");
    match parse_macro(input, &embedded) {
        Ok(functions) => functions
            .iter()
            .flat_map(|function| {
                let hints = hints_unbound(&function.kernel).into_iter().map(Diagnostic::from);
                let told = function.warnings.iter().cloned().chain(hints).map(|said| warning(&said, function, &embedded));
                typed(function, &embedded).into_iter().chain(told.collect::<Vec<_>>())
            })
            .collect(),
        Err(diagnostics) => diagnostics.list.iter().map(|diagnostic| compile_error(diagnostic, &embedded)).collect(),
    }
}

/// What a diagnostic says, as one text.
fn text(diagnostic: &Diagnostic, embedded: &Embedded) -> String {
    let mut message = diagnostic.message.clone();
    if !diagnostic.label.is_empty() {
        message.push_str(&format!(": {}", diagnostic.label));
    }
    if let Some(help) = &diagnostic.help {
        message.push_str(&format!("\nhelp: {help}"));
    }
    for call in &diagnostic.calls {
        let line = embedded.source.line_column(call.span).map_or_else(String::new, |(line, _)| format!(" on line {line}"));
        message.push_str(&format!("\nnote: in the call of `{}`{line}", call.name));
    }
    message
}

/// A warning that rustc shows at a token of its span. On stable Rust a macro has no warnings of its own: the use of a deprecated item
/// is one that carries a text, and `#[allow(deprecated)]` before the kernel silences it.
fn warning(diagnostic: &Diagnostic, function: &Function, embedded: &Embedded) -> TokenStream {
    let message = text(diagnostic, embedded);
    let (first, _) = embedded.tokens_at(diagnostic.span);
    let name = Ident::new(diagnostic.severity.name(), first);
    let (kernel, allowed) = (&function.kernel.name, &function.allowed);
    let note = format!("in kernel `{kernel}`: {message}");
    quote! {
        #(#allowed)*
        const _: () = {
            #[deprecated(note = #note)]
            #[allow(non_camel_case_types)]
            struct #name;
            let _ = #name;
        };
    }
}

/// An error that rustc shows at the tokens of its span.
fn compile_error(diagnostic: &Diagnostic, embedded: &Embedded) -> TokenStream {
    let message = text(diagnostic, embedded);
    let (first, last) = embedded.tokens_at(diagnostic.span);
    // rustc underlines from the path of the macro to its last token.
    let path = quote_spanned!(first=> ::core::compile_error);
    let call = quote_spanned!(last=> { #message });
    quote!(#path ! #call)
}

/// The typed handle of a kernel; without what its gradient adds, and with an error, if it has none.
fn typed(function: &Function, embedded: &Embedded) -> Vec<TokenStream> {
    match gradient::parts(function, embedded) {
        Ok(parts) => vec![handle(function, &parts, embedded)],
        Err(error) => vec![handle(function, &Parts::default(), embedded), compile_error(&error, embedded)],
    }
}

/// The typed handle of a kernel, with what its gradient adds.
fn handle(function: &Function, gradient: &Parts, embedded: &Embedded) -> TokenStream {
    let Function { kernel, visibility, ident, allowed, .. } = function;
    let name = &kernel.name;
    let doc = kernel.doc.lines().map(|line| format!(" {line}"));
    let types: Vec<_> = kernel.type_params.iter().map(|name| identifier(name, Span::default(), embedded)).collect();
    let consts = kernel.sizes.values().filter(|size| size.kind == SizeKind::Const);
    let consts: Vec<_> = consts.map(|size| identifier(&size.name, Span::default(), embedded)).collect();
    let (bound_types, bound_consts) = bindings(kernel, embedded);
    let (parameters, arguments) = parameters(kernel, embedded);
    let Parts { fields, prepared, names, methods } = gradient;
    let text = &*embedded.source.text;
    let line = embedded.source.first_line;
    quote! {
        #(#[doc = #doc])*
        #(#allowed)*
        #[allow(non_camel_case_types)]
        #[derive(Debug)]
        #visibility struct #ident<#(#types: ::flashtile::Element,)* #(const #consts: usize),*> {
            handle: ::flashtile::macro_support::Handle,
            #fields
            elements: ::core::marker::PhantomData<(#(#types,)*)>,
        }

        impl<#(#types: ::flashtile::Element,)* #(const #consts: usize),*> #ident<#(#types,)* #(#consts),*> {
            /// The text of the kernel and its place.
            pub fn source() -> ::flashtile::macro_support::KernelSource {
                ::flashtile::macro_support::KernelSource { name: #name, text: #text, file: ::core::file!(), line: #line }
            }

            /// Makes the kernel ready for a device: compiles it, or finds it in the cache.
            ///
            /// # Errors
            /// The device cannot run it.
            pub fn on(device: &::flashtile::Device) -> ::flashtile::Result<Self> {
                Self::on_with(device, ::core::default::Default::default())
            }

            /// As `on`, with options.
            ///
            /// # Errors
            /// The device cannot run it, or not with these options.
            pub fn on_with(device: &::flashtile::Device, options: ::flashtile::LaunchOptions) -> ::flashtile::Result<Self> {
                #prepared
                let handle = ::flashtile::macro_support::prepare_with(
                    &Self::source(),
                    #bound_types,
                    #bound_consts,
                    device,
                    options,
                )?;
                ::core::result::Result::Ok(Self { handle, #names elements: ::core::marker::PhantomData })
            }

            /// Queues a launch on the device's own stream; one argument for each parameter of the kernel.
            ///
            /// # Errors
            /// An argument does not fit, and is named; or the compiler or the device failed.
            #[allow(clippy::too_many_arguments)]
            pub fn launch(&self, #(#parameters),*) -> ::flashtile::Result<()> {
                self.handle.launch(&[#(#arguments),*])
            }

            /// Queues a launch on a stream.
            ///
            /// # Errors
            /// As `launch`.
            #[allow(clippy::too_many_arguments)]
            pub fn launch_on(&self, __stream: &::flashtile::Stream, #(#parameters),*) -> ::flashtile::Result<()> {
                self.handle.launch_on(__stream, &[#(#arguments),*])
            }

            /// The kernel made ready, with no static types: for inspection and tuning.
            pub fn handle(&self) -> &::flashtile::LoadedKernel {
                self.handle.loaded()
            }

            #methods
        }
    }
}
