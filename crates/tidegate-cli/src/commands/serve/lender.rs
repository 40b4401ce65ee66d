//! Decides which node of a fleet lends quotas to Envoys, by a record in the store.
//!
//! A node claims the record when an Envoy reports to it and nobody else has it, and gives it up a minute after the last report. The
//! holder renews it. A node lends only while its last renewal, counted from when it was *sent*, lasts: so no two nodes lend at
//! once, whatever became of an answer, and while the store is unreachable for longer nobody does. Envoys then go on for as long as
//! their assignments are valid. Only a store that forgets the record (a failover that loses it) lets two nodes lend, for ten
//! seconds at most.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_server::rlqs::Quotas;
use tidegate_store::{Record, Store, StoreError};

use super::backend::Backend;

const NAME: &[u8] = b"quota-lender";
const LASTS: Micros = Micros::from_secs(10);
const RENEWED_EVERY: Duration = Duration::from_secs(2);

/// This node's claim to lend.
pub(super) struct QuotaLender {
    quotas: Arc<Quotas>,
    /// None if the store is this process's memory: then there is no other node.
    store: Option<Arc<dyn Store>>,
    own: Vec<u8>,
}

impl QuotaLender {
    /// A claim of `node` on what `backend` keeps.
    pub(super) fn new(quotas: Arc<Quotas>, backend: &Backend, node: &str, started_us: u64) -> Arc<Self> {
        let store = (!matches!(backend, Backend::Memory(_))).then(|| backend.store());
        if store.is_none() {
            quotas.may_lend(quotas.now(), Micros::new(u64::MAX));
        }
        let own = format!("{node} {started_us}-{}", std::process::id()).into_bytes();
        Arc::new(QuotaLender { quotas, store, own })
    }

    /// Claims and renews, until dropped.
    pub(super) async fn keep(self: Arc<Self>) {
        let Some(store) = &self.store else { return };
        let (mut ticks, mut lends) = (tokio::time::interval(RENEWED_EVERY), false);
        loop {
            ticks.tick().await;
            if !self.quotas.is_wanted() {
                if std::mem::take(&mut lends) {
                    self.leave().await;
                }
                continue;
            }
            let asked_at = self.quotas.now();
            match self.claim(store, lends).await {
                Ok(ours) => {
                    if ours != lends {
                        tracing::info!(lends = ours, "lending quotas to Envoys");
                    }
                    lends = ours;
                    if ours {
                        self.quotas.may_lend(asked_at, LASTS);
                    } else {
                        self.quotas.stop_lending();
                    }
                }
                Err(error) => tracing::debug!(%error, "the store does not say who lends quotas"),
            }
        }
    }

    /// Whether the record is ours now.
    async fn claim(&self, store: &Arc<dyn Store>, lends: bool) -> Result<bool, StoreError> {
        let record = Record { name: NAME, value: &self.own };
        if lends && store.replace_record(record, Some(&self.own), LASTS).answer().await? {
            return Ok(true);
        }
        match store.put_record(record, LASTS).answer().await? {
            None => Ok(true),
            // A claim whose answer was lost. It lasts for less than a new one: it is renewed before this node lends.
            Some(other) if other == self.own => {
                store.replace_record(record, Some(&self.own), LASTS).answer().await
            }
            Some(_) => Ok(false),
        }
    }

    /// Lets another node lend at once.
    pub(super) async fn leave(&self) {
        self.quotas.stop_lending();
        if let Some(store) = &self.store {
            let record = Record { name: NAME, value: &self.own };
            // If it is lost, the record ends by itself.
            drop(store.replace_record(record, None, LASTS).answer().await);
        }
    }
}
