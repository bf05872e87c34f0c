//! Where the compiler is looked for, and who is told.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::location;

/// Told what is going on, one line each.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// How NVRTC is found.
#[derive(Clone)]
pub struct ToolchainOptions {
    /// The library, the directory that holds it, or a version that can be installed, such as
    /// `13.1`; then nothing else is looked at. The default is what the environment variable
    /// `FLASHTILE_NVRTC` says.
    pub nvrtc: Option<PathBuf>,
    /// Whether to install NVRTC into `directory` where none is found.
    pub install: bool,
    /// The project's own directory. The default is `FLASHTILE_CACHE`, or `flashtile` in the
    /// platform's directory for caches.
    pub directory: Option<PathBuf>,
    /// Told what is going on while NVRTC is looked for and installed. The default prints to
    /// standard error.
    pub progress: Progress,
}

impl Default for ToolchainOptions {
    fn default() -> Self {
        Self {
            nvrtc: std::env::var_os("FLASHTILE_NVRTC").filter(|v| !v.is_empty()).map(PathBuf::from),
            install: true,
            directory: location::directory(),
            progress: Arc::new(|line| eprintln!("flashtile: {line}")),
        }
    }
}

impl fmt::Debug for ToolchainOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolchainOptions")
            .field("nvrtc", &self.nvrtc)
            .field("install", &self.install)
            .field("directory", &self.directory)
            .finish_non_exhaustive()
    }
}
