//! The acceptor's view of one connection: its address, whether it has requests in flight, and how to ask it to leave.
//!
//! For a request only its worker writes here, without locks. The acceptor reads when a listener is full and a connection
//! must make room, and the worker's watch a few times a minute, to find silent connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;

use tidegate_access::{Occupant, PeerGroup};
use tokio::sync::Notify;

use super::memory::{Budget, Held, HeldAnswer, Memory};

/// One open connection.
#[derive(Debug)]
pub struct Seat {
    peer: PeerGroup,
    worker: usize,
    /// Requests in flight.
    under_way: AtomicUsize,
    /// Grows with every request that begins, and every one that ends after a wait.
    progress: AtomicU64,
    /// Its value when the acceptor last searched for a seat.
    progress_seen: AtomicU64,
    /// Whether another connection took its seat in the register; accessed under the register's lock.
    removed: AtomicBool,
    leaving: AtomicBool,
    leave: Notify,
    /// The memory that its requests and answers hold.
    memory: Arc<Budget>,
}

impl Seat {
    pub(super) fn new(
        peer: PeerGroup,
        worker: usize,
        most_bytes: usize,
        worker_memory: Arc<Memory>,
    ) -> Arc<Self> {
        Arc::new(Seat {
            peer,
            worker,
            under_way: AtomicUsize::new(0),
            progress: AtomicU64::new(0),
            progress_seen: AtomicU64::new(0),
            removed: AtomicBool::new(false),
            leaving: AtomicBool::new(false),
            leave: Notify::new(),
            memory: Budget::new(most_bytes, worker_memory),
        })
    }

    #[cfg(test)]
    pub(crate) fn with_budget(most_bytes: usize) -> Arc<Self> {
        let peer = PeerGroup::of(std::net::Ipv4Addr::LOCALHOST.into());
        Seat::new(peer, 0, most_bytes, Memory::new(most_bytes))
    }

    #[cfg(test)]
    pub(crate) fn held(&self) -> usize {
        self.memory.held()
    }

    pub(super) fn worker(&self) -> usize {
        self.worker
    }

    /// Records that a request came, or that one ended after a wait. Call it only on the connection's worker.
    #[inline]
    pub fn progressed(&self) {
        self.progress.store(self.progress.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A number that changes with every use of the connection; zero before the first.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Counts a request as in flight until the result is dropped.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.progressed();
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(self))
    }

    /// Marks a connection that handles one request at a time as busy.
    pub fn set_busy(&self) {
        self.under_way.store(1, Ordering::Relaxed);
    }

    /// Marks it as idle.
    pub fn set_idle(&self) {
        self.under_way.store(0, Ordering::Relaxed);
    }

    /// Whether any request is in flight.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Holds memory for a request, within the budgets of this connection and its worker.
    #[must_use]
    pub fn hold(&self) -> Held {
        Held::of(Arc::clone(&self.memory))
    }

    /// Holds memory for a piece of an answer until the peer has read it.
    #[must_use]
    pub fn hold_answer(&self, bytes: usize) -> HeldAnswer {
        HeldAnswer::of(Arc::clone(&self.memory), bytes)
    }

    /// Holds memory for the head of an answer without a body, until [`Seat::heads_are_written`].
    pub fn hold_head(&self, bytes: usize) {
        self.memory.hold_head(bytes);
    }

    /// Releases the heads: the socket has taken all of them.
    pub fn heads_are_written(&self) {
        self.memory.heads_are_written();
    }

    /// Whether its budget or its worker's is exceeded, so that it should accept no further request.
    #[must_use]
    pub fn exceeds_budget(&self) -> bool {
        self.memory.is_exceeded()
    }

    /// Whether the peer should read answers before there are more of them.
    #[must_use]
    pub fn has_unread_answers(&self) -> bool {
        self.memory.has_unread_answers()
    }

    /// Wakes `waiter`, of which there is one, when the peer has read some of an answer.
    pub fn wake_when_read(&self, waiter: &Waker) {
        self.memory.wake_when_read(waiter);
    }

    pub(super) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Relaxed)
    }

    pub(super) fn ask_to_leave(&self) {
        self.leaving.store(true, Ordering::Release);
        self.leave.notify_waiters();
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    /// Completes once it was asked to leave.
    pub(super) async fn asked_to_leave(&self) {
        loop {
            let mut asked = std::pin::pin!(self.leave.notified());
            // Registered before the check, so that no notification is missed between the two.
            asked.as_mut().enable();
            if self.is_leaving() {
                return;
            }
            asked.await;
        }
    }
}

impl Occupant for Seat {
    fn peer(&self) -> PeerGroup {
        self.peer
    }

    fn could_leave(&self) -> bool {
        let now = self.progress();
        !self.is_busy() && self.progress_seen.swap(now, Ordering::Relaxed) == now
    }

    fn set_removed(&self) {
        self.removed.store(true, Ordering::Relaxed);
    }
}

/// A request in flight; dropping it ends it.
#[derive(Debug)]
pub struct UnderWay(Arc<Seat>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.progressed();
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
