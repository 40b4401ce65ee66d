//! Forwards through an `Arc`, so that an observer's owner can keep a handle.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_rules::{Priority, Rule, RuleSet};
use tidegate_store::StoreError;

use crate::observer::{BreakerState, Decided, LateCall, Observer, Overload, Settled, StoreCall};
use crate::rule_watcher::{RequestResult, RuleResult, RuleWatcher};
use crate::source::Source;
use crate::trace::{Traced, Transport};

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn wants_decisions(&self) -> bool {
        (**self).wants_decisions()
    }
    fn rules_in_use(&self, rules: &RuleSet) {
        (**self).rules_in_use(rules);
    }
    fn watch_rule(&self, rule: &Rule) -> Arc<dyn RuleWatcher> {
        (**self).watch_rule(rule)
    }
    fn unknown_domain(&self) {
        (**self).unknown_domain();
    }
    fn request(&self, domain: &str, result: RequestResult, source: Source) {
        (**self).request(domain, result, source);
    }
    fn no_rule_matched(&self) {
        (**self).no_rule_matched();
    }
    fn looked(&self) {
        (**self).looked();
    }
    fn decided(&self, decided: &Decided<'_>) {
        (**self).decided(decided);
    }
    fn settled(&self, settled: &Settled<'_>) {
        (**self).settled(settled);
    }
    fn decided_directly(&self, result: RuleResult, source: Source) {
        (**self).decided_directly(result, source);
    }
    fn store_failed(&self, error: &StoreError) {
        (**self).store_failed(error);
    }
    fn store_called(&self, call: StoreCall, took: Micros) {
        (**self).store_called(call, took);
    }
    fn batch_sent(&self, requests: usize) {
        (**self).batch_sent(requests);
    }
    fn overloaded(&self, why: Overload, requests: usize) {
        (**self).overloaded(why, requests);
    }
    fn late_call(&self, end: LateCall) {
        (**self).late_call(end);
    }
    fn deny_cache_hit(&self) {
        (**self).deny_cache_hit();
    }
    fn shed(&self, priority: Priority) {
        (**self).shed(priority);
    }
    fn breaker_changed(&self, endpoint: &str, state: BreakerState) {
        (**self).breaker_changed(endpoint, state);
    }
    fn fell_back(&self, source: Source) {
        (**self).fell_back(source);
    }
    fn fleet_counted(&self, limiters: u64) {
        (**self).fleet_counted(limiters);
    }
    fn heartbeat_lost(&self, why: &str) {
        (**self).heartbeat_lost(why);
    }
    fn debts_paid(&self, cells: usize, hits: u64, error: Option<&StoreError>) {
        (**self).debts_paid(cells, hits, error);
    }
    fn answered(&self, transport: Transport, took: Duration) {
        (**self).answered(transport, took);
    }
    fn answered_together(&self, transport: Transport, took: Duration, requests: u64) {
        (**self).answered_together(transport, took, requests);
    }
    fn traced(&self, request: &Traced<'_>) {
        (**self).traced(request);
    }
}

#[cfg(test)]
mod tests {
    /// The names of the methods between `start` and the next line that ends a block.
    fn methods<'a>(text: &'a str, start: &str) -> Vec<&'a str> {
        let block = text.split(start).nth(1).expect("it begins").split("\n}").next().expect("it ends");
        block.lines().filter_map(|line| line.strip_prefix("    fn ")?.split('(').next()).collect()
    }

    /// A method with a default body that is not forwarded would compile and be lost.
    #[test]
    fn every_method_of_an_observer_is_forwarded_to_the_one_that_is_shared() {
        let (trait_text, here) = (include_str!("observer.rs"), include_str!("shared_observer.rs"));
        let all = methods(trait_text, "pub trait Observer");
        assert!(all.len() > 15, "{all:?}");
        assert_eq!(all, methods(here, "Observer for Arc<O> {"));
        for name in all {
            assert!(here.contains(&format!("(**self).{name}(")), "{name} calls another");
        }
    }
}
