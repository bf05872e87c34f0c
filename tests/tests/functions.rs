//! No function is too long to be read at once. One that may be is listed here; none is.

use flashtile_tests::functions::{Function, functions};
use flashtile_tests::sources::{CRATES, folder, sources};

/// Most lines of a function.
const MOST: usize = 80;

/// Most lines of a body beside its largest `match`, if the function is a table: an arm for each
/// case, with little around. Such a function may have any number of lines.
const BESIDE: usize = 15;

/// Functions that are longer, as file and name.
const LONG: [(&str, &str); 0] = [];

#[test]
fn functions_are_short() {
    let mut found = Vec::new();
    for of in CRATES {
        for source in sources(&folder(of)) {
            let file = format!("{of}/{}", source.file.display());
            found.extend(functions(&source.parsed).into_iter().filter(too_long).map(|f| (file.clone(), f)));
        }
    }
    let listed = |file: &str, name: &str| LONG.contains(&(file, name));
    let new = found.iter().filter(|(file, f)| !listed(file, &f.name));
    let new: Vec<String> = new.map(|(file, f)| format!("    {file}:{}: `{}` has {} lines\n", f.line, f.name, f.lines)).collect();
    assert!(new.is_empty(), "functions of more than {MOST} lines; split them into parts with names:\n{}", new.concat());
    let gone: Vec<_> = LONG.iter().filter(|l| !found.iter().any(|(file, f)| (file.as_str(), f.name.as_str()) == **l)).collect();
    assert!(gone.is_empty(), "short now, or gone; take them off the list: {gone:?}");
}

fn too_long(function: &Function) -> bool {
    function.is_longer(MOST, BESIDE)
}

/// The check of the check: a small file with a long function of each kind.
#[test]
fn long_functions_are_found_where_they_are() {
    let lines = |count: usize| "    f();\n".repeat(count);
    let table = |beside: usize| {
        let arms: String = (0..100).map(|n| format!("        {n} => f(),\n")).collect();
        format!("{}    match x {{\n{arms}        _ => {{}}\n    }}\n", lines(beside))
    };
    let text = [
        format!("/// A comment.\nfn just_short() {{\n{}}}\n", lines(78)),
        format!("/// A comment.\nfn long() {{\n{}}}\n", lines(79)),
        format!("struct S;\nimpl S {{\nfn long_method(&self) {{\n{}}}\n}}\n", lines(90)),
        format!("trait T {{\nfn long_default(&self) {{\n{}}}\n}}\n", lines(90)),
        format!("mod inner {{\nfn long_inside() {{\n{}}}\n}}\n", lines(90)),
        format!("fn table(x: u32) {{\n{}}}\n", table(15)),
        format!("fn more_than_a_table(x: u32) {{\n{}}}\n", table(16)),
        format!("#[cfg(test)]\nmod tests {{\nfn long_of_tests() {{\n{}}}\n}}\n", lines(90)),
        format!("#[test]\nfn long_test() {{\n{}}}\n", lines(90)),
    ];
    let parsed = syn::parse_file(&text.concat()).expect("Rust");
    let all = functions(&parsed);
    let long: Vec<&str> = all.iter().filter(|f| too_long(f)).map(|f| f.name.as_str()).collect();
    assert_eq!(long, ["long", "long_method", "long_default", "long_inside", "more_than_a_table"]);
    let long = all.iter().find(|f| f.name == "long").expect("is there");
    assert_eq!((long.line, long.lines, long.beside_match), (83, 81, 79));
}
