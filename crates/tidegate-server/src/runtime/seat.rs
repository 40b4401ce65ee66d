//! What the acceptor knows of one connection: whose it is, whether it has a request under way, and how it is asked to go.
//!
//! Only its worker writes here for a request, without locks. The acceptor reads when a listener is full and somebody has
//! to make room, and the worker's watch a few times a minute, to find who has been silent for too long.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tidegate_access::PeerGroup;
use tokio::sync::Notify;

use super::memory::{Held, Memory};

/// One open connection.
#[derive(Debug)]
pub struct Seat {
    peer: PeerGroup,
    worker: usize,
    /// Requests that were begun and are not answered to their end.
    under_way: AtomicUsize,
    /// Goes up with every request that begins, and every one that ends after a wait.
    progress: AtomicU64,
    /// As it was when the acceptor last looked for a seat to take.
    progress_seen: AtomicU64,
    /// Whether another connection has its seat in the register; changed and read under the register's lock.
    removed: AtomicBool,
    leaving: AtomicBool,
    leave: Notify,
    /// Bytes that its unfinished requests hold, and what they may hold at most.
    memory: Arc<Memory>,
    worker_memory: Arc<Memory>,
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
            memory: Memory::new(most_bytes),
            worker_memory,
        })
    }

    pub(super) fn peer(&self) -> PeerGroup {
        self.peer
    }

    pub(super) fn worker(&self) -> usize {
        self.worker
    }

    /// A request came, or one that had to wait is done. Only to be called on the connection's worker.
    #[inline]
    pub fn progressed(&self) {
        self.progress.store(self.progress.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// A number that changes whenever the connection is used; zero until it first is.
    #[must_use]
    pub fn progress(&self) -> u64 {
        self.progress.load(Ordering::Relaxed)
    }

    /// Counts a request as under way until the answer is dropped.
    #[must_use]
    pub fn begin(self: &Arc<Self>) -> UnderWay {
        self.progressed();
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(Arc::clone(self))
    }

    /// Something is under way, on a connection that does one thing after the other.
    pub fn set_busy(&self) {
        self.under_way.store(1, Ordering::Relaxed);
    }

    /// Nothing is, any more.
    pub fn set_idle(&self) {
        self.under_way.store(0, Ordering::Relaxed);
    }

    /// Whether any request is under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::Relaxed) > 0
    }

    /// Holds bytes of a request that is not all here yet: of this connection's budget and of its worker's.
    #[must_use]
    pub fn hold(&self) -> Held {
        Held::of([Arc::clone(&self.memory), Arc::clone(&self.worker_memory)])
    }

    /// Whether it could leave now and has not been used since this was last asked.
    pub(super) fn could_leave(&self) -> bool {
        let now = self.progress();
        !self.is_busy() && self.progress_seen.swap(now, Ordering::Relaxed) == now
    }

    pub(super) fn set_removed(&self) {
        self.removed.store(true, Ordering::Relaxed);
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
            // Registered before the look, so that no word comes between the two.
            asked.as_mut().enable();
            if self.is_leaving() {
                return;
            }
            asked.await;
        }
    }
}

/// A request under way; dropped, it is answered or gone.
#[derive(Debug)]
pub struct UnderWay(Arc<Seat>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.progressed();
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}
