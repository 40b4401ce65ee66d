//! Traffic by rule, judged once a minute against its baseline: spikes, drops, refusals, callers, keys.

use std::collections::{BTreeMap, BTreeSet};

use super::baseline::{Baseline, Deviation, Unusual};
use super::bursts::Bursts;
use super::detect::Thresholds;
use super::kinds::{Finding, Kind, RuleName};
use super::minutes::{Counts, Minute};
use super::signals::Signals;

/// The most rules with baselines, about 10 kB each; further ones have none.
pub const MOST_BASELINES: usize = 1_000;
/// The version of the stored format: another release may write another one.
const KEPT_FORMAT: u8 = 1;
/// Minutes for which a stored recent level is still valid.
const LATELY_KEPT_FOR: u64 = 120;
/// Consecutive minutes that must be unusual.
const IN_A_ROW: u32 = 2;
/// Spreads below the lowest usual level, and below every usual level, at which a rule's traffic counts as dropped. If one
/// minute in five is empty, an empty one is nearer than this. Lower than for a spike: nothing is below zero, and in the
/// morning and evening the spread of the recent level is wide.
const DROP_SPREADS: f64 = 2.0;
const DROP_SPREADS_OF_ALL: f64 = 0.7;
/// The most callers remembered per rule, and for how many minutes after they were last among its top callers.
const MOST_CALLERS: usize = 32;
const CALLER_KNOWN_FOR: u64 = 7 * 24 * 60;
/// The smallest share of a rule's requests that makes a top caller.
const GREAT_SHARE: f64 = 0.1;
/// Minutes for which a caller is new, and for which a rule must have been watched before one can be.
const NEW_FOR: u64 = 60;
const WATCHED_FOR: u64 = 30;

/// The baselines of every rule, and of the number of keys.
#[derive(Debug, Default)]
pub(super) struct Traffic {
    rules: BTreeMap<RuleName, RuleWatch>,
    keys: Baseline,
    last: Option<u64>,
    without: BTreeSet<RuleName>,
}

/// The size of the baselines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficStats {
    /// Rules with a baseline.
    pub baselines: u64,
    /// Rules of the last minute without one, because there are too many.
    pub without: u64,
}

#[derive(Debug)]
struct RuleWatch {
    traffic: Baseline,
    refusals: Baseline,
    /// Consecutive unusual minutes, above and below.
    high: u32,
    low: u32,
    refusing: u32,
    bursts: Bursts,
    since: u64,
    callers: BTreeMap<String, Seen>,
}

/// When a caller was among the top callers of a rule, in minutes since 1970.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: u64,
    last: u64,
}

/// What is unusual about a rule in a minute.
#[derive(Default)]
struct Judged {
    high: Option<Deviation>,
    low: Option<Deviation>,
    refusing: Option<Deviation>,
}

impl Traffic {
    /// The problems in this minute. `keys` is the number of keys in the store, if known.
    pub(super) fn judge(
        &mut self,
        minute: &Minute,
        nodes: &[&Signals],
        keys: Option<u64>,
        limits: &Thresholds,
    ) -> Vec<Finding> {
        let number = minute.number;
        // After a gap, or a change of the clock, earlier unusual minutes say nothing about now.
        if self.last.is_some_and(|last| last + 1 != number) {
            self.rules.values_mut().for_each(RuleWatch::begin_again);
        }
        self.last = Some(number);
        self.without.clear();
        let many = keys.and_then(|keys| self.judge_keys(number, keys as f64, limits));
        let keys = keys.unwrap_or_default() as f64;
        let silent: Vec<RuleName> =
            self.rules.keys().filter(|rule| !minute.rules.contains_key(*rule)).cloned().collect();
        let silent = silent.into_iter().map(|rule| (rule, Counts::default()));
        let counted = minute.rules.iter().map(|(rule, counts)| (rule.clone(), *counts));
        let mut found = Vec::new();
        for (rule, counts) in counted.chain(silent) {
            if !self.rules.contains_key(&rule) && self.rules.len() >= MOST_BASELINES {
                self.without.insert(rule);
                continue;
            }
            let watch = self.rules.entry(rule.clone()).or_insert_with(|| RuleWatch::new(number));
            let judged = watch.judge(number, counts, limits);
            found.extend(findings(
                &rule,
                counts,
                &judged,
                many.map(|off| keys / off.expected.max(1.0)),
                limits,
            ));
        }
        let is_spread = found.iter().any(|finding| finding.kind == Kind::SpreadCaller);
        if let (Some(off), false) = (many, is_spread) {
            let summary = format!("the store holds {keys:.0} keys, where {:.0} are usual", off.expected);
            found.push(Finding::new(Kind::KeyCardinality, "store", summary));
        }
        found.extend(self.new_callers(number, nodes, limits));
        found
    }

    fn judge_keys(&mut self, number: u64, keys: f64, limits: &Thresholds) -> Option<Deviation> {
        let many = self.keys.deviation(number, keys, |mean| mean.sqrt().max(100.0));
        let many = many.filter(|off| off.score > limits.score && keys > 1.5 * off.expected + 1_000.0);
        self.keys.learn(number, keys, unusual(many.is_some()));
        many
    }

    /// Callers with most of a rule's requests that were not among its top callers before.
    fn new_callers(&mut self, number: u64, nodes: &[&Signals], limits: &Thresholds) -> Vec<Finding> {
        let mut found = Vec::new();
        for (rule, (asked, callers)) in shares(nodes) {
            let Some(watch) = self.rules.get_mut(rule) else { continue };
            for (caller, of_it) in callers {
                let share = of_it as f64 / asked.max(1) as f64;
                let is_new = watch.see_caller(number, caller, share);
                if is_new && share > limits.caller_share && asked as f64 >= limits.quiet {
                    let part = (share * 100.0).round();
                    let summary = format!("{caller} is new, and takes {part} % of {rule}");
                    found.push(Finding::of_caller(Kind::NewTopCaller, rule, caller, summary));
                }
            }
        }
        found
    }

    pub(super) fn keep_only(&mut self, in_use: &BTreeSet<RuleName>) {
        self.rules.retain(|rule, _| in_use.contains(rule));
    }

    pub(super) fn unknown(&self, minute: &Minute) -> Vec<RuleName> {
        let keys = self.last.is_none().then(keys_name);
        let new = minute.rules.keys().filter(|rule| !self.rules.contains_key(*rule)).cloned();
        keys.into_iter().chain(new.take(MOST_BASELINES.saturating_sub(self.rules.len()))).collect()
    }

    /// Ignores bytes that this release does not understand.
    pub(super) fn restore(&mut self, what: &RuleName, kept: &[u8], minute: u64) {
        let Some([traffic, refusals]) = read(kept, minute) else { return };
        if *what == keys_name() {
            self.keys = traffic;
        } else if self.rules.len() < MOST_BASELINES {
            // Its top callers are not stored: until some are known again, none counts as new.
            self.rules.insert(what.clone(), RuleWatch { traffic, refusals, ..RuleWatch::new(minute) });
        }
    }

    pub(super) fn to_keep(&self, minute: u64) -> Vec<(RuleName, Vec<u8>)> {
        let rules = self.rules.iter().map(|(rule, watch)| (rule.clone(), [&watch.traffic, &watch.refusals]));
        let nothing = Baseline::default();
        let all = rules.chain([(keys_name(), [&self.keys, &nothing])]);
        let due = all.filter(|(what, _)| minute_of(what) == minute % 60);
        due.map(|(what, both)| (what, write(both, minute))).collect()
    }

    pub(super) fn stats(&self) -> TrafficStats {
        TrafficStats { baselines: self.rules.len() as u64, without: self.without.len() as u64 }
    }
}

/// The name under which the baseline of the number of keys is stored: no domain has an empty name.
fn keys_name() -> RuleName {
    RuleName::new("", "keys")
}

/// The minute of the hour in which a rule's baselines are stored: spread over the hour.
fn minute_of(rule: &RuleName) -> u64 {
    let bytes = rule.domain.bytes().chain(rule.rule.bytes());
    bytes.fold(0_u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % 60
}

fn write(both: [&Baseline; 2], minute: u64) -> Vec<u8> {
    let mut kept = vec![KEPT_FORMAT];
    kept.extend(minute.to_le_bytes());
    both.iter().for_each(|baseline| baseline.write(&mut kept));
    kept
}

fn read(kept: &[u8], now: u64) -> Option<[Baseline; 2]> {
    let (head, mut rest) = kept.split_first_chunk::<9>()?;
    let (format, minute) = head.split_first()?;
    if *format != KEPT_FORMAT {
        return None;
    }
    let age = now.abs_diff(u64::from_le_bytes(minute.try_into().ok()?));
    let mut next = || Baseline::read(&mut rest, age < LATELY_KEPT_FOR);
    Some([next()?, next()?])
}

/// The requests of each rule over all nodes, in total and by top caller.
fn shares<'n>(nodes: &[&'n Signals]) -> BTreeMap<&'n RuleName, (u64, BTreeMap<&'n str, u64>)> {
    let mut rules: BTreeMap<&RuleName, (u64, BTreeMap<&str, u64>)> = BTreeMap::new();
    for one in nodes.iter().flat_map(|node| &node.callers) {
        let (asked, callers) = rules.entry(&one.rule).or_default();
        *asked = asked.saturating_add(one.asked);
        for (caller, of_it) in &one.most {
            let sum = callers.entry(caller).or_default();
            *sum = sum.saturating_add(*of_it);
        }
    }
    rules
}

/// The findings for a rule's minute. `more_keys` is the factor by which there are more keys than usual, if that is unusual.
fn findings(
    rule: &RuleName,
    counts: Counts,
    judged: &Judged,
    more_keys: Option<f64>,
    limits: &Thresholds,
) -> Vec<Finding> {
    let Counts { total, refused, shadow } = counts;
    let mut found = Vec::new();
    let mut find = |kind, summary| found.push(Finding::of_rule(kind, rule, summary));
    let requests = |off: Deviation| {
        format!("{rule} has {total:.0} requests a minute, where {:.0} are usual", off.expected)
    };
    if let Some(off) = judged.high {
        // Many more keys, each with few requests, and no more refusals: one caller that rotates its key.
        if let (Some(times), None) = (more_keys, judged.refusing) {
            find(Kind::SpreadCaller, format!("{}, from {times:.1} times as many keys", requests(off)));
        }
        find(Kind::TrafficSpike, requests(off));
    }
    if let Some(off) = judged.low {
        find(Kind::TrafficDrop, requests(off));
    }
    if let Some(off) = judged.refusing {
        let (part, usual) = (100.0 * refused / total, 100.0 * off.expected);
        let summary = format!("{rule} refuses {part:.0} % of its requests, where {usual:.0} % are usual");
        find(Kind::RefusalSpike, summary);
    }
    if total >= limits.quiet && shadow > limits.shadow_refusals * total {
        let part = 100.0 * shadow / total;
        find(Kind::ShadowWouldRefuse, format!("enforcing {rule} would refuse {part:.0} % of its requests"));
    }
    found
}

impl RuleWatch {
    fn new(since: u64) -> Self {
        let (traffic, refusals, callers) = (Baseline::default(), Baseline::default(), BTreeMap::new());
        let bursts = Bursts::default();
        RuleWatch { traffic, refusals, high: 0, low: 0, refusing: 0, bursts, since, callers }
    }

    fn begin_again(&mut self) {
        (self.high, self.low, self.refusing) = (0, 0, 0);
    }

    fn judge(&mut self, minute: u64, counts: Counts, limits: &Thresholds) -> Judged {
        let Counts { total, refused, .. } = counts;
        let high = self.high(minute, total, limits);
        let low = self.low(minute, total, limits);
        self.traffic.learn(minute, total, unusual(high.is_some() || low.is_some()));
        let mut refusing = None;
        if total >= limits.quiet {
            let part = refused / total;
            // The spread that chance alone gives a fraction of this many.
            let noise = |mean: f64| (mean.clamp(0.01, 0.99) * (1.0 - mean.clamp(0.01, 0.99)) / total).sqrt();
            let off = self.refusals.deviation(minute, part, noise);
            refusing = off.filter(|off| {
                off.score > limits.score && part > off.expected + 0.05 && part > 1.5 * off.expected
            });
            self.refusals.learn(minute, part, unusual(refusing.is_some()));
        }
        let row = |count: &mut u32, off: Option<Deviation>| {
            *count = if off.is_some() { *count + 1 } else { 0 };
            off.filter(|_| *count >= IN_A_ROW)
        };
        Judged {
            high: row(&mut self.high, high),
            low: row(&mut self.low, low),
            refusing: row(&mut self.refusing, refusing),
        }
    }

    /// Whether it is far above usual, and not one of the rule's frequent bursts.
    fn high(&mut self, minute: u64, total: f64, limits: &Thresholds) -> Option<Deviation> {
        let off = self.traffic.deviation(minute, total, |mean| mean.max(1.0).sqrt());
        let off =
            off.filter(|off| off.score > limits.score && total > 2.0 * off.expected && total >= limits.quiet);
        if off.is_none() {
            self.bursts.end();
        }
        off.filter(|_| !self.bursts.is_often(minute, total))
    }

    /// Whether it is far below even the lowest usual level. Zero is never many spreads below a small number, so the test is
    /// that neither chance nor the rule's own bursts go as far.
    fn low(&self, minute: u64, total: f64, limits: &Thresholds) -> Option<Deviation> {
        let all = self.traffic.deviations(minute, total, |mean| mean.max(1.0).sqrt());
        let least = *all.first()?;
        let usual = least.expected;
        let is_far = usual - total > limits.score * usual.sqrt() && least.score < -DROP_SPREADS;
        let is_low = total < 0.3 * usual && all.iter().all(|off| off.score < -DROP_SPREADS_OF_ALL);
        (is_far && is_low && usual >= limits.quiet).then_some(least)
    }

    /// Records a caller with this share; returns whether it is new among the top callers.
    fn see_caller(&mut self, minute: u64, caller: &str, share: f64) -> bool {
        if share < GREAT_SHARE {
            return false;
        }
        self.callers.retain(|_, seen| minute.saturating_sub(seen.last) < CALLER_KNOWN_FOR);
        if !self.callers.contains_key(caller) && self.callers.len() >= MOST_CALLERS {
            let oldest = self.callers.iter().min_by_key(|(_, seen)| seen.last).map(|(name, _)| name.clone());
            oldest.and_then(|name| self.callers.remove(&name));
        }
        let seen = self.callers.entry(caller.to_owned()).or_insert(Seen { first: minute, last: minute });
        seen.last = minute;
        let was_watched = seen.first.saturating_sub(self.since) >= WATCHED_FOR;
        was_watched && minute.saturating_sub(seen.first) < NEW_FOR
    }
}

fn unusual(is: bool) -> Unusual {
    if is { Unusual::Yes } else { Unusual::No }
}

#[cfg(test)]
mod tests {
    use super::super::signals::RuleCallers;
    use super::*;

    fn rule() -> RuleName {
        RuleName::new("api", "r")
    }

    fn minute(number: u64, total: f64) -> Minute {
        let counts = Counts { total, refused: total * 0.02, shadow: 0.0 };
        Minute { number, rules: [(rule(), counts)].into() }
    }

    fn kinds(found: &[Finding]) -> Vec<Kind> {
        found.iter().map(|one| one.kind).collect()
    }

    /// Traffic of 600 per minute, for `minutes` minutes.
    fn taught(minutes: u64) -> Traffic {
        let mut traffic = Traffic::default();
        for number in 0..minutes {
            assert_eq!(traffic.judge(&minute(number, 600.0), &[], Some(0), &Thresholds::default()), []);
        }
        traffic
    }

    #[test]
    fn a_clock_that_is_set_is_no_incident_and_hides_none_after_it() {
        let mut traffic = taught(300);
        let limits = Thresholds::default();
        // Ahead by a day and a half, then back by a day: another hour of the day, and of the week.
        for start in [2_460, 1_020] {
            for number in start..start + 10 {
                assert_eq!(
                    kinds(&traffic.judge(&minute(number, 600.0), &[], Some(0), &limits)),
                    [],
                    "at {number}"
                );
            }
        }
        let found: Vec<Kind> = (1_030..1_033)
            .flat_map(|number| kinds(&traffic.judge(&minute(number, 6_000.0), &[], Some(0), &limits)))
            .collect();
        assert_eq!(found, [Kind::TrafficSpike, Kind::TrafficSpike], "from the second minute on");
    }

    #[test]
    fn a_detector_that_is_restarted_goes_on_from_what_was_kept_each_hour() {
        let (before, limits) = (taught(300), Thresholds::default());
        let kept: Vec<(RuleName, Vec<u8>)> = (240..300).flat_map(|number| before.to_keep(number)).collect();
        assert_eq!(kept.len(), 2, "the rule and the number of keys, once in an hour");
        let mut after = Traffic::default();
        let mut unknown = after.unknown(&minute(300, 6_000.0));
        unknown.sort();
        assert_eq!(unknown, [keys_name(), rule()]);
        kept.iter().for_each(|(what, bytes)| after.restore(what, bytes, 300));
        let judge = |traffic: &mut Traffic, number| {
            kinds(&traffic.judge(&minute(number, 6_000.0), &[], Some(0), &limits))
        };
        assert_eq!([judge(&mut after, 300), judge(&mut after, 301)], [vec![], vec![Kind::TrafficSpike]]);
        assert_eq!(after.unknown(&minute(302, 1.0)), []);
        let mut other = Traffic::default();
        let newer = [&[9], &kept[0].1[1..]].concat();
        kept.iter().for_each(|(what, _)| other.restore(what, &newer, 300));
        assert_eq!(other.stats().baselines, 0, "another release's format is none");
    }

    #[test]
    fn a_rule_that_comes_in_bursts_has_no_drop_between_them() {
        let (mut traffic, limits) = (Traffic::default(), Thresholds::default());
        // 85 seconds of requests in 32 minutes, and then none.
        let bursts = [(3, 30_000.0), (20, 15_000.0)];
        for number in 0..200 {
            let total = bursts.iter().find(|(at, _)| *at == number).map_or(0.0, |(_, total)| *total);
            assert_eq!(
                kinds(&traffic.judge(&minute(number, total), &[], Some(0), &limits)),
                [],
                "at {number}"
            );
        }
    }

    #[test]
    fn a_rule_that_is_steady_for_half_an_hour_and_stops_is_a_drop_in_the_second_minute() {
        let (mut traffic, limits) = (taught(30), Thresholds::default());
        let found = [30, 31].map(|number| kinds(&traffic.judge(&minute(number, 0.0), &[], Some(0), &limits)));
        assert_eq!(found, [vec![], vec![Kind::TrafficDrop]]);
    }

    #[test]
    fn one_unusual_minute_before_a_gap_and_one_after_it_are_not_two_in_a_row() {
        let mut traffic = taught(120);
        let limits = Thresholds::default();
        assert_eq!(kinds(&traffic.judge(&minute(120, 6_000.0), &[], Some(0), &limits)), []);
        assert_eq!(kinds(&traffic.judge(&minute(150, 6_000.0), &[], Some(0), &limits)), []);
    }

    #[test]
    fn rules_beyond_the_bound_have_no_baseline_and_are_counted() {
        let mut traffic = Traffic::default();
        let counts = Counts { total: 100.0, ..Counts::default() };
        let rules = (0..5_000).map(|n| (RuleName::new("api", &format!("r{n}")), counts)).collect();
        let minute = Minute { number: 1, rules };
        traffic.judge(&minute, &[], Some(0), &Thresholds::default());
        assert_eq!(traffic.stats(), TrafficStats { baselines: 1_000, without: 4_000 });
        let left: BTreeSet<RuleName> = minute.rules.keys().take(10).cloned().collect();
        traffic.keep_only(&left);
        assert_eq!(traffic.stats().baselines, 10, "a rule that is gone leaves room");
    }

    #[test]
    fn a_rule_that_was_taken_out_of_use_is_no_drop_of_traffic() {
        let mut traffic = taught(120);
        traffic.keep_only(&BTreeSet::new());
        for number in 120..130 {
            let none = Minute { number, ..Minute::default() };
            assert_eq!(traffic.judge(&none, &[], Some(0), &Thresholds::default()), []);
        }
    }

    fn node(asked: u64, caller: &str, of_it: u64) -> Signals {
        let callers = vec![RuleCallers { rule: rule(), asked, most: vec![(caller.to_owned(), of_it)] }];
        Signals { callers, ..Signals::default() }
    }

    #[test]
    fn a_new_caller_is_found_by_what_all_nodes_say_together_and_for_an_hour() {
        let mut traffic = taught(60);
        let limits = Thresholds::default();
        // Most of one node's requests, but not of the fleet's.
        let (one, other) = (node(100, "user=#1", 90), node(500, "user=#2", 60));
        assert_eq!(kinds(&traffic.judge(&minute(60, 600.0), &[&one, &other], Some(0), &limits)), []);
        // New to both nodes, and most of the fleet's requests.
        let (one, other) = (node(300, "user=#3", 200), node(300, "user=#3", 190));
        let told: Vec<u64> = (61..200)
            .filter(|number| {
                !traffic.judge(&minute(*number, 600.0), &[&one, &other], Some(0), &limits).is_empty()
            })
            .collect();
        assert_eq!((told.first(), told.last(), told.len()), (Some(&61), Some(&120), 60));
    }

    #[test]
    fn callers_who_come_and_go_are_remembered_in_bounded_memory() {
        let mut traffic = taught(60);
        for number in 60..1_000 {
            let one = node(600, &format!("user=#{number}"), 100);
            traffic.judge(&minute(number, 600.0), &[&one], Some(0), &Thresholds::default());
        }
        assert_eq!(traffic.rules[&rule()].callers.len(), MOST_CALLERS);
    }
}
