//! Errors, warnings and hints as text with the offending lines and carets. Does not print: the caller does.

use std::fmt;

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

use super::diagnostic::{Diagnostic, Diagnostics, Severity};
use crate::ir::SourceText;

/// How errors are rendered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// Text alone.
    Plain,
    /// With ANSI colours, for a terminal.
    Coloured,
}

/// The errors one after the other, each with its line of the kernel text, separated by empty lines; no newline at the end.
pub fn render(diagnostics: &Diagnostics, style: Style) -> String {
    let renderer = match style {
        Style::Plain => Renderer::plain(),
        Style::Coloured => Renderer::styled(),
    };
    let rendered: Vec<_> = diagnostics.list.iter().map(|d| render_one(d, &diagnostics.source, &renderer)).collect();
    rendered.join("\n\n")
}

fn render_one(diagnostic: &Diagnostic, source: &SourceText, renderer: &Renderer) -> String {
    let (start, end) = (diagnostic.span.start as usize, diagnostic.span.end as usize);
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
        Severity::Hint => Level::NOTE.with_name(Severity::Hint.name()),
    };
    let title = level.primary_title(&diagnostic.message);
    let mut group: Group<'_> = if source.text.get(start..end).is_some() {
        let annotation = AnnotationKind::Primary.span(start..end).label(&diagnostic.label);
        let mut snippet = Snippet::source(&*source.text).line_start(source.first_line.max(1) as usize).annotation(annotation);
        for call in &diagnostic.calls {
            let place = call.span.start as usize..call.span.end as usize;
            let label = format!("in this call of `{}`", call.name);
            snippet = snippet.annotation(AnnotationKind::Context.span(place).label(label));
        }
        if !source.name.is_empty() {
            snippet = snippet.path(&source.name);
        }
        title.element(snippet)
    } else {
        Group::with_title(title)
    };
    if let Some(help) = &diagnostic.help {
        group = group.element(Level::HELP.message(help));
    }
    renderer.render(&[group])
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&render(self, Style::Plain))
    }
}
