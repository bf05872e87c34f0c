//! Places in a text as a browser counts them.

use flashtile_dsl::ir::{SourceText, Span};
use serde_json::{Value, json};

/// A span as `line`, `column`, and `start` and `end` in UTF-16 units from the beginning of the
/// text; null where there is none.
pub fn of(source: &SourceText, span: Span) -> Value {
    let (line, column) = source.line_column(span).unzip();
    let units = |byte: u32| source.text.get(..byte as usize).map(|before| before.encode_utf16().count());
    let (start, end) = match line {
        Some(_) => (units(span.start), units(span.end)),
        None => (None, None),
    };
    json!({ "line": line, "column": column, "start": start, "end": end })
}

/// The fields of both objects in one.
pub fn with(mut object: Value, more: Value) -> Value {
    if let (Value::Object(object), Value::Object(more)) = (&mut object, more) {
        object.extend(more);
    }
    object
}
