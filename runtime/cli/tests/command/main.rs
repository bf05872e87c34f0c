//! The command as a whole: each test runs it as a process. None needs a GPU; only those in `emulator` and `bundle` need NVRTC.

mod bad_input;
mod bundle;
mod emulator;
mod repro;
mod support;
mod verbs;
