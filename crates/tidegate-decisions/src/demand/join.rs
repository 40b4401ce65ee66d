//! Merges the demand on a limit from several nodes, or from several tables of one node.

use std::collections::{BTreeMap, HashMap};

use super::{LimitDemand, NAMED, NamedPeak, Peak, Refused, Run, sampled};

/// Merges the demand on each limit over several nodes.
#[must_use]
pub fn join_demands(parts: Vec<LimitDemand>) -> Vec<LimitDemand> {
    let mut of_limit: BTreeMap<(String, String, String), Vec<LimitDemand>> = BTreeMap::new();
    for part in parts {
        let name = (part.domain.clone(), part.rule.clone(), part.limit.clone());
        let known = of_limit.entry(name).or_default();
        // Nodes with another version of the rules use other cells.
        if known
            .first()
            .is_none_or(|known| (known.window_us, &known.algorithm) == (part.window_us, &part.algorithm))
        {
            known.push(part);
        }
    }
    of_limit.into_values().map(|parts| joined(&parts, Refusals::AtOnce)).collect()
}

pub(super) fn run((window, caller): (u64, u32), refused: Refused) -> Run {
    let Refused { used, hits, requests } = refused;
    Run { window, caller, used, hits, requests }
}

/// How the refusals in the merged parts relate in time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusals {
    /// At different times: the larger number counts.
    AtOtherTimes,
    /// On several nodes at once: the numbers add up.
    AtOnce,
}

pub(super) fn joined(parts: &[LimitDemand], when: Refusals) -> LimitDemand {
    let Some(first) = parts.first() else { return LimitDemand::default() };
    // A part without callers, as earlier releases could cut them, must not erase those of the others.
    let with_callers = parts.iter().filter(|part| !part.callers.is_empty());
    let halvings = with_callers.map(|part| part.halvings).max().unwrap_or(0);
    let mut callers: HashMap<u32, Peak> = HashMap::new();
    let mut places: BTreeMap<u64, u64> = BTreeMap::new();
    let mut runs: BTreeMap<(u64, u32), Refused> = BTreeMap::new();
    for part in parts {
        for (place, count) in &part.places {
            let sum = places.entry(*place).or_default();
            *sum = sum.saturating_add(*count);
        }
        for one in &part.runs {
            let run = runs.entry((one.window, one.caller)).or_default();
            run.used = run.used.max(one.used);
            run.hits = run.hits.saturating_add(one.hits);
            run.requests = run.requests.saturating_add(one.requests);
        }
    }
    let most_refused = MostRefused::of(&runs, parts, when);
    for peak in parts.iter().flat_map(|part| &part.callers).filter(|peak| sampled(peak.caller, halvings)) {
        let known = callers.entry(peak.caller).or_insert(Peak { caller: peak.caller, ..Peak::default() });
        known.used = known.used.max(peak.used);
        known.refused = most_refused.with(known.refused, peak);
    }
    let mut named: HashMap<u32, NamedPeak> = HashMap::new();
    for one in parts.iter().flat_map(|part| &part.named) {
        let nobody = Peak { caller: one.peak.caller, ..Peak::default() };
        let known =
            named.entry(one.peak.caller).or_insert_with(|| NamedPeak { peak: nobody, key: one.key.clone() });
        known.peak.used = known.peak.used.max(one.peak.used);
        known.peak.refused = most_refused.with(known.peak.refused, &one.peak);
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
        runs: runs.into_iter().map(|(at, refused)| run(at, refused)).collect(),
        callers,
        named,
        left_out: parts.iter().fold(0, |sum, part| sum.saturating_add(part.left_out)),
        ..first.clone()
    }
}

/// The most hits each caller was refused within one window, over all parts.
struct MostRefused {
    when: Refusals,
    /// Callers whose busiest window is known on every part.
    known: HashMap<u32, u64>,
}

impl MostRefused {
    fn of(runs: &BTreeMap<(u64, u32), Refused>, parts: &[LimitDemand], when: Refusals) -> Self {
        let mut known: HashMap<u32, u64> = HashMap::new();
        for ((_, caller), run) in runs {
            let most = known.entry(*caller).or_default();
            *most = run.hits.max(*most);
        }
        for part in parts {
            let mut own: HashMap<u32, u64> = HashMap::new();
            part.runs.iter().for_each(|run| {
                let most = own.entry(run.caller).or_default();
                *most = run.hits.max(*most);
            });
            // The run of its busiest window was dropped.
            for peak in part.callers.iter().filter(|peak| own.get(&peak.caller) < Some(&peak.refused)) {
                known.remove(&peak.caller);
            }
        }
        MostRefused { when, known }
    }

    /// The most hits a caller was refused, given `so_far` from other parts.
    fn with(&self, so_far: u64, peak: &Peak) -> u64 {
        match (self.known.get(&peak.caller), self.when) {
            (Some(known), _) => *known,
            (None, Refusals::AtOtherTimes) => so_far.max(peak.refused),
            (None, Refusals::AtOnce) => so_far.saturating_add(peak.refused),
        }
    }
}
