//! Recurring bursts of a rule: a burst as high and as long as three others within a day is not worth an alert.
//!
//! A baseline cannot learn this: a burst is far from usual, so it is not learned from, and the next one is just as far.

use std::collections::VecDeque;

/// The most bursts remembered per rule, and for how many minutes.
const MOST: usize = 16;
const KNOWN_FOR: u64 = 24 * 60;
/// How many similar bursts there must have been.
const OFTEN: usize = 3;
/// A burst is similar to another if neither its height nor its length differs by more than this factor.
const ALIKE: f64 = 2.0;

/// The bursts of one rule.
#[derive(Debug, Default)]
pub(super) struct Bursts {
    over: VecDeque<Burst>,
    now: Option<Burst>,
}

#[derive(Clone, Copy, Debug)]
struct Burst {
    last: u64,
    minutes: u32,
    peak: f64,
}

impl Bursts {
    /// Records a minute far above usual; returns whether there were often bursts like this one.
    pub(super) fn is_often(&mut self, minute: u64, value: f64) -> bool {
        let before = self.now.unwrap_or(Burst { last: minute, minutes: 0, peak: 0.0 });
        let now = Burst { last: minute, minutes: before.minutes + 1, peak: before.peak.max(value) };
        self.now = Some(now);
        let is_like = |one: &&Burst| {
            minute.abs_diff(one.last) < KNOWN_FOR
                && now.peak <= ALIKE * one.peak
                && f64::from(now.minutes) <= ALIKE * f64::from(one.minutes)
        };
        self.over.iter().filter(is_like).count() >= OFTEN
    }

    /// Records a minute that is not.
    pub(super) fn end(&mut self) {
        let Some(burst) = self.now.take() else { return };
        if self.over.len() >= MOST {
            self.over.pop_front();
        }
        self.over.push_back(burst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three minutes of 900, every hour for `hours` hours.
    fn after(hours: u64) -> Bursts {
        let mut bursts = Bursts::default();
        for hour in 0..hours {
            (0..3).for_each(|minute| {
                bursts.is_often(hour * 60 + minute, 900.0);
            });
            bursts.end();
        }
        bursts
    }

    #[test]
    fn the_fourth_burst_of_a_day_is_no_news_unless_it_is_far_higher() {
        assert!(!after(2).is_often(180, 900.0));
        assert!(after(3).is_often(180, 900.0));
        assert!(!after(3).is_often(180, 2_000.0));
        assert!(!after(3).is_often(3 * DAY, 900.0), "that was days ago");
    }

    const DAY: u64 = 24 * 60;

    #[test]
    fn a_burst_that_does_not_end_as_the_others_did_is_news() {
        let mut bursts = after(10);
        let often: Vec<bool> = (600..608).map(|minute| bursts.is_often(minute, 900.0)).collect();
        assert_eq!(often, [true, true, true, true, true, true, false, false]);
    }

    #[test]
    fn no_more_than_a_few_bursts_are_remembered() {
        assert_eq!(after(1_000).over.len(), MOST);
    }
}
