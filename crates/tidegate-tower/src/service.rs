//! One request through the middleware: who it is, whether it may pass, how long it waits, what it holds.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{HeaderMap, Request, Response};
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{CheckRequest, Decision, DescriptorAsk, Patience, Place};
use tidegate_rules::Descriptor;
use tower_service::Service;

use crate::answer;
use crate::body::{Held, LimitedBody};
use crate::grpc;
use crate::hold::Hold;
use crate::identity::{Attributes, RequestHead};
use crate::layer::{Gate, Who};
use crate::peer::peer;
use crate::problem::{Kind, Problem};

/// A service behind a limiter.
#[derive(Clone)]
pub struct RateLimit<S> {
    pub(crate) inner: S,
    pub(crate) gate: Arc<Gate>,
}

impl<S, RequestBody, ResponseBody> Service<Request<RequestBody>> for RateLimit<S>
where
    S: Service<Request<RequestBody>, Response = Response<ResponseBody>> + Clone + Send + 'static,
    S::Future: Send,
    RequestBody: Send + 'static,
    ResponseBody: Send,
{
    type Response = Response<LimitedBody<ResponseBody>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        // The service that was asked whether it is ready must be the one that is called.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let gate = self.gate.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let admitted = match gate.admit(&parts).await {
                Ok(admitted) => admitted,
                Err(refusal) => return Ok(refusal),
            };
            let Admitted { told, held } = admitted;
            // Whoever has no place is not asked how long it took.
            let sent_at = held.place.is_some().then(|| gate.clock.now());
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let (Some(place), Some(sent_at)) = (&held.place, sent_at)
                && !response.status().is_server_error()
            {
                place.answered(gate.clock.now().since(sent_at));
            }
            if let Some((decision, asked_at)) = told {
                response.headers_mut().reserve(MOST_HEADERS);
                answer::write_headers(&decision, gate.headers, asked_at, response.headers_mut());
            }
            Ok(response.map(|body| LimitedBody::holding(body, held)))
        })
    }
}

/// What a request that may pass takes along.
#[derive(Default)]
struct Admitted {
    /// What its response will say, once there is one.
    told: Option<(Decision, Timestamp)>,
    held: Held,
}

/// What a decision may add to a response: a map that must grow while it is filled is filled twice.
const MOST_HEADERS: usize = 6;

impl Gate {
    /// Lets a request through, after its wait, or says what to answer instead.
    async fn admit<B>(&self, parts: &Parts) -> Result<Admitted, Response<LimitedBody<B>>> {
        let asked_at = self.clock.now();
        let attributes = match self.attributes(parts, asked_at) {
            Ok(attributes) => attributes,
            Err(problem) => return Err(grpc::or_http(&parts.headers, &problem, HeaderMap::new())),
        };
        let cost = self.cost.as_ref().map_or(Hits::ONE, |cost| cost(parts));
        let entries = attributes.entries();
        let asks = [DescriptorAsk { descriptor: Descriptor { entries: &entries }, cost, limit: None }];
        let question = CheckRequest { domain: &self.domain, descriptors: &asks, patience: Patience::Waits };
        let mut held = Held::default();
        if let Some(shedder) = &self.shedder {
            held.place = Some(self.limiter.admit(&question, shedder).map_err(|shed| {
                let (problem, headers) = answer::shed(&shed);
                grpc::or_http(&parts.headers, &problem, headers)
            })?);
        }
        // Everything passes if rules no longer speak of the domain.
        let Ok(mut decision) = self.limiter.check(&question).await else {
            return Ok(Admitted { told: None, held });
        };
        if !decision.allowed {
            let mut headers = HeaderMap::with_capacity(MOST_HEADERS);
            answer::write_headers(&decision, self.headers, asked_at, &mut headers);
            return Err(grpc::or_http(&parts.headers, &answer::refusal(&decision), headers));
        }
        let lease = decision.lease.take();
        held.lease = lease.map(|lease| Hold::new(self.limiter.clone(), self.runtime.clone(), lease));
        if decision.delay > Micros::ZERO {
            // Counted from here, where the answer came in: the store's clock started earlier, so this is never early.
            held.place.iter_mut().for_each(Place::step_aside);
            self.runtime.sleep(decision.delay).await;
            held.place.iter_mut().for_each(Place::come_back);
        }
        Ok(Admitted { told: Some((decision, asked_at)), held })
    }

    fn attributes<'a>(&'a self, parts: &'a Parts, now: Timestamp) -> Result<Attributes<'a>, Problem> {
        match &self.who {
            Who::Extract(extract) => Ok(extract(parts)),
            Who::Identity(identity) => {
                let Some(peer) = peer(&parts.extensions) else { return Err(no_peer()) };
                let Parts { method, uri, headers, .. } = parts;
                let head = RequestHead { method, uri, headers, peer: Some(peer), now };
                let attributes = identity.attributes(&head);
                if attributes.path().is_ambiguous() { Err(answer::ambiguous_path()) } else { Ok(attributes) }
            }
        }
    }
}

/// Without an address every rule that counts by client would quietly let everybody pass.
fn no_peer() -> Problem {
    Problem::new(Kind::NoPeer, "the server did not say who its peer is").hint(
        "axum: serve with into_make_service_with_connect_info::<SocketAddr>(); hyper: put a PeerAddr into the extensions",
    )
}

impl<S> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("domain", &self.gate.domain).finish_non_exhaustive()
    }
}
