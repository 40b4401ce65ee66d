//! Which rules match a request, and why the others do not: in the words of `tidegate explain`.
//!
//! A viewer is not told whether a key is overridden: by trying values, it would find those that it must not see.

use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::response::Response;
use serde_json::json;
use tidegate_rules::Descriptor;
use tidegate_rulestore::Role;

use super::body::Body;
use super::caller::Caller;
use super::keys::{Key, unknown_domain};
use super::pieces::in_pieces;
use super::problem::Answer;
use crate::control::ControlPlane;
use crate::jobs;

pub(crate) async fn explain(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(key): Body<Key>,
) -> Answer<Response> {
    let role = caller.actor.role;
    // Every rule of the domain has its say.
    let explained = move |job: &jobs::Job| {
        let (entries, snapshot) = (key.entries()?, control.limiter.snapshot());
        let (rules, descriptor) = (snapshot.rules(), Descriptor { entries: &entries });
        let explained = match role {
            Role::Viewer => rules.explain_without_overrides(&key.domain, &descriptor, control.clock.now()),
            Role::Editor | Role::Admin => rules.explain(&key.domain, &descriptor, control.clock.now()),
        };
        let explained = explained.map_err(|error| unknown_domain(&control, &error))?;
        job.go_on()?;
        let mut answer = json!(explained);
        if let Some(region) = &control.identity.region {
            answer["region"] = region.as_str().into();
        }
        Ok(in_pieces(&answer, job))
    };
    jobs::RULES.run(&caller.lane, explained).await?
}
