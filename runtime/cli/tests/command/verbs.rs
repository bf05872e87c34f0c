//! Every verb does what its help says, with no GPU and no NVRTC.

use crate::support::Sandbox;

#[test]
fn every_verb_has_help_and_the_exit_codes_are_in_it() {
    let sandbox = Sandbox::new();
    let help = sandbox.run("--help");
    let verbs = "demo list check doctor inspect run verify tune bench repro cache completions man";
    for verb in verbs.split(' ') {
        assert!(help.succeeds().contains(&format!("\n  {verb} ")), "{verb}");
        let own = sandbox.run(&format!("{verb} --help"));
        assert!(own.succeeds().contains(&format!("Usage: flashtile {verb}")), "{verb}");
    }
    for code in ["0  success", "2  usage", "5  schedule", "130  interrupted"] {
        assert!(help.stdout.contains(code), "{code}");
    }
}

#[test]
fn list_and_check_know_the_built_in_kernels() {
    let sandbox = Sandbox::new();
    let names: Vec<String> =
        sandbox.run("list --json").json().iter().map(|k| k["kernel"].as_str().expect("a name").into()).collect();
    for name in ["attention", "causal_attention", "matmul_gelu", "row_softmax"] {
        assert!(names.iter().any(|n| n == name), "{name}");
        assert!(sandbox.run(&format!("check {name}")).succeeds().contains("is well formed"), "{name}");
    }
    assert!(sandbox.run("list --knobs").succeeds().contains("block_m"));
    assert!(sandbox.run("list --archs").succeeds().contains("sm_90a"));
}

#[test]
fn every_stage_that_needs_no_compiler_is_shown() {
    let sandbox = Sandbox::new();
    let table = [
        ("ir", "kernel causal_attention {"),
        ("normal", "kernel causal_attention {"),
        ("deps", "RAW"),
        ("deps-graph", "-.->|LC-j|"),
        ("mask", "a hidden tile     changes nothing"),
        ("cost", "nominal FLOPs"),
        ("plan", "role all"),
        ("cuda", "extern \"C\""),
        ("layout", "ldmatrix: every phase"),
        ("abi", "\"entry\": \"causal_attention\""),
    ];
    for (stage, text) in table {
        let shown = sandbox.run(&format!("inspect causal_attention --emit {stage} --arch sm_80 --set D=64"));
        assert!(shown.succeeds().contains(text), "{stage}: {}", shown.stdout);
    }
    let knobs = "swizzle=off,block_m=64,block_n=64,warps=4";
    let drawn = sandbox.run(&format!("inspect attention --emit layout --arch sm_80 --schedule {knobs} --svg tile.svg"));
    assert!(drawn.succeeds().contains("8-way bank conflicts"), "{}", drawn.stdout);
    let svg = std::fs::read_to_string(sandbox.path().join("tile.svg")).expect("drawn");
    assert!(svg.starts_with("<svg"));
    let json = sandbox.run("inspect matmul_gelu --emit cuda --arch sm_90a --dtype f16 --json").json();
    assert_eq!((json[0]["arch"].as_str(), json[0]["emit"].as_str()), (Some("sm_90a"), Some("cuda")));
}

#[test]
fn the_demo_works_offline_and_ends_with_a_checked_result() {
    let sandbox = Sandbox::new();
    let demo = sandbox.run("demo --device cpu");
    for text in ["pub fn causal_attention", "generated, but not compiled", "checked and timed", "Generated source:", "Try next:"]
    {
        assert!(demo.succeeds().contains(text), "{text}: {}", demo.stdout);
    }
    let path = demo.stdout.lines().find_map(|line| line.strip_prefix("Generated source: ")).expect("a path");
    assert!(std::fs::read_to_string(path).expect("is there").contains("__global__"));
}

#[test]
fn bench_prints_one_object() {
    let sandbox = Sandbox::new();
    let shape = "B=1,H=2,G=1,M=33,N=40,D=16";
    let rows = sandbox.run(&format!("bench causal_attention --shape {shape} --device cpu --repetitions 2 --json")).json();
    let row = rows[0].as_object().expect("an object");
    for key in ["kernel", "shape", "dtype", "device", "schedule", "median_ms", "tflops", "gbytes_per_s", "max_error"] {
        assert!(row.contains_key(key), "{key}");
    }
    assert_eq!((row["right"].as_bool(), row["repetitions"].as_u64()), (Some(true), Some(2)));
}

#[test]
fn verify_runs_cases_and_shapes_and_prints_seeds() {
    let sandbox = Sandbox::new();
    let cases = sandbox.run("verify row_softmax --small --device cpu --json").json();
    let (summary, cases) = cases.split_last().expect("a summary");
    assert_eq!(summary["passed"], summary["cases"]);
    assert!(!cases.is_empty() && cases.iter().all(|c| c["seed"].is_u64() && c["failure"].is_null()));
    let shapes = sandbox.run("verify attention --device cpu --shape B=1,H=2,G=1,M=7,N=13,D=16 --seed 5");
    assert!(shapes.succeeds().contains("seed=5: o right"), "{}", shapes.stdout);
    sandbox.write("own.rs", "pub fn scale<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {\n    let i = program(tiles(N));\n    store(y, [i], 2.0 * load(x, [i]));\n}\n");
    assert!(sandbox.run("verify own.rs --device cpu").succeeds().contains("N=203"));
    // With one row, of which one rounding moves all scores, the baseline is right by luck.
    sandbox.run("verify query_norm_attention --device cpu --shape B=2,H=2,G=2,M=1,N=331,D=64 --seed 17").succeeds();
}

/// Where no bar is drawn.
#[test]
fn verify_says_how_far_it_is() {
    let sandbox = Sandbox::new();
    let filters = "--all --small --filter f16/B1 --filter D64";
    let count = sandbox.run(&format!("verify {filters} --list")).succeeds().lines().count();
    assert!(count > 100 && !count.is_multiple_of(100), "{count} cases");
    let run = sandbox.run(&format!("verify {filters} --device cpu"));
    run.succeeds();
    assert!(run.stderr.contains(&format!("100 of {count} cases are judged")), "{}", run.stderr);
}

/// What a GPU would run, listed without one.
#[test]
fn verify_draws_legal_schedules_for_the_cases_of_the_suite() {
    let sandbox = Sandbox::new();
    let list = "verify --all --schedules 40 --list --device cpu --arch sm_90a";
    let drawn = sandbox.run(&format!("{list} --seed 3 --json")).json();
    assert_eq!(drawn.len(), 40);
    assert!(drawn.iter().any(|d| d["schedule"].as_str().is_some_and(|s| s.contains("tensor_op=wgmma"))));
    let text = sandbox.run(&format!("{list} --seed 3"));
    let first =
        format!("{} seed={:#x}", drawn[0]["case"].as_str().expect("a name"), drawn[0]["seed"].as_u64().expect("a number"));
    assert!(text.succeeds().starts_with(&first), "{}", text.stdout);
    assert_ne!(sandbox.run(&format!("{list} --seed 4 --json")).json(), drawn);
    let name = "attention/f16/B1_H2_G1_M65_N130_D64/normal";
    assert!(
        sandbox.run(&format!("verify attention --list --filter {name}")).succeeds().lines().count() > 1,
        "no case has this name"
    );
    let of_one = sandbox.run("verify row_softmax --schedules 5 --list --device cpu --arch sm_80 --filter M9_N301 --json").json();
    assert!(of_one.iter().all(|d| d["case"].as_str().is_some_and(|c| c.starts_with("row_softmax/"))));
}

/// What is no case of the suite has drawn schedules on its shapes: each kernel of a gradient one of its own.
#[test]
fn verify_draws_legal_schedules_for_gradients_and_shapes_of_ones_own() {
    let sandbox = Sandbox::new();
    let list = "verify attention --schedules 3 --list --device cpu --arch sm_90a --shape B=1,H=2,G=1,M=65,N=130,D=64 --json";
    let own = sandbox.run(list).json();
    assert!(own.len() == 3 && own.iter().all(|line| line["shape"]["N"] == 130), "{own:?}");
    let drawn = sandbox.run(&format!("{list} --grad q,k,v")).json();
    let of = |name: &str| drawn.iter().filter(|line| line["kernel"] == name).map(|line| &line["schedule"]).collect::<Vec<_>>();
    let [rows, columns] = [of("attention_grad_rows"), of("attention_grad_columns")];
    assert!(rows.len() == 3 && columns.len() == 3 && rows != columns, "{drawn:?}");
    // The fused form has code for Hopper alone.
    let fused = list.replace("sm_90a", "sm_80").replace(" --json", " --grad q,k,v --grad-form fused");
    sandbox.run(&fused).fails_with(5, "or take --grad-form plain, which has other kernels");
    // Rows of 2048 fit no program that sums up their gradients.
    let wide = "verify linear_cross_entropy --schedules 1 --list --device cpu --arch sm_90a --shape M=65,V=130,D=2048 \
        --grad x,w --grad-from loss";
    sandbox.run(wide).fails_with(5, "or take --grad-form stored");
    sandbox.run(&format!("{wide} --grad-form stored")).succeeds();
}

/// Without a draw it is the checks themselves that are listed, and nothing runs.
#[test]
fn verify_lists_what_it_would_check_of_shapes_and_gradients() {
    let sandbox = Sandbox::new();
    let shape = "--shape B=1,H=2,G=1,M=65,N=130,D=64";
    let own = sandbox.run(&format!("verify attention --list --device cpu {shape}")).succeeds().to_owned();
    let case = "attention B=1,G=1,H=2,M=65,N=130 seed=0";
    assert_eq!(own, format!("{case}\n{case} data=scale:scale=128\n"), "no verdicts");
    let gradient = sandbox.run(&format!("verify attention --grad q,k,v --list --device cpu {shape} --json")).json();
    let names: Vec<&str> = gradient.iter().filter_map(|line| line["kernel"].as_str()).collect();
    for name in ["attention_grad_rows", "attention_grad_columns", "attention_grad"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(gradient.iter().all(|line| line.get("output").is_none() && line.get("slopes").is_none()), "{gradient:?}");
    let filtered = sandbox.run(&format!("verify attention --grad q,k,v --list --device cpu {shape} --filter grad_rows"));
    assert!(filtered.succeeds().lines().all(|line| line.starts_with("attention_grad_rows ")), "{}", filtered.stdout);
}

#[test]
fn a_filter_that_is_a_whole_name_is_that_case_alone() {
    let sandbox = Sandbox::new();
    let name = "attention/f16/B1_H2_G1_M7_N7_D64/normal";
    assert_eq!(sandbox.run(&format!("verify --all --list --filter {name}")).succeeds().lines().count(), 1);
}

#[test]
fn completions_and_manual_come_from_the_flags() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(sandbox.run(&format!("completions {shell}")).succeeds().contains("inspect"), "{shell}");
    }
    assert!(sandbox.run("man").succeeds().starts_with(".ie"));
    assert!(sandbox.run("man --markdown").succeeds().contains("## `flashtile inspect`"));
    sandbox.run("man --dir pages").succeeds();
    assert!(sandbox.path().join("pages/flashtile-inspect.1").is_file());
}

#[test]
fn the_cache_is_listed_exported_and_cleared() {
    let sandbox = Sandbox::new();
    assert!(sandbox.run("cache list").succeeds().contains("0 entries"));
    assert!(sandbox.run("cache export all.bin").succeeds().contains("wrote 0 entries"));
    assert!(sandbox.run("cache import all.bin").succeeds().contains("added 0 entries"));
    assert!(sandbox.run("cache verify").succeeds().contains("0 entries"));
    assert!(sandbox.run("cache clear").succeeds().contains("removed 0 entries"));
}

#[test]
fn the_doctor_says_what_needs_what() {
    let sandbox = Sandbox::new();
    let doctor = sandbox.run("doctor");
    for text in ["NVRTC", "to get NVRTC:", "conformance on a GPU", "can run here"] {
        assert!(doctor.succeeds().contains(text), "{text}: {}", doctor.stdout);
    }
    // What it does not install itself, other verbs do.
    let nowhere = sandbox.run_with("doctor", &[("FLASHTILE_NVRTC", "")]).succeeds().to_owned();
    assert!(!nowhere.contains("turned off"), "{nowhere}");
    let never = sandbox.run("doctor --no-install");
    assert!(
        never.succeeds().contains("to get NVRTC: without --no-install it is installed when first needed"),
        "{}",
        never.stdout
    );
    let findings = sandbox.run("doctor --json").json();
    assert!(findings.iter().any(|f| f["subject"] == "NVRTC" && f["ok"] == false));
    // The table breaks lines where they are too long, JSON does not.
    let group = findings.iter().find(|f| f["tests"] == "launches, streams and foreign memory on a GPU").expect("a group");
    assert_eq!(group["command"], "cargo test --release -p flashtile --test gpu -- --ignored");
}

#[test]
fn the_emulator_is_told_apart_from_devices_that_have_times_or_no_code() {
    let sandbox = Sandbox::new();
    let shape = "B=1,H=1,G=1,M=16,N=16,D=16";
    for (arguments, text) in [
        (format!("bench attention --device emulator --shape {shape}"), "times on the emulator mean nothing"),
        ("demo --device emulator".to_owned(), "mean nothing on the emulator"),
        ("inspect attention --emit profile --device cpu".to_owned(), "cpu does not count what a launch does"),
        ("verify attention --device cpu --emulate seed=1".to_owned(), "--emulate, --code and --max-steps have no meaning on cpu"),
        ("verify attention --device cpu --max-steps 100".to_owned(), "have no meaning on cpu; give --device emulator"),
        ("verify attention --device emulator --emulate landing=soon".to_owned(), "`landing=soon` is no option of an execution"),
        ("verify attention --device cpu --schedules 2".to_owned(), "give --device cuda:N or emulator"),
    ] {
        let outcome = sandbox.run(&arguments);
        assert!(outcome.code == 2 && outcome.stderr.contains(text), "{arguments}: {}", outcome.stderr);
    }
    // Without NVRTC it says what is missing.
    assert_eq!(sandbox.run("verify attention --device emulator").code, 7);
}

const LOSSES: &str = "pub fn losses<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<f32, (M)>) {
    let i = program(tiles(M));
    let unread = load(x, [i, 0]);
    let mut sum = zeros(i);
    for j in tiles(N) {
        let p = exp(mask(load(x, [i, j]), sum > 0.0));
        sum += rowsum(p);
    }
    store(y, [i], sum);
}
";

#[test]
fn hints_and_warnings_are_told_once_with_their_place() {
    let sandbox = Sandbox::new();
    sandbox.write("losses.rs", LOSSES);
    for verb in ["check", "inspect --emit ir", "inspect --emit mask --arch sm_80"] {
        let (verb, flags) = verb.split_once(' ').unwrap_or((verb, ""));
        let told = sandbox.run(&format!("{verb} losses.rs {flags}"));
        assert!(!told.succeeds().contains("hint"), "{verb}: results are on standard output alone\n{}", told.stdout);
        assert_eq!(told.stderr.matches("hint: tiles that the mask hides are walked all the same").count(), 1, "{}", told.stderr);
        assert_eq!(told.stderr.matches("warning: `unread` is never used").count(), 1, "{}", told.stderr);
        assert!(told.stderr.contains("--> losses.rs:6:43"), "{}", told.stderr);
    }
    let checked = sandbox.run("check losses.rs --json").json();
    let kernel = checked.iter().find(|object| object["kernel"] == "losses").expect("the kernel");
    let hint = &kernel["hints"][0];
    assert_eq!((&hint["lost"][0], &hint["line"], &hint["column"]), (&"skips".into(), &6.into(), &43.into()), "{kernel}");
    let warning = &kernel["warnings"][0];
    assert_eq!((&warning["line"], &warning["column"]), (&3.into(), &9.into()), "{warning}");
    let shown = &sandbox.run("inspect losses.rs --emit mask --json").json()[0];
    assert_eq!(shown["hints"][0]["lost"][0], "skips", "{shown}");
    let quiet = sandbox.run("check causal_attention");
    assert_eq!((quiet.succeeds().contains("is well formed"), quiet.stderr.as_str()), (true, ""));
}

#[test]
fn gradients_are_printed_as_kernels() {
    let sandbox = Sandbox::new();
    let printed = sandbox.run("inspect causal_attention --grad q,k,v --emit text").succeeds().to_owned();
    for name in ["causal_attention_grad_rows", "causal_attention_grad_columns"] {
        assert!(printed.contains(&format!("pub fn {name}<")), "{printed}");
    }
    // What is printed is a file of kernels.
    sandbox.write("grad.rs", &printed);
    sandbox.run("check grad.rs").succeeds();
    // A kernel that does not store what its gradient needs stores more.
    let forward = sandbox.run("inspect differential_attention --grad q --emit text").succeeds().to_owned();
    assert!(forward.contains("pub fn differential_attention<") && forward.contains("acc1_mean: &mut"), "{forward}");
    // Of what is gathered, the gradient is a sum at the same positions.
    let added = sandbox.run("inspect relative_attention --grad table --emit text").succeeds().to_owned();
    assert!(added.contains("add(grad_table, [h, t") && added.contains("], ds);"), "{added}");
    let refused = sandbox.run("inspect causal_attention --grad scale --emit text");
    assert!(refused.code != 0 && refused.stderr.contains("declare it `scale: &Tensor<f32, (1)>`"), "{}", refused.stderr);
    assert!(refused.stderr.contains("causal_attention.rs:"), "{}", refused.stderr);
    for (flags, listed) in [("--grad nope", "q, k, v, scale"), ("--grad q --grad-from nope", "o, lse")] {
        let unknown = sandbox.run(&format!("inspect attention {flags} --emit text"));
        assert!(unknown.code == 2 && unknown.stderr.contains(listed), "{}", unknown.stderr);
    }
    let without = sandbox.run("inspect attention --grad q");
    assert!(without.code == 2 && without.stderr.contains("give --emit text"), "{}", without.stderr);
}

#[test]
fn kernels_of_a_gradient_are_verified_on_what_those_before_them_store() {
    let sandbox = Sandbox::new();
    let shape = "--shape B=1,H=4,G=2,M=40,N=50,D=16";
    let told = sandbox.run(&format!("verify causal_attention --grad q,k,v --device cpu {shape} --seed 3"));
    let lines = told.succeeds().lines().map(|line| line.split_once(" (allowed").expect("a verdict").0);
    // Each kernel once more on steep inputs.
    let (steep, lines): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.contains(" data=scale:scale=128: "));
    assert_eq!(steep.len(), 4, "{}", told.stdout);
    let of = |kernel: &str, output: &str| {
        let begins = format!("causal_attention_grad_{kernel} B=1,G=2,H=4,M=40,N=50 seed=3: {output} right; max error ");
        lines.iter().filter(|line| line.starts_with(&begins)).count()
    };
    let found = [("rows", "grad_l"), ("rows", "grad_q"), ("columns", "grad_k"), ("columns", "grad_v")].map(|(k, o)| of(k, o));
    assert_eq!((lines.len(), found), (7, [1; 4]), "{}", told.stdout);
    let slopes = ["q", "k", "v"].map(|x| format!("causal_attention_grad B=1,G=2,H=4,M=40,N=50 seed=3: slope of {x} right; "));
    assert!(slopes.iter().zip(&lines[4..]).all(|(begins, line)| line.starts_with(begins)), "{}", told.stdout);
    // On its usual shapes, on steep inputs too: the forward kernel is another, and is judged.
    let wide = sandbox.run("verify differential_attention --grad v --set D=16,E=8 --device cpu --dtype f16 --filter M=67").stdout;
    for told in ["differential_attention B=1", "m1_reference right", "differential_attention_grad_columns B=1", "scale:scale=128"]
    {
        assert!(wide.contains(told), "`{told}` is told: {wide}");
    }
    let scored = sandbox.run(&format!("verify attention --grad q --device cpu {shape} --data grad_o:scale=4 --json")).json();
    let (slopes, outputs) = scored.split_last().expect("lines");
    assert!(outputs.iter().all(|line| line["kernel"] == "attention_grad_rows"), "{scored:?}");
    assert!(slopes["kernel"] == "attention_grad" && slopes["slopes"][0]["input"] == "q", "{slopes}");
    let random = sandbox.run(&format!("verify attention --grad q --device cpu {shape} --data lse:scale=4"));
    random.fails_with(2, "`lse`, for which data are given, holds what an earlier kernel stores");
    sandbox.run(&format!("verify attention --grad q --device cpu {shape} --filter columns")).fails_with(2, "leaves no case");
    sandbox.run("verify attention --grad q --device cpu --schedules 3").fails_with(2, "cpu compiles nothing");
    sandbox.run("verify linear_cross_entropy --grad x --device cpu").fails_with(2, "with --grad-from");
}

#[test]
fn kernels_of_a_gradient_are_tuned_and_timed_one_after_the_other() {
    let sandbox = Sandbox::new();
    let shape = "--shape B=1,H=2,G=2,M=64,N=64,D=16";
    let timed = sandbox.run(&format!("bench attention --grad q,k,v --device cpu --repetitions 1 {shape} --json")).json();
    let (total, rows) = timed.split_last().expect("a total");
    let names: Vec<_> = rows.iter().map(|row| row["kernel"].as_str().expect("a name")).collect();
    assert_eq!(names, ["attention", "attention_grad_rows", "attention_grad_columns"]);
    let sum: f64 = rows[1..].iter().map(|row| row["median_ms"].as_f64().expect("a number")).sum();
    assert!((total["backward_ms"].as_f64().expect("a number") / sum - 1.0).abs() < 1e-9, "{total}");
    let text = sandbox.run(&format!("bench attention --grad q --device cpu --repetitions 1 {shape}"));
    assert!(text.succeeds().lines().last().is_some_and(|line| line.starts_with("backward: ")), "{}", text.stdout);
    let unknown = sandbox.run(&format!("tune attention --grad q --arch sm_90a {shape} --data x:scale=2"));
    unknown.fails_with(2, "`x`, for which --data is given, is no input of attention, attention_grad_rows");
}
