//! Parses a body, and explains errors precisely.

use super::fields::{OBJECT_OF_STRINGS, Object};
use crate::problem::{Kind, Problem};
use serde::Deserialize;
use serde::de::DeserializeSeed;
use serde_json::error::Category;
use std::marker::PhantomData;

/// The most bytes that a message may quote of a request: a name of a megabyte must not come back.
const LONGEST_DETAIL: usize = 240;
const LONGEST_FIELD: usize = 120;

/// Parses `body` as a `T`.
///
/// # Errors
/// A problem that names the field: [`Kind::MalformedJson`] if it is not JSON, otherwise [`Kind::InvalidField`].
pub fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Problem> {
    let read = serde_json::from_slice(body).map(|Object(value)| value);
    read.map_err(|_| explain(body, PhantomData::<Object<T>>))
}

/// Parses an invalid body again, tracking the position.
pub(super) fn explain<'a, S: DeserializeSeed<'a>>(body: &'a [u8], seed: S) -> Problem {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    let mut track = serde_path_to_error::Track::new();
    let read = seed.deserialize(serde_path_to_error::Deserializer::new(&mut deserializer, &mut track));
    let error = match read {
        Err(error) => error,
        Ok(_) => match deserializer.end() {
            Err(error) => error,
            Ok(()) => return Problem::new(Kind::MalformedJson, "the body could not be read"),
        },
    };
    if body.trim_ascii().is_empty() {
        return Problem::new(Kind::MalformedJson, "the body is empty").hint("send a JSON object");
    }
    match error.classify() {
        Category::Data => invalid_field(&error, &track.path().to_string()),
        Category::Syntax | Category::Eof | Category::Io => {
            let detail = shortened(&error.to_string(), LONGEST_DETAIL);
            Problem::new(Kind::MalformedJson, detail)
                .hint("send a JSON object, with names and texts in double quotes")
        }
    }
}

fn invalid_field(error: &serde_json::Error, path: &str) -> Problem {
    let message = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    let message = message.strip_suffix(&position).unwrap_or(&message);
    let field = shortened(&field_at_fault(path, message), LONGEST_FIELD);
    let (detail, hint) = match message.split_once("; hint: ") {
        Some((detail, hint)) => (detail.to_owned(), Some(hint.to_owned())),
        None => in_plain_words(message),
    };
    let mut problem = Problem::new(
        Kind::InvalidField,
        match field.as_str() {
            "" => shortened(&detail, LONGEST_DETAIL),
            field => format!("{field}: {}", shortened(&detail, LONGEST_DETAIL)),
        },
    );
    problem.field = (!field.is_empty()).then_some(field);
    problem.hint = hint.map(|hint| shortened(&hint, LONGEST_DETAIL).into());
    problem
}

/// The parser's own messages as a sentence and a hint; others as they are.
fn in_plain_words(message: &str) -> (String, Option<String>) {
    let quoted = |text: &str| text.split('`').nth(1).unwrap_or_default().to_owned();
    if message.starts_with("missing field") {
        let hint = match &*quoted(message) {
            "domain" => r#"name the rules to apply: {"domain":"api","attributes":{"user":"42"}}"#.to_owned(),
            name => format!("add `{name}`"),
        };
        return ("it is missing".to_owned(), Some(hint));
    }
    if message.starts_with("unknown field") {
        return ("unknown field".to_owned(), Some(where_it_belongs(message)));
    }
    if message.starts_with("duplicate field") {
        return ("it is given twice".to_owned(), Some("keep one of them".to_owned()));
    }
    if message.starts_with("invalid type: ")
        && let Some((found, expected)) = message["invalid type: ".len()..].split_once(", expected ")
    {
        let found = if found == "sequence" { "an array" } else { found };
        let hint = (expected == OBJECT_OF_STRINGS).then(|| r#"write {"user":"42"}"#.to_owned());
        return (format!("expected {expected}, found {found}"), hint);
    }
    (message.to_owned(), None)
}

/// What to do with a field that is not known: `unknown field `usr`, expected one of `domain`, `attributes``.
fn where_it_belongs(message: &str) -> String {
    let mut names = message.split('`').skip(1).step_by(2);
    let written = names.next().unwrap_or_default();
    let known: Vec<&str> = names.collect();
    let distance = |name: &&&str| strsim::damerau_levenshtein(name, written);
    let nearest = known.iter().min_by_key(distance);
    match nearest {
        Some(near) if written.len() <= 64 && distance(&near) <= near.len().div_ceil(3) => {
            format!("did you mean `{near}`?")
        }
        // What is known of a request goes there, and is often written beside it.
        _ if known.contains(&"attributes") => {
            format!(
                r#"put it into attributes: {{"attributes":{{"{}":"…"}}}}"#,
                shortened(written, LONGEST_FIELD)
            )
        }
        _ => format!("known here: {}", known.join(", ")),
    }
}

/// The path to the field. For a missing, unknown or duplicate field the parser knows only the object; its message has the
/// name.
fn field_at_fault(path: &str, detail: &str) -> String {
    let object = if path == "." { "" } else { path };
    let name = ["missing field `", "unknown field `", "duplicate field `", "unrecognized field name '"]
        .iter()
        .find_map(|start| detail.strip_prefix(start))
        .and_then(|rest| rest.split(['`', '\'']).next());
    match name {
        None => object.to_owned(),
        // Whether the path already ends in the name depends on how far the parser got.
        Some(name) if object == name || object.ends_with(&format!(".{name}")) => object.to_owned(),
        Some(name) if object.is_empty() => name.to_owned(),
        Some(name) => format!("{object}.{name}"),
    }
}

fn shortened(text: &str, longest: usize) -> String {
    if text.len() <= longest {
        return text.to_owned();
    }
    let cut = text.floor_char_boundary(longest);
    format!("{}…", &text[..cut])
}

#[cfg(test)]
mod tests {
    use super::super::{Attributes, Batch, Check, Count, Lease, MAX_ATTRIBUTES, MAX_CHECKS, Refund};
    use super::*;

    /// Checks that `body` is rejected as a `T`, with this field, a detail that contains `detail`, and a hint or none.
    #[track_caller]
    fn check_invalid<'a, T: Deserialize<'a> + std::fmt::Debug>(
        body: &'a str,
        field: &str,
        detail: &str,
        hint: Option<&str>,
    ) {
        let problem = parse::<T>(body.as_bytes()).expect_err("the body should be refused");
        assert_eq!(problem.kind(), Kind::InvalidField, "{problem:?}");
        assert_eq!(problem.field.as_deref().unwrap_or(""), field, "{problem:?}");
        assert!(problem.detail.contains(detail), "{problem:?}");
        assert_eq!(problem.hint.as_deref(), hint, "{problem:?}");
    }

    #[track_caller]
    fn check_malformed(body: &[u8], detail: &str) {
        let problem = parse::<Check<'_>>(body).expect_err("the body should be refused");
        assert_eq!(problem.kind(), Kind::MalformedJson, "{problem:?}");
        assert!(problem.detail.contains(detail), "{problem:?}");
        assert!(problem.hint.is_some_and(|hint| hint.contains("JSON object")), "{detail}");
    }

    fn attributes(count: usize) -> String {
        let list: Vec<_> = (0..count).map(|n| format!(r#""a{n}":"v""#)).collect();
        format!(r#"{{"domain":"d","attributes":{{{}}}}}"#, list.join(","))
    }

    #[test]
    fn a_check_is_read_without_copying_its_strings() {
        let body =
            br#"{"domain":"api","attributes":{"user":"42","path":"/v1/items"},"cost":3,"request_id":"r"}"#;
        let check = parse::<Check<'_>>(body).unwrap();
        assert_eq!(check.domain.as_str(), "api");
        assert_eq!(check.attributes.iter().collect::<Vec<_>>(), [("user", "42"), ("path", "/v1/items")]);
        assert_eq!(check.cost, Count(3));
        assert_eq!(check.request_id.unwrap().as_str(), "r");
        assert!(body.as_ptr_range().contains(&check.domain.as_str().as_ptr()));
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        let check = parse::<Check<'_>>(br#"{"domain":"api"}"#).unwrap();
        assert_eq!((check.attributes, check.cost, check.request_id), (Attributes::default(), Count(1), None));
    }

    #[test]
    fn escapes_are_understood() {
        let check = parse::<Check<'_>>(br#"{"domain":"a\u0000\"\u00e9"}"#).unwrap();
        assert_eq!(check.domain.as_str(), "a\0\"é");
    }

    #[test]
    fn an_attribute_that_is_no_string_is_named_with_a_way_out() {
        let body = |value| format!(r#"{{"domain":"d","attributes":{{"user":{value}}}}}"#);
        for (value, found) in [
            ("42", "the number 42"),
            ("-1", "the number -1"),
            ("1.5", "the number 1.5"),
            ("true", "the boolean true"),
        ] {
            let detail = format!("attributes.user: expected a string, found {found}");
            check_invalid::<Check<'_>>(&body(value), "attributes.user", &detail, Some("put it in quotes"));
        }
        check_invalid::<Check<'_>>(&body("null"), "attributes.user", "null", Some("leave the field out"));
        check_invalid::<Check<'_>>(&body("[]"), "attributes.user", "found an array", None);
        check_invalid::<Check<'_>>(&body("{}"), "attributes.user", "found an object", None);
    }

    #[test]
    fn an_empty_request_id_is_no_name() {
        let (check, hint) =
            (r#"{"domain":"d","request_id":""}"#, Some("leave it out, or give each request its own"));
        check_invalid::<Check<'_>>(check, "request_id", "at least one character", hint);
        let batch = format!(r#"{{"checks":[{{"domain":"d"}},{check}]}}"#);
        check_invalid::<Batch<'_>>(&batch, "checks[1].request_id", "at least one character", hint);
        let refund = r#"{"domain":"d","amount":1,"request_id":""}"#;
        check_invalid::<Refund<'_>>(refund, "request_id", "at least one character", hint);
    }

    #[test]
    fn a_cost_is_a_whole_number_from_0_to_u64_max() {
        let body = |value| format!(r#"{{"domain":"d","cost":{value}}}"#);
        for (value, cost) in [("0", 0), ("18446744073709551615", u64::MAX)] {
            assert_eq!(parse::<Check<'_>>(body(value).as_bytes()).unwrap().cost, Count(cost));
        }
        for value in ["-1", "1.5", "1.0", "18446744073709551616", "1e3", "true", "[]", "{}", "\"x\""] {
            check_invalid::<Check<'_>>(&body(value), "cost", "expected a whole number from 0 to 1844", None);
        }
        check_invalid::<Check<'_>>(&body("\"5\""), "cost", "found a string", Some("write it without quotes"));
        check_invalid::<Check<'_>>(&body("null"), "cost", "found null", Some("leave the field out"));
    }

    #[test]
    fn missing_unknown_and_doubled_fields_are_named() {
        let name_it = r#"name the rules to apply: {"domain":"api","attributes":{"user":"42"}}"#;
        check_invalid::<Check<'_>>("{}", "domain", "domain: it is missing", Some(name_it));
        let meant = Some("did you mean `attributes`?");
        check_invalid::<Check<'_>>(r#"{"domain":"d","atributes":{}}"#, "atributes", "unknown field", meant);
        let beside = Some(r#"put it into attributes: {"attributes":{"user":"…"}}"#);
        check_invalid::<Check<'_>>(r#"{"domain":"d","user":"42"}"#, "user", "user: unknown field", beside);
        let keep_one = Some("keep one of them");
        check_invalid::<Check<'_>>(r#"{"domain":"d","domain":"e"}"#, "domain", "it is given twice", keep_one);
        let doubled = r#"{"domain":"d","attributes":{"user":"1","user":"2"}}"#;
        check_invalid::<Check<'_>>(doubled, "attributes.user", "it is given twice", keep_one);
        check_invalid::<Refund<'_>>(r#"{"domain":"d"}"#, "amount", "it is missing", Some("add `amount`"));
        check_invalid::<Lease<'_>>(r#"{"lease":7}"#, "lease", "found the number 7", Some("put it in quotes"));
    }

    #[test]
    fn a_mistake_inside_a_batch_is_named_by_its_place() {
        let body = r#"{"checks":[{"domain":"d"},{"domain":"d","attributes":{"user":1}}]}"#;
        check_invalid::<Batch<'_>>(
            body,
            "checks[1].attributes.user",
            "the number 1",
            Some("put it in quotes"),
        );
        let body = r#"{"checks":[{"domain":"d"},{"cost":1}]}"#;
        let name_it = r#"name the rules to apply: {"domain":"api","attributes":{"user":"42"}}"#;
        check_invalid::<Batch<'_>>(body, "checks[1].domain", "it is missing", Some(name_it));
    }

    #[test]
    fn another_type_than_an_object_is_told_what_was_expected() {
        check_invalid::<Check<'_>>(r#"["d"]"#, "", "expected an object", None);
        check_invalid::<Check<'_>>("7", "", "expected an object", None);
        check_invalid::<Batch<'_>>(r#"{"checks":[["d"]]}"#, "checks[0]", "expected an object", None);
        check_invalid::<Check<'_>>(
            r#"{"domain":"d","attributes":[]}"#,
            "attributes",
            "expected an object of strings, found an array",
            Some(r#"write {"user":"42"}"#),
        );
        check_invalid::<Batch<'_>>(r#"{"checks":{}}"#, "checks", "an array of checks", None);
    }

    #[test]
    fn one_attribute_more_than_allowed_is_refused() {
        assert!(parse::<Check<'_>>(attributes(MAX_ATTRIBUTES).as_bytes()).is_ok());
        let body = attributes(MAX_ATTRIBUTES + 1);
        check_invalid::<Check<'_>>(&body, "attributes", "at most 64 attributes", None);
    }

    #[test]
    fn one_check_more_than_allowed_is_refused() {
        let body = |count| format!(r#"{{"checks":[{}]}}"#, vec![r#"{"domain":"d"}"#; count].join(","));
        assert_eq!(parse::<Batch<'_>>(body(MAX_CHECKS).as_bytes()).unwrap().checks.len(), MAX_CHECKS);
        let body = body(MAX_CHECKS + 1);
        check_invalid::<Batch<'_>>(&body, "checks", "at most 100 checks", Some("send several batches"));
    }

    #[test]
    fn a_name_or_value_that_is_too_long_is_refused_without_repeating_it() {
        let long = "x".repeat(1 << 20);
        let value = format!(r#"{{"domain":"d","attributes":{{"user":"{long}"}}}}"#);
        check_invalid::<Check<'_>>(
            &value,
            "attributes.user",
            "at most 4096 bytes, found 1048576 bytes",
            None,
        );
        for body in [
            format!(r#"{{"domain":"d","attributes":{{"{long}":"v"}}}}"#),
            format!(r#"{{"domain":"d","{long}":"v"}}"#),
        ] {
            let problem = parse::<Check<'_>>(body.as_bytes()).unwrap_err();
            // The document contains its sentence twice.
            let bytes = problem.to_json().len() - problem.detail.len();
            assert!(bytes < 1_000, "{bytes} bytes");
        }
    }

    #[test]
    fn what_is_not_json_is_malformed() {
        check_malformed(b"", "the body is empty");
        check_malformed(b" \n", "the body is empty");
        check_malformed(b"{", "EOF");
        check_malformed(br#"{"domain":"d"} x"#, "trailing characters");
        check_malformed(br#"{"domain":"d",}"#, "trailing comma at line 1 column 15");
        check_malformed(b"{\"domain\":\"\xff\"}", "invalid unicode");
    }

    #[test]
    fn deep_nesting_is_refused_where_it_begins() {
        let deep = "[".repeat(100_000);
        check_invalid::<Check<'_>>(&deep, "", "expected an object", None);
        check_invalid::<Check<'_>>(&format!(r#"{{"domain":{deep}"#), "domain", "found an array", None);
        check_invalid::<Check<'_>>(
            &format!(r#"{{"x":{deep}"#),
            "x",
            "unknown field",
            Some(r#"put it into attributes: {"attributes":{"x":"…"}}"#),
        );
    }
}
