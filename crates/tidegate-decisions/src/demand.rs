//! The peak demand of callers on each limit, estimated from logged decisions, to suggest limits.
//!
//! A decision says what remains of a limit, so the rest is used. The number is the store's, so it includes what the caller
//! did on every node, and one logged decision in a hundred is enough to see it. A caller's *peak* is the most it was seen to
//! use, plus, if it was refused, the hits it requested beyond the limit. A request's *place* is the usage just after it: a
//! lower limit L would have refused the requests with a place above L (exactly for windows; a bucket refuses fewer, because
//! refused requests do not fill it).
//!
//! Places of admissions add up over nodes, because the shared store counted them in sequence. Refusals are not counted in
//! the store, so each node knows only its own; their places follow from the number of a caller's refusals in one window on
//! all nodes. So each node reports that number by caller and window. Windows are the same on all nodes: they begin at
//! multiples of their length. Beyond [`MOST_RUNS`], the oldest refusals are placed using only their own node's number, which
//! is too low.
//!
//! Peaks are merged caller by caller. A full table drops every second caller, by a hash that all nodes agree on; if the
//! bound over all limits is reached, the largest table does, so that a limit with few callers loses none to one with many.
//! Data older than two days is dropped.

mod cut;
mod join;

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};
use tidegate_core::Micros;

pub use self::join::join_demands;
use self::join::{Refusals, joined, run};
use crate::histogram::Histogram;
use crate::table::{Name, Parts, Quick, Table};

/// The most callers tracked per limit, and over all limits: about 60 bytes each.
const MOST_CALLERS: usize = 6_144;
const MOST_CALLERS_OF_ALL: usize = 131_072;
/// The most pairs of caller and window with separate refusal counts per limit, and over all limits, which get equal parts.
const MOST_RUNS: usize = 1_024;
const MOST_RUNS_OF_ALL: usize = 21_845;
/// The most limits tracked; further ones are ignored.
const MOST_LIMITS: usize = 1_000;
/// The number of top callers of a limit whose keys are kept.
const NAMED: usize = 32;
/// How long a table is filled before a new one is started. The last two are reported.
const GENERATION_US: u64 = 24 * 3_600_000_000;
/// The percentile of callers that a suggested limit lets pass, in thousandths.
const SUGGESTED: u64 = 999;

/// The demand of callers on each limit.
#[derive(Default)]
pub struct Demand {
    limits: Mutex<Limits>,
}

struct Limits {
    table: Table<Name, Tracked>,
    /// Upper bound of the callers in current generations: callers dropped to make room for other limits are not subtracted.
    callers: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { table: Table::new(MOST_LIMITS, 2 * GENERATION_US), callers: 0 }
    }
}

/// One decision under one limit.
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
    /// The number of decisions that this one stands for.
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
    /// Refusals by the number of their window, then by caller.
    runs: BTreeMap<(u64, u32), Refused>,
    named: Vec<NamedPeak>,
    left_out: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    used: u64,
    /// The most hits refused within one window.
    refused: u64,
}

/// A caller's refusals within one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Refused {
    /// The most used at that time.
    used: u64,
    hits: u64,
    requests: u64,
}

impl Refused {
    /// The places of the refused requests, assuming equal hits, and the number of requests at each.
    fn places(self) -> impl Iterator<Item = (u64, u64)> {
        // A few thousand steps draw the curve well enough.
        let steps = self.requests.min(4_096);
        let part = move |of: u64, step: u64| {
            u64::try_from(u128::from(of) * u128::from(step) / u128::from(steps.max(1))).unwrap_or(u64::MAX)
        };
        (1..=steps).map(move |step| {
            let count = part(self.requests, step) - part(self.requests, step - 1);
            (self.used.saturating_add(part(self.hits, step)), count)
        })
    }
}

/// A caller's refusals within one window, as nodes report them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The window's number since the Unix epoch.
    pub window: u64,
    /// A hash of the caller's key.
    pub caller: u32,
    /// The most used at that time.
    pub used: u64,
    /// Refused hits.
    pub hits: u64,
    /// Refused requests.
    pub requests: u64,
}

/// The most that a caller was seen to use, and its refused hits beyond that within one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peak {
    /// A hash of its key.
    pub caller: u32,
    /// The most it used.
    pub used: u64,
    /// The most hits refused within one window.
    pub refused: u64,
}

impl Peak {
    /// The limit that would have admitted everything.
    #[must_use]
    pub fn needed(&self) -> u64 {
        self.used.saturating_add(self.refused)
    }
}

/// A top caller with its key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedPeak {
    /// Its peak.
    #[serde(flatten)]
    pub peak: Peak,
    /// Its key: names and values, as logged.
    pub key: Vec<(String, String)>,
}

/// The demand on one limit, from one node or several.
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
    /// Its window in microseconds; `None` for calendar windows.
    pub window_us: Option<u64>,
    /// The start of the data, in microseconds since the Unix epoch.
    pub since_us: u64,
    /// The sampling of callers: one in 2^`halvings` is tracked.
    pub halvings: u32,
    /// Places of requests, and the number of requests at each; without those in `runs`.
    pub places: Vec<(u64, u64)>,
    /// Refusals, by window and caller.
    #[serde(default, serialize_with = "run_rows")]
    pub runs: Vec<Run>,
    /// Callers, each with its peak.
    #[serde(serialize_with = "peak_rows")]
    pub callers: Vec<Peak>,
    /// The busiest callers.
    pub named: Vec<NamedPeak>,
    /// Requests of callers with limits of their own: these are in none of the other numbers.
    #[serde(default)]
    pub left_out: u64,
}

/// Serialized without field names, which halves the length; every release reads both forms.
fn peak_rows<S: Serializer>(peaks: &[Peak], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(peaks.iter().map(|Peak { caller, used, refused }| (caller, used, refused)))
}

fn run_rows<S: Serializer>(runs: &[Run], to: S) -> Result<S::Ok, S::Error> {
    let row = |run: &Run| (run.window, run.caller, run.used, run.hits, run.requests);
    to.collect_seq(runs.iter().map(row))
}

/// The limit that 99.9 % of callers stay within.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuggestedLimit {
    /// The limit.
    pub limit: u64,
    /// The confidence that the 99.9th percentile of all such callers is within it.
    pub confidence_percent: u64,
    /// Callers above it.
    pub above: u64,
    /// Requests above it.
    pub requests_above: u64,
    /// The top callers above it.
    pub busiest: Vec<NamedPeak>,
}

/// The confidence, in percent, that the 99.9th percentile of all callers is within the largest peak of `callers` of them: `1
/// - 0.999^callers`. With few callers, the busiest one seen may not be the busiest of all.
#[must_use]
pub fn confidence_percent(callers: u64) -> u64 {
    let unseen = 0.999f64.powi(i32::try_from(callers).unwrap_or(i32::MAX));
    (100.0 * (1.0 - unseen)).floor() as u64
}

impl Demand {
    pub(crate) fn note(&self, asked: &Asked<'_>) {
        self.limits.lock().note(asked);
    }

    /// Counts requests of callers with limits of their own, which are left out.
    pub(crate) fn leave_out(&self, name: [&str; 3], n: u64) {
        let mut limits = self.limits.lock();
        limits.table.if_known(&name as &dyn Parts, |tracked| tracked.current.left_out += n);
    }

    /// The demand on the limits of this domain and rule, or of all where `None`.
    #[must_use]
    pub fn of(&self, domain: Option<&str>, rule: Option<&str>) -> Vec<LimitDemand> {
        let fits = |Name([known, of, _]): &Name| {
            domain.is_none_or(|domain| domain == &**known) && rule.is_none_or(|rule| rule == &**of)
        };
        let table = &self.limits.lock().table;
        let mut found: Vec<LimitDemand> =
            table.iter().filter(|(name, _)| fits(name)).map(|(name, tracked)| tracked.told(name)).collect();
        found.sort_by(|a, b| (&a.domain, &a.rule, &a.limit).cmp(&(&b.domain, &b.rule, &b.limit)));
        found
    }

    /// The number of callers tracked, over all limits.
    #[must_use]
    pub fn callers(&self) -> usize {
        let generations = |tracked: &Tracked| {
            tracked.current.callers.len()
                + tracked.earlier.as_ref().map_or(0, |earlier| earlier.callers.len())
        };
        self.limits.lock().table.iter().map(|(_, tracked)| generations(tracked)).sum()
    }
}

impl Limits {
    fn note(&mut self, asked: &Asked<'_>) {
        let name = [asked.domain, asked.rule, asked.limit];
        let most_runs = (MOST_RUNS_OF_ALL / self.table.len().max(1)).min(MOST_RUNS);
        let begun = || (Name::new(name), Tracked::new(asked));
        let noted = self.table.at(asked.now_us, &name as &dyn Parts, begun, |tracked| {
            let before = tracked.current.callers.len();
            tracked.note(asked, most_runs);
            (before, tracked.current.callers.len())
        });
        let (before, after) = noted.unwrap_or_default();
        self.callers = (self.callers + after).saturating_sub(before);
        if self.callers > MOST_CALLERS_OF_ALL {
            self.make_room();
        }
    }

    /// Halves the limit with the most callers until the total is within the bound.
    fn make_room(&mut self) {
        self.callers = self.table.iter().map(|(_, tracked)| tracked.current.callers.len()).sum();
        while self.callers > MOST_CALLERS_OF_ALL {
            let largest = self.table.values_mut().max_by_key(|tracked| tracked.current.callers.len());
            let Some(Tracked { current, .. }) = largest else { return };
            let before = current.callers.len();
            current.halve();
            self.callers -= before - current.callers.len();
        }
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

    fn note(&mut self, asked: &Asked<'_>, most_runs: usize) {
        // A changed window or algorithm uses other cells: the data of the old ones does not apply.
        if self.algorithm != asked.algorithm || self.window != asked.window {
            *self = Tracked::new(asked);
        }
        self.quota = asked.quota;
        if asked.now_us.saturating_sub(self.current.since_us) > GENERATION_US {
            let next = Generation { since_us: asked.now_us, ..Generation::default() };
            self.earlier = Some(std::mem::replace(&mut self.current, next));
        }
        self.current.note(asked, most_runs);
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
            runs: generation.runs.iter().map(|(at, refused)| run(*at, *refused)).collect(),
            callers: generation
                .callers
                .iter()
                .map(|(caller, seen)| Peak { caller: *caller, used: seen.used, refused: seen.refused })
                .collect(),
            named: generation.named.clone(),
            left_out: generation.left_out,
        };
        let generations: Vec<LimitDemand> = self.earlier.iter().chain([&self.current]).map(told).collect();
        // The generations cover different times, so the larger refusal counts.
        let mut joined = joined(&generations, Refusals::AtOtherTimes);
        joined.quota = self.quota;
        joined
    }
}

impl Generation {
    fn note(&mut self, asked: &Asked<'_>, most_runs: usize) {
        let used = asked.quota.saturating_sub(asked.remaining);
        if !sampled(asked.caller, self.halvings) {
            // Only its place counts; refusals beyond the limit are tracked only for sampled callers.
            let refused = if asked.refused { asked.hits.max(1) } else { 0 };
            self.places.add(used.saturating_add(refused), asked.n);
            return;
        }
        while self.callers.len() >= MOST_CALLERS && !self.callers.contains_key(&asked.caller) {
            self.halve();
            if !sampled(asked.caller, self.halvings) {
                return self.note(asked, most_runs);
            }
        }
        let seen = self.callers.entry(asked.caller).or_default();
        seen.used = seen.used.max(used);
        match asked.window.map(Micros::get).filter(|window| asked.refused && *window > 0) {
            Some(window) => {
                let run = self.runs.entry((asked.now_us / window, asked.caller)).or_default();
                run.used = run.used.max(used);
                run.hits = run.hits.saturating_add(asked.hits.max(1).saturating_mul(asked.n));
                run.requests = run.requests.saturating_add(asked.n);
                seen.refused = seen.refused.max(run.hits);
            }
            None => {
                let refused = if asked.refused { asked.hits.max(1) } else { 0 };
                seen.refused = seen.refused.max(refused);
                self.places.add(used.saturating_add(refused), asked.n);
            }
        }
        let peak = Peak { caller: asked.caller, used: seen.used, refused: seen.refused };
        self.name(peak, asked.key);
        while self.runs.len() > most_runs {
            if let Some((_, oldest)) = self.runs.pop_first() {
                oldest.places().for_each(|(place, count)| self.places.add(place, count));
            }
        }
    }

    fn halve(&mut self) {
        self.halvings += 1;
        let halvings = self.halvings;
        self.callers.retain(|caller, _| sampled(*caller, halvings));
        self.callers.shrink_to_fit();
    }

    /// Keeps the key of a caller if it is among the top ones.
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

impl LimitDemand {
    /// The number of requests seen.
    #[must_use]
    pub fn requests(&self) -> u64 {
        // Another node told these numbers: they may be anything.
        let placed = self.places.iter().map(|(_, count)| *count);
        placed.chain(self.runs.iter().map(|run| run.requests)).fold(0, u64::saturating_add)
    }

    /// The number of callers that each tracked one stands for.
    #[must_use]
    pub fn sampled_one_in(&self) -> u64 {
        1 << self.halvings.min(32)
    }

    /// The distribution of callers' peaks.
    #[must_use]
    pub fn peaks(&self) -> Histogram {
        let mut peaks = Histogram::default();
        self.callers.iter().for_each(|peak| peaks.add(peak.needed(), self.sampled_one_in()));
        peaks
    }

    /// The approximate number of requests that a limit of `limit` would have refused.
    #[must_use]
    pub fn requests_above(&self, limit: u64) -> u64 {
        let above = |places: &mut dyn Iterator<Item = (u64, u64)>| -> u64 {
            places.filter(|(place, _)| *place > limit).map(|(_, count)| count).fold(0, u64::saturating_add)
        };
        let of_run = |run: &Run| {
            let Run { used, hits, requests, .. } = *run;
            above(&mut Refused { used, hits, requests }.places())
        };
        let placed = above(&mut self.places.iter().copied());
        self.runs.iter().map(of_run).fold(placed, u64::saturating_add)
    }

    /// The limit that 99.9 % of callers stay within; `None` if no caller was seen.
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
}

#[cfg(test)]
mod tests;
