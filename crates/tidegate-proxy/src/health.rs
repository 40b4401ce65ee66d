//! Active health checks of upstream servers, so that requests need not find out.

use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;

use crate::balance::Group;
use crate::dial::Dialer;
use crate::fetch;
use crate::settings::HealthCheck;

/// The largest answer of a health check.
const MOST_BYTES: usize = 64 * 1024;

/// Checks one target until dropped.
pub(crate) async fn watch(group: Arc<Group>, place: usize, dialer: Dialer, check: HealthCheck) {
    let Ok(path) = PathAndQuery::from_maybe_shared(Bytes::from(check.path.clone())) else {
        return tracing::error!(path = check.path, "invalid health check path, servers are not checked");
    };
    let mut ticks = tokio::time::interval(check.every);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let answer = tokio::time::timeout(check.within, fetch::get(&dialer, path.clone(), MOST_BYTES)).await;
        group.checked(place, answer.is_ok_and(|answer| answer.is_ok()));
    }
}
