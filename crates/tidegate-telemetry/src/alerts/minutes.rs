//! Whole minutes of traffic by rule: the input of baselines.
//!
//! If nodes share a store, they add up their counts there, and a minute is read from it. For a single node, [`Minutes`]
//! derives it from cumulative counters. A minute that was not seen whole, because the process started in it or the clock was
//! set, is skipped.

use std::collections::{BTreeMap, HashMap};

use super::kinds::RuleName;

/// After a longer gap between two looks, the clock was set or the machine was suspended.
const LONGEST_GAP_S: u64 = 20;
/// Seconds of a minute that must have been seen.
const LEAST_SEEN_S: u64 = 40;

/// A rule's decisions since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// The rule.
    pub rule: RuleName,
    /// Matched requests.
    pub total: u64,
    /// Refused requests.
    pub refused: u64,
    /// Requests that it would have refused, if it were not in shadow.
    pub shadow_refused: u64,
}

/// A rule's decisions in one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Matched requests.
    pub total: f64,
    /// Refused requests.
    pub refused: f64,
    /// Requests that it would have refused, if it were not in shadow.
    pub shadow: f64,
}

/// All rules' decisions in one whole minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Minute {
    /// Minutes since 1970.
    pub number: u64,
    /// By rule; a missing one decided nothing.
    pub rules: BTreeMap<RuleName, Counts>,
}

/// Derives minutes from cumulative counters.
#[derive(Debug, Default)]
pub struct Minutes {
    last: HashMap<RuleName, RuleCounts>,
    last_s: Option<u64>,
    current: Minute,
    seen_s: u64,
}

impl Minutes {
    /// Records the counters at `now_s`; returns the previous minute once it is over.
    pub fn add(&mut self, now_s: u64, rules: Vec<RuleCounts>) -> Option<Minute> {
        let gap = self.last_s.map(|last| now_s.checked_sub(last));
        let went_on = matches!(gap, Some(Some(seconds)) if seconds <= LONGEST_GAP_S);
        let (number, mut over) = (now_s / 60, None);
        if !went_on || number != self.current.number {
            let minute = std::mem::replace(&mut self.current, Minute { number, ..Minute::default() });
            let seen = std::mem::take(&mut self.seen_s);
            over = (went_on && seen >= LEAST_SEEN_S).then_some(minute);
        }
        if went_on {
            self.seen_s += now_s - self.last_s.unwrap_or(now_s);
            rules.iter().for_each(|counts| self.count(counts));
        }
        self.last_s = Some(now_s);
        self.last = rules.into_iter().map(|counts| (counts.rule.clone(), counts)).collect();
        over
    }

    fn count(&mut self, counts: &RuleCounts) {
        let none = RuleCounts::default();
        let then = self.last.get(&counts.rule).unwrap_or(&none);
        let more = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let total = more(counts.total, then.total);
        if total == 0.0 {
            return;
        }
        let sum = self.current.rules.entry(counts.rule.clone()).or_default();
        sum.total += total;
        sum.refused += more(counts.refused, then.refused);
        sum.shadow += more(counts.shadow_refused, then.shadow_refused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(total: u64) -> Vec<RuleCounts> {
        vec![RuleCounts { rule: RuleName::new("api", "r"), total, refused: total / 2, shadow_refused: 0 }]
    }

    fn total(minute: &Minute) -> f64 {
        minute.rules.values().map(|counts| counts.total).sum()
    }

    #[test]
    fn a_minute_is_what_came_between_its_looks() {
        let mut minutes = Minutes::default();
        // One request per second, a look every two.
        let over: Vec<Minute> = (300..500).step_by(2).filter_map(|s| minutes.add(s, counted(s))).collect();
        assert_eq!(over.iter().map(|minute| minute.number).collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!((total(&over[1]), over[1].rules.values().next().unwrap().refused), (60.0, 30.0));
    }

    #[test]
    fn a_clock_that_is_set_makes_no_minute_of_what_lay_between() {
        let mut minutes = Minutes::default();
        (0..50).for_each(|s| assert_eq!(minutes.add(s, counted(s)), None));
        assert_eq!(minutes.add(10_800, counted(50)), None, "three hours ahead");
        assert_eq!(minutes.add(60, counted(51)), None, "and back");
        let next: Vec<Minute> = (61..130).filter_map(|s| minutes.add(s, counted(s - 9))).collect();
        assert_eq!(next.len(), 1);
        assert!(total(&next[0]) <= 60.0, "{next:?}");
    }

    #[test]
    fn the_minute_in_which_a_process_began_is_none_unless_most_of_it_was_seen() {
        let mut minutes = Minutes::default();
        assert_eq!((45..62).filter_map(|s| minutes.add(s, counted(s))).count(), 0);
        assert_eq!((62..122).filter_map(|s| minutes.add(s, counted(s))).count(), 1);
    }
}
