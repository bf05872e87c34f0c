//! The emulator as a device of the command. Needs NVRTC: found, or installed once into the cache of the machine.

use crate::support::Sandbox;

fn run(sandbox: &Sandbox, arguments: &str) -> crate::support::Outcome {
    sandbox.run_compiling(arguments)
}

#[test]
fn cases_and_drawn_schedules_pass_and_devices_agree() {
    let sandbox = Sandbox::new();
    let filter = "verify linear_attention --device emulator --arch sm_75 --filter linear_attention/f16";
    assert!(run(&sandbox, filter).succeeds().contains("cases passed on emulator (PTX emulator)"));
    let drawn = run(&sandbox, "verify linear_attention --small --device emulator --arch sm_80 --schedules 3 --seed 5");
    assert!(drawn.succeeds().contains("3 of 3 cases passed with schedules drawn with --seed 5"), "{}", drawn.stdout);
    let against = "verify linear_attention --small --device emulator --against cpu --arch sm_80 --schedules 3 --seed 5 --json";
    let lines = run(&sandbox, against).json();
    let exact = lines.iter().find(|line| line["kind"] == "exact").expect("a summary");
    assert_eq!((exact["cases"].as_u64(), exact["most_ulps"].as_u64()), (Some(3), Some(0)), "{exact}");
}

/// A text whose result depends on the size of tiles is right with one schedule and wrong with others.
#[test]
fn drawn_schedules_of_a_kernel_of_ones_own_find_what_one_schedule_does_not() {
    let sandbox = Sandbox::new();
    let kernel = |sum: &str| {
        format!(
            "pub fn sums(x: &Tensor<f32, (M, N)>, o: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let mut n = zeros(i);
                for j in tiles(N) {{ n = {sum} + rowsum(load(x, [i, j])); }}
                store(o, [i], n);
            }}"
        )
    };
    sandbox.write("right.rs", kernel("n"));
    sandbox.write("wrong.rs", kernel("n * 0.5"));
    let drawn = "--device emulator --arch sm_80 --shape M=33,N=200 --schedules 6 --seed 2";
    let right = run(&sandbox, &format!("verify right.rs {drawn}"));
    assert!(right.succeeds().contains("6 of 6 checks passed with schedules drawn with --seed 2"), "{}", right.stdout);
    let lines = run(&sandbox, &format!("verify right.rs {drawn} --json")).json();
    let summary = lines.last().expect("a summary");
    assert_eq!((&summary["judged"], &summary["cases"], &summary["wrong"]), (&6.into(), &6.into(), &0.into()), "{summary}");
    let wrong = run(&sandbox, &format!("verify wrong.rs {drawn}"));
    wrong.fails_with(8, "outputs are wrong");
    assert!(wrong.stdout.contains("schedule=") && wrong.stdout.contains("o wrong"), "{}", wrong.stdout);
}

#[test]
fn a_profile_counts_conflicts_by_line() {
    let sandbox = Sandbox::new();
    let profile = "inspect attention --emit profile --arch sm_80 --dtype f16 --shape B=1,H=1,G=1,M=64,N=64,D=64 --schedule \
                   tensor_op=mma_m16n8k16,block_m=64,block_n=64,warps=4,swizzle=";
    let plain = run(&sandbox, &format!("{profile}off"));
    assert!(plain.succeeds().contains("8-way") && plain.stdout.contains("|         for j in tiles(N) {"), "{}", plain.stdout);
    let swizzled = run(&sandbox, &format!("{profile}xor --json")).json();
    let total = &swizzled[0]["total"];
    assert_eq!(total["wavefronts"], total["ideal_wavefronts"], "{total}");
}

#[test]
fn edited_code_is_executed_and_its_race_told() {
    let sandbox = Sandbox::new();
    let shape = "--dtype f16 --shape B=1,H=1,G=1,M=64,N=128,D=64";
    let schedule =
        "--schedule tensor_op=mma_m16n8k16,block_m=64,block_n=64,warps=4,stages=1,running_max=exact,order=grid,min_blocks=0";
    let shown = run(&sandbox, &format!("inspect attention --emit cuda --arch sm_80 {shape} {schedule}"));
    // The text names every knob, so that the launch has the same ones.
    let knobs = shown.succeeds().lines().find_map(|line| line.strip_prefix("// schedule: ")).expect("in the header").to_owned();
    let (first, rest) = shown.stdout.split_once("__syncthreads();").expect("a barrier");
    sandbox.write("spoilt.cu", format!("{first}{rest}"));
    sandbox.write("same.cu", &shown.stdout);
    let verify = |code: &str| {
        run(&sandbox, &format!("verify attention --device emulator --arch sm_80 {shape} --schedule {knobs} --code {code}"))
    };
    assert!(verify("same.cu").succeeds().contains("o right"));
    let spoilt = verify("spoilt.cu");
    assert_eq!(spoilt.code, 8, "{}", spoilt.stderr);
    // A loop that never ends is told, after as many steps as the flag says: with the address that it reads, and with what is
    // there. The compiler keeps a local variable in a register, volatile or not, so that the second loop reads no memory.
    let endless = |code: &str| {
        sandbox.write("endless.cu", format!("{first}{{ {code} while (never == 0) {{}} }} __syncthreads();{rest}"));
        let endless = verify("endless.cu --max-steps 20000");
        assert_eq!(endless.code, 8, "{}", endless.stderr);
        assert!(endless.stderr.contains("for 20000 instructions"), "{}", endless.stderr);
        endless.stderr
    };
    let polls = endless("__shared__ volatile int never; if (threadIdx.x == 0) never = 0; __syncthreads();");
    assert!(polls.contains("endless loop at shared address"), "{polls}");
    assert!(polls.contains("it waits for another value than 0 here"), "{polls}");
    let spins = endless("volatile int never = 0;");
    assert!(spins.contains("endless loop in block") && spins.contains("reads no memory"), "{spins}");
    let lines = spoilt.stderr.lines().filter(|line| line.trim_start().starts_with("attention.rs:")).count();
    assert!(lines >= 2 && spoilt.stderr.contains("in block (0, 0, 0)"), "{}", spoilt.stderr);
}

/// What a loop carries without a product, with the rows inside the loop and around it. The sum and the maximum of one tile want its
/// padding to hold different things.
#[test]
fn rows_are_walked_inside_the_loop_and_around_it() {
    let sandbox = Sandbox::new();
    let text = "pub fn rows<T: Element>(
        x: &Tensor<T, (H, M, N)>, weight: &Tensor<T, (N)>, o: &mut Tensor<f32, (H, M)>, top: &mut Tensor<f32, (H, M)>,
    ) {
        let (h, i) = program(H, tiles(M));
        let mut sum = full(i, 2.0);
        let mut m = full(i, -INF);
        for j in tiles(N) {
            let x_ij = load(x, [h, i, j]) * load(weight, [j]);
            sum = sum + rowsum(x_ij);
            m = max(m, rowmax(x_ij));
        }
        store(o, [h, i], sum);
        store(top, [h, i], m);
    }";
    sandbox.write("rows.rs", text);
    for order in ["as_written", "interchanged"] {
        let command = "verify rows.rs:rows --device emulator --arch sm_80 --dtype f16 --shape H=2,M=100,N=152 --emulate order=random,seed=2";
        let launch = run(&sandbox, &format!("{command} --schedule block_m=32,block_n=32,warps=2,loop_order={order}"));
        let text = launch.succeeds();
        assert!(text.contains("o right") && text.contains("top right"), "{order}: {text}");
    }
}

#[test]
fn code_that_cannot_be_executed_is_the_users() {
    let sandbox = Sandbox::new();
    sandbox.write("bad.ptx", "this is no PTX");
    sandbox.write("other.ptx", ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry other()\n{\n  ret;\n}\n");
    for code in ["bad.ptx", "other.ptx"] {
        let verify = format!("verify attention --device emulator --arch sm_80 --shape B=1,H=1,G=1,M=16,N=16,D=16 --code {code}");
        run(&sandbox, &verify).fails_with(2, "the code that was given for `attention` cannot be executed");
    }
}

/// Compiled for Hopper and sorted: products, exponentials and sums stand in the lines that ask for
/// them.
#[test]
fn machine_instructions_are_told_by_line_and_kind() {
    let sandbox = Sandbox::new();
    let schedule = "--schedule defaults,block_m=64,block_n=64,warps=4,tensor_op=wgmma,copy=tma,running_max=max_first";
    let shown = run(&sandbox, &format!("inspect attention --emit instructions --arch sm_90a --set D=64 {schedule}"));
    let shown = shown.succeeds();
    let (_, found) = shown.split_once(" are exponentials, ").unwrap_or_else(|| panic!("no loop with exponentials:\n{shown}"));
    let each: f64 = found.split_whitespace().next().expect("a number").parse().expect("a number");
    assert!((3.5..12.0).contains(&each), "{shown}");
    let header = found.lines().find(|line| line.contains("product")).expect("a header");
    assert!(["special", "float", "convert", "wait"].iter().all(|kind| header.contains(kind)), "{shown}");
    for line in ["let p = exp(s", "let s = dot(q", "l = l * alpha", "acc = acc"] {
        assert!(found.lines().any(|row| row.contains(line)), "no `{line}` in\n{shown}");
    }
}
