//! The `flashtile` command.
fn main() {}
