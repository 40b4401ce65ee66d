//! One request through the middleware: its identity, decision, delay and lease.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::HOST;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use tidegate_core::{Hits, Timestamp};
use tidegate_http::{Admitted, GateAnswer, HttpCheck, Refusal, trace_of};
use tidegate_limiter::{CheckRequest, Decision, DescriptorAsk, Patience, SpentAt};
use tidegate_rules::OnMissingKey;
use tower_service::Service;

use crate::body::LimitedBody;
use crate::identity::{Attributes, ForwardedPath, Identity, RequestHead};
use crate::layer::{LayerState, Who};
use crate::peer::peer;
use crate::problem::{Kind, Problem};

/// A service behind a limiter.
#[derive(Clone)]
pub struct RateLimit<S> {
    pub(crate) inner: S,
    pub(crate) shared: Arc<LayerState>,
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
            let (mut parts, body) = request.into_parts();
            let (Admitted { report, held }, asked) = match shared.admit(&parts).await {
                Ok(admitted) => admitted,
                Err(refusal) => return Ok(shared.refuse(refusal, &parts)),
            };
            parts.extensions.insert(report.decision.clone());
            let clock = &shared.gate.clock;
            let sent_at = held.is_timed().then(|| clock.now());
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let Some(asked) = asked {
                response = shared.refund(asked, &report.decision, response).await;
            }
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

impl LayerState {
    /// Admits a request after its delay, or returns the response to send instead.
    async fn admit(&self, parts: &Parts) -> Result<(Admitted, Option<Asked>), Refusal> {
        let attributes = self.attributes(parts, self.gate.clock.now())?;
        let cost = self.cost.as_ref().map_or(Hits::ONE, |cost| cost(parts));
        let (patience, trace) = (Patience::Waits, trace_of(&parts.headers));
        let request = HttpCheck { domain: &self.domain, attributes: &attributes, cost, patience, trace };
        if self.on_missing_key == OnMissingKey::Refuse
            && let Some(rule) = self.gate.rule_without_key(&request)
        {
            return Err(no_key(&rule).into());
        }
        match self.gate.admit(&request).await {
            GateAnswer::Admitted(admitted) => {
                let asked = self.refund_when.is_some().then(|| Asked::of(&attributes, cost));
                Ok((admitted, asked))
            }
            GateAnswer::Refused(refusal) | GateAnswer::Shed(refusal) => Err(refusal),
        }
    }

    /// Refunds what a request spent if its response asks for it, without waiting for a store over a network.
    async fn refund<B>(
        self: &Arc<Self>,
        asked: Asked,
        decision: &Decision,
        response: Response<B>,
    ) -> Response<B> {
        let (parts, body) = response.into_parts();
        if self.refund_when.as_ref().is_some_and(|when| when(&parts)) {
            let (shared, decision) = (self.clone(), decision.clone());
            let refund = async move { asked.refund(&shared, &decision).await };
            match self.gate.limiter.answers_within() {
                None => refund.await,
                Some(_) => self.gate.runtime.spawn(Box::pin(refund)),
            }
        }
        Response::from_parts(parts, body)
    }

    /// The response to a refused request.
    fn refuse<B: From<Bytes>>(&self, refusal: Refusal, parts: &Parts) -> Response<B> {
        match &self.on_refused {
            None => refusal.into_response(&parts.headers),
            Some(answer) => {
                let mut response = answer(&refusal, parts).map(B::from);
                for (name, value) in &refusal.headers {
                    response.headers_mut().entry(name).or_insert_with(|| value.clone());
                }
                response
            }
        }
    }

    fn attributes<'a>(&'a self, parts: &'a Parts, now: Timestamp) -> Result<Attributes<'a>, Problem> {
        let mut attributes = match &self.who {
            Who::Extract(extract) => extract(parts),
            Who::Identity(identity) => self.identified(identity, parts, now)?,
        };
        if let Some(also) = &self.also {
            also(parts, &mut attributes);
        }
        Ok(attributes)
    }

    fn identified<'a>(
        &'a self,
        identity: &'a Identity,
        parts: &'a Parts,
        now: Timestamp,
    ) -> Result<Attributes<'a>, Problem> {
        let Parts { method, headers, .. } = parts;
        let (uri, peer) = (original_uri(parts), peer(&parts.extensions));
        if names_two_hosts(uri, headers) {
            let problem = "the request names two hosts";
            return Err(Problem::new(Kind::MalformedRequest, problem).at("host"));
        }
        // Whoever routes the request behind us does so by the path as it was written.
        let forwarded_path = ForwardedPath::AsWritten;
        let attributes =
            identity.attributes(&RequestHead { method, uri, headers, peer, now, forwarded_path })?;
        if peer.is_none() {
            let snapshot = self.gate.limiter.snapshot();
            let is_missed =
                |name: &str| attributes.get(name).is_none() && snapshot.rules().asks_for(&self.domain, name);
            if identity.from_peer().any(is_missed) {
                return Err(no_peer());
            }
        }
        Ok(attributes)
    }
}

/// What a request spent, kept until its response is known.
struct Asked {
    readings: Vec<Reading>,
    cost: Hits,
}

/// The attributes of one reading of a request.
type Reading = Vec<(Box<str>, Box<[u8]>)>;

impl Asked {
    fn of(attributes: &Attributes<'_>, cost: Hits) -> Self {
        let owned = |(name, value): &(&str, &[u8])| (Box::from(*name), Box::from(*value));
        let readings = attributes.readings().map(|reading| reading.entries().iter().map(owned).collect());
        Asked { readings: readings.collect(), cost }
    }

    async fn refund(&self, shared: &LayerState, decision: &Decision) {
        let readings = self.readings.iter().map(|reading| reading.iter());
        let entries: Vec<Vec<(&str, &[u8])>> =
            readings.map(|reading| reading.map(|(name, value)| (&**name, &**value)).collect()).collect();
        let asks: Vec<DescriptorAsk<'_>> =
            entries.iter().map(|entries| DescriptorAsk::one(entries).cost(self.cost)).collect();
        let request = CheckRequest::new(&shared.domain, &asks);
        // A failure was told to the observer; what was spent stays spent.
        let _ = shared.gate.limiter.refund(&request, self.cost, SpentAt::By(decision)).await;
    }
}

/// The target as the client wrote it: inside axum's `nest`, what is left of it is only its end.
fn original_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(original) = parts.extensions.get::<axum::extract::OriginalUri>() {
        return &original.0;
    }
    &parts.uri
}

/// Whether the target and `Host` name different hosts: the service behind may look at either.
fn names_two_hosts(uri: &Uri, headers: &HeaderMap) -> bool {
    let named = headers.get(HOST).map(HeaderValue::as_bytes);
    let target = uri.authority().map(|authority| authority.as_str().as_bytes());
    matches!((target, named), (Some(target), Some(named)) if !target.eq_ignore_ascii_case(named))
}

/// Without an address every rule that counts by client would quietly let everybody pass.
fn no_peer() -> Problem {
    Problem::new(Kind::NoPeer, "the server did not say who its peer is").hint(
        "axum: serve with into_make_service_with_connect_info::<SocketAddr>(); hyper: put a PeerAddr into the extensions",
    )
}

/// Where a request must have what rules count by, one that has not is malformed.
fn no_key(rule: &str) -> Problem {
    let problem = format!("the request lacks what the rule `{rule}` counts by");
    Problem::new(Kind::MalformedRequest, problem)
        .hint("the service must know its callers before they are limited")
}

impl<S> fmt::Debug for RateLimit<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("domain", &self.shared.domain).finish_non_exhaustive()
    }
}
