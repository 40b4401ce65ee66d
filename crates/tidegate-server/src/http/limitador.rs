//! Limitador's HTTP API, for its clients: `/check`, `/report` and `/check_and_report`. Only where the configuration says so.
//!
//! Its answers have a status and headers, and no body. An unknown namespace passes, as there; metrics count it.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{Decision, RefundError, SpentAt, Transport};
use tidegate_rules::Mode;

use super::check::{Entries, ask, question};
use super::{Answer, HttpState, text};
use crate::headers::{HeaderSet, HeaderSets, ResetForm};
use crate::problem::{Kind, Problem};

/// The longest name and the most values, as for `/v1/check`.
const MOST_VALUES: usize = 64;

/// What its clients send.
#[derive(Deserialize)]
struct LimitadorRequest {
    namespace: String,
    values: BTreeMap<String, String>,
    #[serde(default = "one")]
    delta: u64,
    response_headers: Option<String>,
}

fn one() -> u64 {
    1
}

/// One of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Call {
    Check,
    Report,
    CheckAndReport,
}

impl Call {
    /// The call at a path.
    pub(super) fn at(path: &str) -> Option<Call> {
        match path {
            "/check" => Some(Call::Check),
            "/report" => Some(Call::Report),
            "/check_and_report" => Some(Call::CheckAndReport),
            _ => None,
        }
    }
}

impl HttpState {
    pub(super) async fn limitador(&self, call: Call, body: &[u8]) -> Result<Answer, Problem> {
        let began = self.service.clock.now();
        let asked: LimitadorRequest = serde_json::from_slice(body)
            .map_err(|error| Problem::new(Kind::MalformedJson, error.to_string()))?;
        if asked.values.len() > MOST_VALUES {
            let detail = format!("{} values, more than {MOST_VALUES}", asked.values.len());
            return Err(Problem::new(Kind::InvalidField, detail).at("values"));
        }
        let entries: Entries<'_> =
            asked.values.iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let answer = match call {
            Call::Report => self.report(&asked, &entries).await,
            Call::Check | Call::CheckAndReport => Ok(self.check_limits(&asked, &entries, call, began).await),
        };
        self.service.answered(Transport::Http, began);
        answer
    }

    /// Counts what was done, whether or not it fits.
    async fn report(&self, asked: &LimitadorRequest, entries: &Entries<'_>) -> Result<Answer, Problem> {
        let descriptors = [ask(entries, 0)];
        let request = question(&asked.namespace, &descriptors);
        let amount = Hits::new(asked.delta);
        match self.service.limiter.charge(&request, amount, SpentAt::Ago(Micros::ZERO)).await {
            Ok(()) | Err(RefundError::UnknownDomain(_)) => Ok(text(StatusCode::OK, "")),
            Err(RefundError::Store(error)) => Err(super::store_unavailable(&error)),
            Err(error) => Err(Problem::new(Kind::StoreUnavailable, error.to_string())),
        }
    }

    async fn check_limits(
        &self,
        asked: &LimitadorRequest,
        entries: &Entries<'_>,
        call: Call,
        began: Timestamp,
    ) -> Answer {
        let cost = if call == Call::Check { 0 } else { asked.delta };
        let descriptors = [ask(entries, cost)];
        let Ok(decision) = self.service.limiter.check(&question(&asked.namespace, &descriptors)).await else {
            return text(StatusCode::OK, "");
        };
        let allowed = decision.allowed && (call != Call::Check || has_left(&decision, asked.delta));
        let mut answer = text(if allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }, "");
        if asked.response_headers.as_deref() == Some("DRAFT_VERSION_03") {
            let mut headers = HeaderMap::<HeaderValue>::new();
            let sets = HeaderSets::from_iter([HeaderSet::XRatelimit]).with_reset(ResetForm::Delta);
            self.service.write_headers((&decision, &[]), sets, began, &mut headers);
            answer.headers_mut().extend(headers);
        }
        answer
    }
}

/// Whether every limit has so many hits left.
fn has_left(decision: &Decision, hits: u64) -> bool {
    let enforced = decision.reports().iter().filter(|report| report.mode != Mode::Shadow);
    enforced.filter_map(|report| report.limit()).all(|limit| limit.outcome.remaining >= hits)
}
