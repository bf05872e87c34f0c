//! The command line: verbs, and flags that all verbs take. Documentation comments here and beside each verb's flags are the
//! one source of `--help`, the man pages, completions and `docs/cli.md`.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use flashtile::LaunchOptions;
use flashtile::toolchain::{Toolchain, ToolchainOptions};

use crate::exit;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::verbs;

/// Compiles, inspects, checks, tunes and times attention kernels written at tile level.
///
/// KERNEL is the name of a built-in kernel (see `flashtile list`), a FILE that holds one kernel, or FILE:NAME.
#[derive(Parser, Debug)]
#[command(name = "flashtile", version, after_long_help = exit::table(), max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
    /// Flags of all verbs.
    #[command(flatten)]
    pub global: GlobalFlags,
}

/// Flags that every verb takes.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct GlobalFlags {
    /// Print results as JSON, one object a line; errors too, on standard error
    #[arg(long, global = true)]
    pub json: bool,
    /// NVRTC to use: libnvrtc.so, the directory that holds it, or a version to install (see docs/toolchain.md); the default is what
    /// FLASHTILE_NVRTC says
    #[arg(long, global = true, value_name = "PATH")]
    pub nvrtc: Option<PathBuf>,
    /// List all reasons against a schedule, where the three that matter most are told; with tune,
    /// every candidate that was rejected or eliminated too, those rejected for reasons alike in one
    /// row with one of them
    #[arg(long, global = true)]
    pub explain: bool,
    /// Never install NVRTC or a disassembler; use what is there
    #[arg(long, global = true)]
    pub no_install: bool,
}

impl GlobalFlags {
    /// The compiler that verbs use.
    pub fn toolchain(&self) -> Toolchain {
        let mut options = ToolchainOptions::default();
        if self.nvrtc.is_some() {
            options.nvrtc.clone_from(&self.nvrtc);
        }
        if self.no_install {
            options.install = false;
        }
        if self.json {
            options.progress = Arc::new(|_| {});
        }
        Toolchain::new(options)
    }

    /// How kernels are compiled for launches.
    pub fn launch_options(&self) -> LaunchOptions {
        LaunchOptions { toolchain: self.toolchain(), ..LaunchOptions::default() }
    }
}

macro_rules! verbs {
    ($($(#[doc = $doc:literal])+ $variant:ident($module:ident);)+) => {
        /// What to do.
        #[derive(Subcommand, Debug)]
        pub enum Verb {
            $($(#[doc = $doc])+ $variant(verbs::$module::Flags)),+
        }

        impl Verb {
            /// Does it.
            pub fn run(&self, global: &GlobalFlags, output: &mut Output) -> Result<()> {
                match self {
                    $(Verb::$variant(flags) => verbs::$module::run(flags, global, output)),+
                }
            }
        }
    };
}

impl Verb {
    /// A failure, with what helps where flags of the verb have led to it.
    pub fn explained(&self, failure: Failure) -> Failure {
        match self {
            Verb::Verify(flags) => flags.gradient.explained(failure),
            Verb::Tune(flags) => flags.gradient.explained(failure),
            Verb::Bench(flags) => flags.gradient.explained(failure),
            _ => failure,
        }
    }
}

verbs! {
    /// Take one kernel from its text to a checked, timed result on the best device there is
    Demo(demo);
    /// List the built-in kernels, knobs and architectures
    List(list);
    /// Check the kernels of a file and show every error, or what kernels without errors lose and name in vain
    Check(check);
    /// Say what was found on this machine and how to get what is missing
    Doctor(doctor);
    /// Show any stage of compiling a kernel
    Inspect(inspect);
    /// Run a kernel on tensors of a safetensors file
    Run(run);
    /// Check results against the float64 oracle
    Verify(verify);
    /// Find the fastest schedule for a shape
    Tune(tune);
    /// Time a kernel, and check what it computes
    Bench(bench);
    /// Compile kernels ahead of time into a directory that C and Rust programs launch from
    Bundle(bundle);
    /// Open the page that compiles kernels in a browser
    Playground(playground);
    /// Run published experiments again, with the published figures beside
    Repro(repro);
    /// Look after the cache of tuning results and compiled code
    Cache(cache);
    /// Print a completion script for a shell
    Completions(completions);
    /// Print the manual page, or the reference in Markdown
    Man(man);
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_is_well_formed_and_everything_has_a_doc() {
        let command = Cli::command();
        command.clone().debug_assert();
        fn walk(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{} has no doc", command.get_name());
            for argument in command.get_arguments().filter(|a| a.get_id() != "help" && a.get_id() != "version") {
                assert!(argument.get_help().is_some(), "{} {} has no doc", command.get_name(), argument.get_id());
            }
            command.get_subcommands().for_each(walk);
        }
        walk(&command);
    }
}
