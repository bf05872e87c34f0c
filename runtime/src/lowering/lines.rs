//! Lines of the kernel text in generated code.

/// Generated code in which every line says which line of the kernel text it belongs to.
///
/// A `#line` of the generated file holds for the statement after it; to the compiler the second line of a statement is one
/// line further. Here the directive is repeated, so that what the compiler notes is the statement's line throughout.
pub(crate) fn pin_lines(source: &str) -> String {
    let mut all = String::with_capacity(source.len() * 2);
    let mut directive: Option<&str> = None;
    for line in source.lines() {
        if line.starts_with("#line ") {
            directive = Some(line);
            continue;
        }
        if let Some(directive) = directive {
            all.push_str(directive);
            all.push('\n');
        }
        all.push_str(line);
        all.push('\n');
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directives_are_repeated() {
        let source = "int a;\n#line 3 \"k.rs\"\nb(\n  c);\n#line 5 \"k.rs\"\nd;\n";
        let pinned = "int a;\n#line 3 \"k.rs\"\nb(\n#line 3 \"k.rs\"\n  c);\n#line 5 \"k.rs\"\nd;\n";
        assert_eq!(pin_lines(source), pinned);
    }
}
