//! Whole minutes of traffic, by rule: what baselines are made of.
//!
//! Where nodes share a store, they add up what they count there, and a minute is read from it. Where a node is alone,
//! [`Minutes`] takes it from counters that only grow. A minute that was not seen whole, because the process began in it or
//! the clock was set, is none.

use std::collections::{BTreeMap, HashMap};

use super::kinds::RuleName;

/// A look that comes later than this after the last one was not a look: the clock was set, or the machine stood still.
const LONGEST_GAP_S: u64 = 20;
/// Seconds of a minute that must have been seen.
const LEAST_SEEN_S: u64 = 40;

/// What a rule said since the process began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Which.
    pub rule: RuleName,
    /// All that it matched.
    pub total: u64,
    /// What it refused.
    pub refused: u64,
    /// What it would have refused, were it not a shadow.
    pub shadow_refused: u64,
}

/// What a rule said in one minute.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// All that it matched.
    pub total: f64,
    /// What it refused.
    pub refused: f64,
    /// What it would have refused, were it not a shadow.
    pub shadow: f64,
}

/// What rules said in one whole minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Minute {
    /// Minutes since 1970.
    pub number: u64,
    /// By rule; one that is not there said nothing.
    pub rules: BTreeMap<RuleName, Counts>,
}

/// Makes minutes of counters that only grow.
#[derive(Debug, Default)]
pub struct Minutes {
    last: HashMap<RuleName, RuleCounts>,
    last_s: Option<u64>,
    current: Minute,
    seen_s: u64,
}

impl Minutes {
    /// Takes note of what was counted at `now_s`: the minute before, once it is over.
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
        // One request a second, a look every two.
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
