//! Reading files, and writing them so that a reader sees the old file or the whole new one.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::failure::{Failure, Result};

/// All bytes of a file.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|e| Failure::io("read", path, &e))
}

/// The text of a file.
pub fn read_text(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| Failure::io("read", path, &e))
}

/// Writes a file under a temporary name beside it, flushes it, and renames it. What was there stays until then.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path.file_name().ok_or_else(|| Failure::Usage(format!("{} names no file", path.display())))?;
    let temporary = path.with_file_name(format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id()));
    let written = File::create(&temporary)
        .and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&temporary, path));
    written.map_err(|e| {
        // Nothing is lost if it stays.
        let _ = fs::remove_file(&temporary);
        Failure::io("write", path, &e)
    })
}

/// Makes a directory and those above it.
pub fn make_directory(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|e| Failure::io("create", path, &e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("out.bin");
        write_atomically(&path, b"one").expect("writes");
        write_atomically(&path, b"two").expect("writes");
        assert_eq!(read(&path).expect("reads"), b"two");
        assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 1);
        let missing = dir.path().join("no/such/out.bin");
        let error = write_atomically(&missing, b"").expect_err("no directory").to_string();
        assert!(error.starts_with("failed to write"), "{error}");
    }
}
