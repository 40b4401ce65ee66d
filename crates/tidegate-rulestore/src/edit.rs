//! Changes one rule of a document and nothing else: comments, order and spacing of the rest stay byte for byte.
//!
//! Whatever the input, the result is parsed again: it must have the rules it had before, unchanged, and the intended one. So
//! no text can smuggle in a second rule.

use std::ops::Range;

use tidegate_rules::{Diagnostics, Outline, RulePlace, outline};

/// Why a rule was not changed.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// The document has no such rule.
    #[error("the domain has no rule `{rule}`")]
    NoSuchRule {
        /// Its name.
        rule: String,
    },
    /// The text is not one rule of that name.
    #[error("{problem}")]
    NotThatRule {
        /// What is wrong.
        problem: String,
    },
    /// The document's layout does not allow changing a single rule.
    #[error(
        "the rules of this document are written in one bracket, so a rule can only be changed with the whole document"
    )]
    OneBracket,
    /// It is not YAML.
    #[error(transparent)]
    Yaml(#[from] Diagnostics),
}

/// `document` with the rule `name` replaced by `text`, or `text` appended if there is none.
///
/// `text` is the rule's mapping, with or without a dash before it.
///
/// # Errors
/// `text` is not one rule of that name, or the document cannot be changed in part.
pub fn put_rule(document: &str, name: &str, text: &str) -> Result<String, EditError> {
    let rule = Mapping::read(text, name)?;
    let before = only(document)?;
    let changed = match before.rules.iter().position(|place| place.name == name) {
        Some(at) => {
            let place = &before.rules[at];
            may_hold(document, &before, &rule)?;
            let indent = column(document, place.span.start);
            replaced(document, place.span.clone(), &rule.indented(indent))
        }
        None => append(document, &before, &rule)?,
    };
    let mut expected: Vec<String> = before.rules.iter().map(|place| place.name.clone()).collect();
    if !expected.iter().any(|known| known == name) {
        expected.push(name.to_owned());
    }
    expect_only(document, &before, &changed, name, &expected)?;
    Ok(changed)
}

/// `document` without the rule `name` and the comment right above it.
///
/// # Errors
/// There is no such rule, or the document cannot be changed in part.
pub fn remove_rule(document: &str, name: &str) -> Result<String, EditError> {
    let before = only(document)?;
    let at = before.rules.iter().position(|place| place.name == name);
    let at = at.ok_or_else(|| EditError::NoSuchRule { rule: name.to_owned() })?;
    let list = before.list.clone().expect("it lists rules");
    let changed = if before.rules.len() == 1 {
        // A list must remain. White space after the colon belongs to neither.
        let start = document[..list.start].trim_end().len();
        replaced(document, start..list.end, " []")
    } else if document[list.start..].starts_with('[') {
        return Err(EditError::OneBracket);
    } else {
        replaced(document, lines_of(document, &before.rules[at]), "")
    };
    let expected: Vec<String> =
        before.rules.iter().map(|place| place.name.clone()).filter(|known| known != name).collect();
    expect_only(document, &before, &changed, name, &expected)?;
    Ok(changed)
}

/// A submitted rule: its lines, without their common indentation.
struct Mapping {
    lines: Vec<String>,
    flow: bool,
}

impl Mapping {
    fn read(text: &str, name: &str) -> Result<Self, EditError> {
        let text = text.trim_matches('\n').trim_end();
        let lines: Vec<String> = match text.trim_start().strip_prefix("- ") {
            // With a dash: the mapping begins two columns further right.
            Some(_) => {
                let indent = text.len() - text.trim_start().len() + 2;
                let first = text.trim_start()[2..].trim_start();
                let extra = text.trim_start()[2..].len() - first.len();
                let first = first.lines().next().unwrap_or_default().to_owned();
                let rest = text.lines().skip(1).map(|line| dedented(line, indent + extra));
                [first].into_iter().chain(rest).collect()
            }
            None => {
                let filled = text.lines().filter(|line| !line.trim().is_empty());
                let indent = filled.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
                text.lines().map(|line| dedented(line, indent)).collect()
            }
        };
        let flow = lines.first().is_some_and(|line| line.starts_with('{'));
        let rule = Mapping { lines, flow };
        let alone = format!("domain: alone\nrules:\n  - {}\n", rule.indented(4));
        let found = only(&alone)?;
        match &found.rules[..] {
            [one] if one.name == name => Ok(rule),
            [one] if one.name.is_empty() => Err(EditError::NotThatRule {
                problem: format!("the rule has no name: begin with `name: {name}`"),
            }),
            [one] => Err(EditError::NotThatRule {
                problem: format!("the rule is called `{}`, and was to be called `{name}`", one.name),
            }),
            _ => Err(EditError::NotThatRule { problem: "the text must be one rule".to_owned() }),
        }
    }

    /// Its lines, all but the first indented.
    fn indented(&self, indent: usize) -> String {
        let pad = " ".repeat(indent);
        let lines: Vec<String> = self
            .lines
            .iter()
            .enumerate()
            .map(|(number, line)| match number {
                0 => line.clone(),
                _ if line.trim().is_empty() => String::new(),
                _ => format!("{pad}{line}"),
            })
            .collect();
        lines.join("\n")
    }
}

fn dedented(line: &str, indent: usize) -> String {
    let own = line.len() - line.trim_start_matches(' ').len();
    line[own.min(indent)..].to_owned()
}

/// The only document in `text`.
fn only(text: &str) -> Result<Outline, EditError> {
    let mut found = outline(text)?;
    match (found.pop(), found.pop()) {
        (Some(one), None) => Ok(one),
        _ => Err(EditError::NotThatRule {
            problem: "the domain is written as several documents, so it can only be changed whole".to_owned(),
        }),
    }
}

/// A block mapping cannot be placed within brackets.
fn may_hold(document: &str, outline: &Outline, rule: &Mapping) -> Result<(), EditError> {
    let list = outline.list.clone().unwrap_or(0..0);
    let bracket = document[list.start..].starts_with('[') && !outline.rules.is_empty();
    if bracket && !rule.flow { Err(EditError::OneBracket) } else { Ok(()) }
}

fn append(document: &str, outline: &Outline, rule: &Mapping) -> Result<String, EditError> {
    let Some(list) = outline.list.clone() else {
        return Err(EditError::NotThatRule { problem: "the document has no `rules:`".to_owned() });
    };
    let bracket = document[list.start..].starts_with('[');
    match &outline.rules[..] {
        // `rules: []`, or nothing after the colon.
        [] => {
            let start = document[..list.start].trim_end().len();
            Ok(replaced(document, start..list.end.max(start), &format!("\n  - {}", rule.indented(4))))
        }
        _ if bracket => Err(EditError::OneBracket),
        [.., last] => {
            let indent = column(document, last.span.start);
            let dash = indent_of_dash(document, last);
            let end = line_end(document, last.span.end);
            let gap = if is_spaced(document, outline) { "\n" } else { "" };
            let pad = " ".repeat(indent - dash - 1);
            let item = format!("\n{gap}{}-{pad}{}", " ".repeat(dash), rule.indented(indent));
            Ok(replaced(document, end..end, &item))
        }
    }
}

/// Whether blank lines separate rules.
fn is_spaced(document: &str, outline: &Outline) -> bool {
    let Some([one, other]) = outline.rules.last_chunk::<2>() else { return false };
    document[one.span.end..other.span.start].contains("\n\n")
}

/// Every rule but `name` must be unchanged, and the list of rules must be as expected.
fn expect_only(
    document: &str,
    before: &Outline,
    changed: &str,
    name: &str,
    expected: &[String],
) -> Result<(), EditError> {
    let after = only(changed)?;
    let names: Vec<&String> = after.rules.iter().map(|place| &place.name).collect();
    let others = |text: &str, outline: &Outline| -> Vec<String> {
        let others = outline.rules.iter().filter(|place| place.name != name);
        others.map(|place| text[place.span.clone()].to_owned()).collect()
    };
    let same = names.into_iter().eq(expected) && others(document, before) == others(changed, &after);
    if same && before.domain == after.domain {
        return Ok(());
    }
    Err(EditError::NotThatRule { problem: "the text must be one rule, and nothing beside it".to_owned() })
}

fn replaced(text: &str, range: Range<usize>, by: &str) -> String {
    [&text[..range.start], by, &text[range.end..]].concat()
}

fn line_start(text: &str, at: usize) -> usize {
    text[..at].rfind('\n').map_or(0, |line_break| line_break + 1)
}

fn line_end(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |line_break| at + line_break)
}

fn column(text: &str, at: usize) -> usize {
    text[line_start(text, at)..at].chars().count()
}

fn indent_of_dash(text: &str, place: &RulePlace) -> usize {
    let line = &text[line_start(text, place.span.start)..place.span.start];
    line.find('-').unwrap_or_default()
}

/// The lines of a rule, from the comment right above it to the end of its last line.
fn lines_of(text: &str, place: &RulePlace) -> Range<usize> {
    let mut start = line_start(text, place.span.start);
    while start > 0 {
        let above = line_start(text, start - 1);
        if !text[above..start].trim_start().starts_with('#') {
            break;
        }
        start = above;
    }
    let end = line_end(text, place.span.end);
    start..(end + 1).min(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "\
# Limits of the API.
domain: api
rules:
  # Each user.
  - name: per-user
    key: [user]      # by number
    limits: [100/minute]  # in any minute

  # All together.
  - { name: everybody, limits: [1000/s] }

  - name: login
    match: { path: /login }
    limits:
      - 5/minute
# The end.
";

    #[track_caller]
    fn check_put(name: &str, text: &str, old: &str, new: &str) {
        assert!(DOCUMENT.contains(old), "{old}");
        assert_eq!(put_rule(DOCUMENT, name, text).unwrap(), DOCUMENT.replace(old, new));
    }

    #[test]
    fn a_changed_rule_changes_only_its_own_bytes() {
        check_put(
            "per-user",
            "name: per-user\nkey: [user]\nlimits:\n  - 50/minute  # fewer\n",
            "name: per-user\n    key: [user]      # by number\n    limits: [100/minute]  # in any minute",
            "name: per-user\n    key: [user]\n    limits:\n      - 50/minute  # fewer  # in any minute",
        );
    }

    #[test]
    fn a_rule_in_braces_may_become_one_of_lines() {
        check_put(
            "everybody",
            "- name: everybody\n  limits: [5/s]",
            "{ name: everybody, limits: [1000/s] }",
            "name: everybody\n    limits: [5/s]",
        );
    }

    #[test]
    fn a_new_rule_is_appended_as_the_others_stand() {
        check_put(
            "new",
            "name: new\nlimits: [1/s]",
            "      - 5/minute\n",
            "      - 5/minute\n\n  - name: new\n    limits: [1/s]\n",
        );
    }

    #[test]
    fn an_empty_list_takes_its_first_rule() {
        for empty in ["domain: api\nrules: []\n", "domain: api\nrules: [ ]\n"] {
            let changed = put_rule(empty, "a", "{ name: a, limits: [1/s] }").unwrap();
            assert_eq!(changed, "domain: api\nrules:\n  - { name: a, limits: [1/s] }\n");
        }
    }

    #[test]
    fn a_removed_rule_takes_its_comment_along_and_nothing_else() {
        let expected = DOCUMENT.replace("  # All together.\n  - { name: everybody, limits: [1000/s] }\n", "");
        assert_eq!(remove_rule(DOCUMENT, "everybody").unwrap(), expected);
    }

    #[test]
    fn the_last_rule_leaves_an_empty_list() {
        let changed =
            remove_rule("domain: api\nrules:\n  - name: a\n    limits: [1/s]\n# End.\n", "a").unwrap();
        assert_eq!(changed, "domain: api\nrules: []\n# End.\n");
    }

    #[test]
    fn a_text_cannot_bring_another_rule_along() {
        for text in [
            "name: per-user\nlimits: [1/s]\n- name: sneaky\n  limits: [1/s]",
            "name: per-user\nlimits: [1/s]\n---\ndomain: other\nrules: []",
            "name: other\nlimits: [1/s]",
            "limits: [1/s]",
            "just text",
            "{ name: per-user } }",
            "name: per-user\nlimits: [",
        ] {
            assert!(put_rule(DOCUMENT, "per-user", text).is_err(), "{text}");
        }
    }

    #[test]
    fn rules_in_one_bracket_are_changed_only_by_others_in_braces() {
        let document = "domain: api\nrules: [{ name: a, limits: [1/s] }, { name: b, limits: [1/s] }]\n";
        let changed = put_rule(document, "a", "{ name: a, limits: [2/s] }").unwrap();
        assert_eq!(changed, document.replacen("1/s", "2/s", 1));
        assert!(matches!(put_rule(document, "a", "name: a\nlimits: [2/s]"), Err(EditError::OneBracket)));
        assert!(matches!(remove_rule(document, "a"), Err(EditError::OneBracket)));
    }

    #[test]
    fn a_rule_that_is_not_there_cannot_be_removed() {
        assert!(matches!(remove_rule(DOCUMENT, "none"), Err(EditError::NoSuchRule { .. })));
    }
}
