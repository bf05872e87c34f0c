//! [`Directory`] where files have no Unix permissions: the same requests by path, without a check.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::{Distrust, Trouble, Trust, bytes_of};

/// A directory.
pub(crate) struct Directory {
    path: PathBuf,
}

impl Directory {
    /// Opens a directory.
    pub fn open(path: &Path, _: Trust) -> Result<Self, Trouble> {
        let found = fs::metadata(path).map_err(|e| Trouble::io("open", path, e))?;
        match found.is_dir() {
            true => Ok(Self { path: path.to_owned() }),
            false => Err(Distrust::Kind { path: path.to_owned(), expected: "directory", found: "file" }.into()),
        }
    }

    /// Opens a directory; makes it, and those above it, where they are missing.
    pub fn create(path: &Path, trust: Trust) -> Result<Self, Trouble> {
        fs::create_dir_all(path).map_err(|error| Trouble::Io { action: "create", path: path.to_owned(), error })?;
        Self::open(path, trust)
    }

    /// Opens a directory in this one.
    pub fn child(&self, name: &str) -> Result<Self, Trouble> {
        Self::open(&self.path.join(name), Trust::Own)
    }

    /// Opens a directory in this one; makes it if it is missing.
    pub fn create_child(&self, name: &str) -> Result<Self, Trouble> {
        Self::create(&self.path.join(name), Trust::Own)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file for reading.
    pub fn open_file(&self, name: &str) -> Result<File, Trouble> {
        let path = self.path.join(name);
        let found = fs::symlink_metadata(&path).map_err(|e| Trouble::io("read", &path, e))?;
        if !found.is_file() {
            return Err(Distrust::Kind { path, expected: "regular file", found: "directory or link" }.into());
        }
        File::open(&path).map_err(|e| Trouble::io("read", &path, e))
    }

    /// All bytes of a regular file.
    pub fn read(&self, name: &str) -> Result<Vec<u8>, Trouble> {
        bytes_of(&self.open_file(name)?).map_err(|e| Trouble::io("read", &self.path.join(name), e))
    }

    /// Makes a file, which must not be there.
    pub fn create_file(&self, name: &str) -> Result<File, Trouble> {
        let path = self.path.join(name);
        File::create_new(&path).map_err(|e| Trouble::io("create", &path, e))
    }

    /// Opens a file to lock, and makes it if it is missing.
    pub fn lock_file(&self, name: &str) -> Result<File, Trouble> {
        let path = self.path.join(name);
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        opened.map_err(|e| Trouble::io("open", &path, e))
    }

    /// Renames what is in it. What has the new name is replaced.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Trouble> {
        let path = self.path.join(from);
        fs::rename(&path, self.path.join(to)).map_err(|e| Trouble::io("rename", &path, e))
    }

    /// Whether it holds something of this name, whatever it is.
    pub fn holds(&self, name: &str) -> bool {
        fs::symlink_metadata(self.path.join(name)).is_ok()
    }

    /// Removes a file, a link or an empty directory.
    pub fn remove(&self, name: &str) -> Result<(), Trouble> {
        let path = self.path.join(name);
        fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).map_err(|e| Trouble::io("remove", &path, e))
    }

    /// Names of what is in it, sorted. Names that are no text are left out: nothing here is called so.
    pub fn names(&self) -> Result<Vec<String>, Trouble> {
        let failed = |e| Trouble::io("list", &self.path, e);
        let entries = fs::read_dir(&self.path).map_err(failed)?;
        let names: Vec<OsString> = entries.map(|e| e.map(|e| e.file_name())).collect::<Result<_, _>>().map_err(failed)?;
        let mut names: Vec<String> = names.into_iter().filter_map(|n| n.into_string().ok()).collect();
        names.sort();
        Ok(names)
    }

    /// Names are flushed by the system when it will.
    pub fn sync(&self) {}
}
