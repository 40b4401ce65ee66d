//! Turns what the YAML reader says about the configuration file into a place, a message and a way out.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_saphyr::{Error, MessageFormatter as _, UserMessageFormatter};

use crate::failure::Failure;

/// A longer line is not shown: nobody would find the place in it.
const LONGEST_LINE: usize = 400;

pub(super) fn failure(file: &str, text: &str, error: &Error) -> Failure {
    let (message, hint) = explain(error.without_snippet());
    let Some(place) = error.location().and_then(|location| Place::find(text, location)) else {
        let failure = Failure::new(format!("{file}: {message}"));
        return match hint {
            Some(hint) => failure.hint(hint),
            None => failure,
        };
    };
    let mark = AnnotationKind::Primary.span(place.start..place.end);
    let snippet = Snippet::source(place.line).path(file).line_start(place.number).annotation(mark);
    let mut group = Group::with_title(Level::ERROR.primary_title(message.as_str())).element(snippet);
    if let Some(hint) = &hint {
        group = group.element(Level::HELP.with_name("hint").message(hint.as_str()));
    }
    Failure::rendered(Renderer::styled().render(&[group]))
}

fn explain(error: &Error) -> (String, Option<String>) {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            (format!("unknown field `{field}`"), Some(suggest(field, expected)))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            (format!("unknown value `{variant}`"), Some(suggest(variant, expected)))
        }
        Error::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or("a field");
            (format!("`{key}` is given twice"), Some("keep one of them".to_owned()))
        }
        Error::Unexpected { expected: "string scalar", .. } => {
            ("expected a single value here".to_owned(), None)
        }
        other => {
            // A value's own complaint may bring its hint along, after a line break.
            let text = UserMessageFormatter.format_message(other).into_owned();
            match text.split_once('\n') {
                Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
                None => (text, None),
            }
        }
    }
}

/// The known name that was probably meant, or all of them.
pub(crate) fn suggest(typed: &str, known: &[impl AsRef<str>]) -> String {
    let distance = |name: &str| strsim::damerau_levenshtein(&typed.to_lowercase(), &name.to_lowercase());
    let nearest = known.iter().map(AsRef::as_ref).min_by_key(|name| distance(name));
    match nearest {
        Some(name) if distance(name) <= name.len().div_ceil(3) => format!("did you mean `{name}`?"),
        _ => format!("known here: {}", known.iter().map(AsRef::as_ref).collect::<Vec<_>>().join(", ")),
    }
}

/// A line of the file and the bytes of it that are meant.
struct Place<'t> {
    number: usize,
    line: &'t str,
    start: usize,
    end: usize,
}

impl<'t> Place<'t> {
    fn find(text: &'t str, location: serde_saphyr::Location) -> Option<Place<'t>> {
        let number = usize::try_from(location.line()).ok().filter(|number| *number > 0)?;
        let line = text.lines().nth(number - 1).filter(|line| line.len() <= LONGEST_LINE)?;
        let column = usize::try_from(location.column()).ok()?.saturating_sub(1);
        let start = line.char_indices().nth(column).map_or(line.len(), |(at, _)| at);
        // To the end of the word: what is wrong is a name or a value.
        let end = line[start..].find([' ', ':', ',', '}', ']']).map_or(line.len(), |length| start + length);
        Some(Place { number, line, start, end })
    }
}
