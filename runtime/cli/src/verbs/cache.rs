//! `flashtile cache`: lists, verifies, exports, imports and clears tuning results and compiled code.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use flashtile::cache::{Cache, EntryInfo, ImportSummary};
use serde_json::json;

use crate::failure::{Failure, Result};
use crate::flags::GlobalFlags;
use crate::output::Output;

/// Flags of `flashtile cache`.
#[derive(Args, Debug)]
pub struct Flags {
    /// What to do with the cache
    #[command(subcommand)]
    action: Action,
}

/// What to do with the cache.
#[derive(Subcommand, Debug)]
enum Action {
    /// List every entry
    List,
    /// Check every entry and set damaged ones aside
    Verify,
    /// Write every good entry to one file
    Export {
        /// File to write
        file: PathBuf,
    },
    /// Add the entries of an export. Results of tuning that are there get what it knows more; other
    /// entries that are there stay
    Import {
        /// File to read
        file: PathBuf,
    },
    /// Remove every entry; an installed compiler stays
    Clear,
}

/// Does it.
pub fn run(flags: &Flags, _: &GlobalFlags, output: &mut Output) -> Result<()> {
    let cache = Cache::shared();
    match &flags.action {
        Action::List => show(&cache.list()?, &cache, output),
        Action::Verify => {
            let entries = cache.verify()?;
            show(&entries, &cache, output)?;
            match entries.iter().filter(|e| e.fault.is_some()).count() {
                0 => Ok(()),
                count => Err(Failure::DamagedCache { count }),
            }
        }
        Action::Export { file } => {
            let entries = cache.export(file)?;
            let text = format!("wrote {entries} entries to {}", file.display());
            if flashtile::files::is_standard_output(file) {
                output.note(text);
                return Ok(());
            }
            result(output, &text, &json!({ "exported": entries, "file": file }))
        }
        Action::Import { file } => {
            let summary = cache.import(file)?;
            let ImportSummary { added, merged, present } = summary;
            let text = format!("added {added} entries, and to {merged} results of tuning; {present} were there already");
            result(output, &text, &json!(summary))
        }
        Action::Clear => {
            let entries = cache.clear()?;
            result(output, &format!("removed {entries} entries"), &json!({ "removed": entries }))
        }
    }
}

fn result(output: &mut Output, text: &str, json: &serde_json::Value) -> Result<()> {
    if output.json { output.json(json) } else { output.text(text) }
}

fn show(entries: &[EntryInfo], cache: &Cache, output: &mut Output) -> Result<()> {
    if output.json {
        return entries.iter().try_for_each(|entry| output.json(entry));
    }
    if let Some(directory) = cache.directory() {
        output.text(format!("{} entries in {}", entries.len(), directory.display()))?;
    }
    if entries.is_empty() {
        return Ok(());
    }
    let rows = entries.iter().map(|entry| {
        let damaged = |fault| format!("damaged: {fault}; {}", entry.path.display());
        let state = entry.fault.as_ref().map_or("good".to_owned(), damaged);
        vec![entry.description.clone(), entry.bytes.to_string(), state]
    });
    output.table(&["entry", "bytes", "state"], rows)
}
