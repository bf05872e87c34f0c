//! Every published crate is packaged with what it compiles from, its licences and its readme.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Published crates: folder and name.
const CRATES: &[(&str, &str)] = &[
    ("dsl", "flashtile-dsl"),
    ("dsl/macros", "flashtile-macros"),
    ("codegen", "flashtile-codegen"),
    ("templates", "flashtile-templates"),
    ("runtime", "flashtile"),
    ("runtime/cli", "flashtile-cli"),
    ("emulator", "flashtile-emulator"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// What `cargo package` puts into a crate.
fn packaged(name: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args(["package", "--list", "--offline", "--allow-dirty", "--package", name])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(|l| l.replace('\\', "/")).collect()
}

/// Files below `folder` of a crate, as paths in the crate.
fn files(krate: &Path, folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(krate.join(folder)).unwrap_or_else(|e| panic!("{folder}: {e}"));
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.expect("the folder is readable");
        let path = format!("{folder}/{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() { found.extend(files(krate, &path)) } else { found.push(path) }
    }
    found
}

#[test]
fn every_crate_is_packaged_whole() {
    for (folder, name) in CRATES {
        let krate = root().join(folder);
        let packaged = packaged(name);
        for file in ["Cargo.toml", "README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            assert!(packaged.contains(file), "{name} is packaged without {file}");
        }
        for compiled_from in ["src", "cuda", "kernels"].iter().filter(|f| krate.join(f).is_dir()) {
            for file in files(&krate, compiled_from) {
                assert!(packaged.contains(&file), "{name} is packaged without {file}");
            }
        }
    }
}

#[test]
fn the_table_has_every_published_crate() {
    let manifest = std::fs::read_to_string(root().join("Cargo.toml")).expect("the workspace has a manifest");
    let members = manifest.lines().find_map(|l| l.strip_prefix("members = [")).expect("the members stand on one line");
    let members = members.trim_end_matches(']').split(", ").map(|m| m.trim_matches('"'));
    let published = |member: &&str| {
        let manifest = std::fs::read_to_string(root().join(member).join("Cargo.toml")).expect("a member has a manifest");
        !manifest.contains("publish = false")
    };
    assert_eq!(members.filter(published).collect::<Vec<_>>(), CRATES.iter().map(|c| c.0).collect::<Vec<_>>());
}
