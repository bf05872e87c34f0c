//! `#[grad(q, k, v)]` before a kernel: the inputs whose gradients are asked for, and the outputs
//! whose gradients are given, `#[grad(q, k, v, from(o, lse))]`. Without `from` these are the
//! outputs of a type parameter. `form(fused, shares)` says which kernels compute them.

use proc_macro2::Ident;
use syn::parse::{Parse, ParseStream};
use syn::punctuated::Punctuated;
use syn::{Attribute, Token, token};

use super::diagnostic::{Diagnostic, Reporter};
use super::position::{Positions, bare};
use super::suggest::nearest;
use crate::ir::Kernel;

/// What `#[grad(..)]` before a kernel asks for. All names are of tensors of floats: inputs, and
/// outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gradients {
    /// The inputs whose gradients are asked for.
    pub of: Vec<String>,
    /// The outputs whose gradients are given.
    pub from: Vec<String>,
    /// The name of the form that the kernels have, such as `fused-shares`.
    pub form: &'static str,
}

/// How the attribute is written.
const WRITTEN: &str = "write `#[grad(q, k, v)]`, with `from(o, lse)` behind to say which outputs have gradients, and with \
                       `form(fused)` for kernels that make the scores once, `form(shares)` for a program for each head, \
                       `form(fused, shares)` for both, or `form(stored)` for wide rows";

/// A name, or several in `from(..)` and `form(..)`.
struct Item {
    name: Ident,
    inside: Option<Punctuated<Ident, Token![,]>>,
}

impl Parse for Item {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let name = input.parse()?;
        let inside = match input.peek(token::Paren) {
            true => {
                let content;
                syn::parenthesized!(content in input);
                Some(Punctuated::parse_terminated(&content)?)
            }
            false => None,
        };
        Ok(Self { name, inside })
    }
}

/// Reads the attribute of a kernel, if it has one; reports what is wrong with it.
pub(super) fn read(attributes: &[Attribute], kernel: &Kernel, positions: &Positions, reporter: &Reporter) -> Option<Gradients> {
    let mut found = attributes.iter().filter(|attribute| attribute.path().is_ident("grad"));
    let first = found.next()?;
    let refuse = |span, message: &str| {
        reporter.report(Diagnostic::new(span, message).help(WRITTEN));
    };
    if let Some(second) = found.next() {
        refuse(positions.of(second), "a kernel has one `#[grad(..)]`");
        return None;
    }
    let items = match first.parse_args_with(Punctuated::<Item, Token![,]>::parse_terminated) {
        Ok(items) => items,
        Err(_) => {
            refuse(positions.of(first), "this is not a list of inputs");
            return None;
        }
    };
    let (mut of, mut from, mut said, mut form) = (Vec::new(), Vec::new(), false, None);
    for Item { name, inside } in items {
        match inside {
            None => of.push(name),
            Some(names) if name == "from" && !said => {
                said = true;
                from.extend(names);
            }
            Some(names) if name == "form" && form.is_none() => match form_of(&names) {
                Some(found) => form = Some(found),
                None => {
                    refuse(
                        positions.of(&name),
                        "`form(..)` holds `plain` or `fused`, and `shares` behind it or alone; or `stored`",
                    );
                    return None;
                }
            },
            Some(_) => {
                refuse(positions.of(&name), "`from(..)` and `form(..)`, each once, are the only lists in `#[grad(..)]`");
                return None;
            }
        }
    }
    if of.is_empty() || (said && from.is_empty()) {
        refuse(positions.of(first), "no input is named, or no output in `from(..)`");
        return None;
    }
    let (of, from) = (names(&of, false, kernel, positions, reporter), names(&from, true, kernel, positions, reporter));
    let (of, mut from) = (of?, from?);
    if !said {
        from = kernel.generic_outputs().map(ToOwned::to_owned).collect();
    }
    if from.is_empty() {
        let error = Diagnostic::new(positions.of(first), "the kernel has no output of a type parameter");
        let outputs = tensors(kernel, true).join(", ");
        reporter.report(error.help(format!("say which outputs have a gradient: `from({outputs})`")));
        return None;
    }
    Some(Gradients { of, from, form: form.unwrap_or("plain") })
}

/// The name of the form that `form(..)` asks for; `None` if it holds something else.
fn form_of(names: &Punctuated<Ident, Token![,]>) -> Option<&'static str> {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    match names.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["plain"] => Some("plain"),
        ["fused"] => Some("fused"),
        ["shares"] | ["plain", "shares"] => Some("plain-shares"),
        ["fused", "shares"] => Some("fused-shares"),
        ["stored"] => Some("stored"),
        _ => None,
    }
}

/// The tensors of floats that a kernel reads, or that it writes.
fn tensors(kernel: &Kernel, written: bool) -> Vec<&str> {
    kernel.float_tensors(written).map(|param| kernel.params[param].name.as_str()).collect()
}

/// The names as text; `None`, and each is reported, if one is of no such tensor or is there twice.
fn names(idents: &[Ident], written: bool, kernel: &Kernel, positions: &Positions, reporter: &Reporter) -> Option<Vec<String>> {
    let known = tensors(kernel, written);
    let kind = if written { "an output of floats" } else { "an input tensor of floats" };
    let mut found: Vec<String> = Vec::new();
    for ident in idents {
        let name = bare(ident);
        let error = |message: String| Diagnostic::new(positions.of(ident), message);
        if !known.contains(&name.as_str()) {
            let help = match nearest(&name, known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("name {kind}: {}", known.join(", ")),
            };
            reporter.report(error(format!("`{name}` is not {kind} of `{}`", kernel.name)).help(help));
        } else if found.contains(&name) {
            reporter.report(error(format!("`{name}` is named twice")).help("name it once"));
        } else {
            found.push(name);
        }
    }
    (found.len() == idents.len()).then_some(found)
}
