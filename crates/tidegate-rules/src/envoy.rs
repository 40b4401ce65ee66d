//! Compiles envoyproxy/ratelimit's format: a domain, and nested descriptors.
//!
//! What that service rejects is rejected, what it accepts is accepted. What it accepts but cannot be intended (a misplaced
//! field, a limit without a number) is accepted with a warning. Its settings for metrics are parsed and have no effect:
//! callers' values never become labels here.

pub(crate) mod listing;
pub(crate) mod parse;

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use tidegate_core::{FixedWindow, Limit, Over};

use crate::choice::{LimitChoice, LimitSet};
use crate::diagnostics::{Report, Span};
use crate::limits::rule_limit;
use crate::matching::envoy::{BranchBuilder, Counters, EnvoyDomain, LevelBuilder, Step};
use crate::rule::{Mode, Replacing, Rule};
use crate::ruleset::{Compiling, Domain};
use crate::runtime::BAN;
use crate::yaml::Node;

use parse::{Amount, EnvoyDescriptor, EnvoyLimit};

/// Adds the domain of the file's first document to the set, or reports why not. That service ignores further documents.
pub(crate) fn compile_first(documents: &[Node], compiling: &mut Compiling, report: &mut Report<'_>) {
    for ignored in documents.iter().skip(1) {
        report.warning(
            ignored.span,
            "only the first document of a file is read",
            "move this one to its own file",
        );
    }
    documents.iter().take(1).for_each(|document| compile(document, compiling, report));
}

fn compile(document: &Node, compiling: &mut Compiling, report: &mut Report<'_>) {
    let before = report.errors();
    let Some(file) = parse::parse(document, report) else { return };
    compiling.claim(&file.domain, file.span, report);
    let mut compiler = Compiler {
        domain: (&*file.domain).into(),
        rules: &mut compiling.rules,
        report,
        labels: HashMap::new(),
        // Reserved, so that a descriptor with this key is numbered like a second one.
        rule_names: HashMap::from([(BAN.to_owned(), 1)]),
        paths: Vec::new(),
    };
    let level = compiler.level(file.descriptors, &mut Vec::new());
    let paths = compiler.paths;
    if report.errors() == before {
        compiling.add_domain(&file.domain, Domain::Envoy(EnvoyDomain::new(level, paths)));
    }
}

struct Compiler<'c, 's> {
    domain: Arc<str>,
    rules: &'c mut Vec<Rule>,
    report: &'c mut Report<'s>,
    /// Names of limits, as numbers.
    labels: HashMap<Rc<str>, u32>,
    /// How often each path's text occurred: `a.b` may be one key, or two levels.
    rule_names: HashMap<String, u32>,
    /// For each limit, the descriptor's path to it.
    paths: Vec<(usize, Box<[Step]>)>,
}

impl Compiler<'_, '_> {
    fn level(&mut self, descriptors: Vec<EnvoyDescriptor>, path: &mut Vec<Step>) -> LevelBuilder {
        let mut level = LevelBuilder::new();
        for mut descriptor in descriptors {
            path.push(descriptor.step.clone());
            for field in &descriptor.unused {
                let message =
                    format!("`{field}` of `{}` does not decide anything here", descriptor.step.joined());
                let hint = "leave it: every rule has metrics of its own, by its name";
                self.report.warning(descriptor.span, message, hint);
            }
            let limit = descriptor.limit.take();
            let rule = limit.and_then(|limit| self.rule(&descriptor, limit, path));
            let counters = if descriptor.shared { Counters::Shared } else { Counters::OnePerValue };
            let below = self.level(descriptor.below, path);
            path.pop();
            level.push(BranchBuilder { step: descriptor.step, rule, counters, below });
        }
        level
    }

    fn rule(&mut self, descriptor: &EnvoyDescriptor, limit: EnvoyLimit, path: &[Step]) -> Option<usize> {
        let limits = self.limit_set(limit.amount, descriptor.span)?;
        let index = self.rules.len();
        self.paths.push((index, path.into()));
        let replaces = limit.replaces.into_iter().map(|name| self.label(name)).collect();
        let called = limit.name.clone().map(|name| self.label(name));
        let rule = Rule {
            mode: match (descriptor.shadow, descriptor.quota) {
                (true, _) => Mode::Shadow,
                (false, true) => Mode::Quota,
                (false, false) => Mode::Enforce,
            },
            label: limit.name.as_deref().map(str::to_owned),
            replacing: Replacing { called, replaces },
            // That service adds a cost to the counter whatever is left.
            over: Over::Debt,
            ..Rule::plain(index, self.rule_name(path), Arc::clone(&self.domain), LimitChoice::same(limits))
        };
        self.rules.push(rule);
        Some(index)
    }

    fn limit_set(&mut self, amount: Amount, span: Span) -> Option<LimitSet> {
        let Amount::Requests { count, unit } = amount else { return Some(LimitSet::Unlimited) };
        let limit = FixedWindow::new(count.into(), unit).map_err(|error| {
            self.report.error(span, error.problem, error.hint);
        });
        // There a counter's key is only domain and descriptor, so that it survives a move of its limit in the file.
        let no_rule = "";
        Some(LimitSet::Enforce([rule_limit(&self.domain, no_rule, Limit::FixedWindow(limit.ok()?))].into()))
    }

    fn label(&mut self, name: Rc<str>) -> u32 {
        let next = u32::try_from(self.labels.len()).expect("fewer names than bytes in a file");
        *self.labels.entry(name).or_insert(next)
    }

    /// The path as in that service's metrics; numbered if two limits would get the same.
    fn rule_name(&mut self, path: &[Step]) -> String {
        let steps: Vec<String> = path.iter().map(Step::joined).collect();
        let name = steps.join(".");
        let times = self.rule_names.entry(name.clone()).or_default();
        *times += 1;
        if *times == 1 { name } else { format!("{name}#{times}") }
    }
}
