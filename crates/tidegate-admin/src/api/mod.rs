//! The admin API: everything that a person with a browser, or a program with a token, may do to a fleet.
//!
//! [`ROUTES`] lists the routes and the role each needs; other requests are not served. `guard` authenticates every request
//! before anything else sees it.

mod alerts;
mod body;
mod caller;
mod cookie;
mod decisions;
mod events;
mod experiment;
mod explain;
mod fresh;
mod guard;
mod keys;
mod overrides;
mod pieces;
mod problem;
mod publish;
mod replay_log;
mod replay_sample;
mod rules;
mod session;
mod sessions;
mod stats;
mod status;
mod suggestions;
mod tokens;
mod unhash;
mod uploads;
mod versions;
mod when;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, delete, get, post};
use tidegate_rulestore::Role;

use crate::control::ControlPlane;
pub(crate) use cookie::Scheme;
pub(crate) use guard::{Peer, peer_of};
use problem::Problem;
use uploads::{Large, Uploads};

/// The OpenAPI description of this API.
const OPENAPI: &str = include_str!("openapi.json");

/// The largest set of documents, and the largest body otherwise.
const MOST_RULE_BYTES: usize = 16 << 20;
const MOST_BODY_BYTES: usize = 64 << 10;

/// The role that a route needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteAccess {
    Public,
    Role(Role),
}

const PUBLIC: RouteAccess = RouteAccess::Public;
const VIEWER: RouteAccess = RouteAccess::Role(Role::Viewer);
const EDITOR: RouteAccess = RouteAccess::Role(Role::Editor);
const ADMIN: RouteAccess = RouteAccess::Role(Role::Admin);

/// Every route: path, method, and required role. A test compares it with the OpenAPI description.
pub(crate) const ROUTES: &[(&str, &str, RouteAccess)] = &[
    ("/admin/v1/alerts", "GET", VIEWER),
    ("/admin/v1/alerts/silences", "GET", VIEWER),
    ("/admin/v1/alerts/silences", "POST", EDITOR),
    ("/admin/v1/alerts/silences/{id}", "DELETE", EDITOR),
    ("/admin/v1/audit", "GET", EDITOR),
    ("/admin/v1/decisions", "GET", VIEWER),
    ("/admin/v1/events", "GET", VIEWER),
    ("/admin/v1/explain", "POST", VIEWER),
    ("/admin/v1/keys/lookup", "POST", EDITOR),
    ("/admin/v1/keys/overrides", "DELETE", EDITOR),
    ("/admin/v1/keys/overrides", "GET", VIEWER),
    ("/admin/v1/keys/overrides", "POST", EDITOR),
    ("/admin/v1/keys/reset", "POST", EDITOR),
    ("/admin/v1/keys/top", "GET", VIEWER),
    ("/admin/v1/nodes", "GET", VIEWER),
    ("/admin/v1/nodes/lead", "POST", ADMIN),
    ("/admin/v1/openapi.json", "GET", PUBLIC),
    ("/admin/v1/replay", "POST", EDITOR),
    ("/admin/v1/replay/log", "POST", VIEWER),
    ("/admin/v1/rules", "GET", VIEWER),
    ("/admin/v1/rules", "PUT", EDITOR),
    ("/admin/v1/rules/validate", "POST", VIEWER),
    ("/admin/v1/rules/{domain}/{rule}", "DELETE", EDITOR),
    ("/admin/v1/rules/{domain}/{rule}", "GET", VIEWER),
    ("/admin/v1/rules/{domain}/{rule}", "PUT", EDITOR),
    ("/admin/v1/rules/{domain}/{rule}/experiment", "GET", VIEWER),
    ("/admin/v1/session", "DELETE", VIEWER),
    ("/admin/v1/session", "GET", VIEWER),
    ("/admin/v1/session", "POST", PUBLIC),
    ("/admin/v1/session", "PUT", VIEWER),
    ("/admin/v1/session/link", "POST", VIEWER),
    ("/admin/v1/session/token", "POST", PUBLIC),
    ("/admin/v1/sessions", "GET", VIEWER),
    ("/admin/v1/sessions/{id}", "DELETE", VIEWER),
    ("/admin/v1/stats", "GET", VIEWER),
    ("/admin/v1/stores", "GET", VIEWER),
    ("/admin/v1/suggestions", "GET", VIEWER),
    ("/admin/v1/suggestions/shadow", "POST", EDITOR),
    ("/admin/v1/tokens", "GET", ADMIN),
    ("/admin/v1/tokens", "POST", ADMIN),
    ("/admin/v1/tokens/{id}", "DELETE", ADMIN),
    ("/admin/v1/versions", "GET", VIEWER),
    ("/admin/v1/versions/{number}", "GET", VIEWER),
    ("/admin/v1/versions/{number}/diff", "GET", VIEWER),
    ("/admin/v1/versions/{number}/rollback", "POST", EDITOR),
];

/// The routes, acting on `control`.
pub(crate) fn router(control: Arc<ControlPlane>) -> Router {
    let uploads = Arc::<Uploads>::default();
    let large_up_to = |most_bytes| {
        let place = Large { uploads: Arc::clone(&uploads), most_bytes };
        (from_fn_with_state(place, uploads::with_place), DefaultBodyLimit::max(most_bytes))
    };
    let large = || large_up_to(MOST_RULE_BYTES);
    let one_rule: MethodRouter<Arc<ControlPlane>> =
        get(rules::one).put(rules::put_one).delete(rules::delete_one);
    let routes = Router::new()
        .route("/rules", get(rules::all).put(rules::put_all).layer(large()))
        .route("/rules/validate", post(rules::validate).layer(large()))
        .route("/rules/{domain}/{rule}", one_rule.layer(large()))
        .route("/rules/{domain}/{rule}/experiment", get(experiment::callers))
        .route("/versions", get(versions::list))
        .route("/versions/{number}", get(versions::one))
        .route("/versions/{number}/diff", get(versions::diff))
        .route("/versions/{number}/rollback", post(versions::rollback))
        .route("/keys/lookup", post(keys::look_up))
        .route("/keys/reset", post(keys::reset))
        .route("/keys/overrides", get(overrides::list).post(overrides::create).delete(overrides::lift))
        .route("/keys/top", get(decisions::top))
        .route("/decisions", get(decisions::search))
        .route("/replay", post(replay_sample::replay).layer(large()))
        .route("/replay/log", post(replay_log::replay).layer(large_up_to(replay_log::MOST_BYTES)))
        .route("/suggestions", get(suggestions::suggestions))
        .route("/suggestions/shadow", post(suggestions::make_shadow))
        .route("/alerts", get(alerts::list))
        .route("/alerts/silences", get(alerts::silences).post(alerts::silence))
        .route("/alerts/silences/{id}", delete(alerts::end_silence))
        .route("/explain", post(explain::explain))
        .route("/nodes", get(status::nodes))
        .route("/nodes/lead", post(status::lead))
        .route("/stores", get(status::stores))
        .route("/stats", get(stats::stats))
        .route("/audit", get(status::audit))
        .route("/tokens", get(tokens::list).post(tokens::create))
        .route("/tokens/{id}", delete(tokens::revoke))
        .route("/events", get(events::stream))
        .route(
            "/session",
            get(session::show).post(session::log_in).put(session::name).delete(session::log_out),
        )
        .route("/session/link", post(session::link))
        .route("/session/token", post(session::keep))
        .route("/sessions", get(sessions::list))
        .route("/sessions/{id}", delete(sessions::end))
        .route("/openapi.json", get(async || ([(CONTENT_TYPE, "application/json")], OPENAPI)))
        .fallback(async || {
            Problem::not_found("there is no such route; GET /admin/v1/openapi.json lists them")
                .into_response()
        })
        .method_not_allowed_fallback(async || Problem::method_not_allowed().into_response())
        .layer(DefaultBodyLimit::max(MOST_BODY_BYTES))
        .with_state(control.clone());
    Router::new()
        .nest("/admin/v1", routes)
        .layer(from_fn_with_state(control, guard::guard))
        .layer(from_fn(guard::harden))
}
