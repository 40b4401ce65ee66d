//! The way to the other nodes through the Redis that they share.

use std::sync::Arc;

use tidegate_admin::{Fleet, FleetError, Heard, NodeNote, NoteFuture, PublishedSet};
use tidegate_store::StoreError;
use tidegate_store_redis::{LimiterNote, PublishedRevision, RedisStore};
use tokio::sync::watch;

pub(super) struct RedisFleet {
    store: Arc<RedisStore>,
    heard: watch::Sender<Heard>,
}

impl RedisFleet {
    pub(super) fn new(store: Arc<RedisStore>) -> Arc<Self> {
        Arc::new(RedisFleet { store, heard: watch::Sender::new(Heard::default()) })
    }

    /// Passes on what heartbeats bring, until dropped.
    pub(super) async fn listen(self: Arc<Self>) {
        let mut revisions = self.store.published_revision();
        loop {
            let PublishedRevision { lineage, revision } = revisions.borrow_and_update().clone();
            self.heard.send_replace(Heard { lineage, revision });
            if revisions.changed().await.is_err() {
                return;
            }
        }
    }
}

impl Fleet for RedisFleet {
    fn publish<'a>(&'a self, set: &'a PublishedSet, set_back: bool) -> NoteFuture<'a, ()> {
        Box::pin(async move {
            let bytes = serde_json::to_vec(set).map_err(|error| FleetError(error.to_string()))?;
            let revision = PublishedRevision { lineage: set.lineage.clone(), revision: set.revision() };
            match self.store.publish(&revision, &bytes, set_back).await.map_err(failed)? {
                true => Ok(()),
                false => Err(FleetError("nodes with another database publish to this Redis".to_owned())),
            }
        })
    }

    fn keep(&self) -> NoteFuture<'_, ()> {
        Box::pin(async { self.store.keep_published().await.map_err(failed) })
    }

    fn fetch(&self) -> NoteFuture<'_, Option<PublishedSet>> {
        Box::pin(async {
            let Some(bytes) = self.store.published().await.map_err(failed)? else { return Ok(None) };
            serde_json::from_slice(&bytes).map(Some).map_err(|error| FleetError(error.to_string()))
        })
    }

    fn nodes(&self) -> NoteFuture<'_, Vec<NodeNote>> {
        Box::pin(async {
            let notes = self.store.notes().await.map_err(failed)?;
            let read = |told: LimiterNote| {
                let note: NodeNote = serde_json::from_slice(&told.note).ok()?;
                let (id, last_seen_ms) = (format!("{:016x}", told.member), told.age_us / 1_000);
                Some(NodeNote { id, last_seen_ms, ..note })
            };
            Ok(notes.into_iter().filter_map(read).collect())
        })
    }

    fn announce(&self, note: &NodeNote) {
        self.store.announce(serde_json::to_vec(note).unwrap_or_default());
    }

    fn heard(&self) -> watch::Receiver<Heard> {
        self.heard.subscribe()
    }

    fn is_shared(&self) -> bool {
        true
    }
}

fn failed(error: StoreError) -> FleetError {
    let cause = std::error::Error::source(&error).map_or_else(String::new, |cause| format!(": {cause}"));
    FleetError(format!("{error}{cause}"))
}
