//! The text form of kernels, any text: what reads can be verified and printed, and reads again the same; never a panic.
//!
//! `cargo +nightly fuzz run ir_text`

#![no_main]

use flashtile_dsl::ir::{parse_text, verify};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if let Ok(kernel) = parse_text(text) {
        if verify(&kernel).is_ok() {
            let again = parse_text(&kernel.to_string()).expect("the text form of a sound kernel");
            assert_eq!(again.renumbered(), kernel.renumbered());
        }
    }
});
