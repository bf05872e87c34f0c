//! Kernels that users asked for and that are no built-ins: each has code for every GPU, through
//! `wgmma` on sm_90a where it has a product. Those that have none yet are listed, with what they
//! lose.

use std::collections::BTreeSet;
use std::path::Path;

use flashtile_codegen::{Arch, Facts, Instance, hints};
use flashtile_dsl::analysis::hints::Lost;
use flashtile_dsl::ir::{Binding, Elem, Kernel, SizeKind, SourceText};
use flashtile_dsl::syntax::parse_with_warnings;

/// What has no code yet, or none through `wgmma`.
const NOT_YET: &[(&str, Lost)] = &[
    // An operand of a product is loaded at each single position, and no tile has rows of an axis.
    ("linear_chunked", Lost::Gpu),
];

fn texts() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("asked");
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("there is a folder")
        .map(|entry| entry.expect("readable").path())
        .map(|path| {
            let name = path.file_stem().expect("a file has a name").to_string_lossy().into_owned();
            (name, std::fs::read_to_string(&path).expect("readable"))
        })
        .collect();
    found.sort();
    found
}

/// The widths that the kernel is asked for with.
fn instance(kernel: Kernel) -> Instance {
    let width = |name: &str| match name {
        "DQ" => 576,
        "DV" => 512,
        _ => 64,
    };
    let consts = kernel.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (s.name.clone(), width(&s.name)));
    let binding = Binding::new(&kernel, Elem::F16, consts.collect::<Vec<_>>());
    Instance { facts: Facts::best(&kernel), binding, kernel }
}

#[test]
fn kernels_that_users_asked_for_have_code() {
    let mut lost = BTreeSet::new();
    for (name, text) in texts() {
        let source = SourceText { name: format!("{name}.rs"), text: text.into(), first_line: 1 };
        let parsed = parse_with_warnings(&source).unwrap_or_else(|e| panic!("{name}: {e}"));
        for kernel in parsed.kernels {
            let instance = instance(kernel);
            for arch in ["sm_75", "sm_80", "sm_90a"].map(|name| Arch::named(name).expect("known")) {
                let found = hints(&instance, arch).into_iter().flat_map(|hint| hint.lost);
                let of_code = found.filter(|lost| matches!(lost, Lost::Gpu | Lost::Wgmma));
                lost.extend(of_code.map(|lost| (name.clone(), lost.name())));
            }
        }
    }
    let expected: BTreeSet<_> = NOT_YET.iter().map(|(name, lost)| ((*name).to_owned(), lost.name())).collect();
    assert_eq!(lost, expected);
}
