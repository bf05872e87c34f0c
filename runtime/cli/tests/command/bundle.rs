//! `flashtile bundle`: which files it writes, and what it refuses.

use std::fs;

use crate::support::Sandbox;

#[test]
fn a_bundle_has_code_contracts_and_hashes() {
    let sandbox = Sandbox::new();
    let made = "bundle row_softmax --dtype f32,f16 --arch sm_80 --shapes M=64,N=512 --shapes M=8,N=4096 --schedule defaults";
    let told = sandbox.run_compiling(&format!("{made} --out made --json")).succeeds().to_owned();
    let told: serde_json::Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["manifest"]["kernels"], serde_json::json!(["row_softmax_f32", "row_softmax_f16"]));
    let files = told["manifest"]["files"].as_object().expect("an object");
    let of = |name: &str| fs::read(sandbox.path().join("made").join(name)).expect("was written");
    for (name, entry) in files {
        assert_eq!(entry["bytes"], of(name).len(), "{name}");
    }
    for name in ["row_softmax_f16.sm_80.0.cubin", "flashtile_bundle.h", "flashtile_bundle.c", "CMakeLists.txt"] {
        assert!(files.contains_key(name), "{name}: {files:?}");
    }
    let contract: serde_json::Value = serde_json::from_slice(&of("row_softmax_f32.json")).expect("JSON");
    let arch = &contract["architectures"][0];
    // Both shapes with one schedule have the same code; the general code is once.
    assert_eq!((arch["variants"].as_array().map(Vec::len), arch["code"].as_array().map(Vec::len)), (Some(3), Some(2)));
    assert_eq!(arch["code"][0]["launches"][0]["entry"], "row_softmax");
    let again = sandbox.run_compiling(&format!("{made} --no-general --out made"));
    assert!(again.succeeds().starts_with("wrote row_softmax_f32, row_softmax_f16 into made: "), "{}", again.stdout);
    let contract: serde_json::Value = serde_json::from_slice(&of("row_softmax_f32.json")).expect("JSON");
    assert_eq!(contract["architectures"][0]["variants"].as_array().map(Vec::len), Some(2));
}

#[test]
fn what_cannot_be_bundled_is_refused() {
    let sandbox = Sandbox::new();
    sandbox
        .run("bundle row_softmax --shapes M=8,Q=2 --out made")
        .fails_with(2, "no kernel of the bundle has a size or scalar `Q`");
    sandbox.run("bundle row_softmax").fails_with(2, "--out");
    sandbox.run("bundle softmax_of_rows --out made").fails_with(3, "no kernel `softmax_of_rows`");
    sandbox.run("bundle row_softmax --arch sm_42 --out made").fails_with(6, "`sm_42` is not an architecture");
    sandbox.run("bundle row_softmax --schedule warps=0 --shapes M=8,N=8 --out made").fails_with(5, "warps");
    assert!(!sandbox.path().join("made").exists());
}

/// The first tile of the model's ranking keeps values in memory for this kernel.
#[test]
fn a_bundle_has_the_code_that_a_launch_takes() {
    let sandbox = Sandbox::new();
    let shape = "B=2,H=16,G=16,M=4096,N=4096,D=80";
    let of = |flags: &str| {
        let inspect = format!("inspect dropout_attention --arch sm_90a --shape {shape} --emit resources --json {flags}");
        let shown: serde_json::Value = serde_json::from_str(sandbox.run_compiling(&inspect).succeeds()).expect("JSON");
        let schedule = shown["schedule"].as_str().expect("a text").to_owned();
        (schedule, shown["compiled"]["stack"].as_u64().expect("a number"))
    };
    let ((first, of_first), (launched, of_launched)) = (of(""), of("--as-launched"));
    assert!(of_first > 32, "{first} keeps its values in registers: choose another kernel for this test");
    assert!(of_launched <= 32 && launched != first, "{launched}: {of_launched} bytes");
    let made = format!("bundle dropout_attention --arch sm_90a --shapes {shape} --no-general --out made");
    sandbox.run_compiling(&made).succeeds();
    let contract = fs::read(sandbox.path().join("made/dropout_attention_bf16_d80.json")).expect("was written");
    let contract: serde_json::Value = serde_json::from_slice(&contract).expect("JSON");
    assert_eq!(contract["architectures"][0]["code"][0]["schedule"], launched);
}

/// The program that a machine with a GPU runs is compiled here too, so that it stays true.
#[test]
fn the_program_for_a_gpu_compiles() {
    let sandbox = Sandbox::new();
    let made = "bundle attention --arch sm_80 --shapes B=1,H=2,G=2,M=64,N=64,D=128 --schedule defaults --no-general --out made";
    sandbox.run_compiling(made).succeeds();
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/gpu/attention.c");
    let mut cc = std::process::Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", "made", "-o", "attention", program]);
    cc.args(["made/flashtile_bundle.c", "made/flashtile_cubins.c", "-ldl", "-lm"]);
    let output = cc.current_dir(sandbox.path()).output().expect("cc is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
