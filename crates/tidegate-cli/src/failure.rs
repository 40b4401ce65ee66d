//! Errors for people: one `error:` line, then `hint:` lines that say what to do.

use std::fmt::Display;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anstyle::{AnsiColor, Style};

/// Why a command failed.
///
/// Commands return this instead of printing, so that one place writes to stderr, in one format.
#[derive(Debug)]
pub(crate) struct Failure {
    message: Message,
    hints: Vec<String>,
    status: u8,
}

#[derive(Debug)]
enum Message {
    Line(String),
    /// Diagnostics with their own labels, perhaps in colour.
    Rendered(String),
}

/// The default exit status of a failed command.
const STATUS: u8 = 1;

impl Failure {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Failure { message: Message::Line(message.into()), hints: Vec::new(), status: STATUS }
    }

    /// Diagnostics that are already formatted; colours are dropped unless stderr is a terminal.
    pub(crate) fn rendered(text: String) -> Self {
        Failure { message: Message::Rendered(text), hints: Vec::new(), status: STATUS }
    }

    /// Adds a line that says what to do about it.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }

    /// Names the field that it is about.
    #[must_use]
    pub(crate) fn of_field(mut self, field: &str) -> Self {
        if let Message::Line(message) = &mut self.message {
            message.insert_str(0, &format!("{field}: "));
        }
        self
    }

    #[cfg(test)]
    pub(crate) fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Exits with `status` instead of 1.
    #[must_use]
    pub(crate) fn with_status(mut self, status: u8) -> Self {
        self.status = status;
        self
    }

    /// Writes the failure to stderr, in colour only on a terminal; nothing if the status is 0.
    pub(crate) fn report(&self) -> ExitCode {
        if self.status == 0 {
            return ExitCode::SUCCESS;
        }
        let mut stderr = anstream::stderr().lock();
        // If stderr is closed, there is nowhere to report it.
        let _ = match &self.message {
            Message::Line(line) => write_labelled(&mut stderr, "error", AnsiColor::Red, line),
            Message::Rendered(text) => writeln!(stderr, "{text}"),
        };
        for hint in &self.hints {
            let _ = write_labelled(&mut stderr, "hint", AnsiColor::Cyan, hint);
        }
        ExitCode::from(self.status)
    }
}

/// Writes one `note:` line to stderr: worth knowing, nothing failed.
pub(crate) fn note(message: impl Display) {
    let mut stderr = anstream::stderr().lock();
    let _ = write_labelled(&mut stderr, "note", AnsiColor::Yellow, message);
}

fn write_labelled(
    out: &mut impl io::Write,
    label: &str,
    colour: AnsiColor,
    message: impl Display,
) -> io::Result<()> {
    let style = Style::new().bold().fg_color(Some(colour.into()));
    writeln!(out, "{style}{label}:{style:#} {message}")
}

impl From<io::Error> for Failure {
    /// Only for writing the answer: every other I/O error names its subject.
    fn from(error: io::Error) -> Self {
        let failure = Failure::new(format!("cannot write the answer: {error}"));
        // `tidegate man | head`: the reader has seen enough, which is not an error.
        if error.kind() == io::ErrorKind::BrokenPipe { failure.with_status(0) } else { failure }
    }
}
