//! Publishing: shared by whole sets, single rules and rollbacks.

use std::sync::Arc;

use axum::Json;
use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use tidegate_rules::Diagnostics;
use tidegate_rulestore::{Diff, DocumentSet, Publication, PublishError, RuleStore};

use super::guard::Caller;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::{Control, RuleSource, compile};
use crate::low_priority::in_turn;

/// The most bytes of a reason.
const LONGEST_REASON: usize = 1_000;

#[derive(Serialize)]
struct Published {
    version: u64,
    warnings: Vec<serde_json::Value>,
    diff: Diff,
}

/// A change to publish.
pub(crate) struct Wanted<'a> {
    pub(crate) on: u64,
    pub(crate) documents: DocumentSet,
    pub(crate) reason: &'a str,
    pub(crate) action: &'a str,
}

/// The database, if rules can be published at all.
pub(crate) fn editable(control: &Control) -> Answer<&RuleStore> {
    match &control.source {
        RuleSource::Files(files) => Err(Problem::read_only(files)),
        RuleSource::Database => leading(control),
    }
}

/// This node's database, if changes are made in it.
pub(crate) fn leading(control: &Control) -> Answer<&RuleStore> {
    let store = control.store.as_ref().ok_or_else(Problem::no_database)?;
    // A database that was never reached reports that itself.
    match control.lineage.get().is_none() || control.leads() {
        true => Ok(store),
        false => Err(Problem::follows()),
    }
}

/// Whether rules can be published here.
pub(crate) fn can_edit(control: &Control) -> bool {
    editable(control).is_ok()
}

/// The version in `If-Match`.
pub(crate) fn made_on(headers: &HeaderMap) -> Answer<u64> {
    let given = headers.get(IF_MATCH).ok_or_else(Problem::if_match_missing)?;
    let text = given.to_str().unwrap_or_default().trim();
    let text = text.strip_prefix("W/").unwrap_or(text).trim_matches('"');
    text.parse().map_err(|_| Problem::field("If-Match", "it must be one version, such as \"42\""))
}

pub(crate) fn etag(version: u64) -> (axum::http::HeaderName, HeaderValue) {
    let text = format!("\"{version}\"");
    (ETAG, HeaderValue::from_str(&text).expect("digits make a header"))
}

/// Compiles and publishes a change, takes it into use here, and answers with the differences.
pub(crate) async fn publish(control: &Arc<Control>, caller: &Caller, wanted: Wanted<'_>) -> Answer<Response> {
    let store = editable(control)?;
    check_reason(wanted.reason)?;
    if wanted.documents.iter().next().is_none() {
        // Nodes without any domain are not ready, so load balancers would drop the whole fleet.
        return Err(Problem::field("documents", "there are none, so no node would have any rules")
            .hint("to let everybody pass, write `enabled: false` or `shadow: true` into the rules"));
    }
    let (documents, now) = (wanted.documents.clone(), control.clock.now());
    // Reading ten thousand rules takes a while, and requests are decided on the same cores.
    let warnings = in_turn(move || {
        check_domains(&documents)?;
        let rules = compile(&documents, now).map_err(|found| Problem::invalid_rules(&found))?;
        Ok::<_, Problem>(list(rules.warnings()))
    });
    let warnings = warnings.await?;
    let before = store.documents(wanted.on).await?;
    let publication = Publication {
        on: wanted.on,
        documents: &wanted.documents,
        by: &caller.actor,
        at: control.clock.now(),
        reason: wanted.reason,
        action: wanted.action,
    };
    let version = match store.publish(&publication).await {
        Ok(version) => version,
        Err(PublishError::Conflict { head, .. }) => {
            return Err(conflict(store, wanted.on, head.version).await?);
        }
        Err(PublishError::Store(error)) => return Err(error.into()),
    };
    // The watcher would notice on its own, but the publisher wants to see the effect at once.
    control.take_own(store).await;
    let (on, version, documents) = (wanted.on, version.number, wanted.documents);
    let answer = in_turn(move || {
        let diff = Diff::between(&before, &documents).of(Some(on), Some(version));
        ([etag(version)], Json(Published { version, warnings, diff })).into_response()
    });
    Ok(answer.await)
}

/// Checks a reason: a few lines of text. It is stored as long as the change that it explains.
pub(crate) fn check_reason(reason: &str) -> Answer<()> {
    if reason.len() > LONGEST_REASON {
        return Err(Problem::field("reason", format!("it is longer than {LONGEST_REASON} bytes")));
    }
    if reason.chars().any(|one| one.is_control() && one != '\n' && one != '\t') {
        return Err(Problem::field("reason", "it holds a control character"));
    }
    Ok(())
}

/// The conflict with a concurrent change, naming what that changed.
async fn conflict(store: &RuleStore, on: u64, current: u64) -> Answer<Problem> {
    let (mine, theirs) = (store.documents(on).await?, store.documents(current).await?);
    let diff = in_turn(move || Diff::between(&mine, &theirs).of(Some(on), Some(current))).await;
    let problem =
        Problem::conflict(format!("version {current} is in force, and the change was made on {on}"))
            .with("version", current)
            .with("diff", serde_json::to_value(diff).unwrap_or_default());
    Ok(match store.version(current).await? {
        Some(version) => problem
            .with("author", version.author)
            .with("at", when::text(version.at))
            .with("reason", version.reason),
        None => problem,
    })
}

/// Checks that a document has the domain it is filed under: otherwise the next editor would not find it.
fn check_domains(documents: &DocumentSet) -> Answer<()> {
    for (domain, text) in documents.iter() {
        // Invalid YAML is left to the compiler, which explains it better.
        let Ok(found) = tidegate_rules::outline(text) else { continue };
        for outline in found {
            if let Some(named) = outline.domain.filter(|named| named != domain) {
                let detail = format!("the document of `{domain}` says `domain: {named}`");
                return Err(Problem::field("documents", detail).hint("give both the same name"));
            }
        }
    }
    Ok(())
}

pub(crate) fn list(found: Option<&Diagnostics>) -> Vec<serde_json::Value> {
    let found = found.into_iter().flat_map(Diagnostics::iter);
    found.filter_map(|one| serde_json::to_value(one).ok()).collect()
}
