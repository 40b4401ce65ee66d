//! The one-way signal that asks a connection to finish: because the data plane stops, because it was silent for too long, or
//! because it must make room for another.

use super::seat::Seat;
use std::sync::Arc;

/// Signals when a connection must finish.
#[derive(Clone, Debug)]
pub struct Drain(Arc<Seat>);

impl Drain {
    pub(super) fn of(seat: Arc<Seat>) -> Self {
        Drain(seat)
    }

    /// Completes once the connection must finish.
    pub async fn requested(self) {
        self.0.asked_to_leave().await;
    }
}
