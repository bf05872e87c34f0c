//! What verbs print: text and tables, or JSON, to standard output; notes and progress to standard error.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::failure::{Failure, Result};
pub use crate::table::table;

/// Where a verb prints.
pub struct Output {
    /// Whether results are JSON, one object a line.
    pub json: bool,
    out: io::Stdout,
}

impl Output {
    /// Standard output.
    pub fn new(json: bool) -> Self {
        Self { json, out: io::stdout() }
    }

    /// Prints text; adds a newline if it does not end with one.
    pub fn text(&mut self, text: impl AsRef<str>) -> Result<()> {
        let text = text.as_ref();
        let newline = if text.ends_with('\n') { "" } else { "\n" };
        self.write(&format!("{text}{newline}"))
    }

    /// Prints one JSON object on a line.
    pub fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value).expect("results have string keys");
        self.write(&format!("{text}\n"))
    }

    /// Prints a table.
    pub fn table(&mut self, header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Result<()> {
        self.text(table(header, rows))
    }

    /// Tells something that is not a result, on standard error. Silent with `--json`.
    pub fn note(&self, line: impl AsRef<str>) {
        if !self.json {
            tell(line);
        }
    }

    /// A progress bar on standard error; hidden with `--json` and where that is not a terminal.
    pub fn progress(&self, length: usize, what: &str) -> ProgressBar {
        if self.json || !io::stderr().is_terminal() {
            return ProgressBar::with_draw_target(Some(length as u64), ProgressDrawTarget::hidden());
        }
        let style = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {elapsed} {msg}");
        let bar = ProgressBar::new(length as u64).with_prefix(what.to_owned());
        bar.with_style(style.expect("a well-formed template").progress_chars("=> "))
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let mut out = self.out.lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|e| match e.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            _ => Failure::io("write", Path::new("standard output"), &e),
        })
    }
}

/// Prints a line on standard error. Whoever has closed that does not want to hear of it.
pub fn tell(line: impl AsRef<str>) {
    let _ = writeln!(io::stderr(), "{}", line.as_ref());
}

/// A duration in the unit that suits it.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.2} us", s * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_suitable_unit() {
        assert_eq!([1.5, 0.0025, 3e-6].map(seconds), ["1.50 s", "2.500 ms", "3.00 us"]);
    }
}
