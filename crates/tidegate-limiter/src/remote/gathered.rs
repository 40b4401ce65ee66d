//! Refunds that nobody waits for, sent together with others that come within a moment.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use parking_lot::Mutex;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_store::Clock;

use super::{LARGEST_BATCH, Remote};
use crate::cell_hash::CellHash;
use crate::owned::OwnedCell;
use crate::refund::GivenBack;

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
