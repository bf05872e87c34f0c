//! Parameters, element types and names of a kernel as Rust has them.

use flashtile_dsl::ir::{Elem, Kernel, Param, ParamKind, SizeKind, Span};
use flashtile_dsl::syntax::Embedded;
use flashtile_dsl::text::is_keyword;
use proc_macro2::{Ident, TokenStream};
use quote::quote;

/// The parameters of a launch as Rust declares them, and as a launch is given them.
pub(crate) fn parameters(kernel: &Kernel, embedded: &Embedded) -> (Vec<TokenStream>, Vec<TokenStream>) {
    let parameter = |(_, param): (_, &Param)| {
        let written = param.kind.is_written();
        parameter(kernel, param, written, param.span, embedded)
    };
    kernel.params.iter().map(parameter).unzip()
}

/// A parameter as Rust declares it, a tensor to be written or to be read; and the argument of a
/// launch that it is. `From` may be out of scope in the user's crate.
pub(crate) fn parameter(
    kernel: &Kernel,
    param: &Param,
    written: bool,
    span: Span,
    embedded: &Embedded,
) -> (TokenStream, TokenStream) {
    let name = identifier(&param.name, span, embedded);
    let ty = match &param.kind {
        ParamKind::Scalar(elem) => element(kernel, *elem, embedded),
        ParamKind::Tensor(tensor) => {
            let elem = element(kernel, tensor.elem, embedded);
            let reference = if written { quote!(&mut) } else { quote!(&) };
            quote!(#reference ::flashtile::Tensor<#elem>)
        }
    };
    (quote!(#name: #ty), quote!(<::flashtile::Argument<'_> as ::core::convert::From<_>>::from(#name)))
}

/// What is bound where a kernel is made ready: its type parameters and constants by name.
pub(crate) fn bindings(kernel: &Kernel, embedded: &Embedded) -> (TokenStream, TokenStream) {
    let ident = |name: &&String| identifier(name, Span::default(), embedded);
    let names: Vec<&String> = kernel.type_params.iter().collect();
    let types = names.iter().map(ident);
    let types = quote!(&[#((#names, <#types as ::flashtile::Element>::ELEM)),*]);
    let names: Vec<&String> = kernel.sizes.values().filter(|size| size.kind == SizeKind::Const).map(|size| &size.name).collect();
    let consts = names.iter().map(ident);
    (types, quote!(&[#((#names, #consts as i64)),*]))
}

/// The Rust type of an element type.
fn element(kernel: &Kernel, elem: Elem, embedded: &Embedded) -> TokenStream {
    match elem {
        Elem::F32 => quote!(f32),
        Elem::I32 => quote!(i32),
        Elem::F16 => quote!(::flashtile::f16),
        Elem::Bf16 => quote!(::flashtile::bf16),
        Elem::Bool => quote!(bool),
        Elem::U8 => quote!(u8),
        Elem::I8 => quote!(i8),
        Elem::F8E4M3 => quote!(::flashtile::f8e4m3),
        Elem::F8E5M2 => quote!(::flashtile::f8e5m2),
        Elem::Generic(_) => {
            let name = identifier(kernel.elem_name(elem), Span::default(), embedded);
            quote!(#name)
        }
    }
}

/// A name of the kernel as an identifier at its place in the user's file.
pub(crate) fn identifier(name: &str, span: Span, embedded: &Embedded) -> Ident {
    let (place, _) = embedded.tokens_at(span);
    if is_keyword(name) { Ident::new_raw(name, place) } else { Ident::new(name, place) }
}
