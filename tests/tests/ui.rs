//! What rustc says about kernels: errors at the tokens of the user's file. Kernels that compile are in
//! `handles.rs`: a case that passes would make trybuild build all libraries once more.
//!
//! After a change of messages run with `TRYBUILD=overwrite` and review the difference.

#[test]
fn kernels_in_rust_files() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/ui/names.rs");
    cases.compile_fail("tests/ui/types.rs");
    cases.compile_fail("tests/ui/memory.rs");
    cases.compile_fail("tests/ui/variables.rs");
    cases.compile_fail("tests/ui/header.rs");
    cases.compile_fail("tests/ui/unsupported.rs");
    cases.compile_fail("tests/ui/arguments.rs");
    cases.compile_fail("tests/ui/unbuilt.rs");
    cases.compile_fail("tests/ui/gradients.rs");
    cases.compile_fail("tests/ui/helpers.rs");
    cases.compile_fail("tests/ui/warnings.rs");
}
