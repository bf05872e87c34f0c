//! What `#[grad(..)]` adds to a typed handle.

use std::collections::BTreeSet;

use flashtile_dsl::grad::{Form, Gradient, NotDifferentiable, Request, gradient};
use flashtile_dsl::ir::{Kernel, Param, Span};
use flashtile_dsl::syntax::{Diagnostic, Embedded, Function, Gradients};
use proc_macro2::TokenStream;
use quote::quote;

use crate::types::{bindings, parameter, parameters};

/// What a handle has more: all empty where no gradient is asked for.
#[derive(Default)]
pub(crate) struct Parts {
    /// Fields.
    pub fields: TokenStream,
    /// Statements of `on_with` that make them.
    pub prepared: TokenStream,
    /// Their names.
    pub names: TokenStream,
    /// Methods.
    pub methods: TokenStream,
}

/// What the `#[grad(..)]` of a kernel adds; an error at its token if there is no such gradient.
pub(crate) fn parts(function: &Function, embedded: &Embedded) -> Result<Parts, Diagnostic> {
    let Some(Gradients { of, from, form }) = &function.gradients else { return Ok(Parts::default()) };
    let form = Form::named(form).expect("the attribute names forms that there are");
    let request = Request { of: of.clone(), from: from.clone(), form };
    let made = gradient(&function.kernel, &request).map_err(|NotDifferentiable { what, span, instead }| {
        Diagnostic::new(span, what).label("in the gradient that `#[grad(..)]` asks for").help(instead)
    })?;
    let arguments = arguments(&made, of).map_err(|missing| {
        let what = format!("the compiler made no `{missing}` (please report it)");
        Diagnostic::new(function.kernel.name_span, what).help("leave out the input in `#[grad(..)]`")
    })?;
    let (typed, given): (Vec<_>, Vec<_>) = arguments
        .iter()
        .map(|argument| parameter(argument.kernel, argument.param, argument.written, Span::default(), embedded))
        .unzip();
    let texts: Vec<&String> = arguments.iter().map(|argument| &argument.param.name).collect();
    let list = |written| {
        let of = arguments.iter().filter(|argument| argument.written == written);
        of.map(|argument| format!("`{}`", argument.param.name)).collect::<Vec<_>>().join(", ")
    };
    let summary = format!(" Reads {}; writes {}.", list(false), list(true));
    let backward = made.backward.iter().map(|kernel| prepared(kernel, embedded));
    let mut parts = Parts {
        fields: quote!(gradient: ::flashtile::LoadedGradient,),
        prepared: quote! {
            let __others = ::flashtile::macro_support::options_of_others(&options);
            let __backward = [#(#backward),*];
            let gradient = ::flashtile::macro_support::gradient(__backward, &[#(#texts),*])?;
        },
        names: quote!(gradient,),
        methods: quote! {
            /// Queues the kernels of the gradient on the device's own stream, one after the other.
            #[doc = #summary]
            ///
            /// What one of them leaves to a later one lies in the workspace, which may be used
            /// again.
            ///
            /// # Errors
            /// As `launch`, of the kernel whose argument does not fit; those before it are queued.
            #[allow(clippy::too_many_arguments)]
            pub fn backward(&self, __workspace: &mut ::flashtile::Workspace, #(#typed),*) -> ::flashtile::Result<()> {
                self.gradient.launch(__workspace, &[#(#given),*])
            }

            /// Queues the kernels of the gradient on a stream, as `backward` does.
            ///
            /// # Errors
            /// As `backward`.
            #[allow(clippy::too_many_arguments)]
            pub fn backward_on(
                &self, __stream: &::flashtile::Stream, __workspace: &mut ::flashtile::Workspace, #(#typed),*
            ) -> ::flashtile::Result<()> {
                self.gradient.launch_on(__stream, __workspace, &[#(#given),*])
            }

            /// The kernels of the gradient made ready, with no static types: for inspection and
            /// tuning.
            pub fn gradient(&self) -> &::flashtile::LoadedGradient {
                &self.gradient
            }
        },
    };
    forward(&mut parts, &made.forward, &function.kernel, embedded);
    Ok(parts)
}

/// Adds the launch of the forward kernel: of the kernel itself, where that stores all that is read.
fn forward(parts: &mut Parts, forward: &Kernel, kernel: &Kernel, embedded: &Embedded) {
    let handle = match forward.params.len() > kernel.params.len() {
        false => quote!(self.handle),
        true => {
            parts.fields.extend(quote!(forward: ::flashtile::macro_support::Handle,));
            let made = prepared(forward, embedded);
            parts.prepared.extend(quote!(let forward = #made;));
            parts.names.extend(quote!(forward,));
            quote!(self.forward)
        }
    };
    let (typed, given) = parameters(forward, embedded);
    parts.methods.extend(quote! {
        /// Queues a launch on the device's own stream, as `launch` does, that stores all that
        /// `backward` reads.
        ///
        /// # Errors
        /// As `launch`.
        #[allow(clippy::too_many_arguments)]
        pub fn forward(&self, #(#typed),*) -> ::flashtile::Result<()> {
            #handle.launch(&[#(#given),*])
        }

        /// Queues a launch on a stream, as `forward` does.
        ///
        /// # Errors
        /// As `launch`.
        #[allow(clippy::too_many_arguments)]
        pub fn forward_on(&self, __stream: &::flashtile::Stream, #(#typed),*) -> ::flashtile::Result<()> {
            #handle.launch_on(__stream, &[#(#given),*])
        }

        /// The kernel of `forward` made ready, with no static types: for inspection and tuning.
        pub fn forward_handle(&self) -> &::flashtile::LoadedKernel {
            #handle.loaded()
        }
    });
}

/// The expression that makes a derived kernel ready, by the text that the compiler wrote.
fn prepared(kernel: &Kernel, embedded: &Embedded) -> TokenStream {
    let (name, text, file) = (&kernel.name, &*kernel.source.text, &kernel.source.name);
    let (types, consts) = bindings(kernel, embedded);
    quote! {
        ::flashtile::macro_support::prepare_with(
            &::flashtile::macro_support::KernelSource { name: #name, text: #text, file: #file, line: 1 },
            #types,
            #consts,
            device,
            ::core::clone::Clone::clone(&__others),
        )?
    }
}

/// A parameter of `backward`, with the kernel that declares it.
struct Argument<'a> {
    kernel: &'a Kernel,
    param: &'a Param,
    written: bool,
}

/// The parameters of `backward`: what its kernels read of the forward kernel's, the gradients of
/// outputs, and the gradients that are asked for. The name of one of these that no kernel writes is
/// an error.
fn arguments<'a>(made: &'a Gradient, of: &[String]) -> Result<Vec<Argument<'a>>, String> {
    let all = || made.backward.iter().flat_map(|kernel| kernel.params.values().map(move |param| (kernel, param)));
    let written: BTreeSet<&str> = all().filter(|(_, param)| param.kind.is_written()).map(|(_, param)| &*param.name).collect();
    let is_taken = |param: &&Param| all().any(|(_, other)| other.name == param.name);
    let of_forward = made.forward.params.values().filter(is_taken);
    let mut arguments: Vec<Argument<'_>> =
        of_forward.map(|param| Argument { kernel: &made.forward, param, written: false }).collect();
    for (kernel, param) in all() {
        let known = arguments.iter().any(|argument| argument.param.name == param.name);
        if !known && !written.contains(&*param.name) {
            arguments.push(Argument { kernel, param, written: false });
        }
    }
    for name in of {
        let name = format!("grad_{name}");
        let Some((kernel, param)) = all().find(|(_, param)| param.name == name && param.kind.is_written()) else {
            return Err(name);
        };
        arguments.push(Argument { kernel, param, written: true });
    }
    Ok(arguments)
}
