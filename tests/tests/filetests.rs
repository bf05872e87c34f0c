//! Runs every file of `tests/filetests`: see [`flashtile_tests::filetest`].

use std::path::Path;

use flashtile_tests::filetest::{COMMANDS, files, run};

fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/filetests"))
}

#[test]
fn filetests() {
    let bless = std::env::var_os("FLASHTILE_BLESS").is_some_and(|v| v == "1");
    let files = files(folder());
    assert!(!files.is_empty(), "no file tests under {}", folder().display());
    let failures: Vec<_> = files.iter().filter_map(|f| run(f, bless).err()).collect();
    assert!(failures.is_empty(), "{} of {} file tests fail\n\n{}", failures.len(), files.len(), failures.join("\n"));
}

#[test]
fn every_command_is_tested() {
    let texts: Vec<_> = files(folder()).iter().map(|f| std::fs::read_to_string(f).expect("readable")).collect();
    for (name, ..) in COMMANDS {
        let used =
            texts.iter().any(|t| t.lines().any(|l| l.strip_prefix("; run: ").is_some_and(|c| c.split(' ').next() == Some(name))));
        assert!(used, "no file test runs `{name}`");
    }
}

#[test]
fn the_documented_output_is_the_tested_output() {
    let path = folder().join("../../docs/analyses.md");
    let document = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("cannot read {}: {e}", path.display()));
    let tested: Vec<_> = files(folder()).iter().map(|f| std::fs::read_to_string(f).expect("readable")).collect();
    let mut inside = false;
    let mut shown = 0;
    for line in document.lines() {
        if line.starts_with("```") {
            inside = line == "```text";
        } else if inside && !line.is_empty() {
            shown += 1;
            assert!(
                tested.iter().any(|t| t.lines().any(|l| l == line)),
                "docs/analyses.md shows what no file test prints:\n{line}"
            );
        }
    }
    assert!(shown > 0, "the document shows output");
}
