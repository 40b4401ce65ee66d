//! `/v1/take`: hits for clients that decide by themselves.

use futures_util::future::join_all;
use http::StatusCode;
use tidegate_core::{Hits, Micros};
use tidegate_http::answer::{retry_after, shown};
use tidegate_limiter::{Report, SpentAt, Take, Transport};
use tidegate_rules::{Descriptor, UnknownDomain};

use super::check::{ask, entries, question};
use super::{Answer, HttpState, JSON, answer};
use crate::json::{self, Returned, TAKE_PROTOCOL, TakeReply, Taken, Wanted};
use crate::problem::{Kind, Problem};
use crate::service::rule_name;

impl HttpState {
    /// Takes back what a client returns, then grants what it wants. A message is accepted whole or not at all.
    pub(super) async fn take(&self, body: &[u8]) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let message: json::Take<'_> = json::parse(body)?;
        check(&message)?;
        let domain = message.domain.as_str();
        let unknown = |error: &UnknownDomain| self.unknown_domain(error, "domain");
        if !self.service.limiter.snapshot().rules().has_domain(domain) {
            return Err(unknown(&UnknownDomain { domain: domain.to_owned() }));
        }
        join_all(message.returns.iter().map(|one| self.take_back(domain, one))).await;
        let taken = join_all(message.takes.iter().map(|one| self.lend(domain, one))).await;
        let answers = taken.into_iter().collect::<Result<_, _>>().map_err(|error| unknown(&error))?;
        let body = serde_json::to_vec(&TakeReply { answers }).expect("an answer always serialises");
        self.service.answered(Transport::Http, began);
        Ok(answer(StatusCode::OK, JSON, body))
    }

    async fn lend(&self, domain: &str, wanted: &Wanted<'_>) -> Result<Taken, UnknownDomain> {
        let entries = entries(&wanted.attributes);
        let descriptor = Descriptor { entries: &entries };
        Ok(match self.service.limiter.take(domain, descriptor, Hits::new(wanted.hits.0)).await? {
            Take::Ask { rule } => {
                let rule = rule.map_or_else(|| "a rule".to_owned(), |name| format!("rule `{name}`"));
                Taken::Ask { ask: format!("{rule} has no `lease_to_clients: true`") }
            }
            Take::Decided { granted, held, decision } => {
                let report = shown(&decision);
                let limit = report.and_then(Report::limit);
                Taken::Decided {
                    granted,
                    // A longer time would be too long.
                    held_ms: held.get() / 1_000,
                    rule: report.map(|report| rule_name(&decision, report).to_owned()),
                    limit: limit.map(|limit| limit.quota),
                    remaining: limit.map(|limit| limit.outcome.remaining),
                    reset_after_ms: limit.map(|limit| limit.outcome.reset_after.as_millis_ceil()),
                    retry_after_ms: retry_after(&decision).map(Micros::as_millis_ceil),
                }
            }
        })
    }

    /// What does not reach the store stays spent: the limit holds, and the client has no use for an error.
    async fn take_back(&self, domain: &str, returned: &Returned<'_>) {
        let entries = entries(&returned.attributes);
        let asks = [ask(&entries, 0)];
        let (amount, age) = (Hits::new(returned.hits.0), Micros::from_millis(returned.age_ms.0));
        let back = self.service.limiter.refund(&question(domain, &asks), amount, SpentAt::Ago(age)).await;
        if let Err(error) = back {
            tracing::debug!(%error, "hits that a client returned stay spent");
        }
    }
}

fn check(message: &json::Take<'_>) -> Result<(), Problem> {
    let wrong = |field: String, why: &str, hint: &'static str| {
        Err(Problem::new(Kind::InvalidField, format!("{field}: {why}")).at(field).hint(hint))
    };
    if message.protocol.0 != TAKE_PROTOCOL {
        let why = format!("this server implements {TAKE_PROTOCOL}, not {}", message.protocol.0);
        let hint = "ask `/v1/check` for each request, or use a client that sends `\"protocol\": 1`";
        return wrong("protocol".into(), &why, hint);
    }
    let none = "expected at least 1 hit";
    if let Some(number) = message.takes.iter().position(|one| one.hits.0 == 0) {
        return wrong(format!("takes[{number}].hits"), none, "leave out keys that need none");
    }
    if let Some(number) = message.returns.iter().position(|one| one.hits.0 == 0) {
        return wrong(format!("returns[{number}].hits"), none, "leave out keys that return none");
    }
    Ok(())
}
