//! The command as a whole: each test runs it as a process. None needs a GPU; only those in `emulator` need NVRTC.

mod bad_input;
mod emulator;
mod repro;
mod support;
mod verbs;
