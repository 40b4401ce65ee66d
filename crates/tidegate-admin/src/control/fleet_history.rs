//! The fleet's history, read once for all who look at it.

use std::ops::RangeInclusive;
use std::sync::Arc;

use super::merged::{HistoryChunk, Resolution};
use super::{ControlPlane, SHARED_FOR, SharedAnswers};

/// What was read a moment ago.
pub(crate) type FleetHistory = SharedAnswers<(Resolution, RangeInclusive<u64>), Option<ReadHistory>>;

/// The chunks, and when they were read, in seconds since 1970: what came later is not in them.
#[derive(Clone)]
pub(crate) struct ReadHistory {
    pub(crate) chunks: Arc<Vec<HistoryChunk>>,
    pub(crate) read_s: u64,
}

impl ControlPlane {
    /// The history of the fleet in these minutes or hours; `None` if there is none, or it cannot be read.
    pub(crate) async fn fleet_history(
        &self,
        of: Resolution,
        numbers: RangeInclusive<u64>,
    ) -> Option<ReadHistory> {
        if !self.fleet.is_shared() {
            return None;
        }
        let read = async {
            let read_s = self.clock.now().as_micros() / 1_000_000;
            let chunks = self.fleet.history(of, numbers.clone()).await.ok()?;
            Some(ReadHistory { chunks: Arc::new(chunks), read_s })
        };
        self.fleet_history.get((of, numbers.clone()), SHARED_FOR, read).await
    }
}
