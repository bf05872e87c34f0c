//! Gradients of kernels of which only some inputs have gradients: each subset by itself.

mod slopes;

use flashtile_dsl::grad::{Form, gradient};
use flashtile_dsl::inputs::Random;
use flashtile_dsl::ir::Kernel;
use slopes::{Call, Value, builtin, check_subsets, kernel, made, request, request_in, subsets};

const SIZES: &str = "B=2,H=4,G=2,M=5,N=7,D=4";

#[test]
fn sinks_have_their_gradient_alone() {
    check_subsets(&builtin("sink_attention"), SIZES, "q,k,v,sinks", "o,lse", &[("scale", Value::Float(0.75))]);
    check_subsets(&builtin("sink_attention"), SIZES, "v,sinks", "o", &[("scale", Value::Float(0.75))]);
}

/// A statistic of rows from one loop, in another one: `first` adds to `q`, `made` is what it comes
/// to, and `second` is stored.
fn two_loops(first: &str, made: &str, other: &str, second: &str) -> Kernel {
    let all = [("x", "(M, N)"), ("u", "(M, N)"), ("w", "(N)"), ("b", "(M)")];
    let used = |name: &str| [first, made, second].iter().any(|text| text.contains(&format!("load({name},")));
    let params: String =
        all.iter().filter(|(name, _)| used(name)).map(|(name, shape)| format!("{name}: &Tensor<f32, {shape}>, ")).collect();
    kernel(&format!(
        "pub fn two({params}y: &mut Tensor<f32, (M, N)>) {{
            let i = program(tiles(M));
            let mut q = zeros(i);
            for j in tiles(N) {{ q += rowsum({first}); }}
            let s = {made};
            for {other} in tiles(N) {{ store(y, [i, {other}], {second}); }}
        }}"
    ))
}

#[test]
fn statistics_of_rows_have_gradients_of_each_subset() {
    let size = "M=5,N=7";
    let bias = "pub fn bias_j(x: &Tensor<f32, (M, N)>, b: &Tensor<f32, (N)>, s: &mut Tensor<f32, (M, N)>) {
        let i = program(tiles(M));
        let (mut m, mut z) = (full(i, -INF), zeros(i));
        for j in tiles(N) {
            let v = load(x, [i, j]) + load(b, [j]);
            let n = max(m, rowmax(v));
            z = z * exp(m - n) + rowsum(exp(v - n));
            m = n;
        }
        let e = m + ln(z);
        for j in tiles(N) { store(s, [i, j], exp(load(x, [i, j]) + load(b, [j]) - e)); }
    }";
    check_subsets(&kernel(bias), size, "x,b", "s", &[]);
    let xw = "load(x, [i, j]) * load(w, [j])";
    for other in ["j", "k"] {
        let at = |text: &str| text.replace("j]", &format!("{other}]"));
        let check = |first: &str, made: &str, second: &str, of: &str| {
            check_subsets(&two_loops(first, made, other, &at(second)), size, of, "y", &[]);
        };
        check(xw, "q", "s * load(x, [i, j]) + s * load(u, [i, j])", "x,u,w");
        check(xw, "q", "s * load(w, [j]) * load(u, [i, j])", "x,u,w");
        check("load(x, [i, j]) + load(w, [j])", "q / N", "load(x, [i, j]) - s", "x,w");
        check("load(x, [i, j]) * 2.0", "q / N", "load(x, [i, j]) * s", "x");
        check("load(w, [j]) * load(b, [i])", "tanh(q)", "load(x, [i, j]) * s + load(w, [j])", "x,w,b");
        check(xw, "q * q + 1.0", "load(w, [j]) * load(x, [i, j]) / s", "x,w");
        check("exp(load(x, [i, j]) * load(b, [i]))", "ln(q) + load(b, [i])", "tanh(load(x, [i, j]) - s) * load(w, [j])", "x,w,b");
    }
}

#[test]
fn layers_of_several_loops_have_gradients_of_each_subset() {
    // Sigmoids, normed by their sums.
    let text = "pub fn normed<const D: usize>(
        q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, b: &Tensor<f32, (N)>, y: &mut Tensor<f32, (M, N)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut z = zeros(i);
        for j in tiles(N) {
            z += rowsum(1.0 / (1.0 + exp(-(dot(q_i, load(k, [j, ..]).t()) + load(b, [j])))));
        }
        for j in tiles(N) {
            store(y, [i, j], 1.0 / (1.0 + exp(-(dot(q_i, load(k, [j, ..]).t()) + load(b, [j])))) / z);
        }
    }";
    check_subsets(&kernel(text), "M=5,N=7,D=3", "q,k,b", "y", &[]);
    // A sum of rows that gates what another loop sums up.
    let text = "pub fn gated<const D: usize, const E: usize>(
        q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, v: &Tensor<f32, (N, E)>, g: &Tensor<f32, (N)>,
        o: &mut Tensor<f32, (M, E)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut z = zeros(i);
        for j in tiles(N) { z += rowsum(dot(q_i, load(k, [j, ..]).t()) * load(g, [j])); }
        let mut acc = zeros((i, E));
        for j in tiles(N) { acc += dot(dot(q_i, load(k, [j, ..]).t()), load(v, [j, ..])); }
        store(o, [i, ..], acc / (1.0 + exp(-z)));
    }";
    check_subsets(&kernel(text), "M=5,N=7,D=3,E=2", "q,k,v,g", "o", &[]);
    // Sums of products, and products of row sums.
    let text = "pub fn summed<const D: usize>(
        q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, y: &mut Tensor<f32, (M, N)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut z = zeros(i);
        for j in tiles(N) { z += rowsum(dot(q_i, load(k, [j, ..]).t())); }
        for j in tiles(N) { store(y, [i, j], dot(q_i, load(k, [j, ..]).t()) * z); }
    }";
    check_subsets(&kernel(text), "M=5,N=7,D=3", "q,k", "y", &[]);
    // The norm of a layer, whose rows are sums.
    let text = "pub fn norm(
        x: &Tensor<f32, (M, N)>, w: &Tensor<f32, (N)>, b: &Tensor<f32, (N)>, y: &mut Tensor<f32, (M, N)>,
    ) {
        let i = program(tiles(M));
        let mut s = zeros(i);
        for j in tiles(N) { s += rowsum(load(x, [i, j]) + load(b, [j])); }
        let mean = s / N;
        let mut q = zeros(i);
        for j in tiles(N) {
            let d = load(x, [i, j]) + load(b, [j]) - mean;
            q += rowsum(d * d);
        }
        let r = rsqrt(q / N + 0.125);
        for k in tiles(N) { store(y, [i, k], (load(x, [i, k]) + load(b, [k]) - mean) * r * load(w, [k])); }
    }";
    check_subsets(&kernel(text), "M=5,N=7", "x,w,b", "y", &[]);
    // Softmax stored, with numbers of heads, of columns of heads, and of the whole kernel.
    let text = "pub fn stored(
        x: &Tensor<f32, (H, M, N)>, c: &Tensor<f32, (H, N)>, t: &Tensor<f32, (H)>, u: &Tensor<f32, (1)>, f: &Tensor<f32, (M, N)>,
        y: &mut Tensor<f32, (H, M, N)>,
    ) {
        let (h, i) = program(H, tiles(M));
        let (mut m, mut l) = (full(i, -INF), zeros(i));
        for j in tiles(N) {
            let s = load(x, [h, i, j]) * load(t, [h]) + load(c, [h, j]) + load(f, [i, j]) * load(u, [0]);
            let m_new = max(m, rowmax(s));
            l = l * exp(m - m_new) + rowsum(exp(s - m_new));
            m = m_new;
        }
        let e = m + ln(l);
        for j in tiles(N) {
            let s = load(x, [h, i, j]) * load(t, [h]) + load(c, [h, j]) + load(f, [i, j]) * load(u, [0]);
            store(y, [h, i, j], exp(s - e));
        }
    }";
    check_subsets(&kernel(text), "H=2,M=4,N=5", "x,c,t,u,f", "y", &[]);
    // Tiles of columns in the grid, and a loop over rows.
    let text = "pub fn by_columns<const D: usize>(
        q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, b: &Tensor<f32, (N)>, y: &mut Tensor<f32, (M, N)>,
    ) {
        let j = program(tiles(N));
        let k_j = load(k, [j, ..]);
        let mut z = zeros(j);
        for i in tiles(M) { z += rowsum(dot(k_j, load(q, [i, ..]).t())); }
        for i in tiles(M) { store(y, [i, j], dot(load(q, [i, ..]), k_j.t()) * z * load(b, [j])); }
    }";
    check_subsets(&kernel(text), "M=5,N=7,D=3", "q,k,b", "y", &[]);
}

#[test]
fn numbers_of_programs_that_rows_and_columns_use_have_gradients_of_each_subset() {
    // Loaded once for rows, and twice for columns.
    let text = "pub fn squared(
        x: &Tensor<f32, (M, N)>, w: &Tensor<f32, (N)>, r: &Tensor<f32, (M)>, s: &Tensor<f32, (1)>, y: &mut Tensor<f32, (M, N)>,
    ) {
        let i = program(tiles(M));
        let u = load(s, [0]) * load(r, [i]);
        for j in tiles(N) {
            store(y, [i, j], load(x, [i, j]) * u + load(w, [j]) * (load(s, [0]) * load(s, [0])));
        }
    }";
    check_subsets(&kernel(text), "M=5,N=7", "x,w,r,s", "y", &[]);
    // Weights of channels and numbers of heads, of queries and, squared, of keys.
    let weighed = "pub fn weighed<const D: usize>(
        q: &Tensor<f32, (H, M, D)>, k: &Tensor<f32, (H, N, D)>, g: &Tensor<f32, (D)>, a: &Tensor<f32, (H)>,
        y: &mut Tensor<f32, (H, M, N)>,
    ) {
        let (h, i) = program(H, tiles(M));
        let q_i = load(q, [h, i, ..]) * load(g, [..]) * load(a, [h]);
        for j in tiles(N) {
            let k_j = KEYS;
            store(y, [h, i, j], dot(q_i, k_j.t()));
        }
    }";
    for keys in [
        "load(k, [h, j, ..]) * (load(g, [..]) * load(g, [..])) * (load(a, [h]) * load(a, [h]))",
        "load(k, [h, j, ..]) * (load(g, [..]) * load(a, [h])) + load(g, [..]) * (load(a, [h]) * load(g, [..]))",
    ] {
        check_subsets(&kernel(&weighed.replace("KEYS", keys)), "H=2,M=3,N=5,D=4", "q,k,g,a", "y", &[]);
    }
}

#[test]
fn numbers_of_heads_beside_one_of_the_kernel_have_gradients_of_each_subset() {
    // The kernel of columns walks the heads.
    let text = "pub fn shared(
        x: &Tensor<f32, (H, M, N)>, w: &Tensor<f32, (N)>, s: &Tensor<f32, (1)>, t: &Tensor<f32, (H)>,
        y: &mut Tensor<f32, (H, M, N)>,
    ) {
        let (h, i) = program(H, tiles(M));
        BEFORE
        for j in tiles(N) { store(y, [h, i, j], load(x, [h, i, j]) * (COLUMNS)); }
    }";
    for (before, columns) in [
        ("", "load(w, [j]) * (load(s, [0]) * load(t, [h]))"),
        ("", "tanh(load(w, [j])) / (1.0 + (load(s, [0]) - load(t, [h])) * (load(s, [0]) - load(t, [h])))"),
        ("", "sin(load(w, [j]) + load(s, [0]) * load(t, [h]))"),
        ("let p = load(s, [0]) * load(t, [h]);", "load(w, [j]) * p + p"),
        ("let p = exp(load(s, [0]) * load(t, [h])); let r = p * load(s, [0]);", "load(w, [j]) * p - r * load(w, [j])"),
    ] {
        let text = text.replace("BEFORE", before).replace("COLUMNS", columns);
        check_subsets(&kernel(&text), "H=2,M=3,N=5", "x,w,s,t", "y", &[]);
    }
    let alibi = "pub fn alibi<const D: usize>(
        q: &Tensor<f32, (B, H, M, D)>, k: &Tensor<f32, (B, G, N, D)>, v: &Tensor<f32, (B, G, N, D)>, slope: &Tensor<f32, (H)>,
        t: &Tensor<f32, (1)>, o: &mut Tensor<f32, (B, H, M, D)>,
    ) {
        let (b, h, i) = program(B, H, tiles(M));
        let g = h * G / H;
        let q_i = load(q, [b, h, i, ..]);
        let (mut m, mut l, mut acc) = (full(i, -INF), zeros(i), zeros((i, D)));
        for j in tiles(N) {
            let s = dot(q_i, load(k, [b, g, j, ..]).t()) + load(t, [0]) * load(slope, [h]) * pos(j).to::<f32>();
            let m_new = max(m, rowmax(s));
            let alpha = exp(m - m_new);
            let p = exp(s - m_new);
            l = l * alpha + rowsum(p);
            acc = acc * alpha + dot(p, load(v, [b, g, j, ..]));
            m = m_new;
        }
        store(o, [b, h, i, ..], acc / l);
    }";
    check_subsets(&kernel(alibi), SIZES, "q,k,v,slope,t", "o", &[]);
}

#[test]
fn what_says_nothing_of_the_columns_that_it_is_summed_over_is_refused() {
    let text = "pub fn constant(x: &Tensor<f32, (M, N)>, s: &Tensor<f32, (M)>, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut a = zeros(i);
        for j in tiles(N) { a += rowsum(load(x, [i, j]) + load(s, [i])); }
        store(y, [i], a);
    }";
    let why = gradient(&kernel(text), &request("s", "y")).expect_err("no tensor of its kernel has N");
    assert!(why.what.contains("needs the size `N`, which none of its tensors has"), "{why}");
    assert!(why.instead.starts_with("ask for the gradient of a tensor that has `N` too"), "{}", why.instead);
    check_subsets(&kernel(text), "M=5,N=7", "x", "y", &[]);
}

#[test]
fn gradients_of_many_inputs_and_outputs_are_read_back() {
    let inputs: String = (0..24).map(|n| format!("x{n}: &Tensor<f32, (M, N)>, ")).collect();
    let outputs: String = (0..12).map(|n| format!("y{n}: &mut Tensor<f32, (M, N)>, ")).collect();
    let stores: String =
        (0..12).map(|n| format!("store(y{n}, [i, j], load(x{}, [i, j]) * load(x{}, [i, j])); ", 2 * n, 2 * n + 1)).collect();
    let text = format!("pub fn many({inputs}{outputs}) {{ let i = program(tiles(M)); for j in tiles(N) {{ {stores} }} }}");
    let names = |letter: &str, count: usize| (0..count).map(|n| format!("{letter}{n}")).collect::<Vec<_>>().join(",");
    let of = names("x", 24);
    let from = names("y", 12);
    let call = Call::of(&kernel(&text), "M=2,N=3", &from, &[]);
    call.compare(&kernel(&text), &made(&kernel(&text), &of, &from), &of, &call.slopes(&kernel(&text), &of));
}

/// An expression of loaded numbers and of `leaf`, without kinks.
fn expression(random: &mut Random, depth: usize, leaf: &[&str]) -> String {
    if depth == 0 || random.below(6) == 0 {
        return random.of(leaf).to_owned();
    }
    let x = expression(random, depth - 1, leaf);
    let form = random.below(5);
    if form == 0 {
        return format!("tanh({x})");
    }
    let y = expression(random, depth - 1, leaf);
    match form {
        1 => format!("({x}) / (({y}) * ({y}) + 1.0)"),
        _ => format!("({x}) {} ({y})", random.of(&["+", "-", "*", "*"])),
    }
}

/// A kernel of drawn expressions: the names of its inputs, and its text.
fn drawn(random: &mut Random) -> (String, String) {
    const LOADS: [&str; 5] = ["load(x, [i, j])", "load(u, [i, j])", "load(w, [j])", "load(b, [i])", "load(x, [i, j])"];
    let first = expression(random, 2, &LOADS);
    let with_statistic: Vec<&str> = LOADS.into_iter().chain(["s", "s"]).collect();
    let second = expression(random, 2, &with_statistic);
    let (first, second) = (format!("({first}) + load(x, [i, j])"), format!("({second}) + s * load(u, [i, j])"));
    let statistic = match random.below(2) {
        0 => format!("let mut q = zeros(i); for j in tiles(N) {{ q += rowsum({first}); }} let s = q / N;"),
        _ => format!(
            "let (mut m, mut z) = (full(i, -INF), zeros(i));
            for j in tiles(N) {{
                let v = {first}; let n = max(m, rowmax(v));
                z = z * exp(m - n) + rowsum(exp(v - n)); m = n;
            }}
            let s = m + ln(z);"
        ),
    };
    let other = random.of(&["j", "k"]);
    let second = second.replace("j]", &format!("{other}]"));
    let all = [("x", "(M, N)"), ("u", "(M, N)"), ("w", "(N)"), ("b", "(M)")];
    let used: Vec<_> =
        all.into_iter().filter(|(name, _)| format!("{first}{second}").contains(&format!("load({name},"))).collect();
    let params: String = used.iter().map(|(name, shape)| format!("{name}: &Tensor<f32, {shape}>, ")).collect();
    let text = format!(
        "pub fn drawn({params}y: &mut Tensor<f32, (M, N)>) {{
            let i = program(tiles(M));
            {statistic}
            for {other} in tiles(N) {{ store(y, [i, {other}], {second}); }}
        }}"
    );
    (used.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(","), text)
}

#[test]
fn drawn_kernels_of_two_loops_have_gradients_of_each_subset() {
    let mut compared = 0;
    for seed in 0..60 {
        let (inputs, text) = drawn(&mut Random(seed));
        let kernel = kernel(&text);
        let call = Call::of(&kernel, "M=4,N=5", "y", &[]);
        let slopes = call.slopes(&kernel, &inputs);
        for of in subsets(&inputs) {
            call.compare(&kernel, &made(&kernel, &of, "y"), &of, &slopes);
            compared += 1;
        }
    }
    assert!(compared > 500, "{compared} gradients were compared");
}

/// Attention of drawn queries, keys and scores: the names of its inputs, and its text.
fn drawn_attention(random: &mut Random) -> (String, String) {
    const QUERIES: [&str; 6] = [
        "load(q, [b, h, i, ..])",
        "load(r, [b, i, ..])",
        "load(p, [i, ..])",
        "load(x, [i, ..])",
        "load(w, [..])",
        "load(t, [h])",
    ];
    const KEYS: [&str; 6] = [
        "load(k, [b, h * G / H, j, ..])",
        "load(c, [b, j, ..])",
        "load(x, [j, ..])",
        "load(w, [..])",
        "load(t, [h])",
        "load(u, [h * G / H])",
    ];
    const SCORES: [&str; 5] = ["load(f, [h, i, j])", "load(a, [j])", "load(t, [h])", "load(e, [b, i, j])", "load(n, [h, j])"];
    let of = |random: &mut Random, own: &str, leaf: &[&str]| match random.below(4) {
        0 => own.to_owned(),
        _ => format!("{own} {} ({})", random.of(&["+", "*"]), expression(random, 1, leaf)),
    };
    let queries = match random.below(3) {
        // Rows of a tensor that programs share, alone.
        0 => {
            let own = random.of(&QUERIES[1..4]);
            of(random, own, &QUERIES[4..])
        }
        _ => of(random, QUERIES[0], &QUERIES),
    };
    let own = random.of(&KEYS[..2]);
    let keys = of(random, own, &KEYS);
    let scores = match random.below(3) {
        0 => String::new(),
        _ => format!(" {} ({})", random.of(&["+", "*"]), expression(random, 1, &SCORES)),
    };
    let body = format!("{queries}{keys}{scores}");
    let all = [
        ("q", "(B, H, N, D)"),
        ("r", "(B, N, D)"),
        ("p", "(N, D)"),
        ("x", "(N, D)"),
        ("w", "(D)"),
        ("t", "(H)"),
        ("k", "(B, G, N, D)"),
        ("c", "(B, N, D)"),
        ("u", "(G)"),
        ("f", "(H, N, N)"),
        ("a", "(N)"),
        ("e", "(B, N, N)"),
        ("n", "(H, N)"),
    ];
    let used: Vec<_> = all.into_iter().filter(|(name, _)| body.contains(&format!("load({name},"))).collect();
    let params: String = used.iter().map(|(name, shape)| format!("{name}: &Tensor<f32, {shape}>, ")).collect();
    let text = format!(
        "pub fn drawn<const D: usize>({params}v: &Tensor<f32, (B, G, N, D)>, o: &mut Tensor<f32, (B, H, N, D)>) {{
            let (b, h, i) = program(B, H, tiles(N));
            let q_i = {queries};
            let (mut m, mut l, mut acc) = (full(i, -INF), zeros(i), zeros((i, D)));
            for j in tiles(N) {{
                let s = dot(q_i, ({keys}).t()){scores};
                let m_new = max(m, rowmax(s));
                let alpha = exp(m - m_new);
                let e = exp(s - m_new);
                l = l * alpha + rowsum(e);
                acc = acc * alpha + dot(e, load(v, [b, h * G / H, j, ..]));
                m = m_new;
            }}
            store(o, [b, h, i, ..], acc / l);
        }}"
    );
    (used.iter().map(|(name, _)| *name).chain(["v"]).collect::<Vec<_>>().join(","), text)
}

#[test]
fn drawn_attention_has_gradients_in_each_form() {
    let mut compared = [0; Form::ALL.len()];
    for seed in 0..48 {
        let random = &mut Random(seed);
        let (inputs, text) = drawn_attention(random);
        let kernel = kernel(&text);
        let call = Call::of(&kernel, "B=2,H=4,G=2,N=5,D=3", "o", &[]);
        let slopes = call.slopes(&kernel, &inputs);
        let some = subsets(&inputs);
        let chosen: Vec<String> =
            (0..3).map(|_| some[random.below(some.len() as u64) as usize].clone()).chain([inputs]).collect();
        for (form, compared) in Form::ALL.into_iter().zip(&mut compared) {
            for of in &chosen {
                match gradient(&kernel, &request_in(form, of, "o")) {
                    Ok(gradient) => {
                        call.compare(&kernel, &gradient, of, &slopes);
                        *compared += 1;
                    }
                    // What is not built says so.
                    Err(why) => assert!(!why.what.contains("a wrong kernel"), "{seed}, {of}: {why}\n{text}"),
                }
            }
        }
    }
    // Few of the kernels have an operand that is loaded for a product alone.
    let [streamed @ .., stored] = compared;
    assert!(streamed.iter().all(|&count| count > 20) && stored > 5, "{compared:?} gradients were compared");
}
