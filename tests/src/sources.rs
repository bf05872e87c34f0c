//! The sources of a crate: its files, followed from the root by their `mod`, and parsed by `syn`.
//! Tests (`#[cfg(test)]`) are left out.

use std::path::{Path, PathBuf};

use syn::{Attribute, Item};

/// The source folders of the crates of the workspace, from the ground floor up.
pub const CRATES: [&str; 7] =
    ["templates/src", "dsl/src", "dsl/macros/src", "emulator/src", "codegen/src", "runtime/src", "runtime/cli/src"];

/// A file of a crate.
pub struct Source {
    /// The file, relative to the folder of sources.
    pub file: PathBuf,
    /// The module that the file holds, as a path from the root of the crate.
    pub module: Vec<String>,
    /// What the file says.
    pub parsed: syn::File,
}

/// The folder of sources of a crate of this workspace, such as `dsl/src`.
pub fn folder(of: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").join(of)
}

/// Reads the sources under a folder that holds `lib.rs` or `main.rs`.
///
/// # Panics
/// If a file cannot be read or is not Rust.
pub fn sources(folder: &Path) -> Vec<Source> {
    let mut all = Vec::new();
    let root = ["lib.rs", "main.rs"].into_iter().map(|name| folder.join(name)).find(|path| path.exists());
    read(&root.expect("a root of the crate"), folder, Vec::new(), &mut all);
    all
}

/// Reads a file and the modules that it declares.
fn read(path: &Path, sources: &Path, module: Vec<String>, into: &mut Vec<Source>) {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let parsed = syn::parse_file(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let stem = path.file_stem().and_then(|s| s.to_str()).unwrap_or_default();
    let folder = match stem {
        "lib" | "main" | "mod" => path.parent().expect("a folder").to_owned(),
        _ => path.with_extension(""),
    };
    for item in &parsed.items {
        if let Item::Mod(child) = item
            && child.content.is_none()
            && !is_test(&child.attrs)
        {
            let name = child.ident.to_string();
            let own = folder.join(format!("{name}.rs"));
            let path = if own.exists() { own } else { folder.join(&name).join("mod.rs") };
            read(&path, sources, module.iter().cloned().chain([name]).collect(), into);
        }
    }
    let file = path.strip_prefix(sources).expect("a file of the crate").to_owned();
    into.push(Source { file, module, parsed });
}

/// Whether attributes make what they stand on a test: `#[cfg(test)]` or `#[test]`.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|a| {
        let only_tests = || a.parse_args::<syn::Ident>().is_ok_and(|ident| ident == "test");
        a.path().is_ident("test") || a.path().is_ident("cfg") && only_tests()
    })
}
