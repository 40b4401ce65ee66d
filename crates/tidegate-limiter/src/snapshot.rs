//! The rules in use, together with those who watch them.

use std::sync::Arc;

use tidegate_rules::{Rule, RuleSet};

use crate::observer::{Observer, RuleWatcher};

/// A rule set in use. Decisions made under it keep it alive; the next one takes its place without a lock.
pub struct Snapshot {
    rules: RuleSet,
    watchers: Box<[Arc<dyn RuleWatcher>]>,
    version: u64,
}

impl Snapshot {
    pub(crate) fn new(rules: RuleSet, version: u64, observer: &dyn Observer) -> Self {
        let watchers = rules.rules().map(|rule| observer.watch_rule(rule)).collect();
        Snapshot { rules, watchers, version }
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Counts the rule sets that have been in use: one more with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn watcher(&self, rule: &Rule) -> &dyn RuleWatcher {
        &*self.watchers[rule.index()]
    }
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("version", &self.version)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}
