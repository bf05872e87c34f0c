//! Runs the command in a directory of its own, with no network and no cache but its own.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A directory, and the command in it.
pub struct Sandbox {
    dir: TempDir,
}

/// What came of a run.
pub struct Outcome {
    /// Exit code.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Sandbox {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a directory") }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        std::fs::write(self.path().join(name), bytes).expect("writes");
    }

    /// Runs the command with arguments separated by spaces. NVRTC is never looked for elsewhere nor installed.
    pub fn run(&self, arguments: &str) -> Outcome {
        self.run_with(arguments, &[("FLASHTILE_NVRTC", "/nonexistent/libnvrtc.so.13")])
    }

    /// As `run`, with NVRTC, which the command finds where the other tests of the workspace do.
    pub fn run_compiling(&self, arguments: &str) -> Outcome {
        // The toolchain of this process finds or installs it; the command is told where.
        let nvrtc = flashtile::toolchain::Toolchain::shared().nvrtc().unwrap_or_else(|e| panic!("{e}"));
        self.run_with(arguments, &[("FLASHTILE_NVRTC", &nvrtc.path().display().to_string())])
    }

    /// As `run`, with other variables.
    pub fn run_with(&self, arguments: &str, variables: &[(&str, &str)]) -> Outcome {
        let output = Command::new(env!("CARGO_BIN_EXE_flashtile"))
            .args(arguments.split_whitespace())
            .current_dir(self.path())
            .env("FLASHTILE_CACHE", self.path().join("cache"))
            .env_remove("CUDA_VISIBLE_DEVICES")
            .envs(variables.iter().copied())
            .output()
            .expect("the command was built");
        Outcome {
            code: output.status.code().expect("it was not killed"),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }
}

impl Outcome {
    /// Checks the code, and that standard error holds a text.
    #[track_caller]
    pub fn fails_with(&self, code: i32, text: &str) {
        assert_eq!(self.code, code, "{}{}", self.stdout, self.stderr);
        assert!(self.stderr.contains(text), "{}", self.stderr);
    }

    /// Checks that it succeeded; gives standard output.
    #[track_caller]
    pub fn succeeds(&self) -> &str {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        &self.stdout
    }

    /// The lines of standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Vec<serde_json::Value> {
        self.succeeds().lines().map(|line| serde_json::from_str(line).expect(line)).collect()
    }
}
