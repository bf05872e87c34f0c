//! File tests: kernel text, commands, and what each command prints.
//!
//! A file is kernel text up to the first line that starts with `; run:`. Each such line is a command; the lines up to the next
//! one are what it must print, for every kernel of the file in order. `FLASHTILE_BLESS=1` writes what it does print
//! instead; review the difference.
//!
//! A file may start with `; text: PATH` in place of kernel text: then it tests the kernels of that file, relative to the folder of
//! the tests.
//!
//! ```text
//! pub fn copy(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) { ... }
//!
//! ; run: mask j=64
//! for j in tiles(N)
//! ...
//! ```

mod command;
mod difference;
mod generated;

use std::path::{Path, PathBuf};

pub use command::COMMANDS;

const MARK: &str = "; run:";
const TEXT: &str = "; text:";

/// Runs one file. `Err` says what differs, or what is wrong with the file.
pub fn run(path: &Path, bless: bool) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    let mut parts = text.split_inclusive('\n').peekable();
    let mut kernels = String::new();
    while let Some(line) = parts.next_if(|l| !l.starts_with(MARK)) {
        kernels.push_str(line);
    }
    if parts.peek().is_none() {
        return Err(format!("{} has no line that starts with `{MARK}`: it would test nothing", path.display()));
    }
    let name = path.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let mut out = kernels.clone();
    let (name, kernels) = match kernels.strip_prefix(TEXT).and_then(|rest| rest.lines().next()) {
        Some(other) => {
            let other = Path::new(env!("CARGO_MANIFEST_DIR")).join(other.trim());
            let text = std::fs::read_to_string(&other).map_err(|e| format!("cannot read {}: {e}", other.display()))?;
            (other.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned()), text)
        }
        None => (name, kernels),
    };
    for line in parts {
        if let Some(command) = line.strip_prefix(MARK) {
            let printed = command::run(command.trim(), &name, &kernels)
                .map_err(|e| format!("{}: `{}`: {e}", path.display(), line.trim_end()))?;
            out.push_str(&format!("{MARK} {}\n{}\n\n", command.trim(), printed.trim_end()));
        }
    }
    let out = format!("{}\n", out.trim_end());
    if out == text {
        return Ok(());
    }
    if bless {
        return std::fs::write(path, out).map_err(|e| format!("cannot write {}: {e}", path.display()));
    }
    let difference = difference::difference(&text, &out);
    Err(format!("{} prints something else (FLASHTILE_BLESS=1 accepts it):\n{difference}", path.display()))
}

/// All `.ft` files under a folder, in order.
pub fn files(folder: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("cannot list {}: {e}", folder.display()));
    for entry in entries {
        let path = entry.expect("the folder is readable").path();
        if path.is_dir() {
            out.extend(files(&path));
        } else if path.extension().is_some_and(|e| e == "ft") {
            out.push(path);
        }
    }
    out.sort();
    out
}
