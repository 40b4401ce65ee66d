//! Changes the number of a rule's limit in its text, or derives a shadow rule with another number: for limits that follow
//! demand.
//!
//! Only text changes here. The result is compiled like anything that a person wrote.

use std::fmt::Write as _;
use std::ops::Range;

use crate::diagnostics::Report;
use crate::load::Source;
use crate::yaml::{self, Node, Value};

/// Fields that a shadow rule shares with the rule it tries another limit for: which requests it counts, and how.
const KEPT: [&str; 7] =
    ["match", "key", "on_missing_key", "coordination", "sync_every", "scope", "consistency"];

/// `document` with `number` as the limit at index `place` of a rule's `limits`; the rest stays byte for byte. `None` if the
/// rule has no such limit, or its number is not written there (for example in `tiers`, or left to a default).
#[must_use]
pub fn with_limit(document: &str, (domain, rule): (&str, &str), place: usize, number: u64) -> Option<String> {
    let tree = find(document, domain, rule)?;
    let digits = number_of(limit_at(&tree, place)?, document)?;
    Some([&document[..digits.start], &number.to_string(), &document[digits.end..]].concat())
}

/// A shadow rule called `name` that counts the same requests as `rule`, by its limit at `place` with another number. `None`
/// if [`with_limit`] would return `None`.
#[must_use]
pub fn shadow_of(
    document: &str,
    (domain, rule): (&str, &str),
    (place, number): (usize, u64),
    (name, description): (&str, &str),
) -> Option<String> {
    let tree = find(document, domain, rule)?;
    let limit = limit_at(&tree, place)?;
    let digits = number_of(limit, document)?;
    let mut text = format!("name: {}\ndescription: {}\n", quoted(name), quoted(description));
    for field in KEPT {
        if let Some(value) = field_of(&tree, field) {
            let _ = writeln!(text, "{field}: {}", flow(value, None));
        }
    }
    let _ = writeln!(text, "limits: [{}]\nshadow: true", flow(limit, Some((&digits, number))));
    Some(text)
}

fn find(document: &str, domain: &str, rule: &str) -> Option<Node> {
    let source = Source::new("document", document);
    let sources = [&source];
    let mut report = Report::new(&sources);
    let documents = yaml::parse(0, document, &mut report);
    report.finish().ok()?;
    let own = documents.iter().filter(|one| scalar(field_of(one, "domain")) == Some(domain));
    let lists = own.filter_map(|one| match &field_of(one, "rules")?.value {
        Value::List(rules) => Some(rules.clone()),
        _ => None,
    });
    lists.flat_map(|rules| rules.to_vec()).find(|one| scalar(field_of(one, "name")) == Some(rule))
}

fn limit_at(rule: &Node, place: usize) -> Option<&Node> {
    match &field_of(rule, "limits")?.value {
        Value::List(limits) => limits.get(place),
        _ => None,
    }
}

/// The position of a limit's number: the first one of `100/minute`, or the field `limit` or `burst`.
fn number_of(limit: &Node, document: &str) -> Option<Range<usize>> {
    let node = match &limit.value {
        Value::Map(_) => field_of(limit, "limit").or_else(|| field_of(limit, "burst"))?,
        _ => limit,
    };
    scalar(Some(node))?;
    let text = document.get(node.span.start..node.span.end)?;
    let start = node.span.start + text.find(|character: char| character.is_ascii_digit())?;
    let length = document[start..].find(|character: char| !character.is_ascii_digit() && character != '_');
    Some(start..length.map_or(document.len(), |length| start + length))
}

fn field_of<'n>(node: &'n Node, name: &str) -> Option<&'n Node> {
    let Value::Map(fields) = &node.value else { return None };
    fields.iter().find(|(key, _)| &*key.text == name).map(|(_, value)| value)
}

fn scalar(node: Option<&Node>) -> Option<&str> {
    match &node?.value {
        Value::Scalar(scalar) => Some(&scalar.text),
        _ => None,
    }
}

/// A value on one line, with another number if given.
fn flow(node: &Node, renumbered: Option<(&Range<usize>, u64)>) -> String {
    match &node.value {
        Value::Null => "null".to_owned(),
        Value::Scalar(scalar) => {
            let text = match renumbered {
                Some((digits, number)) if node.span.start <= digits.start && digits.end <= node.span.end => {
                    let end = scalar.text.trim_start_matches(|one: char| one.is_ascii_digit() || one == '_');
                    format!("{number}{end}")
                }
                _ => scalar.text.to_string(),
            };
            let plain =
                !scalar.quoted && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            if plain { text } else { quoted(&text) }
        }
        Value::List(list) => {
            let parts: Vec<String> = list.iter().map(|one| flow(one, renumbered)).collect();
            format!("[{}]", parts.join(", "))
        }
        Value::Map(fields) => {
            let parts: Vec<String> = fields
                .iter()
                .map(|(key, value)| format!("{}: {}", quoted(&key.text), flow(value, renumbered)))
                .collect();
            format!("{{ {} }}", parts.join(", "))
        }
    }
}

/// In double quotes, valid in YAML and JSON.
fn quoted(text: &str) -> String {
    let mut out = String::from('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            _ if character.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(character));
            }
            _ => out.push(character),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Format, RuleSet};

    const DOCUMENT: &str = "\
# Limits of the API.
domain: api
rules:
  - name: per-user   # each of them
    match: { path: '/v1/*', method: [GET, \"POST\"] }
    key: [user]
    limits:
      - 100/minute   # hundred
      - { algorithm: token_bucket, rate: 10/s, burst: 50 }
      - { algorithm: fixed_window, window: 1h, limit: 1_000 }
    overrides: [other]
  - { name: other, limits: [7/s] }
  - { name: tiered, key: [user], tiers: { on: plan, default: free, free: [5/s] } }
";

    #[test]
    fn only_the_number_changes() {
        for (place, from, to) in [
            (0, "- 100/minute   # hundred", "- 42/minute   # hundred"),
            (1, "burst: 50 }", "burst: 42 }"),
            (2, "limit: 1_000 }", "limit: 42 }"),
        ] {
            let changed = with_limit(DOCUMENT, ("api", "per-user"), place, 42).unwrap();
            assert_eq!(changed, DOCUMENT.replace(from, to));
            RuleSet::compile(&[Source::new("a", changed)], Format::Native).unwrap();
        }
        assert_eq!(with_limit(DOCUMENT, ("api", "other"), 0, 9).unwrap(), DOCUMENT.replace("[7/s]", "[9/s]"));
        for absent in [("api", "nobody"), ("web", "per-user"), ("api", "tiered")] {
            assert_eq!(with_limit(DOCUMENT, absent, 0, 9), None, "{absent:?}");
        }
        assert_eq!(with_limit(DOCUMENT, ("api", "per-user"), 3, 9), None);
    }

    #[test]
    fn a_shadow_rule_counts_the_same_requests_by_one_limit_with_another_number() {
        let text = shadow_of(DOCUMENT, ("api", "per-user"), (0, 42), ("per-user-suggested", "tried \"so\""))
            .unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "name: \"per-user-suggested\"",
                "description: \"tried \\\"so\\\"\"",
                "match: { \"path\": \"/v1/*\", \"method\": [GET, \"POST\"] }",
                "key: [user]",
                "limits: [\"42/minute\"]",
                "shadow: true",
            ]
        );
        let bucket = shadow_of(DOCUMENT, ("api", "per-user"), (1, 42), ("s", "")).unwrap();
        assert!(bucket.contains("\"burst\": 42") && bucket.contains("\"10/s\""), "{bucket}");
        let alone = format!("domain: api\nrules:\n  - {}\n", text.trim_end().replace('\n', "\n    "));
        let rules = RuleSet::compile(&[Source::new("a", alone)], Format::Native).unwrap();
        assert_eq!(rules.rules().next().unwrap().mode(), crate::Mode::Shadow);
    }
}
