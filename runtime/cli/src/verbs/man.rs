//! `flashtile man`: manual pages and `docs/cli.md`, from the same table of flags as everything else.

use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};

use crate::failure::Result;
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
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    pages(&command, &mut |name, page| files::write(&dir.join(name), page).map(|_| ()))?;
    output.text(format!("wrote manual pages into {}", dir.display()))
}

/// Gives the page of a command, and those of the commands below it, to `write`, each with the name of its file.
fn pages(command: &Command, write: &mut impl FnMut(String, &[u8]) -> Result<()>) -> Result<()> {
    command.get_subcommands().filter(|c| !c.is_hide_set()).try_for_each(|below| pages(below, write))?;
    let man = clap_mangen::Man::new(command.clone());
    let mut page = Vec::new();
    man.render(&mut page).expect("memory takes what is written");
    write(man.get_filename(), &page)
}
