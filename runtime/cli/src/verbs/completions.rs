//! `flashtile completions`: a completion script, from the same table of flags as everything else.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::failure::Result;
use crate::flags::{Cli, GlobalFlags};
use crate::output::Output;

/// Flags of `flashtile completions`.
#[derive(Args, Debug)]
pub struct Flags {
    /// Shell that the script is for
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
pub fn run(flags: &Flags, _: &GlobalFlags, output: &mut Output) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(flags.shell, &mut Cli::command(), "flashtile", &mut script);
    output.text(String::from_utf8_lossy(&script))
}
