//! Opens the decision log, if configured.

use std::sync::Arc;
use std::time::Duration;

use tidegate_admin::DecisionLog;
use tidegate_core::Micros;
use tidegate_metrics::Metrics;
use tidegate_store::{Record, SystemClock};
use tokio::time::sleep;

use super::backend::Backend;
use crate::failure::Failure;
use crate::settings::Settings;

/// The name of the fleet's hashing secret in the store, and how long it is kept there.
const RECORD: &[u8] = b"decision-log-key";
const KEPT: Micros = Micros::from_secs(3_650 * 86_400);
/// Attempts to read it from the store before this node uses a secret of its own.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// Starts the decision log, if configured.
pub(super) async fn keep(
    settings: &Settings,
    metrics: &Metrics,
    backend: &Backend,
) -> Result<Option<Arc<DecisionLog>>, Failure> {
    let Some(mut config) = settings.decision_log.clone() else { return Ok(None) };
    let file = config.file.as_ref().map(|file| file.path.display().to_string()).unwrap_or_default();
    // Nodes that sign leases with one secret also hash callers with it.
    let shared = settings.store.lease_secret.as_ref();
    config.secret = config.secret.or_else(|| Some(String::from_utf8_lossy(shared?.bytes()).into_owned()));
    if config.secret.is_none() && backend.shared().is_some() {
        config.secret = fleets_secret(backend).await;
    }
    config.node.clone_from(&settings.control.node);
    let log = DecisionLog::open(config, Arc::new(SystemClock::new())).map_err(|error| {
        Failure::new(format!("cannot write decisions to {file}: {error}"))
            .hint("`decision_log.file.path` names a file in a folder that exists and can be written to")
    })?;
    let log = Arc::new(log);
    metrics.pass_decisions_to(log.clone());
    Ok(Some(log))
}

/// The secret that the fleet keeps in the store: the first node writes it, the others read it.
async fn fleets_secret(backend: &Backend) -> Option<String> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).ok()?;
    let (store, own) = (backend.store(), hex::encode(random));
    for _ in 0..TRIES {
        let record = Record { name: RECORD, value: own.as_bytes() };
        match store.put_record(record, KEPT).answer().await {
            Ok(known) => {
                return Some(known.map_or(own, |known| String::from_utf8_lossy(&known).into_owned()));
            }
            Err(_) => sleep(BETWEEN_TRIES).await,
        }
    }
    tracing::warn!(
        "the store does not answer: this node hashes callers in the decision log with a secret of its own; \
         set `decision_log.secret` on all nodes to be independent of it"
    );
    None
}
