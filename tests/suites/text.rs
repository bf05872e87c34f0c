//! Tests of kernel text: the language and its page, words, hints, names, handles of kernels in Rust;
//! and of sources and pages.
//!
//! One program of several files, since each program links all libraries. `cargo test --release -p
//! flashtile-tests --test text asked::` runs those of one file.

#[path = "../tests/asked.rs"]
mod asked;
#[path = "../tests/forms.rs"]
mod forms;
#[path = "../tests/functions.rs"]
mod functions;
#[path = "../tests/handles.rs"]
mod handles;
#[path = "../tests/hints.rs"]
mod hints;
#[path = "../tests/idioms.rs"]
mod idioms;
#[path = "../tests/integers.rs"]
mod integers;
#[path = "../tests/language.rs"]
mod language;
#[path = "../tests/modules.rs"]
mod modules;
#[path = "../tests/names.rs"]
mod names;
#[path = "../tests/packages.rs"]
mod packages;
#[path = "../tests/pages.rs"]
mod pages;
#[path = "../tests/words.rs"]
mod words;
