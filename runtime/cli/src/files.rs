//! Reading files, and writing them so that a reader sees the old file or the whole new one.

use std::fs;
use std::path::Path;

pub use flashtile::files::Written;

use crate::failure::{Failure, Result};

/// All bytes of a file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Failure::io("read", path, &e))
}

/// The text of a file.
pub fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))
}

/// Writes what `--out` and its like name: see [`flashtile::files`].
pub fn write(path: &Path, bytes: &[u8]) -> Result<Written> {
    flashtile::files::write(path, bytes).map_err(|e| Failure::io("write", path, &e))
}

/// Whether [`write`] could write this file, before there is anything to write.
pub fn check_writable(path: &Path) -> Result<()> {
    flashtile::files::check_writable(path).map_err(|e| Failure::io("write", path, &e))
}

/// Refuses to write over a file that the command reads: `read` has what each is the file of.
pub fn keep_apart(flag: &str, path: &Path, read: &[(&str, Option<&Path>)]) -> Result<()> {
    let Ok(written) = path.canonicalize() else { return Ok(()) };
    let same = |other: &&(&str, Option<&Path>)| other.1.and_then(|p| p.canonicalize().ok()).as_ref() == Some(&written);
    match read.iter().find(same) {
        None => Ok(()),
        Some((what, _)) => {
            let path = path.display();
            let why = format!("{flag} {path} is the file of {what}, which would be replaced; name another file");
            Err(Failure::Usage(why))
        }
    }
}

/// Makes a directory and those above it.
pub fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|e| Failure::io("create", path, &e))
}
