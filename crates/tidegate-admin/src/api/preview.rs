//! What proposed rules would have done to the last minutes' traffic, before anybody publishes them.
//!
//! The sample is the decision log in memory, played through the proposed rules and through those in force, by the same engine as
//! `tidegate replay`. It runs on a thread of its own: nobody waits for it but who asked.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_decisions::{Record, Verdict};
use tidegate_replay::{Options, Recorded, Replay, Report};
use tidegate_rules::{Format, RuleSet, Timestamp};
use tidegate_rulestore::{Document, DocumentSet, put_rule};

use super::body::Body;
use super::decisions::log_of;
use super::problem::{Answer, Problem};
use crate::control::{Base, Control};

/// What is proposed: a whole set, or one rule in the place of the one of that name.
#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Proposed {
    Set { documents: Vec<Document> },
    One { domain: String, rule: String, text: String },
}

/// Callers that are told apart in a preview: as many as a sample of bounded bytes can hold.
const MOST_CALLERS: usize = 100_000;
const NAMED: usize = 5;

pub(crate) async fn replay(
    State(control): State<Arc<Control>>,
    Body(proposed): Body<Proposed>,
) -> Answer<Json<Value>> {
    let running = control.running.lock().base.clone();
    let documents = match proposed {
        Proposed::Set { documents } => DocumentSet::new(documents),
        Proposed::One { domain, rule, text } => {
            let current = DocumentSet::new(running.documents());
            let document = current.get(&domain).ok_or_else(|| {
                Problem::not_found(format!("there is no document of the domain `{domain}`"))
            })?;
            let changed = put_rule(document, &rule, &text);
            current.with(&domain, changed.map_err(|error| Problem::field("text", error.to_string()))?)
        }
    };
    let rules = RuleSet::compile(&documents.sources(), Format::Native);
    let rules = rules.map_err(|found| Problem::invalid_rules(&found))?;
    played(&control, rules, Some(running)).await
}

/// The same for the rules in force: what callers ask for, and what their limits could be.
pub(crate) async fn suggestions(State(control): State<Arc<Control>>) -> Answer<Json<Value>> {
    let running = control.running.lock().base.clone();
    let rules = running.compile(control.clock.now()).map_err(|found| Problem::invalid_rules(&found))?;
    played(&control, rules, None).await
}

async fn played(control: &Control, rules: RuleSet, against: Option<Arc<Base>>) -> Answer<Json<Value>> {
    let (sample, now) = (log_of(control)?.recent(), control.clock.now());
    let played = tokio::task::spawn_blocking(move || {
        let against = against.and_then(|base| base.compile(now).ok());
        let hidden = hidden(&sample);
        (report(rules, against, &sample), hidden)
    });
    let (report, hidden) = played.await.map_err(|_| Problem::unavailable("the preview was given up"))?;
    let mut value = serde_json::to_value(&report).unwrap_or_default();
    value["sentence"] = sentence(&report).into();
    value["hidden_attributes"] = json!(hidden);
    Ok(Json(value))
}

fn report(rules: RuleSet, against: Option<RuleSet>, sample: &[Arc<Record>]) -> Report {
    let options = Options { most_callers: MOST_CALLERS, named: NAMED, ..Options::new("") };
    let mut replay = Replay::new(rules, against, options);
    for record in sample {
        let mut recorded = Recorded::at(Timestamp::from_micros(record.time_us));
        recorded.domain = Some(Cow::Borrowed(&record.domain));
        let attributes = record.attributes.iter();
        recorded.attributes = attributes
            .map(|(name, value)| (Cow::Borrowed(&**name), Cow::Borrowed(value.as_bytes())))
            .collect();
        recorded.cost = record.cost;
        recorded.weight = record.n;
        recorded.refused = Some(record.verdict == Verdict::Refused);
        replay.play(&recorded);
    }
    replay.finish()
}

/// Attributes whose values the log hides: rules can count by them, and cannot match on them.
fn hidden(sample: &[Arc<Record>]) -> BTreeSet<String> {
    let attributes = sample.iter().flat_map(|record| &record.attributes);
    attributes.filter(|(_, value)| value.starts_with('#')).map(|(name, _)| name.to_string()).collect()
}

/// The answer in a line.
fn sentence(report: &Report) -> String {
    let callers = report.rules.iter().map(|rule| (rule.callers_refused.now, rule.callers));
    let (refused, callers) = callers.max().unwrap_or_default();
    format!(
        "would have refused {} of {} requests, {refused} of {callers} callers under the rule that refuses most",
        report.refused.now, report.requests
    )
}
