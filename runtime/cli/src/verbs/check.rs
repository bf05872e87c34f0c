//! `flashtile check`: every error of a file of kernels, each at its place; for kernels without errors, what they lose.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use flashtile::kernel::{BUILTINS, KernelError};
use flashtile::{Elem, SourceText};
use flashtile_dsl::syntax::{self, Diagnostics};
use serde_json::json;

use super::list::parameters;
use crate::failure::Result;
use crate::flags::GlobalFlags;
use crate::hints;
use crate::output::Output;

/// Flags of `flashtile check`.
#[derive(Args, Debug)]
pub struct Flags {
    /// File of kernels, or the name of a built-in
    file: PathBuf,
}

/// Checks a file.
pub fn run(flags: &Flags, _: &GlobalFlags, output: &mut Output) -> Result<()> {
    let source = source(flags)?;
    let kernels = match syntax::parse(&source) {
        Ok(kernels) => kernels,
        Err(errors) => return refuse(errors, output),
    };
    for kernel in &kernels {
        let hints = hints::find(kernel, Elem::Bf16, &BTreeMap::new(), hints::usual_arch());
        hints::tell(kernel, &hints, output);
        match output.json {
            true => output.json(&json!({
                "kernel": kernel.name,
                "parameters": parameters(kernel),
                "warnings": hints::warnings(kernel).iter().map(|w| hints::diagnostic_json(&source, w)).collect::<Vec<_>>(),
                "hints": hints::json(kernel, &hints),
            }))?,
            false => output.text(format!("{}: kernel `{}` is well formed", source.name, kernel.name))?,
        }
    }
    Ok(())
}

fn source(flags: &Flags) -> Result<SourceText> {
    let name = flags.file.display().to_string();
    if let Some(builtin) = BUILTINS.iter().find(|b| b.name == name) {
        return Ok(SourceText { name: builtin.file.to_owned(), text: builtin.text.into(), first_line: 1 });
    }
    let read = std::fs::read_to_string(&flags.file);
    let text = read.map_err(|e| KernelError::Read { path: name.clone(), reason: e.to_string() })?;
    Ok(SourceText { name, text: text.into(), first_line: 1 })
}

/// With JSON, prints the errors one by one; the failure holds them too.
fn refuse(errors: Diagnostics, output: &mut Output) -> Result<()> {
    if output.json {
        errors.list.iter().try_for_each(|error| output.json(&hints::diagnostic_json(&errors.source, error)))?;
    }
    Err(KernelError::Text(Box::new(errors)).into())
}
