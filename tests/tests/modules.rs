//! No file uses, over others, what uses it; nor does a folder.

use std::collections::BTreeSet;
use std::path::PathBuf;

use flashtile_tests::modules::Modules;
use flashtile_tests::sources::{CRATES, folder};

#[test]
fn no_files_use_each_other_in_a_circle() {
    let mut found = String::new();
    for of in CRATES {
        let modules = Modules::read(&folder(of));
        for circle in modules.circles() {
            found += &format!("{of}:\n    {}\n", modules.within(&circle).join("\n    "));
        }
    }
    assert!(found.is_empty(), "files that use each other in a circle:\n{found}");
}

#[test]
fn no_folders_use_each_other_in_a_circle() {
    let mut found = String::new();
    for of in CRATES {
        for circle in Modules::read(&folder(of)).circles_of_rooms() {
            found += &format!("{of}: {circle:?}\n");
        }
    }
    assert!(found.is_empty(), "folders that use each other in a circle:\n{found}");
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

/// A file of tests that no program has would not be run, and nobody would notice.
#[test]
fn every_file_of_tests_is_of_a_program() {
    let of_tests = folder("tests");
    let read = |file: &str| std::fs::read_to_string(of_tests.join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    let files = |of: &str| -> Vec<String> {
        let entries = std::fs::read_dir(of_tests.join(of)).expect("a folder");
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect()
    };
    let manifest = read("Cargo.toml");
    let suites = files("suites");
    let mut named: Vec<String> = Vec::new();
    for suite in &suites {
        assert!(manifest.contains(&format!("path = \"suites/{suite}\"")), "Cargo.toml has no program {suite}");
        let text = read(&format!("suites/{suite}"));
        named.extend(text.split("#[path = \"../tests/").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    for file in files("tests").into_iter().filter(|file| file.ends_with(".rs")) {
        let alone = usize::from(manifest.contains(&format!("path = \"tests/{file}\"")));
        let shared = named.iter().filter(|name| **name == file).count();
        assert_eq!(alone + shared, 1, "{file} is of {alone} programs of its own and of {shared} suites");
    }
}

/// Plans and lowering know no text, and only the rules of legality compare instructions: all else
/// asks an instruction what it is like.
#[test]
fn plans_know_no_templates_and_nobody_compares_instructions() {
    let mut wrong = Vec::new();
    for source in flashtile_tests::sources::sources(&folder("codegen/src")) {
        let text = std::fs::read_to_string(folder("codegen/src").join(&source.file)).expect("a source");
        let of = |name: &str| source.file.starts_with(name);
        if (of("plan") || of("lower")) && text.contains("flashtile_templates") {
            wrong.push(format!("{} uses templates", source.file.display()));
        }
        let compares = ["tensor_op ==", "tensor_op !="].iter().any(|comparison| text.contains(comparison));
        if compares && !of("arch.rs") && !of("legality.rs") {
            wrong.push(format!("{} compares instructions", source.file.display()));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
