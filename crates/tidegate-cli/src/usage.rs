//! Mistakes in the command line: clap's messages, with a way out where a newcomer needs one.

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::Failure;

/// Prints the error, or the help that was asked for, and returns the exit code.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    let hint = hint(error, std::env::args_os().nth(1));
    match (error.kind(), hint) {
        (ErrorKind::ArgumentConflict | ErrorKind::UnknownArgument, Some((message, hint))) => {
            Failure::new(message).hint(hint).with_status(STATUS).report()
        }
        (ErrorKind::DisplayHelp | ErrorKind::DisplayVersion, _) => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        _ => {
            let _ =
                write!(anstream::stderr().lock(), "{}", in_plain_words(&error.render().ansi().to_string()));
            ExitCode::from(STATUS)
        }
    }
}

/// The exit status of a wrong command line, as clap has it.
const STATUS: u8 = 2;

/// A message and a way out for mistakes that clap can only describe.
fn hint(error: &clap::Error, command: Option<OsString>) -> Option<(String, String)> {
    let command = command.and_then(|command| command.into_string().ok())?;
    let invalid = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(text)) => text.as_str(),
        _ => return None,
    };
    match (error.kind(), command.as_str()) {
        (ErrorKind::UnknownArgument, "serve" | "explain" | "replay" | "top") if is_file(invalid) => {
            let message = format!("`{command}` takes files only behind a flag: `{invalid}`");
            Some((message, format!("rules: tidegate {command} --rules {invalid}; a server's configuration: --config")))
        }
        (ErrorKind::UnknownArgument, "validate") if invalid.starts_with("--rules") => Some((
            "`validate` takes rule files without a flag".to_owned(),
            "tidegate validate rules.yaml".to_owned(),
        )),
        // Which of the two clap calls invalid is a matter of their order.
        (ErrorKind::ArgumentConflict, "validate" | "explain") if error.to_string().contains("--config <") => Some((
            "a configuration names its rules itself, so `--config` goes without other rules".to_owned(),
            "check rules alone: tidegate validate rules.yaml; or list them in the file: rules: { paths: [rules.yaml] }"
                .to_owned(),
        )),
        _ => None,
    }
}

fn is_file(text: &str) -> bool {
    let is_yaml = [".yaml", ".yml", ".json"].iter().any(|end| text.ends_with(end));
    !text.starts_with('-') && (is_yaml || text.contains('/') || std::path::Path::new(text).exists())
}

/// Messages of the standard library about numbers say nothing to a person.
fn in_plain_words(text: &str) -> String {
    [
        ("invalid digit found in string", "write a whole number in digits, such as 5"),
        ("cannot parse integer from empty string", "write a whole number in digits, such as 5"),
        ("number too large to fit in target type", "the number is too large"),
        ("invalid float literal", "write a number, such as 0.5"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (theirs, ours)| text.replace(theirs, ours))
}
