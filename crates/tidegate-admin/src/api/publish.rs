//! Publishing: shared by whole sets, single rules and rollbacks.

use std::collections::HashMap;
use std::sync::Arc;

use axum::http::header::{ETAG, IF_MATCH};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use tidegate_rules::{Diagnostics, LostCounters, RuleSet, outline};
use tidegate_rulestore::{Diff, Document, DocumentSet, Publication, PublishError, RuleStore};

use super::caller::Caller;
use super::pieces::in_pieces;
use super::problem::{Answer, Problem};
use super::when;
use crate::control::{ControlPlane, RuleSource, compile_while};
use crate::jobs::{self, CallerLeft, Job};
use crate::low_priority::polled_at_low_priority;

/// The most bytes of a reason.
const LONGEST_REASON: usize = 1_000;

#[derive(Serialize)]
struct Published {
    version: u64,
    warnings: Vec<Value>,
    diff: Diff,
    /// Whether the other nodes can learn of it; `null` if there are none.
    distribution: Value,
}

/// A change to publish.
pub(crate) struct Wanted<'a> {
    pub(crate) on: u64,
    pub(crate) documents: DocumentSet,
    pub(crate) reason: &'a str,
    pub(crate) action: &'static str,
}

/// The database, if rules can be published at all.
pub(crate) fn editable(control: &ControlPlane) -> Answer<&RuleStore> {
    match control.rules.source() {
        RuleSource::Files(files) => Err(Problem::read_only(files)),
        RuleSource::Database => leading(control),
    }
}

/// This node's database, if changes are made in it.
pub(crate) fn leading(control: &ControlPlane) -> Answer<&RuleStore> {
    let store = control.store.as_ref().ok_or_else(Problem::no_database)?;
    // A database that was never reached reports that itself.
    match !control.published.knows_its_database() || control.published.leads() {
        true => Ok(store),
        false => Err(Problem::follows()),
    }
}

/// Whether rules can be published here.
pub(crate) fn can_edit(control: &ControlPlane) -> bool {
    editable(control).is_ok()
}

/// The documents of a version: there may be megabytes.
pub(crate) async fn documents(store: &RuleStore, version: u64) -> Answer<DocumentSet> {
    let store = store.clone();
    Ok(polled_at_low_priority(async move { store.documents(version).await }).await?)
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
pub(crate) async fn publish(
    control: &Arc<ControlPlane>,
    caller: &Caller,
    wanted: Wanted<'_>,
) -> Answer<Response> {
    let store = editable(control)?;
    check_reason(wanted.reason)?;
    if wanted.documents.iter().next().is_none() {
        // Nodes without any domain are not ready, so load balancers would drop the whole fleet.
        return Err(Problem::field("documents", "there are none, so no node would have any rules")
            .hint("to let everybody pass, write `enabled: false` or `shadow: true` into the rules"));
    }
    let (now, on) = (control.clock.now(), wanted.on);
    let documents = Arc::new(wanted.documents);
    // Reading ten thousand rules takes a while, and requests are decided on the same cores.
    let (running, to_check, here) = (control.limiter.snapshot(), documents.clone(), control.rules.clone());
    let warnings = jobs::RULES.run(&caller.lane, move |job| {
        check_domains(&to_check)?;
        let rules = compile_while(&|| job.is_wanted(), &to_check, now)
            .and_then(|rules| here.check_here(rules, || to_check.sources()))
            .map_err(|found| Problem::invalid_rules(&found))?;
        let mut warnings = list(rules.warnings());
        warnings.extend(lost_counters(&rules, running.rules(), &to_check, job)?);
        Ok::<_, Problem>(warnings)
    });
    let warnings = warnings.await??;
    let before = self::documents(store, on).await?;
    let (into, to_store, by, at) =
        (store.clone(), documents.clone(), caller.actor.clone(), control.clock.now());
    let (reason, action) = (wanted.reason.to_owned(), wanted.action);
    let published = polled_at_low_priority(async move {
        into.publish(&Publication { on, documents: &to_store, by: &by, at, reason: &reason, action }).await
    });
    let version = match published.await {
        Ok(version) => version,
        Err(PublishError::Conflict { head, .. }) => {
            return Err(conflict(store, caller, on, head.version).await?);
        }
        Err(PublishError::Store(error)) => return Err(error.into()),
    };
    // The watcher would notice on its own, but the publisher wants to see the effect at once.
    control.published.take_own(store).await;
    let distribution = control.published.distributed(store).await;
    let version = version.number;
    let answer = move |job: &Job| {
        let diff = diff_of(&before, &documents, job)?.of(Some(on), Some(version));
        let published = Published { version, warnings, diff, distribution };
        Ok(([etag(version)], in_pieces(&published, job)).into_response())
    };
    jobs::RULES.run(&caller.lane, answer).await?
}

/// The differences, unless the caller leaves first.
pub(crate) fn diff_of(old: &DocumentSet, new: &DocumentSet, job: &Job) -> Result<Diff, CallerLeft> {
    Diff::between_while(&|| job.is_wanted(), old, new).ok_or(CallerLeft)
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
async fn conflict(store: &RuleStore, caller: &Caller, on: u64, current: u64) -> Answer<Problem> {
    let (mine, theirs) = (documents(store, on).await?, documents(store, current).await?);
    let diff = move |job: &Job| {
        let diff = diff_of(&mine, &theirs, job)?.of(Some(on), Some(current));
        Ok::<_, Problem>(serde_json::to_value(diff).unwrap_or_default())
    };
    let diff = jobs::RULES.run(&caller.lane, diff).await??;
    let problem =
        Problem::conflict(format!("version {current} is in force, and the change was made on {on}"))
            .with("version", current)
            .with("diff", diff);
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
        let Ok(found) = outline(text) else { continue };
        for outline in found {
            if let Some(named) = outline.domain.filter(|named| named != domain) {
                let detail = format!("the document of `{domain}` says `domain: {named}`");
                return Err(Problem::field("documents", detail).hint("give both the same name"));
            }
        }
    }
    Ok(())
}

/// A warning for each rule whose counters would start empty where `rules` replace `running`.
pub(crate) fn lost_counters(
    rules: &RuleSet,
    running: &RuleSet,
    documents: &DocumentSet,
    job: &Job,
) -> Result<Vec<Value>, CallerLeft> {
    job.go_on()?;
    let lost = rules.changes_since(running).lost;
    if lost.is_empty() {
        return Ok(Vec::new());
    }
    let lines = lines_of(&documents.to_documents(), job)?;
    let warning = |LostCounters { domain, rule, message, hint }: LostCounters| {
        let file = domain.clone();
        let line = lines.get(&(domain, rule)).copied().unwrap_or(1);
        json!({ "severity": "warning", "file": file, "line": line, "column": 1, "message": message, "hint": hint })
    };
    Ok(lost.into_iter().map(warning).collect())
}

/// The lines on which rules begin, counted from one, by domain and name.
pub(crate) type RuleLines = HashMap<(String, String), usize>;

/// Where each rule begins in these documents.
pub(crate) fn lines_of(documents: &[Document], job: &Job) -> Result<RuleLines, CallerLeft> {
    let mut lines = RuleLines::new();
    for document in documents {
        job.go_on()?;
        for one in outline(&document.text).unwrap_or_default() {
            let domain = one.domain.unwrap_or_default();
            let mut line = 1;
            let mut counted = 0;
            for place in one.rules {
                line += document.text[counted..place.span.start].matches('\n').count();
                counted = place.span.start;
                lines.insert((domain.clone(), place.name), line);
            }
        }
    }
    Ok(lines)
}

pub(crate) fn list(found: Option<&Diagnostics>) -> Vec<Value> {
    let found = found.into_iter().flat_map(Diagnostics::iter);
    found.filter_map(|one| serde_json::to_value(one).ok()).collect()
}
