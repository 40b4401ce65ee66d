//! Asks upstream servers now and then whether they are well, so that a request need not find out.

use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;

use super::balance::Group;
use super::dial::Dialer;
use super::fetch;
use super::settings::HealthCheck;

/// A healthy server need not say much.
const MOST_BYTES: usize = 64 * 1024;

/// Checks one target for ever.
pub(super) async fn watch(group: Arc<Group>, place: usize, dialer: Dialer, check: HealthCheck) {
    let Ok(path) = PathAndQuery::from_maybe_shared(Bytes::from(check.path.clone())) else {
        return tracing::error!(
            path = check.path,
            "a path that cannot be asked for: servers are not checked"
        );
    };
    let mut ticks = tokio::time::interval(check.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = tokio::time::timeout(check.within, fetch::get(&dialer, path.clone(), MOST_BYTES)).await;
        group.checked(place, answer.is_ok_and(|answer| answer.is_ok()));
    }
}
