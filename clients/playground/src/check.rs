//! Diagnostics of a text, and what its kernels are called with.

use flashtile_dsl::analysis::lengths;
use flashtile_dsl::ir::{Kernel, ParamKind, SizeKind, SourceText};
use flashtile_dsl::syntax::{self, Diagnostic};
use serde_json::{Value, json};

use crate::place;

/// The text as the compiler reads it, and the name of its file in generated code.
pub fn source(text: &str, file: &str) -> SourceText {
    SourceText { name: file.into(), text: text.into(), first_line: 1 }
}

/// Errors and warnings at their tokens; the kernels, if there is no error.
pub fn check(text: &str) -> Value {
    let source = source(text, "");
    let (diagnostics, kernels) = match syntax::parse_with_warnings(&source) {
        Ok(parsed) => (parsed.warnings.into_iter().flatten().collect(), parsed.kernels),
        Err(errors) => (errors.list, Vec::new()),
    };
    json!({
        "diagnostics": diagnostics.iter().map(|d| diagnostic(&source, d)).collect::<Vec<_>>(),
        "kernels": kernels.iter().map(called_with).collect::<Vec<_>>(),
    })
}

fn diagnostic(source: &SourceText, d: &Diagnostic) -> Value {
    let words = json!({ "severity": d.severity.name(), "message": d.message, "label": d.label, "help": d.help });
    place::with(words, place::of(source, d.span))
}

/// The name of a kernel, its sizes with typical values, and its scalars.
fn called_with(kernel: &Kernel) -> Value {
    let consts = lengths::typical_consts(kernel, &Default::default());
    let sizes = kernel.sizes.values().map(|size| {
        let constant = size.kind == SizeKind::Const;
        let typical = consts.get(&size.name).copied().unwrap_or_else(|| lengths::typical(kernel, &size.name, &consts));
        let walked = lengths::is_walked(kernel, &size.name);
        json!({ "name": size.name, "const": constant, "walked": walked, "default": typical })
    });
    let scalars = kernel.params.values().filter_map(|param| match param.kind {
        ParamKind::Scalar(elem) => Some(json!({ "name": param.name, "type": elem.name() })),
        ParamKind::Tensor(_) => None,
    });
    json!({
        "name": kernel.name,
        "doc": kernel.doc.trim(),
        "sizes": sizes.collect::<Vec<_>>(),
        "scalars": scalars.collect::<Vec<_>>(),
    })
}
