//! Refunds: awaited, in the background, or sent together with others that come within a moment.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_store::{Clock, Refund, RefundId, Stamped, Store, StoreError};

use super::{LARGEST_BATCH, Remote};
use crate::cell_hash::CellHash;
use crate::observer::StoreCall;
use crate::owned::{GivenBack, OwnedCell};

/// How long refunds are gathered.
const GATHERED_FOR: Micros = Micros::from_millis(20);
/// The most cells that wait for their refund; the hits of others stay spent.
const MOST_GATHERED: usize = 4_096;

/// Refunds that wait to be sent together.
#[derive(Default)]
pub(crate) struct GatheredRefunds(Mutex<HashMap<CellHash, Gathered, RandomState>>);

struct Gathered {
    cell: OwnedCell,
    hits: Hits,
    /// When the first of them were spent: they go back into the window of that time.
    since: Timestamp,
}

impl Remote {
    pub(crate) async fn refund(
        self: &Arc<Self>,
        given: GivenBack,
        id: Option<RefundId>,
    ) -> Result<Stamped<()>, StoreError> {
        if given.is_empty() {
            return Ok(Stamped::default());
        }
        let nodes = self.nodes_of(given.iter().map(|(cell, ..)| cell.key().tag));
        self.run(StoreCall::Refund, nodes, refund_at(self.store(), given, id)).await
    }

    /// Refunds, in the background, what the store just reported as spent, whatever its breaker's state.
    pub(crate) fn refund_late(self: &Arc<Self>, given: GivenBack) {
        let (remote, began) = (self.clone(), self.clock.now());
        self.spawn(Box::pin(async move {
            for some in given.chunks(LARGEST_BATCH) {
                let refund = || {
                    // It may be tried again: the hits are older by then.
                    let waited = remote.clock.now().since(began);
                    let older = some.iter().map(|(cell, hits, age)| (cell.clone(), *hits, *age + waited));
                    refund_at(remote.store(), older.collect(), None)
                };
                remote.call_late(StoreCall::Refund, refund).await;
            }
        }));
    }

    /// Refunds in the background.
    pub(crate) fn refund_soon(self: &Arc<Self>, given: GivenBack) {
        if given.is_empty() {
            return;
        }
        let remote = self.clone();
        self.spawn(Box::pin(async move {
            // The observer was notified of a failure; what was spent stays spent.
            let _ = remote.refund(given, None).await;
        }));
    }

    pub(crate) async fn reset(self: &Arc<Self>, cell: OwnedCell) -> Result<Stamped<()>, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([cell.key().tag].into_iter()));
        let work = async move { store.reset(cell.key(), &cell.limit).answer().await };
        self.run(StoreCall::Reset, nodes, work).await
    }

    /// Refunds these hits, spent at `since`, together with others that come soon.
    pub(crate) fn refund_gathered(
        self: &Arc<Self>,
        given: impl Iterator<Item = (CellHash, OwnedCell, Hits)>,
        since: Timestamp,
    ) {
        let mut gathered = self.gathered_refunds.0.lock();
        let is_first = gathered.is_empty();
        for (hash, cell, hits) in given {
            let is_full = gathered.len() >= MOST_GATHERED;
            match gathered.get_mut(&hash) {
                Some(known) => {
                    known.hits = known.hits.saturating_add(hits);
                    known.since = known.since.min(since);
                }
                None if is_full => {}
                None => drop(gathered.insert(hash, Gathered { cell, hits, since })),
            }
        }
        if is_first && !gathered.is_empty() {
            let remote = self.clone();
            self.spawn(Box::pin(async move { remote.send_gathered_refunds().await }));
        }
    }

    async fn send_gathered_refunds(self: &Arc<Self>) {
        self.runtime.sleep(GATHERED_FOR).await;
        let gathered = std::mem::take(&mut *self.gathered_refunds.0.lock());
        let now = self.clock.now();
        let mut all = gathered.into_values().map(|one| (one.cell, one.hits, now.since(one.since)));
        loop {
            let some: GivenBack = all.by_ref().take(LARGEST_BATCH).collect();
            if some.is_empty() {
                return;
            }
            self.refund_soon(some);
        }
    }
}

async fn refund_at(
    store: Arc<dyn Store>,
    given: GivenBack,
    id: Option<RefundId>,
) -> Result<Stamped<()>, StoreError> {
    let refunds: SmallVec<[Refund<'_>; 2]> =
        given.iter().map(|(cell, hits, age)| cell.refund(*hits, *age, id)).collect();
    store.refund(&refunds).answer().await
}
