//! Shortens the demand on a limit to fit an answer of bounded size.

use std::collections::BTreeMap;

use super::{LimitDemand, NamedPeak, Peak, Refused, Run, sampled};

/// Approximate sizes of a run, a caller and a place as JSON.
const RUN_BYTES: usize = 56;
const CALLER_BYTES: usize = 24;
const PLACE_BYTES: usize = 24;

impl LimitDemand {
    /// Its approximate size as JSON.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let names = self.domain.len() + self.rule.len() + self.limit.len();
        let rows =
            PLACE_BYTES * self.places.len() + RUN_BYTES * self.runs.len() + CALLER_BYTES * self.callers.len();
        320 + names + rows + self.named.iter().map(NamedPeak::bytes).sum::<usize>()
    }

    /// Drops data of every kind until the rest takes at most `most_bytes`, half of them for callers. The remaining callers
    /// are an unbiased sample. At least one stays if there were any, even if that exceeds the bound.
    pub fn cut(&mut self, most_bytes: usize) {
        if self.bytes() <= most_bytes {
            return;
        }
        self.fold_runs(most_bytes / 8 / RUN_BYTES);
        self.merge_places(most_bytes / 4 / PLACE_BYTES);
        self.cut_named(most_bytes / 8);
        while self.bytes() > most_bytes && self.halve() {}
    }

    /// Converts the oldest runs to places, using only this node's refusals. Runs are in time order.
    fn fold_runs(&mut self, most: usize) {
        let folded = self.runs.drain(..self.runs.len().saturating_sub(most));
        let mut places: BTreeMap<u64, u64> = self.places.drain(..).collect();
        for Run { used, hits, requests, .. } in folded {
            let refused = Refused { used, hits, requests };
            refused.places().for_each(|(place, count)| *places.entry(place).or_default() += count);
        }
        self.places = places.into_iter().collect();
    }

    /// Merges pairs of neighbours until at most `most` remain. Admissions and refusals are never merged with each other.
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

    /// Drops the keys of the less busy callers.
    fn cut_named(&mut self, most_bytes: usize) {
        let mut bytes = 0;
        let fits = self.named.iter().take_while(|one| {
            bytes += one.bytes();
            bytes <= most_bytes
        });
        let fits = fits.count();
        self.named.truncate(fits);
    }

    /// Drops every second caller; false if that would drop all of them.
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
    /// Its approximate size as JSON.
    fn bytes(&self) -> usize {
        64 + self.key.iter().map(|(name, value)| name.len() + 2 * value.len() + 8).sum::<usize>()
    }
}
