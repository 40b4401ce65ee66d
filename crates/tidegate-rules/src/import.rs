//! Converts other services' rule files to our format.
//!
//! The result compiles and decides like the original, as far as our format allows; every difference and everything left out
//! is a [`Note`]. A limit that cannot be expressed exactly is left out rather than widened: a limit that refuses the wrong
//! callers is worse than one that a person still has to write.

mod cel;
mod draft;
mod envoy;
mod limitador;

use std::fmt;

#[cfg(feature = "serde")]
use serde::Serialize;

use crate::diagnostics::{Diagnostics, Report, Span};
use crate::load::Source;
use crate::yaml;

use draft::DraftFile;

/// Rules in our format, and notes about the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Import {
    /// A rule file; with several domains, one document each.
    pub rules: String,
    /// What did not map, and why.
    pub notes: Vec<Note>,
}

impl Import {
    /// Whether something that limits requests there has no rule here.
    #[must_use]
    pub fn is_lossy(&self) -> bool {
        self.notes.iter().any(|note| note.kind == NoteKind::Dropped)
    }
}

/// What happened to something that did not map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum NoteKind {
    /// It limits requests there, and nothing does here.
    Dropped,
    /// It limits requests here too, but not in quite the same way.
    Changed,
    /// It is left out, and limits nothing there either.
    Ignored,
}

/// Something that did not map.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Note {
    /// What happened to it.
    pub kind: NoteKind,
    /// The file, by the name its [`Source`] has.
    pub file: String,
    /// The line, counted from one.
    pub line: usize,
    /// What it is, and why it did not map.
    pub message: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// Converts envoyproxy/ratelimit files.
///
/// # Errors
/// The mistakes in them, if that service would reject them.
pub fn envoy(sources: &[Source]) -> Result<Import, Diagnostics> {
    import(sources, |documents, notes, report| {
        let file = crate::envoy::parse::parse(documents.first()?, report)?;
        envoy::convert(file, notes).map(|draft| vec![draft])
    })
}

/// Converts Limitador files.
///
/// # Errors
/// The mistakes in them, if they are not lists of limits.
pub fn limitador(sources: &[Source]) -> Result<Import, Diagnostics> {
    import(sources, |documents, notes, report| limitador::convert(documents.first()?, notes, report))
}

type Convert = fn(&[yaml::Node], &mut Notes<'_>, &mut Report<'_>) -> Option<Vec<DraftFile>>;

fn import(sources: &[Source], convert: Convert) -> Result<Import, Diagnostics> {
    let files: Vec<&Source> = sources.iter().collect();
    let mut report = Report::new(&files);
    let mut notes = Notes { files: &files, list: Vec::new() };
    let mut drafts: Vec<DraftFile> = Vec::new();
    for (number, source) in (0..).zip(sources) {
        let documents = yaml::parse(number, &source.text, &mut report);
        for draft in convert(&documents, &mut notes, &mut report).unwrap_or_default() {
            match (drafts.iter_mut().find(|known| known.domain == draft.domain), draft.once) {
                (Some(known), Some(span)) => {
                    let message = format!("the domain `{}` is given twice", known.domain);
                    report.error(span, message, "keep all descriptors of a domain in one file");
                }
                (Some(known), None) => known.rules.extend(draft.rules),
                (None, _) => drafts.push(draft),
            }
        }
    }
    report.finish()?;
    let texts: Vec<String> = drafts.into_iter().map(DraftFile::write).collect();
    Ok(Import { rules: texts.join("---\n"), notes: notes.list })
}

/// Collects what did not map.
struct Notes<'s> {
    files: &'s [&'s Source],
    list: Vec<Note>,
}

impl Notes<'_> {
    fn dropped(&mut self, span: Span, message: impl Into<String>) {
        self.add(NoteKind::Dropped, span, message.into());
    }

    fn changed(&mut self, span: Span, message: impl Into<String>) {
        self.add(NoteKind::Changed, span, message.into());
    }

    fn ignored(&mut self, span: Span, message: impl Into<String>) {
        self.add(NoteKind::Ignored, span, message.into());
    }

    fn add(&mut self, kind: NoteKind, span: Span, message: String) {
        let source = self.files[span.file as usize];
        let before = source.text.get(..span.start).unwrap_or_default();
        let line = 1 + before.matches('\n').count();
        self.list.push(Note { kind, file: source.name.clone(), line, message });
    }
}
