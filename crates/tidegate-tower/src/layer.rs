//! The middleware's configuration.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tidegate_core::Hits;
use tidegate_http::answer::ClosedStatus;
use tidegate_http::{Gate, Refusal};
use tidegate_limiter::{Limiter, Runtime, Shedder};
use tidegate_rules::OnMissingKey;
use tidegate_store::Clock;

use crate::builder::{LayerBuilder, LayerError};
use crate::headers::{HeaderSet, HeaderSets};
use crate::identity::{Attributes, Identity};
use crate::service::RateLimit;

/// Reads the attributes of a request.
pub(crate) type Extract = dyn for<'r> Fn(&'r Parts) -> Attributes<'r> + Send + Sync;
/// Adds to the attributes of a request.
pub(crate) type Also = dyn for<'r> Fn(&'r Parts, &mut Attributes<'r>) + Send + Sync;
/// Answers a request that was refused.
pub(crate) type OnRefused = dyn Fn(&Refusal, &Parts) -> Response<Bytes> + Send + Sync;
/// Reads what a request costs.
pub(crate) type Cost = dyn Fn(&Parts) -> Hits + Send + Sync;
/// Decides from a response whether to refund its request.
pub(crate) type RefundWhen = dyn Fn(&http::response::Parts) -> bool + Send + Sync;

/// Puts a limiter in front of an HTTP service: axum, tonic, hyper or any other tower service.
///
/// Who a request is comes from [`Identity`] (by default its peer's address) or from closures: see
/// [`RateLimitLayer::builder`]. A refused request never
/// reaches the service: it is answered with 429 (503 where a rule must not decide without its store, unless [`RateLimitLayer::closed_status`] says otherwise), headers that say
/// when to retry, and a problem document; or, over gRPC, with the status RESOURCE_EXHAUSTED;
/// [`RateLimitLayer::on_refused`] answers otherwise. One that passes carries its [`Decision`](tidegate_limiter::Decision) in its
/// extensions (axum: `Extension<Decision>`), of several layers that of the innermost; the response's headers show the tightest
/// limit. Where a leaky bucket asks a request to wait, it waits here; where a concurrency limit admits it, its place is held
/// until its response has been sent, or its client has left: then its handler's future is dropped, and its work ends with it.
/// Work that a handler spawns and that outlives it must hold a lease of its own.
///
/// Rules see paths in lower case, also those of gRPC: `/grpc.health.v1.health/check`. A rule on a path with capitals never
/// matches; [`RuleSet::warnings`](tidegate_rules::RuleSet::warnings) names it.
///
/// ```
/// # use std::net::SocketAddr;
/// # use axum::{Router, routing::get};
/// # use tidegate_tower::RateLimitLayer;
/// # async fn example(limiter: tidegate_limiter::Limiter) -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::new(limiter, "api")?;
/// let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
/// // With the addresses of its peers, which are its clients.
/// axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RateLimitLayer {
    pub(crate) shared: Arc<LayerState>,
}

/// What every clone of the middleware shares.
#[derive(Clone)]
pub(crate) struct LayerState {
    pub(crate) gate: Gate,
    pub(crate) domain: Box<str>,
    pub(crate) who: Who,
    pub(crate) also: Option<Arc<Also>>,
    pub(crate) cost: Option<Arc<Cost>>,
    pub(crate) on_missing_key: OnMissingKey,
    pub(crate) on_refused: Option<Arc<OnRefused>>,
    pub(crate) refund_when: Option<Arc<RefundWhen>>,
}

/// How attributes are read.
#[derive(Clone)]
pub(crate) enum Who {
    Identity(Arc<Identity>),
    Extract(Arc<Extract>),
}

impl RateLimitLayer {
    /// Enforces the rules of `domain` by the peer's address: they may count by `client`, `ip`, `method`, `path` or `host`.
    /// For other attributes, such as the user, see [`RateLimitLayer::builder`].
    ///
    /// # Errors
    /// When the rules do not have the domain, or one of them counts by an attribute that is not read. Should later rules no
    /// longer have the domain, every request is refused (500).
    pub fn new(limiter: impl Into<Arc<Limiter>>, domain: &str) -> Result<Self, LayerError> {
        RateLimitLayer::builder(limiter, domain).build()
    }

    /// Starts a builder for the rules of `domain`, to say which attributes are read before it is [built](LayerBuilder::build).
    pub fn builder(limiter: impl Into<Arc<Limiter>>, domain: &str) -> LayerBuilder {
        LayerBuilder::new(limiter.into(), domain)
    }

    /// What to do with a request that lacks an attribute of a matching rule's key. `Skip`, the default, leaves it to the rule's
    /// own `on_missing_key`; `Refuse` refuses it whatever the rule says (400), so that nothing passes uncounted.
    #[must_use]
    pub fn on_missing_key(self, then: OnMissingKey) -> Self {
        self.with(|shared| shared.on_missing_key = then)
    }

    /// Answers refused requests with what `answer` makes of the refusal: its decision, where rules made one, its problem and
    /// the rate limit headers, which are added where the answer does not set them itself. Its body is bytes, whatever
    /// bodies the service sends. Calls over gRPC are answered with it too: give those a status, such as by tonic's
    /// `Status::into_http`.
    ///
    /// ```
    /// # use tidegate_tower::RateLimitLayer;
    /// # fn example(layer: RateLimitLayer) -> RateLimitLayer {
    /// layer.on_refused(|refusal, _parts| {
    ///     let rule = refusal.decision.as_ref().and_then(|decision| decision.rule()).unwrap_or("limit");
    ///     http::Response::builder().status(429).body(format!("slow down: {rule}").into()).expect("a fine answer")
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn on_refused(
        self,
        answer: impl Fn(&Refusal, &Parts) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        self.with(|shared| shared.on_refused = Some(Arc::new(answer)))
    }

    /// Sets the cost of a request; one hit without it.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.cost = Some(Arc::new(move |parts| Hits::new(cost(parts)))))
    }

    /// Refunds a request if `when` returns true for its response: such as log-ins that succeed, so that only wrong passwords
    /// count, or errors of the service. The headers show what was left before the refund. A request without a response is not
    /// refunded.
    ///
    /// ```
    /// # use tidegate_tower::RateLimitLayer;
    /// # fn example(layer: RateLimitLayer) -> RateLimitLayer {
    /// layer.refund_when(|response| response.status.is_server_error())
    /// # }
    /// ```
    #[must_use]
    pub fn refund_when(self, when: impl Fn(&http::response::Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.refund_when = Some(Arc::new(when)))
    }

    /// Sets which header sets are sent: all by default. `Retry-After` goes with every refusal.
    #[must_use]
    pub fn headers(self, sets: impl IntoIterator<Item = HeaderSet>) -> Self {
        let sets = HeaderSets::from_iter(sets);
        self.with(|shared| shared.gate.headers = sets)
    }

    /// Sets the status of a refusal by a `closed` rule without its store: 503 by default. Over gRPC it is always UNAVAILABLE.
    #[must_use]
    pub fn closed_status(self, status: ClosedStatus) -> Self {
        self.with(|shared| shared.gate.closed_status = status)
    }

    /// Sheds load with `shedder` before anything is spent: a shed request is answered with 503 (over gRPC, UNAVAILABLE) and
    /// `Retry-After`. Admitted requests count as in progress until their responses have been sent. Layers of several
    /// services that share workers may share a shedder.
    #[must_use]
    pub fn shedder(self, shedder: Arc<Shedder>) -> Self {
        self.with(|shared| shared.gate.shedder = Some(shedder))
    }

    /// Sets the runtime for delays and tasks: tokio's by default.
    #[must_use]
    pub fn runtime(self, runtime: Arc<dyn Runtime>) -> Self {
        self.with(|shared| shared.gate.runtime = runtime)
    }

    /// Sets the clock for `X-RateLimit-Reset` and for the expiry of tokens: the system's by default. A test gives its limiter's
    /// clock to both.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        self.with(|shared| shared.gate.clock = clock)
    }

    fn with(mut self, change: impl FnOnce(&mut LayerState)) -> Self {
        change(Arc::make_mut(&mut self.shared));
        self
    }
}

impl<S> tower_layer::Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit { inner, shared: self.shared.clone() }
    }
}

impl fmt::Debug for RateLimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("domain", &self.shared.domain).finish_non_exhaustive()
    }
}
