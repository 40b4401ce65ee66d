//! The rules in use, with their watchers.

use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;

use tidegate_rules::{Rule, RuleSet};

use crate::rule_watcher::RuleWatcher;

/// A rule set in use. Decisions made under it keep it alive; the next one replaces it without a lock.
pub struct Snapshot {
    rules: RuleSet,
    watchers: Watchers,
    version: u64,
    retired: Arc<Retired>,
}

/// The watcher of each rule, in the order of the rules.
pub(crate) type Watchers = Box<[Arc<dyn RuleWatcher>]>;

/// Drops retired rules on a dedicated thread.
///
/// The last reference to a snapshot is often a worker's, at the end of a request that began under the old rules. Dropping ten
/// thousand rules takes milliseconds, which would block that worker.
#[derive(Default)]
pub(crate) struct Retired(OnceLock<Option<Sender<(RuleSet, Watchers)>>>);

impl Retired {
    /// Starts the thread, which ends with the last snapshot. If the system cannot start one, the last holder drops the rules.
    pub(crate) fn begin(&self) {
        self.0.get_or_init(|| {
            let (sender, receiver) = mpsc::channel();
            let drop_all = move || receiver.into_iter().for_each(drop);
            thread::Builder::new().name("old-rules".into()).spawn(drop_all).ok().map(|_| sender)
        });
    }
}

impl Snapshot {
    /// The first rules in use.
    pub(crate) fn first(rules: RuleSet, watchers: Watchers) -> Self {
        Snapshot { rules, watchers, version: 1, retired: Arc::default() }
    }

    /// The snapshot that replaces this one.
    pub(crate) fn next(&self, rules: RuleSet, watchers: Watchers) -> Self {
        // Old rules need dropping only after the first change.
        self.retired.begin();
        Snapshot { rules, watchers, version: self.version + 1, retired: self.retired.clone() }
    }

    /// The rules.
    #[must_use]
    pub fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// The number of rule sets used so far: increases by one with each change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn watcher(&self, rule: &Rule) -> &dyn RuleWatcher {
        &*self.watchers[rule.index()]
    }
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        if let Some(Some(retired)) = self.retired.0.get() {
            // If the thread is gone, what could not be sent is dropped here.
            let _ = retired.send((std::mem::take(&mut self.rules), std::mem::take(&mut self.watchers)));
        }
    }
}

/// Omits the rules: every decision holds a snapshot, and printing one should show the decision.
impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot")
            .field("version", &self.version)
            .field("rules", &self.rules.rules().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use tidegate_rules::Format;

    use super::*;
    use crate::rule_watcher::RuleResult;
    use crate::source::Source;

    /// Reports the thread on which it was dropped.
    struct Watches(Sender<thread::ThreadId>);

    impl RuleWatcher for Watches {
        fn decided(&self, _result: RuleResult, _source: Source) {}
    }

    impl Drop for Watches {
        fn drop(&mut self) {
            let _ = self.0.send(thread::current().id());
        }
    }

    #[test]
    fn rules_that_were_replaced_are_dropped_on_a_thread_that_serves_nobody() {
        let text = "{ domain: api, rules: [{ name: a, limits: [1/s] }] }";
        let rules = || RuleSet::compile(&[tidegate_rules::Source::new("a", text)], Format::Native).unwrap();
        let (sender, dropped_on) = mpsc::channel();
        let first = Snapshot::first(rules(), Box::new([Arc::new(Watches(sender))]));
        let second = first.next(rules(), Box::default());
        drop(first);
        assert_ne!(dropped_on.recv().unwrap(), thread::current().id());
        assert_eq!(second.version(), 2);
    }
}
