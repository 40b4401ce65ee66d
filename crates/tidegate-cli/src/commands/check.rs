//! `tidegate check`: one check against a running server; the exit code is the answer.

use std::io::{self, Write as _};
use std::process::ExitCode;

use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::args::{CheckArgs, Output};
use crate::endpoint::{AskLimits, Endpoint};
use crate::failure::Failure;

const ALLOWED: u8 = 0;
const REFUSED: u8 = 1;
const NO_ANSWER: u8 = 2;

/// The largest reply: a decision takes a few hundred bytes.
const LONGEST_REPLY: usize = 64 * 1024;

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode, Failure> {
    let decision = ask(args).map_err(|failure| failure.with_status(NO_ANSWER))?;
    let mut out = io::stdout().lock();
    match args.output.output {
        Output::Json => writeln!(out, "{}", decision.reply)?,
        Output::Text => writeln!(out, "{}", decision.sentence())?,
    }
    Ok(ExitCode::from(if decision.parts.allowed { ALLOWED } else { REFUSED }))
}

/// The fields of a reply that the sentence uses.
#[derive(Debug, Deserialize)]
struct DecisionParts {
    allowed: bool,
    rule: Option<String>,
    limit: Option<u64>,
    remaining: Option<u64>,
    reset_after_ms: Option<u64>,
    retry_after_ms: Option<u64>,
    #[serde(default)]
    source: String,
    lease: Option<String>,
    #[serde(default)]
    delay_ms: u64,
}

#[derive(Debug)]
struct Decision {
    /// As the server sent it: `--output json` includes fields of newer servers.
    reply: Value,
    parts: DecisionParts,
}

impl Decision {
    fn sentence(&self) -> String {
        let DecisionParts {
            allowed,
            rule,
            limit,
            remaining,
            reset_after_ms,
            retry_after_ms,
            source,
            lease,
            delay_ms,
        } = &self.parts;
        let mut clauses = Vec::new();
        match (allowed, rule) {
            (true, None) => clauses.push("allowed, no rule matched".to_owned()),
            (true, Some(rule)) => clauses.push(format!("allowed by {rule}")),
            (false, None) => clauses.push("refused".to_owned()),
            (false, Some(rule)) => clauses.push(format!("refused by {rule}")),
        }
        if let (Some(remaining), Some(limit)) = (remaining, limit) {
            clauses.push(format!("{remaining} of {limit} left"));
        }
        if *delay_ms > 0 {
            clauses.push(format!("go in {}", span(*delay_ms)));
        }
        match (allowed, retry_after_ms, reset_after_ms) {
            (false, Some(wait), _) => clauses.push(format!("retry in {}", span(*wait))),
            (false, None, _) => clauses.push("waiting does not help".to_owned()),
            (true, _, Some(reset)) if *reset > 0 => clauses.push(format!("full again in {}", span(*reset))),
            _ => {}
        }
        if let Some(lease) = lease {
            clauses.push(format!("lease {lease}"));
        }
        for skipped in self.reply["skipped"].as_array().into_iter().flatten() {
            let missing = skipped["missing"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let (rule, missing) = (skipped["rule"].as_str().unwrap_or_default(), missing.collect::<Vec<_>>());
            clauses.push(format!("skipped by {rule} (no {})", missing.join(", ")));
        }
        if source.starts_with("fallback") {
            clauses.push(format!("the store did not answer ({source})"));
        } else if source.starts_with("overload") {
            clauses.push(format!("the store was too busy ({source})"));
        }
        clauses.join(", ")
    }
}

/// `850ms`, `12.5s`, `3m 20s`: with as many digits as a person needs.
fn span(millis: u64) -> String {
    let seconds = millis / 1000;
    match seconds {
        0 => format!("{millis}ms"),
        1..60 if millis.is_multiple_of(1000) => format!("{seconds}s"),
        1..60 => format!("{seconds}.{}s", millis % 1000 / 100),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{}h {}m", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{}d {}h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

fn ask(args: &CheckArgs) -> Result<Decision, Failure> {
    let endpoint: Endpoint = args.server.parse()?;
    let mut attributes = Map::new();
    for attribute in &args.attributes {
        let value = Value::String(attribute.value.clone());
        if attributes.insert(attribute.key.clone(), value).is_some() {
            return Err(Failure::new(format!("the attribute `{}` is given twice", attribute.key)));
        }
    }
    let body = json!({ "domain": args.domain, "attributes": attributes, "cost": args.cost });
    let limits = AskLimits {
        ca: args.ca.as_deref(),
        within: args.timeout,
        most_bytes: LONGEST_REPLY,
        if_absent: "start a server with `tidegate serve`, or name another one with --server",
        if_slow: "give it longer with --timeout",
    };
    let answer = endpoint.ask(endpoint.request(&Method::POST, "/v1/check"), &body, &limits)?;
    read_reply(&endpoint, answer.status(), answer.body())
}

/// A decision has one shape whatever its status; anything else is an error, with the server's message if it has one.
fn read_reply(endpoint: &Endpoint, status: StatusCode, body: &[u8]) -> Result<Decision, Failure> {
    let reply: Option<Value> = serde_json::from_slice(body).ok();
    if let Some(reply) = &reply
        && let Ok(parts) = DecisionParts::deserialize(reply)
    {
        return Ok(Decision { reply: reply.clone(), parts });
    }
    let told = |member: &str| reply.as_ref().and_then(|problem| problem[member].as_str());
    let Some(detail) = told("detail").or(told("title")) else {
        return Err(Failure::new(format!("{endpoint} answered {status}, which is no decision"))
            .hint("--server must name tidegate's HTTP listener"));
    };
    let failure = Failure::new(format!("{endpoint} answered {status}: {detail}"));
    Err(match told("hint") {
        Some(hint) => failure.hint(hint),
        None => failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(reply: Value) -> Decision {
        let endpoint: Endpoint = "127.0.0.1:8080".parse().unwrap();
        read_reply(&endpoint, StatusCode::OK, reply.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn an_allowed_request_says_what_is_left() {
        let decision = decision(json!({
            "allowed": true, "rule": "per-user", "limit": 100, "remaining": 99, "reset_after_ms": 60_000,
            "retry_after_ms": null, "source": "store", "lease": null, "delay_ms": 0,
        }));
        assert_eq!(decision.sentence(), "allowed by per-user, 99 of 100 left, full again in 1m 0s");
    }

    #[test]
    fn a_refused_request_says_when_to_come_back() {
        let decision = decision(json!({
            "allowed": false, "rule": "login", "limit": 5, "remaining": 0, "reset_after_ms": 60_000,
            "retry_after_ms": 12_500, "source": "store", "lease": null, "delay_ms": 0,
        }));
        assert_eq!(decision.sentence(), "refused by login, 0 of 5 left, retry in 12.5s");
    }

    #[test]
    fn a_refusal_that_waiting_cannot_cure_says_so() {
        let decision = decision(json!({
            "allowed": false, "rule": "ban", "limit": 0, "remaining": 0, "reset_after_ms": 0,
            "retry_after_ms": null, "source": "store", "lease": null, "delay_ms": 0,
        }));
        assert_eq!(decision.sentence(), "refused by ban, 0 of 0 left, waiting does not help");
    }

    #[test]
    fn a_lease_a_delay_and_a_fallback_are_told() {
        let decision = decision(json!({
            "allowed": true, "rule": "uploads", "limit": 10, "remaining": 3, "reset_after_ms": null,
            "retry_after_ms": null, "source": "fallback_local", "lease": "abc", "delay_ms": 250,
        }));
        let told = "allowed by uploads, 3 of 10 left, go in 250ms, lease abc, the store did not answer (fallback_local)";
        assert_eq!(decision.sentence(), told);
    }

    #[test]
    fn a_rule_that_was_skipped_is_told_with_what_is_missing() {
        let decision = decision(json!({
            "allowed": true, "rule": null, "limit": null, "remaining": null, "reset_after_ms": null,
            "retry_after_ms": null, "source": "none", "lease": null, "delay_ms": 0,
            "skipped": [{ "rule": "per-user", "missing": ["user", "tenant"] }],
        }));
        assert_eq!(decision.sentence(), "allowed, no rule matched, skipped by per-user (no user, tenant)");
    }

    #[test]
    fn a_problem_document_is_told_in_the_servers_words() {
        let endpoint: Endpoint = "127.0.0.1:8080".parse().unwrap();
        let problem =
            json!({ "title": "unknown domain", "detail": "unknown domain `ap`, known: api" }).to_string();
        assert!(read_reply(&endpoint, StatusCode::NOT_FOUND, problem.as_bytes()).is_err());
    }
}
