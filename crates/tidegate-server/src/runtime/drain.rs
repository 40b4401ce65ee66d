//! The one-way signal that asks a connection to finish: because the data plane stops, because it has been silent for too
//! long, or because it has to make room for another.

use super::seat::Seat;
use std::sync::Arc;

/// Says when a connection should finish.
#[derive(Clone, Debug)]
pub struct Drain(Arc<Seat>);

impl Drain {
    pub(super) fn of(seat: Arc<Seat>) -> Self {
        Drain(seat)
    }

    /// Completes once the connection is to finish; at once if that is so already.
    pub async fn requested(self) {
        self.0.asked_to_leave().await;
    }
}
