//! Counts over time in a bounded number of buckets, whatever the span of the log.

use std::ops::Range;

use tidegate_core::Timestamp;

use crate::report::Timeline;

/// Widths in seconds. Each divides the next, so that buckets merge without splitting.
const WIDTHS: [u64; 15] =
    [1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 7_200, 14_400, 28_800, 86_400, 604_800, 6_048_000];
const MOST_BUCKETS: u64 = 240;
const MICROS: u64 = 1_000_000;

/// Requests, refused now, and refused before, over time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    width: usize,
    first: u64,
    counts: Vec<[u64; 3]>,
    /// The last bucket used, and its span in microseconds: most requests are in the same one.
    last: usize,
    last_span: Range<u64>,
}

impl Buckets {
    /// Adds counts at `at`. Time does not go back: an earlier time counts in the first bucket.
    pub(crate) fn add(&mut self, at: Timestamp, counts: [u64; 3]) {
        if !self.last_span.contains(&at.as_micros()) {
            self.find(at);
        }
        for (sum, count) in self.counts[self.last].iter_mut().zip(counts) {
            *sum += count;
        }
    }

    /// Finds or creates the bucket for a time.
    #[cold]
    fn find(&mut self, at: Timestamp) {
        let second = at.as_micros() / MICROS;
        if self.counts.is_empty() {
            self.first = second / WIDTHS[self.width];
        }
        let mut place = (second / WIDTHS[self.width]).saturating_sub(self.first);
        while place >= MOST_BUCKETS && self.width + 1 < WIDTHS.len() {
            self.widen();
            place = (second / WIDTHS[self.width]).saturating_sub(self.first);
        }
        let place = usize::try_from(place.min(MOST_BUCKETS - 1)).expect("few buckets");
        if place >= self.counts.len() {
            self.counts.resize(place + 1, [0; 3]);
        }
        let start = second / WIDTHS[self.width] * WIDTHS[self.width] * MICROS;
        (self.last, self.last_span) = (place, start..start + WIDTHS[self.width] * MICROS);
    }

    fn widen(&mut self) {
        let (old, new) = (WIDTHS[self.width], WIDTHS[self.width + 1]);
        let first = self.first * old / new;
        let mut merged: Vec<[u64; 3]> = Vec::new();
        for (place, counts) in (self.first..).zip(&self.counts) {
            let place = usize::try_from(place * old / new - first).expect("few buckets");
            if place >= merged.len() {
                merged.resize(place + 1, [0; 3]);
            }
            for (sum, count) in merged[place].iter_mut().zip(counts) {
                *sum += count;
            }
        }
        (self.width, self.first, self.counts) = (self.width + 1, first, merged);
    }

    pub(crate) fn report(&self) -> Timeline {
        let width_s = WIDTHS[self.width];
        Timeline { start_s: self.first * width_s, width_s, buckets: self.counts.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_week_fits_and_no_count_is_lost() {
        let mut buckets = Buckets::default();
        let start = 1_800_057_600;
        for second in 0..7 * 86_400 {
            let refused = u64::from(second % 3_600 == 7);
            buckets.add(Timestamp::from_micros((start + second) * MICROS), [1, refused, 0]);
        }
        let week = buckets.report();
        assert_eq!((week.width_s, week.buckets.len(), week.start_s), (3_600, 168, start));
        assert!(week.buckets.iter().all(|bucket| *bucket == [3_600, 1, 0]));
    }

    #[test]
    fn a_log_that_begins_within_a_bucket_keeps_its_first_one() {
        let mut buckets = Buckets::default();
        buckets.add(Timestamp::from_micros(1_003 * MICROS), [1, 0, 0]);
        buckets.add(Timestamp::from_micros(1_303 * MICROS), [1, 1, 0]);
        let report = buckets.report();
        assert_eq!((report.width_s, report.start_s), (5, 1_000));
        assert_eq!((report.buckets[0], report.buckets[60]), ([1, 0, 0], [1, 1, 0]));
    }
}
