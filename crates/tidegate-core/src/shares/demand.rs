//! What a holder will need, predicted from what it was asked for.

use crate::units::{Micros, Timestamp};

/// The demand of the last two terms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    term: Micros,
    began: Timestamp,
    asked: u64,
    last: u64,
    before: u64,
}

impl Demand {
    pub(super) fn new(term: Micros, now: Timestamp) -> Self {
        Demand { term, began: now, asked: 0, last: 0, before: 0 }
    }

    /// Counts `hits` that were asked for, whether or not they could be spent: what was refused is wanted as well.
    pub(super) fn note(&mut self, now: Timestamp, hits: u64) {
        self.turn(now);
        self.asked = self.asked.saturating_add(hits);
    }

    /// The hits that the next term is likely to need: the last term's, continued at the same trend, and a quarter more, so that an
    /// even load does not run dry just before it renews.
    pub(super) fn next_term(&mut self, now: Timestamp) -> u64 {
        self.turn(now);
        let likely = self.last.saturating_add(self.last.saturating_sub(self.before)).max(self.so_far(now));
        likely.saturating_add(likely.div_ceil(4))
    }

    /// This term's demand if it goes on as it began. Of its first tenth nothing is concluded.
    fn so_far(&self, now: Timestamp) -> u64 {
        let elapsed = (now - self.began).get();
        let term = self.term.get();
        if elapsed < term / 10 {
            return self.asked;
        }
        let scaled = u128::from(self.asked) * u128::from(term) / u128::from(elapsed.max(1));
        u64::try_from(scaled).unwrap_or(u64::MAX)
    }

    fn turn(&mut self, now: Timestamp) {
        let elapsed = (now - self.began).get();
        if elapsed < self.term.get() {
            return;
        }
        let skipped = elapsed >= self.term.get().saturating_mul(2);
        self.before = if skipped { 0 } else { self.last };
        self.last = if skipped { 0 } else { self.asked };
        self.asked = 0;
        self.began = now;
    }
}
