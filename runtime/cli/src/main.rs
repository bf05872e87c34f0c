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
use clap::error::ErrorKind;
use flashtile_dsl::syntax::Style;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::flags::{Cli, GlobalFlags};
use crate::output::Output;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && asks_for_json() => {
            let failure = Failure::Usage(brief(&error));
            report(&failure, &GlobalFlags { json: true, ..GlobalFlags::default() });
            return ExitCode::from(failure.exit().row().code);
        }
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

/// Whether `--json` is among the arguments, of a command line that cannot be read.
fn asks_for_json() -> bool {
    std::env::args_os().skip(1).take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// What is wrong with a command line, without the usage that a person is shown below it.
fn brief(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "the command line is not complete; `flashtile --help` lists the verbs, `flashtile VERB --help` what each takes"
            .into();
    }
    // clap prints `error: WHAT`, tips, the usage, and where to find more, with empty lines between.
    let text = error.render().to_string();
    let paragraphs = text.split("\n\n").take_while(|part| !["Usage:", "For more"].iter().any(|word| part.starts_with(word)));
    let text = paragraphs.collect::<Vec<_>>().join("\n\n");
    text.strip_prefix("error: ").unwrap_or(&text).trim().to_owned()
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
        output::tell(serde_json::json!({ "error": error }).to_string());
    } else {
        let style = if std::io::stderr().is_terminal() { Style::Coloured } else { Style::Plain };
        output::tell(failure.text(style, global.explain));
    }
}
