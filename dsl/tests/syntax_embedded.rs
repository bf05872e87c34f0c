//! The macro's way: the text is rebuilt from tokens, with every token at its line and column.

use std::str::FromStr;

use flashtile_dsl::ir::{SourceText, Span};
use flashtile_dsl::syntax::{Embedded, parse, parse_macro};
use proc_macro2::TokenStream;
use proptest::prelude::*;

/// The text without comments: what tokens can give back.
fn without_comments(text: &str) -> String {
    let line = |line: &str| match line.find("//") {
        Some(at) if !line[at..].starts_with("///") => line[..at].trim_end().to_owned(),
        _ => line.trim_end().to_owned(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[test]
fn built_in_kernels_keep_their_places() {
    for name in ["attention", "causal_attention", "matmul_gelu", "row_softmax"] {
        let path = format!("{}/../runtime/kernels/{name}.rs", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).expect("a built-in kernel");
        let tokens = TokenStream::from_str(&text).expect("Rust");
        let embedded = Embedded::new(&tokens, "");
        assert_eq!(&*embedded.source.text, without_comments(&text));
        assert_eq!(embedded.source.first_line, 1);
        let direct = parse(&SourceText { text: without_comments(&text).into(), ..embedded.source.clone() }).expect("sound");
        let rebuilt = parse(&embedded.source).expect("sound");
        assert_eq!(direct, rebuilt, "spans and all");
    }
}

#[test]
fn errors_point_at_tokens() {
    // As rustc gives it: the macro's input begins on a later line, in some column.
    let text = "\n\n\n      /// A kernel.\n      pub fn f(y: &mut Tensor<f32, (N)>) {\n        let i = program(tiles(N));\n        store(y, [i], nought);\n      }";
    let tokens = TokenStream::from_str(text).expect("Rust");
    let embedded = Embedded::new(&tokens, "");
    assert_eq!(embedded.source.first_line, 4);
    assert!(embedded.source.text.starts_with("      /// A kernel.\n      pub fn f"));
    let errors = parse_macro(tokens, &embedded).expect_err("an unknown name");
    assert_eq!(errors.source.line_column(errors.list[0].span), Some((7, 23)));
    let (first, last) = embedded.tokens_at(errors.list[0].span);
    assert_eq!((first.start().line, first.start().column), (7, 22));
    assert_eq!((last.end().line, last.end().column), (7, 28));
}

#[test]
fn tokens_out_of_place_still_make_a_text() {
    // What a macro that writes kernels gives: the tokens come from several places.
    let head = TokenStream::from_str("pub fn f(y: &mut Tensor<f32, (N)>)").expect("Rust");
    let body = TokenStream::from_str("{ let i = program(tiles(N)); store(y, [i], nought); }").expect("Rust");
    let tokens: TokenStream = body.into_iter().chain(head).collect();
    let tokens: Vec<_> = tokens.into_iter().collect();
    let (body, head) = tokens.split_first().expect("tokens");
    let tokens: TokenStream = head.iter().cloned().chain([body.clone()]).collect();
    let embedded = Embedded::new(&tokens, "");
    let errors = parse_macro(tokens, &embedded).expect_err("an unknown name");
    assert_eq!(errors.list[0].message, "`nought` is not defined");
    assert_eq!(errors.list[0].span, Span::default());
    assert!(parse(&embedded.source).expect_err("the same").list[0].message.contains("nought"));
}

/// What token soup is made of.
const WORDS: [&str; 64] = [
    "pub",
    "fn",
    "f",
    "let",
    "mut",
    "for",
    "in",
    "if",
    "else",
    "tiles",
    "program",
    "load",
    "store",
    "dot",
    "mask",
    "pos",
    "full",
    "zeros",
    "select",
    "rowmax",
    "exp",
    "max",
    "INF",
    "i",
    "j",
    "b",
    "x",
    "y",
    "N",
    "D",
    "T",
    "Tensor",
    "f32",
    "Element",
    "const",
    "usize",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    ",",
    ";",
    ":",
    "..",
    "=",
    "+=",
    "+",
    "-",
    "*",
    "/",
    "%",
    "!",
    "&",
    "&&",
    ">=",
    "::",
    ".t()",
    "0.5",
    "7",
    "99999999999",
];

fn soup() -> impl Strategy<Value = String> {
    proptest::collection::vec(prop::sample::select(WORDS.to_vec()), 0..60).prop_map(|words| words.join(" "))
}

/// A statement that reads, with operands at random.
fn statement() -> impl Strategy<Value = String> {
    let atoms =
        ["x", "y", "i", "j", "b", "q", "o", "D", "N", "B", "0", "2", "0.5", "INF", "l", "page", "scale", "r", "4000000000"];
    let atom = prop::sample::select(atoms.to_vec()).prop_map(str::to_owned);
    let expression = atom.prop_recursive(4, 16, 3, |inner| {
        let unary = prop::sample::select(vec!["-", "!", "exp", "rowmax", "rowsum", "pos", "abs", "zeros"]);
        let operators = vec!["+", "-", "*", "/", "%", "<", ">=", "==", "&&", "||"];
        let calls = vec!["dot", "max", "mask", "full", "div_or_zero"];
        prop_oneof![
            (unary, inner.clone()).prop_map(|(f, x)| format!("{f}({x})")),
            (inner.clone(), prop::sample::select(operators), inner.clone()).prop_map(|(a, op, b)| format!("({a} {op} {b})")),
            (prop::sample::select(calls), inner.clone(), inner.clone()).prop_map(|(f, a, b)| format!("{f}({a}, {b})")),
            (inner.clone(), inner.clone(), inner.clone()).prop_map(|(a, b, c)| format!("select({a}, {b}, {c})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("load(q, [{a}, {b}, ..])")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("load(q, [b, i, {a}..{b}])")),
            inner.clone().prop_map(|x| format!("load(page, [{x}])")),
            inner.clone().prop_map(|x| format!("{x}.t()")),
            inner.clone().prop_map(|x| format!("{x}.to::<T>()")),
            (inner.clone(), inner).prop_map(|(a, b)| format!("zeros(({a}, {b}))")),
        ]
    });
    let names = prop::sample::select(vec!["x", "y", "l", "r"]);
    (0..6, names, expression.clone(), expression).prop_map(|(form, name, a, b)| match form {
        0 => format!("let {name} = {a};"),
        1 => format!("let mut {name} = {a};"),
        2 => format!("{name} = {a};"),
        3 => format!("{name} += {a};"),
        4 => format!("for j in tiles(N) {{ {name} = {a}; let y = {b}; }}"),
        _ => format!("store(o, [b, i, ..], {a});"),
    })
}

fn read(text: &str) {
    let source = SourceText { name: "soup.rs".into(), text: text.into(), first_line: 1 };
    match parse(&source) {
        Ok(kernels) => {
            for kernel in kernels {
                let again = flashtile_dsl::ir::parse_text(&kernel.to_string()).expect("the text form of a sound kernel");
                assert_eq!(again, kernel.without_spans());
            }
        }
        Err(errors) => assert!(!errors.to_string().is_empty()),
    }
    if let Ok(tokens) = TokenStream::from_str(text) {
        let embedded = Embedded::new(&tokens, "");
        // Sound or not is said above; here nothing may panic.
        let _read = parse_macro(tokens, &embedded);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn token_soup_never_panics(text in soup()) {
        read(&text);
    }

    #[test]
    fn any_text_never_panics(text in "\\PC{0,80}") {
        read(&text);
    }

    #[test]
    fn soup_in_a_body_never_panics(text in soup()) {
        read(&format!("pub fn f(x: &Tensor<f32, (N)>, y: &mut Tensor<f32, (N)>) {{ let i = program(tiles(N)); {text} }}"));
    }

    #[test]
    fn statements_that_read_never_panic(statements in proptest::collection::vec(statement(), 1..8)) {
        read(&format!(
            "pub fn f<T: Element, const D: usize>(
                q: &Tensor<T, (B, M, D)>, page: &Tensor<i32, (B)>, scale: f32, o: &mut Tensor<T, (B, M, D)>,
            ) {{ let (b, i) = program(B, tiles(M)); let x = load(q, [b, i, ..]); let mut l = zeros(i);
                let r = load(page, [b]) + scale; {} store(o, [b, i, ..], x); }}",
            statements.join("\n")
        ));
    }
}
