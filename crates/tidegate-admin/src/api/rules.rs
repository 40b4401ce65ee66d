//! Rules: the set in force, one rule of it, and a dry run.

use std::collections::HashSet;
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tidegate_core::Micros;
use tidegate_rules::{Coordination, OnStoreFailure, Rule, RuleSet, outline};
use tidegate_rulestore::{Document, DocumentSet, EditError, put_rule, remove_rule};

use super::body::{Body, Path};
use super::caller::Caller;
use super::pieces::in_pieces;
use super::problem::{Answer, Problem};
use super::publish::{
    Wanted, can_edit, diff_of, documents, editable, etag, lines_of, list, lost_counters, made_on, publish,
};
use crate::control::{Base, ControlPlane, RuleSource, compile_while};
use crate::jobs::{self, CallerLeft, Job};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishRules {
    documents: Vec<Document>,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishRule {
    text: String,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reason {
    #[serde(default)]
    pub(crate) reason: String,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected `documents` (a list), or `domain`, `rule` and `text` (each a text)")]
pub(crate) enum ValidateRules {
    Set { documents: Vec<Document> },
    One { domain: String, rule: String, text: String },
}

/// The summary of a rule.
#[derive(Serialize)]
struct RuleInShort {
    domain: String,
    name: String,
    mode: Value,
    key: Vec<String>,
    limits: Vec<Value>,
    coordination: &'static str,
    on_store_failure: &'static str,
    priority: Option<String>,
    line: Option<usize>,
    description: Option<String>,
    owner: Option<String>,
    enabled: bool,
    rollout: Option<String>,
    experiment: Option<String>,
}

pub(crate) async fn all(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
) -> Answer<Response> {
    jobs::RULES.run(&caller.lane, move |job| all_of(&control, job)).await?
}

fn all_of(control: &ControlPlane, job: &Job) -> Answer<Response> {
    let running = control.rules.now();
    let snapshot = control.limiter.snapshot();
    let (source, edit_at) = match control.rules.source() {
        RuleSource::Database => ("database", None),
        RuleSource::Files(files) => ("file", Some(files)),
    };
    let documents = running.base.documents();
    let body = json!({
        "version": running.version(),
        "source": source,
        "editable": can_edit(control),
        "edit_at": edit_at,
        "rules": in_short(snapshot.rules(), &documents, job)?,
        "documents": documents,
        "warnings": list(running.warnings.as_ref()),
    });
    job.go_on()?;
    Ok(([etag(running.version())], in_pieces(&body, job)).into_response())
}

pub(crate) async fn put_all(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Body(wanted): Body<PublishRules>,
) -> Answer<Response> {
    editable(&control)?;
    let on = made_on(&headers)?;
    let mut given = HashSet::new();
    for (number, document) in wanted.documents.iter().enumerate() {
        if !given.insert(&document.domain) {
            let field = format!("documents[{number}].domain");
            return Err(Problem::field(&field, format!("`{}` is given twice", document.domain)));
        }
    }
    let documents = DocumentSet::new(wanted.documents);
    publish(&control, &caller, Wanted { on, documents, reason: &wanted.reason, action: "publish" }).await
}

pub(crate) async fn one(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path((domain, name)): Path<(String, String)>,
) -> Answer<Response> {
    let running = control.rules.now();
    let snapshot = control.limiter.snapshot();
    let (version, of) = (running.version(), (domain.clone(), name.clone()));
    let find = move |job: &Job| {
        let documents = running.base.documents();
        let rules = in_short(snapshot.rules(), &documents, job)?;
        let rule = rules.into_iter().find(|rule| rule.domain == of.0 && rule.name == of.1);
        job.go_on()?;
        let text = documents.iter().find_map(|document| text_of(&document.text, &of.0, &of.1));
        Ok::<_, CallerLeft>((rule, text))
    };
    let (rule, text) = jobs::RULES.run(&caller.lane, find).await??;
    let rule = rule.ok_or_else(|| no_rule(&domain, &name))?;
    let compared = match &rule.experiment {
        Some(_) => Some(control.experiment(&domain, &name).await),
        None => None,
    };
    let body = json!({
        "domain": domain,
        "name": name,
        "text": text,
        "version": version,
        "rule": rule,
        "experiment": compared.as_ref().map(|compared| compared.sides.iter().map(side_in_short).collect::<Vec<_>>()),
        "experiment_of": compared.as_ref().map(|compared| compared.of),
    });
    // One rule is short.
    Ok(([etag(version)], in_pieces(&body, &Job::default())).into_response())
}

fn side_in_short((variant, counts): &(&'static str, [u64; 3])) -> Value {
    let [allowed, refused, shadow_refused] = counts;
    json!({ "variant": variant, "allowed": allowed, "refused": refused, "shadow_refused": shadow_refused })
}

pub(crate) async fn put_one(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path((domain, name)): Path<(String, String)>,
    headers: HeaderMap,
    Body(wanted): Body<PublishRule>,
) -> Answer<Response> {
    let store = editable(&control)?;
    let on = made_on(&headers)?;
    let before = documents(store, on).await?;
    let PublishRule { text, reason } = wanted;
    let edited = move |_: &Job| edit(&before, &domain, |document| put_rule(document, &name, &text));
    let documents = jobs::RULES.run(&caller.lane, edited).await??;
    publish(&control, &caller, Wanted { on, documents, reason: &reason, action: "publish" }).await
}

pub(crate) async fn delete_one(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Path((domain, name)): Path<(String, String)>,
    headers: HeaderMap,
    Body(Reason { reason }): Body<Reason>,
) -> Answer<Response> {
    let store = editable(&control)?;
    let on = made_on(&headers)?;
    let before = documents(store, on).await?;
    let edited = move |_: &Job| edit(&before, &domain, |document| remove_rule(document, &name));
    let documents = jobs::RULES.run(&caller.lane, edited).await??;
    publish(&control, &caller, Wanted { on, documents, reason: &reason, action: "publish" }).await
}

/// The set with one document changed.
fn edit(
    before: &DocumentSet,
    domain: &str,
    change: impl FnOnce(&str) -> Result<String, EditError>,
) -> Answer<DocumentSet> {
    let document = before.get(domain).ok_or_else(|| no_domain(domain))?;
    Ok(before.with(domain, change(document).map_err(problem)?))
}

pub(crate) async fn validate(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(wanted): Body<ValidateRules>,
) -> Answer<Response> {
    jobs::RULES.run(&caller.lane, move |job| validated(&control, wanted, job)).await?
}

fn validated(control: &ControlPlane, wanted: ValidateRules, job: &Job) -> Answer<Response> {
    let base = control.rules.now().base.clone();
    let before = match &*base {
        Base::Documents(documents) => documents.clone(),
        Base::Files(_) => DocumentSet::new(base.documents()),
    };
    let documents = match wanted {
        ValidateRules::Set { documents } => DocumentSet::new(documents),
        ValidateRules::One { domain, rule, text } => {
            edit(&before, &domain, |document| put_rule(document, &rule, &text))?
        }
    };
    let compiled = compile_while(&|| job.is_wanted(), &documents, control.clock.now())
        .and_then(|rules| control.rules.check_here(rules, || documents.sources()));
    let (diagnostics, rules) = match &compiled {
        Ok(rules) => {
            let running = control.limiter.snapshot();
            let mut found = list(rules.warnings());
            found.extend(lost_counters(rules, running.rules(), &documents, job)?);
            (found, in_short(rules, &documents.to_documents(), job)?)
        }
        Err(found) => (list(Some(found)), Vec::new()),
    };
    let diff = diff_of(&before, &documents, job)?;
    let body = json!({ "valid": compiled.is_ok(), "diagnostics": diagnostics, "rules": rules, "diff": diff });
    Ok(in_pieces(&body, job))
}

fn no_rule(domain: &str, rule: &str) -> Problem {
    Problem::not_found(format!("the domain `{domain}` has no rule `{rule}`"))
}

fn no_domain(domain: &str) -> Problem {
    Problem::not_found(format!("there is no document of the domain `{domain}`"))
        .hint("PUT /admin/v1/rules publishes a new one")
}

fn problem(error: EditError) -> Problem {
    match error {
        EditError::NoSuchRule { .. } => Problem::not_found(error.to_string()),
        EditError::NotThatRule { .. } => Problem::field("text", error.to_string()),
        EditError::OneBracket => {
            Problem::field("text", error.to_string()).hint("PUT /admin/v1/rules with the document")
        }
        EditError::Yaml(found) => Problem::invalid_rules(&found),
    }
}

/// The text of one rule in a document.
fn text_of(document: &str, domain: &str, name: &str) -> Option<String> {
    let outlines = outline(document).ok()?;
    let own = outlines.into_iter().filter(|one| one.domain.as_deref() == Some(domain));
    let mut places = own.flat_map(|one| one.rules);
    let place = places.find(|place| place.name == name)?;
    // The first line begins after its dash; the others are indented by the same width.
    let line = document[..place.span.start].rfind('\n').map_or(0, |line_break| line_break + 1);
    let indent = document[line..place.span.start].chars().count();
    let text = &document[place.span];
    let lines = text.lines().map(|line| {
        let own = line.len() - line.trim_start_matches(' ').len();
        &line[own.min(indent)..]
    });
    let lines: Vec<&str> = text.lines().take(1).chain(lines.skip(1)).collect();
    Some(lines.join("\n"))
}

fn in_short(rules: &RuleSet, documents: &[Document], job: &Job) -> Result<Vec<RuleInShort>, CallerLeft> {
    let lines = lines_of(documents, job)?;
    let short = |rule: &Rule| RuleInShort {
        domain: rule.domain().to_owned(),
        name: rule.name().to_owned(),
        mode: serde_json::to_value(rule.mode()).unwrap_or_default(),
        key: rule.key().to_vec(),
        limits: rule
            .limit_sets()
            .flat_map(|(of, limits)| limits.iter().map(move |limit| (of.clone(), limit)))
            .map(|(of, limit)| {
                json!({
                    "name": limit.name,
                    "of": of,
                    "algorithm": limit.limit.algorithm().name(),
                    "limit": limit.limit.quota(),
                    "window_ms": limit.limit.quota_window().map(Micros::as_millis_ceil),
                })
            })
            .collect(),
        coordination: match rule.coordination() {
            Coordination::Exact => "exact",
            Coordination::Approximate { .. } => "approximate",
            Coordination::Local => "local",
            Coordination::Escrow => "escrow",
            Coordination::Eventual { .. } => "eventual",
        },
        on_store_failure: match rule.on_store_failure() {
            OnStoreFailure::Open => "open",
            OnStoreFailure::Closed => "closed",
            OnStoreFailure::Local => "local",
        },
        priority: rule.priority().map(|priority| format!("{priority:?}")),
        description: rule.description().map(str::to_owned),
        owner: rule.owner().map(str::to_owned),
        enabled: rule.is_enabled(),
        rollout: rule.rollout().map(|share| share.to_string()),
        experiment: rule.experiment().map(|share| share.to_string()),
        line: lines.get(&(rule.domain().to_owned(), rule.name().to_owned())).copied(),
    };
    // Rules that only carry bans were not written by anybody.
    let written = rules.rules().filter(|rule| !rule.is_carrier());
    written.map(|rule| job.go_on().map(|()| short(rule))).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_rules::{Format, Source};

    use super::*;

    #[test]
    fn rules_are_not_shown_to_somebody_who_has_left() {
        const TEXT: &str = "{ domain: api, rules: [{ name: r, limits: [1/s] }] }";
        let rules = RuleSet::compile(&[Source::new("api", TEXT)], Format::Native).unwrap();
        let documents = [Document { domain: "api".into(), text: TEXT.into() }];
        assert_eq!(in_short(&rules, &documents, &Job::default()).unwrap().len(), 1);
        assert!(in_short(&rules, &[], &Job::left()).is_err(), "before the first rule");
        assert!(lines_of(&documents, &Job::left()).is_err(), "before the first document");
    }
}
