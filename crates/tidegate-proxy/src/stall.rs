//! Detects answers that the client does not read.
//!
//! Over HTTP/1 the system closes a stalled connection. Over HTTP/2 a client can stop one answer and keep the connection
//! alive, and hyper does not poll a body while it waits: thousands of such answers would fill the proxy. So each connection
//! tracks whose turn it is, and a client that does not use its turn for too long is disconnected.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::Timestamp;
use tidegate_store::Clock;

/// The answers in flight on one connection; at most its number of streams.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    turns: Mutex<Vec<Arc<Turn>>>,
}

/// Since when it is the client's turn, in microseconds since the epoch; zero while it is the upstream's.
#[derive(Debug)]
struct Turn(AtomicU64);

impl Answers {
    /// Adds an answer, whose head the client has to read.
    pub(crate) fn begin(self: &Arc<Self>, now: Timestamp) -> Taking {
        let turn = Arc::new(Turn(AtomicU64::new(micros(now))));
        self.turns.lock().push(Arc::clone(&turn));
        Taking { answers: Arc::clone(self), turn }
    }

    /// Returns when a client has not used its turn for `limit`, or up to a quarter longer.
    pub(crate) async fn stalled(&self, clock: &dyn Clock, limit: Duration) {
        loop {
            tokio::time::sleep(limit / 4).await;
            if self.longest(clock.now()) >= limit {
                return;
            }
        }
    }

    /// How long the client has not used its turn.
    fn longest(&self, now: Timestamp) -> Duration {
        let since =
            self.turns.lock().iter().map(|turn| turn.0.load(Ordering::Relaxed)).filter(|at| *at > 0).min();
        since.map_or(Duration::ZERO, |since| Duration::from_micros(micros(now).saturating_sub(since)))
    }
}

/// One answer in flight; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Taking {
    answers: Arc<Answers>,
    turn: Arc<Turn>,
}

impl Taking {
    /// There is data for the client to read.
    pub(crate) fn clients_turn(&self, now: Timestamp) {
        self.turn.0.store(micros(now), Ordering::Relaxed);
    }

    /// The client has read everything so far.
    pub(crate) fn upstreams_turn(&self) {
        self.turn.0.store(0, Ordering::Relaxed);
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        self.answers.turns.lock().retain(|turn| !Arc::ptr_eq(turn, &self.turn));
    }
}

fn micros(at: Timestamp) -> u64 {
    at.since(Timestamp::default()).get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Micros;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::default() + Micros::from_secs(1_000_000 + seconds)
    }

    #[test]
    fn only_the_clients_turn_counts_and_only_since_it_began() {
        let answers = Arc::new(Answers::default());
        let (first, second) = (answers.begin(at(0)), answers.begin(at(5)));
        assert_eq!(answers.longest(at(10)), Duration::from_secs(10));
        first.upstreams_turn();
        assert_eq!(answers.longest(at(10)), Duration::from_secs(5));
        second.clients_turn(at(9));
        assert_eq!(answers.longest(at(10)), Duration::from_secs(1));
        drop(second);
        assert_eq!(answers.longest(at(10)), Duration::ZERO);
    }
}
