//! Penalties between the refusal that causes one and the moment when the store has it.
//!
//! A log that says when the store decided also says when a penalty began, on a line of its own with the same mark: in between others
//! may pass. Any other begins at once, as does one that only the new rules cause.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_limiter::{Penalty, PenaltyStart};

use crate::callers::Side;
use crate::latest::LatestMap;
use crate::parse::Recorded;

/// The most penalties that wait for their beginning: of more, the oldest never begin.
const MOST_CAUSED: usize = 16_384;

/// Penalties that have been caused and have not begun.
pub(crate) struct Penalties {
    caused: LatestMap<Caused>,
    /// Those that have begun, and whose cause was not seen: at one moment a log may tell of it later.
    early: LatestMap<()>,
}

/// When a penalty begins that was just caused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begins {
    /// It has.
    Now,
    /// When the log says so.
    Later,
}

type Caused = SmallVec<[(Side, Arc<Penalty>); 2]>;

impl Default for Penalties {
    fn default() -> Self {
        Penalties { caused: LatestMap::new(MOST_CAUSED), early: LatestMap::new(MOST_CAUSED) }
    }
}

impl Penalties {
    /// A refusal with this mark causes a penalty.
    pub(crate) fn caused(&mut self, mark: u64, side: Side, penalty: &Arc<Penalty>) -> Begins {
        if self.early.get(mark).is_some() {
            return Begins::Now;
        }
        let mut caused = self.caused.remove(mark).unwrap_or_default();
        caused.push((side, penalty.clone()));
        self.caused.insert(mark, caused);
        Begins::Later
    }

    /// What begins with this mark; nothing where the refusal was not seen, or passes here.
    pub(crate) fn begun(&mut self, mark: u64) -> Caused {
        let caused = self.caused.remove(mark);
        if caused.is_none() {
            self.early.insert(mark, ());
        }
        caused.unwrap_or_default()
    }
}

/// When the penalty of a request begins. One that was refused when it happened has caused one only if the log says so; of a line that
/// stands for several the log does not tell all.
pub(crate) fn penalty_start(recorded: &Recorded<'_>) -> PenaltyStart {
    let is_told = recorded.own.decided_at.is_some() && recorded.refused == Some(true) && recorded.weight == 1;
    if is_told { PenaltyStart::WhenTold } else { PenaltyStart::AtOnce }
}
