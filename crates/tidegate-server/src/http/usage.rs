//! `/v1/usage`: what remains for a caller under every rule that matches. Spends nothing.
//!
//! `POST` takes what a check takes; `GET` the same as a query, `?domain=api&user=42`, for a browser and for `curl`.

use http::StatusCode;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tidegate_core::Micros;
use tidegate_limiter::{CellUsage, Transport};
use tidegate_rules::{Descriptor, Rule, RuleOutcome};

use super::check::entries;
use super::{Answer, HttpState, JSON, answer};
use crate::json::{self, Check};
use crate::problem::{Kind, Problem};

/// The most attributes of a query.
const MOST_ATTRIBUTES: usize = 64;

#[derive(Serialize)]
struct Usage<'a> {
    domain: &'a str,
    source: &'static str,
    limits: Vec<Left<'a>>,
    /// Rules that match and have no limit for this caller.
    unlimited: Vec<&'a str>,
    /// Rules that refuse it because it is banned.
    banned: Vec<&'a str>,
}

#[derive(Serialize)]
struct Left<'a> {
    rule: &'a str,
    name: &'a str,
    algorithm: &'static str,
    limit: u64,
    window_ms: Option<u64>,
    used: u64,
    remaining: u64,
    reset_after_ms: u64,
    retry_after_ms: Option<u64>,
    shadow: bool,
}

impl HttpState {
    pub(super) async fn usage(&self, body: &[u8]) -> Result<Answer, Problem> {
        let check: Check<'_> = json::parse(body)?;
        let entries = entries(&check.attributes);
        self.usage_of(check.domain.as_str(), &entries).await
    }

    pub(super) async fn usage_of_query(&self, query: &str) -> Result<Answer, Problem> {
        let pairs = pairs_of(query)?;
        let domain = pairs.iter().find(|(name, _)| name == "domain").map(|(_, value)| value.as_str());
        let domain = domain.ok_or_else(|| {
            Problem::new(Kind::InvalidField, "the query names no domain")
                .at("domain")
                .hint("GET /v1/usage?domain=api&user=42")
        })?;
        let attributes = pairs.iter().filter(|(name, _)| name != "domain");
        let entries: Vec<(&str, &[u8])> =
            attributes.map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        self.usage_of(domain, &entries).await
    }

    async fn usage_of(&self, domain: &str, entries: &[(&str, &[u8])]) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let looked = self.service.limiter.usage(domain, Descriptor { entries }).await;
        let looked = looked.map_err(|error| self.unknown_domain(&error, "domain"))?;
        let snapshot = self.service.limiter.snapshot();
        let hidden: Vec<&str> = snapshot
            .rules()
            .rules()
            .filter(|rule| rule.domain() == domain && !rule.is_visible())
            .map(Rule::name)
            .collect();
        let is_visible = |rule: &str| !hidden.contains(&rule);
        let rules = |is: fn(&RuleOutcome) -> bool| {
            let those =
                looked.explanation.rules.iter().filter(|one| is(&one.outcome) && is_visible(&one.rule));
            those.map(|one| one.rule.as_str()).collect()
        };
        let usage = Usage {
            domain,
            source: looked.source.name(),
            limits: looked.cells.iter().filter(|cell| is_visible(&cell.rule)).map(left).collect(),
            unlimited: rules(|outcome| matches!(outcome, RuleOutcome::Unlimited { .. })),
            banned: rules(|outcome| matches!(outcome, RuleOutcome::Banned { .. })),
        };
        let body = serde_json::to_vec(&usage).expect("usage always serialises");
        self.service.answered(Transport::Http, began);
        Ok(answer(StatusCode::OK, JSON, body))
    }
}

fn left(cell: &CellUsage) -> Left<'_> {
    Left {
        rule: &cell.rule,
        name: &cell.limit.name,
        algorithm: cell.limit.algorithm,
        limit: cell.quota,
        window_ms: cell.window.map(Micros::as_millis_ceil),
        used: cell.quota.saturating_sub(cell.outcome.remaining),
        remaining: cell.outcome.remaining,
        reset_after_ms: cell.outcome.reset_after.as_millis_ceil(),
        retry_after_ms: cell.outcome.retry_after().map(Micros::as_millis_ceil),
        shadow: cell.mode == tidegate_rules::Mode::Shadow,
    }
}

/// The names and values of a query, decoded. A name may be given once.
fn pairs_of(query: &str) -> Result<Vec<(String, String)>, Problem> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (decoded(name)?, decoded(value)?);
        if pairs.iter().any(|(known, _)| *known == name) {
            return Err(Problem::new(Kind::InvalidField, "it is given twice").at(name));
        }
        if pairs.len() == MOST_ATTRIBUTES {
            let detail = format!("there are more than {MOST_ATTRIBUTES} attributes");
            return Err(Problem::new(Kind::InvalidField, detail));
        }
        pairs.push((name, value));
    }
    Ok(pairs)
}

fn decoded(text: &str) -> Result<String, Problem> {
    let text = text.replace('+', " ");
    let decoded = percent_decode_str(&text).decode_utf8();
    decoded.map(Into::into).map_err(|_| Problem::new(Kind::InvalidField, "the query is not UTF-8"))
}
