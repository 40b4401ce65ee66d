//! Counters of requests, by domain: what a client would count, whatever number of rules each request matched.
//!
//! Domains get their counters when their rules are taken into use, so a caller that invents domains adds none.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use tidegate_limiter::{RequestResult, Source};
use tidegate_rules::RuleSet;

use super::lanes::Lanes;
use super::rules::LONGEST_LABEL;
use super::totals::Totals;
use crate::family::{Families, Family, Text};

/// The most domains with counters of their own, about 6 kB each; the others share those of the domain with an empty name,
/// as do requests that bring their own limit.
const MOST_DOMAINS: usize = 1_000;

/// The counters of every domain that has or had rules.
#[derive(Default)]
pub(super) struct RequestTable {
    domains: ArcSwap<HashMap<Arc<str>, Arc<DomainCounts>, foldhash::quality::RandomState>>,
    shared: DomainCounts,
}

/// The requests of one domain.
#[derive(Default)]
struct DomainCounts(Lanes<RequestCounts>);

/// By result, then by source, in the order of their lists.
#[derive(Default)]
struct RequestCounts([[AtomicU64; Source::ALL.len()]; RequestResult::ALL.len()]);

impl RequestTable {
    /// Gives the domains of `rules` counters, continued if they had some.
    pub(super) fn watch(&self, rules: &RuleSet) {
        self.domains.rcu(|known| {
            let mut domains = HashMap::clone(known);
            for domain in rules.domains().filter(|domain| domain.len() <= LONGEST_LABEL) {
                if domains.len() < MOST_DOMAINS && !domains.contains_key(domain) {
                    domains.insert(domain.into(), Arc::default());
                }
            }
            domains
        });
    }

    pub(super) fn count(&self, domain: &str, result: RequestResult, source: Source) {
        let domains = self.domains.load();
        let counts = domains.get(domain).map_or(&self.shared, |counts| counts);
        counts.0.mine().0[result as usize][source as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The requests of each domain since the process started.
    pub(super) fn totals(&self) -> Vec<(String, Totals)> {
        let domains = self.domains.load();
        let named = domains.iter().map(|(domain, counts)| (domain.to_string(), counts.totals()));
        named.chain([(String::new(), self.shared.totals())]).collect()
    }

    pub(super) fn describe(&self, families: &mut Families) {
        let help = "Requests, each counted once, by result and by the source of the deciding answer. Reads, which spend nothing, are not counted. A limit that came with its request has no domain.";
        let family = families.counters("requests", help);
        let domains = self.domains.load();
        let mut named: Vec<_> = domains.iter().collect();
        named.sort_by_key(|(domain, _)| *domain);
        named.into_iter().for_each(|(domain, counts)| counts.describe(family, &domain.into(), is_expected));
        self.shared.describe(family, &"".into(), |_, _| false);
    }
}

impl DomainCounts {
    fn count(&self, result: RequestResult, source: Source) -> u64 {
        self.0.iter().map(|lane| lane.0[result as usize][source as usize].load(Ordering::Relaxed)).sum()
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        pairs().for_each(|(result, source)| totals.add_requests(result, source, self.count(result, source)));
        totals
    }

    fn describe(&self, family: &mut Family, domain: &Text, is_expected: fn(RequestResult, Source) -> bool) {
        for (result, source) in pairs() {
            let count = self.count(result, source);
            if count > 0 || is_expected(result, source) {
                let (result, source) = (result.name().into(), source.name().into());
                family.add([("domain", domain.clone()), ("result", result), ("source", source)], count);
            }
        }
    }
}

/// Whether to write this pair while it is still zero, so that `increase()` sees its first count.
fn is_expected(result: RequestResult, source: Source) -> bool {
    source == Source::Store && result != RequestResult::Shed
}

fn pairs() -> impl Iterator<Item = (RequestResult, Source)> {
    RequestResult::ALL
        .into_iter()
        .flat_map(|result| Source::ALL.into_iter().map(move |source| (result, source)))
}
