//! What the code of one score is made of: the forms of `tanh` and of quotients by what is rounded, uniform factors, lazy maxima
//! of loops with attention sinks, and random numbers, whose instructions are counted in PTX (needs NVRTC, no GPU).

use flashtile::toolchain::Toolchain;
use flashtile_codegen::{Arch, Facts, Instance, Schedule, Summary, check, generate};
use flashtile_dsl::ir::{Binding, Elem, Kernel, SourceText};

const SOFTCAP: &str = include_str!("../kernels/softcap.rs");
const SINKS: &str = include_str!("../kernels/sinks.rs");
const SINKS_AFTER: &str = include_str!("../kernels/sinks_after.rs");
const CAUSAL: &str = include_str!("../../runtime/kernels/causal_attention.rs");

fn kernel(text: &str) -> Kernel {
    let source = SourceText { name: String::new(), text: text.into(), first_line: 1 };
    flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

fn instance(text: &str, elem: Elem) -> Instance {
    let kernel = kernel(text);
    let consts: Vec<_> = kernel.size_named("D").map(|_| ("D", 64)).into_iter().collect();
    Instance { binding: Binding::new(&kernel, elem, consts), facts: Facts::best(&kernel), kernel }
}

/// The code without its device functions.
fn code(text: &str, elem: Elem, schedule: &str) -> String {
    let schedule: Schedule = schedule.parse().expect("a schedule");
    let made = generate(&instance(text, elem), &schedule, Arch::named("sm_80").expect("known"));
    let source = made.unwrap_or_else(|e| panic!("{e}")).source;
    source.split("__global__").skip(1).collect()
}

fn mma(text: &str, elem: Elem) -> String {
    code(text, elem, "block_m=64,block_n=64,warps=4,running_max=exact")
}

fn ffma(text: &str) -> String {
    code(text, Elem::F32, "tensor_op=ffma,block_m=64,block_n=32,warps=4,copy=cp_async,stages=1,running_max=exact")
}

/// Softcap with the log-sum-exp stored as f32.
fn with_lse() -> String {
    SOFTCAP
        .replace("o: &mut Tensor<T, (B, H, M, D)>,", "o: &mut Tensor<T, (B, H, M, D)>, lse: &mut Tensor<f32, (B, H, M)>,")
        .replace("div_or_zero(acc, l));", "div_or_zero(acc, l)); store(lse, [b, h, i], m + ln(l));")
}

/// A product and an activation of it, stored as `elem`.
fn activated(activation: &str, elem: &str) -> String {
    format!(
        "pub fn activated<T: Element>(a: &Tensor<T, (M, K)>, b: &Tensor<T, (K, N)>, c: &mut Tensor<{elem}, (M, N)>) {{
            let (i, j) = program(tiles(M), tiles(N));
            let mut acc = zeros((i, j));
            for k in tiles(K) {{
                acc = acc + dot(load(a, [i, k]), load(b, [k, j]));
            }}
            store(c, [i, j], {activation});
        }}"
    )
}

#[test]
fn tanh_is_one_instruction_where_everything_made_of_it_is_rounded_to_16_bits() {
    for elem in [Elem::Bf16, Elem::F16] {
        assert!(mma(SOFTCAP, elem).contains("tanh_approx("), "{elem:?}");
    }
    assert!(ffma(SOFTCAP).contains("tanh_accurate("));
    // A sum that is stored as f32 averages the roundings of f16, but need not average the errors of the instruction.
    assert!(mma(&with_lse(), Elem::Bf16).contains("tanh_approx("));
    assert!(mma(&with_lse(), Elem::F16).contains("tanh_absolute("));
    // The matrix itself is stored as f32; the result decides a comparison.
    assert!(mma(&activated("tanh(acc)", "T"), Elem::Bf16).contains("tanh_approx("));
    assert!(mma(&activated("tanh(acc)", "f32"), Elem::Bf16).contains("tanh_accurate("));
    assert!(mma(&activated("select(tanh(acc) > 0.5, acc, 0.0)", "T"), Elem::Bf16).contains("tanh_accurate("));
    // A row statistic alone rounds nothing.
    let largest = SOFTCAP
        .replace("o: &mut Tensor<T, (B, H, M, D)>,", "o: &mut Tensor<f32, (B, H, M)>,")
        .replace("store(o, [b, h, i, ..], div_or_zero(acc, l));", "store(o, [b, h, i], m);");
    assert!(mma(&largest, Elem::Bf16).contains("tanh_accurate("));
}

#[test]
fn parts_of_a_split_loop_take_the_form_of_the_whole() {
    let schedule: Schedule = "block_m=64,block_n=64,warps=4,running_max=exact,split_k=4".parse().expect("a schedule");
    let made = generate(&instance(SOFTCAP, Elem::Bf16), &schedule, Arch::named("sm_80").expect("known")).expect("legal");
    assert!(made.source.contains("tanh_approx(") && !made.source.contains("tanh_accurate("));
}

#[test]
fn quotients_take_the_cheapest_form_within_the_rounding() {
    let sigmoid = "1.0 / (1.0 + exp(-acc))";
    for elem in ["T", "f32"] {
        assert!(mma(&activated(sigmoid, elem), Elem::F16).contains("rcp_normal("), "{elem}");
    }
    let silu = "acc / (1.0 + exp(-acc))";
    assert!(mma(&activated(silu, "T"), Elem::F16).contains("div_full("));
    let exact = mma(&activated(silu, "f32"), Elem::F16);
    assert!(!exact.contains("div_full(") && !exact.contains("rcp_normal("), "{exact}");
    // The divisor may be less than 1, or negative.
    for divisor in ["0.5 + exp(acc)", "1.0 + acc", "1.0 - exp(acc)"] {
        let quotient = mma(&activated(&format!("1.0 / ({divisor})"), "T"), Elem::F16);
        assert!(quotient.contains("div_full(") && !quotient.contains("rcp_normal("), "{divisor}");
    }
}

#[test]
fn a_capped_score_costs_a_product_and_a_tangent_more() {
    // What is written for the elements of a tile of scores.
    let scores = |text: &str| -> Vec<String> {
        let code = mma(text, Elem::Bf16);
        code.lines().filter(|line| line.contains("EACH(e, 4)") && !line.contains("acc[")).map(str::to_owned).collect()
    };
    let (capped, plain) = (scores(SOFTCAP), scores(CAUSAL));
    let count = |lines: &[String], wanted: &str| lines.iter().map(|l| l.matches(wanted).count()).sum::<usize>();
    assert_eq!(count(&capped, "tanh_approx("), 1, "{capped:#?}");
    assert_eq!(count(&capped, " * "), count(&plain, " * ") + 1, "{capped:#?} {plain:#?}");
    assert_eq!(count(&capped, " / "), count(&plain, " / "), "{capped:#?}");
    assert_eq!(count(&capped, "ex2("), count(&plain, "ex2("), "{capped:#?}");
}

/// A finite number for "hidden" may come in many forms; a row of nothing else weighs its keys alike
/// only where the factor of its exponents is 1 (`codegen/src/rewrite/large.rs`). A scale, a slope, a
/// cap and a factor of each key are no such numbers.
#[test]
fn numbers_that_hide_have_exact_exponents() {
    let code_of = |score: &str| {
        let more = [
            ("keep", "&Tensor<f32, (N)>"),
            ("flag", "&Tensor<i32, (N)>"),
            ("slopes", "&Tensor<f32, (H)>"),
            ("scale", "f32"),
            ("big", "f32"),
        ];
        let more = more.iter().filter(|(name, _)| score.contains(name)).map(|(name, ty)| format!("{name}: {ty}, "));
        let text = "pub fn scored<T: Element, const D: usize>(
            q: &Tensor<T, (H, M, D)>, k: &Tensor<T, (H, N, D)>, v: &Tensor<T, (H, N, D)>, MORE o: &mut Tensor<T, (H, M, D)>,
        ) {
            let (h, i) = program(H, tiles(M));
            let q_i = load(q, [h, i, ..]);
            let mut m = full(i, -INF);
            let mut l = zeros(i);
            let mut acc = zeros((i, D));
            for j in tiles(N) {
                let x = dot(q_i, load(k, [h, j, ..]).t());
                let s = SCORE;
                let m_new = max(m, rowmax(s));
                let alpha = exp(m - visible_or_zero(m_new));
                let p = exp(s - visible_or_zero(m_new));
                l = l * alpha + rowsum(p);
                acc = acc * alpha + dot(p.to::<T>(), load(v, [h, j, ..]));
                m = m_new;
            }
            store(o, [h, i, ..], div_or_zero(acc, l));
        }";
        mma(&text.replace("MORE", &more.collect::<String>()).replace("SCORE", score), Elem::Bf16)
    };
    let is_exact = |score: &str| code_of(score).contains("16777216");
    let flags = "load(flag, [j]).to::<f32>()";
    for hides in [
        "x * scale + (1.0 - load(keep, [j])) * -1e30",
        "x * scale + load(keep, [j]) * -1e30",
        "x * scale + load(keep, [j]) * big",
        "x * scale + load(keep, [j])",
        "x * scale + big",
        "(x + load(keep, [j])) * scale",
        "(x + load(keep, [j])) / 8.0",
        &format!("x * scale + (1.0 - {flags}) * -1e30"),
        &format!("x * scale + {flags} * big"),
        &format!("x * scale + (1.0 - {flags}) / -big"),
        "select(load(flag, [j]) != 0, x * scale, -1e30)",
        "select(load(flag, [j]) != 0, x * scale, big)",
        "x * scale + select(load(flag, [j]) != 0, 0.0, 1.0) * big",
        "max(x * scale, -1e30)",
    ] {
        assert!(is_exact(hides), "{hides}");
    }
    for scores in [
        "x * scale",
        "x / 8.0",
        "mask(x * scale, load(flag, [j]) != 0)",
        "x * scale + load(slopes, [h]) * (pos(j) - pos(i))",
        "x * scale + scale * (pos(j) - pos(i))",
        "big * tanh(x * scale / big)",
        "x * load(keep, [j]) * scale",
    ] {
        assert!(!is_exact(scores), "{scores}");
    }
    // A maximum may start from any number.
    assert!(!mma(SINKS, Elem::Bf16).contains("16777216"));
}

#[test]
fn lazy_maxima_take_sinks_before_and_after_the_loop() {
    let refused = |text: &str, form: &str| {
        let schedule: Schedule = format!("block_m=64,block_n=64,warps=4,running_max={form}").parse().expect("a schedule");
        let arch = Arch::named("sm_80").expect("known");
        Summary::all(&check(&instance(text, Elem::F16), &schedule, arch).reasons).to_string()
    };
    for form in ["max_first", "optimistic"] {
        assert_eq!(refused(SINKS, form), "");
        assert_eq!(refused(SINKS_AFTER, form), "");
        // Where the sink is far above the scores, this overflows for a reference that lags behind.
        let bare = SINKS_AFTER
            .replace("let m_all = max(m, sink);", "let m_all = m;")
            .replace("let m_ref = visible_or_zero(m_all);", "let m_ref = visible_or_zero(m);");
        assert!(refused(&bare, form).contains("sees the maximum itself"), "{}", refused(&bare, form));
        // A weight of one reference is not one of another, and a maximum that is stored is seen.
        let mixed = SINKS_AFTER.replace("div_or_zero(acc * kept, l_all)", "div_or_zero(acc, l_all)");
        assert!(refused(&mixed, form).contains("sees the maximum itself"), "{}", refused(&mixed, form));
        // A lazy step makes no row maximum that others may read.
        let read = CAUSAL.replace("l * alpha + rowsum(p)", "l * alpha + rowsum(p * select(rowmax(s) > 5.0, 0.5, 1.0))");
        assert_ne!(read, CAUSAL);
        assert!(refused(&read, form).contains("reads the row maximum of a step"), "{}", refused(&read, form));
        let shown = CAUSAL.replace("m + ln(l)", "m");
        assert!(refused(&shown, form).contains("sees the maximum itself"), "{}", refused(&shown, form));
    }
    // A maximum that may start as +inf is tested for it, and no other.
    let lazy = |text| code(text, Elem::F16, "block_m=64,block_n=64,warps=4,running_max=optimistic");
    let tested = "m[mt][r] < INFINITE";
    assert!(lazy(SINKS).contains(tested), "{}", lazy(SINKS));
    assert!(!lazy(CAUSAL).contains(tested));
}

#[test]
fn a_sum_from_a_number_stays_apart_in_its_lanes() {
    let reductions = |text| mma(text, Elem::Bf16).matches("quad_sum(").count();
    assert_eq!(reductions(SINKS), reductions(CAUSAL), "the sum over lanes is after the loop");
    assert!(mma(SINKS, Elem::Bf16).contains("0.25f"));
}

/// A step is made again where a row sum is too large: a sum of any sign, or of a part of the
/// exponentials, does not show it.
#[test]
fn exponentials_of_which_no_sum_shows_an_overflow_have_no_optimistic_maximum() {
    let text = |first: &str, more: &str, stored: &str| {
        format!(
            "pub fn sums<const D: usize>(
                q: &Tensor<bf16, (M, D)>, k: &Tensor<bf16, (N, D)>, r: &Tensor<f32, (N)>, y: &mut Tensor<f32, (M)>,
            ) {{
                let i = program(tiles(M));
                let q_i = load(q, [i, ..]);
                let (mut m, mut num, mut l) = (full(i, -INF), zeros(i), zeros(i));
                for j in tiles(N) {{
                    let s = dot(q_i, load(k, [j, ..]).t());
                    let m_new = max(m, rowmax(s));
                    let m_ref = visible_or_zero(m_new);
                    let alpha = exp(m - m_ref);
                    let p = exp(s - m_ref);
                    num = num * alpha + rowsum({first});
                    l = l * alpha + rowsum({more});
                    m = m_new;
                }}
                store(y, [i], {stored});
            }}"
        )
    };
    let schedule = "block_m=64,block_n=32,running_max=optimistic".parse().expect("a schedule");
    let legal = |first: &str, more: &str, stored: &str| {
        let source = SourceText { name: "sums.rs".into(), text: text(first, more, stored).into(), first_line: 1 };
        let kernel = flashtile_dsl::syntax::parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0);
        let binding = Binding::new(&kernel, Elem::Bf16, [("D".to_owned(), 64)]);
        let instance = Instance { binding, facts: Facts::best(&kernel), kernel };
        generate(&instance, &schedule, Arch::named("sm_80").expect("is known")).map(|_| ()).map_err(|error| error.to_string())
    };
    let weighed = "p * load(r, [j])";
    assert_eq!(legal(weighed, "p", "num / l"), Ok(()));
    assert_eq!(legal("select(load(r, [j]) > 0.0, p, 0.0)", "p", "num / l"), Ok(()));
    assert_eq!(legal("p * abs(load(r, [j]))", "exp(s * 0.5 - m_ref)", "num / l"), Ok(()), "the only use, and not negative");
    for (first, more) in [(weighed, weighed), ("exp(s * 0.001 - m_ref)", weighed)] {
        let error = legal(first, more, "num / l").expect_err("no sum shows it");
        assert!(error.contains("running_max=optimistic needs a sum that shows overflows"), "{error}");
    }
}

/// A lane has 32 scores of a step. Its random numbers are those of 4 counters, of 14 products each,
/// since the positions of eight scores have all but three bits in common.
#[test]
fn random_numbers_are_computed_once_for_the_scores_that_share_them() {
    let text = include_str!("../../runtime/kernels/dropout_attention.rs");
    let schedule: Schedule = "block_m=64,block_n=64,warps=4,stages=1".parse().expect("a schedule");
    let made = generate(&instance(text, Elem::Bf16), &schedule, Arch::named("sm_80").expect("known")).expect("is legal");
    let ptx = Toolchain::shared().compile_ptx(&made.source, "dropout", "sm_80").expect("compiles");
    let products = ptx.matches("mul.hi.u32").count();
    assert!((4 * 8..=4 * 14).contains(&products), "{products} products: of each score they are 448, of two scores 224");
}
