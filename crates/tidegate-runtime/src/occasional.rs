//! Rate-limits log lines about events that may happen thousands of times per second.

use std::time::Duration;
use tokio::time::Instant;

/// Counts events between two lines.
#[derive(Debug)]
pub struct Occasional {
    pause: Duration,
    last: Option<Instant>,
    unsaid: u64,
}

impl Occasional {
    /// At most one line per `pause`.
    #[must_use]
    pub fn every(pause: Duration) -> Self {
        Occasional { pause, last: None, unsaid: 0 }
    }

    /// Counts an event; returns the number since the last line if it is time for another.
    pub fn happened(&mut self) -> Option<u64> {
        self.unsaid += 1;
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < self.pause) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAUSE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn the_first_is_said_at_once_and_the_others_together_a_minute_later() {
        let mut refusals = Occasional::every(PAUSE);
        assert_eq!(refusals.happened(), Some(1));
        assert!((0..4_993).all(|_| refusals.happened().is_none()));
        tokio::time::advance(PAUSE).await;
        assert_eq!(refusals.happened(), Some(4_994));
    }
}
