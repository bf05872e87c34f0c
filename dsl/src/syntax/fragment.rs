//! Fragments of `macro_rules!` in the input of `flash_kernel!`.
//!
//! What a fragment such as `$e:expr` stands for comes in a group without a delimiter. The group
//! holds an operand together: `x * $e` with `a - b` for `$e` is `x * (a - b)`. Text has no such
//! groups. Here groups of operators get parentheses, and what stands in the others (names, types,
//! statements) is taken out of them.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use syn::{BinOp, Expr};

/// The same tokens without groups that have no delimiter.
pub fn without_fragments(tokens: TokenStream) -> TokenStream {
    tokens.into_iter().flat_map(|tree| within(tree).into_iter()).collect()
}

fn within(tree: TokenTree) -> TokenStream {
    // Groups that stay as they are keep the spans of their brackets.
    let group = match tree {
        TokenTree::Group(group) if is_fragment(&group) => group,
        other => return other.into(),
    };
    let inside = without_fragments(group.stream());
    let delimiter = match group.delimiter() {
        Delimiter::None if !has_operators(&inside) => return inside,
        Delimiter::None => Delimiter::Parenthesis,
        given => given,
    };
    let mut made = Group::new(delimiter, inside);
    made.set_span(group.span());
    TokenTree::Group(made).into()
}

/// Whether a group has no delimiter, or holds such a group.
fn is_fragment(group: &Group) -> bool {
    let holds = |tree: TokenTree| matches!(tree, TokenTree::Group(inner) if is_fragment(&inner));
    group.delimiter() == Delimiter::None || group.stream().into_iter().any(holds)
}

/// Whether operators hold the tokens together, and not names, calls or brackets. Ranges and
/// assignments are no operands, and stand alone.
fn has_operators(tokens: &TokenStream) -> bool {
    match syn::parse2::<Expr>(tokens.clone()) {
        Ok(Expr::Binary(binary)) => !is_assignment(&binary.op),
        Ok(Expr::Unary(_) | Expr::Cast(_)) => true,
        _ => false,
    }
}

fn is_assignment(op: &BinOp) -> bool {
    matches!(op, BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::MulAssign(_) | BinOp::DivAssign(_) | BinOp::RemAssign(_))
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use super::*;

    fn fragment(text: &str) -> TokenTree {
        Group::new(Delimiter::None, TokenStream::from_str(text).expect("tokens")).into()
    }

    #[test]
    fn operators_get_parentheses_and_the_rest_none() {
        let cases = [
            ("a - b", "(a - b)"),
            ("- a", "(- a)"),
            ("a", "a"),
            ("2.0", "2.0"),
            ("f(a - b)", "f (a - b)"),
            ("f32", "f32"),
            ("& Tensor < f32, (N) >", "& Tensor < f32 , (N) >"),
            ("t = t * 3.0", "t = t * 3.0"),
            ("t += 3.0", "t += 3.0"),
            ("..", ".."),
            ("0..D", "0..D"),
            ("let t = a * b ;", "let t = a * b ;"),
        ];
        let plain = |text: &str| TokenStream::from_str(text).expect("tokens").to_string();
        for (given, wanted) in cases {
            let inner: TokenStream = TokenTree::Group(Group::new(Delimiter::Brace, fragment(given).into())).into();
            assert_eq!(without_fragments(inner).to_string(), plain(&format!("{{ {wanted} }}")), "{given}");
            let nested = TokenTree::Group(Group::new(Delimiter::None, fragment(given).into()));
            assert_eq!(without_fragments(nested.into()).to_string(), plain(wanted), "{given}, a fragment of a fragment");
        }
    }

    #[test]
    fn tokens_without_fragments_stay_as_they_are() {
        let text = "pub fn f(x: &Tensor<f32, (N)>) { let y = (a - b) * [c, 1]; }";
        let tokens = TokenStream::from_str(text).expect("tokens");
        let spans = |tokens: TokenStream| tokens.into_iter().map(|tree| format!("{:?}", tree.span())).collect::<Vec<_>>();
        assert_eq!(spans(without_fragments(tokens.clone())), spans(tokens));
    }
}
