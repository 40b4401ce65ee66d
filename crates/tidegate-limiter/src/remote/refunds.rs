//! Refunds: awaited, or in the background.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_store::{Clock, Refund, RefundId, Stamped, Store, StoreError};

use super::{LARGEST_BATCH, Remote};
use crate::cell::{KeptCell, Refunds};
use crate::observer::StoreCall;

impl Remote {
    pub(crate) async fn refund(
        self: &Arc<Self>,
        given: Refunds,
        id: Option<RefundId>,
    ) -> Result<Stamped<()>, StoreError> {
        if given.is_empty() {
            return Ok(Stamped::default());
        }
        let nodes = self.nodes_of(given.iter().map(|(cell, ..)| cell.tag()));
        self.run(StoreCall::Refund, nodes, refund_at(self.store(), given, id)).await
    }

    /// Refunds, in the background, what the store just reported as spent, whatever its breaker's state.
    pub(crate) fn refund_late(self: &Arc<Self>, given: Refunds) {
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
    pub(crate) fn refund_soon(self: &Arc<Self>, given: Refunds) {
        if given.is_empty() {
            return;
        }
        let remote = self.clone();
        self.spawn(Box::pin(async move {
            // The observer was notified of a failure; what was spent stays spent.
            let _ = remote.refund(given, None).await;
        }));
    }

    pub(crate) async fn reset(self: &Arc<Self>, cell: KeptCell) -> Result<Stamped<()>, StoreError> {
        let (store, nodes) = (self.store(), self.nodes_of([cell.tag()].into_iter()));
        let work = async move { store.reset(cell.key(), cell.limit()).answer().await };
        self.run(StoreCall::Reset, nodes, work).await
    }
}

async fn refund_at(
    store: Arc<dyn Store>,
    given: Refunds,
    id: Option<RefundId>,
) -> Result<Stamped<()>, StoreError> {
    let refunds: SmallVec<[Refund<'_>; 2]> =
        given.iter().map(|(cell, hits, age)| cell.refund(*hits, *age, id)).collect();
    store.refund(&refunds).answer().await
}
