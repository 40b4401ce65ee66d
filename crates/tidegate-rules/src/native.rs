//! Compiles our own rule format: one domain per file, a list of rules.

mod condition;
mod rule;
mod variants;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields, did_you_mean};
use crate::matching::Attributes;
use crate::matching::native::{NativeDomain, Selector};
use crate::ruleset::{Compiling, Domain};
use crate::yaml::Node;

#[cfg(test)]
pub(crate) use {
    condition::CONDITION_FIELDS,
    rule::{COORDINATION, ON_MISSING_KEY, ON_STORE_FAILURE, PRIORITY, RULE_FIELDS},
    variants::KEY_OVERRIDE_FIELDS,
};

pub(crate) const FILE_FIELDS: [&str; 2] = ["domain", "rules"];

/// Adds the file's domain to the set, or reports why not.
pub(crate) fn compile(document: &Node, compiling: &mut Compiling, report: &mut Report<'_>) {
    let before = report.errors();
    let Some(fields) = Fields::read(document, "a rule file", &FILE_FIELDS, report) else { return };
    let domain = fields
        .require("domain", "a rule file", "begin with `domain: api`, or another name", report)
        .and_then(|node| {
            let name = fields::name(node, "the domain", report)?;
            compiling.claim(&name, node.span, report);
            Some(name)
        });
    let hint = "add `rules:` and a list; `rules: []` if nothing is to be limited";
    let rules = fields
        .require("rules", "a rule file", hint, report)
        .and_then(|node| fields::list(node, "rules", "begin each rule with `- name:`", report));
    // A file whose domain is missing still has rules whose mistakes are worth showing.
    let name = domain.as_deref().unwrap_or("unnamed");
    let mut file = File {
        domain: name.into(),
        first_rule: compiling.rules.len(),
        attributes: Attributes::default(),
        selectors: Vec::new(),
        names: HashMap::new(),
        overrides: Vec::new(),
    };
    for node in rules.unwrap_or_default() {
        if report.is_full() {
            return;
        }
        file.rule(node, compiling, report);
    }
    file.resolve_overrides(compiling, report);
    if report.errors() == before {
        let native = NativeDomain::new(file.attributes, file.selectors, &compiling.rules);
        compiling.add_domain(name, Domain::Native(native));
    }
}

/// A file whose rules are being read.
struct File {
    domain: Arc<str>,
    /// The place of this file's first rule in the set.
    first_rule: usize,
    attributes: Attributes,
    selectors: Vec<Selector>,
    /// Rules by name: their number in this file, and where the name stands.
    names: HashMap<Rc<str>, (u32, Span)>,
    /// For each rule, the names it overrides.
    overrides: Vec<Vec<(Rc<str>, Span)>>,
}

impl File {
    /// Turns names of overridden rules into numbers; reports names that nobody has, and circles.
    fn resolve_overrides(&mut self, compiling: &mut Compiling, report: &mut Report<'_>) {
        let mut edges: Vec<Vec<(u32, Span)>> = Vec::new();
        for overridden in &self.overrides {
            let mut targets = Vec::new();
            for (name, span) in overridden {
                match self.names.get(name) {
                    Some((target, _)) => targets.push((*target, *span)),
                    None => {
                        let hint = did_you_mean(name, self.names.keys().map(|name| &**name))
                            .unwrap_or_else(|| "name a rule of this file".into());
                        report.error(*span, format!("there is no rule `{name}` to override"), hint);
                    }
                }
            }
            edges.push(targets);
        }
        self.report_circles(&edges, report);
        for (number, targets) in (0..).zip(&edges) {
            if let Some(rule) = compiling.rules.get_mut(self.first_rule + number) {
                rule.replacing.replaces = targets.iter().map(|(target, _)| *target).collect();
            }
        }
    }

    fn report_circles(&self, edges: &[Vec<(u32, Span)>], report: &mut Report<'_>) {
        let mut state = vec![Visit::Not; edges.len()];
        for start in 0..edges.len() {
            if report.is_full() {
                return;
            }
            // Where we are, and which of its targets comes next: a list, since a chain may be as long as the file.
            let mut path: Vec<(usize, usize)> = vec![];
            if state[start] == Visit::Not {
                state[start] = Visit::OnPath;
                path.push((start, 0));
            }
            while let Some((at, next)) = path.last_mut() {
                let Some((target, span)) = edges[*at].get(*next).copied() else {
                    state[*at] = Visit::Done;
                    path.pop();
                    continue;
                };
                *next += 1;
                let target = target as usize;
                match state[target] {
                    Visit::Not => {
                        state[target] = Visit::OnPath;
                        path.push((target, 0));
                    }
                    Visit::OnPath => self.report_circle(&path, target, span, report),
                    Visit::Done => {}
                }
            }
        }
    }

    fn report_circle(&self, path: &[(usize, usize)], back_to: usize, span: Span, report: &mut Report<'_>) {
        const MOST_NAMES: usize = 8;
        let circle = path.iter().map(|(at, _)| *at).skip_while(|at| *at != back_to);
        let circle: Vec<usize> = circle.chain([back_to]).collect();
        let name_of = |number: &usize| {
            let named = self.names.iter().find(|(_, (other, _))| *other as usize == *number);
            named.map_or_else(|| "?".to_owned(), |(name, _)| format!("`{name}`"))
        };
        let first: Vec<String> = circle.iter().take(MOST_NAMES).map(name_of).collect();
        let rest = if circle.len() > MOST_NAMES { " overrides …" } else { "" };
        let message = format!("rules override each other in a circle: {}{rest}", first.join(" overrides "));
        report.error(span, message, "none of them would count: remove one of these overrides");
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    Not,
    OnPath,
    Done,
}
