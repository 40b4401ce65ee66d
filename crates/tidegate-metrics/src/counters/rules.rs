//! Counters of each rule's decisions.
//!
//! A rule's counters are looked up when its rule set is taken into use, by the rule's name, so that a reload continues the
//! counts. The number of rules with counters of their own is bounded, because each costs this process, every scrape and the
//! Prometheus behind it; the rules beyond the bound share one set.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate_limiter::{RuleHits, RuleResult, RuleWatcher, Source};
use tidegate_rules::{Rule, Variant};

use super::lanes::{LANES, mine};
use super::totals::Totals;
use crate::family::{Families, Family, Text};

/// The most rules with series of their own.
pub const MOST_RULE_SERIES: usize = 10_000;

/// The longest name that becomes a label. Native rule names are no longer than this; envoyproxy/ratelimit's have no bound.
pub(super) const LONGEST_LABEL: usize = 256;

type Labels = [(&'static str, Text); 2];

/// The names of the shared series, and of the one for limits that came with the request instead of from a rule. No domain
/// has an empty name, so neither can clash with a rule.
const SHARED: (&str, &str) = ("", "others");
const DIRECT: (&str, &str) = ("", "direct");

/// The counters of every rule in use, and of some rules that were.
#[derive(Default)]
pub(super) struct RuleTable {
    series: BTreeMap<RuleName, Arc<RuleSeries>>,
    shared: Arc<RuleSeries>,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct RuleName {
    domain: Arc<str>,
    rule: Arc<str>,
}

impl RuleTable {
    /// The counters for `rule`, continued if it had some.
    pub(super) fn watch(&mut self, rule: &Rule) -> Arc<RuleSeries> {
        // The first rule starts a new set, which needs room.
        if rule.index() == 0 {
            self.drop_unused();
        }
        let name = RuleName { domain: rule.domain().into(), rule: rule.name().into() };
        if let Some(known) = self.series.get(&name) {
            return Arc::clone(known);
        }
        let too_long = name.domain.len().max(name.rule.len()) > LONGEST_LABEL;
        if too_long || self.series.len() >= MOST_RULE_SERIES {
            return Arc::clone(&self.shared);
        }
        Arc::clone(self.series.entry(name).or_default())
    }

    /// Once there are many rules, moves the counts of rules that are no longer in use to the shared series, so that no sum
    /// goes down.
    fn drop_unused(&mut self) {
        if self.series.len() <= MOST_RULE_SERIES / 2 {
            return;
        }
        let shared = &self.shared;
        self.series.retain(|_, series| {
            // Only this table hands out references, and it is locked: a reference count of one cannot grow meanwhile.
            let unused = Arc::strong_count(series) == 1;
            if unused {
                shared.absorb(series);
            }
            !unused
        });
    }

    /// The decisions of each rule. Called every second; by then a replaced set is no longer in use, so this also frees the
    /// memory of removed rules and shortens scrapes.
    pub(super) fn totals(&mut self) -> Vec<((String, String), Totals)> {
        self.drop_unused();
        let named = self.series.iter().map(|(name, series)| ((&*name.domain, &*name.rule), series));
        let all = named.chain([(SHARED, &self.shared)]);
        let used = all.filter(|(_, series)| series.is_used());
        used.map(|((domain, rule), series)| ((domain.to_owned(), rule.to_owned()), series.totals())).collect()
    }

    /// The decisions of each side of every experiment: admitted, refused, and refused in shadow.
    pub(super) fn experiments(&self) -> BTreeMap<ExperimentSide, [u64; 3]> {
        let results = [RuleResult::Allowed, RuleResult::Refused, RuleResult::ShadowRefused];
        // Most rules of a large set never decided anything, and this runs every second.
        let used = self.series.iter().filter(|(_, series)| series.is_used());
        let sides = used.flat_map(|rule| VARIANTS.map(|variant| (rule, variant)));
        let counted = sides.filter_map(|((name, series), variant)| {
            let counts = results.map(|result| series.count_in_experiment(variant, result));
            let side = || (name.domain.to_string(), name.rule.to_string(), variant.name());
            (counts != [0; 3]).then(|| (side(), counts))
        });
        counted.collect()
    }

    /// Adds hits by outcome, as envoyproxy/ratelimit counts them, which has no failure policies.
    pub(super) fn describe_hits(&self, families: &mut Families) {
        let help = "Hits asked of each rule, counted only while StatsD is exported. near_limit is the part of within_limit above 80 % of the limit; over_limit_with_local_cache and shadow_mode are parts of over_limit. without_store is what a failure policy refused.";
        let family = families.counters("hits", help);
        let used = self.series.iter().filter(|(_, series)| series.is_used());
        used.for_each(|(name, series)| series.describe_hits(family, name.labels()));
        self.shared.describe_hits(family, labels_of(SHARED));
    }

    pub(super) fn describe(&self, direct: &RuleSeries, families: &mut Families) {
        let help = "Rule checks: what each rule said to each request it matched, and which source answered. One request counts once per matching rule; tidegate_requests_total counts requests.";
        let family = families.counters("decisions", help);
        self.series.iter().for_each(|(name, series)| series.describe(family, name.labels()));
        let sharing = Arc::strong_count(&self.shared) as u64 - 1;
        if sharing > 0 || self.shared.is_used() {
            self.shared.describe(family, labels_of(SHARED));
        }
        if direct.is_used() {
            direct.describe(family, labels_of(DIRECT));
        }
        let help = "Rule checks of rules with an experiment, by the side of the experiment.";
        let family = families.counters("experiment_decisions", help);
        self.series.iter().for_each(|(name, series)| series.describe_experiment(family, name.labels()));
        let help =
            "Rules in use that share the series called others: there are too many, or a name is too long.";
        families.gauge("rules_sharing_series", help, sharing);
    }
}

impl RuleName {
    fn labels(&self) -> Labels {
        [("domain", (&self.domain).into()), ("rule", (&self.rule).into())]
    }
}

fn labels_of((domain, rule): (&'static str, &'static str)) -> Labels {
    [("domain", domain.into()), ("rule", rule.into())]
}

/// The counters of one rule. A lane's counters are allocated at its first decision: most rules of a large set are seldom
/// used, and by few threads.
#[derive(Default)]
pub(super) struct RuleSeries {
    lanes: [OnceLock<Box<Counts>>; LANES],
}

/// By result, then by source, in the order of their lists.
#[repr(align(128))]
#[derive(Default)]
struct Counts {
    decided: [[AtomicU64; Source::ALL.len()]; RuleResult::ALL.len()],
    /// By side of the rule's experiment, then by result.
    experiment: [[AtomicU64; RuleResult::ALL.len()]; VARIANTS.len()],
    /// In the order of [`HitStat::ALL`]; counted only if something exports them.
    hits: [AtomicU64; HitStat::ALL.len()],
}

/// One side of a rule's experiment: domain, rule, and the side's name.
pub type ExperimentSide = (String, String, &'static str);

const VARIANTS: [Variant; 2] = [Variant::Control, Variant::Experiment];

impl RuleWatcher for RuleSeries {
    fn decided(&self, result: RuleResult, source: Source) {
        self.lane(mine()).decided[result as usize][source as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn decided_in_experiment(&self, variant: Variant, result: RuleResult) {
        self.lane(mine()).experiment[variant as usize][result as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn hits(&self, told: &RuleHits) {
        let counts = &self.lane(mine()).hits;
        let add = |stat: HitStat, hits: u64| counts[stat as usize].fetch_add(hits, Ordering::Relaxed);
        match (told.result, told.source) {
            (RuleResult::Allowed, _) => {
                add(HitStat::WithinLimit, told.hits);
                if told.near > 0 {
                    add(HitStat::NearLimit, told.near);
                }
            }
            // Of hits that a failure policy refuses nobody knows whether they are over the limit.
            (RuleResult::Refused | RuleResult::ShadowRefused, source) if source.is_without_the_store() => {
                add(HitStat::WithoutStore, told.hits);
            }
            (RuleResult::Refused, source) => {
                add(HitStat::OverLimit, told.hits);
                if source == Source::DenyCache {
                    add(HitStat::OverLimitWithLocalCache, told.hits);
                }
            }
            (RuleResult::ShadowRefused, _) => {
                add(HitStat::OverLimit, told.hits);
                add(HitStat::ShadowMode, told.hits);
            }
            _ => {}
        }
    }
}

/// The outcomes of hits, by envoyproxy/ratelimit's names where it has one.
#[derive(Clone, Copy)]
enum HitStat {
    WithinLimit,
    NearLimit,
    OverLimit,
    OverLimitWithLocalCache,
    ShadowMode,
    WithoutStore,
}

impl HitStat {
    /// All, in the order of their declaration.
    const ALL: [(HitStat, &'static str); 6] = [
        (HitStat::WithinLimit, "within_limit"),
        (HitStat::NearLimit, "near_limit"),
        (HitStat::OverLimit, "over_limit"),
        (HitStat::OverLimitWithLocalCache, "over_limit_with_local_cache"),
        (HitStat::ShadowMode, "shadow_mode"),
        (HitStat::WithoutStore, "without_store"),
    ];
}

impl RuleSeries {
    fn lane(&self, lane: usize) -> &Counts {
        self.lanes[lane].get_or_init(Box::default)
    }

    fn count(&self, result: RuleResult, source: Source) -> u64 {
        let used = self.lanes.iter().filter_map(OnceLock::get);
        used.map(|counts| counts.decided[result as usize][source as usize].load(Ordering::Relaxed)).sum()
    }

    fn count_in_experiment(&self, variant: Variant, result: RuleResult) -> u64 {
        let used = self.lanes.iter().filter_map(OnceLock::get);
        used.map(|counts| counts.experiment[variant as usize][result as usize].load(Ordering::Relaxed)).sum()
    }

    fn count_hits(&self, stat: HitStat) -> u64 {
        let used = self.lanes.iter().filter_map(OnceLock::get);
        used.map(|counts| counts.hits[stat as usize].load(Ordering::Relaxed)).sum()
    }

    fn describe_hits(&self, family: &mut Family, [domain, rule]: Labels) {
        for (stat, name) in HitStat::ALL {
            let count = self.count_hits(stat);
            if count > 0 {
                family.add([domain.clone(), rule.clone(), ("stat", name.into())], count);
            }
        }
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        pairs().for_each(|(result, source)| totals.add(result, source, self.count(result, source)));
        totals
    }

    fn is_used(&self) -> bool {
        self.lanes.iter().any(|lane| lane.get().is_some())
    }

    fn absorb(&self, other: &RuleSeries) {
        for (result, source) in pairs() {
            let count = other.count(result, source);
            if count > 0 {
                self.lane(0).decided[result as usize][source as usize].fetch_add(count, Ordering::Relaxed);
            }
        }
        for (stat, _) in HitStat::ALL {
            let count = other.count_hits(stat);
            if count > 0 {
                self.lane(0).hits[stat as usize].fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    /// Adds both sides of the rule's experiment, once it has decided anything.
    fn describe_experiment(&self, family: &mut Family, [domain, rule]: Labels) {
        for (variant, result) in
            VARIANTS.into_iter().flat_map(|one| RuleResult::ALL.map(|result| (one, result)))
        {
            let count = self.count_in_experiment(variant, result);
            if count > 0 {
                let (variant, result) =
                    (("variant", variant.name().into()), ("result", result.name().into()));
                family.add([domain.clone(), rule.clone(), variant, result], count);
            }
        }
    }

    fn describe(&self, family: &mut Family, [domain, rule]: Labels) {
        for (result, source) in pairs() {
            let count = self.count(result, source);
            if count > 0 || is_expected(result, source) {
                let (result, source) = (("result", result.name().into()), ("source", source.name().into()));
                family.add([domain.clone(), rule.clone(), result, source], count);
            }
        }
    }
}

/// Whether to write this pair while it is still zero. A series that first appears with its first count hides that count from
/// `increase()`; writing all pairs would take 48 lines per rule.
fn is_expected(result: RuleResult, source: Source) -> bool {
    source == Source::Store && matches!(result, RuleResult::Allowed | RuleResult::Refused)
}

fn pairs() -> impl Iterator<Item = (RuleResult, Source)> {
    RuleResult::ALL.into_iter().flat_map(|result| Source::ALL.into_iter().map(move |source| (result, source)))
}

#[cfg(test)]
mod tests {
    use tidegate_rules::{Format, RuleSet};

    use super::*;

    #[test]
    fn many_rules_that_are_gone_leave_nothing_but_their_sum() {
        let of = |count: usize| {
            let rules = (0..count).map(|number| format!("- {{ name: r{number}, limits: [1/s] }}\n"));
            let text = format!("domain: d\nrules:\n{}", rules.collect::<String>());
            RuleSet::compile(&[tidegate_rules::Source::new("a", text)], Format::Native).unwrap()
        };
        let mut table = RuleTable::default();
        let in_use = |table: &mut RuleTable, count| -> Vec<Arc<RuleSeries>> {
            of(count).rules().map(|rule| table.watch(rule)).collect()
        };
        let large = in_use(&mut table, MOST_RULE_SERIES / 2 + 1);
        large[7].decided(RuleResult::Allowed, Source::Store);
        let small = in_use(&mut table, 1);
        drop(large);
        let total = |table: &mut RuleTable| table.totals().len();
        assert_eq!((total(&mut table), table.series.len()), (1, 1), "counted as one of the others");
        assert_eq!(table.shared.count(RuleResult::Allowed, Source::Store), 1);
        drop(small);
        assert_eq!(
            (total(&mut table), table.series.len()),
            (1, 1),
            "few that are gone stay for when they return"
        );
    }

    #[test]
    fn results_and_sources_number_themselves_as_their_lists_do() {
        assert!(RuleResult::ALL.into_iter().enumerate().all(|(place, result)| result as usize == place));
        assert!(Source::ALL.into_iter().enumerate().all(|(place, source)| source as usize == place));
        assert!(VARIANTS.into_iter().enumerate().all(|(place, variant)| variant as usize == place));
        assert!(HitStat::ALL.into_iter().enumerate().all(|(place, (stat, _))| stat as usize == place));
    }
}
