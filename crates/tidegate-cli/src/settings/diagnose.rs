//! Turns errors of the YAML parser about the configuration file into a place, a message and a hint.
//!
//! The line is shown only in sections without secrets; elsewhere neither it nor any value of it is.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use serde_saphyr::{Error, MessageFormatter as _, UserMessageFormatter};

use crate::failure::Failure;

/// A longer line is not shown: nobody would find the place in it.
const LONGEST_LINE: usize = 400;

/// Sections whose lines may be shown. An unknown section may contain anything.
const OPEN_SECTIONS: [&str; 10] =
    ["listen", "rules", "headers", "x_ratelimit", "rls", "shedding", "limits", "workers", "drain", "log"];

pub(super) fn failure(file: &str, text: &str, error: &Error) -> Failure {
    let place = error.location().and_then(|location| Place::find(text, location));
    let shows = |place: &Place<'_>| place.section.is_some_and(|section| OPEN_SECTIONS.contains(&section));
    let (place, (message, hint)) = match place {
        Some(place) if shows(&place) => {
            let (message, hint) = explain(error.without_snippet());
            let hint = hint.or_else(|| place.example());
            (place, (message, hint))
        }
        hidden => {
            let at = hidden.as_ref().map(|place| format!(":{}:{}", place.number, place.start + 1));
            let (mut message, hint) = explain_without_values(error.without_snippet());
            let shown = hidden.as_ref().and_then(Place::example);
            let field = hidden.and_then(|place| place.field());
            if let Some(field) = field.filter(|_| message == UNREADABLE) {
                message = format!("the value of `{field}` is not valid");
            }
            let hint = hint.or(shown);
            let failure = Failure::new(format!("{file}{}: {message}", at.unwrap_or_default()));
            return match hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            };
        }
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
        Error::Unexpected { expected, .. } => (unexpected(expected), None),
        other => {
            // A value's own error may have a hint, after a line break.
            let text = UserMessageFormatter.format_message(other).into_owned();
            match text.split_once('\n') {
                Some((message, hint)) => (message.to_owned(), Some(hint.to_owned())),
                None => (text, None),
            }
        }
    }
}

/// The error without any value of the text; its hint after a line break, if there is one.
pub(super) fn without_values(error: &Error) -> String {
    match explain_without_values(error.without_snippet()) {
        (message, Some(hint)) => format!("{message}\n{hint}"),
        (message, None) => message,
    }
}

/// The default message about a value that must not be shown.
const UNREADABLE: &str = "a value is not valid";

/// The parser's word for another kind of value than there is.
fn unexpected(expected: &str) -> String {
    match expected {
        "string scalar" => "expected a single value here".to_owned(),
        "mapping start" => "expected fields and their values here, such as { name: value }".to_owned(),
        "sequence start" => "expected a list here, such as [a, b]".to_owned(),
        other => format!("expected {other} here"),
    }
}

/// How to write a section, for who gives it a single value. Some of their names are fields too.
fn section_example(section: &str) -> Option<String> {
    let example = match section {
        "listen" => "listen: { http: 127.0.0.1:8080 }",
        "store" => "store: { url: redis://127.0.0.1:6379 }",
        "rules" => "rules: { paths: [rules.yaml] }",
        "headers" => "headers: [x-ratelimit]",
        "rls" => "rls: { response_headers: x-ratelimit }",
        "resp" => "resp: { password_file: FILE }",
        "access" => "access: { tokens_file: FILE }",
        "admin" => "admin: { tokens_file: FILE }; its listener is listen: { admin: off }",
        "limits" => "limits: { max_cells: 1000000 }",
        "drain" => "drain: { delay: 3s }",
        "log" => "log: { level: info }",
        "decision_log" => "decision_log: {}",
        _ => return example(section),
    };
    Some(format!("write it like this: {example}"))
}

/// How to write a field.
pub(super) fn example(field: &str) -> Option<String> {
    let example = match field {
        "api_key" => "api_key: { header: x-api-key }",
        "trusted_proxies" => "trusted_proxies: [10.0.0.0/8, 192.0.2.7]",
        "statsd" => "statsd: { address: 127.0.0.1:8125 }",
        "otlp" => "otlp: { endpoint: http://127.0.0.1:4318 }",
        "jwt" => "jwt: { jwks: https://issuer.example/keys, claims: { user: sub } }",
        "headers" => "headers: { tenant: x-tenant }",
        "cookies" => "cookies: { session: sid }",
        "query" => "query: { page: p }",
        "paths" => "paths: [\"/users/{id}\"]",
        "composites" => "composites: { user_route: [user, route] }",
        "hops" => "hops: 1",
        "ipv6_prefix" => "ipv6_prefix: 64",
        "client" => "client: [user, api_key, ip]",
        "identity" => "identity: { api_key: { header: x-api-key }, trusted_proxies: [10.0.0.0/8] }",
        "users" => "users: [{ name: app, password: … }]",
        "ofrep" => "ofrep: { url: http://127.0.0.1:8016 }",
        "breaker" => "breaker: { failures: 3, open_for: 30s }",
        _ => return None,
    };
    Some(format!("write it like this: {example}"))
}

fn explain_without_values(error: &Error) -> (String, Option<String>) {
    match error {
        Error::SerdeUnknownField { field, expected, .. } => {
            let named =
                if is_plain(field) { format!("unknown field `{field}`") } else { "unknown field".to_owned() };
            (named, Some(suggest(field, expected)))
        }
        Error::SerdeUnknownVariant { variant, expected, .. } => {
            ("unknown value".to_owned(), Some(suggest(variant, expected)))
        }
        Error::SerdeMissingField { field, .. } => (format!("the field `{field}` is missing"), None),
        Error::DuplicateMappingKey { .. } => {
            ("a field is given twice".to_owned(), Some("keep one of them".to_owned()))
        }
        Error::Unexpected { expected, .. } => (unexpected(expected), None),
        Error::SerdeInvalidType { expected, .. } | Error::SerdeInvalidValue { expected, .. } => {
            (format!("expected {expected} here"), None)
        }
        other => {
            // Hints are ours, and name only known values.
            let text = UserMessageFormatter.format_message(other).into_owned();
            let hint = text.split_once('\n').map(|(_, hint)| hint.to_owned());
            (UNREADABLE.to_owned(), hint)
        }
    }
}

/// Whether it looks like the name of a field, and not like a misplaced password.
fn is_plain(name: &str) -> bool {
    name.len() <= 32 && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
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

/// A line of the file and the bytes at fault.
struct Place<'t> {
    /// The top-level field that contains it.
    section: Option<&'t str>,
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
        // To the end of the word: the mistake is a name or a value.
        let end = line[start..].find([' ', ':', ',', '}', ']']).map_or(line.len(), |length| start + length);
        Some(Place { section: section_of(text, number), number, line, start, end })
    }

    /// How to write what is at fault.
    fn example(&self) -> Option<String> {
        let field = self.field()?;
        if self.section == Some(field) { section_example(field) } else { example(field) }
    }

    /// The field on its line whose value is at fault, if it looks like a field.
    fn field(&self) -> Option<&'t str> {
        let before = self.line[..self.start].trim_end().strip_suffix(':')?;
        let name = before.rsplit([' ', '{', ',']).next()?;
        (!name.is_empty() && is_plain(name)).then_some(name)
    }
}

/// The last field without indentation up to that line.
fn section_of(text: &str, number: usize) -> Option<&str> {
    let names = text.lines().take(number).filter_map(|line| {
        let begins = line.chars().next()?;
        (begins.is_alphanumeric() || begins == '"' || begins == '\'' || begins == '{')
            .then(|| line.split(':').next().unwrap_or(line).trim_matches(['"', '\'', ' ']))
    });
    names.last()
}

#[cfg(test)]
mod tests {
    use super::super::config::Config;
    use super::*;

    fn told(text: &str) -> String {
        let error = serde_saphyr::from_str::<Config>(text).unwrap_err();
        format!("{:?}", failure("tidegate.yaml", text, &error))
    }

    #[test]
    fn no_mistake_in_a_section_with_secrets_shows_a_line_or_a_value() {
        for text in [
            "resp: { password: [Sup3rS] }",
            "resp: Sup3rS",
            "resp:\n  password:\n    - Sup3rS\n",
            "resp: { Sup3rS }",
            "resp: { users: [{ name: a, passwords: Sup3rS }] }",
            "resp: { password: Sup3rS, password: Sup3rS }",
            "resp: { password: Sup3rS",
            "resp: { password: 'Sup3rS }",
            "{ resp: { password: [Sup3rS] } }",
            "{ listen: { http: a:1 }, resp: { password: [Sup3rS] } }",
            "store: { url: [Sup3rS] }",
            "store: { timeout: Sup3rS }",
            "store: { required: Sup3rS }",
            "access: { tokens: Sup3rS }",
            "admin: { token: Sup3rS }",
            "identity: { jwt: Sup3rS }",
            "proxy: { identity: { jwt: { secret: [Sup3rS] } } }",
            "dashbord: { password: Sup3rS }",
            "'resp': { password: [Sup3rS] }",
        ] {
            let told = told(text);
            assert!(!told.contains("Sup3rS"), "{text}: {told}");
            assert!(told.contains("tidegate.yaml"), "{text}: {told}");
        }
    }

    #[test]
    fn the_place_and_the_way_out_are_still_told() {
        let told = told("listen: { http: off }\nresp:\n  pasword: x\n");
        for part in ["tidegate.yaml:3:3", "unknown field `pasword`", "did you mean `password`?"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
