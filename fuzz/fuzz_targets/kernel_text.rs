//! Kernel text, any text: reading it gives kernels whose text form round-trips, or errors that render; never a panic.
//!
//! `cargo +nightly fuzz run kernel_text fuzz/corpus/kernel_text runtime/kernels`

#![no_main]

use flashtile_dsl::ir::{SourceText, parse_text};
use flashtile_dsl::syntax::parse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let source = SourceText { name: "fuzz.rs".into(), text: text.into(), first_line: 1 };
    match parse(&source) {
        Ok(kernels) => {
            for kernel in kernels {
                let again = parse_text(&kernel.to_string()).expect("the text form of a sound kernel");
                assert_eq!(again, kernel.without_spans());
            }
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
    // Positions of the texts read so far are kept otherwise.
    proc_macro2::extra::invalidate_current_thread_spans();
});
