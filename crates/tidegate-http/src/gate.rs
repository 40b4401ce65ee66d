//! The one way of an HTTP request through tidegate: identified, shed, checked, answered or held.
//!
//! Middleware, proxy and forward-auth differ in where a request comes from and in what they do with one that may pass. What
//! lies between is here, once: it reads top to bottom in [`Gate::admit`].

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

use crate::headers::HeaderSets;
use crate::hold::{Held, Hold};
use crate::identity::{Attributes, Entries};
use crate::problem::{Kind, Problem};
use crate::{answer, grpc};

/// What an HTTP surface asks about every request.
#[derive(Clone)]
pub struct Gate {
    /// Decides.
    pub limiter: Arc<Limiter>,
    /// Turns requests away, before anything is spent, while a service has more to do than it can.
    pub shedder: Option<Arc<Shedder>>,
    /// The header sets of its answers.
    pub headers: HeaderSets,
    /// Where it waits, and keeps leases.
    pub runtime: Arc<dyn Runtime>,
    /// The time of `X-RateLimit-Reset`.
    pub clock: Arc<dyn Clock>,
    /// Who hears how long decisions took, and as what.
    pub observed: Option<(Arc<dyn Observer>, Transport)>,
}

/// A request to decide.
#[derive(Clone, Copy, Debug)]
pub struct HttpCheck<'a, 'r> {
    /// Whose rules apply.
    pub domain: &'a str,
    /// Who it is.
    pub attributes: &'a Attributes<'r>,
    /// What it spends.
    pub cost: Hits,
    /// Whether it stays with us. One that cannot wait cannot hold either: its lease is left to its time to live.
    pub patience: Patience,
    /// The trace that it belongs to, where its caller wants to see one.
    pub trace: Option<TraceContext>,
}

/// The sampled trace that a request of these headers belongs to.
#[must_use]
pub fn trace_of(headers: &HeaderMap) -> Option<TraceContext> {
    headers.get(TRACEPARENT).and_then(|value| TraceContext::sampled(value.as_bytes()))
}

/// What becomes of a request.
#[derive(Debug)]
pub enum GateAnswer {
    /// It may pass, now.
    Admitted(Admitted),
    /// Rules refuse it, or no rules are there to ask.
    Refused(Refusal),
    /// The service behind has more to do than it can. Nothing was spent.
    Shed(Refusal),
}

/// A request that may pass.
#[derive(Debug)]
pub struct Admitted {
    /// What its response says of its limits.
    pub report: DecisionReport,
    /// What it holds until its response has been sent.
    pub held: Held,
}

/// What a response says of the limits that a request met.
#[derive(Debug)]
pub struct DecisionReport {
    /// The decision; its lease is with what the request holds, if it holds anything.
    pub decision: Decision,
    sets: HeaderSets,
    asked_at: Timestamp,
}

/// A request that may not pass: what its caller is told.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub problem: Problem,
    /// When to come back, and what was left.
    pub headers: HeaderMap,
    /// The decision, where rules made one.
    pub decision: Option<Box<Decision>>,
}

impl Gate {
    /// Takes a request from its attributes to its answer. Where a leaky bucket lets it pass later, that is when this
    /// returns.
    pub async fn admit(&self, request: &HttpCheck<'_, '_>) -> GateAnswer {
        let asked_at = self.clock.now();
        let HttpCheck { domain, attributes, cost, patience, trace } = *request;
        let readings: SmallVec<[Entries<'_>; 1]> = attributes.readings().map(Attributes::entries).collect();
        let asks: SmallVec<[DescriptorAsk<'_>; 1]> =
            readings.iter().map(|entries| DescriptorAsk::one(entries).cost(cost)).collect();
        let question = CheckRequest::new(domain, &asks).patience(patience);
        let mut held = Held::default();
        let decided = match &self.shedder {
            None => self.limiter.check_readings(&question).await,
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
        let mut report = DecisionReport { decision, sets: self.headers, asked_at };
        if !report.decision.allowed {
            return GateAnswer::Refused(Refusal::by(&report));
        }
        if patience == Patience::Waits {
            self.hold_and_wait(&mut report.decision, &mut held).await;
        }
        GateAnswer::Admitted(Admitted { report, held })
    }

    /// The rule that would count a request if it did not lack an attribute of the rule's key; none where all can count.
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
            held.lease = Some(Hold::new(Arc::clone(&self.limiter), Arc::clone(&self.runtime), lease));
        }
        if decision.delay > Micros::ZERO {
            // Counted from here, where the answer came in: the store's clock started earlier, so this is never early.
            held.step_aside();
            self.runtime.sleep(decision.delay).await;
            held.come_back();
        }
    }
}

impl DecisionReport {
    /// Adds what the response says of limits to its headers, in place of what is there under these names.
    pub fn write(&self, headers: &mut HeaderMap) {
        headers.reserve(MOST_HEADERS);
        answer::write_headers(&self.decision, self.sets, self.asked_at, headers);
    }
}

/// What a decision may add to a response: a map that must grow while it is filled is filled twice.
const MOST_HEADERS: usize = 6;

impl Refusal {
    fn by(report: &DecisionReport) -> Self {
        let mut headers = HeaderMap::new();
        report.write(&mut headers);
        let decision = Some(Box::new(report.decision.clone()));
        Refusal { problem: answer::refusal(&report.decision), headers, decision }
    }

    fn shed(shed: &tidegate_limiter::Shed) -> Self {
        let (problem, headers) = answer::shed(shed);
        Refusal { problem, headers, decision: None }
    }

    /// Refused, on every surface: to let everything pass would be to limit nothing without anybody noticing. The domains
    /// that there are remain unsaid: whoever reads this may be a stranger.
    fn unknown_domain(unknown: &UnknownDomain) -> Self {
        Refusal::from(
            Problem::new(Kind::UnknownDomain, unknown.to_string())
                .hint("the service must be configured with a domain that its rules have"),
        )
    }

    /// The status that it is answered with, unless somebody answers otherwise.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.problem.kind().status()
    }

    /// The answer to a request of these headers: a problem document or, over gRPC, a status.
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
