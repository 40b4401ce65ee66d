//! The middleware as it is put together.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use tidegate_core::Hits;
use tidegate_http::{Gate, Refusal};
use tidegate_limiter::{Limiter, Runtime, Shedder, TokioRuntime};
use tidegate_rules::{OnMissingKey, UnknownDomain};
use tidegate_store::{Clock, SystemClock};

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
/// Tells from a response whether its request costs nothing after all.
pub(crate) type RefundWhen = dyn Fn(&http::response::Parts) -> bool + Send + Sync;

/// Puts a limiter in front of a service: axum's, tonic's, hyper's, any whose requests and responses are HTTP's.
///
/// Who a request is comes from [`Identity`] (by default its peer's address) or from a closure. A refused request never
/// reaches the service: it is answered with 429 (503 where a rule must not decide without its store), headers that say
/// when to come back, and a problem document; or, over gRPC, with the status RESOURCE_EXHAUSTED;
/// [`RateLimitLayer::on_refused`] answers otherwise. One that passes carries its [`Decision`](tidegate_limiter::Decision) in its
/// extensions (axum: `Extension<Decision>`), of several layers that of the innermost; their response tells of the tightest
/// limit. Where a leaky bucket asks a request to wait, it waits here; where a concurrency limit admits it, its place is held
/// until its response has been sent.
///
/// Rules see paths in small letters, also those of gRPC: `/grpc.health.v1.health/check`. A rule on a path with capitals counts
/// nothing, of which [`RuleSet::warnings`](tidegate_rules::RuleSet::warnings) tells.
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

/// How a request is known.
#[derive(Clone)]
pub(crate) enum Who {
    Identity(Arc<Identity>),
    Extract(Arc<Extract>),
}

impl RateLimitLayer {
    /// Enforces the rules of `domain` on whoever a request's peer is.
    ///
    /// # Errors
    /// When the rules do not have the domain. Should later rules no longer have it, every request is refused (500).
    pub fn new(limiter: impl Into<Arc<Limiter>>, domain: &str) -> Result<Self, UnknownDomain> {
        let limiter = limiter.into();
        if !limiter.snapshot().rules().domains().any(|known| known == domain) {
            return Err(UnknownDomain { domain: domain.to_owned() });
        }
        let identity = Identity::new(&crate::identity::IdentityConfig::default());
        let identity = identity.expect("identity needs no configuration");
        let gate = Gate {
            limiter,
            shedder: None,
            headers: HeaderSets::ALL,
            runtime: Arc::new(TokioRuntime),
            clock: Arc::new(SystemClock::new()),
            observed: None,
        };
        let who = Who::Identity(Arc::new(identity));
        let shared = LayerState {
            gate,
            domain: domain.into(),
            who,
            also: None,
            cost: None,
            on_missing_key: OnMissingKey::Skip,
            on_refused: None,
            refund_when: None,
        };
        Ok(RateLimitLayer { shared: Arc::new(shared) })
    }

    /// Knows requests by `identity`.
    #[must_use]
    pub fn identity(self, identity: impl Into<Arc<Identity>>) -> Self {
        self.with(|shared| shared.who = Who::Identity(identity.into()))
    }

    /// Knows requests by what `extract` reads from them, such as what a layer before this one has left in their extensions.
    #[must_use]
    pub fn extract(
        self,
        extract: impl for<'r> Fn(&'r Parts) -> Attributes<'r> + Send + Sync + 'static,
    ) -> Self {
        self.with(|shared| shared.who = Who::Extract(Arc::new(extract)))
    }

    /// Adds what `also` reads to what identity knows: such as the user that a layer before this one has authenticated. What
    /// identity knows already stays as it is. Put that layer around this one: with axum's `layer`, the one added last runs
    /// first; with tonic's `Server` and tower's `ServiceBuilder`, the one added first.
    ///
    /// ```
    /// # use tidegate_tower::RateLimitLayer;
    /// # #[derive(Clone)] struct User(String);
    /// # fn example(layer: RateLimitLayer) -> RateLimitLayer {
    /// layer.also(|parts, attributes| {
    ///     if let Some(User(name)) = parts.extensions.get() {
    ///         attributes.push_everywhere("user", name.as_bytes());
    ///     }
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn also(self, also: impl for<'r> Fn(&'r Parts, &mut Attributes<'r>) + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.also = Some(Arc::new(also)))
    }

    /// What becomes of a request that lacks an attribute of a matching rule's key. `Skip`, the default, leaves it to the rule's
    /// own `on_missing_key`; `Refuse` refuses it whatever the rule says (400), so that nothing passes uncounted.
    #[must_use]
    pub fn on_missing_key(self, then: OnMissingKey) -> Self {
        self.with(|shared| shared.on_missing_key = then)
    }

    /// Answers refused requests with what `answer` makes of the refusal: its decision, where rules made one, its problem and
    /// the headers that tell about limits, which are added where the answer does not set them itself. Its body is bytes, whatever
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

    /// Charges requests with what `cost` says, instead of one hit each.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> Hits + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.cost = Some(Arc::new(cost)))
    }

    /// Gives back what a request has spent where `when` says so of its response: such as log-ins that succeed, so that only wrong
    /// passwords count, or answers for which the service is to blame. Its headers tell what was left before. A request whose
    /// service gives no response keeps what it spent.
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

    /// Sends these sets of headers: all by default. `Retry-After` goes with every refusal.
    #[must_use]
    pub fn headers(self, sets: impl IntoIterator<Item = HeaderSet>) -> Self {
        let sets = HeaderSets::from_iter(sets);
        self.with(|shared| shared.gate.headers = sets)
    }

    /// Sheds load by `shedder` before anything is spent: a request that is shed is answered with 503 (over gRPC, UNAVAILABLE)
    /// and when to come back. Those that are let in are counted until their responses have been sent. Layers of several
    /// services that share workers may share a shedder.
    #[must_use]
    pub fn shedder(self, shedder: Arc<Shedder>) -> Self {
        self.with(|shared| shared.gate.shedder = Some(shedder))
    }

    /// Waits and runs its tasks on `runtime`: tokio's by default.
    #[must_use]
    pub fn runtime(self, runtime: Arc<dyn Runtime>) -> Self {
        self.with(|shared| shared.gate.runtime = runtime)
    }

    /// Tells the time of `X-RateLimit-Reset`, and whether tokens have expired, by `clock`: the machine's by default. A test whose
    /// limiter goes by a clock of its own gives it to both.
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
