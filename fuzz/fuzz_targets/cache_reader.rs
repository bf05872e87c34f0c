//! The reader of cache entries takes any bytes: it gives an entry or says what is wrong, and never panics.
//!
//! The hash of the envelope would keep the fuzzer out of what is inside: so the bytes are also read as the content of an
//! envelope that is right.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = flashtile::cache::decode_entry(bytes);
    for sealed in flashtile::cache::seal_as_every_kind(bytes) {
        let _ = flashtile::cache::decode_entry(&sealed);
    }
});
