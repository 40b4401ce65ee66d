//! How a limiter leaves a remote store: releases orphaned leases, settles debts, and leaves the fleet.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::Micros;
use tidegate_store::Clock;

use super::{Remote, RequestNames};
use crate::lifecycle::{End, Lifecycle};
use crate::runtime::within;

/// How much longer than a call's timeout to wait when leaving: a store that is starting may need to be dialled first.
const PATIENCE: Micros = Micros::from_millis(500);

impl Remote {
    /// Waits for `span`, or until the limiter ends.
    pub(super) async fn pause(&self, span: Micros, life: &Lifecycle) {
        let _ = race(self.runtime.sleep(span), life.until_ended()).await;
    }

    /// Ends this limiter: as far as the store answers, it leaves nothing behind there.
    pub(crate) async fn shut_down(self: &Arc<Self>, end: End, names: &RequestNames) {
        if end == End::ShutDown {
            self.settle(names).await;
        }
        self.leave_fleet().await;
        self.until_calls_end().await;
        self.give_orphans_back().await;
    }

    /// A call in flight may still return a lease, or hits, that no request waits for. Each ends within its deadline, unless
    /// late.
    async fn until_calls_end(&self) {
        let until = self.clock.now() + self.timeout + PATIENCE;
        while (self.load() != (0, 0) || self.late_calls() > 0) && self.clock.now() < until {
            self.runtime.sleep(Micros::from_millis(1)).await;
        }
    }

    /// Settles debts, and reports what approximate rules have admitted since the last report.
    async fn settle(self: &Arc<Self>, names: &RequestNames) {
        self.readmit().await;
        self.pay_debts().await;
        let unreported = self.local.approximate.unreported(self.clock.now());
        for batch in unreported.chunks(super::background::LARGEST_BATCH) {
            self.report(batch.to_vec()).await;
        }
        self.empty_purses().await;
        self.write_what_is_unwritten(names).await;
    }

    /// A limiter that never sent a heartbeat has no fleet to leave.
    async fn leave_fleet(&self) {
        let fleet = &self.local.fleet;
        if fleet.joined.swap(false, Ordering::Relaxed) {
            let leave = self.store.leave(fleet.member).answer();
            // If the store does not answer, the heartbeat's time to live removes it.
            if let Some(Err(error)) = within(&*self.runtime, self.timeout + PATIENCE, leave).await {
                self.observer.store_failed(&error);
            }
        }
    }

    /// Whether the fleet may still count this limiter.
    pub(crate) fn has_joined(&self) -> bool {
        self.local.fleet.joined.load(Ordering::Relaxed)
    }

    /// How many cells the store does not fully know about.
    pub(crate) fn unsettled(&self) -> usize {
        self.local.ledger.len() + self.local.approximate.unreported_cells()
    }
}

/// Ready as soon as either is.
async fn race(one: impl Future<Output = ()>, other: impl Future<Output = ()>) {
    let (mut one, mut other) = (std::pin::pin!(one), std::pin::pin!(other));
    std::future::poll_fn(|context| {
        let done = one.as_mut().poll(context).is_ready() || other.as_mut().poll(context).is_ready();
        if done { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}
