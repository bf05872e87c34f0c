//! Attributes within a function: comments may stand there, and what changes nothing.

use quote::ToTokens;
use syn::visit::{Visit, visit_block, visit_fn_arg};
use syn::{Attribute, ItemFn};

use super::diagnostic::{Diagnostic, Reporter};
use super::position::Positions;

/// Refuses attributes of parameters and statements that would be read by nobody, such as `#[cfg(..)]`.
pub(super) fn check(function: &ItemFn, positions: &Positions, reporter: &Reporter) {
    let mut check = Check { positions, reporter };
    function.sig.inputs.iter().for_each(|input| visit_fn_arg(&mut check, input));
    visit_block(&mut check, &function.block);
}

struct Check<'a> {
    positions: &'a Positions,
    reporter: &'a Reporter,
}

impl Visit<'_> for Check<'_> {
    fn visit_attribute(&mut self, attribute: &Attribute) {
        if attribute.path().is_ident("doc") || attribute.path().is_ident("allow") {
            return;
        }
        let name = attribute.path().to_token_stream();
        let error = Diagnostic::new(self.positions.of(attribute), format!("`#[{name}]` has no effect within a kernel"))
            .help("remove the attribute, or write two kernels and choose between them where they are called");
        self.reporter.report(error);
    }
}
