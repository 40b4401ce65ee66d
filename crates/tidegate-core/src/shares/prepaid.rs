//! Which limits can be lent hit by hit, and on what terms.

use crate::limit::Limit;
use crate::units::Micros;

/// How long hits may be held before they are spent: a part of the limit's window, within these bounds. What is held longer is
/// worth less to others; what is held shorter has ended before it crossed a link between regions.
const HELD_PART: u64 = 16;
const SHORTEST: Micros = Micros::from_millis(250);
const LONGEST: Micros = Micros::from_secs(1);
/// A shorter window would lose more than a quarter of its limit to the time that hits are held.
const SHORTEST_WINDOW: Micros = Micros::from_secs(1);

/// The terms on which hits of a limit are taken before they are spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prepaid {
    /// The limit that they are taken under. What is spent in time keeps the original limit in every window, however many holders
    /// there are.
    pub limit: Limit,
    /// How long they may be held; `None`: until the window that they were taken from ends.
    pub held: Option<Micros>,
}

impl Limit {
    /// The terms on which its hits can be taken before they are spent. None if they cannot: places of a concurrency limit and of a
    /// queue, a limit with a `min_interval` or one that counts refused requests, and one whose window or refill is shorter than a
    /// second.
    #[must_use]
    pub fn prepaid(&self) -> Option<Prepaid> {
        if self.window_around(crate::Timestamp::from_micros(0)).is_some() {
            return Some(Prepaid { limit: self.paid_ahead(Micros::ZERO)?, held: None });
        }
        let window = self.quota_window()?;
        if window < SHORTEST_WINDOW {
            return None;
        }
        let held = Micros::new(window.get() / HELD_PART).clamp(SHORTEST, LONGEST);
        Some(Prepaid { limit: self.paid_ahead(held)?, held: Some(held) })
    }
}
