//! Attributes within a function: comments may stand there, and what changes nothing.

use quote::ToTokens;
use syn::visit::{Visit, visit_block, visit_fn_arg, visit_generics};
use syn::{Attribute, ItemFn};

use super::diagnostic::{Diagnostic, Reporter};
use super::position::Positions;

/// Refuses attributes of generics, parameters and statements that nobody would read, such as
/// `#[cfg(..)]`.
pub(super) fn check(function: &ItemFn, positions: &Positions, reporter: &Reporter) {
    let mut check = Check { positions, reporter };
    visit_generics(&mut check, &function.sig.generics);
    function.sig.inputs.iter().for_each(|input| visit_fn_arg(&mut check, input));
    visit_block(&mut check, &function.block);
}

struct Check<'a> {
    positions: &'a Positions,
    reporter: &'a Reporter,
}

impl Visit<'_> for Check<'_> {
    fn visit_attribute(&mut self, attribute: &Attribute) {
        let path = attribute.path();
        let changes_nothing = ["doc", "allow", "expect"].iter().any(|name| path.is_ident(name));
        if changes_nothing || path.segments.first().is_some_and(|first| first.ident == "rustfmt") {
            return;
        }
        let name = path.to_token_stream();
        let error = Diagnostic::new(self.positions.of(attribute), format!("`#[{name}]` has no effect within a kernel"))
            .help("remove the attribute, or write two kernels and choose between them where they are called");
        self.reporter.report(error);
    }
}
