//! Opens the decision log, where the configuration asks for one.

use std::sync::Arc;

use tidegate_admin::{DecisionLog, Metrics};
use tidegate_store::SystemClock;

use crate::failure::Failure;
use crate::settings::Settings;

/// Lets decisions be kept as configured.
pub(super) fn keep(settings: &Settings, metrics: &Metrics) -> Result<(), Failure> {
    let Some(mut config) = settings.decision_log.clone() else { return Ok(()) };
    let file = config.file.as_ref().map(|file| file.path.display().to_string()).unwrap_or_default();
    // Nodes of a fleet that sign leases with one secret name callers alike, too.
    let shared = settings.store.lease_secret.as_ref();
    config.secret = config.secret.or_else(|| Some(String::from_utf8_lossy(shared?.bytes()).into_owned()));
    config.node.clone_from(&settings.control.node);
    let log = DecisionLog::open(config, Arc::new(SystemClock::new())).map_err(|error| {
        Failure::new(format!("cannot write decisions to {file}: {error}"))
            .hint("`decision_log.file.path` names a file in a folder that exists and can be written to")
    })?;
    metrics.keep_decisions(Arc::new(log));
    Ok(())
}
