//! This node's clock, shared by everything on the node that must agree on the time.

use std::sync::Arc;

use tidegate_core::{Micros, Timestamp};
use tidegate_store::Clock;

/// The clock that the limiter was given.
#[derive(Clone)]
pub(crate) struct NodeClock(pub(crate) Arc<dyn Clock>);

impl Clock for NodeClock {
    fn now(&self) -> Timestamp {
        self.0.now()
    }

    fn uptime(&self) -> Micros {
        self.0.uptime()
    }
}
