//! No file uses, over others, what uses it; nor does a folder. What is left to undo is listed here,
//! and only shrinks.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use flashtile_tests::modules::Modules;
use flashtile_tests::sources::{CRATES, folder};

/// Folders whose files still use each other in a circle, each with the file that ties them:
///
/// * `lower`: the lowering has the state of all its parts, and they are written as methods of it.
const TIED: [(&str, &str); 1] = [("codegen/src", "lower/mod.rs")];

/// The same of folders and of files beside the root, which are the rooms of a crate.
const TIED_ROOMS: [(&str, &str); 0] = [];

/// Fails on circles that are not listed, and on lines of the list without a circle.
fn judge(found: &[(&str, BTreeSet<PathBuf>, String)], listed: &[(&str, &str)]) {
    let is_of = |(of, circle, _): &(&str, BTreeSet<PathBuf>, String), (listed, tie): &(&str, &str)| {
        of == listed && circle.contains(Path::new(tie))
    };
    let new: Vec<&String> = found.iter().filter(|f| !listed.iter().any(|l| is_of(f, l))).map(|(.., text)| text).collect();
    assert!(new.is_empty(), "files that use each other in a circle:\n{}", new.iter().map(|s| s.as_str()).collect::<String>());
    let gone: Vec<_> = listed.iter().filter(|l| !found.iter().any(|f| is_of(f, l))).collect();
    assert!(gone.is_empty(), "no circle any more, take them off the list: {gone:?}");
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut found = Vec::new();
    for of in CRATES {
        let modules = Modules::read(&folder(of));
        for circle in modules.circles() {
            let text = format!("{of}:\n    {}\n", modules.within(&circle).join("\n    "));
            found.push((of, circle, text));
        }
    }
    judge(&found, &TIED);
}

#[test]
fn no_folders_use_each_other_in_a_circle() {
    let mut found = Vec::new();
    for of in CRATES {
        for circle in Modules::read(&folder(of)).circles_of_rooms() {
            let text = format!("{of}: {circle:?}\n");
            found.push((of, circle, text));
        }
    }
    judge(&found, &TIED_ROOMS);
}

/// The check of the check: a small crate with a circle, one through names that are handed on, one
/// inside a test, and none.
#[test]
fn circles_are_found_where_they_are() {
    let sources = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = sources.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, text).expect("written");
    };
    write("lib.rs", "mod a; mod b; mod c; mod d; pub use b::thing;");
    write("a.rs", "use crate::b::thing; pub struct A; fn f() { thing() }");
    write("b/mod.rs", "mod inner; pub use inner::thing;");
    write("b/inner.rs", "pub fn thing() { let _: Option<crate::a::A> = None; }");
    write("c.rs", "pub const C: u32 = 1; #[cfg(test)] mod tests { use crate::d::D; }");
    write("d.rs", "use super::c; pub const D: u32 = c::C;");
    let modules = Modules::read(sources.path());
    let circle = |files: &[&str]| files.iter().map(PathBuf::from).collect::<BTreeSet<_>>();
    assert_eq!(modules.circles(), [circle(&["a.rs", "b/inner.rs"])]);
    assert_eq!(modules.circles_of_rooms(), [circle(&["a", "b"])]);
    assert_eq!(modules.arrows.len(), 3, "{:?}", modules.arrows);
}
