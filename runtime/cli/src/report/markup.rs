//! Elements and text of a page. Text and attributes are escaped here and nowhere else, and every
//! element that is opened is closed, so that the page is well-formed XML too.

use std::fmt::{Display, Write as _};

/// Names and values.
pub type Attributes<'a> = &'a [(&'a str, &'a dyn Display)];

/// A column of a table.
#[derive(Clone, Copy)]
pub enum Column<'a> {
    /// Its cells are words.
    Words(&'a str),
    /// Its cells are numbers, which end on one line.
    Number(&'a str),
}

/// A page, or a part of it.
#[derive(Default)]
pub struct Markup(String);

impl Markup {
    /// An element with what is inside.
    pub fn element(&mut self, name: &str, attributes: Attributes<'_>, inside: impl FnOnce(&mut Self)) {
        self.open(name, attributes);
        self.0.push('>');
        inside(self);
        // Writing to a string cannot fail.
        let _ = write!(self.0, "</{name}>");
        if !INLINE.contains(&name) {
            self.0.push('\n');
        }
    }

    /// An element with text inside.
    pub fn words(&mut self, name: &str, attributes: Attributes<'_>, text: impl Display) {
        self.element(name, attributes, |inside| inside.text(text));
    }

    /// An element that has nothing inside: a shape, or one that HTML does not close.
    pub fn leaf(&mut self, name: &str, attributes: Attributes<'_>) {
        self.open(name, attributes);
        self.0.push_str("/>\n");
    }

    /// Text.
    pub fn text(&mut self, text: impl Display) {
        self.0.push_str(&escaped(&text.to_string()));
    }

    /// A paragraph.
    pub fn paragraph(&mut self, text: impl Display) {
        self.words("p", &[], text);
    }

    /// A table in a box that scrolls by itself. `rows` adds elements `tr`.
    pub fn table(&mut self, columns: &[Column<'_>], rows: impl FnOnce(&mut Self)) {
        self.element("div", &[("class", &"box"), ("tabindex", &"0")], |page| {
            page.element("table", &[], |page| {
                page.element("thead", &[], |page| {
                    page.element("tr", &[], |page| {
                        for column in columns {
                            let (name, class) = match column {
                                Column::Words(name) => (name, "words"),
                                Column::Number(name) => (name, "number"),
                            };
                            page.words("th", &[("scope", &"col"), ("class", &class)], name);
                        }
                    });
                });
                page.element("tbody", &[], rows);
            });
        });
    }

    /// Markup that is made elsewhere, and escaped there.
    pub fn made(&mut self, markup: &str) {
        self.0.push_str(markup);
    }

    /// The text of it.
    pub fn end(self) -> String {
        self.0
    }

    fn open(&mut self, name: &str, attributes: Attributes<'_>) {
        let _ = write!(self.0, "<{name}");
        for (name, value) in attributes {
            let _ = write!(self.0, " {name}=\"{}\"", escaped(&value.to_string()));
        }
    }
}

/// Elements after which no line ends: white space would show.
const INLINE: [&str; 6] = ["a", "b", "code", "span", "title", "tspan"];

/// Text as a page has it. Control characters, which XML has no form for, are replaced.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}
