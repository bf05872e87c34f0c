//! The text form: what it looks like, that it round-trips, and what its errors say.

mod generate;

use std::collections::BTreeSet;

use flashtile_dsl::ir::{BinaryOp, Kernel, SourceText, UnaryOp, parse_text, verify};
use flashtile_dsl::syntax::parse;
use proptest::prelude::*;

fn read(text: &str) -> Kernel {
    let source = SourceText { name: "test.rs".into(), text: text.into(), first_line: 1 };
    parse(&source).unwrap_or_else(|errors| panic!("{errors}")).remove(0)
}

fn check_round_trip(kernel: &Kernel) {
    let text = kernel.to_string();
    let again = parse_text(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(again, kernel.without_spans(), "\n{text}");
    assert_eq!(again.to_string(), text);
    assert_eq!(kernel.renumbered(), *kernel, "numbered as the builder does");
}

#[test]
fn the_text_reads_like_the_kernel() {
    let kernel = read(
        "/// Sums rows.\npub fn sums<T: Element, const D: usize>(
            x: &Tensor<T, (M, N, D)>, scale: f32, y: &mut Tensor<f32, (M, D)>
        ) {
            let i = program(M);
            let mut l = full(D, -INF);
            for j in tiles(N) {
                l = max(l, rowsum(load(x, [i, j, ..]).t()) * scale);
            }
            for j in tiles(N) {
                let tail = load(x, [i, j, D / 2..]);
                l = l * max(1.0, 0.5);
            }
            store(y, [i, ..], l);
        }",
    );
    let expected = "\
kernel sums {
  doc \"Sums rows.\"
  type T
  size D const
  size M runtime
  size N runtime
  param x: &tensor<T, (M, N, D)>
  param scale: f32
  param y: &mut tensor<f32, (M, D)>
  axis j.0: loop over N
  axis j.1: loop over N

  %0: index = program M  ; i
  %1: f32 = scalar scale  ; scale
  %2: f32 = const f32 -inf
  %3: tile<f32, (D)> = full (D), %2  ; l
  %11: tile<f32, (D)> = for j.0 (%3) {  ; l
    params %4: coord<j.0>, %5: tile<f32, (D)>  ; j, l
    %6: tile<T, (j.0, D)> = load_tile x[%0, tile %4, 0 .. D]
    %7: tile<T, (D, j.0)> = transpose %6
    %8: tile<f32, (D)> = rowsum %7
    %9: tile<f32, (D)> = mul %8, %1
    %10: tile<f32, (D)> = max %5, %9  ; l
    yield %10
  }
  %17: tile<f32, (D)> = for j.1 (%11) {  ; l
    params %12: coord<j.1>, %13: tile<f32, (D)>  ; j, l
    %14: tile<T, (j.1, D / 2)> = load_tile x[%0, tile %12, D / 2 .. D]  ; tail
    %15: f32 = const f32 1.0
    %16: tile<f32, (D)> = mul %13, %15  ; l
    yield %16
  }
  store_tile y[%0, 0 .. D], %17
}
";
    assert_eq!(kernel.to_string(), expected);
    check_round_trip(&kernel);
}

#[test]
fn built_in_kernels_round_trip() {
    for name in ["attention", "causal_attention", "matmul_gelu", "row_softmax"] {
        let path = format!("{}/../runtime/kernels/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        check_round_trip(&read(&std::fs::read_to_string(path).expect("a built-in kernel")));
    }
}

#[test]
fn errors_name_the_line() {
    let cases = [
        ("", 1, "the text ends before the kernel is closed"),
        ("kernel k {\n  size N sometimes\n}", 2, "expected `runtime` or `const`, found `sometimes`"),
        ("kernel k {\n\n  %0: index = index 1\n  %1: index = index.add %0, %2\n}", 4, "`%2` is not defined before this line"),
        ("kernel k {\n  %0: index = index 1\n  %0: index = index 1\n}", 3, "`%0` is defined twice"),
        ("kernel k {\n  %0: tile<f32, (i)> = pos %0\n}", 2, "there is no size `i`"),
        ("kernel k {\n  %0: index = frobnicate\n}", 2, "there is no op `frobnicate`"),
        ("kernel k {\n  %0: index = index 1  ; a, b\n}", 2, "expected 1 names, found 2"),
        ("kernel k {\n  param s: f64\n}", 2, "there is no element type `f64`"),
        ("kernel k {\n}\nkernel l {\n}", 3, "expected the end of the text after the kernel"),
        ("kernel k {\n  size N runtime\n  axis i: program over N * N\n}", 3, "a size is a product with a constant"),
    ];
    for (text, line, message) in cases {
        let error = parse_text(text).expect_err(text);
        assert_eq!(error.line, line, "{text}\n{error}");
        assert!(error.message.contains(message), "{text}\n{error}");
    }
}

#[test]
fn the_generator_reaches_every_op() {
    let mut state = 1_u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 24) as u8
    };
    let mut seen = BTreeSet::new();
    for _ in 0..500 {
        let bytes: Vec<u8> = (0..200).map(|_| byte()).collect();
        let kernel = generate::kernel(&bytes);
        seen.extend(kernel.walk().into_iter().map(|(_, op)| kernel.ops[op].op.mnemonic()));
    }
    // 22 ops of one form, and the families: of indices, unary, binary, comparisons.
    assert_eq!(seen.len(), 22 + 7 + UnaryOp::ALL.len() + BinaryOp::ALL.len() + 6, "{seen:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn generated_kernels_are_sound_and_round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let kernel = generate::kernel(&bytes);
        prop_assert_eq!(verify(&kernel), Ok(()), "\n{}", kernel);
        check_round_trip(&kernel);
    }

    #[test]
    fn damaged_text_is_an_error_and_no_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
        at in any::<prop::sample::Index>(),
        replacement in "[ -~]{0,4}",
    ) {
        let text = generate::kernel(&bytes).to_string();
        let mut chars: Vec<char> = text.chars().collect();
        let at = at.index(chars.len());
        chars.splice(at..(at + 2).min(chars.len()), replacement.chars());
        if let Ok(kernel) = parse_text(&chars.into_iter().collect::<String>()) {
            // Readable again, so it must be fit to be judged.
            let _sound_or_not = verify(&kernel);
        }
    }
}
