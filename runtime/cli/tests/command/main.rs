//! The command as a whole: each test runs it as a process. None needs a GPU, NVRTC or a network.

mod bad_input;
mod repro;
mod support;
mod verbs;
