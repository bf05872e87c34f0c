//! Bad input of every kind gets a clear error and its documented exit code, and loses nothing.

use safetensors::tensor::{Dtype, TensorView};

use crate::support::Sandbox;

/// A tensor of a file.
type Tensor<'a> = (&'a str, Dtype, Vec<usize>, Vec<u8>);

fn f16(shape: &[usize]) -> (Dtype, Vec<usize>, Vec<u8>) {
    let one = half::f16::ONE.to_le_bytes();
    (Dtype::F16, shape.to_vec(), one.repeat(shape.iter().product()))
}

fn file(tensors: &[Tensor<'_>]) -> Vec<u8> {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.clone(), bytes).expect("consistent")))
        .collect();
    safetensors::serialize(views, None).expect("serialises")
}

fn named<'a>(name: &'a str, (dtype, shape, bytes): (Dtype, Vec<usize>, Vec<u8>)) -> Tensor<'a> {
    (name, dtype, shape, bytes)
}

const RUN: &str = "run attention --device cpu --in in.safetensors --out out.safetensors --set scale=0.25";

#[test]
fn tensors_go_in_and_out_by_name() {
    let sandbox = Sandbox::new();
    let q = f16(&[1, 2, 5, 16]);
    let k = f16(&[1, 1, 7, 16]);
    sandbox.write("in.safetensors", file(&[named("q", q), named("k", k.clone()), named("v", k), named("other", f16(&[1]))]));
    let run = sandbox.run(RUN);
    assert!(run.succeeds().contains("o f16 [1, 2, 5, 16]"), "{}", run.stdout);
    assert!(run.stderr.contains("holds `other`, which is no input"), "{}", run.stderr);
    let bytes = std::fs::read(sandbox.path().join("out.safetensors")).expect("written");
    let out = safetensors::SafeTensors::deserialize(&bytes).expect("a file");
    let o = out.tensor("o").expect("there");
    assert!(o.data().chunks(2).all(|x| half::f16::from_le_bytes([x[0], x[1]]) == half::f16::ONE), "the mean of ones");
    assert_eq!(out.tensor("lse").expect("there").dtype(), Dtype::F32);
}

#[test]
fn a_type_that_no_input_has_is_given() {
    let sandbox = Sandbox::new();
    let text = "/// Rounds.
        pub fn rounded<T: Element>(x: &Tensor<f32, (N)>, y: &mut Tensor<T, (N)>) {
            let i = program(tiles(N));
            store(y, [i], load(x, [i]).to::<T>());
        }";
    sandbox.write("rounded.rs", text);
    let values = [1.0f32, -2.5, 1.0 + 1.0 / 1024.0];
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    sandbox.write("in.safetensors", file(&[("x", Dtype::F32, vec![3], bytes)]));
    let run = "run rounded.rs --device cpu --in in.safetensors --out out.safetensors";
    sandbox.run(run).fails_with(2, "no input has the type T of kernel `rounded`; give --dtype");
    for (name, dtype, last) in
        [("f16", Dtype::F16, 1.0 + 1.0 / 1024.0), ("bf16", Dtype::BF16, 1.0), ("f32", Dtype::F32, values[2])]
    {
        let run = sandbox.run(&format!("{run} --dtype {name}"));
        assert!(run.succeeds().contains(&format!("y {name} [3]")), "{}", run.stdout);
        let bytes = std::fs::read(sandbox.path().join("out.safetensors")).expect("written");
        let out = safetensors::SafeTensors::deserialize(&bytes).expect("a file");
        let y = out.tensor("y").expect("there");
        assert_eq!(y.dtype(), dtype);
        let found: Vec<f32> = match dtype {
            Dtype::F16 => y.data().chunks(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            Dtype::BF16 => y.data().chunks(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
            _ => y.data().chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        };
        assert_eq!(found, [1.0, -2.5, last], "{name}");
    }
    let (q, k) = (f16(&[1, 2, 5, 16]), f16(&[1, 1, 7, 16]));
    sandbox.write("in.safetensors", file(&[named("q", q), named("k", k.clone()), named("v", k)]));
    assert!(sandbox.run(&format!("{RUN} --dtype f16")).succeeds().contains("o f16"), "the same as the inputs say");
    sandbox.run(&format!("{RUN} --dtype bf16")).fails_with(2, "--dtype bf16 does not fit: the inputs say that type T is f16");
}

#[test]
fn faulty_tensors_are_named_and_the_old_output_stays() {
    let sandbox = Sandbox::new();
    let (q, k) = (|| named("q", f16(&[1, 2, 5, 16])), || named("k", f16(&[1, 1, 7, 16])));
    let v = || named("v", f16(&[1, 1, 7, 16]));
    let f64s = (Dtype::F64, vec![1, 1, 7, 16], vec![0; 8 * 7 * 16]);
    let f32s = (Dtype::F32, vec![1, 1, 7, 16], vec![0; 4 * 7 * 16]);
    let i32s = (Dtype::I32, vec![1, 2, 5, 16], vec![0; 4 * 2 * 5 * 16]);
    let table = [
        (vec![q(), k()], "tensor `v` is missing in in.safetensors, which holds k, q"),
        (vec![q(), k(), named("v", f16(&[1, 1, 8, 16]))], "argument `v`: dimension 2 must be N = 7"),
        (vec![q(), k(), named("v", f16(&[7, 16]))], "tensor `v` must have 4 dimensions (B, G, N, D), but has shape [7, 16]"),
        (
            vec![q(), k(), named("v", f64s)],
            "tensor `v` holds F64; expected F32, F16, BF16, I32, BOOL, U8, I8, F8_E4M3 or F8_E5M2",
        ),
        (vec![q(), k(), named("v", f32s)], "argument `v` must hold f16, but holds f32"),
        (vec![named("q", i32s), k(), v()], "tensor `q` holds i32, where `T` is f32, f16 or bf16; convert it"),
    ];
    sandbox.write("out.safetensors", "what was there");
    for (tensors, text) in table {
        sandbox.write("in.safetensors", file(&tensors));
        sandbox.run(RUN).fails_with(4, text);
    }
    // A header of odd length moves every tensor to an odd byte.
    let sound = file(&[q(), k(), v()]);
    let header = u64::from_le_bytes(sound[..8].try_into().expect("8 bytes")) as usize;
    let mut odd = (header as u64 + 1).to_le_bytes().to_vec();
    odd.extend_from_slice(&sound[8..8 + header]);
    odd.push(b' ');
    odd.extend_from_slice(&sound[8 + header..]);
    sandbox.write("in.safetensors", odd);
    sandbox.run(RUN).fails_with(4, "is misaligned: it begins at byte");
    sandbox.write("in.safetensors", "no tensors at all");
    sandbox.run(RUN).fails_with(4, "in.safetensors is no safetensors file");
    sandbox.write("in.safetensors", file(&[q(), k(), v()]));
    sandbox.run(&RUN.replace("--set scale=0.25", "")).fails_with(2, "needs the scalar `scale`; give --set scale=..");
    sandbox.run(&RUN.replace("--in in", "--in absent")).fails_with(10, "failed to read absent.safetensors");
    sandbox.run(&RUN.replace("--out out", "--out no/such/out")).fails_with(10, "failed to write");
    assert_eq!(std::fs::read(sandbox.path().join("out.safetensors")).expect("there"), b"what was there");
    assert_eq!(sandbox.run(RUN).code, 0);
}

#[test]
fn three_reasons_against_a_schedule_are_told_and_all_are_listed_on_request() {
    let sandbox = Sandbox::new();
    let wrong = "inspect attention --arch sm_80 --schedule copy=tma,warps=3,stages=9,section=0,persistent=static";
    let short = sandbox.run(wrong);
    short.fails_with(5, "section=0 is not positive; and 3 more; --explain lists all");
    let long = sandbox.run(&format!("{wrong} --explain"));
    long.fails_with(5, "\n  persistent=static ");
    assert!(!long.stderr.contains("lists all"), "{}", long.stderr);
    let failed = sandbox.run(&format!("{wrong} --json"));
    let error: serde_json::Value = serde_json::from_str(&failed.stderr).expect("one object");
    assert_eq!(error["error"]["reasons"].as_array().map(Vec::len), Some(6), "{error}");
}

#[test]
fn kernels_schedules_and_sizes() {
    let sandbox = Sandbox::new();
    sandbox.write(
        "bad.rs",
        "pub fn f<T: Element>(x: &Tensor<T, (N)>) {\n    let i = program(tiles(N));\n    let y = lod(x, [i]);\n}\n",
    );
    sandbox.write("two.rs", "pub fn a<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {\n    let i = program(tiles(N));\n    store(y, [i], load(x, [i]));\n}\npub fn b<T: Element>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>) {\n    let i = program(tiles(N));\n    store(y, [i], load(x, [i]));\n}\n");
    let table = [
        ("check bad.rs", 3, "bad.rs:3:13"),
        ("inspect bad.rs", 3, "error(s) in bad.rs"),
        ("inspect two.rs", 3, "holds several kernels (a, b)"),
        ("inspect two.rs:c", 3, "no kernel `c` in two.rs; there is a, b"),
        ("inspect atention", 3, "no kernel `atention`"),
        ("check absent.rs", 10, "failed to read kernel file absent.rs"),
        ("inspect attention --schedule blok_m=64", 5, "unknown knob `blok_m`; the knobs are block_m"),
        ("inspect attention --schedule splits=2", 5, "knob `splits` has a new name, `split_k`: write `split_k=2`"),
        ("inspect attention --schedule order=longest_first", 5, "has a new name, `lpt`: write `order=lpt`"),
        ("inspect attention --schedule swizzle=fast", 5, "`fast` is not a value of knob `swizzle`"),
        ("inspect attention --schedule block_m=100", 5, "block_m=100 is not a multiple of 16"),
        ("inspect attention --arch sm_75 --dtype bf16", 5, "sm_75 has no bf16"),
        ("inspect attention --arch sm_42", 6, "`sm_42` is not an architecture; expected sm_75"),
        ("inspect attention --set E=1", 2, "has no size or scalar `E`; it has D, B, H, M, G, N, scale"),
        ("bench attention", 2, "needs the sizes B, H, M, G, N"),
        ("bench attention --shape B=x", 2, "`x` is not a number that `B` can be"),
        ("tune attention --budget soon", 2, "is not a time"),
        ("bench attention --shape B=1,H=1,G=1,M=1,N=1 --device gpu", 2, "`gpu` is not a device"),
        ("bench attention --shape B=1,H=1,G=1,M=1,N=1 --device cuda:4096", 6, ""),
        ("bench attention --shape B=1,H=1,G=1,M=1,N=1 --device cpu --arch sm_80", 2, "compiles nothing"),
        ("verify attention --device cpu --schedule stages=1", 2, "compiles nothing"),
        ("verify --all --schedules 3 --device cpu", 2, "cpu compiles nothing, so schedules do not matter there"),
        ("verify --all --schedules 3 --schedule stages=1", 2, "cannot be used with"),
        ("verify own.rs --schedules 3 --device cpu", 2, "cpu compiles nothing, so schedules do not matter there"),
        ("verify own.rs --schedules 3 --device emulator --against cpu", 2, "--against compares cases of the suite"),
        ("verify --all --schedules 1 --list --arch sm_75 --filter /bf16/ --device cpu", 5, "sm_75 has no bf16"),
        ("inspect attention --arch sm_80 --tuned", 2, "run `flashtile tune attention --set D=64 --arch sm_80 --shape B="),
        ("inspect two.rs:b --dtype f16 --arch sm_80 --tuned", 2, "run `flashtile tune two.rs:b --dtype f16 --arch sm_80"),
        ("inspect attention --emit ir --schedule stages=1", 2, "--schedule has no meaning here"),
        ("inspect attention --emit text --tuned", 2, "--tuned has no meaning here"),
        ("inspect attention --emit text --as-launched", 2, "--as-launched has no meaning here"),
        ("inspect attention --as-launched --schedule stages=1", 2, "cannot be used with"),
        ("check atention", 3, "no kernel `atention`"),
        ("check atention.rs", 10, "atention.rs"),
        ("verify attention --as atention --device cpu", 2, "--as atention: the suite has no kernel of this name"),
        ("verify row_argmax --grad x --device cpu", 2, "has no output of floats, and so no gradient"),
        ("verify attention --device emulator --emulate seed=1,seed=2", 2, "`seed` is given more than once"),
        ("verify --all --device cpu --filter nothing_has_this_name", 2, "no case of the suite is left"),
        ("verify", 2, "required"),
        ("frobnicate", 2, "unrecognized subcommand"),
    ];
    for (arguments, code, text) in table {
        sandbox.run(arguments).fails_with(code, text);
    }
}

#[test]
fn compilers_that_are_missing_or_no_compilers() {
    let sandbox = Sandbox::new();
    let compile = "inspect attention --emit ptx --arch sm_80";
    sandbox.run(compile).fails_with(7, "failed to load /nonexistent/libnvrtc.so.13");
    sandbox.write("libnvrtc.so.13", "no library");
    sandbox.run(&format!("{compile} --nvrtc libnvrtc.so.13")).fails_with(7, "libnvrtc.so.13");
    let shown = sandbox.run("inspect attention --emit resources --arch sm_80");
    assert!(shown.stdout.contains("registers of a thread"), "the prediction needs no compiler: {}", shown.stdout);
    shown.fails_with(7, "failed to load");
    sandbox.run("tune attention --arch sm_80 --shape B=1,H=1,G=1,M=64,N=64").fails_with(7, "failed to load");
}

/// Needs a C compiler, as linking any Rust program does.
#[test]
#[cfg(target_os = "linux")]
fn a_compiler_of_the_wrong_version_is_refused() {
    let sandbox = Sandbox::new();
    // A library with the functions of NVRTC that says it is version 11.2.
    let others = ["nvrtcCreateProgram", "nvrtcDestroyProgram", "nvrtcCompileProgram", "nvrtcGetErrorString"];
    let more =
        ["nvrtcGetCUBINSize", "nvrtcGetCUBIN", "nvrtcGetPTXSize", "nvrtcGetPTX", "nvrtcGetProgramLogSize", "nvrtcGetProgramLog"];
    let mut source = "int nvrtcVersion(int *major, int *minor) { *major = 11; *minor = 2; return 0; }\n".to_owned();
    others.iter().chain(&more).for_each(|name| source.push_str(&format!("int {name}(void) {{ return 1; }}\n")));
    sandbox.write("old.c", source);
    let compiled = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o", "libnvrtc.so.13", "old.c"])
        .current_dir(sandbox.path())
        .status()
        .expect("a C compiler");
    assert!(compiled.success());
    let library = sandbox.path().join("libnvrtc.so.13");
    let refused = sandbox
        .run_with("inspect attention --emit ptx --arch sm_80", &[("FLASHTILE_NVRTC", library.to_str().expect("a path of text"))]);
    refused.fails_with(7, "NVRTC 11.2 at");
    assert!(refused.stderr.contains("unset FLASHTILE_NVRTC"), "{}", refused.stderr);
}

#[test]
fn with_json_errors_are_objects() {
    let sandbox = Sandbox::new();
    let failed = sandbox.run("inspect attention --schedule stages=99 --json");
    let error: serde_json::Value = serde_json::from_str(failed.stderr.trim()).expect("one object");
    assert_eq!((failed.code, error["error"]["exit_code"].as_i64()), (5, Some(5)));
    assert_eq!(error["error"]["kind"], "schedule");
    assert_eq!(failed.stdout, "");
}

/// Also where the command line cannot be read.
#[test]
fn with_json_errors_of_the_command_line_are_objects() {
    let sandbox = Sandbox::new();
    let table = [
        ("frobnicate --json", "unrecognized subcommand 'frobnicate'"),
        ("--json cache", "the command line is not complete; `flashtile --help` lists the verbs"),
        ("--json", "'flashtile' requires a subcommand"),
        ("tune attention --json --budget soon", "invalid value 'soon' for '--budget <TIME>': `soon` is not a time"),
        ("tune --json row_softmax --jobs 0", "invalid value '0' for '--jobs <N>'"),
        ("inspect attention --emti plan --json", "unexpected argument '--emti' found"),
        ("tune --json", "the following required arguments were not provided"),
    ];
    for (arguments, message) in table {
        let failed = sandbox.run(arguments);
        let error: serde_json::Value = serde_json::from_str(failed.stderr.trim()).expect(&failed.stderr);
        let found = (failed.code, error["error"]["exit_code"].as_i64(), error["error"]["kind"].as_str());
        assert_eq!(found, (2, Some(2), Some("usage")), "{arguments}");
        let told = error["error"]["message"].as_str().expect("a message");
        assert!(told.starts_with(message) && !told.contains("Usage:"), "{arguments}: {told}");
        assert_eq!(failed.stdout, "", "{arguments}");
    }
    // Help and the version are no errors, and a name behind `--` is no flag.
    assert!(sandbox.run("--help --json").succeeds().contains("Exit codes:"));
    let plain = sandbox.run("check --unknown -- --json");
    assert!(plain.code == 2 && plain.stderr.starts_with("error: "), "{}", plain.stderr);
}

#[test]
fn a_damaged_entry_and_a_foreign_export_are_told() {
    let sandbox = Sandbox::new();
    let modules = sandbox.path().join("cache/modules");
    std::fs::create_dir_all(&modules).expect("a directory");
    std::fs::write(modules.join("0123.entry"), "not an entry").expect("writes");
    let listed = sandbox.run("cache list").succeeds().lines().map(|line| line.trim_matches(['│', ' '])).collect::<String>();
    assert!(listed.replace(' ', "").contains("cache/modules/0123.entry"), "{listed}");
    sandbox.run("cache verify").fails_with(13, "1 damaged entries");
    sandbox.run("cache verify").succeeds();
    sandbox.write("foreign.bin", "something else");
    sandbox.run("cache import foreign.bin").fails_with(13, "cannot be imported");
}

/// Where there is no GPU: the message says what to do.
#[test]
fn no_gpu_is_an_error_that_says_what_to_do() {
    let sandbox = Sandbox::new();
    let shape = "--shape B=1,H=1,G=1,M=64,N=64";
    sandbox.run(&format!("bench attention --device cuda:4096 {shape}")).fails_with(6, "device cpu");
    let tune = sandbox.run(&format!("tune attention --device cuda:4096 {shape}"));
    tune.fails_with(6, "or give --arch sm_90a");
    assert!(!tune.stderr.contains("device cpu"), "nothing is tuned there: {}", tune.stderr);
    for device in ["cpu", "emulator"] {
        let refused = sandbox.run(&format!("tune attention --device {device} {shape}"));
        refused.fails_with(2, &format!("{device} has no architecture to tune for; name one (`--arch sm_90a` of the command)"));
    }
}

/// Without looking at candidates, and with the sizes given.
#[test]
fn what_no_launch_could_do_is_told_before_tuning() {
    let sandbox = Sandbox::new();
    let text = "pub fn blocks(x: &Tensor<f32, (N)>, block: i32, y: &mut Tensor<f32, (N)>) {
            let i = program(tiles(N));
            store(y, [i], mask(load(x, [i]), pos(i) / block > 0));
        }";
    sandbox.write("blocks.rs", text);
    let told = "kernel `blocks` divides by `block` in line 3, which is 0; sizes are N = 512, block = 0";
    for verb in ["bench", "verify"] {
        sandbox.run(&format!("{verb} blocks.rs --device cpu --set block=0 --shape N=512")).fails_with(4, told);
    }
    sandbox.run("tune blocks.rs --arch sm_80 --set block=0 --shape N=512").fails_with(4, told);
    sandbox.run("tune blocks.rs --arch sm_80 --set block=4 --shape N=512").fails_with(7, "failed to load");
}

#[test]
fn plans_of_another_kernel_and_edits_without_effect_are_told() {
    let sandbox = Sandbox::new();
    let target = "--dtype f16 --set D=64 --arch sm_80 --schedule block_m=64";
    let plan = sandbox.run(&format!("inspect causal_attention --emit plan {target}")).succeeds().to_owned();
    sandbox.write("right.plan", &plan);
    // Of this text most lines of the other are not there.
    sandbox.write("short.rs", "pub fn short<T: Element, const D: usize>(x: &Tensor<T, (N, D)>, y: &mut Tensor<T, (N, D)>) {\nlet i = program(tiles(N));\nstore(y, [i, ..], load(x, [i, ..])); }");
    let other = "inspect short.rs --emit cuda --plan right.plan --dtype f16 --set D=64";
    sandbox.run(other).fails_with(3, "the plan is of `causal_attention` with T = f16, D = 64, not of `short`");
    let inspect = "inspect causal_attention --dtype f16 --set D=64 --emit cuda";
    sandbox.run(&format!("{inspect} --plan right.plan")).succeeds();
    let line = "programs params.B * params.H * ((params.M + 63) / 64), once";
    assert!(plan.contains(line), "{plan}");
    sandbox.write("wrong.plan", plan.replace(line, "programs params.B, once"));
    let told = sandbox.run(&format!("{inspect} --plan wrong.plan"));
    told.fails_with(2, &format!("`programs params.B, once` would change nothing, since the launch has a block for each of its programs; write `{line}`"));
}

#[test]
fn a_schedule_of_a_file_is_named_by_its_line() {
    let sandbox = Sandbox::new();
    sandbox.write("some.txt", "# of warps\nwarps=4\nblok_m=64\n");
    let tune = "tune attention --arch sm_80 --shape B=1,H=1,G=1,M=64,N=64 --schedules some.txt";
    sandbox.run(tune).fails_with(5, "some.txt:3: unknown knob `blok_m`");
}

/// Others could put code into such a cache that runs as whoever uses it.
#[test]
#[cfg(unix)]
fn a_cache_that_others_can_write_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = Sandbox::new();
    let cache = sandbox.path().join("cache");
    std::fs::create_dir_all(&cache).expect("a directory");
    let allow = |mode| std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(mode)).expect("sets");
    for mode in [0o775, 0o777, 0o1777] {
        allow(mode);
        for verb in ["list", "verify", "clear", "export all.bin"] {
            let refused = sandbox.run(&format!("cache {verb}"));
            refused.fails_with(13, "can be written by others");
            assert!(refused.stderr.contains(&format!("chmod go-w {}", cache.display())), "{}", refused.stderr);
        }
        let doctor = sandbox.run("doctor");
        assert!(doctor.stdout.contains("can be written by"), "{}", doctor.stdout);
        let trusted = sandbox.run_with("cache list", &[("FLASHTILE_TRUST_CACHE", "1")]);
        trusted.succeeds();
    }
    assert!(!sandbox.path().join("all.bin").exists());
    allow(0o755);
    sandbox.run("cache list").succeeds();
}

#[test]
#[cfg(target_os = "linux")]
fn nothing_in_the_cache_stops_or_hangs_it() {
    let sandbox = Sandbox::new();
    let modules = sandbox.path().join("cache/modules");
    std::fs::create_dir_all(modules.join("0.entry/full")).expect("a directory");
    std::os::unix::fs::symlink("1.entry", modules.join("1.entry")).expect("links");
    std::os::unix::fs::symlink("/dev/zero", modules.join("2.entry")).expect("links");
    assert!(std::process::Command::new("mkfifo").arg(modules.join("3.entry")).status().expect("runs").success());
    assert!(std::process::Command::new("mkfifo").arg(sandbox.path().join("cache/tuning")).status().expect("runs").success());
    // The FIFO in the place of a directory stops what a person asks for, with an error, and nothing else.
    sandbox.run("cache list").fails_with(13, "tuning is a FIFO, not a directory");
    std::fs::remove_file(sandbox.path().join("cache/tuning")).expect("removes");
    let list = sandbox.run("cache list");
    for what in ["a directory, not a", "a symbolic link, not a", "a FIFO, not a"] {
        assert!(list.succeeds().replace("\n", " ").contains(what), "{}", list.stdout);
    }
    sandbox.run("cache export all.bin").succeeds();
    sandbox.run("cache verify").fails_with(13, "4 damaged entries");
    let clear = sandbox.run("cache clear");
    assert!(clear.succeeds().contains("removed 3 entries"), "{}", clear.stdout);
    assert!(clear.stderr.contains("remove it by hand"), "a directory that holds something stays: {}", clear.stderr);
    sandbox.run("cache clear").succeeds();
}

#[test]
#[cfg(target_os = "linux")]
fn out_replaces_files_and_writes_through_the_rest() {
    let sandbox = Sandbox::new();
    let at = |name: &str| sandbox.path().join(name);
    let ir = "inspect attention --emit ir --out";
    let text = sandbox.run("inspect attention --emit ir").succeeds().to_owned();
    let through = sandbox.run(&format!("{ir} /dev/stdout"));
    assert_eq!(through.succeeds(), text);
    sandbox.run(&format!("{ir} /dev/null")).succeeds();
    assert!(std::os::unix::fs::FileTypeExt::is_char_device(&std::fs::metadata("/dev/null").expect("there").file_type()));
    std::os::unix::fs::symlink("real.txt", at("link.txt")).expect("links");
    sandbox.run(&format!("{ir} link.txt")).succeeds();
    assert!(at("link.txt").is_symlink() && std::fs::read_to_string(at("real.txt")).expect("written") == text);
    assert!(std::process::Command::new("mkfifo").arg(at("fifo")).status().expect("runs").success());
    let reader = std::thread::spawn({
        let fifo = at("fifo");
        move || std::fs::read_to_string(fifo).expect("reads")
    });
    sandbox.run(&format!("{ir} fifo")).succeeds();
    assert_eq!(reader.join().expect("ends"), text);
    std::fs::create_dir(at("folder")).expect("creates");
    sandbox.run(&format!("{ir} folder")).fails_with(10, "it is a directory");
    sandbox.run("cache export folder").fails_with(10, "it is a directory");
    // Tensors on standard output, and nothing else there.
    let (q, k) = (f16(&[1, 2, 5, 16]), f16(&[1, 1, 7, 16]));
    sandbox.write("in.safetensors", file(&[named("q", q), named("k", k.clone()), named("v", k)]));
    sandbox.run(RUN).succeeds();
    let written = std::fs::read(at("out.safetensors")).expect("written");
    let run = std::process::Command::new(env!("CARGO_BIN_EXE_flashtile"))
        .args(RUN.replace("out.safetensors", "/dev/stdout").split_whitespace())
        .current_dir(sandbox.path())
        .env("FLASHTILE_CACHE", at("cache"))
        .output()
        .expect("runs");
    assert_eq!(run.stdout, written);
}

#[test]
fn sizes_beyond_memory_are_an_error_on_every_device() {
    let sandbox = Sandbox::new();
    let huge = "B=64,H=64,G=64,M=2000000000,N=2000000000";
    let long = "B=1,H=1,G=1,M=1,N=2000000000"; // the tensors of one head, and the oracle beside them
    for shape in [huge, long] {
        for verb in ["bench attention --device cpu", "verify attention --device cpu"] {
            sandbox.run(&format!("{verb} --set D=256 --shape {shape}")).fails_with(9, "out of memory on cpu");
        }
    }
    let overflow = "B=2000000000,H=2000000000,G=2000000000,M=2000000000,N=2000000000";
    sandbox.run(&format!("bench attention --device cpu --shape {overflow}")).fails_with(9, "");
}

#[test]
fn costs_of_a_million_keys_are_known_at_once() {
    let sandbox = Sandbox::new();
    for kernel in ["attention", "causal_attention"] {
        let start = std::time::Instant::now();
        let cost = format!("inspect {kernel} --emit cost --arch sm_90a --shape B=1,H=32,G=4,M=1048576,N=1048576,D=128");
        assert!(sandbox.run(&cost).succeeds().contains("dot FLOPs"));
        assert!(start.elapsed().as_secs() < 30, "{kernel}: {:?}", start.elapsed());
    }
}

#[test]
fn a_name_is_given_one_value() {
    let sandbox = Sandbox::new();
    for (flags, twice) in [
        ("--set D=64 --set D=128", "D"),
        ("--set D=64,D=64", "D"),
        ("--shape M=1,N=2,M=3", "M"),
        ("--shape M=1 --shape M=2", "M"),
        ("--set D=64 --shape M=1,D=128", "D"),
        ("--schedule stages=1,block_m=64,stages=2", "stages"),
    ] {
        let expected = format!("`{twice}` is given more than once");
        sandbox.run(&format!("inspect attention --arch sm_80 {flags}")).fails_with(2, &expected);
    }
}

#[test]
fn outputs_replace_no_inputs_and_sizes_that_do_not_divide_are_told() {
    let sandbox = Sandbox::new();
    let halves = "pub fn halves(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N / 2)>) {
            let n = program(N / 2);
            store(y, [n], load(x, [n * 2]));
        }
        pub fn longer(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N, K)>) {
            let i = program(tiles(N));
            for k in tiles(K) { store(y, [i, k], load(x, [i]) + zeros((i, k))); }
        }";
    sandbox.write("halves.rs", halves);
    let input = file(&[("x", Dtype::F32, vec![5], vec![0; 20])]);
    sandbox.write("in.safetensors", &input);
    let of = |kernel: &str, out: &str| format!("run halves.rs:{kernel} --device cpu --in in.safetensors --out {out}");
    sandbox.run(&of("halves", "in.safetensors")).fails_with(2, "is the file of the inputs");
    assert_eq!(std::fs::read(sandbox.path().join("in.safetensors")).expect("is there"), input);
    sandbox.run(&of("halves", "out.safetensors")).fails_with(4, "N / 2, which is no whole number of elements where N=5");
    sandbox.run(&of("longer", "out.safetensors")).fails_with(4, "no input determines K; give --set K=..");
}

#[test]
fn numbers_that_ask_for_nothing_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.run("tune row_softmax --device cpu --shape M=8,N=8 --jobs 0").fails_with(2, "--jobs");
    sandbox.run("tune row_softmax --device cpu --shape M=8,N=8 --max-candidates 0").fails_with(2, "--max-candidates");
    sandbox.run("bench row_softmax --device cpu --shape M=8,N=8 --repetitions 0").fails_with(2, "--repetitions");
    sandbox.run("verify attention --device cpu --set scale=1e400").fails_with(2, "`1e400` is not a number");
    sandbox.run("verify row_softmax --device cpu --dtype f16").fails_with(2, "give --shape with --set and --dtype");
}

#[test]
fn a_kernel_is_checked_as_one_of_the_same_parameters() {
    let sandbox = Sandbox::new();
    let text = "pub fn softmax<T: Element>(x: &Tensor<T, (M, N)>, y: &mut Tensor<f32, (M, N)>) {
            let i = program(tiles(M));
            for j in tiles(N) { store(y, [i, j], load(x, [i, j]) + 0.0); }
        }";
    sandbox.write("own.rs", text);
    let wrong = sandbox.run("verify own.rs --as row_softmax --device cpu --small");
    wrong.fails_with(2, "parameter 2 is &mut Tensor of f32 with 2 dimensions, and of `row_softmax` &mut Tensor of T");
}

#[test]
fn outputs_of_a_gradient_may_be_named_in_any_order() {
    let sandbox = Sandbox::new();
    let text =
        "pub fn both(x: &Tensor<f32, (M, N)>, w: &Tensor<f32, (N)>, y: &mut Tensor<f32, (M)>, z: &mut Tensor<f32, (M, N)>) {
            let i = program(tiles(M));
            let mut s = zeros(i);
            for j in tiles(N) { s += rowsum(load(x, [i, j]) * load(w, [j])); }
            store(y, [i], s);
            for j in tiles(N) { store(z, [i, j], load(x, [i, j]) * tanh(s)); }
        }";
    sandbox.write("both.rs", text);
    for flags in ["--grad x,w --grad-from y,z", "--grad w,x,x --grad-from z,y,z"] {
        let checked = sandbox.run(&format!("verify both.rs {flags} --dtype f32 --device cpu --filter N=67"));
        assert!(checked.succeeds().contains("slope of w right"), "{}", checked.stdout);
    }
}
