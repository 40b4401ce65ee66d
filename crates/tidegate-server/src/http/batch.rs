//! `/v1/check/batch`: checks that are decided together, or rejected together before anything is spent.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures_util::future::join_all;
use http::StatusCode;
use tidegate_core::Timestamp;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Transport};
use tidegate_rules::UnknownDomain;

use super::check::{Entries, ask, entries, question};
use super::idempotency::{DecideBy, KeptAnswer, NamedTurn, caller, check_id, detached};
use super::{Answer, HttpState, JSON, answer};
use crate::json::{self, Check};
use crate::problem::{Kind, Problem};

impl HttpState {
    pub(super) async fn check_batch(self: &Arc<Self>, body: Bytes) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let batch: json::Batch<'_> = json::parse(&body)?;
        self.refuse_unknown_domains(&batch)?;
        refuse_names_used_twice(&batch.checks)?;
        let answer = if batch.checks.iter().all(|check| check.request_id.is_none()) {
            self.decide_batch(&batch, began).await?
        } else {
            let (shared, body) = (self.clone(), body.clone());
            detached(async move { shared.decide_batch(&json::parse(&body)?, began).await }).await?
        };
        self.service.answered(Transport::Http, began);
        Ok(answer)
    }

    async fn decide_batch(&self, batch: &json::Batch<'_>, began: Timestamp) -> Result<Answer, Problem> {
        let numbers = 0..batch.checks.len();
        let turns = join_all(numbers.map(|number| self.turn_in_batch(&batch.checks[number], number))).await;
        let turns: Vec<Option<NamedTurn<'_>>> = turns.into_iter().collect::<Result<_, _>>()?;
        let open: Vec<(&Check<'_>, DecideBy)> = batch
            .checks
            .iter()
            .zip(&turns)
            .filter(|(_, turn)| !matches!(turn, Some(NamedTurn::Answered(_))))
            .map(|(check, turn)| (check, DecideBy::under(turn.as_ref())))
            .collect();
        let mut decided = self.decide_all(&open, began).await?.into_iter();
        let mut next = || decided.next().expect("one answer for each open check");
        let bodies = join_all(turns.into_iter().map(|turn| {
            let (kept, first) = match turn {
                None => (next(), None),
                Some(NamedTurn::Ours(first)) => (next(), Some(first)),
                Some(NamedTurn::Answered(kept)) => (kept, None),
            };
            async move {
                if let Some(first) = first {
                    kept.settle(first).await;
                }
                kept.body
            }
        }));
        Ok(answer(StatusCode::OK, JSON, joined(bodies.await.into_iter())))
    }

    /// A batch is accepted whole or not at all, so that a typo in one check does not spend the others.
    fn refuse_unknown_domains(&self, batch: &json::Batch<'_>) -> Result<(), Problem> {
        let snapshot = self.service.limiter.snapshot();
        for (number, check) in batch.checks.iter().enumerate() {
            if !snapshot.rules().has_domain(check.domain.as_str()) {
                let error = UnknownDomain { domain: check.domain.as_str().to_owned() };
                return Err(self.unknown_domain(&error, &format!("checks[{number}].domain")));
            }
        }
        Ok(())
    }

    /// Claims the `request_id` of a check; `None` if it has none.
    async fn turn_in_batch(
        &self,
        check: &Check<'_>,
        number: usize,
    ) -> Result<Option<NamedTurn<'_>>, Problem> {
        let Some(id) = &check.request_id else { return Ok(None) };
        let turn = self.turn(&check_id(check, id.as_str())).await;
        turn.map(Some).map_err(|problem| problem.at(format!("checks[{number}].request_id")))
    }

    async fn decide_all(
        &self,
        checks: &[(&Check<'_>, DecideBy)],
        began: Timestamp,
    ) -> Result<Vec<KeptAnswer>, Problem> {
        let entries: Vec<Entries<'_>> = checks.iter().map(|(check, _)| entries(&check.attributes)).collect();
        let asks: Vec<DescriptorAsk<'_>> =
            checks.iter().zip(&entries).map(|((check, _), entries)| ask(entries, check.cost.0)).collect();
        let requests: Vec<CheckRequest<'_>> = checks
            .iter()
            .zip(&asks)
            .map(|((check, by), ask)| by.question(question(check.domain.as_str(), std::slice::from_ref(ask))))
            .collect();
        let decisions = self.service.limiter.check_batch(&requests).await;
        let told = decisions
            .into_iter()
            .zip(&entries)
            .map(|(decision, entries)| decision.map(|decision| self.checked(&decision, entries, began)));
        told.collect::<Result<_, _>>().map_err(|error| self.unknown_domain(&error, "checks"))
    }
}

/// Two checks of one caller in one batch cannot have the same `request_id`.
fn refuse_names_used_twice(checks: &[Check<'_>]) -> Result<(), Problem> {
    let mut known = HashMap::new();
    for (number, check) in checks.iter().enumerate() {
        let Some(id) = &check.request_id else { continue };
        if let Some(first) =
            known.insert((check.domain.as_str(), caller(&check.attributes), id.as_str()), number)
        {
            let field = format!("checks[{number}].request_id");
            let detail = format!("{field}: checks[{first}] has the same");
            return Err(Problem::new(Kind::InvalidField, detail).at(field));
        }
    }
    Ok(())
}

/// `{"decisions":[…]}` from decisions that are already JSON.
fn joined(bodies: impl Iterator<Item = Bytes>) -> BytesMut {
    let mut whole = BytesMut::from(&b"{\"decisions\":["[..]);
    for (number, body) in bodies.enumerate() {
        if number > 0 {
            whole.extend_from_slice(b",");
        }
        whole.extend_from_slice(&body);
    }
    whole.extend_from_slice(b"]}");
    whole
}
