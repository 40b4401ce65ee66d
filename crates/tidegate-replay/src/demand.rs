//! The peak demand of one caller, independent of the limit: the limit that would have admitted everything.
//!
//! For a window it is the peak count. For a bucket it is the burst that its rate would have needed: the highest backlog of
//! an unbounded bucket. A sliding window has no fixed edges, so its peak is taken over eight slots of a seventh of the
//! window each, which contain every window of that length: it errs upwards, by what came within a seventh of the window.
//!
//! A *run* is one window, or one period in which a bucket was not empty. With a limit of L, a run with a demand of m has
//! about m - L requests refused: exact for fixed windows, an estimate for the others.

use tidegate_core::{Limit, Timestamp};
use tidegate_decisions::Histogram;

const SLOTS: usize = 8;

/// One caller's demand on one limit.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    pub(crate) peak: u64,
    /// The peak of the current run.
    run: u64,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Window {
        start: u64,
    },
    Sliding {
        /// The end of the current slot, in microseconds.
        slot_end: u64,
        /// The hits in each slot, latest first.
        ring: [u32; SLOTS],
    },
    Bucket {
        backlog: u64,
        as_of: u64,
    },
    /// A concurrency limit: the number held at once is not a demand over time.
    Unknown,
}

impl Demand {
    pub(crate) fn new(limit: &Limit) -> Self {
        let state = if limit.takes_lease() {
            State::Unknown
        } else if limit.refills() {
            State::Bucket { backlog: 0, as_of: 0 }
        } else if limit.window_around(Timestamp::default()).is_some() {
            State::Window { start: 0 }
        } else {
            State::Sliding { slot_end: 0, ring: [0; SLOTS] }
        };
        Demand { peak: 0, run: 0, state }
    }

    /// Records a request for `hits` at `now`; ended runs are added to `runs`.
    pub(crate) fn note(&mut self, limit: &Limit, now: Timestamp, hits: u64, runs: &mut Histogram) {
        match &mut self.state {
            State::Window { start } => {
                let Some((current, _)) = limit.window_around(now) else { return };
                let current = current.as_micros();
                if current != *start {
                    *start = current;
                    end_run(&mut self.run, runs);
                }
                self.run = self.run.saturating_add(hits);
                self.peak = self.peak.max(self.run);
            }
            State::Sliding { slot_end, ring } => {
                if now.as_micros() >= *slot_end {
                    let window = limit.period().map_or(1, |window| window.get()).max(7);
                    // Seven of these cover the window; an eighth because it may start anywhere within a slot.
                    let width = window.div_ceil(7);
                    let (slot, current) = ((*slot_end / width).saturating_sub(1), now.as_micros() / width);
                    if current / 7 != slot / 7 {
                        end_run(&mut self.run, runs);
                    }
                    let passed = usize::try_from(current - slot).map_or(SLOTS, |n| n.min(SLOTS));
                    ring.copy_within(..SLOTS - passed, passed);
                    ring[..passed].fill(0);
                    *slot_end = (current + 1).saturating_mul(width);
                }
                let added = u32::try_from(hits).unwrap_or(u32::MAX).min(u32::MAX - ring[0]);
                ring[0] += added;
                self.run = self.run.saturating_add(hits);
                self.peak = self.peak.max(ring.iter().map(|count| u64::from(*count)).sum());
            }
            State::Bucket { backlog, as_of } => {
                let Some(rate) = limit.rate() else { return };
                let period = rate.period().get();
                let drained = now.as_micros().saturating_sub(*as_of).saturating_mul(rate.count());
                *backlog = backlog.saturating_sub(drained);
                if *backlog == 0 {
                    end_run(&mut self.run, runs);
                }
                *as_of = now.as_micros().max(*as_of);
                *backlog = backlog.saturating_add(hits.saturating_mul(period));
                self.run = self.run.max(backlog.div_ceil(period));
                self.peak = self.peak.max(self.run);
            }
            State::Unknown => {}
        }
    }

    /// Ends the open run: no more requests follow.
    pub(crate) fn finish(&mut self, runs: &mut Histogram) {
        end_run(&mut self.run, runs);
    }
}

fn end_run(run: &mut u64, runs: &mut Histogram) {
    if *run > 0 {
        runs.add(*run, 1);
        *run = 0;
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{FixedWindow, Micros, Rate, SlidingWindow, TokenBucket};

    use super::*;

    /// Checks the peak and the runs of a caller with requests at these milliseconds.
    #[track_caller]
    fn check(limit: &Limit, at_ms: &[u64], peak: u64, runs: &[(u64, u64)]) {
        let (mut demand, mut ended) = (Demand::new(limit), Histogram::default());
        for ms in at_ms {
            let now = Timestamp::from_micros(1_800_000_000_000_000 + ms * 1_000);
            demand.note(limit, now, 1, &mut ended);
        }
        demand.finish(&mut ended);
        assert_eq!((demand.peak, ended.iter().collect::<Vec<_>>()), (peak, runs.to_vec()));
    }

    #[test]
    fn a_fixed_window_asks_for_its_fullest() {
        let limit = Limit::FixedWindow(FixedWindow::new(5, Micros::from_secs(1)).unwrap());
        check(&limit, &[0, 100, 999, 1_000, 2_500], 3, &[(1, 2), (3, 1)]);
    }

    #[test]
    fn a_bucket_asks_for_the_burst_that_its_rate_would_need() {
        let rate = Rate::new(10, Micros::from_secs(1)).unwrap();
        let limit = Limit::TokenBucket(TokenBucket::new(rate, 5).unwrap());
        // Three at once need a burst of 3. After 100 ms one has drained, so the next needs 3 again.
        check(&limit, &[0, 0, 0, 100], 3, &[(3, 1)]);
        check(&limit, &[0, 0, 5_000], 2, &[(1, 1), (2, 1)]);
    }

    #[test]
    fn a_sliding_window_asks_for_what_lies_over_an_edge_too() {
        let limit = Limit::SlidingWindow(SlidingWindow::new(5, Micros::from_secs(7)).unwrap());
        // Six within four seconds, across the edge of two aligned windows.
        let edge = 7_000 - (1_800_000_000_000 % 7_000);
        let at: Vec<u64> = (0..6).map(|n| edge - 2_000 + n * 800).collect();
        let (mut demand, mut runs) = (Demand::new(&limit), Histogram::default());
        for ms in at {
            let now = Timestamp::from_micros(1_800_000_000_000_000 + ms * 1_000);
            demand.note(&limit, now, 1, &mut runs);
        }
        assert_eq!(demand.peak, 6);
    }

    #[test]
    fn what_lies_further_apart_than_a_window_and_a_seventh_is_not_added_up() {
        let limit = Limit::SlidingWindow(SlidingWindow::new(5, Micros::from_secs(7)).unwrap());
        check(&limit, &[0, 8_001, 16_002, 100_000], 1, &[(1, 4)]);
    }
}
