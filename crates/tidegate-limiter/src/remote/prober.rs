//! The prober: makes every server of the store decide something, again and again, and publishes what its judge says.
//!
//! It runs on a thread of its own with its own connections, so that neither a busy core nor a broken connection of one is taken
//! for a server that has failed. Nor is the loss of its own: a request that is decided in time says as much as a probe.
//!
//! A decision is asked for because a ping is not enough: a server may answer that while scripts hang, writes are paused, or
//! large packets are lost.

use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use tidegate_core::Micros;
use tidegate_store::{Clock, Slice};

use super::judge::{Judge, ServerState};
use super::{NodeStats, Remote};
use crate::observer::{BreakerState, StoreCall};
use crate::runtime::within;

/// How long one probe is awaited; the next may get another connection.
const LONGEST_PROBE: Micros = Micros::from_millis(500);

/// Probing goes on until this is dropped.
pub(super) struct Probing {
    _running: Arc<()>,
}

impl Remote {
    /// Starts to probe every server.
    pub(super) fn start_probing(&self) -> Probing {
        let running = Arc::new(());
        let prober = Arc::new(self.for_core(self.store.clone(), self.prober.clone()));
        for node in 0..self.store.nodes() {
            let watching = prober.clone().watch(node, Arc::downgrade(&running));
            self.prober.spawn(Box::pin(watching));
        }
        Probing { _running: running }
    }

    async fn watch(self: Arc<Self>, node: usize, running: Weak<()>) {
        let mut judge = Judge::new(self.timeout);
        while running.strong_count() > 0 {
            // A node without an endpoint holds no cells.
            if self.store.endpoint(node).is_empty() {
                judge = Judge::new(self.timeout);
                self.stats_of(node).proved_alive.store(self.clock.uptime().get(), Ordering::Relaxed);
            } else {
                self.probe(node, &mut judge).await;
            }
            self.publish(node, &judge);
            let began = self.clock.uptime();
            self.runtime.sleep(judge.pause()).await;
            judge.paused();
            self.hear_requests(node, &mut judge, began);
        }
    }

    /// Makes `node` decide something, and tells its judge.
    async fn probe(self: &Arc<Self>, node: usize, judge: &mut Judge) {
        let sent = self.clock.uptime();
        let mut answer = pin!(self.store.probe(node).answer());
        let mut took = Micros::ZERO;
        while took < LONGEST_PROBE.max(Judge::silence(self.timeout)) {
            // Beyond the deadline a few milliseconds do not matter, and on a busy machine every short slice ends late.
            let slice = Slice::of(if took < self.timeout { self.timeout } else { LONGEST_PROBE });
            let began = self.clock.uptime();
            let answer = within(&*self.runtime, slice.span(), answer.as_mut()).await;
            let passed = self.clock.uptime().saturating_sub(began);
            // Time in which this thread did not run is not the server's.
            let span = passed.saturating_sub(slice.lag(slice.span(), passed));
            took = took + span;
            judge.waited(span);
            self.hear_requests(node, judge, began);
            match answer {
                None => self.publish(node, judge),
                Some(answer) => {
                    self.observer.store_called(StoreCall::Probe, self.clock.uptime().saturating_sub(sent));
                    return match answer {
                        Ok(()) => self.decided(node, judge, sent, took),
                        Err(_) => judge.refused(),
                    };
                }
            }
        }
        judge.refused();
    }

    fn hear_requests(&self, node: usize, judge: &mut Judge, since: Micros) {
        if self.has_answered_since(node, since) {
            judge.decided_a_request();
        }
    }

    fn decided(&self, node: usize, judge: &mut Judge, sent: Micros, took: Micros) {
        judge.decided(took);
        if judge.state() == ServerState::Alive {
            self.stats_of(node).proved_alive.store(sent.get(), Ordering::Relaxed);
        }
    }

    /// Publishes what the judge says of `node`. The breaker of a server that has failed opens.
    fn publish(&self, node: usize, judge: &Judge) {
        let state = judge.state();
        let before = self.stats_of(node).set_state(state);
        if state == ServerState::Failed && before != ServerState::Failed {
            self.tell(self.breakers.open(node, self.clock.uptime()));
        }
    }

    /// A call to `node` was late. If the server has failed, or if that call was the trial of an open breaker, nobody else
    /// waits for it.
    pub(super) fn was_late(&self, node: usize) {
        let is_trial = || self.breakers.state(node) == BreakerState::HalfOpen;
        if self.stats_of(node).state() == ServerState::Failed || is_trial() {
            self.tell(self.breakers.open(node, self.clock.uptime()));
        }
    }

    /// Uses every server again that proved to be alive since its breaker opened, once it knows what was issued without it.
    pub(super) async fn readmit(self: &Arc<Self>) {
        for node in 0..self.store.nodes() {
            if self.is_back(node) && self.settle_with(node).await {
                self.tell(self.breakers.answered(node));
            }
        }
    }

    fn is_back(&self, node: usize) -> bool {
        let way = self.stats_of(node);
        let proved = Micros::new(way.proved_alive.load(Ordering::Relaxed));
        way.state() == ServerState::Alive && self.breakers.opened_before(node, proved)
    }
}

impl NodeStats {
    pub(super) fn state(&self) -> ServerState {
        *self.state.lock()
    }

    fn set_state(&self, state: ServerState) -> ServerState {
        std::mem::replace(&mut *self.state.lock(), state)
    }
}
