//! Diagnostics of rule files, with the place and a hint.
//!
//! A [`Report`] collects findings while a file is read; [`Diagnostics`] is the result: each finding with its file, line,
//! column, a few lines of text and a hint. It does not hold whole files, and stops after a bounded number of findings.

use std::fmt;

#[cfg(feature = "serde")]
use serde::Serialize;

use crate::load::Source;

mod render;

pub use render::Colour;

/// Reading stops after this many mistakes: nobody reads on, and each takes time to explain. Of the warnings, the first so many
/// are kept.
pub(crate) const MOST_FINDINGS: usize = 100;

/// Whether somebody still waits for the result.
pub(crate) type Wanted<'s> = &'s dyn Fn() -> bool;

/// The message of the one mistake if nobody does.
pub(crate) const GIVEN_UP: &str = "reading stopped here, since nobody waits for it";

/// A byte range in one of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) file: u32,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

impl Span {
    pub(crate) fn new(file: u32, start: usize, end: usize) -> Self {
        Span { file, start, end: end.max(start) }
    }

    /// A single point.
    pub(crate) fn at(file: u32, start: usize) -> Self {
        Span { file, start, end: start }
    }

    /// From here to `end`.
    pub(crate) fn until(self, end: usize) -> Self {
        Span { end: end.max(self.start), ..self }
    }
}

/// The severity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Severity {
    /// The rules are refused.
    Error,
    /// The rules are accepted, but may not do what was intended.
    Warning,
}

/// One mistake in a rule file.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Diagnostic {
    /// Its severity.
    pub severity: Severity,
    /// The file, by the name its [`Source`] has.
    pub file: String,
    /// The line, counted from one.
    pub line: usize,
    /// The column, in characters, counted from one.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub hint: String,
    /// The place itself, then other places that explain it.
    #[cfg_attr(feature = "serde", serde(skip))]
    marks: Vec<render::Mark>,
}

impl fmt::Display for Diagnostic {
    /// One line: `rules.yaml:3:5: unknown field`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}: {}", self.file, self.line, self.column, self.message)
    }
}

/// Every mistake that was found, or every warning; never empty.
///
/// It prints each with the affected lines. It serializes as a list.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(transparent))]
pub struct Diagnostics {
    found: Vec<Diagnostic>,
    #[cfg_attr(feature = "serde", serde(skip))]
    are_more: bool,
}

impl Diagnostics {
    /// Errors first, file by file, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Diagnostic> {
        self.found.iter()
    }

    /// All of them as text, with the affected lines.
    #[must_use]
    pub fn render(&self, colour: Colour) -> String {
        let mut text = render::render(&self.found, colour);
        if self.are_more {
            text.push_str("\n\nthere may be more: reading stopped here");
        }
        text
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Colour::Never))
    }
}

impl std::error::Error for Diagnostics {}

/// Collects findings while files are read.
pub(crate) struct Report<'s> {
    files: &'s [&'s Source],
    errors: Vec<Finding>,
    error_count: usize,
    warnings: Vec<Finding>,
    wanted: Wanted<'s>,
}

/// A mistake, before it is converted to lines and columns.
pub(crate) struct Finding {
    severity: Severity,
    span: Span,
    message: String,
    hint: String,
    related: Vec<(Span, String)>,
}

impl Finding {
    fn new(severity: Severity, span: Span, message: String, hint: String) -> Self {
        Finding { severity, span, message, hint, related: Vec::new() }
    }

    /// Adds another place that explains this one.
    pub(crate) fn related(&mut self, span: Span, label: impl Into<String>) {
        self.related.push((span, label.into()));
    }
}

/// Adds a finding in the place of the last one, if there are enough.
fn add(findings: &mut Vec<Finding>, finding: Finding) -> &mut Finding {
    findings.truncate(MOST_FINDINGS);
    findings.push(finding);
    findings.last_mut().expect("one was pushed")
}

impl<'s> Report<'s> {
    pub(crate) fn new(files: &'s [&'s Source]) -> Self {
        Report::while_wanted(files, &|| true)
    }

    /// One that is full as soon as nobody waits for it.
    pub(crate) fn while_wanted(files: &'s [&'s Source], wanted: Wanted<'s>) -> Self {
        Report { files, errors: Vec::new(), error_count: 0, warnings: Vec::new(), wanted }
    }

    pub(crate) fn wanted(&self) -> Wanted<'s> {
        self.wanted
    }

    /// Records a mistake at `span`, with a hint.
    pub(crate) fn error(
        &mut self,
        span: Span,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> &mut Finding {
        self.error_count += 1;
        let finding = Finding::new(Severity::Error, span, message.into(), hint.into());
        add(&mut self.errors, finding)
    }

    /// Records what is accepted but looks wrong.
    pub(crate) fn warning(
        &mut self,
        span: Span,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> &mut Finding {
        let finding = Finding::new(Severity::Warning, span, message.into(), hint.into());
        add(&mut self.warnings, finding)
    }

    /// Whether there are so many mistakes that reading should stop, or nobody waits for the result. Warnings stop nothing: the
    /// rules after them apply.
    pub(crate) fn is_full(&self) -> bool {
        self.error_count >= MOST_FINDINGS || !(self.wanted)()
    }

    /// The number of mistakes so far, to tell whether a step added any.
    pub(crate) fn errors(&self) -> usize {
        self.error_count
    }

    /// The warnings if there is nothing worse, or all findings.
    pub(crate) fn finish(mut self) -> Result<Option<Diagnostics>, Diagnostics> {
        if !(self.wanted)() {
            self.error(Span::at(0, 0), GIVEN_UP, "ask again");
        }
        let failed = !self.errors.is_empty();
        let are_more = self.errors.len().max(self.warnings.len()) >= MOST_FINDINGS;
        for findings in [&mut self.errors, &mut self.warnings] {
            findings.sort_by_key(|finding| (finding.span.file, finding.span.start));
        }
        let all = self.errors.iter().chain(&self.warnings).take(MOST_FINDINGS);
        let found: Vec<Diagnostic> = all.map(|finding| self.diagnostic(finding)).collect();
        let is_empty = found.is_empty();
        let diagnostics = Diagnostics { found, are_more };
        if failed {
            return Err(diagnostics);
        }
        Ok((!is_empty).then_some(diagnostics))
    }

    fn diagnostic(&self, finding: &Finding) -> Diagnostic {
        let mut marks = vec![render::Mark::new(self.files, finding.span, None)];
        for (span, label) in &finding.related {
            marks.push(render::Mark::new(self.files, *span, Some(label.clone())));
        }
        Diagnostic {
            severity: finding.severity,
            file: marks[0].file.clone(),
            line: marks[0].line,
            column: marks[0].column,
            message: finding.message.clone(),
            hint: finding.hint.clone(),
            marks,
        }
    }
}
