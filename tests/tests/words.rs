//! Shapes and loops of the language in compiled code: the emulator gives what the formula says.
//! Needs NVRTC, no GPU.

use flashtile::toolchain::Toolchain;
use flashtile::{AnyTensor, Arch, Argument, Device, Elem, Kernel, LaunchOptions};
use flashtile_dsl::ir::SourceText;

/// The output of a kernel, its last parameter, on the CPU device and on the emulator of three
/// architectures. All tensors hold f32; const generics are 8.
fn outputs(text: &str, inputs: &[(Vec<usize>, Vec<f32>)], output: &[usize]) -> Vec<(String, Vec<f32>)> {
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).unwrap_or_else(|error| panic!("{error}")).remove(0);
    let run = |device: &Device, arch: Option<&'static str>| {
        let options =
            LaunchOptions { toolchain: Toolchain::shared(), arch: arch.and_then(Arch::named), ..LaunchOptions::default() };
        let consts: Vec<_> = kernel.ir().sizes.values().filter(|s| s.name == "D").map(|s| (s.name.clone(), 8)).collect();
        let bound = kernel.bind(Elem::F32, consts).expect("binds");
        let loaded = bound.on_with(device, options).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let bytes = |data: &[f32]| data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let tensor = |(shape, data): &(Vec<usize>, Vec<f32>)| AnyTensor::from_bytes(device, Elem::F32, shape, &bytes(data));
        let inputs: Vec<AnyTensor> = inputs.iter().map(|input| tensor(input).expect("fits")).collect();
        let output = AnyTensor::zeros(device, Elem::F32, output).expect("fits");
        let mut arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
        arguments.push(Argument::Output(&output));
        loaded.launch(&arguments).unwrap_or_else(|error| panic!("on {device}: {error}\n{text}"));
        floats_of(&output)
    };
    let mut found = vec![("cpu".to_owned(), run(&Device::cpu(), None))];
    for arch in ["sm_75", "sm_80", "sm_90a"] {
        found.push((arch.to_owned(), run(&Device::emulator(), Some(arch))));
    }
    found
}

/// What a tensor of f32 holds.
fn floats_of(tensor: &AnyTensor) -> Vec<f32> {
    let bytes = tensor.to_bytes().expect("is read");
    bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("four bytes"))).collect()
}

/// Small numbers, of which sums are exact.
fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|k| (k * 7 % 16) as f32 / 8.0 - 1.0).collect()
}

#[test]
fn dimensions_are_numbers_and_sums_of_sizes() {
    // No dimension is `N` alone: a launch finds it from `2 * N`.
    let text = "pub fn f<const D: usize>(
        x: &Tensor<f32, (2 * N, D + 1)>, w: &Tensor<f32, (64)>, z: &Tensor<f32, (2 * N, N + 3)>, y: &mut Tensor<f32, (2 * N, 2)>,
    ) {
        let i = program(tiles(2 * N));
        let (row, last) = (load(x, [i, ..D]), load(x, [i, D]));
        let mut sum = rowsum(load(x, [i, ..])) + rowsum(row) + last;
        for j in tiles(N + 3) {
            sum += rowsum(load(z, [i, j]));
        }
        store(y, [i, 0], sum);
        store(y, [i, 1], sum + rowsum(full((i, 64), 1.0) * load(w, [..])));
    }";
    let n = 37;
    let (x, w, z) = (numbers(2 * n * 9), numbers(64), numbers(2 * n * (n + 3)));
    let total: f32 = w.iter().sum();
    let row = |i: usize| {
        let sum: f32 = x[i * 9..i * 9 + 9].iter().sum();
        let along: f32 = z[i * (n + 3)..(i + 1) * (n + 3)].iter().sum();
        [2.0 * sum + along, 2.0 * sum + along + total]
    };
    let wanted: Vec<f32> = (0..2 * n).flat_map(row).collect();
    let inputs = [(vec![2 * n, 9], x.clone()), (vec![64], w.clone()), (vec![2 * n, n + 3], z.clone())];
    for (device, found) in outputs(text, &inputs, &[2 * n, 2]) {
        assert_eq!(found, wanted, "on {device}");
    }
}

#[test]
fn loops_walk_single_positions() {
    // A sum over the heads of a group, in a loop around one over tiles, from a start that is not 0.
    let text = "pub fn f<const D: usize>(x: &Tensor<f32, (G, R, M, D)>, y: &mut Tensor<f32, (G, R, D)>) {
        let g = program(G);
        let mut sum = zeros(D);
        for r in 1..R {
            for d in 0..D {
                sum += load(x, [g, r, 0, ..]) * load(x, [g, r - 1, M - 1, d]);
            }
            store(y, [g, r, ..], sum);
        }
        store(y, [g, 0, ..], sum);
    }";
    let (g, r, m, d) = (2, 3, 5, 8);
    let x = numbers(g * r * m * d);
    let at = |g: usize, head: usize, row: usize, c: usize| x[((g * r + head) * m + row) * d + c];
    let mut wanted = vec![0.0f32; g * r * d];
    for group in 0..g {
        for column in 0..d {
            let mut sum = 0.0;
            for head in 1..r {
                sum += (0..d).map(|c| at(group, head, 0, column) * at(group, head - 1, m - 1, c)).sum::<f32>();
                wanted[(group * r + head) * d + column] = sum;
            }
            wanted[group * r * d + column] = sum;
        }
    }
    for (device, found) in outputs(text, &[(vec![g, r, m, d], x.clone())], &[g, r, d]) {
        assert_eq!(found, wanted, "on {device}");
    }
}

#[test]
fn a_left_operand_may_be_transposed() {
    // What a gradient of weights is: the sum over tokens of the products of two features.
    let text = "pub fn tn(a: &Tensor<f32, (K, M)>, b: &Tensor<f32, (K, N)>, c: &mut Tensor<f32, (M, N)>) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut acc = zeros((i, j));
        for k in tiles(K) {
            acc += dot(load(a, [k, i]).t(), load(b, [k, j]));
        }
        store(c, [i, j], acc);
    }";
    let (k, m, n) = (37, 70, 24);
    let (a, b) = (numbers(k * m), numbers(k * n));
    let sum = |i: usize, j: usize| (0..k).map(|t| a[t * m + i] * b[t * n + j]).sum::<f32>();
    let wanted: Vec<f32> = (0..m * n).map(|at| sum(at / n, at % n)).collect();
    for (device, found) in outputs(text, &[(vec![k, m], a.clone()), (vec![k, n], b.clone())], &[m, n]) {
        assert_eq!(found, wanted, "{device}");
    }
}

#[test]
fn rows_that_a_loop_walks_may_be_reduced() {
    // Keys of length one, in the kernel: as operands, and as a factor of each column of scores.
    let head = "pub fn f<const D: usize>(
        q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, w: &Tensor<f32, (D)>, s: &mut Tensor<f32, (M)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut sum = zeros(i);
        for j in tiles(N) {
            let k_j = load(k, [j, ..]);
            BODY
        }
        store(s, [i], sum);
    }";
    let normed = "let k_n = k_j * rsqrt(rowsum(k_j * k_j) / D + 0.5) * load(w, [..]);
        sum += rowsum(dot(q_i, k_n.t()));";
    let scaled = "sum += rowsum(dot(q_i * load(w, [..]), k_j.t()) * rsqrt(rowsum(k_j * k_j) / D + 0.5));";
    let (m, n, d) = (33, 70, 8);
    let (q, k, w) = (numbers(m * d), numbers(n * d), numbers(d));
    let length = |j: usize| (k[j * d..][..d].iter().map(|x| x * x).sum::<f32>() / d as f32 + 0.5).sqrt();
    let score = |i: usize, j: usize| (0..d).map(|c| q[i * d + c] * w[c] * k[j * d + c]).sum::<f32>() / length(j);
    let wanted: Vec<f32> = (0..m).map(|i| (0..n).map(|j| score(i, j)).sum()).collect();
    for body in [normed, scaled] {
        let text = head.replace("BODY", body);
        for (device, found) in outputs(&text, &[(vec![m, d], q.clone()), (vec![n, d], k.clone()), (vec![d], w.clone())], &[m]) {
            let near = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-4;
            assert!(found.iter().zip(&wanted).all(near), "{device}: {found:?} for {wanted:?}\n{text}");
        }
    }
}

#[test]
fn rows_may_be_a_range() {
    // What linear attention keeps of the chunks before each, which a product of columns sums up.
    let text = "pub fn f<const D: usize>(
        k: &Tensor<f32, (B, R, C, D)>, v: &Tensor<f32, (B, R, C, D)>, w: &Tensor<f32, (D)>, st: &mut Tensor<f32, (B, R, D, D)>,
    ) {
        let b = program(B);
        let mut state = zeros((D, D));
        for c in 0..R {
            store(st, [b, c, .., ..], state * load(w, [..]));
            for j in tiles(C) {
                state += dot(load(k, [b, c, j, ..]).t(), load(v, [b, c, j, ..]));
            }
        }
    }";
    let (b, r, c, d) = (2, 3, 37, 8);
    let (k, v, w) = (numbers(b * r * c * d), numbers(b * r * c * d + 3)[3..].to_vec(), numbers(d));
    // A vector with the length of both dimensions goes with the first one.
    let state = |at: usize| {
        let (b, chunk, row, column) = (at / (r * d * d), at / (d * d) % r, at / d % d, at % d);
        let before = b * r * c..(b * r + chunk) * c;
        w[row] * before.map(|t| k[t * d + row] * v[t * d + column]).sum::<f32>()
    };
    let wanted: Vec<f32> = (0..b * r * d * d).map(state).collect();
    let shape = vec![b, r, c, d];
    for (device, found) in outputs(text, &[(shape.clone(), k.clone()), (shape, v.clone()), (vec![d], w)], &[b, r, d, d]) {
        assert_eq!(found, wanted, "{device}");
    }
}

#[test]
fn elements_are_added_where_positions_say() {
    // Several elements have one place, some of them positions beyond the ends; what a mask hides
    // goes nowhere, whatever it holds.
    let text = "pub fn f(
        x: &Tensor<f32, (B, M, N)>, of_row: &Tensor<i32, (B, M)>, of_column: &Tensor<i32, (N)>,
        rows: &mut Tensor<f32, (K)>, columns: &mut Tensor<f32, (B, K)>, far: &mut Tensor<f32, (2, 2 * K + 1)>,
        seen: &mut Tensor<f32, (K, K)>, count: &mut Tensor<f32, (K)>,
    ) {
        let (b, i) = program(B, tiles(M));
        let kind = load(of_row, [b, i]);
        add(count, [kind], 1.0);
        let mut total = zeros(i);
        for j in tiles(N) {
            let x_ij = load(x, [b, i, j]);
            total = total + rowsum(x_ij);
            add(columns, [b, load(of_column, [j])], x_ij);
            add(far, [1, pos(j) - pos(i) + K], x_ij * 2.0);
            add(seen, [kind, load(of_column, [j])], mask(x_ij, pos(i) >= pos(j)) + 1.0);
        }
        add(rows, [kind], total);
    }";
    let (b, m, n, k) = (2, 70, 37, 9);
    let x = numbers(b * m * n);
    let of_row: Vec<i32> = (0..b * m).map(|at| (at * 5 % 13) as i32 - 2).collect();
    let of_column: Vec<i32> = (0..n).map(|at| (at * 7 % 12) as i32 - 1).collect();
    let inside = |position: i32, extent: usize| usize::try_from(position).unwrap_or(0).min(extent - 1);
    let mut wanted = [k, b * k, 2 * (2 * k + 1), k * k, k].map(|count| vec![0.0f32; count]);
    for (p, i) in (0..b).flat_map(|p| (0..m).map(move |i| (p, i))) {
        let row = inside(of_row[p * m + i], k);
        wanted[4][row] += 1.0;
        for j in 0..n {
            let (value, column) = (x[(p * m + i) * n + j], inside(of_column[j], k));
            wanted[0][row] += value;
            wanted[1][p * k + column] += value;
            wanted[2][2 * k + 1 + inside(j as i32 - i as i32 + k as i32, 2 * k + 1)] += 2.0 * value;
            wanted[3][row * k + column] += if i >= j { value + 1.0 } else { 0.0 };
        }
    }
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).unwrap_or_else(|error| panic!("{error}")).remove(0);
    let shapes = [vec![k], vec![b, k], vec![2, 2 * k + 1], vec![k, k], vec![k]];
    let bytes = |data: &[f32]| data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let whole = |data: &[i32]| data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let schedules =
        ["", "block_m=16,warps=1,block_n=16", "block_m=64,block_n=32,warps=4", "block_m=64,column_groups=2,warps=4,block_n=64"];
    let mut runs = vec![(Device::cpu(), None, "")];
    runs.extend(["sm_75", "sm_90a"].map(|arch| (Device::emulator(), Arch::named(arch), "")));
    runs.extend(schedules.map(|schedule| (Device::emulator(), Arch::named("sm_80"), schedule)));
    for (device, arch, schedule) in runs {
        let given = (!schedule.is_empty()).then(|| schedule.parse().unwrap_or_else(|e| panic!("{schedule}: {e}")));
        let options = LaunchOptions { toolchain: Toolchain::shared(), arch, schedule: given, ..LaunchOptions::default() };
        let loaded = kernel
            .bind(Elem::F32, Vec::<(&str, i64)>::new())
            .expect("binds")
            .on_with(&device, options)
            .unwrap_or_else(|e| panic!("{e}"));
        let tensor = |elem, shape: &[usize], bytes: &[u8]| AnyTensor::from_bytes(&device, elem, shape, bytes).expect("fits");
        let inputs = [
            tensor(Elem::F32, &[b, m, n], &bytes(&x)),
            tensor(Elem::I32, &[b, m], &whole(&of_row)),
            tensor(Elem::I32, &[n], &whole(&of_column)),
        ];
        let outputs: Vec<AnyTensor> =
            shapes.iter().map(|shape| tensor(Elem::F32, shape, &bytes(&vec![f32::NAN; shape.iter().product()]))).collect();
        for _ in 0..2 {
            let mut arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
            arguments.extend(outputs.iter().map(Argument::Output));
            loaded.launch(&arguments).unwrap_or_else(|error| panic!("on {device}, {arch:?}, {schedule}: {error}"));
            for (n, (output, wanted)) in outputs.iter().zip(&wanted).enumerate() {
                let found = floats_of(output);
                let far = found.iter().zip(wanted).position(|(x, y)| (x - y).is_nan() || (x - y).abs() > 1e-3);
                assert_eq!(far, None, "output {n}, {device}, {arch:?}, {schedule}: {found:?} for {wanted:?}");
            }
        }
    }
}

#[test]
fn programs_and_steps_add_to_one_place() {
    // Each output holds NaN before the launch, and every launch starts from 0.
    let text = "pub fn f<const D: usize>(
        x: &Tensor<f32, (B, M, N)>, w: &Tensor<f32, (N, D)>,
        rows: &mut Tensor<f32, (M)>, whole: &mut Tensor<f32, (M, D)>,
    ) {
        let (b, i) = program(B, tiles(M));
        for j in tiles(N) {
            add(rows, [i], rowsum(load(x, [b, i, j])) * 2.0);
            add(whole, [i, ..], dot(load(x, [b, i, j]), load(w, [j, ..])));
            add(rows, [i], -rowsum(load(x, [b, i, j])));
        }
    }";
    let (b, m, n, d) = (3, 70, 37, 8);
    let (x, w) = (numbers(b * m * n), numbers(n * d));
    let at = |k: usize, i: usize, j: usize| x[(k * m + i) * n + j];
    let rows: Vec<f32> = (0..m).map(|i| (0..b).flat_map(|k| (0..n).map(move |j| at(k, i, j))).sum()).collect();
    let whole =
        |i: usize, c: usize| (0..b).flat_map(|k| (0..n).map(move |j| (k, j))).map(|(k, j)| at(k, i, j) * w[j * d + c]).sum();
    let whole: Vec<f32> = (0..m).flat_map(|i| (0..d).map(move |c| (i, c))).map(|(i, c)| whole(i, c)).collect();
    let source = SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 };
    let kernel = Kernel::from_source(&source).unwrap_or_else(|error| panic!("{error}")).remove(0);
    let devices = [(Device::cpu(), None)]
        .into_iter()
        .chain(["sm_75", "sm_80", "sm_90a"].map(|arch| (Device::emulator(), Arch::named(arch))));
    for (device, arch) in devices {
        let options = LaunchOptions { toolchain: Toolchain::shared(), arch, ..LaunchOptions::default() };
        let loaded =
            kernel.bind(Elem::F32, [("D", 8)]).expect("binds").on_with(&device, options).unwrap_or_else(|e| panic!("{e}"));
        let bytes = |data: &[f32]| data.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let tensor =
            |shape: &[usize], data: &[f32]| AnyTensor::from_bytes(&device, Elem::F32, shape, &bytes(data)).expect("fits");
        let inputs = [tensor(&[b, m, n], &x), tensor(&[n, d], &w)];
        let outputs = [tensor(&[m], &vec![f32::NAN; m]), tensor(&[m, d], &vec![f32::NAN; m * d])];
        for _ in 0..2 {
            let mut arguments: Vec<Argument<'_>> = inputs.iter().map(Argument::from).collect();
            arguments.extend(outputs.iter().map(Argument::Output));
            loaded.launch(&arguments).unwrap_or_else(|error| panic!("on {device}: {error}"));
            for (output, wanted) in outputs.iter().zip([&rows, &whole]) {
                let found = floats_of(output);
                assert!(found.iter().zip(wanted).all(|(x, y)| (x - y).abs() < 1e-4), "{device}, {arch:?}");
            }
        }
    }
}
