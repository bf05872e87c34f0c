//! Kernels that users asked for and that are no built-ins: each has code for every GPU, through
//! `wgmma` on sm_90a where it has a product. Those that have none yet are listed, with what they
//! lose. The tiles that each walks are in a golden file, as `inspect --emit mask` prints them.

use std::collections::BTreeSet;
use std::path::Path;

use flashtile_codegen::{Arch, Facts, Instance, hints};
use flashtile_dsl::analysis::hints::Lost;
use flashtile_dsl::analysis::mask::{MaskOptions, loop_masks};
use flashtile_dsl::analysis::predicate::Summaries;
use flashtile_dsl::ir::{AxisKind, Binding, Elem, Kernel, Op, SizeKind, SourceText};
use flashtile_dsl::syntax::parse_with_warnings;

/// What has no code yet, or none through `wgmma`.
const NOT_YET: &[(&str, Lost)] = &[];

fn texts() -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("asked");
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("there is a folder")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
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

/// The loops of a kernel over tiles of 64, as `inspect --emit mask` prints them.
fn masks(kernel: &Kernel, instance: &Instance) -> String {
    let over_tiles = kernel.walk().into_iter().map(|(_, op)| op).filter(|op| match kernel.ops[*op].op {
        Op::For { axis, .. } => kernel.axes[axis].kind == AxisKind::Loop,
        _ => false,
    });
    let size = |s: &_| instance.binding.size(kernel, s);
    let options = MaskOptions { summaries: Summaries::All, ..MaskOptions::default() };
    let text = |op| loop_masks(kernel, op, &|_| 64, &size, options).text(kernel);
    over_tiles.map(text).collect::<Vec<_>>().join("\n")
}

#[test]
fn kernels_that_users_asked_for_walk_what_their_masks_leave() {
    let mut found = String::new();
    for (name, text) in texts() {
        let source = SourceText { name: format!("{name}.rs"), text: text.into(), first_line: 1 };
        for kernel in parse_with_warnings(&source).unwrap_or_else(|e| panic!("{name}: {e}")).kernels {
            let instance = instance(kernel.clone());
            let shown = masks(&kernel, &instance);
            let lines = shown.trim_end().lines().map(|line| if line.is_empty() { "\n".into() } else { format!("    {line}\n") });
            found.push_str(&format!("{name}\n{}\n", lines.collect::<String>()));
        }
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("asked/masks.txt");
    if std::env::var_os("FLASHTILE_BLESS").is_some_and(|v| v == "1") {
        std::fs::write(&golden, &found).expect("writable");
    }
    let expected = std::fs::read_to_string(&golden).expect("readable");
    assert!(found == expected, "tests/asked/masks.txt says otherwise (FLASHTILE_BLESS=1 writes it anew):\n{found}");
}
