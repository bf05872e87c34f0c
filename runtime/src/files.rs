//! Writes a file that a user names, so that a reader sees the old one or the whole new one.
//!
//! | what is there | what happens |
//! | --- | --- |
//! | nothing, or a regular file | written under a temporary name beside it, flushed, and renamed; the permissions of the old file stay |
//! | a symbolic link | what it leads to is written; the link stays |
//! | what standard output or standard error is | written there, in order with what is printed |
//! | a device, a FIFO, a socket (`/dev/null`, `/dev/stdout` of a pipe) | written through; it stays what it is |
//! | a directory | refused |

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Links that are followed.
const MOST_LINKS: u32 = 40;

/// Where the bytes went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// Into a file of that name, old or new.
    File,
    /// Through a device, a FIFO or a socket.
    Through,
    /// To standard output.
    StandardOutput,
    /// To standard error.
    StandardError,
}

/// Writes all bytes to what `path` names.
///
/// # Errors
/// What the system says; then a file that was there is as it was. A directory is an error too.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<Written> {
    match fs::metadata(path) {
        Ok(there) => match stream(&there) {
            Some(Written::StandardOutput) => whole(&mut io::stdout().lock(), bytes).map(|()| Written::StandardOutput),
            Some(_) => whole(&mut io::stderr().lock(), bytes).map(|()| Written::StandardError),
            None if there.is_dir() => Err(is_directory()),
            None if there.is_file() => replace(&target(path)?, bytes, Some(&there)).map(|()| Written::File),
            None => {
                let mut through = File::options().write(true).open(path)?;
                whole(&mut through, bytes).map(|()| Written::Through)
            }
        },
        Err(e) if e.kind() == io::ErrorKind::NotFound => replace(&target(path)?, bytes, None).map(|()| Written::File),
        Err(e) => Err(e),
    }
}

/// Whether [`write()`] could write this file now: nothing of it is written, and what is there stays. What lies behind a device,
/// a FIFO or a socket is not asked.
///
/// # Errors
/// As [`write()`].
pub fn check_writable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if stream(&there).is_some() => Ok(()),
        Ok(there) if there.is_dir() => Err(is_directory()),
        Ok(there) if there.is_file() => temporary(&target(path)?, Some(&there)).map(drop),
        Ok(_) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => temporary(&target(path)?, None).map(drop),
        Err(e) => Err(e),
    }
}

/// Whether [`write()`] would write to standard output, so that nothing else should be printed there.
pub fn is_standard_output(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|there| stream(&there) == Some(Written::StandardOutput))
}

fn whole(to: &mut dyn Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

/// Where symbolic links lead, whether something is there or not.
fn target(path: &Path) -> io::Result<PathBuf> {
    let mut at = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::symlink_metadata(&at) {
            Ok(found) if found.is_symlink() => at = at.parent().unwrap_or(Path::new("")).join(fs::read_link(&at)?),
            _ => return Ok(at),
        }
    }
    Err(io::Error::other("it leads through too many symbolic links"))
}

fn is_directory() -> io::Error {
    io::Error::new(io::ErrorKind::IsADirectory, "it is a directory; name a file in it")
}

fn replace(path: &Path, bytes: &[u8], old: Option<&Metadata>) -> io::Result<()> {
    let mut temporary = temporary(path, old)?;
    temporary.write_all(bytes)?;
    temporary.as_file().sync_all()?;
    temporary.persist(path).map_err(|e| e.error)?;
    Ok(())
}

/// An empty file beside `path` with the permissions that it is to have. It is gone if it is dropped.
fn temporary(path: &Path, old: Option<&Metadata>) -> io::Result<tempfile::NamedTempFile> {
    let directory = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.file_name().is_none() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it names no file"));
    }
    if old.is_some() {
        // What may not be written may not be replaced either.
        File::options().write(true).open(path)?;
    }
    let mut builder = tempfile::Builder::new();
    builder.prefix(".flashtile-").suffix(".tmp");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // As any new file; what the user's mask takes away is taken away.
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let temporary = builder.tempfile_in(directory)?;
    if let Some(old) = old {
        temporary.as_file().set_permissions(old.permissions())?;
    }
    Ok(temporary)
}

/// Which of the streams of the process this is, if it is one.
#[cfg(unix)]
fn stream(there: &Metadata) -> Option<Written> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;
    let is = |stream: std::os::fd::BorrowedFd<'_>| {
        let open = stream.try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
        open.is_ok_and(|open| (open.dev(), open.ino(), open.rdev()) == (there.dev(), there.ino(), there.rdev()))
    };
    match () {
        () if is(io::stdout().as_fd()) => Some(Written::StandardOutput),
        () if is(io::stderr().as_fd()) => Some(Written::StandardError),
        () => None,
    }
}

/// Which of the streams of the process this is, if it is one.
#[cfg(not(unix))]
fn stream(_: &Metadata) -> Option<Written> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).expect("lists").map(|e| e.expect("lists").file_name());
        let mut names: Vec<String> = entries.map(|n| n.to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_else_stays() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("out.bin");
        assert_eq!(write(&path, b"one").expect("writes"), Written::File);
        assert_eq!(write(&path, b"two").expect("writes"), Written::File);
        assert_eq!(fs::read(&path).expect("reads"), b"two");
        assert_eq!(names(dir.path()), ["out.bin"]);
        assert_eq!(write(&dir.path().join("no/such/out.bin"), b"").expect_err("is missing").kind(), io::ErrorKind::NotFound);
        for directory in [dir.path().to_owned(), "/".into(), "..".into(), dir.path().join("..")] {
            let error = write(&directory, b"").expect_err("is a directory");
            assert_eq!(error.kind(), io::ErrorKind::IsADirectory, "{}", directory.display());
        }
    }

    #[test]
    fn what_cannot_be_written_is_known_before_and_nothing_changes() {
        let dir = tempfile::tempdir().expect("a directory");
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        fs::write(&old, "kept").expect("writes");
        for path in [&old, &new] {
            check_writable(path).expect("could be written");
        }
        assert_eq!((fs::read(&old).expect("reads"), names(dir.path())), (b"kept".to_vec(), vec!["old".to_owned()]));
        for wrong in [dir.path().to_owned(), "/".into(), dir.path().join("no/such/out"), old.join("below a file")] {
            let (checked, written) = (check_writable(&wrong).expect_err("cannot be"), write(&wrong, b"").expect_err("cannot be"));
            assert_eq!(checked.kind(), written.kind(), "{}", wrong.display());
        }
    }

    #[test]
    #[cfg(unix)]
    fn permissions_stay_and_new_files_have_the_usual_ones() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let mode = |path: &Path| fs::metadata(path).expect("is there").permissions().mode() & 0o777;
        let (new, usual, private) = (dir.path().join("new"), dir.path().join("usual"), dir.path().join("private"));
        fs::write(&usual, "").expect("writes");
        fs::write(&private, "").expect("writes");
        fs::set_permissions(&private, fs::Permissions::from_mode(0o640)).expect("sets");
        write(&new, b"x").expect("writes");
        write(&private, b"x").expect("writes");
        assert_eq!((mode(&new), mode(&private)), (mode(&usual), 0o640));
    }

    #[test]
    #[cfg(unix)]
    fn links_are_followed_and_stay() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("inner")).expect("creates");
        fs::write(at("inner/real"), "old").expect("writes");
        symlink("inner/real", at("link")).expect("links");
        symlink("link", at("link_of_link")).expect("links");
        symlink("inner/missing", at("dangling")).expect("links");
        symlink("loop", at("loop")).expect("links");
        write(&at("link_of_link"), b"new").expect("writes");
        write(&at("dangling"), b"made").expect("writes");
        assert_eq!(fs::read(at("inner/real")).expect("reads"), b"new");
        assert_eq!(fs::read(at("inner/missing")).expect("reads"), b"made");
        assert!(["link", "link_of_link", "dangling"].iter().all(|name| at(name).is_symlink()));
        assert!(write(&at("loop"), b"").is_err() && at("loop").is_symlink());
        assert_eq!(names(&at("inner")), ["missing", "real"]);
    }

    #[test]
    #[cfg(unix)]
    fn devices_and_fifos_are_written_through() {
        use rustix::fs::{CWD, FileType, Mode};
        use std::os::unix::fs::FileTypeExt;
        let dir = tempfile::tempdir().expect("a directory");
        let fifo = dir.path().join("fifo");
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("makes a FIFO");
        let reader = std::thread::spawn({
            let fifo = fifo.clone();
            move || fs::read(fifo).expect("reads")
        });
        assert_eq!(write(&fifo, b"through").expect("writes"), Written::Through);
        assert_eq!(reader.join().expect("ends"), b"through");
        assert!(fs::symlink_metadata(&fifo).expect("is there").file_type().is_fifo());
        write(Path::new("/dev/null"), b"gone").expect("writes");
        assert!(fs::metadata("/dev/null").expect("is there").file_type().is_char_device());
    }
}
