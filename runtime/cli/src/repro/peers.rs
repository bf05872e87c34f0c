//! Times of PyTorch's attention beside ours: a script that comes with the command, run by the Python that has PyTorch.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;
use serde_json::json;

use super::launch::Launch;
use crate::failure::{Failure, Result};

/// The script.
const SCRIPT: &str = include_str!("peers.py");
/// Interpreters that are tried where none is named.
const INTERPRETERS: [&str; 2] = ["python3", "python"];

/// What a library runs on the sizes of a launch.
pub struct Peer {
    /// Which one.
    pub what: Library,
    /// Whose sizes and element type.
    pub like: Launch,
    /// Whether a query sees the keys up to its own position only.
    pub causal: bool,
}

/// A contestant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Library {
    /// `scaled_dot_product_attention` with the FlashAttention-2 backend.
    Fa2,
    /// `scaled_dot_product_attention` with the backend that PyTorch prefers.
    Sdpa,
    /// Two products and a softmax, one call after the other.
    Naive,
    /// Rotary embedding of queries and keys written in PyTorch, alone.
    Rotate,
    /// Rotary embedding written in PyTorch, then `scaled_dot_product_attention`.
    RotateSdpa,
}

impl Peer {
    /// Everything that its figures depend on.
    pub fn key(&self) -> String {
        format!("{:?} {} {:?} {}", self.what, self.like.elem.name(), self.like.sizes, self.causal)
    }
}

impl Library {
    /// As the script calls it.
    fn name(self) -> &'static str {
        match self {
            Library::Fa2 => "fa2",
            Library::Sdpa => "sdpa",
            Library::Naive => "naive",
            Library::Rotate => "rotate",
            Library::RotateSdpa => "rotate_sdpa",
        }
    }
}

/// Where peers come from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Peers {
    /// They are not wanted.
    Off,
    /// The first Python found, if it has PyTorch and PyTorch a GPU; else none.
    Found,
    /// This Python, which must have them.
    Python(PathBuf),
}

/// The figures of a peer.
#[derive(Clone, PartialEq, Debug, Deserialize)]
pub struct PeerFigures {
    /// Median of a run.
    pub ms: f64,
    /// Shortest run.
    pub min_ms: f64,
    /// Peak memory beyond the inputs.
    pub mib: f64,
}

/// What came of the peers of an experiment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PeerResults {
    /// The library's version, if there is one.
    pub version: Option<String>,
    /// By number of the peer: figures, or why there are none.
    pub figures: Vec<Result<PeerFigures, String>>,
}

/// A line of the script.
#[derive(Deserialize)]
struct Line {
    id: Option<usize>,
    torch: Option<String>,
    absent: Option<String>,
    #[serde(flatten)]
    figures: Option<PeerFigures>,
}

impl Peers {
    /// Runs all of them. `watch` is told of each as it is done. Where nothing is named and nothing found, each has the reason
    /// in place of figures.
    ///
    /// # Errors
    /// [`Failure::Peers`] if a Python was named and it, or its PyTorch, cannot be used.
    pub fn run(&self, peers: &[&Peer], repetitions: u32, budget_s: f64, watch: impl Fn()) -> Result<PeerResults> {
        let absent = |why: &str| PeerResults { version: None, figures: peers.iter().map(|_| Err(why.to_owned())).collect() };
        let task = json!({ "repetitions": repetitions, "budget_s": budget_s, "cells": cells(peers) }).to_string();
        match self {
            _ if peers.is_empty() => Ok(PeerResults::default()),
            Peers::Off => Ok(absent("left out")),
            Peers::Python(path) => run(path, &task, peers.len(), &watch)
                .map_err(|reason| Failure::Peers { python: path.display().to_string(), reason }),
            Peers::Found => {
                let mut last = "no python3 on the path".to_owned();
                for name in INTERPRETERS {
                    match run(Path::new(name), &task, peers.len(), &watch) {
                        Ok(results) => return Ok(results),
                        Err(reason) if reason.starts_with(NOT_STARTED) => {}
                        Err(reason) => last = reason,
                    }
                }
                Ok(absent(&last))
            }
        }
    }
}

const NOT_STARTED: &str = "cannot be started";

fn cells(peers: &[&Peer]) -> Vec<serde_json::Value> {
    let cell = |(id, peer): (usize, &&Peer)| {
        let size = |name| peer.like.size(name);
        json!({
            "id": id,
            "what": peer.what.name(),
            "b": size("B"), "h": size("H"), "g": size("G"), "m": size("M"), "n": size("N"), "d": size("D"),
            "causal": peer.causal,
            "dtype": peer.like.elem.name(),
        })
    };
    peers.iter().enumerate().map(cell).collect()
}

/// Runs the script; the reason if it has nothing to say.
fn run(python: &Path, task: &str, count: usize, watch: &impl Fn()) -> Result<PeerResults, String> {
    let started =
        Command::new(python).args(["-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = started.map_err(|e| format!("{NOT_STARTED}: {e}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the script is gone, it says so by its silence.
        let _ = stdin.write_all(task.as_bytes());
    }
    let mut results = PeerResults { version: None, figures: vec![Err("the script ended before it".to_owned()); count] };
    let mut reason = "it printed nothing".to_owned();
    let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    for line in lines.map_while(std::io::Result::ok) {
        let Ok(line) = serde_json::from_str::<Line>(&line) else { continue };
        match (line.id, line.figures, line.absent) {
            (Some(id), Some(figures), _) if id < count => results.figures[id] = Ok(figures),
            (Some(id), None, Some(why)) if id < count => results.figures[id] = Err(why),
            (None, _, Some(why)) => reason = why,
            _ => results.version = line.torch,
        }
        if line.id.is_some() {
            watch();
        }
    }
    // Whatever its exit status is, what it printed counts.
    let _ = child.wait();
    if results.version.is_some() { Ok(results) } else { Err(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repro::experiment::{How, Text};
    use flashtile::Elem;

    fn peer() -> Peer {
        let sizes = [("B", 1), ("H", 2), ("G", 2), ("M", 16), ("N", 16), ("D", 16)];
        Peer { what: Library::Sdpa, like: Launch::new(Text::Builtin("attention"), Elem::F16, &sizes, How::Tuned), causal: false }
    }

    #[test]
    fn a_python_that_is_not_there_is_an_error_only_if_it_was_named() {
        let peer = peer();
        let named = Peers::Python("/nonexistent/python3".into()).run(&[&peer], 1, 1.0, || {});
        let error = named.expect_err("it was named").to_string();
        assert!(error.starts_with("/nonexistent/python3 cannot run the peers: cannot be started"), "{error}");
        let off = Peers::Off.run(&[&peer], 1, 1.0, || {}).expect("not wanted");
        assert_eq!(off.figures, [Err("left out".to_owned())]);
    }

    /// A stand-in that prints what the script would.
    #[test]
    #[cfg(unix)]
    fn lines_of_the_script_are_read() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("python");
        let lines = [
            r#"{"torch": "2.0", "device": "x"}"#,
            r#"{"id": 0, "ms": 2.0, "min_ms": 1.0, "mib": 3.0}"#,
            r#"{"id": 1, "absent": "why"}"#,
        ];
        let script = format!("#!/bin/sh\ncat > /dev/null\n{}\n", lines.map(|l| format!("echo '{l}'")).join("\n"));
        std::fs::write(&path, script).expect("writes");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("is ours");
        let peer = peer();
        let results = Peers::Python(path).run(&[&peer, &peer, &peer], 1, 1.0, || {}).expect("runs");
        assert_eq!(results.version.as_deref(), Some("2.0"));
        assert_eq!(results.figures[0], Ok(PeerFigures { ms: 2.0, min_ms: 1.0, mib: 3.0 }));
        assert_eq!(results.figures[1], Err("why".to_owned()));
        assert_eq!(results.figures[2], Err("the script ended before it".to_owned()));
    }
}
