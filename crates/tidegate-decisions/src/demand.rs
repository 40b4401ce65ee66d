//! How much callers ask of each limit at their busiest, from the decisions that are kept: what a limit could be.
//!
//! A decision says what is left of a limit, and what is used is the rest. That number is the store's own, so it counts what
//! the caller did on every node, and one kept decision in a hundred suffices to see it. A caller's *peak* is the most that it
//! was seen to use; where it was refused, what it asked for beyond the limit is added. A request's *place* is what was used
//! when it had passed: a lower limit L would have refused the requests whose place is above L (exactly for windows; a bucket
//! refuses fewer, because what is refused does not fill it).
//!
//! Places add up over nodes; peaks are joined caller by caller. A table that is full keeps every second caller, by a hash
//! that all nodes agree on. What is older than two days is forgotten.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidegate_core::Micros;

use crate::histogram::Histogram;
use crate::table::{Name, Parts, Quick, Table};

/// Callers told apart per limit, and over all limits: about 60 bytes each.
const MOST_CALLERS: usize = 6_144;
const MOST_CALLERS_OF_ALL: usize = 131_072;
/// Limits that are looked at; those beyond are not.
const MOST_LIMITS: usize = 1_000;
/// The busiest callers of a limit, whose keys are kept.
const NAMED: usize = 32;
/// How long a table is added to before the next one is begun. The last two are told.
const GENERATION_US: u64 = 24 * 3_600_000_000;
/// The percentile of callers that a suggested limit lets pass, in thousandths.
const SUGGESTED: u64 = 999;

/// What callers ask of each limit.
pub struct Demand {
    limits: Mutex<Table<Name, Tracked>>,
}

impl Default for Demand {
    fn default() -> Self {
        Demand { limits: Mutex::new(Table::new(MOST_LIMITS, 2 * GENERATION_US)) }
    }
}

/// What is noted of one decision under one limit.
#[derive(Clone, Debug)]
pub(crate) struct Asked<'a> {
    pub(crate) domain: &'a str,
    pub(crate) rule: &'a str,
    pub(crate) limit: &'a str,
    pub(crate) algorithm: &'static str,
    pub(crate) quota: u64,
    pub(crate) window: Option<Micros>,
    pub(crate) remaining: u64,
    pub(crate) refused: bool,
    pub(crate) hits: u64,
    /// How many decisions this one stands for.
    pub(crate) n: u64,
    pub(crate) now_us: u64,
    /// The caller: a hash that all nodes agree on, and its key.
    pub(crate) caller: u32,
    pub(crate) key: &'a [(&'a str, String)],
}

struct Tracked {
    algorithm: &'static str,
    quota: u64,
    window: Option<Micros>,
    current: Generation,
    earlier: Option<Generation>,
}

#[derive(Default)]
struct Generation {
    since_us: u64,
    halvings: u32,
    places: Histogram,
    callers: HashMap<u32, Seen, BuildHasherDefault<Quick>>,
    named: Vec<NamedPeak>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    used: u64,
    /// The most that was refused within one window.
    refused: u64,
    /// What was refused in the current window, and until when that lasts.
    run: u64,
    run_until_us: u64,
}

/// The most that a caller was seen to use, and what it was refused beyond that within one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// A hash of its key.
    pub caller: u32,
    /// The most it used.
    pub used: u64,
    /// The most it was refused within one window.
    pub refused: u64,
}

impl Peak {
    /// The limit that it would have needed.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.used.saturating_add(self.refused)
    }
}

/// A busy caller by its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedPeak {
    /// Its peak.
    #[serde(flatten)]
    pub peak: Peak,
    /// Its key: names and values, as the log shows them.
    pub key: Vec<(String, String)>,
}

/// What callers ask of one limit: of one node, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitDemand {
    /// The domain.
    pub domain: String,
    /// The rule.
    pub rule: String,
    /// The limit's name within the rule.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: String,
    /// Its number.
    pub quota: u64,
    /// Its window in microseconds, where that is a span.
    pub window_us: Option<u64>,
    /// Since when, in microseconds since the Unix epoch.
    pub since_us: u64,
    /// One in two to the power of this many callers is told apart.
    pub halvings: u32,
    /// Places of requests, and how many requests had each.
    pub places: Vec<(u64, u64)>,
    /// Callers, each with its peak.
    pub callers: Vec<Peak>,
    /// The busiest callers.
    pub named: Vec<NamedPeak>,
}

/// The limit that 99.9 % of callers stay within.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuggestedLimit {
    /// The limit.
    pub limit: u64,
    /// How sure one may be that callers like these have their 99.9th percentile within it.
    pub confidence_percent: u64,
    /// Callers above it.
    pub above: u64,
    /// Requests above it.
    pub requests_above: u64,
    /// The busiest of those callers.
    pub busiest: Vec<NamedPeak>,
}

/// In percent: how sure one may be that the 99.9th percentile of all callers is within the largest peak of `callers` of them:
/// `1 - 0.999^callers`. With few callers the busiest of them may not be the busiest that there are.
#[must_use]
pub fn confidence_percent(callers: u64) -> u64 {
    let unseen = 0.999f64.powi(i32::try_from(callers).unwrap_or(i32::MAX));
    (100.0 * (1.0 - unseen)).floor() as u64
}

impl Demand {
    pub(crate) fn note(&self, asked: &Asked<'_>) {
        let mut limits = self.limits.lock();
        let name = [asked.domain, asked.rule, asked.limit];
        let most = (MOST_CALLERS_OF_ALL / limits.len().max(1)).min(MOST_CALLERS);
        let begun = || (Name::new(name), Tracked::new(asked));
        limits.at(asked.now_us, &name as &dyn Parts, begun, |tracked| tracked.note(asked, most));
    }

    /// What is known of limits that fit: those of this domain and rule, where they are given.
    #[must_use]
    pub fn of(&self, domain: Option<&str>, rule: Option<&str>) -> Vec<LimitDemand> {
        let fits = |Name([known, of, _]): &Name| {
            domain.is_none_or(|domain| domain == &**known) && rule.is_none_or(|rule| rule == &**of)
        };
        let limits = self.limits.lock();
        let mut found: Vec<LimitDemand> =
            limits.iter().filter(|(name, _)| fits(name)).map(|(name, tracked)| tracked.told(name)).collect();
        found.sort_by(|a, b| (&a.domain, &a.rule, &a.limit).cmp(&(&b.domain, &b.rule, &b.limit)));
        found
    }

    /// How many callers are told apart, of all limits.
    #[must_use]
    pub fn callers(&self) -> usize {
        let generations = |tracked: &Tracked| {
            tracked.current.callers.len()
                + tracked.earlier.as_ref().map_or(0, |earlier| earlier.callers.len())
        };
        self.limits.lock().iter().map(|(_, tracked)| generations(tracked)).sum()
    }
}

impl Tracked {
    fn new(asked: &Asked<'_>) -> Self {
        Tracked {
            algorithm: asked.algorithm,
            quota: asked.quota,
            window: asked.window,
            current: Generation { since_us: asked.now_us, ..Generation::default() },
            earlier: None,
        }
    }

    fn note(&mut self, asked: &Asked<'_>, most: usize) {
        // A changed window or algorithm counts in other cells: what was seen of the old ones says nothing.
        if self.algorithm != asked.algorithm || self.window != asked.window {
            *self = Tracked::new(asked);
        }
        self.quota = asked.quota;
        if asked.now_us.saturating_sub(self.current.since_us) > GENERATION_US {
            let next = Generation { since_us: asked.now_us, ..Generation::default() };
            self.earlier = Some(std::mem::replace(&mut self.current, next));
        }
        self.current.note(asked, most);
    }

    fn told(&self, Name([domain, rule, limit]): &Name) -> LimitDemand {
        let told = |generation: &Generation| LimitDemand {
            domain: domain.to_string(),
            rule: rule.to_string(),
            limit: limit.to_string(),
            algorithm: self.algorithm.to_owned(),
            quota: self.quota,
            window_us: self.window.map(Micros::get),
            since_us: generation.since_us,
            halvings: generation.halvings,
            places: generation.places.iter().collect(),
            callers: generation
                .callers
                .iter()
                .map(|(caller, seen)| Peak { caller: *caller, used: seen.used, refused: seen.refused })
                .collect(),
            named: generation.named.clone(),
        };
        let generations: Vec<LimitDemand> = self.earlier.iter().chain([&self.current]).map(told).collect();
        // At different times: the busier of both.
        let mut joined = joined(&generations, u64::max);
        joined.quota = self.quota;
        joined
    }
}

impl Generation {
    fn note(&mut self, asked: &Asked<'_>, most: usize) {
        let used = asked.quota.saturating_sub(asked.remaining);
        if !sampled(asked.caller, self.halvings) {
            // Its place counts; that it is refused beyond the limit is known of the sampled only.
            self.places.add(if asked.refused { used.saturating_add(asked.hits) } else { used }, asked.n);
            return;
        }
        while self.callers.len() >= most && !self.callers.contains_key(&asked.caller) {
            self.halvings += 1;
            let halvings = self.halvings;
            self.callers.retain(|caller, _| sampled(*caller, halvings));
            if !sampled(asked.caller, halvings) {
                return self.note(asked, most);
            }
        }
        let seen = self.callers.entry(asked.caller).or_default();
        seen.used = seen.used.max(used);
        let mut place = used;
        if asked.refused {
            if asked.now_us >= seen.run_until_us {
                seen.run = 0;
                seen.run_until_us = asked.now_us.saturating_add(asked.window.map_or(0, Micros::get));
            }
            seen.run = seen.run.saturating_add(asked.hits.max(1).saturating_mul(asked.n));
            seen.refused = seen.refused.max(seen.run);
            place = used.saturating_add(seen.run);
        }
        self.places.add(place, asked.n);
        let peak = Peak { caller: asked.caller, used: seen.used, refused: seen.refused };
        self.name(peak, asked.key);
    }

    /// Keeps the key of a caller that is among the busiest.
    fn name(&mut self, peak: Peak, key: &[(&str, String)]) {
        let (mut least, mut least_needed) = (0, u64::MAX);
        for (place, known) in self.named.iter_mut().enumerate() {
            if known.peak.caller == peak.caller {
                known.peak = peak;
                return;
            }
            let needed = known.peak.needed();
            if needed < least_needed {
                (least, least_needed) = (place, needed);
            }
        }
        let owned = || key.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        if self.named.len() < NAMED {
            self.named.push(NamedPeak { peak, key: owned() });
            return;
        }
        if least_needed < peak.needed() {
            self.named[least] = NamedPeak { peak, key: owned() };
        }
    }
}

fn sampled(caller: u32, halvings: u32) -> bool {
    caller.trailing_zeros() >= halvings
}

/// Joins what several nodes say of their limits: what they saw of the same one becomes one.
#[must_use]
pub fn join_demands(parts: Vec<LimitDemand>) -> Vec<LimitDemand> {
    let mut of_limit: BTreeMap<(String, String, String), Vec<LimitDemand>> = BTreeMap::new();
    for part in parts {
        let name = (part.domain.clone(), part.rule.clone(), part.limit.clone());
        let known = of_limit.entry(name).or_default();
        // Nodes of another version of the rules count in other cells.
        if known
            .first()
            .is_none_or(|known| (known.window_us, &known.algorithm) == (part.window_us, &part.algorithm))
        {
            known.push(part);
        }
    }
    // What each node refused is its own: together it is the sum.
    of_limit.into_values().map(|parts| joined(&parts, u64::saturating_add)).collect()
}

fn joined(parts: &[LimitDemand], refused: fn(u64, u64) -> u64) -> LimitDemand {
    let Some(first) = parts.first() else { return LimitDemand::default() };
    let halvings = parts.iter().map(|part| part.halvings).max().unwrap_or(0);
    let mut callers: HashMap<u32, Peak> = HashMap::new();
    let mut places: BTreeMap<u64, u64> = BTreeMap::new();
    for part in parts {
        for peak in part.callers.iter().filter(|peak| sampled(peak.caller, halvings)) {
            let known = callers.entry(peak.caller).or_insert(Peak { caller: peak.caller, ..Peak::default() });
            (known.used, known.refused) = (known.used.max(peak.used), refused(known.refused, peak.refused));
        }
        part.places.iter().for_each(|(place, count)| *places.entry(*place).or_default() += count);
    }
    let mut named: HashMap<u32, NamedPeak> = HashMap::new();
    for one in parts.iter().flat_map(|part| &part.named) {
        let nobody = Peak { caller: one.peak.caller, ..Peak::default() };
        let known =
            named.entry(one.peak.caller).or_insert_with(|| NamedPeak { peak: nobody, key: one.key.clone() });
        known.peak.used = known.peak.used.max(one.peak.used);
        known.peak.refused = refused(known.peak.refused, one.peak.refused);
    }
    let mut named: Vec<NamedPeak> = named.into_values().collect();
    named.sort_by(|a, b| (b.peak.needed(), &a.key).cmp(&(a.peak.needed(), &b.key)));
    named.truncate(NAMED);
    let mut callers: Vec<Peak> = callers.into_values().collect();
    callers.sort_unstable_by_key(|peak| peak.caller);
    LimitDemand {
        since_us: parts.iter().map(|part| part.since_us).min().unwrap_or(0),
        halvings,
        places: places.into_iter().collect(),
        callers,
        named,
        ..first.clone()
    }
}

impl LimitDemand {
    /// Requests seen.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.places.iter().map(|(_, count)| count).sum()
    }

    /// How many callers each of those that are told apart stands for.
    #[must_use]
    pub fn sampled_one_in(&self) -> u64 {
        1 << self.halvings.min(32)
    }

    /// How many callers have which peak.
    #[must_use]
    pub fn peaks(&self) -> Histogram {
        let mut peaks = Histogram::default();
        self.callers.iter().for_each(|peak| peaks.add(peak.needed(), self.sampled_one_in()));
        peaks
    }

    /// Requests that a limit of `limit` would have refused, or about as many.
    #[must_use]
    pub fn requests_above(&self, limit: u64) -> u64 {
        self.places.iter().filter(|(place, _)| *place > limit).map(|(_, count)| count).sum()
    }

    /// The limit that 99.9 % of callers stay within; none where no caller was seen.
    #[must_use]
    pub fn suggestion(&self, most_named: usize) -> Option<SuggestedLimit> {
        let peaks = self.peaks();
        let limit = peaks.at_most(SUGGESTED)?.max(1);
        let above = self.named.iter().filter(|one| one.peak.needed() > limit);
        Some(SuggestedLimit {
            limit,
            confidence_percent: confidence_percent(self.callers.len() as u64),
            above: peaks.above(limit),
            requests_above: self.requests_above(limit),
            busiest: above.take(most_named).cloned().collect(),
        })
    }

    /// About how many bytes it takes as JSON.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let named = |one: &NamedPeak| {
            64 + one.key.iter().map(|(name, value)| name.len() + 2 * value.len() + 8).sum::<usize>()
        };
        256 + 24 * self.places.len() + 56 * self.callers.len() + self.named.iter().map(named).sum::<usize>()
    }

    /// Fewer callers, until it takes at most so many bytes. What is left is a sample as good as any of its size.
    pub fn cut(&mut self, most_bytes: usize) {
        while self.bytes() > most_bytes && !self.callers.is_empty() {
            self.halvings += 1;
            let halvings = self.halvings;
            self.callers.retain(|peak| sampled(peak.caller, halvings));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Option<Micros> = Some(Micros::from_secs(60));

    /// Caller `caller` asks under a limit of 100 a minute, has used `used` after that, and was refused or not.
    fn note(demand: &Demand, caller: u32, used: u64, refused: bool, now_us: u64) {
        let key = [("user", caller.to_string())];
        demand.note(&Asked {
            domain: "api",
            rule: "r",
            limit: "l",
            algorithm: "fixed_window",
            quota: 100,
            window: MINUTE,
            remaining: 100 - used,
            refused,
            hits: 1,
            n: 1,
            now_us,
            caller,
            key: &key,
        });
    }

    #[test]
    fn the_limit_that_999_of_1000_callers_stay_within_is_suggested_and_who_lies_above_is_named() {
        let demand = Demand::default();
        for caller in 0..3_000 {
            (1..=u64::from(caller % 10)).for_each(|used| note(&demand, caller, used, false, 1));
        }
        for caller in [5_000, 5_001] {
            (1..=50).for_each(|used| note(&demand, caller, used, false, 1));
        }
        let found = demand.of(Some("api"), None).remove(0);
        let suggested = found.suggestion(5).unwrap();
        assert_eq!((suggested.limit, suggested.above), (9, 2));
        assert_eq!(suggested.confidence_percent, 93);
        assert_eq!(suggested.requests_above, 2 * 41);
        let named: Vec<(&str, u64)> =
            suggested.busiest.iter().map(|one| (one.key[0].1.as_str(), one.peak.needed())).collect();
        assert_eq!(named, [("5000", 50), ("5001", 50)]);
        assert_eq!(found.requests(), 300 * 45 + 100);
    }

    #[test]
    fn what_is_refused_in_one_window_is_asked_beyond_the_limit() {
        let demand = Demand::default();
        (1..=100).for_each(|used| note(&demand, 7, used, false, 1));
        (0..30).for_each(|_| note(&demand, 7, 100, true, 2));
        // A minute later it asks for ten more than it may.
        (0..10).for_each(|_| note(&demand, 7, 100, true, 61_000_000));
        let found = demand.of(None, None).remove(0);
        assert_eq!(found.callers[0].needed(), 130);
        assert_eq!(
            (found.requests_above(100), found.requests_above(110), found.requests_above(90)),
            (40, 20, 50)
        );
    }

    #[test]
    fn nodes_that_saw_parts_of_a_caller_know_together_what_one_would() {
        let (one, other, whole) = (Demand::default(), Demand::default(), Demand::default());
        for used in 1..=100u64 {
            // The counter is the store's: both nodes see it grow.
            note(if used % 3 == 0 { &one } else { &other }, 7, used, false, 1);
            note(&whole, 7, used, false, 1);
        }
        for n in 0..20u64 {
            note(if n % 2 == 0 { &one } else { &other }, 7, 100, true, 2);
            note(&whole, 7, 100, true, 2);
        }
        let parts = [&one, &other].map(|node| node.of(None, None).remove(0)).to_vec();
        let joined = join_demands(parts).remove(0);
        let alone = whole.of(None, None).remove(0);
        assert_eq!(joined.callers, alone.callers);
        assert_eq!(joined.requests(), alone.requests());
    }

    #[test]
    fn more_callers_than_the_table_holds_are_sampled_alike_everywhere_and_still_estimate_all() {
        let hash = |n: u64| u32::try_from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap();
        let [one, other] = [0u64, 1].map(|node| {
            let demand = Demand::default();
            // Half of the callers are the same on both.
            (0..60_000u64).for_each(|n| note(&demand, hash(n + node * 30_000), 1 + n % 7, false, 1));
            demand
        });
        assert!(one.callers() <= MOST_CALLERS);
        let parts = [&one, &other].map(|node| node.of(None, None).remove(0)).to_vec();
        let mut joined = join_demands(parts).remove(0);
        let estimate = joined.peaks().total();
        assert!((80_000..100_000).contains(&estimate), "{estimate} of 90000");
        joined.cut(10_000);
        assert!(joined.bytes() <= 10_000 && !joined.callers.is_empty());
        let after = joined.peaks().total();
        assert!((50_000..140_000).contains(&after), "{after} of 90000");
    }

    #[test]
    fn what_is_older_than_two_days_is_forgotten_and_a_changed_window_begins_anew() {
        let demand = Demand::default();
        let day = 24 * 3_600_000_000;
        note(&demand, 1, 90, false, 1);
        note(&demand, 1, 10, false, day + 2);
        let peak = |demand: &Demand| demand.of(None, None)[0].callers[0].needed();
        assert_eq!(peak(&demand), 90, "yesterday counts");
        note(&demand, 1, 20, false, 2 * day + 4);
        assert_eq!(peak(&demand), 20);
    }

    #[test]
    fn confidence_grows_with_the_number_of_callers() {
        assert_eq!([0, 10, 693, 2_995, 100_000].map(confidence_percent), [0, 0, 50, 95, 100]);
    }
}
