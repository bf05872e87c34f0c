//! Hints: none where nothing is lost, and one golden file for each kernel that lost something without a word.

use std::path::Path;

use flashtile::ARCHS;
use flashtile::kernel::BUILTINS;
use flashtile_codegen::{Facts, Instance, hints};
use flashtile_dsl::analysis::hints::Lost;
use flashtile_dsl::ir::{Binding, Elem, SizeKind, SourceText};
use flashtile_dsl::syntax::parse_with_warnings;
use flashtile_tests::filetest::files;

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// What a built-in kernel loses.
fn lost_by(builtin: &str) -> &'static [Lost] {
    match builtin {
        // The tables of the rotation have a row for each position, and none for each head.
        "rope_attention" | "causal_rope_attention" => &[Lost::Fold],
        // Every head has a number of its own.
        "alibi_attention" | "sink_attention" | "relative_attention" | "dropout_attention" => &[Lost::Fold],
        // Lists of blocks are of one head each.
        "block_attention" => &[Lost::Fold],
        // What a maximum moves is no sum.
        "row_argmax" => &[Lost::Split],
        // The numbers of documents are loaded for each row of a head.
        "document_attention" => &[Lost::Fold],
        _ => &[],
    }
}

#[test]
fn built_in_kernels_lose_what_is_known_and_name_nothing_in_vain() {
    for builtin in BUILTINS {
        let source = SourceText { name: builtin.file.into(), text: builtin.text.into(), first_line: 1 };
        let parsed = parse_with_warnings(&source).expect("built-ins are well formed");
        assert!(parsed.warnings.iter().all(Vec::is_empty), "{}: {:?}", builtin.name, parsed.warnings);
        for kernel in parsed.kernels {
            let consts = kernel.sizes.values().filter(|s| s.kind == SizeKind::Const).map(|s| (s.name.clone(), 64));
            let binding = Binding::new(&kernel, Elem::F16, consts.collect::<Vec<_>>());
            let instance = Instance { facts: Facts::best(&kernel), binding, kernel };
            let lost = lost_by(builtin.name);
            for arch in ARCHS {
                let found: Vec<Lost> = hints(&instance, arch).into_iter().flat_map(|hint| hint.lost).collect();
                assert_eq!(found, lost, "{} on {arch}", builtin.name);
            }
        }
    }
}

#[test]
fn every_loss_and_every_kernel_has_a_golden_file() {
    let golden = files(&folder("filetests/hints"));
    let texts: Vec<_> = golden.iter().map(|f| std::fs::read_to_string(f).expect("readable")).collect();
    for lost in Lost::ALL {
        assert!(texts.iter().any(|text| text.contains(lost.sentence())), "no golden file has a hint on {}", lost.name());
    }
    for kernel in std::fs::read_dir(folder("kernels")).expect("there are kernels") {
        let name = kernel.expect("the folder is readable").path();
        let name = name.file_stem().expect("a file has a name").to_string_lossy().into_owned();
        let text = format!("; text: kernels/{name}.rs");
        assert!(texts.iter().any(|golden| golden.starts_with(&text)), "no golden file has the hints of {name}");
    }
}
