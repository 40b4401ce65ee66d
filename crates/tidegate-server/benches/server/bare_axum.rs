//! The HTTP reference: an axum handler on our runtime that reads a check and always answers the same.

use axum::routing::post;
use axum::{Json, Router};
use hyper_util::service::TowerToHyperService;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tidegate_runtime::connection::{self, HttpLimits, HttpVersions};
use tidegate_runtime::{Connection, Protocol, Serving};

pub(crate) struct BareAxum {
    router: Router,
}

impl BareAxum {
    pub(crate) fn new() -> Self {
        Self { router: Router::new().route("/v1/check", post(check)) }
    }
}

impl Protocol for BareAxum {
    fn serve(&self, connection: Connection) -> Serving {
        let service = TowerToHyperService::new(self.router.clone());
        Box::pin(connection::serve(connection, HttpVersions::Http1And2, HttpLimits::default(), service))
    }
}

/// As an axum user would write it: owned strings, a hash map.
#[derive(Deserialize)]
struct Check {
    domain: String,
    attributes: HashMap<String, String>,
    cost: u64,
}

#[derive(Serialize)]
struct Decision {
    allowed: bool,
    rule: &'static str,
    limit: u64,
    remaining: u64,
    reset_after_ms: u64,
    retry_after_ms: Option<u64>,
    source: &'static str,
    lease: Option<&'static str>,
    delay_ms: u64,
}

async fn check(Json(check): Json<Check>) -> Json<Decision> {
    // Used, so that reading them is not optimised away.
    std::hint::black_box((check.domain, check.attributes, check.cost));
    Json(Decision {
        allowed: true,
        rule: "per-user",
        limit: 100,
        remaining: 99,
        reset_after_ms: 60_000,
        retry_after_ms: None,
        source: "store",
        lease: None,
        delay_ms: 0,
    })
}
