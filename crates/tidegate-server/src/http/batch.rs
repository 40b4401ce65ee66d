//! `/v1/check/batch`: checks that are decided in one go, or refused together before anything is spent.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::StatusCode;
use tidegate_core::Timestamp;
use tidegate_limiter::{CheckRequest, DescriptorAsk, FirstTime, ReplayError, Transport};
use tidegate_rules::UnknownDomain;

use super::check::{Entries, ask, entries, question};
use super::named::{Asked, Told};
use super::{Answer, JSON, Shared, answer};
use crate::json::{self, Check};
use crate::problem::{Kind, Problem};

/// What is known of a check before it is decided.
enum Earlier<'c> {
    Unnamed,
    FirstTime(FirstTime<'c, Told>),
    Answered(Arc<Told>),
}

impl Shared {
    pub(super) async fn check_batch(&self, body: &[u8]) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let batch: json::Batch<'_> = json::parse(body)?;
        self.refuse_unknown_domains(&batch)?;
        let numbers = 0..batch.checks.len();
        let earlier: Vec<_> =
            numbers.map(|number| self.earlier(&batch.checks, number)).collect::<Result<_, _>>()?;
        let open: Vec<&Check<'_>> = batch
            .checks
            .iter()
            .zip(&earlier)
            .filter(|(_, earlier)| !matches!(earlier, Earlier::Answered(_)))
            .map(|(check, _)| check)
            .collect();
        let mut decided = self.decide_all(&open, began).await?.into_iter();
        let mut next = || decided.next().expect("one answer for each open check");
        let bodies = earlier.into_iter().map(|earlier| match earlier {
            Earlier::Unnamed => next().body,
            Earlier::FirstTime(first) => next().remembered_by(first).body.clone(),
            Earlier::Answered(told) => told.body.clone(),
        });
        let answer = answer(StatusCode::OK, JSON, joined(bodies));
        self.service.answered(Transport::Http, began);
        Ok(answer)
    }

    /// A batch is taken whole or not at all, so that a typing error in one check does not spend the others.
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

    fn earlier(&self, checks: &[Check<'_>], number: usize) -> Result<Earlier<'_>, Problem> {
        let check = &checks[number];
        let Some(id) = &check.request_id else { return Ok(Earlier::Unnamed) };
        let field = || format!("checks[{number}].request_id");
        match self.look_up(id.as_str(), &Asked::check(check)) {
            Ok(Ok(told)) => Ok(Earlier::Answered(told)),
            Ok(Err(first_time)) => Ok(Earlier::FirstTime(first_time)),
            Err(error) => {
                let same = |one: &Check<'_>| one.request_id == check.request_id && one.domain == check.domain;
                match checks[..number].iter().position(same) {
                    Some(first) if error == ReplayError::UnderWay => {
                        let detail = format!("{}: checks[{first}] has the same", field());
                        Err(Problem::new(Kind::InvalidField, detail).at(field()))
                    }
                    _ => Err(super::named::conflict(error).at(field())),
                }
            }
        }
    }

    async fn decide_all(&self, checks: &[&Check<'_>], began: Timestamp) -> Result<Vec<Told>, Problem> {
        let entries: Vec<Entries<'_>> = checks.iter().map(|check| entries(&check.attributes)).collect();
        let asks: Vec<DescriptorAsk<'_>> =
            checks.iter().zip(&entries).map(|(check, entries)| ask(entries, check.cost.0)).collect();
        let requests: Vec<CheckRequest<'_>> = checks
            .iter()
            .zip(&asks)
            .map(|(check, ask)| question(check.domain.as_str(), std::slice::from_ref(ask)))
            .collect();
        let decisions = self.service.limiter.check_batch(&requests).await;
        let told = decisions.into_iter().map(|decision| decision.map(|decision| self.told(&decision, began)));
        told.collect::<Result<_, _>>().map_err(|error| self.unknown_domain(&error, "checks"))
    }
}

/// `{"decisions":[…]}` of decisions that are JSON already.
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
