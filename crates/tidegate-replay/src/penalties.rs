//! Penalties between the refusal that causes one and the moment when it is in the store.
//!
//! A log with store times also has the start of a penalty, as a line with the same mark: in between other requests may be
//! admitted. Any other penalty starts at once, and so does one that only the new rules cause.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_limiter::{Penalty, PenaltyStart};

use crate::callers::Side;
use crate::latest::LatestMap;
use crate::parse::Recorded;

/// The most penalties waiting for their start; beyond that, the oldest never start.
const MOST_CAUSED: usize = 16_384;

/// Penalties that were caused and have not started.
pub(crate) struct Penalties {
    caused: LatestMap<Caused>,
    /// Penalties that started before their cause was seen: at equal times the log may have the cause later.
    early: LatestMap<()>,
}

/// When a penalty that was just caused starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// At once.
    Now,
    /// At a later line of the log.
    Later,
}

type Caused = SmallVec<[(Side, Arc<Penalty>); 2]>;

impl Default for Penalties {
    fn default() -> Self {
        Penalties { caused: LatestMap::new(MOST_CAUSED), early: LatestMap::new(MOST_CAUSED) }
    }
}

impl Penalties {
    /// Records that a refusal with this mark causes a penalty.
    pub(crate) fn caused(&mut self, mark: u64, side: Side, penalty: &Arc<Penalty>) -> Begins {
        if self.early.get(mark).is_some() {
            return Begins::Now;
        }
        let mut caused = self.caused.remove(mark).unwrap_or_default();
        caused.push((side, penalty.clone()));
        self.caused.insert(mark, caused);
        Begins::Later
    }

    /// The penalties that start with this mark; none if the refusal was not seen, or is an admission here.
    pub(crate) fn begun(&mut self, mark: u64) -> Caused {
        let caused = self.caused.remove(mark);
        if caused.is_none() {
            self.early.insert(mark, ());
        }
        caused.unwrap_or_default()
    }
}

/// When a request's penalty starts. A request refused at the time caused one only if the log says so; for a line that stands
/// for several requests the log does not have them all.
pub(crate) fn penalty_start(recorded: &Recorded<'_>) -> PenaltyStart {
    let is_told = recorded.own.decided_at.is_some() && recorded.refused == Some(true) && recorded.weight == 1;
    if is_told { PenaltyStart::WhenTold } else { PenaltyStart::AtOnce }
}
