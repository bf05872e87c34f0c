//! Gradients against finite differences of the interpreter in float64.

mod slopes;

use std::collections::BTreeSet;

use flashtile_dsl::analysis::index::Lookups;
use flashtile_dsl::analysis::mask::{MaskOptions, loop_runs};
use flashtile_dsl::grad::{Form, Request, gradient};
use flashtile_dsl::interpret::Blocks;
use flashtile_dsl::ir::{AxisKind, Kernel, Op, OpId, SizeExpr};
use flashtile_dsl::text::{self, write};
use slopes::{
    Value, Values, builtin, by_kernels, check, check_in, inputs, kernel, made, made_in, numbers, request, request_in, sizes,
    source_of, tensor,
};

const SIZES: &str = "B=2,H=4,G=2,M=9,N=11,D=4";

#[test]
fn gradients_of_attention_are_those_of_finite_differences() {
    let scale = ("scale", Value::Float(0.75));
    for name in ["attention", "causal_attention"] {
        check(&builtin(name), SIZES, "q,k,v", "o", std::slice::from_ref(&scale));
        check(&builtin(name), SIZES, "q,k,v", "o,lse", std::slice::from_ref(&scale));
        check(&builtin(name), "B=1,H=3,G=3,M=5,N=17,D=2", "k", "o", std::slice::from_ref(&scale));
    }
}

/// An integer tensor.
fn ints(shape: &[usize], of: impl Fn(usize) -> i64) -> Value {
    Value::Tensor(shape.to_vec(), (0..shape.iter().product()).map(|at| of(at) as f64).collect())
}

/// A kernel, its sizes, the inputs, the outputs, and what is not random.
type Variant = (&'static str, &'static str, &'static str, &'static str, Vec<(&'static str, Value)>);

fn variants() -> [Variant; 19] {
    let (float, int) = (|name, x| (name, Value::Float(x)), |name, x| (name, Value::Int(x)));
    [
        ("softcap_attention", SIZES, "q,k,v", "o,lse", vec![float("cap", 1.5)]),
        ("alibi_attention", SIZES, "q,k,v", "o", vec![]),
        ("sliding_window", SIZES, "q,k,v", "o,lse", vec![int("window", 4)]),
        ("bias_attention", "B=1,H=4,G=2,M=9,N=11,D=4", "q,k,v", "o", vec![]),
        ("sink_attention", SIZES, "q,k,v", "o,lse", vec![]),
        ("query_norm_attention", SIZES, "q,k,v", "o", vec![float("eps", 0.125)]),
        ("cross_attention", "B=2,H=4,G=2,M=9,N=11,D=4,E=6", "q,k,v", "o", vec![]),
        ("rope_attention", "B=1,H=4,G=2,M=9,N=11,D=4,C=2", "q,k,v", "o", vec![]),
        ("causal_rope_attention", "B=1,H=2,G=2,M=9,N=9,D=4,C=2", "q,k,v", "o", vec![]),
        ("sigmoid_attention", SIZES, "q,k,v", "o", vec![float("offset", -0.5)]),
        ("differential_attention", "B=1,H=2,M=9,N=9,D=4,E=6", "q,k,v", "o", vec![float("lambda", 0.5)]),
        ("prefix_attention", SIZES, "q,k,v", "o", vec![int("prefix", 3)]),
        ("document_attention", "B=2,H=2,G=2,N=9,D=4", "q,k,v", "o", vec![("document", ints(&[2, 9], |at| (at % 9 / 4) as i64))]),
        ("relative_attention", "B=2,H=2,G=1,M=9,N=9,D=4,R=3", "q,k,v,table", "o", vec![]),
        (
            "dropout_attention",
            "B=1,H=2,G=2,M=9,N=9,D=4",
            "q,k,v",
            "o",
            vec![float("dropped", 0.25), int("seed", 7), int("offset", 3)],
        ),
        ("mla_prefill", "B=1,H=2,M=9,N=11,D=4,R=2,E=6", "q,q_rot,k,k_rot,v", "o", vec![]),
        ("mla_decode", "B=2,H=5,N=11,C=4,R=2", "q,kv", "o,lse", vec![("lens", ints(&[2], |b| 5 + 6 * b as i64))]),
        ("decode_attention", "B=2,G=2,R=3,N=11,D=4", "q,k,v", "o,lse", vec![("lens", ints(&[2], |b| 5 + 6 * b as i64))]),
        ("linear_cross_entropy", "M=9,V=13,D=4", "x,w", "loss", vec![("target", ints(&[9], |at| (at % 5) as i64))]),
    ]
}

#[test]
fn the_fused_form_gives_the_same_gradients() {
    let scale = ("scale", Value::Float(0.75));
    let plain = [
        ("attention", SIZES, "q,k,v", "o,lse", Vec::new()),
        ("causal_attention", "B=1,H=3,G=3,M=5,N=17,D=2", "q,v", "o", Vec::new()),
    ];
    let mut kernels = 0;
    for (name, sizes, of, from, given) in variants().into_iter().chain(plain) {
        let given: Vec<_> = given.into_iter().chain([scale.clone()]).collect();
        check_in(Form::Fused, &builtin(name), sizes, of, from, &given);
        let made = made_in(Form::Fused, &builtin(name), of, from);
        kernels += usize::from(made.backward.iter().any(|kernel| kernel.params.values().any(|param| param.kind.is_sum())));
    }
    assert_eq!(kernels, 21, "each adds up");
}

#[test]
fn shares_of_columns_give_the_same_gradients() {
    let scale = ("scale", Value::Float(0.75));
    let groups = [
        ("attention", "B=1,H=5,G=2,M=9,N=11,D=4", "q,k,v", "o,lse", Vec::new()),
        ("causal_attention", "B=2,H=6,G=2,M=7,N=9,D=2", "q,v", "o", Vec::new()),
    ];
    let mut kernels = Vec::new();
    for (name, sizes, of, from, given) in variants().into_iter().chain(groups) {
        for form in [Form::PlainShares, Form::FusedShares] {
            let kernel = builtin(name);
            match gradient(&kernel, &request_in(form, of, from)) {
                Ok(made) => {
                    let of_shares = made.backward.iter().filter(|kernel| kernel.name.contains("_grad_shares"));
                    let texts: Vec<String> = of_shares.map(|kernel| text::write(kernel).expect("has a text")).collect();
                    let walks_all = !texts.is_empty() && texts.iter().all(|text| text.contains("for h in 0..H"));
                    kernels.push((name, form, walks_all));
                }
                Err(error) if error.what.contains("have several programs") => continue,
                Err(error) => panic!("{name}: {error}"),
            }
            let given: Vec<_> = given.iter().cloned().chain([scale.clone()]).collect();
            check_in(form, &kernel, sizes, of, from, &given);
        }
    }
    let names: BTreeSet<&str> = kernels.iter().map(|kernel| kernel.0).collect();
    assert_eq!(kernels.len(), 2 * names.len(), "in both forms: {kernels:?}");
    assert!(names.len() >= 12, "{names:?}");
    // Keys that all heads share have no condition.
    assert!(names.contains("mla_prefill") && kernels.iter().all(|kernel| kernel.2), "{kernels:?}");
}

#[test]
fn columns_of_one_program_have_no_shares() {
    let cases = [
        (builtin("decode_attention"), "q,k,v", "o", "no columns of `decode_attention`", "take the plain form"),
        (builtin("attention"), "q", "o", "no columns of `attention`", "take the plain form"),
        (builtin("matmul_gelu"), "a,b", "c", "a matrix product has no plain-shares form", "take the plain form"),
    ];
    for (kernel, of, from, what, instead) in cases {
        let error = gradient(&kernel, &request_in(Form::PlainShares, of, from)).expect_err("has none");
        assert!(error.what.contains(what), "{error}");
        assert!(error.instead.contains(instead), "{}", error.instead);
    }
}

#[test]
fn what_has_no_fused_form_says_so() {
    let gated = source_of("runtime/kernels", "attention")
        .replace("store(o, [b, h, i, ..], div_or_zero(acc, l));", "store(o, [b, h, i, ..], div_or_zero(acc, l) * tanh(q_i));");
    // A load of its own is the same input.
    let behind = "store(o, [b, h, i, ..], div_or_zero(acc, l));";
    let with = |also: &str| source_of("runtime/kernels", "attention").replace(behind, also);
    let residual = with("store(o, [b, h, i, ..], div_or_zero(acc, l) + load(q, [b, h, i, ..]));");
    let normed = with("store(o, [b, h, i, ..], div_or_zero(acc, l) + rowsum(load(q, [b, h, i, ..])));");
    let started = gated.replace("full(i, -INF)", "rowsum(load(q, [b, h, i, ..]))");
    let cases = [
        (kernel(&residual), "q,k,v", "`q` is used behind the loop too"),
        (kernel(&normed), "q,k,v", "`q` is used behind the loop too"),
        (kernel(&started), "q,k,v", "`q` is used behind the loop too"),
        (builtin("attention"), "q", "rows alone"),
        (builtin("attention"), "k,v", "columns alone"),
        (builtin("sink_attention"), "q,k,v,sinks", "the gradient of `sinks`"),
        (kernel(&gated), "q,k,v", "`q` is used behind the loop too"),
        (builtin("layer_norm"), "x", "without one loop"),
        (builtin("matmul_gelu"), "a,b", "a matrix product"),
    ];
    for (kernel, of, wanted) in cases {
        let from = if kernel.param_named("o").is_some() {
            "o"
        } else if kernel.param_named("y").is_some() {
            "y"
        } else {
            "c"
        };
        let error = gradient(&kernel, &request_in(Form::Fused, of, from)).expect_err("has none");
        assert!(error.what.contains(wanted), "{}: {error}", kernel.name);
        assert!(error.instead.contains("plain form"), "{}: {}", kernel.name, error.instead);
    }
}

/// Attention with what is added to the scores, and other loads.
fn added(params: &str, scores: &str) -> Kernel {
    kernel(&format!(
        "pub fn added<T: Element, const D: usize>(
            q: &Tensor<T, (B, H, M, D)>, k: &Tensor<T, (B, H, N, D)>, v: &Tensor<T, (B, H, N, D)>, {params}
            o: &mut Tensor<T, (B, H, M, D)>,
        ) {{
            let (b, h, i) = program(B, H, tiles(M));
            let q_i = load(q, [b, h, i, ..]);
            let mut m = full(i, -INF);
            let mut l = zeros(i);
            let mut acc = zeros((i, D));
            for j in tiles(N) {{
                let s = dot(q_i, load(k, [b, h, j, ..]).t());
                {scores}
                let m_new = max(m, rowmax(s));
                let m_ref = visible_or_zero(m_new);
                let alpha = exp(m - m_ref);
                let p = exp(s - m_ref);
                l = l * alpha + rowsum(p);
                acc = acc * alpha + dot(p.to::<T>(), load(v, [b, h, j, ..]));
                m = m_new;
            }}
            store(o, [b, h, i, ..], div_or_zero(acc, l));
        }}"
    ))
}

#[test]
fn what_programs_share_for_each_pair_is_summed_up_where_it_is_made() {
    let sizes = "B=2,H=3,M=9,N=7,D=4";
    let cases: [(&str, &str, &str, usize); 9] = [
        ("bias: &Tensor<f32, (H, M, N)>,", "let s = s + load(bias, [h, i, j]);", "bias", 1),
        ("bias: &Tensor<T, (M, N)>,", "let s = s + load(bias, [i, j]);", "bias", 1),
        ("bias: &Tensor<f32, (B, M, N)>,", "let s = tanh(s * load(bias, [b, i, j]));", "bias", 1),
        // Rows are its columns.
        ("bias: &Tensor<f32, (H, N, M)>,", "let s = s + load(bias, [h, j, i]).t();", "bias", 1),
        // A mask, and rows that see nothing.
        ("bias: &Tensor<f32, (H, M, N)>,", "let s = mask(s + load(bias, [h, i, j]), pos(j) + 2 < pos(i));", "bias", 1),
        // Part of it is loaded, and the rest has the gradient 0.
        ("bias: &Tensor<f32, (3, M, N)>,", "let s = s + load(bias, [1, i, j]);", "bias", 1),
        // Shared by the same programs: one kernel. By others: a kernel more.
        (
            "bias: &Tensor<f32, (H, M, N)>, gate: &Tensor<f32, (H, M, N)>,",
            "let s = s * load(gate, [h, i, j]) + load(bias, [h, i, j]);",
            "bias,gate",
            1,
        ),
        (
            "bias: &Tensor<f32, (H, M, N)>, gate: &Tensor<f32, (M, N)>,",
            "let s = s * load(gate, [i, j]) + load(bias, [h, i, j]);",
            "bias,gate",
            2,
        ),
        // With what rows and columns have.
        (
            "bias: &Tensor<f32, (H, M, N)>, f: &Tensor<f32, (B, H, N)>,",
            "let s = s + load(bias, [h, i, j]) - load(f, [b, h, j]);",
            "bias,f",
            1,
        ),
    ];
    for (params, scores, of, pairs) in cases {
        let kernel = added(params, scores);
        for form in [Form::Plain, Form::Fused] {
            let all = format!("q,k,v,{of}");
            check_in(form, &kernel, sizes, &all, "o", &[]);
            let names: Vec<String> = made_in(form, &kernel, &all, "o").backward.into_iter().map(|made| made.name).collect();
            assert_eq!(names.iter().filter(|name| name.contains("grad_pairs")).count(), pairs, "{names:?}");
        }
        check(&kernel, sizes, of, "o", &[]);
        let made = made(&kernel, of, "o").backward;
        let shares = made.iter().flat_map(|made| made.params.values()).find(|param| param.name.contains("shares"));
        assert!(shares.is_none(), "nothing of the size of all scores is stored: {shares:?}");
    }
    // One for each program of the grid: the kernel of rows stores it where there is one.
    let own = added("bias: &Tensor<f32, (B, H, M, N)>,", "let s = s + load(bias, [b, h, i, j]);");
    let names =
        |form: Form| made_in(form, &own, "q,k,v,bias", "o").backward.into_iter().map(|made| made.name).collect::<Vec<_>>();
    assert_eq!(names(Form::Plain), ["added_grad_rows", "added_grad_columns"]);
    assert_eq!(names(Form::Fused), ["added_grad_rows", "added_grad_columns", "added_grad_pairs", "added_grad_sums"]);
    for form in [Form::Plain, Form::Fused] {
        check_in(form, &own, sizes, "q,k,v,bias", "o", &[]);
    }
}

#[test]
fn what_programs_share_for_each_pair_has_parts_of_all_loops() {
    let text = "pub fn twice<T: Element, const D: usize>(
        q: &Tensor<T, (B, M, D)>, k: &Tensor<T, (B, N, D)>, v: &Tensor<T, (B, N, D)>, bias: &Tensor<f32, (M, N)>,
        o: &mut Tensor<T, (B, M, D)>,
    ) {
        let (b, i) = program(B, tiles(M));
        let q_i = load(q, [b, i, ..]);
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        for j in tiles(N) {
            let s = mask(dot(q_i, load(k, [b, j, ..]).t()) + load(bias, [i, j]), pos(j) <= pos(i));
            let m_new = max(m, rowmax(s));
            let m_ref = visible_or_zero(m_new);
            l = l * exp(m - m_ref) + rowsum(exp(s - m_ref));
            m = m_new;
        }
        let lse = visible_or_zero(m + ln(l));
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = mask(dot(q_i, load(k, [b, j, ..]).t()) + load(bias, [i, j]), pos(j) <= pos(i));
            acc = acc + dot((exp(s - lse) * (s * 0.5 + 1.0)).to::<T>(), load(v, [b, j, ..]));
        }
        store(o, [b, i, ..], acc);
    }";
    let kernel = kernel(text);
    check(&kernel, "B=3,M=9,N=9,D=4", "q,k,v,bias", "o", &[]);
    check(&kernel, "B=3,M=9,N=9,D=4", "bias", "o", &[]);
    let made = made(&kernel, "q,k,v,bias", "o").backward;
    assert!(made.iter().any(|made| made.name == "twice_grad_pairs"), "batches share the bias");
}

/// The loss of each row of a vocabulary, of what `scores` makes of the logits.
fn loss(params: &str, logits: &str, scores: &str) -> Kernel {
    kernel(&format!(
        "pub fn loss<T: Element, const D: usize>({params} target: &Tensor<i32, (B, M)>, loss: &mut Tensor<f32, (B, M)>) {{
            let (b, i) = program(B, tiles(M));
            let target_i = load(target, [b, i]);
            let mut m = full(i, -INF);
            let mut l = zeros(i);
            let mut wanted = zeros(i);
            for j in tiles(V) {{
                let s = {logits};
                {scores}
                let m_new = max(m, rowmax(s));
                let m_ref = visible_or_zero(m_new);
                l = l * exp(m - m_ref) + rowsum(exp(s - m_ref));
                wanted += rowsum(select(target_i == pos(j), s, 0.0));
                m = m_new;
            }}
            store(loss, [b, i], m + ln(l) - wanted);
        }}"
    ))
}

#[test]
fn the_stored_form_gives_gradients_of_operands_by_products() {
    let given = [("target", ints(&[2, 9], |at| (at % 5) as i64))];
    let sizes = "B=2,M=9,V=13,D=4";
    let (x, w) = ("x: &Tensor<T, (B, M, D)>,", "w: &Tensor<T, (V, D)>,");
    let plain = "dot(load(x, [b, i, ..]), load(w, [j, ..]).t())";
    let cases: [(&str, &str, &str, &str, &[&str]); 9] = [
        (w, plain, "", "x,w", &["rows", "pairs", "grad_x", "grad_w"]),
        (w, plain, "", "w", &["rows", "pairs", "grad_w"]),
        (w, plain, "", "x", &["rows", "pairs", "grad_x"]),
        // Columns of a matrix whose rows are summed along, and weights of each batch.
        (
            "w: &Tensor<T, (D, V)>,",
            "dot(load(x, [b, i, ..]), load(w, [.., j]))",
            "",
            "x,w",
            &["rows", "pairs", "grad_x", "grad_w"],
        ),
        (
            "w: &Tensor<T, (B, V, D)>,",
            "dot(load(x, [b, i, ..]), load(w, [b, j, ..]).t())",
            "",
            "x,w",
            &["rows", "pairs", "grad_x", "grad_w"],
        ),
        // A cap, a bias of each class, classes that are left out.
        (
            "w: &Tensor<T, (V, D)>, bias: &Tensor<f32, (V)>,",
            plain,
            "let s = 2.0 * tanh((s + load(bias, [j])) * 0.5);",
            "x,w,bias",
            &["rows", "columns", "pairs", "grad_x", "grad_w"],
        ),
        (w, plain, "let s = mask(s * 0.5, pos(j) <= pos(i) + 3);", "x,w", &["rows", "pairs", "grad_x", "grad_w"]),
        // A number of each pair, which batches share.
        (
            "w: &Tensor<T, (V, D)>, known: &Tensor<f32, (M, V)>,",
            plain,
            "let s = s + load(known, [i, j]);",
            "x,w,known",
            &["rows", "pairs", "pairs2", "grad_x", "grad_w"],
        ),
        // Two products, of which each has its own.
        (
            "w: &Tensor<T, (V, D)>, u: &Tensor<T, (V, D)>, y: &Tensor<T, (B, M, D)>,",
            plain,
            "let s = s * tanh(dot(load(y, [b, i, ..]), load(u, [j, ..]).t()));",
            "x,w,y,u",
            &["rows", "pairs", "pairs2", "grad_x", "grad_w", "grad_y", "grad_u"],
        ),
    ];
    for (params, logits, scores, of, kernels) in cases {
        let kernel = loss(&format!("{x} {params}"), logits, scores);
        check_in(Form::Stored, &kernel, sizes, of, "loss", &given);
        let made = made_in(Form::Stored, &kernel, of, "loss").backward;
        let mut names: Vec<&str> = made.iter().map(|made| made.name.as_str()).collect();
        names.iter_mut().for_each(|name| *name = name.trim_start_matches("loss_").trim_start_matches("grad_"));
        let kernels: Vec<&str> = kernels.iter().map(|name| name.trim_start_matches("grad_")).collect();
        assert_eq!(names, kernels);
    }
}

#[test]
fn what_has_no_stored_form_says_so() {
    let x = "x: &Tensor<T, (B, M, D)>, w: &Tensor<T, (V, D)>,";
    let normed = "dot((load(x, [b, i, ..]) * 0.5).to::<T>(), (load(w, [j, ..]) * 0.5).to::<T>().t())";
    let twice = "let x_i = load(x, [b, i, ..]); let s = s + rowsum(x_i * x_i) + rowsum(load(w, [j, ..]));";
    let plain = "dot(load(x, [b, i, ..]), load(w, [j, ..]).t())";
    let of_scores = "nothing but an operand of a product of scores";
    let cases = [
        (loss(x, normed, ""), "x,w", "loss", of_scores),
        (loss(x, plain, twice), "x,w", "loss", of_scores),
        (builtin("attention"), "v", "o", of_scores),
        (builtin("layer_norm"), "x", "y", of_scores),
        (builtin("matmul_gelu"), "a,b", "c", "a matrix product has no stored form"),
    ];
    for (kernel, of, from, wanted) in cases {
        let error = gradient(&kernel, &request_in(Form::Stored, of, from)).expect_err("has none");
        assert!(error.what.contains(wanted), "{}: {error}", kernel.name);
        assert!(error.instead.contains("plain form"), "{}: {}", kernel.name, error.instead);
    }
}

#[test]
fn gradients_of_variants_are_those_of_finite_differences() {
    let scale = ("scale", Value::Float(0.75));
    for (name, sizes, of, from, given) in variants() {
        let given: Vec<_> = given.into_iter().chain([scale.clone()]).collect();
        check(&builtin(name), sizes, of, from, &given);
    }
}

/// Causal attention with what `CHANGED` makes of the scores.
fn scored(params: &str, changed: &str) -> Kernel {
    let text = source_of("runtime/kernels", "causal_attention");
    let scores = "let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;";
    let made = text.replace(scores, &format!("let x = dot(q_i, load(k, [b, g, j, ..]).t()) * scale; let s = {changed};"));
    assert_ne!(text, made, "the scores are in the text");
    kernel(&made.replace("scale: f32,", &format!("scale: f32, {params}")))
}

#[test]
fn every_op_of_scores_has_its_gradient() {
    let bias = "bias: &Tensor<f32, (B, H, M, N)>,";
    let plain = [
        ("", "-x"),
        ("", "x * x - 0.5 * x"),
        ("", "exp(x * 0.5) + exp2(x * 0.25)"),
        ("", "ln(x * x + 1.0) - log2(2.0 + x * x)"),
        ("", "sin(x) * cos(x)"),
        ("", "sqrt(x * x + 1.0) + rsqrt(x * x + 2.0)"),
        ("", "tanh(x) / (1.0 + x * x)"),
        ("", "div_or_zero(x, 2.0 + x * x)"),
        // Scores are between -4 and 4: finite differences cross no kink.
        ("", "abs(x - 4.0) + abs(x + 4.0) * 0.5 + max(x, -4.0) + max(x, 4.0) - min(x, 4.0) * 0.5 - min(x, -4.0)"),
        ("", "select(pos(i) > pos(j) + 2, x, 0.5 * x)"),
        ("", "x + floor(x * 0.125 + 0.5)"),
    ];
    for (params, changed) in plain {
        check(&scored(params, changed), SIZES, "q,k,v", "o,lse", &[("scale", Value::Float(0.75))]);
    }
    for changed in ["x + load(bias, [b, h, i, j])", "x * tanh(load(bias, [b, h, i, j]))"] {
        check(&scored(bias, changed), SIZES, "q,k,v,bias", "o", &[("scale", Value::Float(0.75))]);
    }
    // Bounds of what is no number for the pairs that the mask hides.
    let far = "(pos(i) + N - M - pos(j)).to::<f32>()";
    for bounded in ["min(sqrt(exp(load(c, [h])) * FAR + 0.1), 2.5)", "max(ln(1.0 + exp(load(c, [h])) * FAR), 0.4)"] {
        let changed = format!("x - load(w, [h]) * {}", bounded.replace("FAR", far));
        let params = "w: &Tensor<f32, (H)>, c: &Tensor<f32, (H)>,";
        check(&scored(params, &changed), SIZES, "q,k,v,w,c", "o", &[("scale", Value::Float(0.75))]);
    }
    // What takes the place of scores is that of a pair of the group, as the scores are.
    let own = "own: &Tensor<f32, (B, G, N)>,";
    let replaced = [
        ("", "select(pos(i) > pos(j) + 2, x, -0.5)", "q,k,v"),
        (own, "select(pos(i) > pos(j) + 2, x, -load(own, [b, g, j]))", "q,k,v,own"),
    ];
    for (params, changed, of) in replaced {
        for form in [Form::Plain, Form::Fused] {
            check_in(form, &scored(params, changed), SIZES, of, "o,lse", &[("scale", Value::Float(0.75))]);
        }
    }
    // Keys that each head changes in its own way, of a group that several heads share.
    let text = source_of("runtime/kernels", "causal_attention");
    let keys = "load(k, [b, g, j, ..]).t()";
    let made = text
        .replace(keys, "(tanh(load(k, [b, g, j, ..]) * load(gain, [h, j])) * load(by, [h])).to::<T>().t()")
        .replace("scale: f32,", "scale: f32, gain: &Tensor<f32, (H, N)>, by: &Tensor<f32, (H)>,");
    assert!(made.contains("gain, [h, j]"), "the keys are in the text");
    check(&kernel(&made), SIZES, "q,k,v,gain", "o", &[("scale", Value::Float(0.75))]);
    // A number for each row, and for each column.
    let own = "own: &Tensor<f32, (B, H, M)>, of: &Tensor<f32, (B, N)>,";
    let changed = "x * load(own, [b, h, i]) + load(of, [b, j])";
    check(&scored(own, changed), SIZES, "q,k,v,own,of", "o,lse", &[("scale", Value::Float(0.75))]);
}

#[test]
fn what_follows_the_loop_has_its_gradient() {
    let text = |store: &str| {
        let text = source_of("runtime/kernels", "attention");
        let plain = "store(o, [b, h, i, ..], div_or_zero(acc, l));";
        let made = text.replace(plain, &format!("store(o, [b, h, i, ..], {store});"));
        assert_ne!(text, made, "the store is in the text");
        kernel(&made.replace("scale: f32,", "scale: f32, gate: &Tensor<T, (B, H, M, D)>, own: &Tensor<f32, (B, H, M)>,"))
    };
    for store in [
        "div_or_zero(acc, l) * tanh(load(gate, [b, h, i, ..])) + load(own, [b, h, i])",
        "tanh(acc / l) * load(own, [b, h, i]) - load(gate, [b, h, i, ..])",
        "acc / l * load(own, [b, h, i]) * (m + ln(l)) + load(gate, [b, h, i, ..])",
        // What the forward pass stored in the type of the output is compared with floats, and chosen.
        // Quotients are within -4 and 4: finite differences cross no kink.
        "select(acc / l > -4.0, acc / l, 0.9 * (acc / l)) * load(own, [b, h, i]) + load(gate, [b, h, i, ..])",
        "select(load(own, [b, h, i]) > 0.0, acc / l, load(own, [b, h, i]) * (acc / l)) + load(gate, [b, h, i, ..])",
    ] {
        check(&text(store), SIZES, "q,k,v,gate,own", "o,lse", &[("scale", Value::Float(0.75))]);
    }
}

/// Inputs that all programs load, with several dimensions of one element.
#[test]
fn what_has_several_dimensions_of_1_has_its_gradient() {
    let plain = "store(o, [b, h, i, ..], div_or_zero(acc, l));";
    for (shape, place) in [("1, 1, M", "0, 0, i"), ("1, 1, M, D", "0, 0, i, .."), ("H, 1, 1", "h, 0, 0"), ("1, 1, D", "0, 0, ..")]
    {
        let store = format!("store(o, [b, h, i, ..], div_or_zero(acc, l) * load(u, [{place}]));");
        let text = source_of("runtime/kernels", "attention").replace(plain, &store);
        let text = text.replace("scale: f32,", &format!("scale: f32, u: &Tensor<f32, ({shape})>,"));
        check(&kernel(&text), SIZES, "q,u", "o", &[("scale", Value::Float(0.75))]);
    }
}

/// Factors of the whole program that are no numbers where nothing is seen.
#[test]
fn what_sees_nothing_has_gradients_of_0_whatever_the_factor() {
    let text = source_of("runtime/kernels", "attention");
    let scores = "let s = dot(q_i, load(k, [b, g, j, ..]).t()) * scale;";
    let cases = [
        ("* rsqrt(load(lens, [b]).to::<f32>())", "q,k,v"),
        ("* (1.0 / load(lens, [b]).to::<f32>())", "q,k,v"),
        ("- load(sl, [h]) * pos(j) / load(lens, [b]).to::<f32>()", "q,k,v,sl"),
    ];
    for (factor, of) in cases {
        let own = scores
            .replace(" * scale", &format!(" * scale {factor}"))
            .replace(';', "; let s = mask(s, pos(j) < load(lens, [b]));");
        let made = text.replace(scores, &own);
        assert_ne!(text, made, "the scores are in the text");
        let params = ["lens: &Tensor<i32, (B)>,", if of.contains("sl") { "sl: &Tensor<f32, (H)>," } else { "" }].concat();
        let made = made.replace("scale: f32,", &format!("scale: f32, {params}"));
        let given = [("scale", Value::Float(0.75)), ("lens", ints(&[3], |n| [0, 11, 5][n]))];
        check(&kernel(&made), "B=3,H=4,G=2,M=9,N=11,D=4", of, "o", &given);
    }
}

#[test]
fn kinks_have_the_slope_between_those_of_their_sides() {
    let text = "pub fn kinks(x: &Tensor<f32, (M)>, a: &Tensor<f32, (M)>, b: &Tensor<f32, (M)>, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let (x_i, a_i, b_i) = (load(x, [i]), load(a, [i]), load(b, [i]));
        store(y, [i], abs(x_i) + max(a_i, b_i) * 3.0 + min(b_i, a_i));
    }";
    let at = |name| (name, ints(&[5], |at| at as i64 - 2));
    let zeros = ("x", ints(&[5], |at| (at / 4) as i64));
    check(&kernel(text), "M=5", "x,a,b", "y", &[zeros, at("a"), at("b")]);
}

#[test]
fn scores_that_reach_a_bound_keep_their_gradient_in_every_form() {
    // Scores of 0, and a bound of 0 for each head, of which groups share keys.
    let bounded = scored("bound: &Tensor<f32, (H)>,", "max(x, load(bound, [h]))");
    let sizes = sizes(SIZES);
    let zeros = |shape: &[usize]| Value::Tensor(shape.to_vec(), vec![0.0; shape.iter().product()]);
    let given = [("scale", Value::Float(0.75)), ("bound", zeros(&[4])), ("q", zeros(&[2, 4, 9, 4]))];
    let values = inputs(&bounded, &sizes, &given.map(|(name, value)| (name.to_owned(), value)).into());
    let weights = Values::from([("o".to_owned(), Value::Tensor(vec![2, 4, 9, 4], numbers(288, 5)))]);
    let found = |form: Form, of: &str| {
        let all = by_kernels(&made_in(form, &bounded, of, "o"), &sizes, &Blocks::WholeLoops(4), &values, &weights);
        tensor(&all, "grad_q").1.to_vec()
    };
    let expected = found(Form::Plain, "q,k,v");
    assert!(expected.iter().any(|x| x.abs() > 1e-3));
    for of in ["q,k,v", "q,k,v,bound", "q"] {
        for form in Form::ALL {
            // A number of each head has no fused form, and rows alone have neither that nor shares.
            if (form.is_fused() && of != "q,k,v") || (form.has_shares() && of == "q") {
                continue;
            }
            let same = found(form, of).iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5);
            assert!(same, "{form:?} of {of}");
        }
    }
}

#[test]
fn what_programs_share_has_its_gradient() {
    let scale = ("scale", Value::Float(0.75));
    let float = |name, x| (name, Value::Float(x));
    check(&builtin("alibi_attention"), SIZES, "q,slopes", "o,lse", std::slice::from_ref(&scale));
    check(&builtin("sink_attention"), SIZES, "k,sinks", "o,lse", std::slice::from_ref(&scale));
    check(&builtin("bias_attention"), SIZES, "q,k,v,bias", "o", std::slice::from_ref(&scale));
    check(&builtin("query_norm_attention"), SIZES, "weight,q", "o", &[scale.clone(), float("eps", 0.125)]);
    check(&builtin("rope_attention"), "B=2,H=4,G=2,M=9,N=9,D=4,C=2", "q,k,v", "o", std::slice::from_ref(&scale));
    // One number for all programs, and one for each head beside it.
    let params = "one: &Tensor<f32, (1)>, first: &Tensor<T, (1, H)>,";
    let changed = "x * load(one, [0]) + tanh(load(one, [0]) * x) * load(first, [0, h])";
    check(&scored(params, changed), SIZES, "one,first,q,k,v", "o,lse", std::slice::from_ref(&scale));
    // A number for each head and each batch, a curve of it, and one row of numbers for all heads.
    let params = "by: &Tensor<f32, (H)>, of: &Tensor<f32, (B)>, own: &Tensor<f32, (M)>, row: &Tensor<f32, (B, H, M)>,";
    let changed = "x * exp(load(by, [h])) + load(of, [b]) * load(own, [i]) * (pos(i) - pos(j)) * load(row, [b, h, i])";
    check(&scored(params, changed), SIZES, "by,of,own,row,q", "o,lse", std::slice::from_ref(&scale));
}

#[test]
fn what_is_gathered_has_its_gradient() {
    // Buckets that several pairs share, some of them beyond the ends; a table of the type of the
    // keys, whose sums are rounded in a kernel of their own.
    let bucket = ("bucket", ints(&[9, 11], |at| (at * 7 % 13) as i64 - 3));
    let kind = ("kind", ints(&[2, 9], |at| (at * 5 % 7) as i64 - 1));
    let scale = ("scale", Value::Float(0.75));
    let given = [scale.clone(), bucket];
    let table = "bucket: &Tensor<i32, (M, N)>, table: &Tensor<T, (H, 6)>,";
    for form in [Form::Plain, Form::Fused] {
        check_in(form, &scored(table, "x + load(table, [h, load(bucket, [i, j])])"), SIZES, "q,k,v,table", "o,lse", &given);
        // Two places of one table for each pair, whose product is added.
        let twice = "x + load(table, [h, abs(pos(i) - pos(j))]) * load(table, [3, load(bucket, [i, j])])";
        check_in(form, &scored(table, twice), SIZES, "q,k,v,table", "o", &given);
    }
    let twice = scored(table, "x + load(table, [h, load(bucket, [i, j])])");
    let made = made(&twice, "q,table", "o").backward;
    assert_eq!(made.iter().filter(|kernel| kernel.name.ends_with("grad_table")).count(), 1, "one rounds the sums");
    // A number for each row, which batches and heads share.
    let of_rows = "kind: &Tensor<i32, (B, M)>, by: &Tensor<f32, (5)>,";
    let changed = scored(of_rows, "x * exp(load(by, [load(kind, [b, i])]))");
    check(&changed, SIZES, "q,by", "o,lse", &[scale.clone(), kind]);
    let error = gradient(&changed, &request_in(Form::Fused, "q,k,v,by", "o")).expect_err("has none");
    assert!(error.what.contains("gathered for rows") && error.instead.contains("plain form"), "{error}");
    // A number for each column, of its kind, changed before it meets the scores.
    let of_columns = "kind: &Tensor<i32, (B, N)>, by: &Tensor<f32, (H, 5)>,";
    let kind = ("kind", ints(&[2, 11], |at| (at * 5 % 7) as i64 - 1));
    let changed = scored(of_columns, "x * exp(load(by, [h, load(kind, [b, j])]) * 0.5) + load(by, [0, load(kind, [b, j])])");
    check(&changed, SIZES, "q,by", "o,lse", &[scale.clone(), kind.clone()]);
    check_in(Form::Fused, &changed, SIZES, "q,k,v,by", "o,lse", &[scale, kind]);
}

#[test]
fn what_is_gathered_for_columns_has_its_gradient_from_kernels_of_columns() {
    let kind = ("kind", ints(&[2, 11], |at| (at * 5 % 7) as i64 - 1));
    let of_rows = ("mine", ints(&[2, 9], |at| (at * 3 % 5) as i64));
    let given = [("scale", Value::Float(0.75)), kind, of_rows];
    let text = source_of("runtime/kernels", "attention").replace("scale: f32,", "scale: f32, kind: &Tensor<i32, (B, N)>, @");
    // Weights of keys, of all heads and of each; heads share keys.
    let keys = "load(k, [b, g, j, ..]).t()";
    let by_kind = |shape: &str, at: &str| {
        let weighted = format!("(load(k, [b, g, j, ..]) * load(w, [{at}load(kind, [b, j])])).to::<T>().t()");
        kernel(&text.replace(keys, &weighted).replace('@', &format!("w: &Tensor<f32, {shape}>,")))
    };
    for weighted in [by_kind("(6)", ""), by_kind("(H, 6)", "h, "), by_kind("(G, 6)", "g, ")] {
        check(&weighted, SIZES, "w", "o", &given[..2]);
        for form in [Form::Plain, Form::Fused, Form::PlainShares, Form::FusedShares] {
            check_in(form, &weighted, SIZES, "q,k,v,w", "o,lse", &given[..2]);
        }
        let made = made(&weighted, "w", "o").backward;
        let adds = |kernel: &&Kernel| kernel.params.values().any(|param| param.kind.is_sum());
        let names: Vec<&str> = made.iter().filter(adds).map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["attention_grad_columns"], "no kernel adds for each pair");
    }
    // One table for rows, for columns, and for pairs.
    let params = "kind: &Tensor<i32, (B, N)>, mine: &Tensor<i32, (B, M)>, w: &Tensor<T, (H, 6)>,";
    let (column, row) = ("load(w, [h, load(kind, [b, j])])", "load(w, [0, load(mine, [b, i])])");
    let pair = "load(w, [1, load(kind, [b, j]) + load(mine, [b, i])])";
    check(&scored(params, &format!("x * {row} + {column}")), SIZES, "q,k,v,w", "o,lse", &given);
    let all = scored(params, &format!("x * {row} + {column} * {pair}"));
    check(&all, SIZES, "q,k,v,w", "o", &given);
    let of_steps = scored(params, &format!("x + {column} * {pair}"));
    for form in [Form::Plain, Form::Fused, Form::PlainShares, Form::FusedShares] {
        check_in(form, &of_steps, SIZES, "q,k,v,w", "o,lse", &given);
    }
}

#[test]
fn what_is_added_to_places_has_its_gradient() {
    let text = "pub fn by_kind(x: &Tensor<f32, (B, M)>, kind: &Tensor<i32, (B, M)>, y: &mut Tensor<f32, (B, K)>) {
        let (b, i) = program(B, tiles(M));
        let x_i = load(x, [b, i]);
        add(y, [b, load(kind, [b, i])], x_i * x_i);
    }";
    check(&kernel(text), "B=2,M=13,K=4", "x", "y", &[("kind", ints(&[2, 13], |at| (at * 5 % 7) as i64 - 1))]);
}

#[test]
fn sums_start_where_they_are_told() {
    // The sink of each row, the sum and the output that it starts from.
    let text = source_of("runtime/kernels", "sink_attention");
    let text = text
        .replace(
            "sinks: &Tensor<f32, (H)>,",
            "sinks: &Tensor<f32, (B, H, M)>, l0: &Tensor<f32, (H, M)>, o0: &Tensor<f32, (M, D)>,",
        )
        .replace("full(i, load(sinks, [h]))", "load(sinks, [b, h, i])")
        .replace("full(i, 1.0)", "exp(load(l0, [h, i]))")
        .replace("let mut acc = zeros((i, D));", "let mut acc = load(o0, [i, ..]) * 1.0;");
    let made = kernel(&text);
    check(&made, SIZES, "q,k,v,sinks,l0,o0", "o,lse", &[("scale", Value::Float(0.75))]);
    let in_twos = text
        .replace("exp(m - m_ref)", "exp2(m - m_ref)")
        .replace("exp(s - m_ref)", "exp2(s - m_ref)")
        .replace("ln(l)", "log2(l)");
    check(&kernel(&in_twos), SIZES, "q,sinks,l0,o0", "o,lse", &[("scale", Value::Float(0.75))]);
}

/// Several `+=` in a step, of one variable, also of one value: each term has the gradient of the
/// sum.
#[test]
fn sums_of_several_terms_have_gradients() {
    let two = kernel(
        "pub fn two<T: Element>(
            x: &Tensor<T, (M, K)>, w: &Tensor<T, (N, K)>, x2: &Tensor<T, (M, K)>, w2: &Tensor<T, (N, K)>,
            y: &mut Tensor<T, (M, N)>,
        ) {
            let (i, j) = program(tiles(M), tiles(N));
            let mut a = zeros((i, j));
            for k in tiles(K) {
                a += dot(load(x, [i, k]), load(w, [j, k]).t());
                a += dot(load(x2, [i, k]), load(w2, [j, k]).t());
            }
            store(y, [i, j], a);
        }",
    );
    check(&two, "M=5,N=7,K=11", "x,w,x2,w2", "y", &[]);
    let rows = kernel(
        "pub fn rows<const D: usize>(q: &Tensor<f32, (M, D)>, k: &Tensor<f32, (N, D)>, y: &mut Tensor<f32, (M)>) {
            let i = program(tiles(M));
            let mut a = zeros(i);
            for j in tiles(N) {
                let s = rowsum(sin(dot(load(q, [i, ..]), load(k, [j, ..]).t())));
                a += s;
                a = s + a;
                a += rowsum(cos(dot(load(q, [i, ..]), load(k, [j, ..]).t())));
            }
            store(y, [i], a);
        }",
    );
    check(&rows, "M=5,N=17,D=8", "q,k", "y", &[]);
}

#[test]
fn gradients_of_kernels_with_several_loops_are_those_of_finite_differences() {
    let eps = ("eps", Value::Float(0.125));
    check(&builtin("rms_norm"), "M=9,N=7", "x,w", "y", std::slice::from_ref(&eps));
    check(&builtin("rms_norm"), "M=9,N=7", "w", "y", std::slice::from_ref(&eps));
    check(&builtin("layer_norm"), "M=7,N=11", "x,w,bias", "y", std::slice::from_ref(&eps));
    check(&builtin("row_softmax"), "M=5,N=17", "x", "y", &[]);
    // Two loops that go on with one softmax, whose sums have the same names.
    let go_on = |end: &str| {
        let walk = |k: &str, v: &str, at: &str| {
            format!(
                "for {at} in tiles(N) {{
                    let s = dot(q_i, load({k}, [{at}, ..]).t());
                    let m_new = max(m, rowmax(s));
                    let m_ref = visible_or_zero(m_new);
                    l = l * exp(m - m_ref) + rowsum(exp(s - m_ref));
                    acc = acc * exp(m - m_ref) + dot(exp(s - m_ref).to::<T>(), load({v}, [{at}, ..]));
                    m = m_new;
                }}"
            )
        };
        kernel(&format!(
            "pub fn two<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>,
                k2: &Tensor<T, (N, D)>, v2: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>, lse: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let q_i = load(q, [i, ..]);
                let mut m = full(i, -INF);
                let mut l = zeros(i);
                let mut acc = zeros((i, D));
                {}
                {}
                store(o, [i, ..], acc / l);
                {end}
            }}",
            walk("k", "v", "j"),
            walk("k2", "v2", "t")
        ))
    };
    for (kernel, from) in [(go_on("store(lse, [i], l * exp(-m));"), "o"), (go_on("store(lse, [i], m + ln(l));"), "o,lse")] {
        for of in ["q,k,v,k2,v2", "k", "v", "q,k2", "k,v2"] {
            check(&kernel, "M=5,N=7,D=2", of, from, &[]);
        }
    }
    // No loop.
    check(&builtin("rotate"), "B=2,H=3,N=9,D=4,C=3", "x", "y", &[]);
    // A norm whose rows and columns have numbers of their own, and which gives its scale too.
    let text = "pub fn own<T: Element>(
        x: &Tensor<T, (B, M, N)>, gain: &Tensor<f32, (M)>, shift: &Tensor<f32, (B, N)>, both: &Tensor<f32, (M, N)>,
        y: &mut Tensor<T, (B, M, N)>, r: &mut Tensor<f32, (B, M)>,
    ) {
        let (b, i) = program(B, tiles(M));
        let mut most = full(i, 0.0);
        for j in tiles(N) { most += rowsum(abs(load(x, [b, i, j]) * load(both, [i, j]) + 4.0)) * load(gain, [i]); }
        let s = exp(0.125 * most / N);
        store(r, [b, i], s);
        for j in tiles(N) {
            store(y, [b, i, j], tanh(load(x, [b, i, j]) * s + load(shift, [b, j])) * load(both, [i, j]));
        }
    }";
    check(&kernel(text), "B=2,M=7,N=5", "x,shift,both", "y,r", &[]);
}

#[test]
fn gradients_of_products_are_those_of_finite_differences() {
    check(&builtin("matmul_gelu"), "M=7,N=5,K=9", "a,b,bias", "c", &[]);
    check(&builtin("matmul_gelu"), "M=7,N=5,K=9", "bias", "c", &[]);
    check(&builtin("swiglu"), "M=7,N=9,K=5", "x,gate,up", "y", &[]);
    // Weights that batches and heads share, numbers on the way into the product, and all that may
    // be added behind it.
    let text = "pub fn layer<T: Element>(
        x: &Tensor<T, (B, H, M, K)>, w: &Tensor<T, (H, K, N)>, by: &Tensor<f32, (M, K)>, row: &Tensor<f32, (B, H, M)>,
        column: &Tensor<f32, (H, N)>, both: &Tensor<T, (B, M, N)>, y: &mut Tensor<T, (B, H, M, N)>, z: &mut Tensor<f32, (B, H, M, N)>,
    ) {
        let (b, h, i, j) = program(B, H, tiles(M), tiles(N));
        let mut acc = load(both, [b, i, j]) * 0.5;
        for k in tiles(K) {
            let a = tanh(load(x, [b, h, i, k])) * load(by, [i, k]);
            acc += dot(a.to::<T>(), load(w, [h, k, j]));
        }
        let s = acc * (1.0 + load(row, [b, h, i])) + load(column, [h, j]);
        store(y, [b, h, i, j], tanh(s) + load(both, [b, i, j]));
        store(z, [b, h, i, j], s * s);
    }";
    for of in ["x,w,by,row,column,both", "by", "w,column", "both"] {
        check(&kernel(text), "B=2,H=3,M=5,N=4,K=3", of, "y,z", &[]);
    }
    check(&kernel(text), "B=2,H=3,M=5,N=4,K=3", "x,row", "z", &[]);
}

/// Scales of quantised weights, one for each group of the summed dimension.
#[test]
fn elements_of_a_bias_at_an_index_have_gradients() {
    let text = |shape: &str, changed: &str| {
        kernel(&format!(
            "pub fn layer<T: Element>(x: &Tensor<T, (M, K)>, w: &Tensor<T, (K, N)>, bias: &Tensor<T, {shape}>,
                y: &mut Tensor<T, (M, N)>) {{
                let (i, j) = program(tiles(M), tiles(N));
                let mut a = zeros((i, j));
                for k in tiles(K) {{ a += dot(load(x, [i, k]), load(w, [k, j])); }}
                store(y, [i, j], {changed});
            }}"
        ))
    };
    for (shape, changed) in [
        ("(1, N)", "a + load(bias, [0, j])"),
        ("(3, N)", "a + load(bias, [1, j])"),
        ("(2, N)", "a + load(bias, [0, j]) + load(bias, [1, j])"),
        ("(2, N)", "a * load(bias, [0, j]) + load(bias, [1, j])"),
        ("(2, M)", "a + load(bias, [1, i])"),
    ] {
        check(&text(shape, changed), "M=5,N=7,K=3", "x,w,bias", "y", &[]);
        check(&text(shape, changed), "M=5,N=7,K=3", "bias", "y", &[]);
    }
}

#[test]
fn products_with_gathered_scales_have_gradients() {
    let text = "pub fn scaled<T: Element>(
        x: &Tensor<T, (M, K)>, w: &Tensor<T, (N, K)>, s: &Tensor<f32, (N, C)>, t: &Tensor<f32, (M)>, y: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut acc = zeros((i, j));
        for k in tiles(K) {
            let w_j = load(w, [j, k]) * load(s, [pos(j), pos(k) / 3]) * (pos(k) + pos(j) * 0.5);
            acc += dot(load(x, [i, k]), w_j.to::<T>().t());
        }
        store(y, [i, j], acc * load(t, [i]));
    }";
    for of in ["x,w,t", "x", "w"] {
        check(&kernel(text), "M=5,N=4,K=7,C=3", of, "y", &[]);
    }
    let refused = gradient(&kernel(text), &request("s", "y")).expect_err("has none");
    assert!(refused.what.contains("is gathered by a matrix product"), "{refused}");
}

/// Weights as `nn.Linear` has them: `x w^T`, of operands as they are loaded and as they are made.
#[test]
fn products_with_transposed_weights_have_gradients_in_the_order_of_the_weights() {
    for operand in ["load(x, [i, k])", "(tanh(load(x, [i, k])) * load(by, [i, k])).to::<T>()"] {
        let by = if operand.contains("by") { "by: &Tensor<f32, (M, K)>," } else { "" };
        let text = format!(
            "pub fn linear<T: Element>(
                x: &Tensor<T, (M, K)>, w: &Tensor<T, (N, K)>, u: &Tensor<T, (N, K)>, {by} y: &mut Tensor<T, (M, N)>,
            ) {{
                let (i, j) = program(tiles(M), tiles(N));
                let mut a = zeros((i, j));
                let mut b = zeros((i, j));
                for k in tiles(K) {{
                    let x_ik = {operand};
                    a += dot(x_ik, load(w, [j, k]).t());
                    b += dot(x_ik, (load(u, [j, k]) * 0.5).to::<T>().t());
                }}
                store(y, [i, j], tanh(a) * b);
            }}"
        );
        let of = if by.is_empty() { "x,w,u" } else { "x,w,u,by" };
        check(&kernel(&text), "M=7,N=5,K=9", of, "y", &[]);
        let gradient = made(&kernel(&text), "w,u", "y");
        for kernel in gradient.backward.iter().filter(|kernel| !kernel.name.ends_with("_pairs")) {
            let is_turned = |id: &OpId| match kernel.ops[*id].op {
                Op::Transpose(x) => matches!(kernel.def(x), Some((_, Op::Dot { .. }))),
                _ => false,
            };
            assert!(!kernel.walk().iter().any(|(_, id)| is_turned(id)), "{}", write(kernel).expect("a text"));
        }
    }
}

/// A sum that is an output has the gradient that is given of the output: nothing copies it.
#[test]
fn gradients_of_sums_that_are_outputs_are_read_as_they_are_given() {
    let linear = |y: &str, stored: &str| {
        let params = ["c: &Tensor<T, (N)>,", "d: &Tensor<T, (N)>,", "r: &Tensor<T, (M)>,"];
        let used = params.into_iter().filter(|param| stored.contains(&format!("load({},", &param[..1])));
        let used: String = used.collect();
        kernel(&format!(
            "pub fn linear<T: Element>(
                x: &Tensor<T, (B, M, K)>, w: &Tensor<T, (N, K)>, {used} y: &mut Tensor<{y}, (B, M, N)>,
            ) {{
                let (b, i, j) = program(B, tiles(M), tiles(N));
                let mut a = zeros((i, j));
                for k in tiles(K) {{ a += dot(load(x, [b, i, k]), load(w, [j, k]).t()); }}
                store(y, [b, i, j], {stored});
            }}"
        ))
    };
    let sizes = "B=2,M=7,N=5,K=9";
    let is_copied = |kernel: &Kernel, of: &str| made(kernel, of, "y").backward.iter().any(|k| k.name.ends_with("_pairs"));
    let both = "a + load(c, [j]) + load(d, [j])";
    let bias = ("a + load(c, [j])", "x,w,c");
    let of_rows = ("a + load(r, [i])", "r");
    for (stored, of) in [("a", "x,w"), bias, of_rows, (both, "x,w,c,d"), (both, "c,d"), (both, "d")] {
        let kernel = linear("T", stored);
        check(&kernel, sizes, of, "y", &[]);
        assert!(!is_copied(&kernel, of), "{stored}");
    }
    // What is computed of it, or rounded for a product, is stored.
    for (y, stored) in [("T", "a * 0.5"), ("f32", "a")] {
        let kernel = linear(y, stored);
        check(&kernel, sizes, "x,w", "y", &[]);
        assert!(is_copied(&kernel, "x,w"), "{y} {stored}");
    }
    // Two sums with one gradient, which is stored once.
    let summed = "pub fn summed<T: Element>(
        x: &Tensor<T, (M, K)>, w: &Tensor<T, (N, K)>, u: &Tensor<T, (N, K)>, y: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut a = zeros((i, j));
        let mut b = zeros((i, j));
        for k in tiles(K) {
            a += dot(load(x, [i, k]), load(w, [j, k]).t());
            b += dot(load(x, [i, k]), load(u, [j, k]).t());
        }
        store(y, [i, j], tanh(a + b));
    }";
    let summed = kernel(summed);
    check(&summed, "M=7,N=5,K=9", "x,w,u", "y", &[]);
    let pairs = made(&summed, "x,w,u", "y").backward.swap_remove(0);
    let stores = pairs.walk().into_iter().filter(|(_, id)| matches!(pairs.ops[*id].op, Op::Store { .. })).count();
    assert_eq!(stores, 1, "{}", write(&pairs).expect("a text"));
}

/// What columns have is made of what they load, and heads of a group share it: the gradient goes
/// back through what makes it behind the loop over heads, where no condition on heads is left.
#[test]
fn what_columns_of_grouped_heads_are_made_of_has_its_gradient() {
    let scale = [("scale", Value::Float(0.75))];
    let text = source_of("runtime/kernels", "attention");
    let (keys, values) = ("load(k, [b, g, j, ..]).t()", "load(v, [b, g, j, ..])");
    let weighted = text
        .replace(values, "(load(v, [b, g, j, ..]) * load(weight, [b, g, j])).to::<T>()")
        .replace("scale: f32,", "scale: f32, weight: &Tensor<T, (B, G, N)>,");
    let normed = "let k_j = load(k, [b, g, j, ..]); let k_n = k_j * rsqrt(rowsum(k_j * k_j) + 1.0); let s = ";
    let normed = text.replace("let s = ", normed).replace(keys, "k_n.to::<T>().t()");
    for (changed, of) in [(weighted, "q,k,v,weight"), (normed, "q,k,v")] {
        assert_ne!(changed, text);
        let kernel = kernel(&changed);
        for sizes in [SIZES, "B=1,H=5,G=2,M=7,N=6,D=3"] {
            for form in [Form::Plain, Form::PlainShares, Form::Fused] {
                check_in(form, &kernel, sizes, of, "o", &scale);
            }
        }
    }
    // Rows that are made of nothing but a sum, and one tensor for two operands.
    let text = "pub fn gated<T: Element, const D: usize>(
        q: &Tensor<T, (H, M, D)>, v: &Tensor<T, (G, N, D)>, w: &Tensor<T, (G, N)>, o: &mut Tensor<T, (H, M, D)>,
    ) {
        let (h, i) = program(H, tiles(M));
        let g = h * G / H;
        let q_i = load(q, [h, i, ..]);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let s = dot(q_i, load(v, [g, j, ..]).t());
            acc += dot(s.to::<T>(), (load(v, [g, j, ..]) * load(w, [g, j])).to::<T>());
        }
        store(o, [h, i, ..], acc);
    }";
    check(&kernel(text), "H=4,G=2,M=5,N=6,D=3", "q,v,w", "o", &[]);
}

#[test]
fn pairs_that_are_loaded_in_the_other_order_have_their_gradients() {
    for term in ["load(x, [j, i]).t()", "tanh(load(x, [j, i]).t() * load(z, [i, j]))"] {
        let (z, of) = if term.contains('z') { ("z: &Tensor<T, (M, N)>,", "x,z") } else { ("", "x") };
        let text = format!(
            "pub fn columns<T: Element>(x: &Tensor<T, (N, M)>, {z} y: &mut Tensor<T, (M)>) {{
                let i = program(tiles(M));
                let mut s = zeros(i);
                for j in tiles(N) {{ s += rowsum({term}); }}
                store(y, [i], s);
            }}"
        );
        check(&kernel(&text), "M=7,N=5", of, "y", &[]);
    }
    // A bias that has keys for its rows, of each head and of all.
    for (dims, at) in [("(H, N, M)", "[h, j, i]"), ("(N, M)", "[j, i]")] {
        let params = format!("bias: &Tensor<f32, {dims}>,");
        let changed = format!("x + load(bias, {at}).t()");
        check(&scored(&params, &changed), SIZES, "bias,q,k", "o,lse", &[("scale", Value::Float(0.75))]);
    }
    let text = "pub fn turned<T: Element>(
        a: &Tensor<T, (M, K)>, b: &Tensor<T, (K, N)>, bias: &Tensor<T, (N, M)>, y: &mut Tensor<T, (N, M)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut acc = zeros((i, j));
        for k in tiles(K) { acc += dot(load(a, [i, k]), load(b, [k, j])); }
        store(y, [j, i], (tanh(acc) * load(bias, [j, i]).t()).t());
    }";
    check(&kernel(text), "M=7,N=5,K=4", "a,b,bias", "y", &[]);
    // One that batches share: its gradient is the sum of those of the sums, in the other order.
    let text = text
        .replace("a: &Tensor<T, (M, K)>", "a: &Tensor<T, (B, M, K)>")
        .replace("load(a, [i, k])", "load(a, [c, i, k])")
        .replace("y: &mut Tensor<T, (N, M)>", "y: &mut Tensor<T, (B, N, M)>")
        .replace("let (i, j) = program(", "let (c, i, j) = program(B, ")
        .replace(
            "store(y, [j, i], (tanh(acc) * load(bias, [j, i]).t()).t())",
            "store(y, [c, j, i], (acc + load(bias, [j, i]).t()).t())",
        );
    check(&kernel(&text), "B=2,M=7,N=5,K=4", "a,b,bias", "y", &[]);
}

/// Probabilities of which some are dropped, as a factor and by a `select` of 0.
#[test]
fn dropped_probabilities_have_their_gradients() {
    let scale = [("scale", Value::Float(0.75))];
    let text = source_of("runtime/kernels", "causal_attention");
    let text = text.replace("scale: f32,", "scale: f32, keep: &Tensor<f32, (B, H, M, N)>,");
    for dropped in [
        "p * select(load(keep, [b, h, i, j]) > 0.0, 1.25, 0.0)",
        "select(load(keep, [b, h, i, j]) > 0.0, p * 1.25, 0.0)",
        "select(load(keep, [b, h, i, j]) > 0.0, 0.0, p)",
        "select(load(keep, [b, h, i, j]) > 0.0, p * 1.25, p * 0.25)",
    ] {
        let text = text.replace("dot(p.to::<T>()", &format!("dot(({dropped}).to::<T>()"));
        for form in [Form::Plain, Form::Fused] {
            check_in(form, &kernel(&text), SIZES, "q,k,v", "o,lse", &scale);
        }
    }
}

/// A value that one use masks has the gradient of the others everywhere.
#[test]
fn what_one_use_hides_has_the_gradient_of_the_others() {
    for hidden in ["mask(p, seen)", "mask(p * 0.5, seen)", "mask(exp(p), seen) + p", "mask(mask(p, pos(j) > 1), seen)"] {
        let text = format!(
            "pub fn two<T: Element, const D: usize>(
                q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, keep: &Tensor<f32, (M, N)>,
                o: &mut Tensor<T, (M, D)>, l: &mut Tensor<f32, (M)>, t: &mut Tensor<f32, (M)>,
            ) {{
                let i = program(tiles(M));
                let mut acc = zeros((i, D));
                let mut sum = zeros(i);
                let mut squares = zeros(i);
                for j in tiles(N) {{
                    let seen = load(keep, [i, j]) > 0.0;
                    let p = tanh(dot(load(q, [i, ..]), load(k, [j, ..]).t()));
                    acc += dot(({hidden}).to::<T>(), load(v, [j, ..]));
                    sum += rowsum(p);
                    squares += rowsum(mask(p, load(keep, [i, j]) < 0.25) * p);
                }}
                store(o, [i, ..], acc);
                store(l, [i], sum);
                store(t, [i], squares);
            }}"
        );
        for (form, from) in [(Form::Plain, "o,l"), (Form::Fused, "o,l"), (Form::Plain, "o,t"), (Form::Plain, "o,l,t")] {
            println!("{form:?}, {from}: {hidden}");
            check_in(form, &kernel(&text), "M=7,N=6,D=3", "q,k,v", from, &[]);
        }
    }
}

/// Where another output is made of what has no gradient, those that are given have theirs.
/// A store writes hidden elements too: their gradients are 0, not `-INF`, and what is not masked has
/// its gradient there. Scores of functions that mask in one branch alone, as for text and images.
#[test]
fn what_is_hidden_where_gradients_are_stored_is_0() {
    let pairs = "x: &Tensor<f32, (M, N)>, w: &Tensor<f32, (M, N)>, r: &Tensor<f32, (M)>, y: &mut Tensor<f32, (M, N)>";
    let values = [
        "exp(mask(x_ij, c)) * w_ij + load(r, [i])",
        "visible_or_zero(mask(x_ij, c)) * w_ij * load(r, [i])",
        "sin(visible_or_zero(mask(w_ij, c)) + visible_or_zero(mask(w_ij, d)) * x_ij) - load(r, [i])",
        "x_ij * load(r, [i]) / (1.0 + exp(mask(x_ij, c))) + max(mask(w_ij, d), 4.0)",
        "select(d, exp(mask(x_ij * load(r, [i]), c)), x_ij * w_ij)",
    ];
    for value in values {
        let text = format!(
            "pub fn f({pairs}) {{
                let (i, j) = program(tiles(M), tiles(N));
                let c = pos(i) >= pos(j);
                let d = pos(j) > 2;
                let x_ij = load(x, [i, j]);
                let w_ij = load(w, [i, j]);
                store(y, [i, j], {value});
            }}"
        );
        println!("{value}");
        check(&kernel(&text), "M=7,N=6", "x,w,r", "y", &[]);
    }
    let bias = "bias: &Tensor<f32, (B, H, M, N)>,";
    for changed in [
        "x + select(pos(j) > 2, select(pos(i) > 4, load(bias, [b, h, i, j]), -INF), 0.0)",
        "select(pos(j) > 2, select(pos(i) > 4, x + load(bias, [b, h, i, j]), -INF), x)",
        "select(pos(j) > 2, x + select(pos(i) > 4, load(bias, [b, h, i, j]), -INF), x)",
        "visible_or_zero(mask(load(bias, [b, h, i, j]), pos(i) > pos(j) + 1)) * x",
    ] {
        println!("{changed}");
        check(&scored(bias, changed), SIZES, "q,k,bias", "o", &[("scale", Value::Float(0.75))]);
    }
}

/// Sums of values that masks hide in different places, by selections too: `s`, `b` and `c` are loaded
/// pairs, `d` a number of each column.
#[test]
fn what_masks_hide_of_parts_of_sums_has_no_part_in_gradients() {
    let some = "let e = exp(mask(s, pos(i) >= pos(j))); let n = select(pos(i) + 4 > pos(j), s, e);";
    let steps = [
        (format!("{some} store(p, [i, j], c); t += rowsum(s * b) + rowsum(n * b);"), "x,y,z"),
        (format!("{some} store(p, [i, j], c); t += rowsum(n * b * c) + rowsum(b * s);"), "x,y,z"),
        ("let n = select(pos(i) >= pos(j), b * c, mask(b, pos(i) >= pos(j))); t += rowsum(n * c) + rowsum(b * c);".into(), "y,z"),
        ("let n = select(pos(i) >= 4, b * c, exp(mask(b, pos(i) >= pos(j)))); t += rowsum(n * c) + rowsum(b * c);".into(), "y,z"),
        ("let f = b * d - exp(mask(s, pos(j) < 5)); t += rowsum(f * c) + rowsum(exp(mask(f, pos(i) + 2 > pos(j))));".into(), "x,y,z,w"),
        ("let f = b * d - exp(mask(s, pos(i) % 2 == 0)); t += rowsum((f + b) * c) + rowsum(exp(mask(f, pos(i) + 2 > pos(j))));".into(), "x,y,z,w"),
        ("t += rowsum(exp(mask(s * d, pos(j) > 3)) + s);".into(), "x,w"),
        ("t += rowsum(exp(mask(abs(s), pos(i) >= pos(j))) + s * b);".into(), "x,y"),
        ("let n = max(mask(b, pos(i) >= pos(j)), s); t += rowsum(n) + rowsum(s * s);".into(), "x,y"),
        ("let n = select(pos(j) < 4, mask(s, pos(i) >= pos(j)), s); t += rowsum(n * b + s);".into(), "x,y"),
        ("t += rowsum(s * mask(b, pos(i) >= pos(j)));".into(), "x,y"),
        ("let n = mask(s, pos(i) >= pos(j)); t += rowsum(ln(n * n + 0.5));".into(), "x"),
        ("let n = mask(v.t(), pos(j) < pos(i) + 3); let m = mask(n, pos(j) % 3 != 1); t += rowsum(n * m * 0.5 * s);".into(), "v,x"),
    ];
    let loads = [("s", "x", "(M, N)"), ("b", "y", "(M, N)"), ("c", "z", "(M, N)"), ("d", "w", "(N)"), ("v", "v", "(N, M)")];
    for (step, of) in steps {
        let used = || loads.iter().filter(|(_, tensor, _)| of.split(',').any(|name| name == *tensor));
        let params: String = used().map(|(_, tensor, shape)| format!("{tensor}: &Tensor<f32, {shape}>, ")).collect();
        let place = |shape: &str| match shape {
            "(N)" => "[j]",
            "(N, M)" => "[j, i]",
            _ => "[i, j]",
        };
        let lines: String =
            used().map(|(name, tensor, shape)| format!("let {name} = load({tensor}, {}); ", place(shape))).collect();
        let stores = step.contains("store(p");
        let output = if stores { "p: &mut Tensor<f32, (M, N)>, " } else { "" };
        let text = format!(
            "pub fn f({params}{output}o: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let mut t = zeros(i);
                for j in tiles(N) {{ {lines}{step} }}
                store(o, [i], t);
            }}"
        );
        println!("{step}");
        check(&kernel(&text), "M=7,N=9", of, if stores { "o,p" } else { "o" }, &[]);
    }
}

/// A mask that hides elements of what is summed, where what is stored of them counts too: each way
/// gives what it counts.
#[test]
fn what_is_stored_and_summed_of_hidden_elements_counts_where_it_does() {
    for (stored, summed) in [
        ("e * b", "(e + b) * c"),
        ("e + b * c", "e * b"),
        ("max(e, 0.5) * b", "b * c"),
        ("b * (1.0 + e) * c", "mask(b, pos(j) % 2 == 0) * c"),
        ("select(pos(i) % 2 == 0, e * c, b)", "tanh(e * b)"),
        ("(e + b) * c", "(e + b) * c + e"),
    ] {
        let text = format!(
            "pub fn f(x: &Tensor<f32, (M, N)>, y: &Tensor<f32, (M, N)>, p: &mut Tensor<f32, (M, N)>, o: &mut Tensor<f32, (M)>) {{
                let i = program(tiles(M));
                let mut t = zeros(i);
                for j in tiles(N) {{
                    let b = load(y, [i, j]);
                    let c = load(x, [i, j]);
                    let e = exp(mask(c, pos(j) < 5));
                    store(p, [i, j], {stored});
                    t += rowsum({summed});
                }}
                store(o, [i], t);
            }}"
        );
        println!("{stored}, {summed}");
        check(&kernel(&text), "M=7,N=9", "x,y", "o,p", &[]);
    }
}

#[test]
fn what_no_given_output_depends_on_is_left_out() {
    let text = "pub fn top<T: Element, const D: usize>(
        x: &Tensor<T, (M, D)>, w: &Tensor<T, (E, D)>, u: &Tensor<T, (M)>,
        lse: &mut Tensor<f32, (M)>, index: &mut Tensor<i32, (M)>, most: &mut Tensor<f32, (M)>, count: &mut Tensor<f32, (E)>,
    ) {
        let i = program(tiles(M));
        let mut m = full(i, -INF);
        let mut l = zeros(i);
        let mut first = zeros(i);
        for j in tiles(E) {
            let s = dot(load(x, [i, ..]), load(w, [j, ..]).t());
            let mj = rowmax(s);
            let fj = -rowmax(select(s == mj, -pos(j).to::<f32>(), -INF));
            first = select(mj > m, fj, first);
            let m_new = max(m, mj);
            l = l * exp(m - m_new) + rowsum(exp(s - m_new));
            m = m_new;
        }
        store(index, [i], first.to::<i32>());
        store(lse, [i], m + ln(l));
        store(most, [i], m * load(u, [i]));
        add(count, [first.to::<i32>()], 1.0);
    }";
    check(&kernel(text), "M=7,E=5,D=4", "x,w", "lse", &[]);
    // What is loaded for other outputs alone has a gradient of 0.
    check(&kernel(text), "M=7,E=5,D=4", "u,w", "lse", &[]);
    let refused = |from: &str| gradient(&kernel(text), &request("x,w", from)).expect_err("has none").what;
    assert!(refused("lse,count").contains("`first` is no streaming reduction"));
    assert!(refused("most").contains("`m` is used otherwise than by"));
    // The logarithm of the sum serves the gradient of the quotient, whichever is given.
    let attention = builtin("causal_attention");
    assert_eq!(made(&attention, "q,k,v", "o").forward.params.len(), attention.params.len(), "it stores `lse` itself");
}

#[test]
fn gradients_of_layers_that_are_no_softmax_are_those_of_finite_differences() {
    let suite = |name: &str| kernel(&source_of("tests/kernels", name));
    let asked = |name: &str| kernel(&source_of("tests/asked", name));
    check(&suite("retention"), "B=2,H=3,N=9,D=4", "q,k,v,ln_gamma", "o", &[]);
    check(&asked("linear_parallel"), "B=2,H=3,N=9,D=4", "q,k,v", "o", &[]);
    check(&asked("matmul_residual"), "M=7,N=5,K=9", "a,w,bias,res", "y", &[]);
    check(&asked("bias_of_batch"), "B=2,H=4,G=2,M=9,N=11,D=4", "q,k,v", "o", &[("scale", Value::Float(0.75))]);
}

#[test]
fn inputs_that_are_loaded_in_parts_have_one_gradient() {
    let scale = [("scale", Value::Float(0.75))];
    // Rows, keys and values of one tensor, each with an index of its own.
    let packed = kernel(&source_of("tests/asked", "packed_qkv"));
    check(&packed, "B=2,H=3,N=9,D=4", "qkv", "o", &scale);
    check_in(Form::Fused, &packed, "B=2,H=3,N=9,D=4", "qkv", "o", &scale);
    // The same by ranges, and keys that are the values too.
    let text = source_of("tests/asked", "packed_qkv");
    let ranges = text
        .replace("(B, N, 3, H, D)", "(B, N, H, 3 * D)")
        .replace("i, 0, h, ..]", "i, h, ..D]")
        .replace("j, 1, h, ..]", "j, h, D..2 * D]")
        .replace("j, 2, h, ..]", "j, h, 2 * D..]");
    check(&kernel(&ranges), "B=2,H=3,N=9,D=4", "qkv", "o", &scale);
    let shared = ranges.replace("3 * D", "2 * D").replace("D..2 * D]", "D..]").replace("2 * D..]", "D..]");
    check(&kernel(&shared), "B=2,H=3,N=9,D=4", "qkv", "o", &scale);
}

#[test]
fn what_is_not_loaded_has_a_gradient_of_zero() {
    let scale = [("scale", Value::Float(0.75))];
    let text = source_of("runtime/kernels", "attention");
    let cases = [
        // Columns, heads, an index and a dimension of the grid that end before the tensor does.
        text.replace("q: &Tensor<T, (B, H, M, D)>", "q: &Tensor<T, (B, H, M, 2 * D)>").replace("h, i, ..]);\n", "h, i, D..]);\n"),
        text.replace("k: &Tensor<T, (B, G, N, D)>", "k: &Tensor<T, (B, 3, G, N, D)>")
            .replace("load(k, [b, g", "load(k, [b, 1, g"),
        text.replace("v: &Tensor<T, (B, G, N, D)>", "v: &Tensor<T, (B, G + 1, N, D)>"),
        text.replace("q: &Tensor<T, (B, H, M, D)>", "q: &Tensor<T, (B, H + 1, M, D)>"),
    ];
    for changed in cases {
        assert_ne!(changed, text);
        check(&kernel(&changed), SIZES, "q,k,v", "o", &scale);
        let made = made(&kernel(&changed), "q,k,v", "o").backward;
        assert_eq!(made.len(), 3, "zeros, rows and columns");
    }
    assert_eq!(made(&kernel(&text), "q,k,v", "o").backward.len(), 2, "all is loaded");
}

#[test]
fn gradients_of_scores_sum_to_nothing_and_those_of_values_to_those_of_outputs() {
    let kernel = kernel(&source_of("tests/asked", "bias_of_batch"));
    let sizes = sizes("B=2,H=3,G=3,M=9,N=11,D=4");
    let values = inputs(&kernel, &sizes, &Values::from([("scale".to_owned(), Value::Float(0.75))]));
    let weights = Values::from([("o".to_owned(), Value::Tensor(vec![2, 3, 9, 4], numbers(216, 5)))]);
    let found = by_kernels(&made(&kernel, "v,bias", "o"), &sizes, &Blocks::PerAxis(vec![4, 3, 2]), &values, &weights);
    // A bias is added to the scores: its gradient is theirs, and a row's probabilities sum to 1.
    let of_scores = tensor(&found, "grad_bias").1;
    assert!(of_scores.iter().any(|x| x.abs() > 1e-3));
    assert!(of_scores.chunks(11).all(|row| row.iter().sum::<f64>().abs() < 1e-6), "{of_scores:?}");
    let column = |data: &[f64], head: usize, rows: usize, d: usize| -> f64 {
        data[head * rows * 4..(head + 1) * rows * 4].iter().skip(d).step_by(4).sum()
    };
    let (of_values, of_outputs) = (tensor(&found, "grad_v").1, tensor(&weights, "o").1);
    for (head, d) in (0..6).flat_map(|head| (0..4).map(move |d| (head, d))) {
        let (x, y) = (column(of_values, head, 11, d), column(of_outputs, head, 9, d));
        assert!((x - y).abs() < 1e-5, "head {head}, column {d}: {x} for {y}");
    }
}

#[test]
fn rows_that_see_nothing_have_no_gradient() {
    let sizes = sizes("B=1,H=2,G=1,M=9,N=4,D=2");
    let kernel = builtin("causal_attention");
    let scale = Values::from([("scale".to_owned(), Value::Float(0.75))]);
    let values = inputs(&kernel, &sizes, &scale);
    let weights = Values::from([("o".to_owned(), Value::Tensor(vec![1, 2, 9, 2], numbers(36, 3)))]);
    let found = by_kernels(&made(&kernel, "q,k,v", "o"), &sizes, &Blocks::PerAxis(vec![2, 3, 1]), &values, &weights);
    for name in ["q", "k", "v"] {
        assert!(tensor(&found, &format!("grad_{name}")).1.iter().all(|x| x.is_finite()), "grad_{name}");
    }
    // The first five rows of each head see no key; the sixth sees one, whose weight is 1.
    let q = tensor(&found, "grad_q").1;
    assert!(q.chunks(18).all(|head| head[..10].iter().all(|&x| x == 0.0) && head[12..].iter().all(|&x| x != 0.0)), "{q:?}");
}

#[test]
fn what_has_no_gradient_is_refused_at_its_place() {
    let attention = builtin("attention");
    let refused = |kernel: &Kernel, of: &str, from: &str, what: &str| {
        let Err(error) = gradient(kernel, &request(of, from)) else { panic!("{}: {what}", kernel.name) };
        assert!(error.what.contains(what) && !error.instead.is_empty(), "{}: {error}", kernel.name);
    };
    refused(&attention, "x", "o", "`x` is not an input tensor of floats");
    refused(&attention, "scale", "o", "`scale` is not an input tensor of floats");
    refused(&attention, "q", "k", "`k` is not an output of floats");
    refused(&builtin("document_attention"), "document", "o", "`document` is not an input tensor of floats");
    let text = "pub fn top<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut m = full(i, -INF);
        for j in tiles(N) { m = max(m, rowmax(dot(load(q, [i, ..]), load(k, [j, ..]).t()))); }
        store(o, [i], m * 2.0);
    }";
    refused(&kernel(text), "q", "o", "`m` is used otherwise than by `acc / l` or `m + ln(l)`");
    // Which of two extents ends the index is not known.
    let text = source_of("runtime/kernels", "attention");
    let other = text.replace("v: &Tensor<T, (B, G, N, D)>", "v: &Tensor<T, (B, K, N, D)>");
    refused(&kernel(&other), "k", "o", "`g` is an index of dimensions of G and of K");
    let cubes = "pub fn cubes<T: Element>(x: &Tensor<T, (M, K)>, w: &Tensor<T, (K, N)>, y: &mut Tensor<T, (M, N)>) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut acc = zeros((i, j));
        for k in tiles(K) { acc = acc * 0.5 + dot(load(x, [i, k]), load(w, [k, j])); }
        store(y, [i, j], acc);
    }";
    refused(&kernel(cubes), "x", "y", "`acc` is no streaming reduction");
    // A sum beside the product that has rows alone.
    let adapted = "pub fn adapted<T: Element, const R: usize>(
        x: &Tensor<T, (M, K)>, w: &Tensor<T, (K, N)>, a: &Tensor<T, (K, R)>, b: &Tensor<T, (R, N)>, y: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut c = zeros((i, j));
        let mut u = zeros((i, R));
        for k in tiles(K) {
            c += dot(load(x, [i, k]), load(w, [k, j]));
            u += dot(load(x, [i, k]), load(a, [k, ..]));
        }
        store(y, [i, j], c + dot(u.to::<T>(), load(b, [.., j])));
    }";
    refused(&kernel(adapted), "x", "y", "`u` has not both of the tiled dimensions of the grid");
    // What the advice leaves: a product beside the loop.
    let beside = "pub fn beside<T: Element, const R: usize>(
        x: &Tensor<T, (M, K)>, w: &Tensor<T, (K, N)>, u: &Tensor<T, (M, R)>, b: &Tensor<T, (R, N)>, y: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut c = zeros((i, j));
        for k in tiles(K) { c += dot(load(x, [i, k]), load(w, [k, j])); }
        store(y, [i, j], c + dot(load(u, [i, ..]), load(b, [.., j])));
    }";
    refused(&kernel(beside), "u", "y", "this product is made beside the loop that sums another one up");
    refused(&kernel(beside), "x,b", "y", "this product is made beside the loop that sums another one up");
    let made = gradient(&kernel(beside), &request("x", "y"));
    assert!(made.is_ok(), "{made:?}");
    // Numbers of a product that are one for whole tiles.
    let learned = "pub fn learned<T: Element>(
        x: &Tensor<T, (M, K)>, w: &Tensor<T, (K, N)>, s: &Tensor<f32, (1)>, y: &mut Tensor<T, (M, N)>,
    ) {
        let (i, j) = program(tiles(M), tiles(N));
        let mut acc = zeros((i, j));
        for k in tiles(K) { acc = acc + dot(load(x, [i, k]), (load(w, [k, j]) * load(s, [0])).to::<T>()); }
        store(y, [i, j], acc);
    }";
    refused(&kernel(learned), "s", "y", "`s` changes what columns load");
}

/// Attention with what `CHANGED` makes of a place of its text.
fn altered(params: &str, place: &str, changed: &str) -> Kernel {
    let text = source_of("runtime/kernels", "attention");
    let made = text.replace(place, changed).replace("scale: f32,", &format!("scale: f32, {params}"));
    assert!(text.contains(place), "`{place}` is in the text");
    kernel(&made)
}

const KEYS: &str = "load(k, [b, g, j, ..]).t()";

#[test]
fn what_is_used_in_several_ways_has_one_gradient() {
    let scale = ("scale", Value::Float(0.75));
    let given = std::slice::from_ref(&scale);
    // A number for each position: of queries, and of keys.
    let text = source_of("runtime/kernels", "attention").replace("(B, H, M", "(B, H, N").replace("tiles(M)", "tiles(N)");
    let text = text.replace("* scale;", "* scale + load(f, [b, h, i]) - tanh(load(f, [b, h, j]));");
    let forget = kernel(&text.replace("scale: f32,", "scale: f32, f: &Tensor<T, (B, H, N)>,"));
    check(&forget, "B=2,H=4,G=2,N=9,D=4,E=4", "q,k,v,f", "o,lse", given);
    assert_eq!(made(&forget, "f", "o").backward.last().expect("a kernel").name, "attention_grad_f");
    // One tensor for all; both forms.
    let itself = "pub fn twice<T: Element, const D: usize>(x: &Tensor<T, (M, D)>, o: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        let mut l = zeros(i);
        for j in tiles(M) { l += rowsum(exp(dot(load(x, [i, ..]), load(x, [j, ..]).t()))); }
        store(o, [i], l);
    }";
    for form in [Form::Plain, Form::Fused] {
        check_in(form, &kernel(itself), "M=9,D=4", "x", "o", &[]);
    }
    // Loaded by a tile, and gathered.
    let kinds = "kind: &Tensor<i32, (B, N)>, by: &Tensor<f32, (B, N)>,";
    let twice = scored(kinds, "x + load(by, [b, load(kind, [b, j])]) * load(by, [b, j])");
    let kind = ("kind", ints(&[2, 11], |at| (at * 5 % 7) as i64 - 1));
    check(&twice, SIZES, "q,by", "o", &[scale.clone(), kind]);
}

#[test]
fn what_programs_of_a_group_load_has_its_gradient() {
    let given = &[("scale", Value::Float(0.75))];
    // Queries that heads share, a number of the group, and numbers of its outputs.
    let text = source_of("runtime/kernels", "attention");
    let shared =
        text.replace("q: &Tensor<T, (B, H, M, D)>", "q: &Tensor<T, (B, G, M, D)>").replace("load(q, [b, h,", "load(q, [b, g,");
    check(&kernel(&shared), SIZES, "q,k", "o", given);
    let scales = scored("s: &Tensor<f32, (G)>, t: &Tensor<f32, (B, G)>,", "x * load(s, [g]) + load(t, [b, g]) * pos(j)");
    check(&scales, SIZES, "s,t,q", "o,lse", given);
    // Two indices of one head: the head of the group, and the group.
    let both = scored("s: &Tensor<f32, (2, G)>,", "x * load(s, [h % 2, h * G / H])");
    check(&both, SIZES, "s", "o", given);
    let product = "pub fn by_group<T: Element>(
        x: &Tensor<T, (B, M, K)>, w: &Tensor<T, (G, K, N)>, c: &Tensor<T, (G, N)>, y: &mut Tensor<T, (B, M, N)>,
    ) {
        let (b, i, j) = program(B, tiles(M), tiles(N));
        let g = b * G / B;
        let mut acc = zeros((i, j));
        for k in tiles(K) { acc = acc + dot(load(x, [b, i, k]), load(w, [g, k, j])); }
        store(y, [b, i, j], acc + load(c, [g, j]));
    }";
    check(&kernel(product), "B=4,G=2,M=5,N=6,K=7", "x,w,c", "y", &[]);
}

#[test]
fn what_changes_columns_has_its_gradient() {
    let given = &[("scale", Value::Float(0.75))];
    let weight = "weight: &Tensor<T, (D)>, by: &Tensor<f32, (G)>, own: &Tensor<f32, (1)>,";
    let normed = "let keys = load(k, [b, g, j, ..]);
        let inverse = rsqrt(rowsum(keys * keys) / D + 0.125) * load(by, [g]) * load(own, [0]);
        let s = dot(q_i, (keys * inverse * load(weight, [..])).to::<T>().t()) * scale;";
    let scores = format!("let s = dot(q_i, {KEYS}) * scale;");
    let kernel = altered(weight, &scores, normed);
    for form in Form::ALL.into_iter().filter(|form| *form != Form::Stored) {
        check_in(form, &kernel, SIZES, "q,k,v,weight,by", "o", given);
    }
    check(&kernel, SIZES, "weight,by,own", "o,lse", given);
    // A number that changes queries, keys, scores and outputs, by way of another one.
    let changed = "let s = dot((q_i * half).to::<T>(), (load(k, [b, g, j, ..]) * half).to::<T>().t()) * load(own, [0]);";
    let text = source_of("runtime/kernels", "attention").replace(&scores, changed);
    let text = text
        .replace("scale: f32,", "own: &Tensor<f32, (1)>,")
        .replace("let mut m =", "let half = tanh(load(own, [0])); let mut m =");
    let text = text.replace("div_or_zero(acc, l)", "div_or_zero(acc, l) * half");
    check(&self::kernel(&text), SIZES, "own,q,k", "o", &[]);
}

#[test]
fn parts_that_all_programs_load_have_one_gradient() {
    let text = "pub fn parts<T: Element, const D: usize>(
        x: &Tensor<T, (B, N, 2 * D)>, w: &Tensor<T, (2 * D)>, u: &Tensor<f32, (3, D)>, t: &Tensor<f32, (N, 2 * D)>,
        y: &mut Tensor<T, (B, N, D)>,
    ) {
        let (b, i) = program(B, tiles(N));
        let low = load(x, [b, i, ..D]) * load(w, [..D]) + load(t, [i, ..D]);
        let high = load(x, [b, i, D..]) * load(w, [D..]) - load(t, [i, D..]);
        store(y, [b, i, ..], low * high * load(u, [0, ..]) + load(u, [2, ..]));
    }";
    check(&kernel(text), "B=2,N=9,D=4", "x,w,u,t", "y", &[]);
    // The length of a dimension of which two parts are read is known in a launch alone.
    let text = "pub fn tables<T: Element, const D: usize>(
        x: &Tensor<T, (B, N, D)>, t: &Tensor<f32, (N, C)>, y: &mut Tensor<T, (B, N, D)>,
    ) {
        let (b, i) = program(B, tiles(N));
        store(y, [b, i, ..], load(x, [b, i, ..]) * load(t, [i, ..D]) + tanh(load(t, [i, D..2 * D])));
    }";
    check(&kernel(text), "B=2,N=9,D=4,C=11", "x,t", "y", &[]);
}

#[test]
fn scores_that_are_no_products_have_gradients() {
    let given = &[("scale", Value::Float(0.75))];
    for (params, changed, of) in [
        ("w: &Tensor<f32, (H)>,", "zeros((i, j)) + load(w, [h])", "w,v"),
        ("w: &Tensor<f32, (N)>,", "zeros((i, j)) + load(w, [j])", "w,v"),
        ("", "zeros((i, j)) + (pos(i) - pos(j)) * 0.125", "v"),
    ] {
        check(&scored(params, changed), SIZES, of, "o,lse", given);
    }
}

#[test]
fn inputs_that_change_no_output_smoothly_have_gradients_of_zero() {
    let given = &[("scale", Value::Float(0.75))];
    let sizes = &format!("{SIZES},W=9");
    for (params, changed, of) in [
        ("w: &Tensor<f32, (W)>,", "x + floor(load(w, [abs(pos(i) - pos(j))]))", "w"),
        ("w: &Tensor<f32, (W)>,", "select(load(w, [abs(pos(i) - pos(j))]) > 0.0, x, -x)", "w"),
        ("w: &Tensor<f32, (W)>,", "select(load(w, [abs(pos(i) - pos(j))]) > 0.0, x, -x)", "w,q"),
        // No step of a difference passes these bounds.
        ("w: &Tensor<f32, (N)>,", "mask(x, load(w, [j]) > pos(j) * 3 - 4.5)", "w,k"),
        // Beside a use that counts.
        ("w: &Tensor<f32, (N)>,", "mask(x + load(w, [j]), load(w, [j]) > pos(j) * 3 - 4.5)", "w,k"),
    ] {
        check(&scored(params, changed), sizes, of, "o", given);
    }
}

#[test]
fn places_in_longer_dimensions_and_on_diagonals_have_gradients() {
    let given = &[("scale", Value::Float(0.75))];
    let sizes = &format!("{SIZES},W=9");
    for (params, changed) in [
        ("w: &Tensor<f32, (W)>,", "x * load(w, [h])"),
        ("w: &Tensor<f32, (W)>,", "x * load(w, [b])"),
        ("w: &Tensor<f32, (W, H)>,", "x * load(w, [b, h])"),
        ("w: &Tensor<f32, (H, H)>,", "x + tanh(load(w, [h, h]))"),
        ("w: &Tensor<f32, (H, 3)>,", "x * load(w, [h, 0]) + load(w, [h, 2]) * pos(j)"),
        ("w: &Tensor<f32, (H, H, M)>,", "x + load(w, [h, h, i])"),
    ] {
        check(&scored(params, changed), sizes, "w,q", "o,lse", given);
    }
}

/// The exponential is infinite, and a gradient that is its product with 0 is no number.
#[test]
fn exponentials_in_sums_may_be_infinite() {
    let given = &[("scale", Value::Float(0.75))];
    for changed in [
        "x + 1.0 / (1.0 + exp(800.0 - x))",
        "x / (1.0 + exp(800.0 - x))",
        "x + div_or_zero(x, exp2(1100.0 - x) + 2.0)",
        "x * (1.0 / (1.0 + exp(-x)))",
        "ln(1.0 + exp(x * 2.0)) + log2(exp2(x) + 0.5)",
    ] {
        check(&scored("", changed), SIZES, "q,k,v", "o", given);
    }
}

#[test]
fn parameters_with_names_of_gradients_are_refused() {
    for (name, of) in [("grad_q", "q"), ("grad_o", "k"), ("grad_o", "grad_o")] {
        let kernel = scored(&format!("{name}: &Tensor<f32, (B, H, N)>,"), &format!("x + load({name}, [b, h, j])"));
        let error = gradient(&kernel, &request(of, "o")).expect_err(name);
        assert!(error.what.contains(&format!("`{name}` has the name of the gradient of")), "{error}");
    }
}

/// The columns of a gradient walk heads by an index loop, of which a condition leaves those of the
/// group: the bounds of the loop are these heads, and nothing is left of the condition.
#[test]
fn of_grouped_queries_the_heads_of_the_group_are_walked() {
    let gradient = made(&builtin("causal_attention"), "q,k,v", "o");
    let columns = gradient.backward.iter().find(|kernel| kernel.name.ends_with("_columns")).expect("a kernel of columns");
    let loops: Vec<_> = columns.walk().into_iter().filter(|(_, op)| matches!(columns.ops[*op].op, Op::For { .. })).collect();
    let [(_, heads), (_, rows)] = loops[..] else { panic!("a loop over heads, and one over rows") };
    let block = |axis| if columns.axes[axis].kind == AxisKind::Each { 1 } else { 64 };
    let runs = |op| loop_runs(columns, op, &block, &|_| None, MaskOptions::default());
    let group = columns.ops[columns.blocks[columns.body].ops[0]].results[1];
    let heads_of = runs(heads);
    for (count, groups) in (1..20).flat_map(|count| (1..20).map(move |groups| (count, groups))) {
        let size = |s: &SizeExpr| {
            s.eval(|id| {
                Some(match columns.size_name(id) {
                    "H" => count,
                    "G" => groups,
                    _ => 100,
                })
            })
            .expect("every size is known")
        };
        for own in 0..groups {
            let value = |v| if v == group { own } else { 0 };
            let at = Lookups { size: &size, value: &value, param: &|_| 0, loaded: &|_| 0, found: &|_, _, _| 0 };
            let [first, _, _, end] = heads_of.eval(at);
            let walked: Vec<i64> = (first..end).collect();
            let wanted: Vec<i64> = (0..count).filter(|head| head * groups / count == own).collect();
            assert_eq!(walked, wanted, "of {count} heads those of {own}, of {groups} groups");
        }
    }
    let index = match columns.ops[heads].op {
        Op::For { body, .. } => columns.blocks[body].params[0],
        _ => unreachable!("a loop"),
    };
    assert!(runs(rows).exprs().all(|end| !end.values().contains(&index)), "rows are those of any head");
}

/// A product of tiles of the grid, whole in one step: its gradients are sums over programs.
#[test]
fn products_of_tiles_of_the_grid_have_gradients() {
    for (w, product) in
        [("(K, N)", "dot(load(x, [i, ..]), load(w, [.., j]))"), ("(N, K)", "dot(load(x, [i, ..]), load(w, [j, ..]).t())")]
    {
        for value in [product, &format!("tanh({product}) * load(u, [j]) + load(r, [b, i])")] {
            let text = format!(
                "pub fn f<const K: usize>(
                    x: &Tensor<f32, (M, K)>, w: &Tensor<f32, {w}>, u: &Tensor<f32, (N)>, r: &Tensor<f32, (B, M)>,
                    y: &mut Tensor<f32, (B, M, N)>,
                ) {{
                    let (b, i, j) = program(B, tiles(M), tiles(N));
                    store(y, [b, i, j], {value} * 0.5 + load(u, [j]) * load(r, [b, i]));
                }}"
            );
            println!("{value}");
            check(&kernel(&text), "B=2,M=7,N=6,K=5", "x,w,u,r", "y", &[]);
        }
    }
}

#[test]
fn sums_of_any_sign_have_their_gradient() {
    // The sum of signed numbers stands first, or is the only one, or there are sums of pairs alone.
    let streamed = |sums: &str, steps: &str, stored: &str| {
        kernel(&format!(
            "pub fn rewarded<T: Element, const D: usize>(
                x: &Tensor<T, (M, D)>, w: &Tensor<T, (N, D)>, r: &Tensor<f32, (N)>, y: &mut Tensor<f32, {}>,
            ) {{
                let i = program(tiles(M));
                let x_i = load(x, [i, ..]);
                let mut m = full(i, -INF);
                {sums}
                for j in tiles(N) {{
                    let w_j = load(w, [j, ..]);
                    let s = mask(dot(x_i, w_j.t()), pos(i) + 2 >= pos(j));
                    let m_new = max(m, rowmax(s));
                    let alpha = exp(m - visible_or_zero(m_new));
                    let p = exp(s - visible_or_zero(m_new));
                    {steps}
                    m = m_new;
                }}
                {stored}
            }}",
            if stored.contains("..") { "(M, D)" } else { "(M)" }
        ))
    };
    let reward = "num = num * alpha + rowsum(p * load(r, [j]));";
    let cases = [
        (
            streamed(
                "let (mut num, mut den) = (zeros(i), zeros(i));",
                &format!("{reward} den = den * alpha + rowsum(p);"),
                "store(y, [i], num / den);",
            ),
            "x,w,r",
        ),
        (
            streamed("let mut num = zeros(i);", reward, "store(y, [i], num / max(abs(num), exp(-m)) + num * num * exp(m + m));"),
            "x,w,r",
        ),
        (
            streamed(
                "let mut num = zeros((i, D)); let mut den = zeros((i, D));",
                "num = num * alpha + dot((p * load(r, [j])).to::<T>(), w_j); den = den * alpha + dot(p.to::<T>(), exp(w_j).to::<T>());",
                "store(y, [i, ..], num / den);",
            ),
            "x,w,r",
        ),
    ];
    for (kernel, of) in &cases {
        for zero in [false, true] {
            let r = |at: usize| if zero { 0 } else { at as i64 % 5 - 2 };
            let given = [("r", ints(&[7], r))];
            check(kernel, "M=5,N=7,D=3", if zero { "x,r" } else { of }, "y", &given);
        }
    }
}

#[test]
fn a_request_names_something_once() {
    let attention = builtin("attention");
    for (of, from, what) in [
        ("", "o", "no input of `attention` is named"),
        ("q", "", "no output of `attention` is named"),
        ("q,k,q", "o", "`q` is named twice"),
        ("q", "o,o", "`o` is named twice"),
    ] {
        let names = |list: &str| list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let request = Request { of: names(of), from: names(from), form: Form::Plain };
        assert_eq!(gradient(&attention, &request).expect_err("is refused").what, what);
    }
}

#[test]
fn tensors_whose_extents_need_two_sizes_have_gradients() {
    let scale = ("scale", Value::Float(0.75));
    let sizes = |more: &str| format!("{SIZES},{more}");
    // A table of the type of the keys, whose sums a kernel of its own rounds.
    let table = scored("table: &Tensor<T, (H, M + N - 1)>,", "x + load(table, [h, pos(j) - pos(i) + M - 1])");
    check(&table, &sizes("N_grad_table_sum_1=19"), "q,k,v,table", "o", std::slice::from_ref(&scale));
    // Numbers of rows and of columns in one tensor: the gradients of its uses are added up.
    let both = scored("e: &Tensor<f32, (M + N)>,", "x + load(e, [pos(i)]) * load(e, [M + pos(j)])");
    check(&both, &sizes("N_grad_e_1_0=20"), "q,k,v,e", "o", std::slice::from_ref(&scale));
    // Rows of which the kernel loads a part, so that the others get zeros.
    let part = scored("own: &Tensor<f32, (B, M + N)>,", "x * load(own, [b, pos(j)])");
    check(&part, &sizes("N_grad_own_1=20,N_grad_own_sum_1=20"), "q,own", "o", std::slice::from_ref(&scale));
}

#[test]
fn factors_of_sums_over_rows_are_those_of_their_pairs() {
    let text = "pub fn squared<T: Element, const D: usize>(
        q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let mut acc = zeros((i, D));
        for j in tiles(N) {
            let r = max(dot(q_i, load(k, [j, ..]).t()), 0.0) / N;
            acc += dot((r * r).to::<T>(), load(v, [j, ..]));
        }
        store(o, [i, ..], acc);
    }";
    let squared = kernel(text);
    check_in(Form::Fused, &squared, "M=5,N=7,D=3", "q,k,v", "o", &[]);
    let columns = write(&made_in(Form::Fused, &squared, "q,k,v", "o").backward[0]).expect("has a text");
    let added = columns.lines().find(|line| line.contains("add(grad_q_sum")).expect("adds to rows");
    assert!(added.contains(", dot(("), "a product is added, its factor within: {added}");
}

#[test]
fn names_that_are_words_of_rust_have_gradients() {
    let text = "pub fn r#loop<T: Element>(r#type: &Tensor<T, (M, N)>, r#fn: &mut Tensor<f32, (M)>) {
        let r#in = program(tiles(M));
        let mut sum = zeros(r#in);
        for r#for in tiles(N) {
            let r#try = load(r#type, [r#in, r#for]);
            sum += rowsum(r#try * r#try);
        }
        store(r#fn, [r#in], sum);
    }";
    let squares = kernel(text);
    assert_eq!((&*squares.name, &*squares.params.values().next().expect("an input").name), ("loop", "type"));
    check(&squares, "M=5,N=7", "type", "fn", &[]);
    let texts: Vec<String> = made(&squares, "type", "fn").backward.iter().map(|made| write(made).expect("has a text")).collect();
    assert!(texts[0].contains("pub fn loop_grad_rows") && texts[0].contains("r#type: &Tensor"), "{}", texts[0]);
    assert_eq!(kernel(&write(&squares).expect("has a text")).name, "loop");
}

#[test]
fn what_scales_with_a_maximum_in_other_words_has_its_gradient() {
    // Softpick (Zuhri et al., 2025): exponentials less one, rectified above and absolute below.
    let text = "pub fn softpick<T: Element, const D: usize>(
        q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, v: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>,
    ) {
        let i = program(tiles(M));
        let q_i = load(q, [i, ..]);
        let (mut m, mut l, mut acc) = (zeros(i), zeros(i), zeros((i, D)));
        for j in tiles(N) {
            let s = mask(dot(q_i, load(k, [j, ..]).t()), pos(i) + 1 >= pos(j));
            let m_new = max(m, rowmax(s));
            let alpha = exp(m - m_new);
            let e = exp(s - m_new) - exp(-m_new);
            l = l * alpha + rowsum(abs(e));
            acc = acc * alpha + dot(max(e, 0.0).to::<T>(), load(v, [j, ..]));
            m = m_new;
        }
        store(o, [i, ..], acc / (l + 0.001 * exp(-m)));
    }";
    for form in [Form::Plain, Form::Fused] {
        check_in(form, &kernel(text), "M=7,N=9,D=3", "q,k,v", "o", &[]);
    }
}

#[test]
fn sums_that_may_be_0_beside_others_are_no_divisors() {
    // A sum of what a tensor picks, of what it hides, and of what it makes small.
    let cases = [
        ("acc / (l + exp(-m))", "rowsum(select(load(kind, [j]) == 1, p, 0.0))", 0),
        ("acc / max(l, exp(-m))", "rowsum(exp(mask(s, load(kind, [j]) == 1) - visible_or_zero(m_new)))", 0),
        ("acc / (l + exp(-m))", "rowsum(p * exp(0.0 - 30.0 * load(kind, [j])))", 1),
    ];
    for (stored, added, kind) in cases {
        let text = format!(
            "pub fn picked<T: Element, const D: usize>(
                x: &Tensor<T, (M, D)>, w: &Tensor<T, (N, D)>, kind: &Tensor<i32, (N)>, y: &mut Tensor<T, (M, D)>,
            ) {{
                let i = program(tiles(M));
                let x_i = load(x, [i, ..]);
                let (mut m, mut l, mut acc) = (full(i, -INF), zeros(i), zeros((i, D)));
                for j in tiles(N) {{
                    let w_j = load(w, [j, ..]);
                    let s = dot(x_i, w_j.t());
                    let m_new = max(m, rowmax(s));
                    let alpha = exp(m - visible_or_zero(m_new));
                    let p = exp(s - visible_or_zero(m_new));
                    l = l * alpha + {added};
                    acc = acc * alpha + dot(p.to::<T>(), w_j);
                    m = m_new;
                }}
                store(y, [i, ..], {stored});
            }}"
        );
        check(&kernel(&text), "M=5,N=7,D=3", "x,w", "y", &[("kind", ints(&[7], |_| kind))]);
    }
}
