//! A diagnostic for people: the message, the lines around the place, an underline, a hint.

use std::ops::Range;

#[cfg(feature = "snippets")]
use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};

#[cfg(feature = "snippets")]
use super::Severity;
use super::{Diagnostic, Span};
use crate::load::Source;

/// Whether the text may carry terminal colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Colour {
    /// For a terminal.
    Always,
    /// For a file, a pipe or a test.
    Never,
}

/// A place and the lines around it: enough to show it without the whole file.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) file: String,
    pub(super) line: usize,
    pub(super) column: usize,
    label: Option<String>,
    excerpt: String,
    first_line: usize,
    range: Range<usize>,
}

/// Longer lines are cut around the place.
const LONGEST_LINE: usize = 400;

impl Mark {
    pub(super) fn new(files: &[&Source], span: Span, label: Option<String>) -> Self {
        let source = files[span.file as usize];
        let text = source.text.as_str();
        let start = floor_boundary(text, span.start.min(text.len()));
        let line_start = text[..start].rfind('\n').map_or(0, |newline| newline + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |newline| start + newline);
        let end = floor_boundary(text, span.end.clamp(start, line_end));
        // One line of context before, unless it is so long that it would bury the place.
        let before = text[..line_start.saturating_sub(1)].rfind('\n').map_or(0, |newline| newline + 1);
        let context = if line_start - before <= LONGEST_LINE { before } else { line_start };
        let from = if start - line_start > LONGEST_LINE {
            floor_boundary(text, start - LONGEST_LINE / 2)
        } else {
            context
        };
        let to = floor_boundary(text, line_end.min(start + LONGEST_LINE));
        let end = end.min(to);
        let line = 1 + text[..line_start].matches('\n').count();
        Mark {
            file: source.name.clone(),
            line,
            column: 1 + text[line_start..start].chars().count(),
            label,
            excerpt: text[from..to].replace('\r', " "),
            first_line: line - text[from..start].matches('\n').count(),
            range: start - from..end - from,
        }
    }

    #[cfg(feature = "snippets")]
    fn snippet(&self, kind: AnnotationKind) -> Snippet<'_, annotate_snippets::Annotation<'_>> {
        let annotation = kind.span(self.range.clone()).label(self.label.as_deref());
        Snippet::source(self.excerpt.as_str())
            .path(self.file.as_str())
            .line_start(self.first_line)
            .fold(false)
            .annotation(annotation)
    }
}

#[cfg(feature = "snippets")]
pub(super) fn render(found: &[Diagnostic], colour: Colour) -> String {
    let renderer = match colour {
        Colour::Always => Renderer::styled(),
        Colour::Never => Renderer::plain(),
    };
    let texts: Vec<String> = found.iter().map(|diagnostic| renderer.render(&[group(diagnostic)])).collect();
    texts.join("\n\n")
}

#[cfg(feature = "snippets")]
fn group(diagnostic: &Diagnostic) -> Group<'_> {
    let level = match diagnostic.severity {
        Severity::Error => Level::ERROR,
        Severity::Warning => Level::WARNING,
    };
    let mut group = Group::with_title(level.primary_title(diagnostic.message.as_str()));
    for (at, mark) in diagnostic.marks.iter().enumerate() {
        let kind = if at == 0 { AnnotationKind::Primary } else { AnnotationKind::Context };
        group = group.element(mark.snippet(kind));
    }
    group.element(Level::HELP.with_name("hint").message(diagnostic.hint.as_str()))
}

/// The same in plain form, without the rendering library: each place as its line and its underline.
#[cfg(not(feature = "snippets"))]
pub(super) fn render(found: &[Diagnostic], _: Colour) -> String {
    let text = |diagnostic: &Diagnostic| {
        let places: String = diagnostic.marks.iter().map(Mark::plain).collect();
        format!("{diagnostic}{places}\nhint: {}", diagnostic.hint)
    };
    found.iter().map(text).collect::<Vec<_>>().join("\n\n")
}

#[cfg(not(feature = "snippets"))]
impl Mark {
    fn plain(&self) -> String {
        let (before, after) = self.excerpt.split_at(self.range.start);
        let start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let number = self.first_line + before[..start].matches('\n').count();
        let line = self.excerpt[start..].lines().next().unwrap_or_default();
        let indent = " ".repeat(before[start..].chars().count());
        let under = "^".repeat(after[..self.range.len()].chars().count().max(1));
        let label = self.label.as_ref().map(|label| format!(" {label}")).unwrap_or_default();
        format!("\n{number:>4} | {line}\n     | {indent}{under}{label}")
    }
}

/// The last character boundary at or before `at`.
fn floor_boundary(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}
