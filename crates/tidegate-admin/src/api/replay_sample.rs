//! Previews proposed rules: replays the last minutes' traffic through them before they are published.
//!
//! The sample comes from the decision logs of all nodes. The engine of `tidegate replay` plays it through the proposed rules
//! and through those in force, on a separate thread that only the caller waits for.
//!
//! Not for viewers, who see callers as hashes: rules that match on a value tell how many requests have it, which reveals the
//! values letter by letter.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::{Extension, State};
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tidegate_decisions::{DecisionLog, Digester};
use tidegate_replay::{
    HashedValues, LimitReport, Options, Otherwise, Peak, Rank, Recorded, Replay, Report, RuleChange,
    RuleReport, Tells, decision_line,
};
use tidegate_rules::{RuleSet, Timestamp};
use tidegate_rulestore::{Document, DocumentSet, put_rule};

use super::body::Body;
use super::caller::Caller;
use super::decisions::log_of;
use super::pieces::in_pieces;
use super::problem::{Answer, Problem};
use super::unhash::{Literals, hashed};
use super::when;
use crate::control::{Base, ControlPlane, NodeAnswer, Question, SHARED_FOR, UnansweredNode, compile_while};
use crate::jobs::{self, Job};

/// The proposal: a whole set of documents; or the new text of one rule.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Proposed {
    documents: Option<Vec<Document>>,
    domain: Option<String>,
    rule: Option<String>,
    text: Option<String>,
}

/// The most callers told apart in a preview: as many as a sample of bounded bytes can hold.
const MOST_CALLERS: usize = 100_000;
const NAMED: usize = 5;
/// Points of a slider's curve.
const MOST_TOUCHED: usize = 200;
/// The most requests replayed; of a larger sample, the newest. Some seconds of work.
const MOST_PLAYED: u64 = 3_000_000;

pub(crate) async fn replay(
    State(control): State<Arc<ControlPlane>>,
    Extension(caller): Extension<Caller>,
    Body(proposed): Body<Proposed>,
) -> Answer<Response> {
    let running = control.rules.now().base.clone();
    let (proposal, only) = match proposed {
        Proposed { documents: Some(documents), domain: None, rule: None, text: None } => {
            (Proposal::Set(documents), None)
        }
        Proposed { documents: None, domain: Some(domain), rule: Some(rule), text: Some(text) } => {
            (Proposal::One { domain: domain.clone(), rule, text }, Some(domain))
        }
        _ => {
            return Err(Problem::field("", "nothing is proposed, or two things at once").hint(
                "give `documents`, a list of {domain, text}; or `domain`, `rule` and the rule's `text`",
            ));
        }
    };
    let (log, now, flags) = (log_of(&control)?.clone(), control.clock.now(), control.rules.flags());
    let sample = sample(&control, &log, only).await;
    // Compiling, playing and even writing the answer takes long, and this thread has the node's heartbeat.
    let played = move |job: &Job| {
        let documents = proposal.documents(&running)?;
        let rules = compile_while(&|| job.is_wanted(), &documents, now);
        let rules = rules.map_err(|found| Problem::invalid_rules(&found))?.with_flags(&flags);
        let against = running.compile_while(&|| job.is_wanted(), now).ok();
        let against = against.map(|rules| rules.with_flags(&flags));
        Ok(played(rules, against, &sample, log.names(), job))
    };
    jobs::REPLAYS.run(&caller.lane, played).await?
}

/// What is proposed: a whole set, or one rule of the set in force.
enum Proposal {
    Set(Vec<Document>),
    One { domain: String, rule: String, text: String },
}

impl Proposal {
    fn documents(self, running: &Base) -> Answer<DocumentSet> {
        match self {
            Proposal::Set(documents) => Ok(DocumentSet::new(documents)),
            Proposal::One { domain, rule, text } => {
                let current = DocumentSet::new(running.documents());
                let document = current.get(&domain).ok_or_else(|| {
                    Problem::not_found(format!("there is no document of the domain `{domain}`"))
                })?;
                let changed = put_rule(document, &rule, &text);
                let changed = changed.map_err(|error| Problem::field("text", error.to_string()))?;
                Ok(current.with(&domain, changed))
            }
        }
    }
}

/// The sample of all nodes, starting where all of them are complete.
pub(super) struct Sample {
    pub(super) lines: Vec<String>,
    pub(super) since_us: u64,
    pub(super) nodes: Vec<String>,
    pub(super) missing: Vec<UnansweredNode>,
}

pub(super) async fn sample(control: &ControlPlane, log: &Arc<DecisionLog>, domain: Option<String>) -> Sample {
    let gathered = control.questions.gather(log, Question::Sample { domain }, SHARED_FOR).await;
    let (mut lines, mut since, mut nodes) = (Vec::new(), 0, Vec::new());
    for (node, answer) in gathered.answers {
        let NodeAnswer::Sample { lines: own, since_us } = answer else { continue };
        since = since.max(since_us.unwrap_or(0));
        nodes.push(node);
        lines.extend(own);
    }
    Sample { lines, since_us: since, nodes, missing: gathered.missing }
}

fn played(
    rules: RuleSet,
    against: Option<RuleSet>,
    sample: &Sample,
    names: &Digester,
    job: &Job,
) -> Response {
    let Sample { lines, since_us, nodes, missing } = sample;
    let since_us = *since_us;
    let (report, hidden) = report(rules, against, (lines, since_us), names, job);
    let mut value = serde_json::to_value(&report).unwrap_or_default();
    value["sentence"] = sentence(&report).into();
    value["since"] = when::text(Timestamp::from_micros(since_us.max(report.from_s * 1_000_000))).into();
    value["hidden_attributes"] = json!(hidden);
    value["nodes"] = json!(nodes);
    value["missing"] = json!(missing);
    for (rule, shown) in report.rules.iter().zip(value["rules"].as_array_mut().into_iter().flatten()) {
        for (limit, shown) in rule.limits.iter().zip(shown["limits"].as_array_mut().into_iter().flatten()) {
            shown["touched"] = json!(touched_in_replay(limit));
        }
    }
    in_pieces(&value, job)
}

/// Replays the sample in time order, and finds attributes whose values the log hides: rules can count by them and compare
/// them with literals, but cannot match patterns on them.
pub(super) fn report(
    rules: RuleSet,
    against: Option<RuleSet>,
    (lines, since_us): (&[String], u64),
    names: &Digester,
    job: &Job,
) -> (Report, BTreeSet<String>) {
    // An event is replayed once, whatever its weight: its hits are multiplied instead.
    let weight = |recorded: &Recorded<'_>| if recorded.tells == Tells::Request { recorded.weight } else { 1 };
    let is_complete = |recorded: &Recorded<'_>| recorded.at.as_micros() >= since_us;
    let read = |line: &str| {
        let recorded = parse(line).filter(is_complete)?;
        Some((recorded.when(), recorded.rank(), weight(&recorded)))
    };
    let mut ordered: Vec<((Timestamp, Rank, u32), &str)> =
        lines.iter().filter_map(|line| Some((read(line)?, line.as_str()))).collect();
    ordered.sort_by_key(|((when, rank, _), _)| (*when, *rank));
    let mut played = 0;
    let newest = ordered.iter().rev().take_while(|((.., weight), _)| {
        played += u64::from(*weight);
        played <= MOST_PLAYED
    });
    let from = ordered.len() - newest.count();
    let mut hidden: BTreeSet<(String, String)> = BTreeSet::new();
    for recorded in ordered[from..].iter().filter_map(|(_, line)| parse(line)) {
        let domain = recorded.domain.as_deref().unwrap_or_default();
        let also = recorded.own.also.iter().map(|also| &also.attributes);
        for name in [&recorded.attributes].into_iter().chain(also).flat_map(hashed) {
            if !hidden.iter().any(|(of, known)| of == domain && known == name) {
                hidden.insert((domain.to_owned(), name.to_owned()));
            }
        }
    }
    let both: Vec<&RuleSet> = [Some(&rules), against.as_ref()].into_iter().flatten().collect();
    let literals = Literals::new(&both, &hidden, names);
    let hashed = HashedValues::LiteralsKnown;
    let options = Options { most_callers: MOST_CALLERS, named: NAMED, hashed, ..Options::new("") };
    let mut replay = Replay::new(rules, against, options);
    let wanted = ordered[from..].iter().take_while(|_| job.is_wanted());
    for mut recorded in wanted.filter_map(|(_, line)| parse(line)) {
        literals.put_into(&mut recorded);
        replay.put(&recorded);
    }
    (replay.finish(), hidden.into_iter().map(|(_, name)| name).collect())
}

fn parse(line: &str) -> Option<Recorded<'_>> {
    decision_line(line.as_bytes()).ok()
}

/// The report in one sentence: first what cannot be determined, then that it is an estimate.
pub(super) fn sentence(report: &Report) -> String {
    let callers = refuses_most(report).map_or_else(String::new, |rule| {
        let (refused, all) = (thousands(rule.callers_refused.now), thousands(rule.callers));
        format!(", {refused} of {all} callers under the rule that refuses most")
    });
    let (who, estimated) = match (&report.unknown, &report.estimate) {
        (Some(unknown), _) => (format!("{unknown}; the other rules "), ""),
        (None, Some(_)) => (String::new(), " by estimate"),
        (None, None) => (String::new(), ""),
    };
    let mut sentence = format!(
        "{who}would have refused{estimated} {} of {} requests{callers}",
        thousands(report.refused.now),
        thousands(report.requests)
    );
    if let Some(estimate) = &report.estimate {
        sentence += &format!("; {estimate}");
    }
    // A replay that does not reproduce what happened proves little about what would have happened.
    if let Some(told) = report.before_otherwise.filter(|told| *told != Otherwise::default()) {
        sentence += &format!(
            "; the rules in force do not repeat what happened: of the {} refused then they let {} pass here, and refuse {} others",
            thousands(report.refused_in_log.unwrap_or_default()),
            thousands(told.admitted_now),
            thousands(told.refused_now)
        );
    }
    sentence
}

/// The rule with the most refusals, of those known to refuse. Shadow rules do not refuse.
fn refuses_most(report: &Report) -> Option<&RuleReport> {
    let refuses = |rule: &&RuleReport| !rule.unknown && !rule.shadow && rule.change != RuleChange::Removed;
    let by = |rule: &&RuleReport| (rule.refused.now, rule.callers_refused.now, rule.callers);
    report.rules.iter().filter(refuses).max_by_key(by)
}

/// Formats a number with digits in groups of three.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap_or("")).collect();
    groups.join(",")
}

/// A limit, and how many callers and requests it would have touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Touched {
    pub(crate) limit: u64,
    pub(crate) callers: u64,
    pub(crate) requests: u64,
}

/// A curve for a slider: at most so many limits between 0 and the largest peak, those where something changes among them.
pub(crate) fn touched(values: &[u64], of: impl Fn(u64) -> (u64, u64)) -> Vec<Touched> {
    let mut values: Vec<u64> = [0].into_iter().chain(values.iter().copied()).collect();
    values.sort_unstable();
    values.dedup();
    let step = values.len().div_ceil(MOST_TOUCHED).max(1);
    let last = values.len() - 1;
    let kept = values.iter().enumerate().filter(|(place, _)| place % step == 0 || *place == last);
    kept.map(|(_, limit)| {
        let (callers, requests) = of(*limit);
        Touched { limit: *limit, callers, requests }
    })
    .collect()
}

fn touched_in_replay(limit: &LimitReport) -> Vec<Touched> {
    let above = |peaks: &[Peak], limit: u64| -> u64 {
        peaks.iter().filter(|peak| peak.value > limit).map(|peak| peak.count).sum()
    };
    let excess = |runs: &[Peak], limit: u64| -> u64 {
        let excess = |run: &Peak| run.value.saturating_sub(limit).saturating_mul(run.count);
        runs.iter().map(excess).fold(0, u64::saturating_add)
    };
    let values: Vec<u64> = limit.peaks.iter().chain(&limit.runs).map(|peak| peak.value).collect();
    touched(&values, |at| (above(&limit.peaks, at), excess(&limit.runs, at)))
}

#[cfg(test)]
mod tests {
    use tidegate_decisions::DecisionLogConfig;
    use tidegate_rules::{Format, Source};
    use tidegate_store::SystemClock;

    use super::*;

    fn rules(text: &str) -> RuleSet {
        RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native).expect("good rules")
    }

    fn names(secret: &str) -> DecisionLog {
        let config = DecisionLogConfig { secret: Some(secret.to_owned()), ..DecisionLogConfig::default() };
        DecisionLog::open(config, Arc::new(SystemClock::new())).expect("it has no file")
    }

    /// Twenty requests to `/login` by one caller, of which ten were refused from what the node remembered.
    fn hashed_lines(log: &DecisionLog) -> Vec<String> {
        let (path, user) = (log.names().hash("path", b"/login"), log.names().hash("user", b"a"));
        let line = |n: u64| {
            let verdict =
                if n < 10 { r#""admitted","source":"store""# } else { r#""refused","source":"deny_cache""# };
            format!(
                r#"{{"time_us":{},"domain":"api","verdict":{verdict},"n":1,"attributes":{{"user":"{user}","path":"{path}"}}}}"#,
                1_800_057_600_000_000 + n
            )
        };
        (0..20).map(line).collect()
    }

    #[test]
    fn a_rule_that_matches_a_hashed_value_is_played_by_what_its_hash_is() {
        let log = names("0123456789abcdef");
        let text = "{ domain: api, rules: [{ name: login, match: { path: /login }, key: [user], limits: [{ algorithm: fixed_window, limit: 10, window: 1h }] }] }";
        let (report, hidden) =
            report(rules(text), None, (&hashed_lines(&log), 0), log.names(), &Job::default());
        assert_eq!((report.refused.now, &report.unknown), (10, &None));
        assert_eq!(hidden.len(), 2);
    }

    #[test]
    fn of_a_rule_that_matches_a_pattern_on_hashed_values_the_answer_is_unknown() {
        let log = names("0123456789abcdef");
        let text = "{ domain: api, rules: [{ name: login, match: { path: '/log*' }, key: [user], limits: [{ algorithm: fixed_window, limit: 10, window: 1h }] }] }";
        let (report, _) =
            report(rules(text), Some(rules(text)), (&hashed_lines(&log), 0), log.names(), &Job::default());
        let told = sentence(&report);
        assert!(told.starts_with("unknown: the log hashes `path`, and rule api/login must know the values; add `decision_log: { clear: [path] }`"), "{told}");
        assert!(report.rules[0].unknown);
        assert!(!report.notes.iter().any(|note| note.contains("deny_cache")), "{:?}", report.notes);
    }

    #[test]
    fn what_lines_of_a_sample_are_played_as_is_called_an_estimate_and_what_makes_it_exact() {
        let log = names("0123456789abcdef");
        let text = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 40, window: 1h }] }] }";
        // Nobody was refused: each caller made a few, of which one line in a hundred was kept.
        let line = |n: u64| {
            format!(
                r#"{{"time_us":{},"domain":"api","verdict":"admitted","n":100,"attributes":{{"user":"u{n}"}}}}"#,
                1_800_057_600_000_000 + n
            )
        };
        let lines: Vec<String> = (0..10).map(line).collect();
        let (report, _) = report(rules(text), Some(rules(text)), (&lines, 0), log.names(), &Job::default());
        let told = sentence(&report);
        assert!(told.starts_with("would have refused by estimate 600 of 1,000 requests"), "{told}");
        assert!(told.contains("10 of 10 lines stand for up to 100 requests"), "{told}");
        assert!(told.contains("admissions_one_in: 1"), "{told}");
        assert!(told.contains("do not repeat what happened: of the 0 refused then they let 0 pass here, and refuse 600 others"), "{told}");
        assert_eq!(report.before_otherwise.map(|told| told.refused_now), Some(600));
    }

    #[test]
    fn the_callers_of_the_sentence_are_those_of_the_enforced_rule_that_refuses_most_requests() {
        // By path 90 requests are refused, all of one key. By user fewer are, of five keys; a shadow rule counts the same.
        let rule = |name: &str, key: &str, limit: u64, mode: &str| {
            format!(
                "{{ name: {name}, key: [{key}], {mode} limits: [{{ algorithm: fixed_window, limit: {limit}, window: 1h }}] }}"
            )
        };
        let (path, user) = (rule("per-path", "path", 10, ""), rule("per-user", "user", 1, ""));
        let trial = rule("trial", "user", 1, "shadow: true,");
        let line = |n: u64, user: u64, path: &str| {
            format!(
                r#"{{"time_us":{},"domain":"api","verdict":"admitted","n":1,"attributes":{{"user":"u{user}","path":"{path}"}}}}"#,
                1_800_057_600_000_000 + n
            )
        };
        let busy = (0..100).map(|n| line(n, n, "/busy"));
        let quiet = (0..20).map(|n| line(100 + n, n % 5, &format!("/{n}")));
        let lines: Vec<String> = busy.chain(quiet).collect();
        let log = names("0123456789abcdef");
        let told =
            |text: &str| sentence(&report(rules(text), None, (&lines, 0), log.names(), &Job::default()).0);
        let both = told(&format!("{{ domain: api, rules: [{path}, {user}, {trial}] }}"));
        assert!(both.ends_with("1 of 21 callers under the rule that refuses most"), "{both}");
        let shadows = told(&format!("{{ domain: api, rules: [{trial}] }}"));
        assert_eq!(shadows, "would have refused 0 of 120 requests");
    }

    #[test]
    fn an_event_that_stands_for_many_takes_no_room_from_requests() {
        let rules = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 1, window: 1h }] }] }";
        let rules =
            RuleSet::compile(&[Source::new("rules.yaml", rules)], Format::Native).expect("good rules");
        let decision = |at: u64| {
            format!(
                r#"{{"time_us":{at},"domain":"api","verdict":"admitted","n":1,"attributes":{{"user":"a"}}}}"#
            )
        };
        let refund = format!(
            r#"{{"time_us":12,"event":"refunded","domain":"api","amount":0,"n":{},"attributes":{{"user":"a"}}}}"#,
            2 * MOST_PLAYED
        );
        let lines = [decision(10), decision(11), refund, decision(13)];
        let log = DecisionLog::open(DecisionLogConfig::default(), Arc::new(SystemClock::new())).unwrap();
        let (report, _) = report(rules, None, (&lines, 0), log.names(), &Job::default());
        assert_eq!((report.requests, report.refused.now, report.lines.events), (3, 2, 1));
    }
}
