//! The `flashtile` command. It turns flags into calls of the library and results into text, tables or JSON; no decision
//! about kernels is made here.
//!
//! | file | subject |
//! | --- | --- |
//! | `flags` | the command line, and what all verbs take |
//! | `verbs/` | a file per verb: its flags, and what it does |
//! | `subject`, `target` | from flags to a bound kernel; to an architecture and a schedule |
//! | `gradient` | the kernels of a gradient in place of the one that is named |
//! | `settings` | `NAME=VALUE,..` lists |
//! | `hints` | what a kernel loses, told once |
//! | `tensors`, `files` | safetensors; files written atomically |
//! | `report/` | the page of `tune --html` |
//! | `repro/` | published experiments |
//! | `output`, `table` | text, JSON, progress; tables |
//! | `failure`, `exit` | errors, and the table of exit codes |
//! | `reference` | `docs/cli.md` from the flags |

mod exit;
mod failure;
mod files;
mod flags;
mod gradient;
mod hints;
mod machine;
mod output;
mod profile;
mod reference;
mod report;
mod repro;
mod settings;
mod subject;
mod table;
mod target;
mod tensors;
mod verbs;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;
use flashtile_dsl::syntax::Style;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{Cli, GlobalFlags};
use crate::output::Output;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Success };
            // Nothing is left to be done if the text cannot be printed.
            let _ = error.print();
            return ExitCode::from(exit.row().code);
        }
    };
    let mut output = Output::new(cli.global.json);
    match cli.verb.run(&cli.global, &mut output) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = cli.verb.explained(failure);
            report(&failure, &cli.global);
            ExitCode::from(failure.exit().row().code)
        }
    }
}

/// Tells why a verb failed, on standard error.
fn report(failure: &Failure, global: &GlobalFlags) {
    if matches!(failure, Failure::Closed) {
        return;
    }
    let row = failure.exit().row();
    if global.json {
        let mut error = serde_json::json!({ "kind": row.name, "exit_code": row.code, "message": failure.to_string() });
        if let Some(reasons) = failure.reasons() {
            error["reasons"] = reasons.iter().map(ToString::to_string).collect();
        }
        eprintln!("{}", serde_json::json!({ "error": error }));
    } else {
        let style = if std::io::stderr().is_terminal() { Style::Coloured } else { Style::Plain };
        eprintln!("{}", failure.text(style, global.explain));
    }
}
