//! The identifiers of the templates: names that generated code may give to nothing else.
//!
//! They are read from the texts of the templates, so that a new template needs no list to be extended. Comments, string
//! literals (PTX) and template tags are left out.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use crate::render::SOURCES;

/// Identifiers that templates use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Identifiers {
    /// Functions, types and macros of the file, and the names that statements use.
    pub everywhere: BTreeSet<&'static str>,
    /// Names that only statements of matrix products use. The operands of a product are named there, and nothing else of a kernel.
    pub in_products: BTreeSet<&'static str>,
    /// What templates append to names, such as `_slot`.
    pub suffixes: BTreeSet<&'static str>,
}

/// The identifiers of all templates.
pub fn identifiers() -> &'static Identifiers {
    static ALL: OnceLock<Identifiers> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = Identifiers::default();
        for (name, text) in SOURCES {
            if name.starts_with("device/") || name.starts_with("ptx/") {
                all.everywhere.extend(defined(text));
                continue;
            }
            for (identifier, appended) in tokens(text) {
                if appended {
                    all.suffixes.insert(identifier);
                } else if name.starts_with("statement/dot_") {
                    all.in_products.insert(identifier);
                } else {
                    all.everywhere.insert(identifier);
                }
            }
        }
        let Identifiers { everywhere, in_products, .. } = &mut all;
        in_products.retain(|name| !everywhere.contains(name));
        all
    })
}

/// Functions, tables and macros that the text of a device function or an instruction wrapper defines.
fn defined(text: &'static str) -> Vec<&'static str> {
    let mut found = Vec::new();
    for line in text.lines() {
        let head = line.split("//").next().unwrap_or_default();
        if let Some(macro_name) = head.strip_prefix("#define ") {
            found.extend(macro_name.split(|c: char| !is_part(c)).next());
        } else if let Some((before, _)) = head.split_once("DEVICE ").and_then(|(_, signature)| signature.split_once('(')) {
            found.extend(before.rsplit(|c: char| !is_part(c)).next());
        } else if let Some((before, _)) = head.strip_prefix("__constant__ ").and_then(|table| table.split_once('[')) {
            found.extend(before.rsplit(|c: char| !is_part(c)).next());
        }
    }
    found.retain(|name| !name.is_empty());
    found
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The identifiers of a text, and whether each is appended to what a tag writes.
fn tokens(text: &'static str) -> Vec<(&'static str, bool)> {
    let mut found = Vec::new();
    let (mut at, mut after_tag) = (0, false);
    while at < text.len() {
        let rest = &text[at..];
        let skip = |end: &str| rest.find(end).map_or(rest.len(), |n| n + end.len());
        let tag = after_tag;
        after_tag = false;
        at += if rest.starts_with("{{") {
            after_tag = true;
            skip("}}")
        } else if rest.starts_with("<%") {
            skip("%>")
        } else if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(string) = rest.strip_prefix('"') {
            1 + string.find('"').map_or(string.len(), |n| n + 1)
        } else if rest.starts_with(is_part) {
            let length = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            let token = &rest[..length];
            // A member hides nothing.
            if !token.starts_with(|c: char| c.is_ascii_digit()) && !text[..at].ends_with('.') {
                found.push((token, tag));
            }
            length
        } else {
            rest.chars().next().map_or(1, char::len_utf8)
        };
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_are_those_of_the_texts() {
        let all = identifiers();
        for name in ["widen", "EACH", "INFINITE", "row", "column", "first", "state", "f16", "Params", "lane", "u32"] {
            assert!(all.everywhere.contains(name), "{name}");
        }
        assert!(["a", "b", "d", "x", "step"].iter().all(|name| all.in_products.contains(name) && !all.everywhere.contains(name)));
        assert!(all.suffixes.contains("_slot") && all.suffixes.contains("_pair"), "{:?}", all.suffixes);
        assert!(!all.everywhere.contains("mbarrier") && !all.everywhere.contains("if_"), "strings and tags are no identifiers");
    }
}
