//! Replays recorded traffic through other rules: an uploaded log, or the sample of the last minutes.
//!
//! The engine of `tidegate replay`, on a low-priority thread. Few run at once, with bounded memory; others wait for them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tidegate_decisions::DecisionLog;
use tidegate_replay::{
    Format as LogFormat, Line, MergeByTime, Options, Parser, Reader, Replay, Report, html,
};
use tidegate_rules::{Format, RuleSet};
use tidegate_rulestore::{Document, DocumentSet, Role};
use tidegate_store::MemoryConfig;

use super::body::Body;
use super::caller::Caller;
use super::decisions::log_of;
use super::pieces::in_pieces;
use super::problem::{Answer, Problem};
use super::replay_sample;
use crate::control::ControlPlane;
use crate::jobs::{self, Job};

/// The largest request: rules, and a log of about 24 MB as a JSON string.
pub(crate) const MOST_BYTES: usize = 32 << 20;
/// The most callers told apart per rule, and the number of callers named in each list.
const MOST_CALLERS: usize = 100_000;
const NAMED: usize = 10;
/// The most requests that a log may stand for: about a minute of work.
const MOST_PLAYED: u64 = 20_000_000;
/// Bounds of the replay's store.
const MEMORY: MemoryConfig = MemoryConfig::new().max_cells(1_000_000).max_log_bytes(64 << 20);

/// What to replay, and through which rules.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WhatIf {
    /// The new rules; by default those in force.
    documents: Option<Vec<Document>>,
    /// The rules to compare with; by default those in force.
    against: Option<Vec<Document>>,
    /// A log; by default the sample of the last minutes.
    log: Option<String>,
    /// The format of the log; by default it is detected from the first line.
    format: Option<String>,
    /// The domain of requests without one.
    domain: Option<String>,
    /// For CSV: the column of each attribute.
    #[serde(default)]
    columns: BTreeMap<String, String>,
    /// Whether to include the report as an HTML page.
    #[serde(default)]
    html: bool,
}

pub(crate) async fn replay(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(asked): Body<WhatIf>,
) -> Answer<Response> {
    let proposes = asked.documents.is_some() || asked.against.is_some();
    if caller.actor.role == Role::Viewer && proposes && asked.log.is_none() {
        // As in replay_sample.rs: from which rules match, a viewer could infer hidden values.
        return Err(Problem::forbidden("a viewer can replay the sample only through the rules in force")
            .hint("bring a log of your own, or ask an editor"));
    }
    let sample = match &asked.log {
        Some(_) => None,
        None => Some(replay_sample::sample(&control, log_of(&control)?, None).await),
    };
    let (running, now) = (control.rules.now().base.clone(), control.clock.now());
    let (names, role, flags) = (control.decisions.clone(), caller.actor.role, control.rules.flags());
    let played = move |job: &Job| {
        let in_force = || {
            running.compile_while(&|| job.is_wanted(), now).map_err(|found| Problem::invalid_rules(&found))
        };
        let rules = compiled(asked.documents.as_ref(), "documents", &in_force, job)?.with_flags(&flags);
        let against = compiled(asked.against.as_ref(), "against", &in_force, job)?.with_flags(&flags);
        let (mut report, hidden) = match (&asked.log, &sample) {
            (Some(log), _) => log_played(&asked, log, rules, against, (MOST_PLAYED, job))?,
            (None, sample) => {
                let (lines, since_us) =
                    sample.as_ref().map_or((&[][..], 0), |one| (&one.lines[..], one.since_us));
                let log =
                    names.as_ref().ok_or_else(|| Problem::field("log", "this node keeps no decisions"))?;
                replay_sample::report(rules, Some(against), (lines, since_us), log.names(), job)
            }
        };
        if let (Role::Viewer, Some(log)) = (role, &names) {
            mask(&mut report, log);
        }
        job.go_on()?;
        Ok(shown(&report, &hidden, (sample.as_ref(), asked.html), job))
    };
    jobs::REPLAYS.run(&caller.lane, played).await?
}

fn shown(
    report: &Report,
    hidden: &std::collections::BTreeSet<String>,
    (sample, page): (Option<&replay_sample::Sample>, bool),
    job: &Job,
) -> Response {
    let mut value = serde_json::to_value(report).unwrap_or_default();
    value["sentence"] = replay_sample::sentence(report).into();
    value["hidden_attributes"] = json!(hidden);
    value["nodes"] = json!(sample.map(|sample| &sample.nodes[..]).unwrap_or_default());
    value["missing"] = sample.map_or(Value::Null, |sample| json!(sample.missing));
    if page {
        value["html"] = html(report).into();
    }
    in_pieces(&value, job)
}

/// Replaces callers by hashes, as viewers see them everywhere, also in the HTML page.
fn mask(report: &mut Report, log: &DecisionLog) {
    let masked = |caller: &mut String| *caller = log.names().masked("caller", caller);
    for rule in &mut report.rules {
        let callers = rule.hit_first.iter_mut().chain(&mut rule.hit_most);
        callers.for_each(|caller| masked(&mut caller.caller));
        let suggestions = rule.limits.iter_mut().filter_map(|limit| limit.suggestion.as_mut());
        suggestions.flat_map(|one| &mut one.busiest).for_each(|(caller, _)| masked(caller));
    }
}

fn compiled(
    given: Option<&Vec<Document>>,
    field: &str,
    in_force: &impl Fn() -> Answer<RuleSet>,
    job: &Job,
) -> Answer<RuleSet> {
    let Some(documents) = given else { return in_force() };
    if documents.is_empty() {
        return Err(Problem::field(field, "there is no document in it"));
    }
    let sources = DocumentSet::new(documents.clone());
    let groups = [(&sources.sources()[..], Format::Native)];
    RuleSet::compile_while(&|| job.is_wanted(), &groups, None).map_err(|found| Problem::invalid_rules(&found))
}

type Played = (Report, std::collections::BTreeSet<String>);

fn log_played(
    asked: &WhatIf,
    log: &str,
    rules: RuleSet,
    against: RuleSet,
    (most_played, job): (u64, &Job),
) -> Answer<Played> {
    let mut reader = Reader::new(log.as_bytes());
    let unreadable = |_| Problem::field("log", "it cannot be read");
    let first = reader.next_line().map_err(unreadable)?;
    let Some(Line::Text(first)) = first else {
        return Err(Problem::field("log", "it is empty, or its first line is longer than 64 KiB"));
    };
    let (mut parser, is_header) = parser(asked, first)?;
    let domain = domain(asked, &rules, parser.format())?;
    let options =
        Options { most_callers: MOST_CALLERS, named: NAMED, memory: MEMORY, ..Options::new(domain) };
    let mut replay = Replay::new(rules, Some(against), options);
    let too_many = |replay: &Replay| match replay.requests() > most_played {
        true => Err(Problem::field("log", format!("its lines stand for more than {most_played} requests"))
            .hint("play it with `tidegate replay`")),
        false => Ok(job.go_on()?),
    };
    if parser.format() == LogFormat::Tidegate {
        // In time order: several threads, and perhaps several nodes, wrote it.
        let mut lines = MergeByTime::new([(Reader::new(log.as_bytes()), None)]);
        while let Some(line) = lines.next_line().map_err(unreadable)? {
            replay.play_merged_line(line, &mut parser);
            too_many(&replay)?;
        }
    } else {
        if !is_header {
            replay.play_line(Line::Text(first), &mut parser);
        }
        while let Some(line) = reader.next_line().map_err(unreadable)? {
            replay.play_line(line, &mut parser);
            too_many(&replay)?;
        }
    }
    let report = replay.finish();
    match report.lines.played {
        0 => Err(Problem::field("log", "no line of it could be replayed")
            .hint("give its format with `format`, and its domain with `domain`")),
        _ => Ok((report, std::collections::BTreeSet::new())),
    }
}

/// The parser for the log, and whether its first line is a header.
fn parser(asked: &WhatIf, first: &[u8]) -> Answer<(Parser, bool)> {
    let format = match asked.format.as_deref() {
        None | Some("auto") => LogFormat::of(first).map_err(|unknown| {
            Problem::field("format", format!("{unknown}, by its first line"))
                .hint("say which it is: tidegate, combined, envoy, caddy or csv")
        })?,
        Some("csv") => {
            let columns: Vec<(String, String)> = asked.columns.clone().into_iter().collect();
            let parser = Parser::csv(first, &columns).map_err(|why| {
                Problem::field("columns", why)
                    .hint("for example {\"time\": \"started_at\", \"user\": \"account\"}")
            })?;
            return Ok((parser, true));
        }
        Some("tidegate") => LogFormat::Tidegate,
        Some("combined") => LogFormat::Combined,
        Some("envoy") => LogFormat::Envoy,
        Some("caddy") => LogFormat::Caddy,
        Some(other) => {
            return Err(Problem::field("format", format!("there is no format `{other}`"))
                .hint("one of auto, tidegate, combined, envoy, caddy, csv"));
        }
    };
    Ok((Parser::new(format).expect("CSV was dealt with"), false))
}

/// The domain of requests without one.
fn domain(asked: &WhatIf, rules: &RuleSet, format: LogFormat) -> Answer<String> {
    let mut known: Vec<&str> = rules.domains().collect();
    known.sort_unstable();
    let listed = || format!("the rules have {}", known.join(", "));
    match (&asked.domain, &known[..]) {
        (Some(domain), _) if known.contains(&domain.as_str()) => Ok(domain.clone()),
        (Some(domain), _) => {
            Err(Problem::field("domain", format!("the rules have no domain `{domain}`")).hint(&listed()))
        }
        (None, [only]) => Ok((*only).to_owned()),
        (None, _) if format == LogFormat::Tidegate => Ok(String::new()),
        (None, _) => Err(Problem::field("domain", "the log does not say it").hint(&listed())),
    }
}

#[cfg(test)]
mod tests {
    use tidegate_rules::Source;

    use super::*;

    #[test]
    fn a_log_whose_few_lines_stand_for_too_many_requests_is_given_up() {
        let rules = || {
            let text = "{ domain: api, rules: [{ name: r, key: [user], limits: [2/minute] }] }";
            RuleSet::compile(&[Source::new("a", text)], Format::Native).unwrap()
        };
        let line = r#"{"time_us":1800057600000000,"domain":"api","verdict":"refused","n":9,"attributes":{"user":"a"}}"#;
        let asked: WhatIf = serde_json::from_str("{}").unwrap();
        let play =
            |most| log_played(&asked, &[line; 3].join("\n"), rules(), rules(), (most, &Job::default()));
        let (report, _) = play(27).unwrap();
        assert_eq!((report.requests, report.refused.now), (27, 25));
        // Requests that wait in the merge count too, and are not replayed beyond the bound.
        let slots = || {
            let text = "{ domain: api, rules: [{ name: r, key: [], limits: [{ algorithm: concurrency, limit: 1 }] }] }";
            RuleSet::compile(&[Source::new("a", text)], Format::Native).unwrap()
        };
        let racing = line.replace("\"n\":9", "\"n\":9,\"answered_in_us\":90000");
        assert!(
            log_played(&asked, &[&*racing; 3].join("\n"), slots(), slots(), (26, &Job::default())).is_err()
        );
        let told = format!("{:?}", play(26).unwrap_err());
        assert!(told.contains("more than 26 requests") && told.contains("tidegate replay"), "{told}");
    }
}
