//! Converts envoyproxy/ratelimit's nested descriptors to rules.
//!
//! There at most one limit is found for a descriptor, the most exact one; here every matching rule counts. So each rule
//! excludes what its neighbours would have caught before it, and requires that the keys of other limits are absent.

use std::collections::{BTreeSet, HashMap};

use super::Notes;
use super::draft::{DraftCondition, DraftFile, DraftLimit, DraftRule, literal};
use crate::diagnostics::Span;
use crate::envoy::parse::{Amount, EnvoyDescriptor, EnvoyFile, EnvoyLimit};
use crate::fields::is_name;
use crate::glob::Pattern;
use crate::matching::envoy::Step;

/// The file's limits as rules; `None` if its domain is not valid here.
pub(super) fn convert(file: EnvoyFile, notes: &mut Notes<'_>) -> Option<DraftFile> {
    if !is_name(&file.domain) {
        notes.dropped(file.span, "the file is left out: its domain is too long, or holds control characters");
        return None;
    }
    let mut keys = BTreeSet::new();
    collect_keys(&file.descriptors, &mut keys);
    let mut converter = Converter { keys, notes, path: Vec::new(), found: Vec::new() };
    converter.level(&file.descriptors);
    let found = converter.found;
    if !found.is_empty() {
        let message = "the order of a descriptor's entries no longer matters, nor do entries whose key is not in this file";
        notes.changed(file.span, message);
    }
    Some(DraftFile { domain: file.domain.to_string(), once: Some(file.span), rules: replace(found, notes) })
}

fn collect_keys(level: &[EnvoyDescriptor], keys: &mut BTreeSet<String>) {
    for descriptor in level {
        if !descriptor.step.key.contains('*') {
            keys.insert(descriptor.step.key.to_string());
        }
        collect_keys(&descriptor.below, keys);
    }
}

struct Converter<'n, 's> {
    /// Every key of the domain that has no wildcard.
    keys: BTreeSet<String>,
    notes: &'n mut Notes<'s>,
    /// The path to the current level.
    path: Vec<Reached>,
    found: Vec<(DraftRule, Labels)>,
}

struct Reached {
    step: Step,
    condition: DraftCondition,
    shared: bool,
}

/// The name of a limit, and the names it replaces.
struct Labels {
    span: Span,
    label: Option<String>,
    replaces: Vec<String>,
}

impl Converter<'_, '_> {
    fn level(&mut self, level: &[EnvoyDescriptor]) {
        for (place, descriptor) in level.iter().enumerate() {
            let key = &*descriptor.step.key;
            let problem = if key.contains('*') {
                "a wildcard in a key cannot be said in rules"
            } else if !is_name(key) {
                "its key is too long, or holds control characters"
            } else if self.path.iter().any(|reached| *reached.step.key == *key) {
                "a rule looks at each attribute once, and this key occurs above"
            } else {
                self.path.push(Reached {
                    step: descriptor.step.clone(),
                    condition: condition(level, place),
                    shared: descriptor.shared,
                });
                self.descriptor(descriptor);
                self.path.pop();
                continue;
            };
            let name = descriptor.step.joined();
            self.notes
                .dropped(descriptor.span, format!("`{name}` and what is below it are left out: {problem}"));
        }
    }

    fn descriptor(&mut self, descriptor: &EnvoyDescriptor) {
        for field in &descriptor.unused {
            let name = descriptor.step.joined();
            self.notes.ignored(
                descriptor.span,
                format!("`{field}` of `{name}` is left out: it does not decide anything"),
            );
        }
        if let Some(limit) = &descriptor.limit {
            self.limit(descriptor, limit);
        }
        self.level(&descriptor.below);
    }

    fn limit(&mut self, descriptor: &EnvoyDescriptor, limit: &EnvoyLimit) {
        let name = self.path.iter().map(|reached| reached.step.joined()).collect::<Vec<_>>().join(".");
        if descriptor.quota && !descriptor.shadow {
            let message = format!(
                "`{name}` is a quota there, and an ordinary limit here: it refuses even if others have room"
            );
            self.notes.changed(descriptor.span, message);
        }
        if descriptor.shadow && !limit.replaces.is_empty() {
            let message =
                format!("`{name}` is in shadow mode: here it replaces only limits that are so as well");
            self.notes.changed(descriptor.span, message);
        }
        let mut conditions: Vec<(String, DraftCondition)> = self
            .path
            .iter()
            .map(|reached| (reached.step.key.to_string(), reached.condition.clone()))
            .collect();
        let absent = || DraftCondition { is: Vec::new(), not: vec!["*".into()] };
        let others =
            self.keys.iter().filter(|key| !self.path.iter().any(|reached| *reached.step.key == ***key));
        conditions.extend(others.map(|key| (key.clone(), absent())));
        let counted = self.path.iter().filter(|reached| !reached.shared);
        let rule = DraftRule {
            name,
            conditions,
            key: counted.map(|reached| reached.step.key.to_string()).collect(),
            limit: match limit.amount {
                Amount::Unlimited => DraftLimit::Unlimited,
                Amount::Requests { count, unit } => {
                    DraftLimit::FixedWindow { count: count.into(), window: unit }
                }
            },
            shadow: descriptor.shadow,
            debt: matches!(limit.amount, Amount::Requests { .. }),
            overrides: Vec::new(),
        };
        let labels = Labels {
            span: descriptor.span,
            label: limit.name.as_deref().map(str::to_owned),
            replaces: limit.replaces.iter().map(|name| name.to_string()).collect(),
        };
        self.found.push((rule, labels));
    }
}

/// The value condition under which a descriptor is chosen, and not one of its neighbours.
fn condition(level: &[EnvoyDescriptor], place: usize) -> DraftCondition {
    let Step { key, value } = &level[place].step;
    let is_wild = |value: &str| value.contains('*');
    // There a backslash is literal, and every star is a wildcard.
    let pattern = |value: &str| value.replace('\\', r"\\");
    let neighbours = level.iter().enumerate().filter(|(other, one)| *other != place && one.step.key == *key);
    let values = || neighbours.clone().filter_map(|(other, one)| Some((other, one.step.value.as_deref()?)));
    let exact = values().map(|(_, value)| value).filter(|value| !is_wild(value));
    let wild = values().filter(|(_, value)| is_wild(value));
    match value.as_deref() {
        None => DraftCondition {
            is: vec!["*".into()],
            not: exact.map(literal).chain(wild.map(|(_, value)| pattern(value))).collect(),
        },
        Some(own) if is_wild(own) => {
            let matcher = Pattern::parse_unescaped(own);
            let caught = exact.filter(|value| matcher.matches(value.as_bytes()));
            let earlier = wild.filter(|(other, _)| *other < place).map(|(_, value)| pattern(value));
            DraftCondition { is: vec![pattern(own)], not: caught.map(literal).chain(earlier).collect() }
        }
        Some(own) => DraftCondition { is: vec![literal(own)], not: Vec::new() },
    }
}

/// Turns `replaces` into `overrides`, as far as our format allows.
fn replace(found: Vec<(DraftRule, Labels)>, notes: &mut Notes<'_>) -> Vec<DraftRule> {
    let (rules, found): (Vec<DraftRule>, Vec<Labels>) = found.into_iter().unzip();
    // Overrides refer to the names that will be written.
    let mut file = DraftFile { domain: String::new(), once: None, rules };
    file.name_rules();
    let mut by_label: HashMap<&str, Vec<usize>> = HashMap::new();
    for (number, one) in found.iter().enumerate() {
        if let Some(label) = &one.label {
            by_label.entry(label).or_default().push(number);
        }
    }
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); found.len()];
    for (number, one) in found.iter().enumerate() {
        for target in one.replaces.iter().filter_map(|name| by_label.get(name.as_str())).flatten().copied() {
            if reaches(&edges, target, number) {
                let message = format!(
                    "`{}` and `{}` replace each other there, which would leave neither: only one direction is kept",
                    file.rules[number].name, file.rules[target].name
                );
                notes.changed(one.span, message);
            } else if !edges[number].contains(&target) {
                edges[number].push(target);
            }
        }
    }
    let names: Vec<String> = file.rules.iter().map(|rule| rule.name.clone()).collect();
    for (rule, targets) in file.rules.iter_mut().zip(&edges) {
        rule.overrides = targets.iter().map(|target| names[*target].clone()).collect();
    }
    file.rules
}

/// Whether the edges lead from one rule to another, or they are the same.
fn reaches(edges: &[Vec<usize>], from: usize, to: usize) -> bool {
    let mut seen = vec![false; edges.len()];
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        if at == to {
            return true;
        }
        if !std::mem::replace(&mut seen[at], true) {
            open.extend(&edges[at]);
        }
    }
    false
}
