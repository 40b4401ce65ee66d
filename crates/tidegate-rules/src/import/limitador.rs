//! Converts Limitador's flat list of limits to rules, one document per namespace: from its file, or from its custom resource.

use std::rc::Rc;

use tidegate_core::{FixedWindow, Micros};

mod kuadrant;

use super::Notes;
use super::cel::{self, Reference};
use super::draft::{DraftCondition, DraftFile, DraftLimit, DraftRule};
use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields, is_name};
use crate::yaml::{Node, Scalar, Value};

const LIMIT_FIELDS: [&str; 7] =
    ["id", "namespace", "max_value", "seconds", "name", "conditions", "variables"];

/// Parses the list; limits that cannot be expressed are noted and left out.
pub(super) fn convert(
    document: &Node,
    notes: &mut Notes<'_>,
    report: &mut Report<'_>,
) -> Option<Vec<DraftFile>> {
    if let Some(policy) = kuadrant::policy_of(document) {
        return kuadrant::convert(&policy, document.span, notes);
    }
    let hint = "a Limitador file is a list of limits: `- namespace: …`";
    let items = fields::list(limits_of_resource(document).unwrap_or(document), "the file", hint, report)?;
    let mut files: Vec<DraftFile> = Vec::new();
    for (number, item) in (1..).zip(items) {
        match limit(item, number, notes) {
            Ok((namespace, rule)) => add(&mut files, namespace, rule, item.span, notes),
            Err(why) => notes.dropped(item.span, format!("limit {number} is left out: {why}")),
        }
    }
    if !files.is_empty() {
        let message = "a window there begins with a caller's first hit, here at a multiple of its length; \
                       there a limit counts once per request, here once for each descriptor that matches";
        notes.changed(document.span, message);
    }
    Some(files)
}

/// The limits in a custom resource of its operator.
fn limits_of_resource(document: &Node) -> Option<&Node> {
    let Value::Map(entries) = &document.value else { return None };
    let fields = Fields { span: document.span, entries };
    let is_resource = text(&fields, "kind").is_some_and(|kind| &*kind == "Limitador");
    let Value::Map(spec) = &fields.get("spec").filter(|_| is_resource)?.value else { return None };
    Fields { span: document.span, entries: spec }.get("limits")
}

fn add(files: &mut Vec<DraftFile>, namespace: String, rule: DraftRule, span: Span, notes: &mut Notes<'_>) {
    let known = files.iter().position(|file| file.domain == namespace);
    let place = known.unwrap_or_else(|| {
        files.push(DraftFile { domain: namespace, once: None, rules: Vec::new() });
        files.len() - 1
    });
    let rules = &mut files[place].rules;
    let window = |rule: &DraftRule| match rule.limit {
        DraftLimit::FixedWindow { window, .. } => Some(window),
        DraftLimit::Unlimited => None,
    };
    let is_same = |other: &&DraftRule| {
        other.conditions == rule.conditions && other.key == rule.key && window(other) == window(&rule)
    };
    if let Some(first) = rules.iter().find(is_same) {
        let message = format!(
            "`{}` is left out: it is the same limit as `{}`, and there the first one counts",
            rule.name, first.name
        );
        notes.ignored(span, message);
        return;
    }
    rules.push(rule);
}

/// The limit's namespace, and the limit as a rule.
fn limit(node: &Node, number: usize, notes: &mut Notes<'_>) -> Result<(String, DraftRule), String> {
    let Value::Map(entries) = &node.value else { return Err(format!("it is {}", node.describe())) };
    let fields = Fields { span: node.span, entries };
    for (key, _) in entries.iter().filter(|(key, _)| !LIMIT_FIELDS.contains(&&*key.text)) {
        notes.ignored(
            key.span,
            format!("`{}` of limit {number} means nothing there, and is left out", key.text),
        );
    }
    let namespace = text(&fields, "namespace").filter(|name| is_name(name));
    let namespace = namespace.ok_or("it has no namespace, or one that cannot be a domain")?;
    let seconds = count(&fields, "seconds")?.ok_or("it has no seconds")?;
    let max_value = count(&fields, "max_value")?.unwrap_or(0);
    let window = Micros::from_secs(seconds);
    FixedWindow::new(max_value, window).map_err(|error| error.problem)?;
    let mut descriptor = None;
    let conditions = conditions(&fields, &mut descriptor)?;
    let key = variables(&fields, &mut descriptor)?;
    if let Some(index) = descriptor.filter(|index| *index > 0) {
        let message =
            format!("limit {number} is for descriptor {index} there, here for every descriptor that matches");
        notes.changed(node.span, message);
    }
    let given =
        ["name", "id"].into_iter().find_map(|field| text(&fields, field).filter(|name| !name.is_empty()));
    let rule = DraftRule {
        name: given.map_or_else(|| format!("limit-{number}"), |name| name.to_string()),
        conditions,
        key,
        limit: DraftLimit::FixedWindow { count: max_value, window },
        shadow: false,
        debt: false,
        overrides: Vec::new(),
    };
    Ok((namespace.to_string(), rule))
}

fn conditions(
    fields: &Fields<'_>,
    descriptor: &mut Option<u32>,
) -> Result<Vec<(String, DraftCondition)>, String> {
    conditions_of(&texts(fields, "conditions")?, descriptor)
}

fn conditions_of(
    texts: &[Rc<str>],
    descriptor: &mut Option<u32>,
) -> Result<Vec<(String, DraftCondition)>, String> {
    let mut conditions: Vec<(String, DraftCondition)> = Vec::new();
    for condition in texts {
        let understood = cel::condition(condition).map_err(|why| format!("in `{condition}`, {why}"))?;
        for statement in understood {
            same_descriptor(&statement.about, descriptor)?;
            let attribute = statement.about.attribute;
            let known = conditions.iter().position(|(other, _)| *other == attribute);
            let place = known.unwrap_or_else(|| {
                conditions.push((attribute.clone(), DraftCondition::default()));
                conditions.len() - 1
            });
            let known = &mut conditions[place].1;
            let DraftCondition { is, not } = statement.condition;
            if !is.is_empty() && !known.is.is_empty() && known.is != is {
                return Err(format!("it asks `{attribute}` to be two things at once"));
            }
            if !is.is_empty() {
                known.is = is;
            }
            known.not.extend(not);
        }
    }
    for (_, condition) in &mut conditions {
        // There a condition on an absent attribute never holds, unless it asks whether it is absent.
        if condition.is.is_empty() && !condition.not.iter().any(|pattern| pattern == "*") {
            condition.is = vec!["*".into()];
        }
    }
    Ok(conditions)
}

fn variables(fields: &Fields<'_>, descriptor: &mut Option<u32>) -> Result<Vec<String>, String> {
    key_of(&texts(fields, "variables")?, descriptor)
}

fn key_of(texts: &[Rc<str>], descriptor: &mut Option<u32>) -> Result<Vec<String>, String> {
    let mut key = Vec::new();
    for variable in texts {
        let reference = cel::variable(variable).map_err(|why| format!("in `{variable}`, {why}"))?;
        same_descriptor(&reference, descriptor)?;
        let attribute = reference.attribute;
        if !key.contains(&attribute) {
            key.push(attribute);
        }
    }
    // There variables are a set.
    key.sort();
    Ok(key)
}

/// A rule sees one descriptor at a time.
fn same_descriptor(reference: &Reference, descriptor: &mut Option<u32>) -> Result<(), String> {
    let index = reference.descriptor.unwrap_or(0);
    if descriptor.get_or_insert(index) != &index {
        return Err("it looks at several descriptors at once".into());
    }
    if !is_name(&reference.attribute) {
        return Err("an attribute's name is empty, too long, or holds control characters".into());
    }
    Ok(())
}

fn text(fields: &Fields<'_>, name: &str) -> Option<Rc<str>> {
    match &fields.get(name)?.value {
        Value::Scalar(Scalar { text, .. }) => Some(text.clone()),
        _ => None,
    }
}

fn count(fields: &Fields<'_>, name: &str) -> Result<Option<u64>, String> {
    let Some(text) = text(fields, name) else { return Ok(None) };
    crate::quantity::parse_count(&text).map(Some).map_err(|error| format!("{name}: {}", error.problem))
}

fn texts(fields: &Fields<'_>, name: &str) -> Result<Vec<Rc<str>>, String> {
    match fields.get(name).map(|node| &node.value) {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::List(items)) => items
            .iter()
            .map(|item| match &item.value {
                Value::Scalar(Scalar { text, .. }) => Ok(text.clone()),
                _ => Err(format!("`{name}` holds {}", item.describe())),
            })
            .collect(),
        Some(_) => Err(format!("`{name}` is not a list")),
    }
}
