//! Tokens of one line of the text form.

use std::fmt;

/// A token.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token {
    /// A name or mnemonic; may hold dots, as `cmp.ge` and `j.2` do.
    Word(String),
    /// `%3`
    Value(u32),
    /// A number as written, without its sign.
    Number(String),
    /// A quoted string, unescaped.
    Text(String),
    /// Any other character, and `..` as `…`.
    Punct(char),
}

/// The character that stands for `..`.
pub(super) const DOTS: char = '…';

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(word) => write!(f, "`{word}`"),
            Token::Value(n) => write!(f, "`%{n}`"),
            Token::Number(text) => write!(f, "`{text}`"),
            Token::Text(text) => write!(f, "{text:?}"),
            Token::Punct(DOTS) => f.write_str("`..`"),
            Token::Punct(c) => write!(f, "`{c}`"),
        }
    }
}

/// Splits a line into tokens.
pub(super) fn tokens(line: &str) -> Result<Vec<Token>, String> {
    let chars: Vec<char> = line.chars().collect();
    let at = |n: usize| chars.get(n).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let mut n = 0;
    while n < chars.len() {
        let start = n;
        let c = chars[n];
        n += 1;
        let taken = |to: usize| chars[start..to].iter().collect::<String>();
        match c {
            c if c.is_whitespace() => {}
            '%' if at(n).is_ascii_digit() => {
                while at(n).is_ascii_digit() {
                    n += 1;
                }
                let number = taken(n)[1..].parse().map_err(|_| format!("value {} has too large a number", taken(n)))?;
                tokens.push(Token::Value(number));
            }
            '0'..='9' => {
                while at(n).is_ascii_digit() {
                    n += 1;
                }
                if at(n) == '.' && at(n + 1).is_ascii_digit() {
                    n += 1;
                    while at(n).is_ascii_digit() {
                        n += 1;
                    }
                }
                let sign = usize::from(matches!(at(n + 1), '+' | '-'));
                if at(n) == 'e' && at(n + 1 + sign).is_ascii_digit() {
                    n += 1 + sign;
                    while at(n).is_ascii_digit() {
                        n += 1;
                    }
                }
                tokens.push(Token::Number(taken(n)));
            }
            '"' => {
                let (text, end) = string(&chars, n)?;
                n = end;
                tokens.push(Token::Text(text));
            }
            '.' if at(n) == '.' => {
                n += 1;
                tokens.push(Token::Punct(DOTS));
            }
            c if word(c) => {
                while word(at(n)) || (at(n) == '#' && taken(n) == "r") || (at(n) == '.' && word(at(n + 1))) {
                    n += 1;
                }
                tokens.push(Token::Word(taken(n)));
            }
            DOTS => return Err(format!("unexpected character `{c}`")),
            c => tokens.push(Token::Punct(c)),
        }
    }
    Ok(tokens)
}

fn word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The string whose opening quote stands before `from`, as Rust's `{:?}` writes it, and where it ends.
fn string(chars: &[char], from: usize) -> Result<(String, usize), String> {
    let unclosed = || "a string is not closed".to_owned();
    let mut text = String::new();
    let mut n = from;
    loop {
        let c = *chars.get(n).ok_or_else(unclosed)?;
        n += 1;
        match c {
            '"' => return Ok((text, n)),
            '\\' => {
                let escape = *chars.get(n).ok_or_else(unclosed)?;
                n += 1;
                match escape {
                    'n' => text.push('\n'),
                    'r' => text.push('\r'),
                    't' => text.push('\t'),
                    '0' => text.push('\0'),
                    '\\' | '"' | '\'' => text.push(escape),
                    'u' => {
                        let close = chars[n..].iter().position(|&c| c == '}').ok_or_else(unclosed)? + n;
                        let digits: String = chars[n..close].iter().skip(1).collect();
                        let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
                        text.push(code.ok_or_else(|| format!("no character has the code {digits}"))?);
                        n = close + 1;
                    }
                    other => return Err(format!("unknown escape `\\{other}`")),
                }
            }
            c => text.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_each_token() {
        let word = |w: &str| Token::Word(w.into());
        let number = |w: &str| Token::Number(w.into());
        assert_eq!(tokens("cmp.ge %12, j.2").unwrap(), [word("cmp.ge"), Token::Value(12), Token::Punct(','), word("j.2")]);
        assert_eq!(tokens("0 .. D").unwrap(), [number("0"), Token::Punct(DOTS), word("D")]);
        assert_eq!(tokens("1.5e-7 2").unwrap(), [number("1.5e-7"), number("2")]);
        assert_eq!(tokens(&format!("{:?}", "a\n\"b\"\u{7}é")).unwrap(), [Token::Text("a\n\"b\"\u{7}é".into())]);
        assert!(tokens("\"open").is_err());
    }
}
