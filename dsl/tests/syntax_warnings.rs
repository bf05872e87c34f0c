//! Warnings: names that nothing reads, and state that no store depends on. Every case says all warnings that there are.

use flashtile_dsl::ir::SourceText;
use flashtile_dsl::syntax::{Severity, parse_with_warnings};

/// The body of a kernel, with the names that it is warned of and a part of what is said. All parameters are used before it.
#[track_caller]
fn check(body: &str, expected: &[(&str, &str)]) {
    let text = format!(
        "pub fn f<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<f32, (M)>, z: &mut Tensor<T, (M, N)>) {{
            let i = program(tiles(M));
            for n in tiles(N) {{ store(z, [i, n], load(x, [i, n])); }}
            {body}
        }}"
    );
    let source = SourceText { name: "f.rs".into(), text: text.as_str().into(), first_line: 1 };
    let parsed = parse_with_warnings(&source).unwrap_or_else(|e| panic!("{e}"));
    let found = &parsed.warnings[0];
    assert_eq!(found.len(), expected.len(), "{found:#?}");
    for (warning, (name, said)) in found.iter().zip(expected) {
        assert_eq!(warning.severity, Severity::Warning);
        assert_eq!(&text[warning.span.start as usize..warning.span.end as usize], *name, "{warning:#?}");
        let all = format!("{} {} {}", warning.message, warning.label, warning.help.as_deref().unwrap_or_default());
        assert!(all.contains(said), "`{all}` does not say `{said}`");
    }
}

const STORE: &str = "store(y, [i], sum);";

#[test]
fn nothing_to_warn_of() {
    check(&format!("let mut sum = zeros(i); for j in tiles(N) {{ sum += rowsum(load(x, [i, j])); }} {STORE}"), &[]);
    check(&format!("let sum = zeros(i); let _seen = sum * 2.0; {STORE}"), &[]);
    // A name used again means the one before, which is read.
    check(&format!("let sum = zeros(i); let sum = sum + 1.0; {STORE}"), &[]);
    check("let two = 2.0; let n = N / 2; store(y, [i], full(i, two * n));", &[]);
}

#[test]
fn variables_that_nothing_reads() {
    check(&format!("let sum = zeros(i); let twice = sum * 2.0; {STORE}"), &[("twice", "is never used")]);
    check(&format!("let sum = zeros(i); let number = 3.0; {STORE}"), &[("number", "call it `_number`")]);
    check(&format!("let mut sum = zeros(i); for j in tiles(N) {{ sum += 1.0; }} {STORE}"), &[("j", "is never used")]);
    // Its own `+=` does not read it.
    check(
        &format!(
            "let sum = zeros(i); let mut count = zeros(i); for j in tiles(N) {{ count += rowsum(load(x, [i, j])); }} {STORE}"
        ),
        &[("count", "is never used")],
    );
}

#[test]
fn state_that_nothing_is_assigned_to() {
    check(
        &format!(
            "let mut most = full(i, -INF); let mut sum = zeros(i);
             for j in tiles(N) {{ sum += rowsum(load(x, [i, j]) + most); }} {STORE}"
        ),
        &[("most", "`most` is `mut`, and nothing is assigned to it")],
    );
}

#[test]
fn a_let_where_an_assignment_was_meant() {
    check(
        &format!("let mut sum = zeros(i); for j in tiles(N) {{ let sum = sum + rowsum(load(x, [i, j])); }} {STORE}"),
        &[("sum", "this `let` makes a new variable; write `sum = ..`")],
    );
}

#[test]
fn state_that_no_store_depends_on() {
    check(
        &format!(
            "let sum = zeros(i); let mut l = zeros(i); for j in tiles(N) {{ l = l * 0.5 + rowsum(load(x, [i, j])); }} {STORE}"
        ),
        &[("l", "has no effect")],
    );
    // It is stored by way of what another variable is made of.
    check(
        "let mut m = zeros(i); let mut sum = zeros(i);
         for j in tiles(N) { sum = sum * m; m = max(m, rowmax(load(x, [i, j]))); }
         store(y, [i], sum);",
        &[],
    );
}
