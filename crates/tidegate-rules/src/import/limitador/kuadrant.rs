//! Converts Kuadrant's `RateLimitPolicy`, from which its operator writes Limitador's limits.

use std::rc::Rc;

use super::{conditions_of, key_of, text};
use crate::diagnostics::Span;
use crate::fields::{Fields, is_name};
use crate::import::Notes;
use crate::import::draft::{DraftFile, DraftLimit, DraftRule};
use crate::quantity::{parse_count, parse_duration};
use crate::yaml::{Key, Node, Scalar, Value};
use tidegate_core::FixedWindow;

/// A policy: its name, and its limits by name.
pub(super) struct RoutePolicy<'n> {
    name: Rc<str>,
    limits: &'n [(Key, Node)],
}

/// The policy in a document, if it is one.
pub(super) fn policy_of(document: &Node) -> Option<RoutePolicy<'_>> {
    let fields = map(document)?;
    let kind = text(&fields, "kind").filter(|kind| &**kind == "RateLimitPolicy");
    kind?;
    let name = fields.get("metadata").and_then(map).and_then(|metadata| text(&metadata, "name"))?;
    let spec = map(fields.get("spec")?)?;
    // `defaults` and `overrides` say how policies of a gateway and of a route combine.
    let limits = spec.get("limits").or_else(|| {
        ["defaults", "overrides"].into_iter().find_map(|field| map(spec.get(field)?)?.get("limits"))
    });
    Some(RoutePolicy { name, limits: map(limits?)?.entries })
}

pub(super) fn convert(policy: &RoutePolicy<'_>, span: Span, notes: &mut Notes<'_>) -> Option<Vec<DraftFile>> {
    let mut rules = Vec::new();
    for (name, limit) in policy.limits {
        match rules_of(&name.text, limit) {
            Ok(of_limit) => rules.extend(of_limit),
            Err(why) => notes.dropped(name.span, format!("`{}` is left out: {why}", name.text)),
        }
    }
    let message = "its target (gateway or route) is not read: the domain is the policy's name, and attributes are named as in its \
                   expressions; windows begin at multiples of their length";
    notes.changed(span, message);
    Some(vec![DraftFile { domain: policy.name.to_string(), once: None, rules }])
}

/// One rule for each rate of a limit.
fn rules_of(name: &str, limit: &Node) -> Result<Vec<DraftRule>, String> {
    let fields = map(limit).ok_or("it is no mapping")?;
    let mut descriptor = None;
    let conditions = conditions_of(&expressions(&fields, "when", "predicate")?, &mut descriptor)?;
    let key = key_of(&expressions(&fields, "counters", "expression")?, &mut descriptor)?;
    let rates = items(&fields, "rates").filter(|rates| !rates.is_empty()).ok_or("it has no rates")?;
    let rule = |(number, rate): (usize, &Node)| {
        let rate = map(rate).ok_or("a rate is no mapping")?;
        let value = |field: &str| text(&rate, field).ok_or_else(|| format!("a rate has no {field}"));
        let count = parse_count(&value("limit")?).map_err(|error| error.problem)?;
        let window = parse_duration(&value("window")?).map_err(|error| error.problem)?;
        FixedWindow::new(count, window).map_err(|error| error.problem)?;
        let name = if number == 0 { name.to_owned() } else { format!("{name}-{window}") };
        if !is_name(&name) {
            return Err("its name cannot be a rule's".to_owned());
        }
        Ok(DraftRule {
            name,
            conditions: conditions.clone(),
            key: key.clone(),
            limit: DraftLimit::FixedWindow { count, window },
            shadow: false,
            debt: false,
            overrides: Vec::new(),
        })
    };
    rates.iter().enumerate().map(rule).collect()
}

/// The expressions in a list such as `when: [{ predicate: … }]`.
fn expressions(fields: &Fields<'_>, list: &str, field: &str) -> Result<Vec<Rc<str>>, String> {
    let Some(items) = items(fields, list) else {
        return match fields.get(list) {
            None => Ok(Vec::new()),
            Some(_) => Err(format!("`{list}` is no list")),
        };
    };
    let one = |item: &Node| match &item.value {
        Value::Scalar(Scalar { text, .. }) => Ok(text.clone()),
        _ => {
            map(item).and_then(|item| text(&item, field)).ok_or_else(|| format!("`{list}` has no `{field}`"))
        }
    };
    items.iter().map(one).collect()
}

fn items<'n>(fields: &Fields<'n>, name: &str) -> Option<&'n [Node]> {
    match &fields.get(name)?.value {
        Value::List(items) => Some(items),
        _ => None,
    }
}

fn map(node: &Node) -> Option<Fields<'_>> {
    match &node.value {
        Value::Map(entries) => Some(Fields { span: node.span, entries }),
        _ => None,
    }
}
