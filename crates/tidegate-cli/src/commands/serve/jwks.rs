//! Fetches the issuer's published keys that verify tokens.

use std::sync::Arc;
use std::time::Duration;

use tidegate_http::identity::{Identity, keep_jwks_fresh};
use tidegate_limiter::TokioRuntime;
use tidegate_telemetry::{Endpoint, Plaintext};

/// The timeout of a fetch; after a failure the old keys stay in use.
const PATIENCE: Duration = Duration::from_secs(10);
/// The largest document.
const MOST_BYTES: usize = 1 << 20;

/// Runs as long as the server, if there is anything to fetch. Logs once per change.
pub(super) async fn keep_fresh(identity: Arc<Identity>) {
    let mut last = None;
    let told = move |went: Result<usize, String>| {
        if last.as_ref() != Some(&went) {
            match &went {
                Ok(keys) => tracing::info!(keys, "fetched the issuer's keys"),
                Err(error) => tracing::warn!(error, "cannot fetch the issuer's keys"),
            }
        }
        last = Some(went);
    };
    let get = |url: &str| {
        let url = url.to_owned();
        async move {
            let there = Endpoint::new(&url, None, Plaintext::Anywhere).map_err(|error| error.to_string())?;
            let keys = there.get(PATIENCE, MOST_BYTES).await.map_err(|error| error.to_string())?;
            Ok(keys.into())
        }
    };
    keep_jwks_fresh(identity, Arc::new(TokioRuntime), get, told).await;
}
