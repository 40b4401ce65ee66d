//! Makes what is said of a limit fit an answer of so many bytes.

use std::collections::BTreeMap;

use super::{LimitDemand, NamedPeak, Peak, Refused, Run, sampled};

/// About how many bytes a run, a caller and a place take as JSON.
const RUN_BYTES: usize = 56;
const CALLER_BYTES: usize = 24;
const PLACE_BYTES: usize = 24;

impl LimitDemand {
    /// About how many bytes it takes as JSON.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names = self.domain.len() + self.rule.len() + self.limit.len();
        let rows =
            PLACE_BYTES * self.places.len() + RUN_BYTES * self.runs.len() + CALLER_BYTES * self.callers.len();
        320 + names + rows + self.named.iter().map(NamedPeak::bytes).sum::<usize>()
    }

    /// Less of all, until it takes at most so many bytes, half of which are for callers. What is left of those is a sample as good as
    /// any of its size, and never empty where there were any: then it may take more.
    pub fn cut(&mut self, most_bytes: usize) {
        if self.bytes() <= most_bytes {
            return;
        }
        self.fold_runs(most_bytes / 8 / RUN_BYTES);
        self.merge_places(most_bytes / 4 / PLACE_BYTES);
        self.cut_named(most_bytes / 8);
        while self.bytes() > most_bytes && self.halve() {}
    }

    /// Counts the oldest refusals with the places that their node alone gives them: they are in the order of time.
    fn fold_runs(&mut self, most: usize) {
        let folded = self.runs.drain(..self.runs.len().saturating_sub(most));
        let mut places: BTreeMap<u64, u64> = self.places.drain(..).collect();
        for Run { used, hits, requests, .. } in folded {
            let refused = Refused { used, hits, requests };
            refused.places().for_each(|(place, count)| *places.entry(place).or_default() += count);
        }
        self.places = places.into_iter().collect();
    }

    /// Makes one of two neighbours, as often as it takes. What was admitted and what was refused never become one.
    fn merge_places(&mut self, most: usize) {
        while self.places.len() > most.max(2) {
            let admitted = self.places.partition_point(|(place, _)| *place <= self.quota);
            let (admitted, refused) = self.places.split_at(admitted);
            let both = |two: &[(u64, u64)]| {
                let (place, _) = two.last().expect("chunks are not empty");
                (*place, two.iter().map(|(_, count)| count).sum())
            };
            self.places = admitted.chunks(2).chain(refused.chunks(2)).map(both).collect();
        }
    }

    /// Leaves out the names of those that are less busy.
    fn cut_named(&mut self, most_bytes: usize) {
        let mut bytes = 0;
        let fits = self.named.iter().take_while(|one| {
            bytes += one.bytes();
            bytes <= most_bytes
        });
        let fits = fits.count();
        self.named.truncate(fits);
    }

    /// Leaves out every second caller; false where that would be all of them.
    fn halve(&mut self) -> bool {
        let halvings = self.halvings + 1;
        let is_left = |peak: &Peak| sampled(peak.caller, halvings);
        if !self.callers.iter().any(is_left) {
            return false;
        }
        self.callers.retain(is_left);
        self.halvings = halvings;
        true
    }
}

impl NamedPeak {
    /// About how many bytes it takes as JSON.
    fn bytes(&self) -> usize {
        64 + self.key.iter().map(|(name, value)| name.len() + 2 * value.len() + 8).sum::<usize>()
    }
}
