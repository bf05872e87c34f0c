//! `flashtile playground`: opens the page that compiles kernels in a browser.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::output::Output;

/// The page's file, beside the command.
const PAGE: &str = "playground.html";

/// Flags of `flashtile playground`.
#[derive(Args, Debug)]
pub struct Flags {
    /// The page; the default is playground.html beside the command
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Say where the page is, and open nothing
    #[arg(long)]
    no_open: bool,
}

/// Opens the page.
pub fn run(flags: &Flags, _: &GlobalFlags, output: &mut Output) -> Result<()> {
    let page = page(flags)?;
    match output.json {
        true => output.json(&json!({ "page": page }))?,
        false => output.text(format!("{}\n", page.display()))?,
    }
    if flags.no_open {
        return Ok(());
    }
    opener::open(&page).map_err(|error| {
        Failure::Usage(format!("no browser opened {} ({error}); open it by hand, or give --no-open", page.display()))
    })
}

/// The page that is named, or the one beside the command.
fn page(flags: &Flags) -> Result<PathBuf> {
    let beside = || std::env::current_exe().ok().and_then(|command| command.parent().map(|folder| folder.join(PAGE)));
    let page = flags.page.clone().or_else(beside);
    let found = page.as_deref().filter(|page| page.is_file()).map(Path::to_owned);
    found.ok_or_else(|| {
        let page = page.as_deref().unwrap_or(Path::new(PAGE));
        Failure::Usage(format!(
            "there is no page at {}; `python3 clients/playground/build.py --out FILE`, in a clone of the repository, makes it, \
             and --page FILE names it",
            page.display()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_missing_is_told_with_what_makes_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("page.html");
        let flags = Flags { page: Some(file.clone()), no_open: true };
        let error = page(&flags).expect_err("no page").to_string();
        assert!(error.contains("page.html; `python3 clients/playground/build.py"), "{error}");
        std::fs::write(&file, "<!doctype html>").expect("a page");
        assert_eq!(page(&flags).ok(), Some(file));
    }
}
