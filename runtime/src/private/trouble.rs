//! Why a private directory or file cannot be used.

use std::io;
use std::path::{Path, PathBuf};

/// Why a directory or file is not trusted.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Distrust {
    /// It belongs to somebody else.
    #[error("{} belongs to user {owner}, not to user {own}, who runs this", path.display())]
    Foreign {
        /// Which.
        path: PathBuf,
        /// Number of its owner.
        owner: u32,
        /// Number of this user.
        own: u32,
    },
    /// Others can change it.
    #[error("{} can be written by others (mode {mode:04o})", path.display())]
    Writable {
        /// Which.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It is something else than it should be.
    #[error("{} is a {found}, not a {expected}", path.display())]
    Kind {
        /// Which.
        path: PathBuf,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: &'static str,
    },
    /// A symbolic link that leads back to itself, or a very long chain of them.
    #[error("{} leads through too many symbolic links", path.display())]
    Links {
        /// The last one that was followed.
        path: PathBuf,
    },
}

impl Distrust {
    /// Whether something else than a file or directory of this purpose has its name.
    pub fn is_of_wrong_kind(&self) -> bool {
        matches!(self, Self::Kind { .. } | Self::Links { .. })
    }

    /// What the user can do about it.
    pub fn advice(&self) -> String {
        match self {
            Self::Foreign { .. } => "set FLASHTILE_CACHE to a directory of your own".to_owned(),
            Self::Writable { path, .. } => {
                format!("run `chmod go-w {}`, or set FLASHTILE_CACHE to a directory of your own", path.display())
            }
            Self::Kind { path, .. } | Self::Links { path } => {
                format!("remove {}, or set FLASHTILE_CACHE to another directory", path.display())
            }
        }
    }
}

/// Why a directory or file could not be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    /// It is not there.
    #[error("{} is not there", .0.display())]
    Missing(PathBuf),
    /// It is there, and others could have changed it.
    #[error("{}", with_advice(.0))]
    Distrusted(#[from] Distrust),
    /// The system refused a request.
    #[error("failed to {action} {}: {error}", path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
}

fn with_advice(distrust: &Distrust) -> String {
    format!("{distrust}; {}", distrust.advice())
}

impl Trouble {
    /// The trouble that an error of the system stands for.
    pub fn io(action: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        let error = error.into();
        match error.kind() {
            io::ErrorKind::NotFound => Self::Missing(path.to_owned()),
            _ => Self::Io { action, path: path.to_owned(), error },
        }
    }
}
