//! Tokens.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_rules::Timestamp;
use tidegate_rulestore::{NewToken, Role, RuleStore, Secret, StoredToken};

use super::body::{Body, Path};
use super::caller::Caller;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::ControlPlane;

const LONGEST_NAME: usize = 128;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenBody {
    name: String,
    role: Role,
    #[serde(default)]
    expires_in: Option<String>,
}

pub(crate) async fn list(State(control): State<Arc<ControlPlane>>) -> Answer<Json<Value>> {
    let configured = control.access.tokens.iter().map(|token| {
        json!({ "id": "", "name": token.name, "role": token.role, "source": "config", "expires_at": null,
                "created_at": when::text(Timestamp::from_micros(control.identity.started_us)), "created_by": "config" })
    });
    let mut tokens: Vec<Value> = configured.collect();
    if let Some(store) = &control.store {
        let now = control.clock.now();
        let stored = store.tokens().await?;
        let alive = stored.iter().filter(|token| token.expires.is_none_or(|expires| expires > now));
        tokens.extend(alive.map(as_json));
    }
    Ok(Json(json!({ "tokens": tokens })))
}

pub(crate) async fn create(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<TokenBody>,
) -> Answer<(StatusCode, Json<Value>)> {
    let store = store(&control)?;
    let name = checked_name(&wanted.name)?;
    let now = control.clock.now();
    let lasts = wanted.expires_in.map(|span| when::span_us(&span, "expires_in")).transpose()?;
    let expires = lasts.map(|lasts| Timestamp::from_micros(now.as_micros().saturating_add(lasts)));
    let new = NewToken { name: name.to_owned(), role: wanted.role, expires };
    let (stored, secret) = store.create_token(&new, &caller.actor, now).await?;
    Ok((StatusCode::CREATED, Json(created(&stored, &secret))))
}

pub(crate) fn checked_name(name: &str) -> Answer<&str> {
    let name = name.trim();
    if name.is_empty() || name.len() > LONGEST_NAME || name.chars().any(char::is_control) {
        let detail = format!("a name has 1 to {LONGEST_NAME} bytes, and no control characters");
        return Err(Problem::field("name", detail));
    }
    Ok(name)
}

/// A new token, with its secret.
pub(crate) fn created(stored: &StoredToken, secret: &Secret) -> Value {
    let mut body = as_json(stored);
    body["token"] = secret.reveal().into();
    body
}

pub(crate) async fn revoke(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path(id): Path<String>,
) -> Answer<StatusCode> {
    let revoked = store(&control)?.revoke_token(&id, &caller.actor, control.clock.now()).await?;
    match revoked {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(Problem::not_found("there is no such token, or it comes from the configuration")),
    }
}

fn as_json(token: &StoredToken) -> Value {
    json!({
        "id": token.id,
        "name": token.name,
        "role": token.role,
        "created_at": when::text(token.at),
        "created_by": token.author,
        "expires_at": token.expires.map(when::text),
        "source": "database",
    })
}

fn store(control: &ControlPlane) -> Answer<&RuleStore> {
    control.store.as_ref().ok_or_else(Problem::no_database)
}
