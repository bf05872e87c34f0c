//! Errors in kernel text, as a specification: the offending token is marked «so», then come the message and the advice.

use flashtile_dsl::ir::{SourceText, Span};
use flashtile_dsl::syntax::{Diagnostic, Style, parse, render};

fn source(text: &str) -> SourceText {
    SourceText { name: "kernel.rs".into(), text: text.into(), first_line: 1 }
}

fn errors(text: &str) -> Vec<Diagnostic> {
    match parse(&source(text)) {
        Ok(_) => Vec::new(),
        Err(diagnostics) => diagnostics.list,
    }
}

/// Removes the marks; gives the ranges that they enclosed.
fn unmark(marked: &str) -> (String, Vec<Span>) {
    let (mut text, mut spans) = (String::new(), Vec::new());
    for c in marked.chars() {
        let at = text.len() as u32;
        match c {
            '«' => spans.push(Span { start: at, end: at }),
            '»' => {
                let open = spans.iter_mut().rev().find(|s| s.end == s.start).expect("an opening mark");
                open.end = at;
            }
            c => text.push(c),
        }
    }
    (text, spans)
}

/// Checks that a text has exactly the errors expected, at the marked places in order.
#[track_caller]
fn check(marked: &str, expected: &[(&str, &str)]) {
    let (text, spans) = unmark(marked);
    let found = errors(&text);
    let report = parse(&source(&text)).map_or_else(|e| render(&e, Style::Plain), |_| "no errors".into());
    assert_eq!(found.len(), expected.len(), "{report}");
    assert_eq!(spans.len(), expected.len(), "marks in\n{marked}");
    for ((diagnostic, (message, help)), span) in found.iter().zip(expected).zip(&spans) {
        assert!(diagnostic.message.contains(message), "expected `{message}`\n{report}");
        let advice = format!("{} {}", diagnostic.label, diagnostic.help.as_deref().unwrap_or_default());
        assert!(advice.contains(help), "expected advice `{help}`\n{report}");
        let place = |s: &Span| text[s.start as usize..s.end as usize].to_owned();
        assert_eq!(place(&diagnostic.span), place(span), "{report}");
        assert_eq!(diagnostic.span, *span, "{report}");
    }
}

/// Checks the errors of statements in a kernel of the usual parameters, all of which are used.
#[track_caller]
fn check_body(marked: &str, expected: &[(&str, &str)]) {
    let text = format!(
        "pub fn test<T: Element, const D: usize>(
    q: &Tensor<T, (B, M, D)>, k: &Tensor<T, (B, N, D)>, page: &Tensor<i32, (B)>, scale: f32, o: &mut Tensor<f32, (B, M, D)>,
) {{
    let (b, i) = program(B, tiles(M));
    let q_i = load(q, [b, i, ..]);
    let used = scale + load(page, [b]) + load(k, [b, 0, 0]);
    {marked}
    store(o, [b, i, ..], q_i * used);
}}"
    );
    check(&text, expected);
}

#[test]
fn the_usual_kernel_is_sound() {
    check_body("", &[]);
}

#[test]
fn unknown_names() {
    check_body("let x = «sclae» * 2.0;", &[("`sclae` is not defined", "did you mean `scale`?")]);
    check_body("let x = «y» * 2.0;", &[("`y` is not defined", "define it before")]);
    check_body("let x = «row_max»(q_i);", &[("there is no function `row_max`", "did you mean `rowmax`?")]);
    check_body("let x = «fourier»(q_i);", &[("there is no function `fourier`", "the functions are program")]);
    check_body("let x = «softmax»(q_i);", &[("there is no function `softmax`", "exp(x - rowmax(x))")]);
    check_body("let x = «pow»(q_i, 2.0);", &[("there is no function `pow`", "x * x")]);
    check_body("let x = «inf»;", &[("`inf` is not defined", "write `INF`")]);
    check_body("let x = q_i.«sum»();", &[("there is no method `sum`", "rowsum(x)")]);
    check_body("let x = exp(«rowmax»);", &[("`rowmax` is a function", "call it")]);
    check_body("let x = q_i * «T»;", &[("`T` is a type", "x.to::<T>()")]);
    check_body("let x = q_i.«transpose»();", &[("there is no method `transpose`", "`.t()`")]);
    check_body("let x = q_i.«exp»();", &[("there is no method `exp`", "call it as a function")]);
}

#[test]
fn use_before_definition() {
    check_body("let x = «y» + 1.0; let y = 2.0;", &[("`y` is not defined", "define it before")]);
}

#[test]
fn elements_of_one_byte_are_loaded_and_never_stored() {
    for elem in ["bool", "u8", "i8", "f8e4m3", "f8e5m2"] {
        let text = |x: &str, y: &str| {
            format!(
                "pub fn f(x: &Tensor<{x}, (N)>, y: &mut Tensor<{y}, (N)>) {{
                    let i = program(tiles(N));
                    store(y, [i], select(load(x, [i]) == load(x, [i]), 1.0, 0.0));
                }}"
            )
        };
        check(
            &text("f32", &format!("«{elem}»")),
            &[(&format!("outputs of `{elem}` are not built"), "store `f32`, `f16`, `bf16`")],
        );
        if elem != "bool" {
            check(&text(elem, "f32"), &[]);
            check_body(&format!("let x = «q_i».to::<{elem}>();"), &[("cannot convert to", "in memory only")]);
        }
    }
    check_body("let x = «q_i».to::<bool>();", &[("cannot convert to bool", "compare: `x != 0`")]);
    check(
        "pub fn f(x: &Tensor<«int8», (N)>, y: &mut Tensor<f32, (N)>) { let i = program(tiles(N)); store(y, [i], 0.0); }",
        &[("this is not an element type", "`u8`, `i8`, `f8e4m3`, `f8e5m2`")],
    );
    for (elem, instead) in [("i64", "`i32`, or 8"), ("u32", "`i32`, or 8"), ("f64", "`f32`")] {
        check(
            &format!(
                "pub fn f(x: &Tensor<«{elem}», (N)>, y: &mut Tensor<f32, (N)>) {{ let i = program(tiles(N)); store(y, [i], 0.0); }}"
            ),
            &[("this is not an element type", instead)],
        );
    }
    check(
        "pub fn f<const D: usize>(q: &Tensor<f32, (N, D)>, k: &Tensor<i8, (N, D)>, y: &mut Tensor<f32, (N, N)>) {
            let (i, j) = program(tiles(N), tiles(N));
            store(y, [i, j], dot(load(q, [i, ..]), «load(k, [j, ..]).t()»));
        }",
        &[("`dot` multiplies floats", "convert it, `.to::<f32>()`")],
    );
}

#[test]
fn one_mistake_is_one_error() {
    check_body("let x = «oops»; let y = x + 1.0; let z = exp(y) * x;", &[("`oops` is not defined", "")]);
}

#[test]
fn all_errors_of_all_kernels() {
    let text = "
        pub fn one(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
            let i = program(tiles(N));
            store(y, [i], load(x, [i]) + «foo» * «bar»);
        }
        pub fn two(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
            let i = program(tiles(N));
            store(y, [i], «exq2»(load(x, [i])));
        }";
    check(text, &[("`foo`", ""), ("`bar`", ""), ("no function `exq2`", "`exp2`")]);
}

#[test]
fn wrong_arity() {
    check_body("let x = «dot(q_i)»;", &[("`dot` takes 2 arguments", "found 1")]);
    check_body("let x = «exp(q_i, q_i)»;", &[("`exp` takes 1 argument", "write `exp(x)`")]);
    check_body("«store(o, q_i)»;", &[("`store` takes 3 arguments", "found 2")]);
    check_body("for j in «tiles()» {}", &[("`tiles` takes 1 argument", "found 0")]);
    check_body("let x = load(q, «[b, i]»);", &[("`q` has 3 dimensions, but 2 are addressed", "(B, M, D)")]);
}

#[test]
fn wrong_types() {
    check_body("let x = «i» + 1.0;", &[("`i` is the coordinate of a tile", "pos(i)")]);
    check_body("let x = «q» * 2.0;", &[("`q` is a tensor, not a value", "load(q, [.., .., ..])")]);
    check_body("let x = pos(«b»);", &[("`pos` takes the coordinate of a tile", "found an index")]);
    check_body("let x = exp(«pos(i) > 0»);", &[("expected numbers", "select(condition, 1.0, 0.0)")]);
    check_body("let x = !«q_i»;", &[("`!` takes a truth value", "found tile<T, (i, D)>")]);
    check_body("let x = q_i > 0.0 && «scale»;", &[("expected a condition", "found f32")]);
    check_body("let x = mask(q_i, «pos(i)»);", &[("expected a condition", "found tile<i32, (i)>")]);
    check_body("let x = «q_i % 2»;", &[("the remainder `%` is for integers", "tile<T, (i, D)>")]);
    check_body("let x = b / «0»;", &[("division by zero", "")]);
    check_body("let x = load(q, [«scale», i, ..]);", &[("expected an index", "found f32")]);
    check_body("let x = load(q, [«q_i», i, ..]);", &[("expected an index", "found tile<T, (i, D)>")]);
    check_body("let x = load(q, [b, pos(i) - 1, «..»]);", &[("a range beside a tile of positions", "for t in 0..N")]);
    check_body("store(o, [b, «pos(i)», ..], q_i);", &[("a store goes to no positions of a tile", "one place")]);
    check_body("let x = load(«q_i», [b, i, ..]);", &[("`load` takes a tensor first", "`q`, `k`, `page`, `o`")]);
    check_body("let x = full(i, «q_i»);", &[("expected a scalar", "found tile<T, (i, D)>")]);
    check_body("let x = zeros(«scale»);", &[("expected a dimension", "found f32")]);
    check_body("let x = zeros(«[i, D]»);", &[("dimensions stand in parentheses", "write `i`, or `(i, D)`")]);
    check_body("let x = full(«[i]», 0.0);", &[("dimensions stand in parentheses", "in brackets")]);
    check_body("let x = «q_i».to::<u8>();", &[("cannot convert to u8", "in memory only")]);
    check_body("let x = q_i.to::<«f61»>();", &[("this is not an element type", "did you mean `f16`?")]);
    check_body("let x = q_i + «\"one\"»;", &[("this literal is not a number", "")]);
    check_body("let x = q_i + «1u8»;", &[("a literal has no suffix `u8`", "leave it out")]);
}

#[test]
fn shapes_that_do_not_broadcast() {
    check_body(
        "for j in tiles(N) { let x = «q_i + load(k, [b, j, ..])»; }",
        &[("these shapes do not go together", "tile<T, (i, D)> and tile<T, (j, D)>")],
    );
    check_body("let x = «q_i * q_i.t()»;", &[("these shapes do not go together", "transpose one of them")]);
    check_body(
        "for j in tiles(N) { let x = mask(q_i, «pos(i) >= pos(j)»); }",
        &[("the condition has a dimension that the masked tile lacks", "tile<bool, (i, j)> masks tile<T, (i, D)>")],
    );
}

#[test]
fn products() {
    check_body(
        "for j in tiles(N) { let x = «dot(q_i, load(k, [b, j, ..]))»; }",
        &[("the inner dimensions of `dot` differ", "transpose the right one: `.t()`")],
    );
    check_body("let x = dot(«rowsum(q_i)», q_i);", &[("`dot` takes a matrix", "found tile<f32, (i)>")]);
    check_body("let x = «dot(exp(q_i).t(), q_i)»;", &[("the operands of `dot` have different element types", ".to::<T>()")]);
    check_body("let x = «dot(q_i, q_i.t())»;", &[("both dimensions of this tile are `i`", "for j in tiles")]);
    check_body("let x = rowmax(«rowsum(q_i)»);", &[("`rowmax` takes a matrix", "found tile<f32, (i)>")]);
}

#[test]
fn directions() {
    check_body("let x = load(«o», [b, i, ..]);", &[("`o` is an output and cannot be loaded", "declared `&mut`")]);
    check_body("store(«q», [b, i, ..], q_i);", &[("`q` is an input and cannot be stored to", "q: &mut Tensor")]);
    let text = "pub fn none(x: &Tensor<f32, (N)>, «y»: &mut Tensor<f32, (N)>) {
        let i = program(tiles(N)); let z = load(x, [i]);
    }";
    check(text, &[("nothing is stored to `y`", "add `store(y")]);
}

#[test]
fn stores() {
    check_body("store(o, [b, i, ..], «rowsum(q_i)»);", &[("another shape", "expected tile<f32, (i, D)>, found tile<f32, (i)>")]);
    check_body("store(o, [b, i, ..], «q_i.t()»);", &[("another shape", "transpose it")]);
    check_body("store(o, [b, i, ..], «q_i > 0.0»);", &[("another element type", "found tile<bool, (i, D)>")]);
}

#[test]
fn stores_that_programs_share() {
    let text = "pub fn shared(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (N)>) {
        let (a, i) = program(M, tiles(N));
        «store(y, [i], load(x, [a, i]))»;
    }";
    check(text, &[("not addressed by `a`: programs that differ in it write the same place", "")]);
    let text = "pub fn again(x: &Tensor<f32, (M, N)>, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        for j in tiles(N) { «store(y, [i], rowsum(load(x, [i, j])))»; }
    }";
    check(text, &[("inside the loop over `j` but not addressed by `j`", "")]);
}

#[test]
fn sums() {
    let kernel = |params: &str, body: &str| {
        format!("pub fn sums<T: Element>(x: &Tensor<f32, (B, M, N)>, {params}) {{ let (b, i) = program(B, tiles(M)); {body} }}")
    };
    let y = "y: &mut Tensor<f32, (M, N)>";
    let both = "for j in tiles(N) { let t = load(x, [b, i, j]); add(y, [i, j], t); «store(y, [i, j], t)»; }";
    check(&kernel(y, both), &[("`y` is both stored and added to", "use two outputs")]);
    let both = "for j in tiles(N) { let t = load(x, [b, i, j]); store(y, [i, j], t); «add(y, [i, j], t)»; }";
    check(&kernel(y, both), &[("`y` is both stored and added to", "use two outputs")]);
    let half = "for j in tiles(N) { «add(y, [i, j], load(x, [b, i, j]))»; }";
    check(&kernel("y: &mut Tensor<T, (M, N)>", half), &[("`y` holds `T`, and sums are of `f32`", "Tensor<f32, (..)>")]);
    check(
        &kernel(y, "add(y, [i, 0], 1.0); add(«x», [b, i, 0], 1.0);"),
        &[("`x` is an input and cannot be stored to", "x: &mut Tensor")],
    );
    check(
        &kernel(y, "add(y, [i, 0], load(x, [b, i, 0])); let z = load(«y», [i, 0]);"),
        &[("`y` is an output and cannot be loaded", "")],
    );
    check(
        &kernel(y, "add(y, [i, 0], load(x, [b, i, 0])); let z = «add(y, [i, 0], 1.0)»;"),
        &[("`add` is a statement", "add(o, [b, h, i, ..], value)")],
    );
    // How many tiles there are is a matter of the schedule.
    let columns = "columns: &mut Tensor<f32, (N)>";
    let often = "for j in tiles(N) { «add(columns, [j], full(j, 1.0))»; }";
    check(&kernel(columns, &often.replace("full(j, 1.0)", "load(x, [b, 0, j])")), &[("no sum over `i`", "")]);
    let often = "for j in tiles(N) { «add(rows, [i], load(x, [b, i, 0]))»; }";
    check(&kernel("rows: &mut Tensor<f32, (M)>", often), &[("no sum over `j`", "")]);
    let by_position = "for j in tiles(N) { «add(rows, [i], rowsum(load(x, [b, i, j])) * rowsum(load(x, [b, i, j])))»; }";
    check(&kernel("rows: &mut Tensor<f32, (M)>", by_position), &[("no sum over `j`", "")]);
}

#[test]
fn sums_at_positions() {
    let kernel = |body: &str| {
        format!(
            "pub fn sums(x: &Tensor<f32, (B, M, N)>, kind: &Tensor<i32, (B, M)>, y: &mut Tensor<f32, (K)>, z: &mut Tensor<f32, (M)>) {{
                let (b, i) = program(B, tiles(M)); let of = load(kind, [b, i]); {body}
            }}"
        )
    };
    let several = "for j in tiles(N) { store(y, [«of»], load(x, [b, i, 0])); }";
    check(&kernel(&format!("{several} store(z, [i], of.to::<f32>());")), &[("a store goes to no positions of a tile", "`add`")]);
    let often = "for j in tiles(N) { «add(y, [of], load(x, [b, i, 0]))»; }";
    check(&kernel(&format!("{often} add(z, [of], 1.0);")), &[("no sum over `j`", "")]);
    check(
        &kernel("add(z, [of], 1.0); add(y, [of], «load(x, [b, i, 0]) > 0.0»);"),
        &[("what is added does not go with the positions it goes to", "broadcast")],
    );
}

#[test]
fn assignments() {
    check_body("let x = 1.0; «x» = 2.0;", &[("`x` is not mutable", "let mut x")]);
    check_body("«scale» = 2.0;", &[("`scale` is a parameter", "let mut scale_now = scale;")]);
    check_body("«q» = q_i;", &[("`q` is a tensor", "store(q, [...], value)")]);
    check_body("for j in tiles(N) { «j» = 1; }", &[("`j` is the coordinate of a tile", "")]);
    check_body("«y» = 1.0;", &[("`y` is not defined", "")]);
    check_body("«q_i[0]» = 1.0;", &[("only a variable can be assigned", "store(o")]);
    check_body(
        "let mut l = 0.0; for j in tiles(N) { l = «l + rowsum(q_i)»; }",
        &[("the type of `l` would change", "let mut l = zeros(i);")],
    );
    check_body("let mut x = q_i; for j in tiles(N) { «x += 1.0»; }", &[("the type of `x` would change", ".to::<T>()")]);
    check_body("«let x;»", &[("a variable needs a value", "")]);
}

#[test]
fn addresses() {
    check_body(
        "for j in tiles(N) { let x = load(q, [b, «j», ..]); }",
        &[("`j` walks N, but dimension 1 of `q` is M", "expected a coordinate of tiles(M)")],
    );
    check_body("let x = load(q, [b, i, «..2 * D»]);", &[("the range 0 .. 2 * D is outside the dimension", "0 .. D")]);
    check_body("let x = load(q, [b, i, «8..4»]);", &[("the range 8 .. 4 is outside the dimension", "")]);
    check_body("let x = load(q, [b, i, «4..4»]);", &[("this range is empty", "")]);
    check_body("let x = load(q, [b, i, 4«..=»8]);", &[("a range excludes its end", "a..b")]);
    check_body("let x = load(q, [b, «..», 0]);", &[("`M` is known only at launch", "tiles(M)")]);
    check_body("let x = load(q, [b, i, «-1»]);", &[("position -1 is outside dimension 2 of `q`", "0 .. D")]);
    check_body("let x = load(q, [«B», i, ..]);", &[("position B is outside dimension 0 of `q`", "0 .. B")]);
    check_body("let x = load(q, «b»);", &[("expected a list in brackets", "found `b`")]);
    check_body("let x = zeros((i, «N»));", &[("`N` is known only at launch", "const N: usize")]);
    check_body("let x = zeros(«(i, D, 4)»);", &[("a tile has at most 2 dimensions", "found 3: (i, D, 4)")]);
    let text = "pub fn deep<const A: usize, const C: usize>(x: &Tensor<f32, (M, A, C)>, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        store(y, [i], rowsum(load(x, «[i, .., ..]»)));
    }";
    check(text, &[("a tile has at most 2 dimensions", "found 3: (i, A, C)")]);
}

#[test]
fn the_grid() {
    check("pub fn «empty»() {}", &[("a kernel begins with `program`", "let (b, h, i) = program")]);
    let late = "pub fn late(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {
        «let z = 1.0;»
        let i = program(tiles(N));
        store(y, [i], z * load(x, [i]));
    }";
    check(late, &[("a kernel begins with `program`", "")]);
    check_body("let z = «program(B)»;", &[("a kernel has one `program`", "")]);
    check_body("let z = 1.0 + «program(B)»;", &[("`program` is bound by the first `let`", "")]);
    check_body("let z = «tiles(N)»;", &[("`tiles` stands in `program(...)` or after `in`", "")]);
    let names = "pub fn names(y: &mut Tensor<f32, (M, M)>) { let (a, «a») = program(M, tiles(M)); store(y, [0, a], 0.0); }";
    check(names, &[("`a` is named twice", "its own name")]);
    let count = "pub fn count(y: &mut Tensor<f32, (M, N)>) { let (a, b, c) = «program(tiles(M), N)»; store(y, [a, b], 0.0); }";
    check(count, &[("`program` has 2 arguments, but 3 names are bound", "")]);
    let size = "pub fn size(y: &mut Tensor<f32, (M, N)>) { let (a, b) = program(tiles(M), «3.5»); store(y, [a, b], 0.0); }";
    check(size, &[("expected a size", "`M`, `N`")]);
}

#[test]
fn parameters() {
    let unused = "pub fn unused(«x»: &Tensor<f32, (N)>, «n»: i32, y: &mut Tensor<f32, (N)>) {
        let i = program(tiles(N)); store(y, [i], 0.0);
    }";
    check(unused, &[("`x` is never used", "remove it"), ("`n` is never used", "")]);
    let body = "{ let i = program(tiles(N)); store(y, [i], load(x, [i])); }";
    let check_header = |header: &str, expected: &[(&str, &str)]| check(&format!("{header} {body}"), expected);
    check_header(
        "pub fn f<«T: Copy»>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>)",
        &[("`T` must be an element type", "T: Element")],
    );
    check_header(
        "pub fn f<«T»>(x: &Tensor<T, (N)>, y: &mut Tensor<T, (N)>)",
        &[("`T` must be an element type", "found no bound")],
    );
    check_header(
        "pub fn f<const N: «u32»>(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>)",
        &[("`N` must be a `usize`", "const N: usize")],
    );
    check_header(
        "pub fn f(x: &Tensor<f32, (N)>, «x»: f32, y: &mut Tensor<f32, (N)>)",
        &[("the name `x` is already taken", "rename")],
    );
    check_header(
        "pub fn f(x: «Tensor<f32, (N)>», y: &mut Tensor<f32, (N)>)",
        &[("not a type of a kernel parameter", "borrowed")],
    );
    check_header("pub fn f(x: &Tensor<«f64», (N)>, y: &mut Tensor<f32, (N)>)", &[("not an element type", "")]);
    check_header("pub fn f(x: &«[f32]», y: &mut Tensor<f32, (N)>)", &[("expected `Tensor<element, (sizes)>`", "found `[f32]`")]);
    check_header("pub fn f(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) -> «f32»", &[("a kernel returns nothing", "")]);
    check_header("pub «async» fn f(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>)", &[("a plain function", "")]);
    check_header("«#[inline]» pub fn f(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>)", &[("no attributes", "///")]);
    check_header("pub fn f<«'a»>(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>)", &[("no lifetimes", "")]);
}

#[test]
fn dimensions() {
    let check_shape = |shape: &str, expected: &[(&str, &str)]| {
        let header = format!("pub fn f<const D: usize>(x: &Tensor<f32, ({shape})>, y: &mut Tensor<f32, (N)>)");
        check(&format!("{header} {{ let i = program(tiles(N)); store(y, [i], load(x, [0, 0]) + D); }}"), expected);
    };
    for shape in ["N, 64", "D + 1, 2 * D", "N / 2, (N - D) / 2", "2 * (N + 1), N", "B + 1, 3 * R - D"] {
        check_shape(shape, &[]);
    }
    check_shape("N, «H / G»", &[("not a linear expression of sizes", "a name of its own, such as `R`")]);
    check_shape("N, «D * D»", &[("not a linear expression of sizes", "multiplied or divided by numbers")]);
    check_shape("N, «D / 0»", &[("not a linear expression", "")]);
    check_shape("N, «9999999999 * D»", &[("not a linear expression", "beyond 2^30")]);
    check_shape("N, «0»", &[("a dimension has at least one position", "this is 0")]);
    check_shape("N, «D - D - 2»", &[("a dimension has at least one position", "this is -2")]);
    check_shape("N, «6.5»", &[("expected a size", "found `6.5`")]);
    check_shape("N, «64usize»", &[("expected a size", "found `64usize`")]);
    check(
        "pub fn f(x: &Tensor<f32, (N)>, n: i32, y: &mut Tensor<f32, (N, «n» + 1)>) { let i = program(tiles(N)); }",
        &[("`n` is not a size", "another name")],
    );
    check_shape("N, D «%» 2", &[("expected a size", "found `%`")]);
    check_shape("N, «f(D)»", &[("expected a size", "found `f (D)`")]);
    check_shape(
        "N, «H» + «G»",
        &[
            ("the value of `H` follows from no shape", "a dimension that is `H` alone"),
            ("the value of `G` follows from no shape", "one name of its own"),
        ],
    );
    check("pub fn f(x: &Tensor<f32, (N, 64 «+»)>, y: &mut Tensor<f32, (N)>) { }", &[("syntax error", "")]);
    // What an error says is what the text says.
    check("pub fn f(x: «Tensor<f32, (N, 64)>») { let i = program(tiles(4)); }", &[("not a type", "(N , 64)")]);
}

#[test]
fn loops_over_positions() {
    check_body("for t in 0..4 {} for t in 1..N - 1 {} for t in M..(M + D) {} for t in 2..2 * D {}", &[]);
    check_body("for t in «0..0» {}", &[("this range is empty", "it has 0 positions")]);
    check_body("for t in «D + 1..D» {}", &[("this range is empty", "it has -1 positions")]);
    check_body("for t in 0«..=»4 {}", &[("a range excludes its end", "a..b")]);
    check_body("for t in «..N» {}", &[("the range of a loop has a start and an end", "for t in 0..N")]);
    check_body("for t in 0..«N / M» {}", &[("the bound of a loop is not linear in the sizes", "for r in 0..R")]);
    check_body("for t in 0..«load(page, [b])» {}", &[("no expression of sizes", "select(t < n, x, 0.0)")]);
    check_body("for t in «b»..«scale» {}", &[("no expression of sizes", "found an index"), ("no expression", "found f32")]);
    check_body("for t in 0..N { «t» = 1; }", &[("`t` is the index of a loop", "advances by itself")]);
    check_body("for t in 0..N { let x = pos(«t»); }", &[("`pos` takes the coordinate of a tile", "found an index")]);
    check_body("for t in 0..N { let x = zeros(«t»); }", &[("expected a dimension", "found an index")]);
    let stored = "pub fn f(x: &Tensor<f32, (M, R)>, y: &mut Tensor<f32, (M)>) {
        let i = program(tiles(M));
        for r in 0..R { «store(y, [i], load(x, [i, r]))»; }
    }";
    check(stored, &[("inside the loop over `r` but not addressed by `r`", "")]);
}

#[test]
fn kernels_of_one_name() {
    let kernel =
        |name: &str| format!("pub fn {name}(y: &mut Tensor<f32, (N)>) {{ let i = program(tiles(N)); store(y, [i], 0.0); }}");
    check(&format!("{} {}", kernel("f"), kernel("«f»")), &[("two kernels are called `f`", "rename")]);
    assert!(errors(&format!("{} {}", kernel("f"), kernel("g"))).is_empty());
}

#[test]
fn rust_that_the_language_does_not_have() {
    check_body("«while» true { }", &[("a kernel has no loops without an axis", "for j in tiles(N)")]);
    check_body("«loop» { }", &[("a kernel has no loops without an axis", "")]);
    check_body("let x = «if» scale > 0.0 { 1.0 } else { 2.0 };", &[("a kernel has no branches", "select(condition, a, b)")]);
    check_body("«if» scale > 0.0 { }", &[("a kernel has no branches", "")]);
    check_body("let x = «|y| y + 1.0»;", &[("a kernel has no closures", "")]);
    check_body("let x = «scale as f64»;", &[("a kernel has no `as` casts", ".to::<T>()")]);
    check_body("let x = «q_i[0]»;", &[("a kernel has no indexing", "load(q")]);
    check_body("for j in «q_i» {}", &[("a loop walks tiles or a range of positions", "for j in tiles(N)")]);
    check_body("«break»;", &[("no jumps out of loops", "mask")]);
    check_body("«return»;", &[("a kernel has no returns", "")]);
    check_body("«println!(\"x\");»", &[("a kernel calls no macros", "")]);
    check_body("«fn inner() {}»", &[("a kernel declares nothing inside", "")]);
    check_body("let x: «f32» = 1.0;", &[("variables have no type annotations", "")]);
    check_body("let «(x, y)» = 1.0;", &[("several names are bound to one value", "let (x, y) = (.., ..);")]);
    check_body("let x = 1.0 + «(1.0, 2.0)»;", &[("a kernel has no tuples as values", "let (x, y) = (.., ..);")]);
    check_body("let «(x, y)» = (1.0, 2.0, scale);", &[("2 names are bound to 3 values", "expected 3")]);
    check_body("let (x, «x») = (1.0, 2.0);", &[("`x` is named twice", "its own name")]);
    check_body("let (x, «(y, z)») = (1.0, (2.0, 3.0));", &[("several names are bound to one value", "")]);
    check_body("let (x, y) = («a», «c»); let z = x + y;", &[("`a` is not defined", ""), ("`c` is not defined", "")]);
    check_body("let (mut x, y) = (q_i, 1.0); x = x.to::<f32>().to::<T>(); «y» = 2.0;", &[("`y` is not mutable", "")]);
    check_body("let x = «q_i» & 1;", &[("`&` is for integers", "&&")]);
    check_body("let x = 1 ^ «0.5»;", &[("`^` is for integers", "bits of `i32`")]);
    check_body("let x = pos(i) | «(pos(i) > 3)»;", &[("`|` is for integers", "`||`")]);
    check_body("let x = mul_hi(«q_i», 3);", &[("`mul_hi` is for integers", "")]);
    check_body("let x = pos(i) << «32»;", &[("`<<` takes a number from 0 to 31", "")]);
    check_body("let x = load(page, [b]) >> «-1»;", &[("`>>` takes a number from 0 to 31", "")]);
    check_body("let x = sqrt(«q_i > 0.0»);", &[("expected numbers", "select")]);
    check_body("«q_i + 1.0»;", &[("the value of this statement is not used", "")]);
    check(
        "«struct S;» pub fn f(y: &mut Tensor<f32, (N)>) { let i = program(tiles(N)); store(y, [i], 0.0); }",
        &[("only functions are kernels", "")],
    );
}

#[test]
fn text_that_is_no_rust() {
    let unclosed = errors("pub fn f( {");
    assert_eq!(unclosed[0].message, "this is not Rust");
    let stray = errors("pub fn f() { let x = 1.0; ' }");
    assert_eq!((stray[0].message.as_str(), stray[0].span.start), ("this is not Rust", 26));
    check("pub fn f() { let x = 1.0 «store»(y, [i], x); }", &[("syntax error: expected `;`", "")]);
    check("pub fn f() { let x = mask(s, a «and» b); }", &[("syntax error: expected `,`", "write `a && b`")]);
    check("pub fn f() { let x = «where»(a, b, c); }", &[("syntax error: expected an expression", "select(cond, a, b)")]);
    check("pub fn f() { let x = 0 < a «<» b; }", &[("cannot be chained", "write `a < b && b < c`")]);
}

#[test]
fn nothing_to_read() {
    let found = errors("");
    assert_eq!(found.len(), 1);
    assert!(found[0].message.contains("there is no kernel here"));
}

#[test]
fn no_depth_overflows_the_stack() {
    let body = |expression: String| {
        format!("pub fn f(y: &mut Tensor<f32, (N)>) {{ let i = program(tiles(N)); store(y, [i], {expression}); }}")
    };
    let deep = errors(&body(format!("{}1.0{}", "(".repeat(5000), ")".repeat(5000))));
    assert!(deep[0].message.contains("brackets are nested too deep"), "{deep:?}");
    let long = errors(&body(format!("{}1.0", "-".repeat(100_000))));
    assert!(long[0].message.contains("this statement is too long"), "{long:?}");
    let branches = errors(&body(format!("if x {{}} {}", "else if x {} ".repeat(5000))));
    assert!(branches[0].message.contains("this statement is too long"), "{branches:?}");
}

#[test]
fn rust_beside_the_macro_is_ignored() {
    let text = "
        use flashtile::flash_kernel;
        fn host() { let f = |x: usize| x + 1; while f(1) < 1 {} }
        mod inner {
            flashtile::flash_kernel! {
                pub fn f(y: &mut Tensor<f32, (N)>) { let i = program(tiles(N)); store(y, [i], «zero»); }
            }
        }";
    check(text, &[("`zero` is not defined", "")]);
}

#[test]
fn the_rendering_shows_the_line() {
    let text = "pub fn f(y: &mut Tensor<f32, (N)>) {\n    let i = program(tiles(N));\n    store(y, [i], exq(1.0));\n}";
    let diagnostics = parse(&source(text)).expect_err("an unknown function");
    let expected = "\
error: there is no function `exq`
 --> kernel.rs:3:19
  |
3 |     store(y, [i], exq(1.0));
  |                   ^^^ unknown
  |
  = help: did you mean `exp`?";
    assert_eq!(render(&diagnostics, Style::Plain), expected);
    assert_eq!(diagnostics.to_string(), expected);
    assert!(render(&diagnostics, Style::Coloured).contains("\u{1b}["));
}

/// Stores in two loops, or of parts that have places in common, with those that have none.
#[test]
fn places_that_are_stored_to_twice() {
    let kernel = |body: &str| {
        let output =
            if body.contains("store(w,") { "w: &mut Tensor<f32, (E, F, M, D)>" } else { "y: &mut Tensor<f32, (B, M, D)>" };
        format!(
            "pub fn test<const D: usize>(x: &Tensor<f32, (B, M, D)>, v: &Tensor<f32, (M, N)>, {output}, z: &mut Tensor<f32, (M, N)>) {{
    {body}
}}"
        )
    };
    let grid = "let (b, i) = program(B, tiles(M)); for j in tiles(N) { store(z, [i, j], load(v, [i, j])); }";
    for (stores, is_wrong) in [
        ("for j in tiles(N) { store(z, [i, j], load(v, [i, j]) * 2.0); } store(y, [b, i, ..], load(x, [b, i, ..]));", true),
        ("store(y, [b, i, ..], load(x, [b, i, ..])); store(y, [b, i, ..8], load(x, [b, i, ..8]));", true),
        ("store(y, [b, i, 4..8], load(x, [b, i, 4..8])); store(y, [b, i, ..8], load(x, [b, i, ..8]));", true),
        ("store(y, [b + 1, i, ..8], load(x, [b, i, ..8])); store(y, [1 + b, i, ..8], load(x, [b, i, ..8]));", false),
        ("store(y, [b, i, ..D / 2], load(x, [b, i, ..D / 2])); store(y, [b, i, D / 2..], load(x, [b, i, D / 2..]));", false),
        ("store(y, [b, i, ..8], load(x, [b, i, ..8])); store(y, [b, i, 8..], load(x, [b, i, 8..]));", false),
        ("store(y, [b + 1, i, ..8], load(x, [b, i, ..8])); store(y, [b + 1, i, ..8], load(x, [b, i, ..8]));", true),
        ("store(y, [2 * b, i, ..], load(x, [b, i, ..])); store(y, [2 * b + 1, i, ..], load(x, [b, i, ..]));", false),
        ("store(y, [b / 2, i, ..], load(x, [b, i, ..]));", true),
        ("store(y, [b / 2 + 3, i, ..], load(x, [b, i, ..]));", true),
        ("store(y, [b / 1, i, ..], load(x, [b, i, ..]));", false),
        ("store(y, [b % 2, i, ..], load(x, [b, i, ..]));", true),
        ("store(w, [b / 2, b / 4, i, ..], load(x, [b, i, ..]));", true),
        ("store(w, [0, b / 2, i, ..], load(x, [b, i, ..]));", true),
        ("store(w, [b / 2, b % 2, i, ..], load(x, [b, i, ..]));", false),
        ("store(w, [b / 2, b - b / 2 * 2, i, ..], load(x, [b, i, ..]));", false),
    ] {
        let text = kernel(&format!("{grid} {stores}"));
        // Programs of `b` all write `z`, which is the one error of the rest.
        let found: Vec<_> = errors(&text).into_iter().filter(|e| !e.message.contains("store to `z`")).collect();
        println!("{stores}\n{found:?}");
        let says =
            ["stored to twice", "is not addressed by `b`", "takes only a quotient of `b`", "takes only a remainder of `b`"];
        assert_eq!(found.iter().any(|e| says.iter().any(|said| e.message.contains(said))), is_wrong);
        assert!(is_wrong || found.is_empty());
    }
}
