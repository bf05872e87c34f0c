//! What a kernel loses, told once: on standard error, or as the field `hints` of JSON. What is lost is found by the compiler
//! ([`flashtile_codegen::hints`]); warnings of the front end are told in the same way.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use flashtile_codegen::{Arch, Facts, Instance};
use flashtile_dsl::analysis::hints::Hint;
use flashtile_dsl::analysis::lengths::typical_consts;
use flashtile_dsl::ir::{Binding, Elem, Kernel, SourceText};
use flashtile_dsl::syntax::{self, Call, Diagnostic, Diagnostics, Style};
use serde_json::{Value, json};

use crate::output::Output;
use crate::target::DEFAULT_ARCH;

/// What a kernel loses on an architecture. Constants that are not given have the default of the command line.
pub fn find(kernel: &Kernel, elem: Elem, consts: &BTreeMap<String, i64>, arch: &'static Arch) -> Vec<Hint> {
    let values = typical_consts(kernel, consts);
    let instance = Instance { kernel: kernel.clone(), binding: Binding::new(kernel, elem, values), facts: Facts::best(kernel) };
    flashtile_codegen::hints(&instance, arch)
}

/// The architecture that hints are about where none is asked for.
pub fn usual_arch() -> &'static Arch {
    Arch::named(DEFAULT_ARCH).expect("the default is in the table")
}

/// Tells the warnings on a kernel, then its hints, on standard error. Silent with `--json`, whose results have the hints as a field.
pub fn tell(kernel: &Kernel, hints: &[Hint], output: &Output) {
    let list: Vec<_> = warnings(kernel).into_iter().chain(hints.iter().cloned().map(Diagnostic::from)).collect();
    if list.is_empty() {
        return;
    }
    let style = if std::io::stderr().is_terminal() { Style::Coloured } else { Style::Plain };
    output.note(syntax::render(&Diagnostics { list, source: kernel.source.clone() }, style));
}

/// The warnings of the front end on a kernel. None if its text cannot be read again: then it has none.
pub fn warnings(kernel: &Kernel) -> Vec<Diagnostic> {
    let Ok(parsed) = syntax::parse_with_warnings(&kernel.source) else { return Vec::new() };
    let of_each = parsed.kernels.into_iter().zip(parsed.warnings);
    of_each.into_iter().find(|(other, _)| other.name == kernel.name).map_or_else(Vec::new, |(_, warnings)| warnings)
}

/// A diagnostic as JSON.
pub fn diagnostic_json(source: &SourceText, diagnostic: &Diagnostic) -> Value {
    let (line, column) = source.line_column(diagnostic.span).unzip();
    json!({
        "file": source.name,
        "line": line,
        "column": column,
        "severity": diagnostic.severity.name(),
        "message": diagnostic.message,
        "label": diagnostic.label,
        "help": diagnostic.help,
        "calls": calls_json(source, &diagnostic.calls),
    })
}

/// The calls of helpers that lead to a place, as JSON.
fn calls_json(source: &SourceText, calls: &[Call]) -> Value {
    let one = |call: &Call| {
        let (line, column) = source.line_column(call.span).unzip();
        json!({ "helper": call.name, "line": line, "column": column })
    };
    calls.iter().map(one).collect()
}

/// Hints as JSON: what is lost, where, why, and what to write instead.
pub fn json(kernel: &Kernel, hints: &[Hint]) -> Value {
    let one = |hint: &Hint| {
        let (line, column) = kernel.source.line_column(hint.span).unzip();
        json!({
            "lost": hint.lost.iter().map(|lost| lost.name()).collect::<Vec<_>>(),
            "line": line,
            "column": column,
            "message": hint.message(),
            "because": hint.because,
            "instead": hint.instead,
            "calls": calls_json(&kernel.source, &hint.calls),
        })
    };
    hints.iter().map(one).collect()
}
