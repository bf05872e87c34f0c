//! `flashtile check`: every error of a file of kernels, each at its place; for kernels without errors, what they lose.

use std::collections::BTreeMap;

use clap::Args;
use flashtile::kernel::KernelError;
use flashtile::{Elem, Kernel};
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
    file: String,
}

/// Checks a file.
pub fn run(flags: &Flags, _: &GlobalFlags, output: &mut Output) -> Result<()> {
    let source = Kernel::text_of(&flags.file)?;
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

/// With JSON, prints the errors one by one; the failure holds them too.
fn refuse(errors: Diagnostics, output: &mut Output) -> Result<()> {
    if output.json {
        errors.list.iter().try_for_each(|error| output.json(&hints::diagnostic_json(&errors.source, error)))?;
    }
    Err(KernelError::Text(Box::new(errors)).into())
}
