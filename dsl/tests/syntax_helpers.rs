//! Helper functions: a call is the body in its place; errors name the calls; what no kernel calls
//! is warned of.

use flashtile_dsl::ir::{Kernel, SourceText};
use flashtile_dsl::syntax::{Diagnostic, Parsed, parse, parse_with_warnings};

fn source(text: &str) -> SourceText {
    SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 }
}

fn parsed(text: &str) -> Parsed {
    parse_with_warnings(&source(text)).unwrap_or_else(|e| panic!("{e}"))
}

/// The text form of the only kernel.
#[track_caller]
fn ir(text: &str) -> String {
    let kernels: Vec<Kernel> = parsed(text).kernels;
    assert_eq!(kernels.len(), 1, "a helper is no kernel");
    // Names of variables are no part of the meaning.
    kernels[0].to_string().lines().map(|line| line.split("  ;").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// A kernel with these statements before its store.
fn kernel(body: &str) -> String {
    format!(
        "pub fn f<T: Element, const D: usize>(x: &Tensor<T, (M, D)>, w: &Tensor<f32, (D)>, eps: f32, y: &mut Tensor<T, (M, D)>) {{
            let i = program(tiles(M));
            let x_i = load(x, [i, ..]);
            {body}
            store(y, [i, ..], out * load(w, [..]) + eps);
        }}"
    )
}

#[test]
fn a_call_is_the_body_in_its_place() {
    let same = |helpers: &str, called: &str, written: &str| {
        assert_eq!(ir(&format!("{helpers}\n{}", kernel(called))), ir(&kernel(written)), "{helpers}\n{called}");
    };
    let rms = "/// `1 / sqrt(mean(x * x) + eps)`.
        fn rms(x: Tile, n: i32, eps: f32) -> Tile { rsqrt(rowsum(x * x) / n + eps) }";
    same(rms, "let out = x_i * rms(x_i, D, 0.001);", "let out = x_i * rsqrt(rowsum(x_i * x_i) / D + 0.001);");
    // Names are the helper's own, whatever the kernel calls `x` and `n`; the order of the text does
    // not matter.
    let named = "let n = 3.0; let out = x_i * n * rms(x_i, 2, eps);";
    let written = "let n = 3.0; let out = x_i * n * rsqrt(rowsum(x_i * x_i) / 2 + eps);";
    assert_eq!(ir(&format!("{}\n{rms}", kernel(named))), ir(&kernel(written)));

    let both = "fn halves(x: Tile) -> (Tile, Tile) { let half = x * 0.5; (half, x - half) }";
    same(
        both,
        "let (a, mut b) = halves(x_i); b += a; let out = b;",
        "let half = x_i * 0.5; let (a, mut b) = (half, x_i - half); b += a; let out = b;",
    );
    let through =
        "fn double(x: Tile) -> Tile { let (a, b) = halves(x); twice(a) + twice(b) } fn twice(x: Tile) -> Tile { x * 2.0 }";
    same(
        &format!("{both} {through}"),
        "let out = double(x_i);",
        "let half = x_i * 0.5; let (a, b) = (half, x_i - half); let out = a * 2.0 + b * 2.0;",
    );
    // A tuple may be what another helper gives.
    same(
        &format!("{both} fn again(x: Tile) -> (Tile, Tile) {{ halves(x) }}"),
        "let (a, b) = again(x_i); let out = a + b;",
        "let half = x_i * 0.5; let (a, b) = (half, x_i - half); let out = a + b;",
    );
    let generic = "fn rounded<T: Element, const C: usize>(x: Tile, i: Coord) -> Tile { (x + zeros((i, C))).to::<T>() }";
    same(generic, "let out = rounded::<T, D>(x_i, i);", "let out = (x_i + zeros((i, D))).to::<T>();");
    same(generic, "let out = rounded::<f32, { D / 2 * 2 }>(x_i, i);", "let out = (x_i + zeros((i, D / 2 * 2))).to::<f32>();");
    let loads = "fn row(w: &Tensor, x: Tile, keep: bool) -> Tile { select(keep, load(w, [..]) * x, x) }";
    same(loads, "let out = row(w, x_i, eps > 0.0);", "let out = select(eps > 0.0, load(w, [..]) * x_i, x_i);");
    let mutable = "fn sum(mut x: Tile, n: f32) -> Tile { x += n; x *= 2.0; x }";
    same(mutable, "let out = sum(x_i * 1.0, 1);", "let mut z = x_i * 1.0; z += 1.0; z *= 2.0; let out = z;");
}

#[test]
fn a_loop_carries_what_a_helper_gives() {
    let kernel = |step: &str| {
        format!(
            "pub fn attend<T: Element, const D: usize>(q: &Tensor<T, (M, D)>, k: &Tensor<T, (N, D)>, o: &mut Tensor<T, (M, D)>) {{
                let i = program(tiles(M));
                let q_i = load(q, [i, ..]);
                let mut m = full(i, -INF);
                let mut l = zeros(i);
                let mut acc = zeros((i, D));
                for j in tiles(N) {{
                    let k_j = load(k, [j, ..]);
                    let s = dot(q_i, k_j.t());
                    {step}
                }}
                store(o, [i, ..], acc / l);
            }}"
        )
    };
    let helper = "fn step<T: Element>(s: Tile, v: Tile, m: Tile, l: Tile, acc: Tile) -> (Tile, Tile, Tile) {
        let m_new = max(m, rowmax(s));
        let alpha = exp(m - m_new);
        let p = exp(s - m_new);
        (m_new, l * alpha + rowsum(p), acc * alpha + dot(p.to::<T>(), v))
    }";
    let written = "let m_new = max(m, rowmax(s)); let alpha = exp(m - m_new); let p = exp(s - m_new);
        (m, l, acc) = (m_new, l * alpha + rowsum(p), acc * alpha + dot(p.to::<T>(), k_j));";
    let called = ir(&format!("{helper}\n{}", kernel("(m, l, acc) = step::<T>(s, k_j, m, l, acc);")));
    assert_eq!(called, ir(&kernel(written)));
    assert_eq!(called.matches("dot ").count(), 2, "{called}");
}

/// Checks the errors of helpers and statements: the offending text, parts of what is said, and the
/// helpers whose calls lead there.
#[track_caller]
fn check(helpers: &str, body: &str, expected: &[(&str, &str, &str, &[&str])]) {
    let text = format!("{helpers}\n{}", kernel(body));
    let found: Vec<Diagnostic> = parse(&source(&text)).map_or_else(|e| e.list, |_| Vec::new());
    let report = parse(&source(&text)).map_or_else(|e| e.to_string(), |_| "no errors".into());
    assert_eq!(found.len(), expected.len(), "{report}");
    for (error, (place, message, advice, calls)) in found.iter().zip(expected) {
        assert_eq!(&text[error.span.start as usize..error.span.end as usize], *place, "{report}");
        assert!(error.message.contains(message), "expected `{message}`\n{report}");
        let said = format!("{} {}", error.label, error.help.as_deref().unwrap_or_default());
        assert!(said.contains(advice), "expected advice `{advice}`\n{report}");
        assert_eq!(error.calls.iter().map(|call| call.name.as_str()).collect::<Vec<_>>(), *calls, "{report}");
    }
}

#[test]
fn errors_in_a_body_name_the_calls() {
    let outer = "fn outer(a: Tile) -> Tile { inner(a) }";
    check(
        &format!("fn inner(x: Tile) -> Tile {{ x + z }} {outer}"),
        "let out = outer(x_i);",
        &[("z", "`z` is not defined", "", &["inner", "outer"])],
    );
    // Told once, whatever the number of calls.
    check(
        "fn inner(x: Tile) -> Tile { x + z }",
        "let out = inner(x_i) + inner(2.0 * x_i);",
        &[("z", "`z` is not defined", "", &["inner"])],
    );
    let text = format!("fn inner(x: Tile) -> Tile {{\n    x + z\n}}\n{outer}\n{}", kernel("let out = outer(x_i);"));
    let report = parse(&source(&text)).expect_err("z is not defined").to_string();
    assert!(report.contains("in this call of `inner`") && report.contains("in this call of `outer`"), "{report}");
    // The names of the kernel are not the helper's.
    for (name, advice) in [("D", "const D: usize"), ("M", "`m: i32`"), ("w", "a parameter `w`"), ("x_i", "")] {
        let helper = format!("fn inner(a: Tile) -> Tile {{ a * {name} }}");
        let text = format!("{helper}\n{}", kernel("let out = inner(x_i);"));
        let errors = parse(&source(&text)).expect_err(&helper);
        assert_eq!(errors.list.len(), 1, "{errors}");
        assert!(errors.to_string().contains(advice), "{errors}");
    }
    let text = format!("fn inner(a: Tile) -> Tile {{ a.to::<T>() }}\n{}", kernel("let out = inner(x_i);"));
    assert!(parse(&source(&text)).expect_err("T is the kernel's").to_string().contains("not an element type"));
}

#[test]
fn arguments() {
    let one = "fn one(x: Tile, n: i32, s: f32, c: bool, i: Coord, t: &Tensor) -> Tile { select(c, x * n * s + pos(i) + load(t, [..]), x) }";
    let call = |arguments: &str| format!("let out = one({arguments});");
    check(one, &call("x_i, D, 2, eps > 1.0, i, w"), &[]);
    check(one, &call("x_i, D"), &[("one(x_i, D)", "`one` takes 6 arguments", "write `one(x, n, s, c, i, t)`", &[])]);
    for (arguments, place, message, advice) in [
        ("x, D, 2.0, eps > 1.0, i, w", "x", "`x` of `one` takes a tile or a scalar", "write `&Tensor`"),
        ("i, D, 2.0, eps > 1.0, i, w", "i", "`x` of `one` takes a tile", "pos(i)"),
        ("x_i, 1.5, 2.0, eps > 1.0, i, w", "1.5", "`n` of `one` takes an integer", "found a number"),
        ("x_i, x_i, 2.0, eps > 1.0, i, w", "x_i", "`n` of `one` takes an integer", "is `Tile`"),
        ("x_i, 1, D, eps > 1.0, i, w", "D", "`s` of `one` takes a float", "write `i32`"),
        ("x_i, 1, 2.0, x_i > 1.0, i, w", "x_i > 1.0", "`c` of `one` takes a truth value", "found tile<bool, (i, D)>"),
        ("x_i, 1, 2.0, eps > 1.0, M, w", "M", "`i` of `one` takes the coordinate", "program"),
        ("x_i, 1, 2.0, eps > 1.0, i, eps", "eps", "`t` of `one` takes an input tensor", "a parameter of the kernel"),
        ("x_i, 1, 2.0, eps > 1.0, i, v", "v", "`v` is not defined", ""),
    ] {
        check(one, &call(arguments), &[(place, message, advice, &[])]);
    }
    let two = "fn two(x: Tile) -> (Tile, Tile) { (x, x + 1.0) }";
    check(two, "let out = two(x_i);", &[("two(x_i)", "`two` gives 2 values", "let (a, b) = two(x)", &[])]);
    check(two, "let (out, b, c) = two(x_i); let d = b + c;", &[("(out, b, c)", "3 names are bound to 2 values", "", &[])]);
    check(two, "let mut out = x_i * 1.0; out = two(x_i);", &[("two(x_i)", "`two` gives 2 values", "", &[])]);
    check(
        two,
        "let mut out = x_i * 1.0; (out, out, out) = two(out);",
        &[("(out, out, out)", "3 variables are assigned 2 values", "", &[])],
    );
    check(two, "two(x_i); let out = x_i;", &[("two(x_i)", "", "", &[])]);
    let generic = "fn cast<T: Element>(x: Tile) -> Tile { x.to::<T>() }";
    check(generic, "let out = cast(x_i);", &[("cast", "`cast` takes 1 generic argument", "write `cast::<T>(x)`", &[])]);
    check(generic, "let out = cast::<D>(x_i);", &[("D", "not an element type", "", &[])]);
    check(
        "fn sized<const C: usize>(i: Coord) -> Tile { zeros((i, C)) }",
        "let out = x_i + sized::<f32>(i);",
        &[("f32", "`f32`", "", &[])],
    );
}

#[test]
fn headers_and_results() {
    let sound = "let out = x_i;";
    for (helper, place, message, advice) in [
        ("fn a(x: usize) -> Tile { zeros(x) }", "usize", "not a type of a helper's parameter", "write `i32`"),
        ("fn a(x: f16) -> Tile { x }", "f16", "not a type of a helper's parameter", "write `Tile`"),
        ("fn a(x: Tensor) -> Tile { x }", "Tensor", "not a type of a helper's parameter", "write `&Tensor`"),
        ("fn a(x: &mut Tensor) -> f32 { 1.0 }", "&mut Tensor", "not a type of a helper's parameter", "a helper stores nothing"),
        ("fn a(x: Tile) -> Tensor { x }", "Tensor", "not a type", ""),
        ("fn a(x: Tile) -> () { x }", "()", "a helper gives a value", ""),
        ("fn a(x: Tile, x: Tile) -> Tile { x }", "x", "the name `x` is already taken", ""),
        ("fn exp(x: Tile) -> Tile { x }", "exp", "`exp` is a word of the language", "another name"),
        ("fn a<T>(x: Tile) -> Tile { x }", "T", "`T` must be an element type", "T: Element"),
        ("async fn a(x: Tile) -> Tile { x }", "async", "a helper is a plain function", ""),
        ("fn f(x: Tile) -> Tile { x }", "f", "two functions are called `f`", "rename"),
        ("fn a(x: Tile) -> Tile { x } fn a(x: Tile) -> Tile { x }", "a", "two functions are called `a`", "rename"),
    ] {
        let text = format!("{helper}\n{}", kernel(sound));
        let errors = parse(&source(&text)).expect_err(helper);
        let first = &errors.list[0];
        assert_eq!(&text[first.span.start as usize..first.span.end as usize], place, "{errors}");
        assert!(first.message.contains(message) && errors.to_string().contains(advice), "{errors}");
    }
    let call = "let out = a(x_i);";
    check("fn a(x: Tile) -> Tile { let y = x; }", call, &[("a", "does not end in its result", "without a semicolon", &["a"])]);
    check("fn a(x: Tile) -> Tile { return x; }", call, &[("a", "does not end in its result", "without `return`", &["a"])]);
    check("fn a(x: Tile) -> f32 { x }", call, &[("x", "`a` gives a float", "is `Tile`", &["a"])]);
    check("fn a(x: Tile) -> Tile { (x, x) }", call, &[("(x, x)", "`a` gives 1 value", "found 2", &["a"])]);
    check(
        "fn a(x: Tile) -> Tile { store(x, [0], x); x }",
        call,
        &[("store(x, [0], x)", "a helper stores nothing", "store it in the kernel", &["a"])],
    );
    check("fn a(x: Tile) -> Tile { x += 1.0; x }", call, &[("x", "`x` is a parameter", "mut x", &["a"])]);
}

#[test]
fn recursion_and_copies_have_an_end() {
    check("fn a(x: Tile) -> Tile { a(x) }", "let out = a(x_i);", &[("a(x)", "a helper calls itself", "`a` -> `a`", &["a"])]);
    let circle = "fn a(x: Tile) -> Tile { b(x) } fn b(x: Tile) -> Tile { 1.0 + c(x) } fn c(x: Tile) -> Tile { b(x) }";
    check(circle, "let out = a(x_i);", &[("b(x)", "a helper calls itself", "`b` -> `c` -> `b`", &["c", "b", "a"])]);
    let mut bomb = "fn a0(x: Tile) -> Tile { x }".to_owned();
    for n in 1..=20 {
        bomb.push_str(&format!("\nfn a{n}(x: Tile) -> Tile {{ a{0}(a{0}(x)) }}", n - 1));
    }
    let errors = parse(&source(&format!("{bomb}\n{}", kernel("let out = a20(x_i);")))).expect_err("a million copies");
    assert!(errors.list.iter().all(|e| e.message.contains("too many calls of helpers")), "{errors}");
}

#[test]
fn what_no_kernel_calls_and_nothing_reads_is_warned_of() {
    let warnings = |helpers: &str, body: &str| -> Vec<String> {
        let text = format!("{helpers}\n{}\n{}", kernel(body), kernel(body).replace("fn f<", "fn g<"));
        parsed(&text).warnings.concat().into_iter().map(|w| w.message).collect()
    };
    assert_eq!(warnings("fn a(x: Tile) -> Tile { x }", "let out = a(a(x_i));"), Vec::<String>::new());
    assert_eq!(warnings("fn a(x: Tile) -> Tile { nonsense }", "let out = x_i;"), ["`a` is never called"]);
    assert_eq!(warnings("fn _a(x: Tile) -> Tile { x }", "let out = x_i;"), Vec::<String>::new());
    // Of two kernels with three calls, once.
    let unread = "fn a(x: Tile, y: Tile) -> Tile { let z = x * 2.0; let mut n = x * 1.0; n += 1.0; x }";
    assert_eq!(
        warnings(unread, "let out = a(x_i, x_i) + a(x_i, 1.0);"),
        ["`y` is never used", "`z` is never used", "`n` is never used"]
    );
}
