//! [`Directory`] where files have owners and permissions.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Distrust, Trouble, Trust, bytes_of};

/// Links that are followed on the way to a directory, and directories that are made there.
const MOST_LINKS: usize = 40;
const ROOT: u32 = 0;
const DIRECTORY: &str = "directory";
const REGULAR: &str = "regular file";
/// Permissions with which others can change something.
const OTHERS_WRITE: u32 = 0o022;
/// Permissions with which others can reach what is in a directory.
const OTHERS_PASS: u32 = 0o011;
const STICKY: u32 = 0o1000;

/// How a directory on the way is opened. It need not be readable where the system has descriptors that only lead on.
#[cfg(any(target_os = "linux", target_os = "android"))]
const ON_THE_WAY: OFlags = OFlags::PATH;
/// How a directory on the way is opened.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const ON_THE_WAY: OFlags = OFlags::RDONLY;

/// A directory that is open, and that nobody else can change.
pub(crate) struct Directory {
    descriptor: OwnedFd,
    path: PathBuf,
    trust: Trust,
    /// Whether a directory above lets nobody else pass.
    closed: bool,
}

/// What a name in a directory leads to.
enum Found {
    Directory(Directory),
    Link(PathBuf),
    Nothing,
}

impl Directory {
    /// Opens a directory.
    pub fn open(path: &Path, trust: Trust) -> Result<Self, Trouble> {
        Self::at(path, trust, false)
    }

    /// Opens a directory; makes it, and those above it, where they are missing.
    pub fn create(path: &Path, trust: Trust) -> Result<Self, Trouble> {
        Self::at(path, trust, true)
    }

    /// Opens a directory in this one.
    pub fn child(&self, name: &str) -> Result<Self, Trouble> {
        self.duplicate()?.descend(&mut VecDeque::from([OsString::from(name)]), false)
    }

    /// Opens a directory in this one; makes it if it is missing.
    pub fn create_child(&self, name: &str) -> Result<Self, Trouble> {
        self.duplicate()?.descend(&mut VecDeque::from([OsString::from(name)]), true)
    }

    /// Where it is, without symbolic links.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file for reading. Opens nothing else: what is no regular file may block, or act when it is opened.
    pub fn open_file(&self, name: &str) -> Result<File, Trouble> {
        let path = self.path.join(name);
        let failed = |e: Errno| Trouble::io("read", &path, e);
        let stat = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
        self.judge_file(&path, &stat)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(&self.descriptor, name, flags, Mode::empty()).map_err(failed)?;
        self.judge_file(&path, &rustix::fs::fstat(&descriptor).map_err(failed)?)?;
        Ok(File::from(descriptor))
    }

    /// All bytes of a regular file.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Trouble> {
        bytes_of(&self.open_file(name)?).map_err(|e| Trouble::io("read", &self.path.join(name), e))
    }

    /// Makes a file, which must not be there.
    pub fn create_file(&self, name: &str) -> Result<File, Trouble> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.descriptor, name, flags, Mode::RUSR | Mode::WUSR);
        made.map(File::from).map_err(|e| Trouble::io("create", &self.path.join(name), e))
    }

    /// Opens a file to lock, and makes it if it is missing.
    pub fn lock_file(&self, name: &str) -> Result<File, Trouble> {
        let path = self.path.join(name);
        let failed = |e: Errno| Trouble::io("open", &path, e);
        match rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => self.judge_file(&path, &stat)?,
            Err(Errno::NOENT) => {}
            Err(e) => return Err(failed(e)),
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(&self.descriptor, name, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        self.judge_file(&path, &rustix::fs::fstat(&descriptor).map_err(failed)?)?;
        Ok(File::from(descriptor))
    }

    /// Renames what is in it. What has the new name is replaced.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Trouble> {
        let renamed = rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to);
        renamed.map_err(|e| Trouble::io("rename", &self.path.join(from), e))
    }

    /// Whether it holds something of this name, whatever it is.
    pub fn holds(&self, name: &str) -> bool {
        rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Removes a file, a link, a special file or an empty directory.
    pub fn remove(&self, name: &str) -> Result<(), Trouble> {
        let unlink = |flags| rustix::fs::unlinkat(&self.descriptor, name, flags);
        // Linux says EISDIR of a directory, POSIX EPERM.
        let removed = match unlink(AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => unlink(AtFlags::REMOVEDIR),
            other => other,
        };
        removed.map_err(|e| Trouble::io("remove", &self.path.join(name), e))
    }

    /// Names of what is in it, sorted. Names that are no text are left out: nothing here is called so.
    pub fn names(&self) -> Result<Vec<String>, Trouble> {
        let failed = |e: Errno| Trouble::io("list", &self.path, e);
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.descriptor).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().to_owned();
            names.extend(name.into_string().ok().filter(|n| n != "." && n != ".."));
        }
        names.sort();
        Ok(names)
    }

    /// Flushes its names, so that they survive a power cut. Some file systems refuse it, and then they may not.
    pub fn sync(&self) {
        let _ = rustix::fs::fsync(&self.descriptor);
    }

    fn at(path: &Path, trust: Trust, create: bool) -> Result<Self, Trouble> {
        let absolute = std::path::absolute(path).map_err(|e| Trouble::io("find", path, e))?;
        let mut pending = parts(&absolute);
        Self::root(trust, pending.is_empty())?.descend(&mut pending, create)
    }

    fn root(trust: Trust, last: bool) -> Result<Self, Trouble> {
        let path = PathBuf::from("/");
        let failed = |e: Errno| Trouble::io("open", &path, e);
        let flags = flags(last);
        let descriptor = rustix::fs::openat(CWD, "/", flags, Mode::empty()).map_err(failed)?;
        let stat = rustix::fs::fstat(&descriptor).map_err(failed)?;
        let closed = judge_directory(&path, &stat, trust, last, false)?;
        Ok(Self { descriptor, path, trust, closed })
    }

    fn duplicate(&self) -> Result<Self, Trouble> {
        let descriptor = self.descriptor.try_clone().map_err(|e| Trouble::io("open", &self.path, e))?;
        Ok(Self { descriptor, path: self.path.clone(), trust: self.trust, closed: self.closed })
    }

    /// Goes down by these names.
    fn descend(self, pending: &mut VecDeque<OsString>, create: bool) -> Result<Self, Trouble> {
        let mut at = self;
        let mut steps = 0;
        while let Some(name) = pending.pop_front() {
            match at.enter(&name, pending.is_empty())? {
                Found::Directory(below) => {
                    at = below;
                    continue;
                }
                Found::Link(target) => {
                    if target.is_absolute() {
                        at = Self::root(at.trust, false)?;
                    }
                    parts(&target).into_iter().rev().for_each(|part| pending.push_front(part));
                }
                Found::Nothing if create => {
                    let mode = Mode::RUSR | Mode::WUSR | Mode::XUSR;
                    match rustix::fs::mkdirat(&at.descriptor, &name, mode) {
                        // Another process may have been first.
                        Ok(()) | Err(Errno::EXIST) => pending.push_front(name),
                        Err(e) => {
                            let path = at.path.join(&name);
                            return Err(Trouble::Io { action: "create", path, error: e.into() });
                        }
                    }
                }
                Found::Nothing => return Err(Trouble::Missing(at.path.join(&name))),
            }
            steps += 1;
            if steps > MOST_LINKS + pending.len() {
                return Err(Distrust::Links { path: at.path }.into());
            }
        }
        Ok(at)
    }

    /// What a name leads to. The last one on the way is held to stricter rules.
    fn enter(&self, name: &OsStr, last: bool) -> Result<Found, Trouble> {
        let path = if name == ".." { self.path.parent().unwrap_or(&self.path).to_owned() } else { self.path.join(name) };
        let failed = |e: Errno| Trouble::io("open", &path, e);
        match rustix::fs::openat(&self.descriptor, name, flags(last), Mode::empty()) {
            Ok(descriptor) => {
                let stat = rustix::fs::fstat(&descriptor).map_err(failed)?;
                // Above a closed directory nothing is closed by it.
                let closed = judge_directory(&path, &stat, self.trust, last, self.closed && name != "..")?;
                Ok(Found::Directory(Self { descriptor, path, trust: self.trust, closed }))
            }
            Err(Errno::NOENT) => Ok(Found::Nothing),
            Err(Errno::NOTDIR | Errno::LOOP | Errno::MLINK) => {
                let stat = rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
                let found = FileType::from_raw_mode(stat.st_mode);
                if found != FileType::Symlink {
                    return Err(Distrust::Kind { path, expected: DIRECTORY, found: kind(found) }.into());
                }
                judge_owner(&path, &stat, self.trust)?;
                let target = rustix::fs::readlinkat(&self.descriptor, name, Vec::new()).map_err(failed)?;
                Ok(Found::Link(OsString::from_vec(target.into_bytes()).into()))
            }
            Err(e) => Err(failed(e)),
        }
    }

    fn judge_file(&self, path: &Path, stat: &Stat) -> Result<(), Distrust> {
        let found = FileType::from_raw_mode(stat.st_mode);
        if found != FileType::RegularFile {
            return Err(Distrust::Kind { path: path.to_owned(), expected: REGULAR, found: kind(found) });
        }
        judge_owner(path, stat, self.trust)?;
        judge_mode(path, stat, self.trust)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn flags(last: bool) -> OFlags {
    let how = if last { OFlags::RDONLY } else { ON_THE_WAY };
    how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}

/// The names that a path goes through.
fn parts(path: &Path) -> VecDeque<OsString> {
    let name = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsStr::from_bytes(b"..").to_owned()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    };
    path.components().filter_map(name).collect()
}

fn judge_owner(path: &Path, stat: &Stat, trust: Trust) -> Result<(), Distrust> {
    let own = rustix::process::geteuid().as_raw();
    match trust == Trust::Anyone || stat.st_uid == own || stat.st_uid == ROOT {
        true => Ok(()),
        false => Err(Distrust::Foreign { path: path.to_owned(), owner: stat.st_uid, own }),
    }
}

fn judge_mode(path: &Path, stat: &Stat, trust: Trust) -> Result<(), Distrust> {
    match trust == Trust::Anyone || stat.st_mode & OTHERS_WRITE == 0 {
        true => Ok(()),
        false => Err(Distrust::Writable { path: path.to_owned(), mode: stat.st_mode & 0o7777 }),
    }
}

/// Whether a directory may be used, and whether it or one above lets nobody else pass.
fn judge_directory(path: &Path, stat: &Stat, trust: Trust, last: bool, closed: bool) -> Result<bool, Distrust> {
    judge_owner(path, stat, trust)?;
    let harmless = !last && (closed || stat.st_mode & STICKY != 0);
    if !harmless {
        judge_mode(path, stat, trust)?;
    }
    Ok(closed || stat.st_mode & OTHERS_PASS == 0)
}

fn kind(found: FileType) -> &'static str {
    match found {
        FileType::RegularFile => REGULAR,
        FileType::Directory => DIRECTORY,
        FileType::Symlink => "symbolic link",
        FileType::Fifo => "FIFO",
        FileType::Socket => "socket",
        FileType::CharacterDevice => "character device",
        FileType::BlockDevice => "block device",
        _ => "file of an unknown kind",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn chmod(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("sets permissions");
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("is there").permissions().mode() & 0o7777
    }

    fn distrust(found: Result<impl Sized, Trouble>) -> Distrust {
        match found {
            Err(Trouble::Distrusted(distrust)) => distrust,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("it is trusted"),
        }
    }

    /// A directory whose path has no symbolic links.
    fn temporary() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().canonicalize().expect("is there");
        (dir, path)
    }

    #[test]
    fn what_is_made_is_private_whatever_the_umask() {
        let (_dir, base) = temporary();
        let made = Directory::create(&base.join("a/b"), Trust::Own).expect("creates");
        let child = made.create_child("c").expect("creates");
        child.create_file("file").expect("creates").write_all(b"bytes").expect("writes");
        child.lock_file("lock").expect("creates");
        assert_eq!(["a", "a/b", "a/b/c"].map(|p| mode(&base.join(p))), [0o700; 3]);
        assert_eq!(["a/b/c/file", "a/b/c/lock"].map(|p| mode(&base.join(p))), [0o600; 2]);
        assert_eq!(made.child("c").expect("is there").read("file").expect("reads"), b"bytes");
        assert_eq!(child.names().expect("lists"), ["file", "lock"]);
        child.rename("file", "other").expect("renames");
        child.remove("other").expect("removes");
        assert!(child.holds("lock") && !child.holds("other"));
        assert!(matches!(made.child("none"), Err(Trouble::Missing(path)) if path == base.join("a/b/none")));
    }

    #[test]
    fn a_directory_that_others_can_write_is_refused() {
        let (_dir, base) = temporary();
        let cache = base.join("cache");
        for (bits, refused) in [(0o755, false), (0o775, true), (0o757, true), (0o1777, true), (0o700, false)] {
            fs::create_dir_all(&cache).expect("creates");
            chmod(&cache, bits);
            let opened = Directory::open(&cache, Trust::Own);
            assert_eq!(opened.is_err(), refused, "{bits:o}");
            if refused {
                assert_eq!(distrust(opened), Distrust::Writable { path: cache.clone(), mode: bits });
                assert!(Directory::open(&cache, Trust::Anyone).is_ok(), "the user said so");
            }
        }
    }

    #[test]
    fn so_is_what_lies_below_one_unless_it_is_sticky_or_nobody_else_gets_there() {
        let (_dir, base) = temporary();
        let (above, cache) = (base.join("above"), base.join("above/cache"));
        fs::create_dir_all(&cache).expect("creates");
        // The temporary directory itself decides who gets below it.
        for (top, bits, refused) in [(0o755, 0o777, true), (0o755, 0o775, true), (0o755, 0o1777, false), (0o700, 0o777, false)] {
            chmod(&base, top);
            chmod(&above, bits);
            let opened = Directory::open(&cache, Trust::Own);
            assert_eq!(opened.is_err(), refused, "{top:o} {bits:o}");
            if refused {
                assert_eq!(distrust(opened), Distrust::Writable { path: above.clone(), mode: bits });
                let below = distrust(Directory::create(&cache.join("new"), Trust::Own));
                assert!(below.advice().contains(&format!("chmod go-w {}", above.display())), "{below}");
            }
        }
        // A way back up is not protected by what lies below.
        chmod(&above, 0o777);
        chmod(&base, 0o755);
        let back = above.join("cache/../cache");
        assert_eq!(distrust(Directory::open(&back, Trust::Own)), Distrust::Writable { path: above, mode: 0o777 });
    }

    #[test]
    fn a_link_is_followed_under_the_same_rules() {
        let (_dir, base) = temporary();
        chmod(&base, 0o755);
        fs::create_dir_all(base.join("open/inside")).expect("creates");
        fs::create_dir_all(base.join("real")).expect("creates");
        chmod(&base.join("open"), 0o777);
        symlink("real", base.join("good")).expect("links");
        symlink(base.join("open/inside"), base.join("bad")).expect("links");
        symlink("loop", base.join("loop")).expect("links");
        symlink("missing", base.join("dangling")).expect("links");
        let opened = Directory::open(&base.join("good"), Trust::Own).expect("leads to a good one");
        assert_eq!(opened.path(), base.join("real"));
        let refused = distrust(Directory::open(&base.join("bad"), Trust::Own));
        assert_eq!(refused, Distrust::Writable { path: base.join("open"), mode: 0o777 });
        assert!(matches!(distrust(Directory::open(&base.join("loop"), Trust::Own)), Distrust::Links { .. }));
        assert!(matches!(Directory::open(&base.join("dangling"), Trust::Own), Err(Trouble::Missing(_))));
        Directory::create(&base.join("dangling"), Trust::Own).expect("makes what the link names");
        assert!(base.join("missing").is_dir());
    }

    #[test]
    fn only_regular_files_of_ones_own_are_opened_and_nothing_blocks() {
        let (_dir, base) = temporary();
        let cache = Directory::create(&base.join("cache"), Trust::Own).expect("creates");
        let at = |name: &str| base.join("cache").join(name);
        fs::create_dir(at("directory")).expect("creates");
        symlink("loop", at("loop")).expect("links");
        symlink("/dev/zero", at("device")).expect("links");
        let fifo = Mode::RUSR | Mode::WUSR;
        rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, fifo, 0).expect("makes a FIFO");
        fs::write(at("shared"), "content").expect("writes");
        chmod(&at("shared"), 0o666);
        for (name, found) in [("directory", DIRECTORY), ("loop", "symbolic link"), ("device", "symbolic link"), ("fifo", "FIFO")]
        {
            let expected = Distrust::Kind { path: at(name), expected: REGULAR, found };
            assert_eq!(distrust(cache.open_file(name)), expected);
            assert_eq!(distrust(cache.lock_file(name)), expected);
            assert!(distrust(cache.open_file(name)).advice().starts_with("remove "));
        }
        assert_eq!(distrust(cache.read("shared")), Distrust::Writable { path: at("shared"), mode: 0o666 });
        assert_eq!(distrust(cache.lock_file("shared")), Distrust::Writable { path: at("shared"), mode: 0o666 });
        let fault = distrust(cache.child("fifo"));
        assert_eq!(fault, Distrust::Kind { path: at("fifo"), expected: DIRECTORY, found: "FIFO" });
        for name in ["directory", "loop", "device", "fifo", "shared"] {
            cache.remove(name).expect("removes");
        }
        assert_eq!(cache.names().expect("lists"), Vec::<String>::new());
    }

    /// Only root can give a file away; where tests run as somebody else, there is no foreign file to make.
    #[test]
    fn what_belongs_to_somebody_else_is_refused() {
        let (_dir, base) = temporary();
        let cache = Directory::create(&base.join("cache"), Trust::Own).expect("creates");
        let (file, inner) = (base.join("cache/file"), base.join("cache/inner"));
        fs::write(&file, "content").expect("writes");
        fs::create_dir(&inner).expect("creates");
        if !rustix::process::geteuid().is_root() {
            // `/etc/hostname` and its like belong to root, who is trusted everywhere.
            assert!(Directory::open(Path::new("/"), Trust::Own).is_ok());
            return;
        }
        let own = rustix::process::geteuid().as_raw();
        std::os::unix::fs::chown(&file, Some(12345), None).expect("gives away");
        std::os::unix::fs::chown(&inner, Some(12345), None).expect("gives away");
        assert_eq!(distrust(cache.read("file")), Distrust::Foreign { path: file, owner: 12345, own });
        let foreign = Distrust::Foreign { path: inner.clone(), owner: 12345, own };
        assert_eq!(distrust(cache.child("inner")), foreign);
        assert_eq!(distrust(Directory::create(&inner.join("below"), Trust::Own)), foreign);
        assert!(cache.duplicate().is_ok() && Directory::open(&inner, Trust::Anyone).is_ok());
        // A link that somebody else made is not followed.
        symlink(base.join("cache"), base.join("link")).expect("links");
        std::os::unix::fs::lchown(base.join("link"), Some(12345), None).expect("gives away");
        let link = base.join("link");
        assert_eq!(distrust(Directory::open(&link, Trust::Own)), Distrust::Foreign { path: link, owner: 12345, own });
    }
}
