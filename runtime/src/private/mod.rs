//! Directories and files that only this user can change: what the cache and an installed compiler lie in.
//!
//! Cached machine code and `libnvrtc.so` run with the rights of whoever loads them, and a hash that lies beside the content
//! proves nothing against a person who can write both. So a file is read only if nobody else could have written it:
//!
//! * it is a regular file, of this user or of root, and neither its group nor others may write it;
//! * so is the directory that holds it, and every directory of the cache;
//! * every directory above belongs to this user or to root. Where others may write one of these, either it is sticky, as `/tmp`
//!   is, so that they cannot replace what is not theirs; or a directory further up lets nobody else pass.
//!
//! Everything is checked by descriptor: a directory is opened from the one above it, then looked at, then used, so that nothing can
//! be exchanged between the check and the use. Symbolic links on the way are followed one by one, under the same rules.
//! Directories are made with mode 0700 and files with 0600.
//!
//! Where there are no Unix permissions, `portable` does the same without the check: there the platform's directory for caches
//! belongs to the user alone.

#[cfg(not(unix))]
mod portable;
mod trouble;
#[cfg(unix)]
mod unix;

#[cfg(not(unix))]
pub(crate) use portable::Directory;
pub(crate) use trouble::{Distrust, Trouble};
#[cfg(unix)]
pub(crate) use unix::Directory;

use std::fs::File;
use std::io::{self, Read};

/// Largest file that is read whole. The code of a kernel has a few hundred kilobytes.
const MOST_BYTES: u64 = 1 << 30;

/// Whose files are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Trust {
    /// Those of this user and of root.
    Own,
    /// Anybody's, because the user said so.
    Anyone,
}

/// All bytes of an open regular file.
fn bytes_of(file: &File) -> io::Result<Vec<u8>> {
    let length = file.metadata()?.len();
    if length > MOST_BYTES {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has {length} bytes")));
    }
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(length).unwrap_or(usize::MAX))?;
    file.take(MOST_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}
