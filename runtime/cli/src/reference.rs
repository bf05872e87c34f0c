//! `docs/cli.md` from the flags. A test compares the file with what is made here.

use std::fmt::Write as _;

use clap::{Arg, Command};

use crate::exit::EXIT_CODES;

/// How the file begins.
const HEAD: &str = "# The `flashtile` command

Made from the flags themselves by `flashtile man --markdown`; change the documentation comments in `runtime/cli/src` and
run that again.

`KERNEL` is a built-in's name (`flashtile list`), `FILE`, or `FILE:NAME`. With `--json` every verb
prints one object a line on standard output, but for `man` and `completions`, whose result is text.
An error is `{\"error\": {\"kind\", \"exit_code\", \"message\"}}` on standard error, with all `\"reasons\"`
against a schedule if these are the error. Progress bars appear on a terminal only.
";

/// The reference.
pub fn markdown(mut command: Command) -> String {
    command.build();
    let mut out = HEAD.to_owned();
    let mut write = |text: String| out.write_str(&text).expect("strings take what is written");
    write("\n## Exit codes\n\n| code | name | when |\n| --- | --- | --- |\n".to_owned());
    for row in EXIT_CODES {
        write(format!("| {} | {} | {} |\n", row.code, row.name, row.doc));
    }
    write("\n## Flags of every verb\n\n".to_owned());
    write(flags(command.get_arguments().filter(|a| a.is_global_set())));
    for verb in command.get_subcommands().filter(|c| c.get_name() != "help") {
        write(section(verb, "flashtile", 2));
    }
    out
}

fn section(verb: &Command, prefix: &str, depth: usize) -> String {
    let name = format!("{prefix} {}", verb.get_name());
    let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
    let mut out = format!("\n{} `{name}`\n\n{about}.\n", "#".repeat(depth));
    let own: Vec<&Arg> = verb.get_arguments().filter(|a| !a.is_global_set() && a.get_id() != "help").collect();
    if !own.is_empty() {
        out.push('\n');
        out.push_str(&flags(own.into_iter()));
    }
    for nested in verb.get_subcommands().filter(|c| c.get_name() != "help") {
        out.push_str(&section(nested, &name, depth + 1));
    }
    out
}

fn flags<'a>(arguments: impl Iterator<Item = &'a Arg>) -> String {
    let mut out = "| flag | meaning |\n| --- | --- |\n".to_owned();
    for argument in arguments {
        let value = argument.get_value_names().map(|names| names.iter().map(|n| n.as_str()).collect::<Vec<_>>().join(" "));
        let takes_value = argument.get_action().takes_values();
        let flag = match (argument.get_long(), value.filter(|_| takes_value)) {
            (Some(long), Some(value)) => format!("--{long} {value}"),
            (Some(long), None) => format!("--{long}"),
            (None, value) => value.unwrap_or_else(|| argument.get_id().to_string()),
        };
        let mut meaning = argument.get_help().map(ToString::to_string).unwrap_or_default();
        let values: Vec<String> = match takes_value {
            true => argument.get_possible_values().iter().map(|v| format!("`{}`", v.get_name())).collect(),
            false => Vec::new(),
        };
        if !values.is_empty() {
            let _ = write!(meaning, "; one of {}", values.join(", "));
        }
        let default: Vec<_> = argument.get_default_values().iter().map(|v| format!("`{}`", v.to_string_lossy())).collect();
        if takes_value && !default.is_empty() {
            let _ = write!(meaning, "; default {}", default.join(", "));
        }
        let _ = writeln!(out, "| `{flag}` | {} |", meaning.replace('|', "\\|"));
    }
    out
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_reference_in_docs_is_that_of_the_flags() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        let made = super::markdown(crate::flags::Cli::command());
        assert!(written == made, "docs/cli.md is out of date: run `flashtile man --markdown > docs/cli.md`");
    }
}
