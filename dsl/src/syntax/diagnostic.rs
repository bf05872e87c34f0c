//! Errors, warnings and hints on kernel text: what one says, the list that a caller gets, and the collector that the front end
//! reports to.
//!
//! The front end never stops at an error: it reports, carries on with what still makes sense, and hands over the list
//! at the end. [`Reported`] in an `Err` proves that the reason is on the list.

use std::cell::RefCell;

use crate::ir::{HelperCall, SourceText, Span};

/// How grave a diagnostic is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Severity {
    /// The kernel is refused.
    Error,
    /// The kernel is well formed, and part of it has no effect.
    Warning,
    /// The kernel is right, and slower than it need be.
    Hint,
}

impl Severity {
    /// Its name, as it is rendered.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Hint => "hint",
        }
    }
}

/// One error, warning or hint in kernel text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostic {
    /// The offending token or expression.
    pub span: Span,
    /// What is wrong, in one lowercase sentence.
    pub message: String,
    /// What was found there, or what was expected, in a few words; shown under the carets. May be empty.
    pub label: String,
    /// What to do instead.
    pub help: Option<String>,
    /// How grave it is.
    pub severity: Severity,
    /// The calls of helpers that lead to the place, the innermost first.
    pub calls: Vec<Call>,
}

/// A call of a helper function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The helper.
    pub name: String,
    /// The call.
    pub span: Span,
}

impl From<&HelperCall> for Call {
    fn from(call: &HelperCall) -> Self {
        Self { name: call.name.clone(), span: call.at }
    }
}

impl Diagnostic {
    /// An error at `span`.
    pub fn new(span: Span, message: impl Into<String>) -> Self {
        Self { span, message: message.into(), label: String::new(), help: None, severity: Severity::Error, calls: Vec::new() }
    }

    /// The same error with a label.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = label.into();
        self
    }

    /// The same with the calls that lead there, the innermost first.
    pub fn called_by(mut self, calls: Vec<Call>) -> Self {
        self.calls = calls;
        self
    }

    /// Whether the other says the same about the same place, whatever the calls that lead there.
    fn repeats(&self, other: &Self) -> bool {
        (self.span, &self.message, &self.label, &self.help) == (other.span, &other.message, &other.label, &other.help)
    }

    /// The same with another severity.
    pub fn severity(mut self, severity: Severity) -> Self {
        self.severity = severity;
        self
    }

    /// The same error with advice.
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }
}

/// Every error in a kernel text, in the order of the text, with the text itself.
///
/// `Display` is the plain rendering that [`super::render`] gives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Diagnostics {
    /// The errors; never empty.
    pub list: Vec<Diagnostic>,
    /// The text that their spans index.
    pub source: SourceText,
}

impl std::error::Error for Diagnostics {}

/// Proof that an error was given to a [`Reporter`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Reported(());

impl Reported {
    /// For the use of something whose declaration had an error.
    pub(super) fn before() -> Self {
        Self(())
    }
}

/// A result whose error has been reported.
pub(super) type Checked<T> = std::result::Result<T, Reported>;

/// Collects errors. Dropping one whose errors were not taken is a bug and panics.
#[derive(Debug)]
pub(super) struct Reporter {
    list: RefCell<Option<Vec<Diagnostic>>>,
    /// The calls of helpers in progress, the outermost first.
    calls: RefCell<Vec<Call>>,
}

impl Reporter {
    /// A reporter with no errors.
    pub(super) fn new() -> Self {
        Self { list: RefCell::new(Some(Vec::new())), calls: RefCell::default() }
    }

    /// Adds an error.
    pub(super) fn report(&self, diagnostic: Diagnostic) -> Reported {
        if let Some(list) = self.list.borrow_mut().as_mut() {
            // One mistake can be found twice: by a scan ahead and by the lowering itself, or in
            // each call of a helper.
            if !list.iter().any(|other| other.repeats(&diagnostic)) {
                let calls: Vec<_> = self.calls.borrow().iter().rev().cloned().collect();
                list.push(if calls.is_empty() { diagnostic } else { diagnostic.called_by(calls) });
            }
        }
        Reported(())
    }

    /// What is reported from here on is in this call.
    pub(super) fn enter(&self, call: Call) {
        self.calls.borrow_mut().push(call);
    }

    /// The innermost call ends.
    pub(super) fn leave(&self) {
        self.calls.borrow_mut().pop();
    }

    /// Number of errors so far.
    pub(super) fn count(&self) -> usize {
        self.list.borrow().as_ref().map_or(0, Vec::len)
    }

    /// Whether there are no more errors than there were.
    pub(super) fn since(&self, before: usize) -> Checked<()> {
        if self.count() > before { Err(Reported(())) } else { Ok(()) }
    }

    /// The errors, in the order of the text.
    pub(super) fn take(self) -> Vec<Diagnostic> {
        let mut list = self.list.borrow_mut().take().unwrap_or_default();
        list.sort_by_key(|d| d.span.start);
        list
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if !std::thread::panicking() && self.list.borrow().is_some() {
            panic!("forgot to take the errors of a reporter");
        }
    }
}
