//! One request through the middleware: who it is, whether it may pass, how long it waits, what it holds.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::header::HOST;
use http::request::Parts;
use http::{HeaderValue, Request, Response};
use tidegate_core::{Hits, Timestamp};
use tidegate_http::{Admitted, GateAnswer, HttpCheck, Refusal, trace_of};
use tidegate_limiter::Patience;
use tower_service::Service;

use crate::body::LimitedBody;
use crate::identity::{Attributes, GoesOn, RequestHead};
use crate::layer::{Shared, Who};
use crate::peer::peer;
use crate::problem::{Kind, Problem};

/// A service behind a limiter.
#[derive(Clone)]
pub struct RateLimit<S> {
    pub(crate) inner: S,
    pub(crate) shared: Arc<Shared>,
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
        let shared = self.shared.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let Admitted { report, held } = match shared.admit(&parts).await {
                Ok(admitted) => admitted,
                Err(refusal) => return Ok(refusal.into_response(&parts.headers)),
            };
            let clock = &shared.gate.clock;
            let sent_at = held.is_timed().then(|| clock.now());
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let Some(sent_at) = sent_at
                && !response.status().is_server_error()
            {
                held.answered(clock.now().since(sent_at));
            }
            report.write(response.headers_mut());
            Ok(response.map(|body| LimitedBody::holding(body, held)))
        })
    }
}

impl Shared {
    /// Lets a request through, after its wait, or says what to answer instead.
    async fn admit(&self, parts: &Parts) -> Result<Admitted, Refusal> {
        let attributes = self.attributes(parts, self.gate.clock.now())?;
        let cost = self.cost.as_ref().map_or(Hits::ONE, |cost| cost(parts));
        let (patience, trace) = (Patience::Waits, trace_of(&parts.headers));
        let request = HttpCheck { domain: &self.domain, attributes: &attributes, cost, patience, trace };
        match self.gate.admit(&request).await {
            GateAnswer::Admitted(admitted) => Ok(admitted),
            GateAnswer::Refused(refusal) | GateAnswer::Shed(refusal) => Err(refusal),
        }
    }

    fn attributes<'a>(&'a self, parts: &'a Parts, now: Timestamp) -> Result<Attributes<'a>, Problem> {
        match &self.who {
            Who::Extract(extract) => Ok(extract(parts)),
            Who::Identity(identity) => {
                let Some(peer) = peer(&parts.extensions) else { return Err(no_peer()) };
                let Parts { method, uri, headers, .. } = parts;
                if names_two_hosts(parts) {
                    let problem = "the request names two hosts";
                    return Err(Problem::new(Kind::MalformedRequest, problem).at("host"));
                }
                // Whoever routes the request behind us does so by the path as it was written.
                let goes_on = GoesOn::AsWritten;
                identity.attributes(&RequestHead { method, uri, headers, peer: Some(peer), now, goes_on })
            }
        }
    }
}

/// Whether the target and `Host` name different hosts: the service behind may look at either.
fn names_two_hosts(parts: &Parts) -> bool {
    let named = parts.headers.get(HOST).map(HeaderValue::as_bytes);
    let target = parts.uri.authority().map(|authority| authority.as_str().as_bytes());
    matches!((target, named), (Some(target), Some(named)) if !target.eq_ignore_ascii_case(named))
}

/// Without an address every rule that counts by client would quietly let everybody pass.
fn no_peer() -> Problem {
    Problem::new(Kind::NoPeer, "the server did not say who its peer is").hint(
        "axum: serve with into_make_service_with_connect_info::<SocketAddr>(); hyper: put a PeerAddr into the extensions",
    )
}

impl<S> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("domain", &self.shared.domain).finish_non_exhaustive()
    }
}
