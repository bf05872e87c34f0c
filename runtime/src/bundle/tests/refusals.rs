//! What is no bundle, or not one for this flashtile and this device.

use std::fs;
use std::path::Path;

use flashtile_codegen::Arch;

use super::recorder::Recorder;
use super::{kernel, made};
use crate::bundle::{Bundle, BundleBuilder, BundleError, MANIFEST, Manifest};
use crate::cache::Cache;
use crate::device::Device;
use crate::error::Error;
use crate::toolchain::Toolchain;

/// A copy of the bundle, changed.
fn changed(change: impl Fn(&Path)) -> Result<Bundle, BundleError> {
    let dir = tempfile::tempdir().expect("a directory");
    for file in fs::read_dir(made().bundle()).expect("is there") {
        let file = file.expect("reads");
        fs::copy(file.path(), dir.path().join(file.file_name())).expect("copies");
    }
    change(dir.path());
    Bundle::load(dir.path()).map_err(|error| match error {
        Error::Bundle(error) => error,
        other => panic!("{other}"),
    })
}

fn manifest(dir: &Path, change: impl Fn(&mut Manifest)) {
    let path = dir.join(MANIFEST);
    let mut manifest: Manifest = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("a manifest");
    change(&mut manifest);
    fs::write(&path, serde_json::to_vec(&manifest).expect("plain data")).expect("writes");
}

const CUBIN: &str = "attention_bf16_d64.sm_90a.0.cubin";

#[test]
fn a_bundle_that_was_changed_is_refused() {
    assert!(changed(|_| {}).is_ok());
    let one_bit = changed(|dir| {
        let mut bytes = fs::read(dir.join(CUBIN)).expect("reads");
        bytes[1000] ^= 1;
        fs::write(dir.join(CUBIN), bytes).expect("writes");
    });
    assert!(matches!(one_bit, Err(BundleError::Hash { path, .. }) if path.ends_with(CUBIN)));
    let missing = changed(|dir| fs::remove_file(dir.join(CUBIN)).expect("is there"));
    assert!(matches!(missing, Err(BundleError::Io { action: "read", .. })));
    let no_manifest = changed(|dir| fs::remove_file(dir.join(MANIFEST)).expect("is there"));
    assert!(matches!(no_manifest, Err(BundleError::Io { .. })));
    let outside = changed(|dir| manifest(dir, |m| drop(m.files.insert("../x".into(), m.files[CUBIN].clone()))));
    assert!(matches!(outside, Err(BundleError::Outside { path }) if path == "../x"));
    let unlisted = changed(|dir| manifest(dir, |m| drop(m.files.remove(CUBIN))));
    assert!(matches!(unlisted, Err(BundleError::Malformed { .. })));
    let garbage = changed(|dir| fs::write(dir.join(MANIFEST), "{").expect("writes"));
    assert!(matches!(garbage, Err(BundleError::Malformed { .. })));
}

/// A change of a contract, whose hash in the manifest is that of the changed file.
fn contract(dir: &Path, name: &str, change: impl Fn(&mut serde_json::Value)) {
    let file = format!("{name}.json");
    let mut contract = serde_json::from_slice(&fs::read(dir.join(&file)).expect("reads")).expect("JSON");
    change(&mut contract);
    let bytes = serde_json::to_vec(&contract).expect("plain data");
    fs::write(dir.join(&file), &bytes).expect("writes");
    manifest(dir, |m| m.files.get_mut(&file).expect("is listed").sha256 = crate::bundle::write::sha256(&bytes));
}

#[test]
fn a_contract_that_contradicts_its_text_is_refused() {
    type Change = fn(&mut serde_json::Value);
    let changes: [(&str, Change); 9] = [
        ("the text is none", |c| c["text"] = "fn".into()),
        ("the text has no such kernel", |c| c["kernel"] = "other".into()),
        ("the name is another one", |c| c["name"] = "other".into()),
        ("a constant cannot be", |c| c["binding"]["consts"]["D"] = (-1).into()),
        ("a constant is another one", |c| c["binding"]["consts"]["D"] = 32.into()),
        ("a parameter is missing", |c| drop(c["parameters"].as_array_mut().expect("a list").pop())),
        ("a parameter has another type", |c| c["parameters"][0]["elem"] = c["parameters"][3]["elem"].clone()),
        ("there is no architecture", |c| c["architectures"] = serde_json::json!([])),
        ("an architecture is there twice", |c| {
            let first = c["architectures"][0].clone();
            c["architectures"].as_array_mut().expect("a list").push(first);
        }),
    ];
    assert!(changed(|dir| contract(dir, "attention_bf16_d64", |_| {})).is_ok());
    for (what, change) in changes {
        let found = changed(|dir| contract(dir, "attention_bf16_d64", change));
        assert!(
            matches!(&found, Err(BundleError::Malformed { path, .. }) if path == "attention_bf16_d64.json"),
            "{what}: {found:?}"
        );
    }
    let twice = changed(|dir| manifest(dir, |m| m.kernels.push(m.kernels[0].clone())));
    assert!(matches!(twice, Err(BundleError::Malformed { path, .. }) if path == MANIFEST));
}

#[test]
fn a_bundle_of_another_version_is_refused() {
    let version = changed(|dir| manifest(dir, |m| m.flashtile = "0.0.9".into()));
    assert!(matches!(version, Err(BundleError::Version { found, .. }) if found == "0.0.9"));
    let format = changed(|dir| manifest(dir, |m| m.format += 1));
    assert!(matches!(format, Err(BundleError::Version { format: 2, known: 1, .. })));
}

#[test]
fn code_of_another_architecture_is_refused() {
    let bundle = Bundle::load(made().bundle()).expect("loads");
    let of = |name: &str, capability| {
        let device = Recorder::new(capability, 1).device();
        bundle.kernel(name).expect("is there").of_device(&device).map(|(arch, _)| arch.name)
    };
    let attention = |capability| of("attention_bf16_d64", capability);
    assert_eq!([attention((9, 0)), attention((8, 0)), attention((8, 9))], [Ok("sm_90a"), Ok("sm_80"), Ok("sm_80")]);
    assert_eq!(attention((12, 0)), Ok("sm_80"), "through its PTX");
    let none = attention((7, 5)).expect_err("older than all").to_string();
    assert!(none.contains("none that runs on cuda:0") && none.contains("--arch sm_75"), "{none}");
    assert!(matches!(of("causal_attention_f16_d64", (10, 0)), Err(BundleError::NoArchitecture { .. })));
    let cpu = bundle.kernel("double_kernel").expect("is there").on(&Device::cpu()).expect_err("runs no code");
    assert!(matches!(cpu, Error::Bundle(BundleError::NotCompiled { .. })));
    let unknown = bundle.kernel("attention").expect_err("not the name").to_string();
    assert!(unknown.contains("it has attention_bf16_d64, "), "{unknown}");
}

#[test]
fn only_a_bundle_is_written_over() {
    let dir = tempfile::tempdir().expect("a directory");
    let empty = || BundleBuilder::new(Toolchain::shared(), Cache::disabled());
    fs::write(dir.path().join("thesis.tex"), "all of it").expect("writes");
    let refused = empty().write(dir.path()).expect_err("is not empty");
    assert!(matches!(refused, Error::Bundle(BundleError::NotEmpty { .. })));
    let bundle = dir.path().join("bundle");
    empty().write(&bundle).expect("is new");
    empty().write(&bundle).expect("is a bundle");
}

/// The emulator runs what the bundle carries: with no NVRTC, and no cache.
#[test]
fn a_bundle_computes_what_the_oracle_does() {
    let bundle = Bundle::load(made().bundle()).expect("loads");
    for (name, sizes) in [
        ("attention_bf16_d64", [("B", 1), ("H", 4), ("G", 2), ("M", 70), ("N", 130)].as_slice()),
        ("causal_attention_f16_d64", &[("B", 1), ("H", 2), ("G", 1), ("M", 40), ("N", 300)]),
        ("document_attention_bf16_d64", &[("B", 1), ("H", 1), ("G", 1), ("N", 200)]),
        ("double_kernel", &[("B", 3), ("M", 40), ("N", 70)]),
    ] {
        let loaded = bundle.kernel(name).expect("is there").on(&Device::emulator()).expect("runs code");
        let sizes = sizes.iter().map(|(name, size)| ((*name).to_owned(), *size)).collect();
        let verdicts = crate::tuner::judge(&loaded, &sizes, 0).expect("launches");
        assert!(!verdicts.is_empty());
        verdicts.iter().for_each(|verdict| assert!(verdict.passed(), "{name}: {verdict}"));
    }
}

#[test]
fn a_kernel_without_text_is_refused() {
    let own = kernel("totals", flashtile_dsl::ir::Elem::F32, &[]);
    let mut ir = own.ir().clone();
    ir.source.text = "".into();
    let bound = crate::Kernel::from_ir(ir).bind_to(own.binding().clone()).expect("binds");
    let arch = Arch::named("sm_80").expect("in the table");
    let sizes = [("B", 1), ("M", 8), ("N", 8)].map(|(name, size)| (name.to_owned(), size)).into();
    let target = crate::bundle::BundleTarget {
        arch,
        machine: crate::device::machine_of(arch, None),
        device: crate::tuner::model_key(arch),
    };
    let wanted = crate::bundle::Wanted::general(&bound, &sizes);
    let refused = BundleBuilder::new(Toolchain::shared(), Cache::disabled()).add(&bound, &target, &wanted, None);
    assert!(matches!(refused, Err(Error::Bundle(BundleError::Unsupported { .. }))));
}
