//! The command as a whole: each test runs it as a process. None needs a GPU; only those in `emulator`, `bundle` and
//! `tune_html` need NVRTC.

mod bad_input;
mod bundle;
mod emulator;
mod repro;
mod support;
mod tune_html;
mod verbs;
