//! Integers in compiled code: indices, positions and elements, at the edges of 32 bits, against the meaning in code.
//! Executed on the emulator; needs NVRTC, no GPU.

use flashtile::device::Emulation;
use flashtile::emulator::Options;
use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Arch, Argument, Device, Elem, Kernel, LaunchOptions, LoadedKernel, f16};
use flashtile_dsl::ir::SourceText;

/// A tensor of the host.
struct Host {
    elem: Elem,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn ints(shape: &[usize], values: impl IntoIterator<Item = i32>) -> Host {
    let bytes: Vec<u8> = values.into_iter().flat_map(i32::to_le_bytes).collect();
    assert_eq!(bytes.len(), 4 * shape.iter().product::<usize>());
    Host { elem: Elem::I32, shape: shape.to_vec(), bytes }
}

fn halves(shape: &[usize], values: impl Fn(usize) -> f32) -> Host {
    let count = shape.iter().product();
    let bytes = (0..count).flat_map(|n| f16::from_f32(values(n)).to_le_bytes()).collect();
    Host { elem: Elem::F16, shape: shape.to_vec(), bytes }
}

fn load(text: &str, device: &Device, arch: &'static str, schedule: Option<&str>) -> LoadedKernel {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).expect("well formed").remove(0);
    let consts = kernel.ir().sizes.values().filter(|s| s.name == "D").map(|s| (s.name.clone(), 64)).collect::<Vec<_>>();
    let options = LaunchOptions {
        toolchain: Toolchain::shared(),
        arch: Arch::named(arch).filter(|_| !device.to_string().starts_with("cpu")),
        schedule: schedule.map(|s| s.parse().expect("a schedule")),
        emulation: Emulation { options: Options::default(), ..Emulation::default() },
        ..LaunchOptions::default()
    };
    kernel.bind(Elem::F16, consts).expect("binds").on_with(device, options).expect("loads")
}

/// The f32 output (the last parameter) of a launch with these tensors, and these i32 scalars after them.
fn outputs(kernel: &LoadedKernel, inputs: &[Host], scalars: &[i32], shape: &[usize]) -> Vec<f32> {
    let device = kernel.device();
    let tensors: Vec<AnyTensor> =
        inputs.iter().map(|t| AnyTensor::from_bytes(device, t.elem, &t.shape, &t.bytes).expect("fits")).collect();
    let output = AnyTensor::zeros(device, Elem::F32, shape).expect("fits");
    let mut arguments: Vec<Argument<'_>> = tensors.iter().map(Argument::from).collect();
    arguments.extend(scalars.iter().map(|&x| Argument::from(x)));
    arguments.push(Argument::Output(&output));
    kernel.launch(&arguments).unwrap_or_else(|error| panic!("on {device}: {error}"));
    let bytes = output.to_bytes().expect("is read");
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

/// Whether compiled code gives what the CPU gives; the number of variants that had wide index arithmetic.
fn agree(text: &str, archs: &[&'static str], schedule: Option<&str>, calls: &[(&[Host], &[i32], &[usize])]) -> usize {
    let mut wide = 0;
    let reference = load(text, &Device::cpu(), "sm_80", None);
    for &arch in archs {
        let compiled = load(text, &Device::emulator(), arch, schedule);
        for (inputs, scalars, shape) in calls {
            let expected = outputs(&reference, inputs, scalars, shape);
            let found = outputs(&compiled, inputs, scalars, shape);
            let differ = expected
                .iter()
                .zip(&found)
                .position(|(a, b)| (a - b).abs() > 2e-3 * a.abs().max(1.0) || a.is_nan() != b.is_nan());
            let shapes: Vec<_> = inputs.iter().map(|t| &t.shape).collect();
            let values = differ.map(|at| (expected[at], found[at]));
            assert_eq!(differ, None, "on {arch} under {schedule:?} with {shapes:?} and {scalars:?}: {values:?}");
        }
        wide += compiled.variants().iter().filter(|v| v.facts.wide).count();
    }
    wide
}

#[test]
fn products_of_indices_are_exact_beyond_32_bits() {
    // h * N * N / N / N is h, for which h * N * N must be exact: 2^31 lies between the squares of these sizes.
    let text = "pub fn f(x: &Tensor<i32, (H)>, n: &Tensor<i32, (N)>, o: &mut Tensor<f32, (H)>) {
        let h = program(H);
        let g = h * N * N / N / N;
        store(o, [h], (load(x, [g]) + load(n, [h * N % N])).to::<f32>());
    }";
    let call = |n: usize| [ints(&[2], [3, 5]), ints(&[n], (0..n as i32).map(|i| i % 7))];
    for (n, wide) in [(46_340, 0), (46_341, 1)] {
        assert_eq!(agree(text, &["sm_80"], None, &[(&call(n), &[], &[2])]), wide, "N = {n}");
    }
}

/// A mask whose bound comes as a scalar, or is loaded, and is so far off that a tile's first position cannot be subtracted from it.
#[test]
fn bounds_of_masks_may_be_as_far_as_an_i32_is() {
    let text = |keep: &str, parameters: &str| {
        format!(
            "pub fn f<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, {parameters}, o: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let q_i = load(q, [i, ..]);
                let mut m = zeros(i);
                for j in tiles(N) {{
                    let s = exp(mask(dot(q_i, load(k, [j, ..]).t()) * 0.125, {keep}));
                    m = m + rowsum(s);
                }}
                store(o, [i], m);
            }}"
        )
    };
    let matrices = || vec![halves(&[150, 64], |n| (n % 13) as f32 / 16.0), halves(&[200, 64], |n| (n % 11) as f32 / 16.0)];
    let scalars = matrices();
    let windows: Vec<[i32; 1]> = [i32::MAX, i32::MIN + 256, 1, 17, 0, -3].map(|w| [w]).to_vec();
    let calls: Vec<(&[Host], &[i32], &[usize])> = windows.iter().map(|w| (&scalars[..], &w[..], &[150usize][..])).collect();
    for keep in ["pos(j) > pos(i) - w / 2", "pos(j) <= w", "w > pos(j)", "pos(j) >= w", "abs(pos(i) - pos(j)) < w"] {
        let wide = agree(&text(keep, "w: i32"), &["sm_80"], Some("block_m=64,block_n=64"), &calls);
        assert!(wide <= 1, "{wide} variants of one width");
    }
    for length in [i32::MAX, i32::MIN, 0, 1, 100, 200] {
        let mut inputs = matrices();
        inputs.push(ints(&[1], [length]));
        for keep in ["pos(j) < load(len, [0])", "pos(j) <= load(len, [0])", "load(len, [0]) < pos(j)"] {
            let call: [(&[Host], &[i32], &[usize]); 1] = [(&inputs, &[], &[150])];
            agree(&text(keep, "len: &Tensor<i32, (L)>"), &["sm_80"], Some("block_m=64,block_n=64"), &call);
        }
    }
}

#[test]
fn integer_tiles_are_operands_of_products() {
    let (right, left) = (include_str!("../kernels/i32.rs"), include_str!("../kernels/i32l.rs"));
    // Integers that are computed with before they are converted, beyond what an f32 holds.
    let computed = "pub fn f<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<i32, (N, D)>, r: &Tensor<i32, (N)>, o: &mut Tensor<f32, (M, N)>) {
        let (i, j) = program(tiles(M), tiles(N));
        let k_j = (load(k, [j, ..]) * 20000001 + load(r, [j])) % 7;
        store(o, [i, j], dot(load(q, [i, ..]), k_j.to::<T>().t()));
    }";
    let small = |n: usize| (n as i32 * 7) % 11 - 5;
    for (m, n) in [(64, 64), (70, 33)] {
        let floats = |rows: usize| halves(&[rows, 64], |n| (n % 9) as f32 / 8.0 - 0.5);
        let whole = |rows: usize| ints(&[rows, 64], (0..rows * 64).map(small));
        let archs = ["sm_75", "sm_80", "sm_90a"];
        agree(right, &archs, None, &[(&[floats(m), whole(n)], &[], &[m, n])]);
        agree(left, &archs, None, &[(&[whole(m), floats(n)], &[], &[m, n])]);
        let rows = ints(&[n], (0..n as i32).map(|r| r * 1_000_003));
        agree(computed, &archs, None, &[(&[floats(m), whole(n), rows], &[], &[m, n])]);
    }
}

/// Quotients and remainders by powers of two are computed as bits: of positions of rows and columns,
/// of what is made of them, and below 0.
#[test]
fn bits_of_positions_are_quotients_and_remainders() {
    let text = "pub fn f<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut m = zeros(i);
        for j in tiles(N) {
            let of_rows = pos(i) / 16 * 8 + pos(i) % 8 / 2 + pos(i) / 8 % 2 * 3 + (pos(i) - 70) / 4;
            let of_columns = pos(j) % 32 / 4 + pos(j) / 2 % 8 * 5 + (pos(j) - 20) / 16 * 3 + (pos(j) - 50) % 4;
            let both = (pos(i) + pos(j)) / 8 % 4 + (of_rows * of_columns) % 16;
            m = m + rowsum(dot(q_i, load(k, [j, ..]).t()) + (of_rows * 7 + of_columns * 3 + both).to::<f32>());
        }
        store(o, [i], m);
    }";
    let inputs = [halves(&[150, 64], |n| (n % 13) as f32 / 16.0), halves(&[200, 64], |n| (n % 11) as f32 / 16.0)];
    for (archs, schedule) in [
        (&["sm_75", "sm_80", "sm_90a"][..], None),
        (&["sm_80"], Some("block_m=64,block_n=48,warps=2")),
        (&["sm_90a"], Some("block_m=128,block_n=80,warps=8,tensor_op=wgmma,copy=tma")),
    ] {
        agree(text, archs, schedule, &[(&inputs, &[], &[150])]);
    }
}

/// A tile that is loaded before the outer of two loops, and read in the inner one, of which either makes no trip.
#[test]
fn a_tile_loaded_before_loops_that_make_no_trip_is_waited_for() {
    let nest = |outer: &str, inner: &str| {
        format!(
            "pub fn f<T: Element, const D: usize>(
                q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, w: &Tensor<T, (C, D)>, o: &mut Tensor<f32, (M, D)>
            ) {{
                let i = program(tiles(M));
                let q_i = load(q, [i, ..]);
                let mut acc = zeros((i, D));
                for c in tiles(C) {{
                    {outer}
                    for j in tiles(N) {{
                        {inner}
                        acc += dot(dot(q_i, load(k, [j, ..]).t()).to::<T>(), load(v, [j, ..]));
                    }}
                }}
                store(o, [i, ..], acc);
            }}"
        )
    };
    let schedules = [None, Some("stages=1,block_m=64,block_n=32"), Some("stages=3,block_m=64,block_n=32")];
    let tile = |rows: usize, step: usize| halves(&[rows, 64], move |n| (n % step) as f32 / 32.0);
    // The outer loop streams nothing, or a tile of its own.
    let own = "acc += dot(dot(q_i, load(w, [c, ..]).t()).to::<T>(), load(w, [c, ..]));";
    for (outer, inner) in [("", "let _unused = load(w, [c, ..]);"), (own, "")] {
        for schedule in schedules {
            let tensors = |c: usize, n: usize| [tile(20, 13), tile(n, 11), tile(n, 7), tile(c, 5)];
            let all = [(0, 33), (1, 0), (2, 0), (2, 33), (0, 0), (1, 40)].map(|(c, n)| tensors(c, n));
            let calls: Vec<(&[Host], &[i32], &[usize])> = all.iter().map(|t| (&t[..], &[][..], &[20usize, 64][..])).collect();
            agree(&nest(outer, inner), &["sm_80"], schedule, &calls);
        }
        agree(
            &nest(outer, inner),
            &["sm_75", "sm_90a", "sm_120"],
            None,
            &[(&[tile(20, 13), tile(33, 11), tile(33, 7), tile(0, 5)], &[], &[20, 64])],
        );
    }
}

#[test]
fn quotients_are_rounded_down_for_divisors_of_either_sign() {
    let text = "pub fn f(x: &Tensor<i32, (N)>, w: i32, o: &mut Tensor<f32, (N)>) {
        let n = program(N);
        let a = load(x, [n]);
        store(o, [n], (a / w * 100 + a % w + a / -5 + a % 3).to::<f32>());
    }";
    let x = [ints(&[15], -7..8)];
    let divisors: Vec<[i32; 1]> = [-4, -3, -1, 1, 2, 3, 7].map(|w| [w]).to_vec();
    let calls: Vec<(&[Host], &[i32], &[usize])> = divisors.iter().map(|w| (&x[..], &w[..], &[15usize][..])).collect();
    assert_eq!(agree(text, &["sm_80"], None, &calls), 0);
}

/// By a loaded 0 the quotient is 0, and the remainder what is divided, on every device.
#[test]
fn a_loaded_divisor_of_0_gives_0_and_all_as_the_rest() {
    let text = "pub fn f(x: &Tensor<i32, (M, N)>, y: &Tensor<i32, (M, N)>, t: &Tensor<i32, (2)>, o: &mut Tensor<f32, (M, N)>) {
        let (m, n) = program(M, tiles(N));
        let (a, b) = (load(x, [m, n]), load(y, [m, n]));
        let c = (m + 9) / load(t, [0]) * 10 + (m + 9) % load(t, [1]);
        store(o, [m, n], (a / b * 100 + a % b + select(b != 0, a / b, -7) * 1000 + c * 10000).to::<f32>());
    }";
    let inputs = [ints(&[3, 15], -20..25), ints(&[3, 15], (0..45).map(|n| n % 5 - 2)), ints(&[2], [0, 0])];
    assert_eq!(agree(text, &["sm_80", "sm_90a"], None, &[(&inputs, &[], &[3, 15])]), 0);
    let found = outputs(&load(text, &Device::cpu(), "sm_80", None), &inputs, &[], &[3, 15]);
    // -18 / 0 and 9 % 0 in the first row, -3 / 0 and 10 % 0 in the second.
    assert_eq!([found[2], found[17]], [-18.0 - 7000.0 + 90000.0, -3.0 - 7000.0 + 100_000.0]);
}

/// Masks of blocks whose size is loaded: where it is 0, bounds of loops are not those of size 1.
#[test]
fn masks_of_blocks_of_loaded_sizes_are_right_for_0_and_less() {
    for size in ["max(load(t, [0]), 0)", "load(t, [0])", "min(max(load(t, [0]), 0), N)"] {
        for keep in ["pos(i) / s == pos(j) / s", "pos(i) % s >= pos(j) % s", "pos(j) / s <= 2"] {
            let text = format!(
                "pub fn f<T: Element, const D: usize>(
                    q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, t: &Tensor<i32, (1)>, o: &mut Tensor<f32, (M)>,
                ) {{
                    let i = program(tiles(M));
                    let s = {size};
                    let mut sum = zeros(i);
                    for j in tiles(N) {{
                        sum += rowsum(select({keep}, dot(load(q, [i, ..]), load(k, [j, ..]).t()), 0.0));
                    }}
                    store(o, [i], sum);
                }}"
            );
            let matrices = || vec![halves(&[70, 64], |n| (n % 13) as f32 / 16.0), halves(&[330, 64], |n| (n % 11) as f32 / 16.0)];
            let inputs = [0, 1, 7, -3].map(|size| matrices().into_iter().chain([ints(&[1], [size])]).collect::<Vec<_>>());
            let calls: Vec<(&[Host], &[i32], &[usize])> = inputs.iter().map(|all| (&all[..], &[][..], &[70usize][..])).collect();
            agree(&text, &["sm_80"], None, &calls);
        }
    }
}

/// Arithmetic that mixes integers uses what it made several times, step after step: written out for
/// each use it would double with each step.
#[test]
fn integers_that_are_mixed_step_after_step_are_made_once() {
    let mixed = |steps: usize| {
        let step = "let v0 = v0 + ((v1 << 4) + seed ^ v1 + 17 ^ (v1 >> 5) + seed);
            let v1 = v1 + ((v0 << 4) + seed ^ v0 + 17 ^ (v0 >> 5) + seed);
            let odd = (v1 & 1 == 1 || odd) && !(odd && v0 & 4 == 4);";
        format!(
            "pub fn mixed<T: Element>(x: &Tensor<T, (M, N)>, seed: i32, y: &mut Tensor<f32, (M, N)>) {{
                let (i, j) = program(tiles(M), tiles(N));
                let (v0, v1) = (pos(i), pos(j) * 3);
                let odd = v0 > v1;
                {}
                store(y, [i, j], select(odd, load(x, [i, j]), (v0 & 65535).to::<f32>()));
            }}",
            step.repeat(steps)
        )
    };
    let x = [halves(&[5, 21], |n| n as f32 / 8.0)];
    agree(&mixed(16), &["sm_80"], None, &[(&x, &[77], &[5, 21])]);
}

/// Integers that leave 32 bits come back on the other side, in code that a compiler may not take for
/// integers that never do.
#[test]
fn integers_wrap_around() {
    let idioms = [
        "select(a + 1 > a, 1.0, 0.0)",
        "(a * 3 / 3).to::<f32>()",
        "(a * 6 % 3).to::<f32>()",
        "(a * 16777216 >> 24).to::<f32>()",
        "((a - 1) % 8).to::<f32>()",
        "(abs(a) / 3).to::<f32>()",
        "select(-a < 0, 1.0, 0.0)",
        "select(a - c < 0, 1.0, 0.0)",
        "select(a * 2 == c * 2, 1.0, 0.0)",
        "(max(a + 1, a) >> 16).to::<f32>()",
        "select(a + 10 > c + 10, 1.0, 0.0)",
        "(pos(i) * 1103515245 / 7).to::<f32>()",
        "(a % 3 + a % c * 0).to::<f32>()",
        "((a * w) / max(w, 1)).to::<f32>()",
    ];
    let edges = [0, 1, -1, 7, -8, 255, 65536, 1 << 30, -(1 << 30), i32::MAX, i32::MAX - 3, i32::MIN, i32::MIN + 1, 715_827_883];
    let n = edges.len();
    let pairs = || edges.iter().flat_map(|&a| edges.iter().map(move |&c| (a, c)));
    let inputs = [ints(&[n * n], pairs().map(|(a, _)| a)), ints(&[n * n], pairs().map(|(_, c)| c))];
    for chunk in idioms.chunks(7) {
        let rows: String = chunk.iter().enumerate().map(|(row, idiom)| format!("store(y, [{row}, i], {idiom});")).collect();
        let text = format!(
            "pub fn f(n: &Tensor<i32, (M)>, p: &Tensor<i32, (M)>, w: i32, y: &mut Tensor<f32, (R, M)>) {{
                let i = program(tiles(M));
                let a = load(n, [i]);
                let c = load(p, [i]) + w * 0;
                {rows}
            }}"
        );
        let call: [(&[Host], &[i32], &[usize]); 1] = [(&inputs, &[1_000_003], &[7, n * n])];
        agree(&text, &["sm_75", "sm_80", "sm_90a"], None, &call);
    }
}

/// An index that is loaded is moved into the dimension that it addresses, whatever it is.
#[test]
fn loaded_indices_stay_in_their_dimensions() {
    let indices = || ints(&[6], [9, -1, 2, i32::MAX, i32::MIN, 5]);
    let rows = halves(&[6, 70], |n| (n % 17) as f32 / 4.0);
    let read = "pub fn f<T: Element>(t: &Tensor<i32, (B)>, x: &Tensor<T, (R, M)>, y: &mut Tensor<f32, (B, M)>) {
        let (b, i) = program(B, tiles(M));
        store(y, [b, i], (load(x, [load(t, [b]), i]) + load(x, [load(t, [b]) * 2 + 1, i])).to::<f32>());
    }";
    let gather = "pub fn f<T: Element>(t: &Tensor<i32, (B)>, x: &Tensor<T, (R, M)>, y: &mut Tensor<f32, (B, M)>) {
        let (b, i) = program(B, tiles(M));
        store(y, [b, i], load(x, [load(t, [b]), pos(i) * 3 - 5]).to::<f32>());
    }";
    let add = "pub fn f<T: Element>(t: &Tensor<i32, (B)>, x: &Tensor<T, (B, M)>, y: &mut Tensor<f32, (R, M)>) {
        let (b, i) = program(B, tiles(M));
        add(y, [load(t, [b]), i], load(x, [b, i]));
    }";
    // Each program has a place of its own.
    let store = "pub fn f<T: Element>(t: &Tensor<i32, (B)>, x: &Tensor<T, (B, M)>, y: &mut Tensor<f32, (R, M)>) {
        let (b, i) = program(B, tiles(M));
        store(y, [load(t, [b]), i], load(x, [b, i]).to::<f32>());
    }";
    let apart = [ints(&[3], [9, -1, 2]), halves(&[3, 70], |n| (n % 19) as f32)];
    let all = [indices(), rows];
    for arch in ["sm_80", "sm_90a"] {
        for (text, inputs, shape) in
            [(read, &all[..], [6, 70]), (gather, &all, [6, 70]), (add, &all, [4, 70]), (store, &apart, [5, 70])]
        {
            agree(text, &[arch], None, &[(inputs, &[], &shape)]);
        }
    }
}

/// What is counted in a loop is an `i32`, whatever it is counted from.
#[test]
fn loops_carry_integers() {
    let text = "pub fn f(x: &Tensor<i32, (M)>, w: i32, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut c = 0;
        let mut last = M;
        for t in 0..5 {
            c += t * w;
            last = t;
        }
        store(y, [i], (load(x, [c % M]) + last * 1000 + c).to::<f32>());
    }";
    let call = [ints(&[40], (0..40).map(|n| n * n))];
    agree(text, &["sm_75", "sm_80", "sm_90a"], None, &[(&call, &[7], &[40]), (&call, &[-3], &[40])]);
}
