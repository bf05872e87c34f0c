//! Lines and words of the text of a plan.

/// A word of a line.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Token {
    /// A name, or several with dots between them.
    Name(String),
    Int(i64),
    Float(f64),
    /// An operator or a mark.
    Mark(&'static str),
}

/// Marks, longer ones before those that they begin with.
const MARKS: &[&str] = &[
    "..", "<<", ">>", "<-", "->", "<=", ">=", "==", "!=", "&&", "||", "+=", "(", ")", "[", "]", ",", ":", "#", "=", "+", "-",
    "*", "/", "%", "<", ">", "!", "&", "|", "^", ".",
];

/// A line that says something.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Line {
    /// Number, from 1.
    pub number: u32,
    /// Spaces before it.
    pub indent: usize,
    pub tokens: Vec<Token>,
}

/// The lines of a text that say something. An error is a number of a line and a message.
pub(super) fn lines(text: &str) -> Result<Vec<Line>, (u32, String)> {
    let mut found = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split("//").next().unwrap_or_default().trim_end();
        let content = line.trim_start_matches(' ');
        if content.is_empty() {
            continue;
        }
        if content.starts_with('\t') {
            return Err((number, "lines are indented with spaces, not tabs".into()));
        }
        let tokens = tokens(content).map_err(|message| (number, message))?;
        found.push(Line { number, indent: line.len() - content.len(), tokens });
    }
    Ok(found)
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The words of a line.
pub(super) fn tokens(line: &str) -> Result<Vec<Token>, String> {
    let mut found = Vec::new();
    let mut rest = line.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first.is_ascii_digit() {
            let (token, length) = number(rest)?;
            found.push(token);
            length
        } else if is_name(first) {
            let length = dotted(rest);
            found.push(Token::Name(rest[..length].to_owned()));
            length
        } else {
            let mark = MARKS.iter().find(|mark| rest.starts_with(**mark));
            let mark = mark.ok_or_else(|| format!("`{first}` has no meaning here"))?;
            found.push(Token::Mark(mark));
            mark.len()
        };
        rest = rest[length..].trim_start();
    }
    Ok(found)
}

/// Bytes of a name with dots in it, where a name follows the dot.
fn dotted(text: &str) -> usize {
    let part = |text: &str| text.find(|c| !is_name(c)).unwrap_or(text.len());
    let mut length = part(text);
    while let Some(rest) = text[length..].strip_prefix('.')
        && rest.starts_with(|c: char| is_name(c) && !c.is_ascii_digit())
    {
        length += 1 + part(rest);
    }
    length
}

/// The number that a text begins with, and its bytes.
fn number(text: &str) -> Result<(Token, usize), String> {
    let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let mut length = digits(text);
    let mut float = false;
    if let Some(rest) = text[length..].strip_prefix('.')
        && rest.starts_with(|c: char| c.is_ascii_digit())
    {
        float = true;
        length += 1 + digits(rest);
    }
    if let Some(rest) = text[length..].strip_prefix('e') {
        let sign = usize::from(rest.starts_with(['-', '+']));
        let exponent = digits(&rest[sign..]);
        if exponent > 0 {
            float = true;
            length += 1 + sign + exponent;
        }
    }
    let word = &text[..length];
    let wrong = |e: &dyn std::fmt::Display| format!("`{word}` is no number: {e}");
    let token =
        if float { Token::Float(word.parse().map_err(|e| wrong(&e))?) } else { Token::Int(word.parse().map_err(|e| wrong(&e))?) };
    Ok((token, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_line() {
        let name = |text: &str| Token::Name(text.into());
        let of = |text: &str| tokens(text).expect("words");
        assert_eq!(
            of("k[j#0] <- 1e-20"),
            [
                name("k"),
                Token::Mark("["),
                name("j"),
                Token::Mark("#"),
                Token::Int(0),
                Token::Mark("]"),
                Token::Mark("<-"),
                Token::Float(1e-20)
            ]
        );
        assert_eq!(
            of("params.q.stride1 a.0 2.5"),
            [name("params.q.stride1"), name("a"), Token::Mark("."), Token::Int(0), Token::Float(2.5)]
        );
        assert_eq!(of("0 .. j"), [Token::Int(0), Token::Mark(".."), name("j")]);
        assert!(tokens("a ; b").is_err() && tokens("99999999999999999999").is_err());
    }
}
