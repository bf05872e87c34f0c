//! PTX text to tokens, each with its line (PTX ISA 4.1 to 4.5).

use crate::LoadError;

/// A token. Words borrow from the text.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Token<'t> {
    /// Identifier, register, opcode with modifiers, or directive (`.reg`): letters, digits, `_ $ % .` and `::`.
    Word(&'t str),
    /// Integer literal; a leading minus is a token of its own.
    Integer(u64),
    /// `0f` literal: bits of a float.
    Single(u32),
    /// `0d` literal, or one in decimal notation: bits of a double.
    Double(u64),
    /// Text between quotes.
    Text(&'t str),
    /// Any other character.
    Mark(char),
}

/// A token and its line, from 1.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Lexeme<'t> {
    pub token: Token<'t>,
    pub line: u32,
}

/// Bytes of a string up to the quote that ends it; a quote behind a backslash does not.
fn string_length(bytes: &[u8]) -> Option<usize> {
    let mut escaped = false;
    bytes.iter().position(|&c| {
        let ends = c == b'"' && !escaped;
        escaped = c == b'\\' && !escaped;
        ends
    })
}

/// All tokens of a text.
pub(crate) fn lex(text: &str) -> Result<Vec<Lexeme<'_>>, LoadError> {
    let bytes = text.as_bytes();
    let mut tokens = Vec::with_capacity(text.len() / 4);
    let (mut at, mut line) = (0, 1);
    while let Some(&c) = bytes.get(at) {
        let next = bytes.get(at + 1).copied().unwrap_or(0);
        match c {
            b'\n' => {
                line += 1;
                at += 1;
            }
            b' ' | b'\t' | b'\r' | 0 => at += 1,
            b'/' if next == b'/' => at += bytes[at..].iter().take_while(|&&c| c != b'\n').count(),
            b'/' if next == b'*' => {
                let end = text[at + 2..].find("*/").ok_or_else(|| syntax(line, "a comment does not end"))? + at + 4;
                line += newlines(&bytes[at..end]);
                at = end;
            }
            b'"' => {
                let length = string_length(&bytes[at + 1..]).ok_or_else(|| syntax(line, "a string does not end"))?;
                let inside = &text[at + 1..at + 1 + length];
                tokens.push(Lexeme { token: Token::Text(inside), line });
                line += newlines(inside.as_bytes());
                at += length + 2;
            }
            b'0'..=b'9' => {
                let length = number_length(&bytes[at..]);
                tokens.push(Lexeme { token: number(&text[at..at + length], line)?, line });
                at += length;
            }
            _ if is_word(c) => {
                let length = word_length(&bytes[at..]);
                tokens.push(Lexeme { token: Token::Word(&text[at..at + length]), line });
                at += length;
            }
            _ if c.is_ascii_graphic() => {
                tokens.push(Lexeme { token: Token::Mark(c.into()), line });
                at += 1;
            }
            _ => return Err(syntax(line, format!("byte {c:#04x} is not PTX"))),
        }
    }
    Ok(tokens)
}

/// A syntax error.
pub(crate) fn syntax(line: u32, what: impl Into<String>) -> LoadError {
    LoadError::Syntax { line, what: what.into() }
}

fn newlines(bytes: &[u8]) -> u32 {
    bytes.iter().map(|&c| u32::from(c == b'\n')).sum()
}

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

/// A word ends before a lone `:`, which ends a label, but not before `::`, as in `shared::cta`.
fn word_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    loop {
        match (bytes.get(at), bytes.get(at + 1), bytes.get(at + 2)) {
            (Some(&c), ..) if is_word(c) => at += 1,
            (Some(b':'), Some(b':'), Some(&c)) if is_word(c) => at += 2,
            _ => return at,
        }
    }
}

fn number_length(bytes: &[u8]) -> usize {
    let hexadecimal = matches!(bytes.get(1), Some(b'x' | b'X' | b'f' | b'F' | b'd' | b'D')) && bytes[0] == b'0';
    let mut at = 0;
    while let Some(&c) = bytes.get(at) {
        let exponent_sign = !hexadecimal && matches!(c, b'+' | b'-') && matches!(bytes[at - 1], b'e' | b'E');
        if !(c.is_ascii_alphanumeric() || c == b'.' || exponent_sign) {
            break;
        }
        at += 1;
    }
    at
}

fn number(text: &str, line: u32) -> Result<Token<'_>, LoadError> {
    let bad = || syntax(line, format!("`{text}` is not a number"));
    let radix = |digits: &str, radix| u64::from_str_radix(digits.trim_end_matches('U'), radix).map_err(|_| bad());
    let lower = text.to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0f") {
        return u32::from_str_radix(digits, 16).map(Token::Single).map_err(|_| bad());
    }
    if let Some(digits) = lower.strip_prefix("0d") {
        return u64::from_str_radix(digits, 16).map(Token::Double).map_err(|_| bad());
    }
    if let Some(digits) = lower.strip_prefix("0x") {
        return radix(digits.trim_end_matches('u'), 16).map(Token::Integer);
    }
    if let Some(digits) = lower.strip_prefix("0b") {
        return radix(digits.trim_end_matches('u'), 2).map(Token::Integer);
    }
    let digits = text.trim_end_matches('U');
    if digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|c| c.is_ascii_digit()) {
        return radix(&digits[1..], 8).map(Token::Integer);
    }
    if let Ok(value) = digits.parse::<u64>() {
        return Ok(Token::Integer(value));
    }
    text.parse::<f64>().map(|x| Token::Double(x.to_bits())).map_err(|_| bad())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        lex(text).expect("lexes").into_iter().map(|l| l.token).collect()
    }

    #[test]
    fn words_hold_dots_and_double_colons() {
        use Token::{Integer, Mark, Word};
        assert_eq!(
            tokens("W_0: mbarrier.arrive.shared::cta.b64 _, [%rd1+-8];"),
            [
                Word("W_0"),
                Mark(':'),
                Word("mbarrier.arrive.shared::cta.b64"),
                Word("_"),
                Mark(','),
                Mark('['),
                Word("%rd1"),
                Mark('+'),
                Mark('-'),
                Integer(8),
                Mark(']'),
                Mark(';')
            ]
        );
    }

    #[test]
    fn a_quote_behind_a_backslash_ends_no_string() {
        use Token::{Integer, Text, Word};
        assert_eq!(tokens(r#".file 1 "a\"b.rs" x"#), [Word(".file"), Integer(1), Text(r#"a\"b.rs"#), Word("x")]);
        assert_eq!(tokens(r#""a\\" x"#), [Text(r"a\\"), Word("x")]);
        assert!(lex(r#""a\""#).is_err());
    }

    #[test]
    fn literals_are_those_of_the_isa() {
        use Token::{Double, Integer, Single};
        assert_eq!(
            tokens("0f3F800000 0x1fU 017 42 0b101 0d3FF0000000000000 1.5e-3"),
            [
                Single(0x3f80_0000),
                Integer(31),
                Integer(15),
                Integer(42),
                Integer(5),
                Double(1f64.to_bits()),
                Double(1.5e-3f64.to_bits())
            ]
        );
    }

    #[test]
    fn lines_are_counted_through_comments() {
        let lexed = lex("a // b\n/* \n */ c \"x\ny\" d").expect("lexes");
        assert_eq!(lexed.iter().map(|l| l.line).collect::<Vec<_>>(), [1, 3, 3, 4]);
        assert!(matches!(lex("a\n/*"), Err(LoadError::Syntax { line: 2, .. })));
    }
}
