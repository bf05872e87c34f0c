//! `flashtile man`: manual pages and `docs/cli.md`, from the same table of flags as everything else.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::failure::{Failure, Result};
use crate::files;
use crate::flags::{Cli, GlobalFlags};
use crate::output::Output;
use crate::reference;

/// Flags of `flashtile man`.
#[derive(Args, Debug)]
pub struct Flags {
    /// Write a page for each verb into this directory instead
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Print the reference in Markdown instead: docs/cli.md
    #[arg(long, conflicts_with = "dir")]
    markdown: bool,
}

/// Prints or writes pages.
pub fn run(flags: &Flags, _: &GlobalFlags, output: &mut Output) -> Result<()> {
    if flags.markdown {
        return output.text(reference::markdown(Cli::command()));
    }
    let Some(dir) = &flags.dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page).expect("memory takes what is written");
        return output.text(String::from_utf8_lossy(&page));
    };
    files::make_directory(dir)?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(|e| Failure::io("write pages into", dir, &e))?;
    output.text(format!("wrote manual pages into {}", dir.display()))
}
