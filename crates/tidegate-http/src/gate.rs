//! The path of every HTTP request through tidegate: identified, shed, checked, answered or held.
//!
//! Middleware, proxy and forward-auth differ in where a request comes from and in what they do with an admitted one.
//! Everything in between is here, once: read it from top to bottom in [`Gate::admit`].

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use smallvec::SmallVec;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{
    CheckRequest, Decision, DescriptorAsk, Limiter, Observer, Patience, Runtime, Shedder, TRACEPARENT,
    TraceContext, Transport,
};
use tidegate_rules::{Descriptor, UnknownDomain};
use tidegate_store::Clock;

use crate::answer::{ClosedStatus, Partitions, value_in};
use crate::headers::HeaderSets;
use crate::hold::{Held, Hold};
use crate::identity::{Attributes, Entries};
use crate::problem::{Kind, Problem};
use crate::{answer, grpc};

/// Checks the requests of an HTTP surface.
#[derive(Clone)]
pub struct Gate {
    /// Decides requests.
    pub limiter: Arc<Limiter>,
    /// Sheds requests, before anything is spent, while a service is overloaded.
    pub shedder: Option<Arc<Shedder>>,
    /// The header sets of its answers.
    pub headers: HeaderSets,
    /// The status of refusals for lack of a store.
    pub closed_status: ClosedStatus,
    /// Runs timers, and the tasks that renew leases.
    pub runtime: Arc<dyn Runtime>,
    /// The clock for `X-RateLimit-Reset`.
    pub clock: Arc<dyn Clock>,
    /// Observes how long decisions took, and on which transport.
    pub observed: Option<(Arc<dyn Observer>, Transport)>,
}

/// A request to decide.
#[derive(Clone, Copy, Debug)]
pub struct HttpCheck<'a, 'r> {
    /// The domain whose rules apply.
    pub domain: &'a str,
    /// Its attributes.
    pub attributes: &'a Attributes<'r>,
    /// Its cost.
    pub cost: Hits,
    /// Whether it may wait here. A request that cannot wait cannot hold a lease either: its lease is left to expire.
    pub patience: Patience,
    /// Its trace, if its caller sampled one.
    pub trace: Option<TraceContext>,
}

/// The sampled trace in these headers.
#[must_use]
pub fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT).and_then(|value| TraceContext::sampled(value.as_bytes()))
}

/// The result for a request.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most requests are admitted, and a box would cost each an allocation"
)]
pub enum GateAnswer {
    /// Admitted, now.
    Admitted(Admitted),
    /// Rules refuse it, or there are no rules for it.
    Refused(Refusal),
    /// The service behind is overloaded. Nothing was spent.
    Shed(Refusal),
}

/// An admitted request.
#[derive(Debug)]
pub struct Admitted {
    /// What its response reports about its limits.
    pub report: DecisionReport,
    /// What it holds until its response has been sent.
    pub held: Held,
}

/// What a response reports about the limits of a request.
#[derive(Debug)]
pub struct DecisionReport {
    /// The decision; its lease is in [`Admitted::held`], if it holds one.
    pub decision: Decision,
    sets: HeaderSets,
    asked_at: Timestamp,
    partitions: Partitions,
}

/// A refused request: the answer for its caller.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub problem: Problem,
    /// When to retry, and what remained.
    pub headers: HeaderMap,
    /// The decision, if rules made one.
    pub decision: Option<Box<Decision>>,
}

impl Gate {
    /// Takes a request from its attributes to its answer. If a leaky bucket admits it later, this returns at that time.
    pub async fn admit(&self, request: &HttpCheck<'_, '_>) -> GateAnswer {
        let asked_at = self.clock.now();
        let HttpCheck { domain, attributes, cost, patience, trace } = *request;
        let readings: SmallVec<[Entries<'_>; 1]> = attributes.readings().map(Attributes::entries).collect();
        let asks: SmallVec<[DescriptorAsk<'_>; 1]> =
            readings.iter().map(|entries| DescriptorAsk::one(entries).cost(cost)).collect();
        let question = CheckRequest::new(domain, &asks).patience(patience).readings();
        let mut held = Held::default();
        let decided = match &self.shedder {
            None => self.limiter.check(&question).await,
            Some(shedder) => match self.limiter.admit_and_check(&question, shedder).await {
                Ok((permit, decided)) => {
                    held.permit = Some(permit);
                    decided
                }
                Err(shed) => return GateAnswer::Shed(Refusal::shed(&shed)),
            },
        };
        let decision = match decided {
            Ok(decision) => decision,
            Err(unknown) => return GateAnswer::Refused(Refusal::unknown_domain(&unknown)),
        };
        self.decided(asked_at, domain, trace, &decision);
        let value_of = |place: usize, name: &str| value_in(readings.get(place)?, name);
        let partitions = Partitions::of(&decision, self.headers, value_of);
        let mut report = DecisionReport { decision, sets: self.headers, asked_at, partitions };
        if !report.decision.allowed {
            return GateAnswer::Refused(Refusal::by(&report, self.closed_status));
        }
        if patience == Patience::Waits {
            self.hold_and_wait(&mut report.decision, &mut held).await;
        }
        GateAnswer::Admitted(Admitted { report, held })
    }

    /// The rule that would count a request if it had all attributes of the rule's key; `None` if every rule can count it.
    #[must_use]
    pub fn rule_without_key(&self, request: &HttpCheck<'_, '_>) -> Option<String> {
        let readings: SmallVec<[Entries<'_>; 1]> =
            request.attributes.readings().map(Attributes::entries).collect();
        let descriptors: SmallVec<[Descriptor<'_>; 1]> =
            readings.iter().map(|entries| Descriptor { entries }).collect();
        self.limiter.rule_without_key(request.domain, &descriptors)
    }

    fn decided(&self, began: Timestamp, domain: &str, trace: Option<TraceContext>, decision: &Decision) {
        let Some((observer, transport)) = &self.observed else { return };
        let took = self.clock.now().since(began).into();
        observer.answered(*transport, took);
        if let Some(context) = trace {
            observer.traced(&answer::traced(context, *transport, (began, took), domain, decision));
        }
    }

    async fn hold_and_wait(&self, decision: &mut Decision, held: &mut Held) {
        if let Some(lease) = decision.lease.take() {
            let hold = Hold::new(Arc::clone(&self.limiter), Arc::clone(&self.runtime), lease);
            held.lease = Some(hold).into();
        }
        if decision.delay > Micros::ZERO {
            // Counted from when the answer arrived: the store's clock started earlier, so this is never early.
            held.step_aside();
            self.runtime.sleep(decision.delay).await;
            held.come_back();
        }
    }
}

impl DecisionReport {
    /// Adds the rate limit headers to the response. Those of the service behind stay, unless ours are stricter.
    pub fn write(&self, headers: &mut HeaderMap) {
        headers.reserve(crate::headers::MOST_HEADERS);
        answer::write_headers(&self.decision, self.sets, self.asked_at, &self.partitions, headers);
    }
}

impl Refusal {
    fn by(report: &DecisionReport, closed: ClosedStatus) -> Self {
        let mut headers = HeaderMap::new();
        report.write(&mut headers);
        let decision = Some(Box::new(report.decision.clone()));
        Refusal { problem: answer::refusal(&report.decision, closed), headers, decision }
    }

    fn shed(shed: &tidegate_limiter::Shed) -> Self {
        let (problem, headers) = answer::shed(shed);
        Refusal { problem, headers, decision: None }
    }

    /// Refused, on every surface: admitting everything would silently limit nothing. The known domains are not listed: the
    /// reader may be a stranger.
    fn unknown_domain(unknown: &UnknownDomain) -> Self {
        Refusal::from(
            Problem::new(Kind::UnknownDomain, unknown.to_string())
                .hint("the service must be configured with a domain that its rules have"),
        )
    }

    /// The status of the answer, unless it is overridden.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.problem.status()
    }

    /// The answer to a request with these headers: a problem document or, over gRPC, a status.
    #[must_use]
    pub fn into_response<B: From<Bytes>>(self, request: &HeaderMap) -> Response<B> {
        grpc::or_http(request, &self.problem, self.headers)
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Refusal { problem, headers: HeaderMap::new(), decision: None }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("headers", &self.headers).finish_non_exhaustive()
    }
}
