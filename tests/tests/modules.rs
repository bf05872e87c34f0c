//! No file uses, over others, what uses it; nor does a folder.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use flashtile_tests::modules::Modules;

/// The crates of the workspace, from the ground floor up.
const CRATES: [&str; 6] = ["templates/src", "dsl/src", "emulator/src", "codegen/src", "runtime/src", "runtime/cli/src"];

fn sources(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(of)
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut found = Vec::new();
    for of in CRATES {
        let modules = Modules::read(&sources(of));
        assert!(modules.arrows.len() >= 2, "{of}: {} arrows", modules.arrows.len());
        for circle in modules.circles() {
            found.push(format!("{of}:\n    {}", modules.within(&circle).join("\n    ")));
        }
    }
    assert!(found.is_empty(), "{} circles\n{}", found.len(), found.join("\n"));
}

#[test]
fn no_folders_use_each_other_in_a_circle() {
    let of = |of: &&str| Modules::read(&sources(of)).circles_of_rooms();
    let circles: Vec<BTreeSet<PathBuf>> = CRATES.iter().flat_map(of).collect();
    assert!(circles.is_empty(), "{circles:#?}");
}
