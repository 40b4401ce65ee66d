//! The notes of all nodes, read once for all who look at them.

use std::time::Duration;

use super::{ControlPlane, NodeStatus, SharedAnswers};

/// What was read a moment ago, and when, in microseconds since 1970; or why it could not be read.
pub(super) type RecentNodes = SharedAnswers<(), (u64, Result<Vec<NodeStatus>, String>)>;

impl ControlPlane {
    /// The notes of all nodes, lost ones too, of at most the age `fresh`; why, if they cannot be read.
    pub(crate) async fn known_nodes(&self, fresh: Duration) -> Result<Vec<NodeStatus>, String> {
        let read = async {
            let read_us = self.clock.now().as_micros();
            (read_us, self.fleet.known_nodes().await.map_err(|error| error.to_string()))
        };
        let (read_us, notes) = self.recent_nodes.get((), fresh, read).await;
        let older_ms = self.clock.now().as_micros().saturating_sub(read_us) / 1_000;
        let older = |note: NodeStatus| NodeStatus { last_seen_ms: note.last_seen_ms + older_ms, ..note };
        Ok(notes?.into_iter().map(older).collect())
    }
}
