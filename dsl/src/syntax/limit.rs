//! Bounds on nesting, so that no text can overflow the stack of the recursive parser behind us.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::diagnostic::{Checked, Diagnostic, Reporter};
use super::position::Positions;

/// Most brackets open at once.
const NESTING: usize = 32;
/// Most tokens in one statement, between commas: bounds the depth of its syntax tree.
const STATEMENT: usize = 400;

/// Reports brackets nested too deep and statements too long.
pub(super) fn check(tokens: TokenStream, positions: &Positions, reporter: &Reporter) -> Checked<()> {
    // A stack of its own, since the nesting is not yet known to be bounded.
    let mut open = vec![(tokens.into_iter().peekable(), 0)];
    while let Some((tokens, count)) = open.last_mut() {
        let Some(tree) = tokens.next() else {
            let (_, inner) = open.pop().expect("the loop saw an open group");
            if let Some((_, outer)) = open.last_mut() {
                // A block that ended its statement does not count; anything else does.
                if *outer > 0 {
                    *outer += inner;
                }
            }
            continue;
        };
        *count += 1;
        if *count > STATEMENT {
            let error = Diagnostic::new(positions.token(tree.span()), "this statement is too long")
                .label(format!("more than {STATEMENT} tokens"))
                .help("give parts of it a name with `let`");
            return Err(reporter.report(error));
        }
        match tree {
            // What stands between commas is a tree of its own.
            TokenTree::Punct(p) if matches!(p.as_char(), ';' | ',') => *count = 0,
            TokenTree::Group(group) => {
                let continues = matches!(tokens.peek(), Some(TokenTree::Ident(next)) if next == "else");
                if group.delimiter() == Delimiter::Brace && !continues {
                    *count = 0;
                }
                if open.len() > NESTING {
                    let error = Diagnostic::new(positions.token(group.span_open()), "brackets are nested too deep")
                        .label(format!("more than {NESTING} levels"))
                        .help("give the inner expressions a name with `let`");
                    return Err(reporter.report(error));
                }
                open.push((group.stream().into_iter().peekable(), 0));
            }
            _ => {}
        }
    }
    Ok(())
}
