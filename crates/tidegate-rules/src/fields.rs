//! Reads typed values from a YAML tree, and reports what does not fit, with a hint.
//!
//! Every function here returns `None` after it has reported: the caller continues with the next field, so that one run shows
//! all mistakes.

use std::rc::Rc;

use tidegate_core::Micros;

use crate::diagnostics::{Report, Span};
use crate::quantity::{QuantityError, parse_count, parse_duration};
use crate::split::Share;
use crate::yaml::{Key, Node, Scalar, Value};

/// The fields of one mapping.
#[derive(Clone, Copy)]
pub(crate) struct Fields<'n> {
    pub(crate) span: Span,
    pub(crate) entries: &'n [(Key, Node)],
}

impl<'n> Fields<'n> {
    /// The fields of `node`, which messages call `what`; reports a node without fields, and fields that are not in `known`.
    pub(crate) fn read(node: &'n Node, what: &str, known: &[&str], report: &mut Report<'_>) -> Option<Self> {
        let fields = Fields::read_any(node, what, report)?;
        for (key, _) in fields.entries.iter().filter(|(key, _)| !known.contains(&&*key.text)) {
            // Each is compared with every known one.
            if report.is_full() {
                break;
            }
            let hint = called_otherwise(&key.text, known)
                .or_else(|| did_you_mean(&key.text, known.iter().copied()))
                .unwrap_or_else(|| format!("its fields are {}", known.join(", ")));
            report.error(key.span, format!("unknown field `{}` in {what}", key.text), hint);
        }
        Some(fields)
    }

    /// The fields of `node`, whatever their names.
    pub(crate) fn read_any(node: &'n Node, what: &str, report: &mut Report<'_>) -> Option<Self> {
        let Value::Map(entries) = &node.value else {
            let hint = "write fields and their values, such as `name: value`";
            report.error(node.span, format!("{what} must be a mapping, not {}", node.describe()), hint);
            return None;
        };
        Some(Fields { span: node.span, entries })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(key, _)| &*key.text == name).map(|(_, value)| value)
    }

    /// The place of the field's name; the whole mapping if it is absent.
    pub(crate) fn key_span(&self, name: &str) -> Span {
        self.entries.iter().find(|(key, _)| &*key.text == name).map_or(self.span, |(key, _)| key.span)
    }

    /// The field, which is required in `what`.
    pub(crate) fn require(
        &self,
        name: &str,
        what: &str,
        hint: &str,
        report: &mut Report<'_>,
    ) -> Option<&'n Node> {
        let node = self.get(name);
        if node.is_none() {
            report.error(self.span, format!("`{name}` is missing in {what}"), hint);
        }
        node
    }
}

/// Any scalar as the text it was written as: `on`, `007` and `1.50` stay as they are.
pub(crate) fn text(node: &Node, what: &str, report: &mut Report<'_>) -> Option<Rc<str>> {
    match &node.value {
        Value::Scalar(Scalar { text, .. }) => Some(text.clone()),
        Value::Null => {
            report.error(node.span, format!("{what} is empty"), "write a value, or \"\" for empty text");
            None
        }
        _ => {
            report.error(
                node.span,
                format!("{what} must be text, not {}", node.describe()),
                "write one value",
            );
            None
        }
    }
}

/// The longest name, in bytes.
const LONGEST_NAME: usize = 256;

/// A name: text that is not empty, not too long and has no control characters.
pub(crate) fn name(node: &Node, what: &str, report: &mut Report<'_>) -> Option<Rc<str>> {
    let text = text(node, what, report)?;
    let problem = if text.is_empty() {
        format!("{what} is empty")
    } else if text.len() > LONGEST_NAME {
        format!("{what} is {} bytes long, more than {LONGEST_NAME}", text.len())
    } else if text.chars().any(char::is_control) {
        format!("{what} holds a control character")
    } else {
        return Some(text);
    };
    report.error(node.span, problem, "use a short name");
    None
}

/// The name of a rule or a limit. Names in brackets are our own, such as `(ban)`.
pub(crate) fn given_name(node: &Node, what: &str, report: &mut Report<'_>) -> Option<Rc<str>> {
    let name = name(node, what, report)?;
    if is_reserved(&name) {
        let hint = format!("leave out the brackets: {}", name.trim_matches(['(', ')']));
        report.error(
            node.span,
            format!("{what}: names in brackets, such as `{name}`, are tidegate's own"),
            hint,
        );
        return None;
    }
    Some(name)
}

/// Whether this name is reserved, so that no rule or limit of a file may have it.
pub(crate) fn is_reserved(name: &str) -> bool {
    name.starts_with('(') && name.ends_with(')')
}

/// Whether [`name`] accepts it.
pub(crate) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= LONGEST_NAME && !text.chars().any(char::is_control)
}

/// A whole number, zero included.
pub(crate) fn count(node: &Node, what: &str, report: &mut Report<'_>) -> Option<u64> {
    let text = unquoted(node, what, "a whole number", report)?;
    quantity(parse_count(&text), node, what, report)
}

/// A duration such as `5m`.
pub(crate) fn duration(node: &Node, what: &str, report: &mut Report<'_>) -> Option<Micros> {
    let text = text(node, what, report)?;
    quantity(parse_duration(&text), node, what, report)
}

/// The field as a duration within inclusive bounds; `None` if absent.
pub(crate) fn span_within(
    fields: &Fields<'_>,
    name: &str,
    [shortest, longest]: [Micros; 2],
    report: &mut Report<'_>,
) -> Option<Micros> {
    let node = fields.get(name)?;
    let span = duration(node, name, report)?;
    if span < shortest || span > longest {
        let hint = format!("use {shortest} to {longest}");
        report.error(node.span, format!("{name}: {span} is too short or too long"), hint);
        return None;
    }
    Some(span)
}

/// A share such as `10%`.
pub(crate) fn share(node: &Node, what: &str, report: &mut Report<'_>) -> Option<Share> {
    let text = text(node, what, report)?;
    quantity(Share::parse(&text), node, what, report)
}

/// `true` or `false`.
pub(crate) fn flag(node: &Node, what: &str, report: &mut Report<'_>) -> Option<bool> {
    match &node.value {
        Value::Scalar(Scalar { text, quoted: false }) if text.eq_ignore_ascii_case("true") => Some(true),
        Value::Scalar(Scalar { text, quoted: false }) if text.eq_ignore_ascii_case("false") => Some(false),
        value => {
            let meant = match value {
                Value::Scalar(scalar) => flag_meant(&scalar.text),
                _ => None,
            };
            let quoted =
                if matches!(value, Value::Scalar(Scalar { quoted: true, .. })) { "quoted " } else { "" };
            let message = format!("{what} must be true or false, not {quoted}{}", node.describe());
            let hint = meant.map_or("write true or false".into(), |flag| format!("write {what}: {flag}"));
            report.error(node.span, message, hint);
            None
        }
    }
}

/// The flag that a word of YAML 1.1 or of another language means.
fn flag_meant(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "y" | "on" | "1" | "enabled" => Some(true),
        "false" | "no" | "n" | "off" | "0" | "disabled" => Some(false),
        _ => None,
    }
}

/// One of a few words.
pub(crate) fn choice<T: Copy>(
    node: &Node,
    what: &str,
    options: &[(&str, T)],
    report: &mut Report<'_>,
) -> Option<T> {
    let text = text(node, what, report)?;
    if let Some((_, value)) = options.iter().find(|(name, _)| *name == &*text) {
        return Some(*value);
    }
    let names: Vec<&str> = options.iter().map(|(name, _)| *name).collect();
    let hint = did_you_mean(&text, names.iter().copied())
        .unwrap_or_else(|| format!("it is one of {}", names.join(", ")));
    report.error(node.span, format!("unknown {what} {}", node.describe()), hint);
    None
}

/// The items of a list.
pub(crate) fn list<'n>(
    node: &'n Node,
    what: &str,
    hint: &str,
    report: &mut Report<'_>,
) -> Option<&'n [Node]> {
    let Value::List(items) = &node.value else {
        report.error(node.span, format!("{what} must be a list, not {}", node.describe()), hint);
        return None;
    };
    Some(items)
}

/// Unwraps a number or duration, or reports why it is invalid.
pub(crate) fn quantity<T>(
    result: Result<T, QuantityError>,
    node: &Node,
    what: &str,
    report: &mut Report<'_>,
) -> Option<T> {
    result
        .map_err(|error| {
            report.error(node.span, format!("{what}: {}", error.problem), error.hint);
        })
        .ok()
}

/// Names of our fields in other limiters.
const ELSEWHERE: [(&str, &str); 15] = [
    ("mode", "shadow"),
    ("shadow_mode", "shadow"),
    ("dry_run", "shadow"),
    ("timezone", "tz"),
    ("time_zone", "tz"),
    ("capacity", "burst"),
    ("max_burst", "burst"),
    ("period", "window"),
    ("per", "window"),
    ("interval", "window"),
    ("max", "limit"),
    ("requests_per_unit", "limit"),
    ("timeout", "ttl"),
    ("disabled", "enabled"),
    ("team", "owner"),
];

/// A hint for a field that has another name here, or for a number with a thousands comma.
fn called_otherwise(written: &str, known: &[&str]) -> Option<String> {
    if written.len() == 3 && written.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some("write numbers without a comma, such as 1000 or 1_000".into());
    }
    let ours = ELSEWHERE.iter().find(|(theirs, ours)| *theirs == written && known.contains(ours))?.1;
    Some(format!("did you mean `{ours}`?"))
}

/// `did you mean …?`, where one of `known` is close to `written`.
pub(crate) fn did_you_mean<'k>(written: &str, known: impl IntoIterator<Item = &'k str>) -> Option<String> {
    // The distance between long texts takes long to compute, and nobody misspells one.
    if written.len() > 64 {
        return None;
    }
    let written = written.to_lowercase();
    let distance = |name: &str| strsim::damerau_levenshtein(&written, &name.to_lowercase());
    let near = known.into_iter().map(|name| (distance(name), name)).min()?;
    let most = (written.chars().count() / 3).max(1);
    (near.0 <= most).then(|| format!("did you mean `{}`?", near.1))
}

fn unquoted(node: &Node, what: &str, expected: &str, report: &mut Report<'_>) -> Option<Rc<str>> {
    match &node.value {
        Value::Scalar(Scalar { text, quoted: false }) => Some(text.clone()),
        Value::Scalar(Scalar { quoted: true, text }) => {
            let message = format!("{what} must be {expected}, not quoted text");
            let hint = if text.contains(',') {
                format!("write {}", text.replace(',', ""))
            } else {
                "remove the quotes".into()
            };
            report.error(node.span, message, hint);
            None
        }
        _ => {
            let message = format!("{what} must be {expected}, not {}", node.describe());
            report.error(node.span, message, format!("write {expected}"));
            None
        }
    }
}
