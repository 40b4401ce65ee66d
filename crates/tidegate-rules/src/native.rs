//! Compiles our own rule format: domains, each over one or more documents, each a list of rules.

mod autopilot;
mod condition;
mod options;
mod regex;
mod rule;
mod scopes;
mod variants;
mod warnings;

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use crate::diagnostics::{Report, Span};
use crate::fields::{self, Fields, did_you_mean};
use crate::matching::Attributes;
use crate::matching::native::{NativeDomain, Selector};
use crate::ruleset::{Compiling, Domain};
use crate::yaml::{Node, Value};
use options::Options;

pub(crate) use options::{DEFAULT_FIELDS, ON_MISSING_KEY, ON_STORE_FAILURE, PRIORITY};
pub(crate) use scopes::keeps_scope;

#[cfg(test)]
pub(crate) use {
    crate::flags::WHEN_FIELDS,
    autopilot::AUTOPILOT_FIELDS,
    condition::CONDITION_FIELDS,
    options::{CONSISTENCY, COORDINATION, SCOPE},
    rule::RULE_FIELDS,
    variants::{EXPERIMENT_FIELDS, KEY_OVERRIDE_FIELDS},
};

/// The most rules in one document. Ten times as many as the largest set that is measured.
const MOST_RULES: usize = 100_000;

pub(crate) const FILE_FIELDS: [&str; 3] = ["domain", "defaults", "rules"];

/// Domains whose documents are being read.
pub(crate) type Domains = BTreeMap<Rc<str>, DomainReader>;

/// Reads one document into the domain that it names.
pub(crate) fn read(document: &Node, compiling: &mut Compiling, report: &mut Report<'_>) {
    if let Some((message, hint)) = belongs_elsewhere(document) {
        report.error(Span { end: document.span.start, ..document.span }, message, hint);
        return;
    }
    let Some(fields) = Fields::read(document, "a rule file", &FILE_FIELDS, report) else { return };
    let domain = fields
        .require("domain", "a rule file", "begin with `domain: api`, or another name", report)
        .and_then(|node| {
            let name = fields::name(node, "the domain", report)?;
            compiling.claim_for_native(&name, node.span, report);
            Some(name)
        });
    let defaults = fields
        .get("defaults")
        .and_then(|node| Fields::read(node, "defaults", &DEFAULT_FIELDS, report))
        .map(|fields| Options::read(&fields, &Options::default(), report))
        .unwrap_or_default();
    let hint = "add `rules:` and a list; `rules: []` if nothing is to be limited";
    let rules = fields
        .require("rules", "a rule file", hint, report)
        .and_then(|node| fields::list(node, "rules", "begin each rule with `- name:`", report));
    let rules = rules.filter(|rules| {
        if rules.len() > MOST_RULES {
            let message = format!("the document has {} rules, more than {MOST_RULES}", rules.len());
            let hint = "use one rule with a key, `tiers` or `key_overrides` for rules that differ in a value";
            report.error(fields.key_span("rules"), message, hint);
        }
        rules.len() <= MOST_RULES
    });
    // A file whose domain is missing still has rules whose mistakes are worth showing.
    let name = domain.unwrap_or_else(|| "unnamed".into());
    let mut reader = compiling.native.remove(&name).unwrap_or_else(|| DomainReader::new(Arc::from(&*name)));
    for node in rules.unwrap_or_default() {
        if report.is_full() {
            break;
        }
        reader.rule(node, &defaults, compiling, report);
    }
    compiling.native.insert(name, reader);
}

/// Adds every parsed domain to the set, unless something is wrong.
pub(crate) fn finish(compiling: &mut Compiling, report: &mut Report<'_>) {
    for (name, mut reader) in std::mem::take(&mut compiling.native) {
        reader.resolve_overrides(compiling, report);
        if report.errors() == 0 {
            reader.warn_of_overridden(compiling, report);
            let native = NativeDomain::new(reader.attributes, reader.selectors, &compiling.rules);
            compiling.add_domain(&name, Domain::Native(native));
        }
    }
}

/// Fields of a server's configuration that a rule file does not have.
const CONFIG_FIELDS: [&str; 18] = [
    "listen",
    "store",
    "headers",
    "rls",
    "identity",
    "proxy",
    "shedding",
    "telemetry",
    "admin",
    "drain",
    "decision_log",
    "alerts",
    "log",
    "workers",
    "data",
    "resp",
    "access",
    "flags",
];

/// What a document is if not a rule file, and where it belongs.
fn belongs_elsewhere(document: &Node) -> Option<(&'static str, &'static str)> {
    let entries = match &document.value {
        Value::Map(entries) => entries,
        Value::List(items) if items.first().is_some_and(is_limitadors) => {
            let hint = "turn it into rules: `tidegate import limitador FILE > rules.yaml`";
            return Some(("this is a limits file of Limitador, not a rule file", hint));
        }
        _ => return None,
    };
    let has = |name: &str| entries.iter().any(|(key, _)| &*key.text == name);
    if has("descriptors") && !has("rules") {
        let hint =
            "give its directory to `--envoy-config`, or turn it into rules: `tidegate import envoy FILE`";
        return Some(("this is a file of envoyproxy/ratelimit, not a rule file", hint));
    }
    // A rule has limits too, but as a list or a text.
    let has_bounds =
        entries.iter().any(|(key, found)| &*key.text == "limits" && matches!(found.value, Value::Map(_)));
    if !has("domain") && (has_bounds || CONFIG_FIELDS.iter().any(|field| has(field))) {
        return Some(("this is a server's configuration, not a rule file", "give it to `--config`"));
    }
    None
}

/// Whether this is a limit as Limitador has them.
fn is_limitadors(item: &Node) -> bool {
    let Value::Map(entries) = &item.value else { return false };
    let has = |name: &str| entries.iter().any(|(key, _)| &*key.text == name);
    has("namespace") && (has("max_value") || has("seconds"))
}

/// A domain whose rules are being read.
pub(crate) struct DomainReader {
    domain: Arc<str>,
    attributes: Attributes,
    selectors: Vec<Selector>,
    /// Rules by name: their number in this domain, and the place of the name.
    names: HashMap<Rc<str>, (u32, Span)>,
    /// In order, including those with a mistake.
    overrides: Vec<Overriding>,
}

/// The rules that a rule overrides, and its place.
struct Overriding {
    /// The names it overrides.
    names: Vec<(Rc<str>, Span)>,
    /// Its index in the set, unless it has a mistake.
    place: Option<usize>,
}

impl DomainReader {
    fn new(domain: Arc<str>) -> Self {
        DomainReader {
            domain,
            attributes: Attributes::default(),
            selectors: Vec::new(),
            names: HashMap::new(),
            overrides: Vec::new(),
        }
    }

    /// Resolves the names of overridden rules to numbers; reports unknown names, and cycles.
    fn resolve_overrides(&mut self, compiling: &mut Compiling, report: &mut Report<'_>) {
        let mut edges: Vec<Vec<(u32, Span)>> = Vec::new();
        for (own, Overriding { names: overridden, .. }) in (0..).zip(&self.overrides) {
            let mut targets = Vec::new();
            for (name, span) in overridden {
                // For each unknown name, all others are compared with it.
                if report.is_full() {
                    return;
                }
                match self.names.get(name) {
                    Some((target, _)) => targets.push((*target, *span)),
                    None => {
                        // Not the rule itself: it cannot override itself.
                        let others = self.names.iter().filter(|(_, (number, _))| *number != own);
                        let hint = did_you_mean(name, others.map(|(name, _)| &**name))
                            .unwrap_or_else(|| "name another rule of this domain".into());
                        report.error(*span, format!("there is no rule `{name}` to override"), hint);
                    }
                }
            }
            edges.push(targets);
        }
        self.report_circles(&edges, report);
        for (Overriding { place, .. }, targets) in self.overrides.iter().zip(&edges) {
            if let Some(rule) = place.and_then(|place| compiling.rules.get_mut(place)) {
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
            // The current rule, and the next of its targets: an explicit stack, since a chain may be as long as the file.
            let mut path: Vec<(usize, usize)> = vec![];
            if state[start] == Visit::Not {
                state[start] = Visit::OnPath;
                path.push((start, 0));
            }
            while let Some((at, next)) = path.last_mut() {
                // A rule may be the end of as many circles as it has overrides.
                if report.is_full() {
                    return;
                }
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
        if let [only, _] = circle[..] {
            report.error(span, format!("the rule {} overrides itself", name_of(&only)), "remove it");
            return;
        }
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
