//! State shared by all transports: the limiter, a clock, and the format of answers.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;
use tidegate_core::Timestamp;
use tidegate_http::answer::{ClosedStatus, Partitions};
use tidegate_http::{Gate, answer};
use tidegate_limiter::{
    Decision, DescriptorAsk, Limiter, Observer, Shedder, TokioRuntime, TraceContext, Traced, Transport,
};
use tidegate_store::Clock;

use crate::headers::{HeaderSet, HeaderSets};
use tidegate_runtime::connection::HttpLimits;

pub(crate) use tidegate_http::answer::rule_name;
pub(crate) use tidegate_limiter::OVERRIDE;

/// State shared by all transports; one per process.
pub struct Service {
    /// Decides requests.
    pub limiter: Arc<Limiter>,
    /// Observes answer times.
    pub observer: Arc<dyn Observer>,
    /// For `X-RateLimit-Reset`, and for answer times.
    pub clock: Arc<dyn Clock>,
    /// The format of answers, and the limits of connections.
    pub settings: ServiceSettings,
}

/// The format of answers, and the limits of connections.
#[derive(Clone, Debug)]
pub struct ServiceSettings {
    /// The header sets of HTTP answers.
    pub headers: HeaderSets,
    /// The header set that Envoy is asked to add to its responses, if any.
    pub rls_headers: Option<HeaderSet>,
    /// Names of the three headers that envoyproxy/ratelimit has, in addition to those, if any.
    pub rls_header_names: Option<RlsHeaderNames>,
    /// Whether answers to Envoy have `dynamic_metadata`.
    pub rls_metadata: bool,
    /// Whether HTTP also serves Limitador's API.
    pub limitador_api: bool,
    /// The status of HTTP answers that refuse for lack of a store.
    pub closed_status: ClosedStatus,
    /// Bounds of every connection.
    pub limits: HttpLimits,
}

/// Names of the headers that Envoy is asked to add, as envoyproxy/ratelimit lets its users choose them.
#[derive(Clone, Debug)]
pub struct RlsHeaderNames {
    /// Of the limit.
    pub limit: HeaderName,
    /// Of what is left.
    pub remaining: HeaderName,
    /// Of the seconds until the limit resets.
    pub reset: HeaderName,
}

impl Default for ServiceSettings {
    fn default() -> Self {
        Self {
            headers: HeaderSets::ALL,
            rls_headers: None,
            rls_header_names: None,
            rls_metadata: false,
            limitador_api: false,
            closed_status: ClosedStatus::default(),
            limits: HttpLimits::default(),
        }
    }
}

impl Service {
    /// Reports to the observer how long a request took that had arrived whole at `began`.
    pub(crate) fn answered(&self, transport: Transport, began: Timestamp) {
        let took = self.clock.now().since(began);
        self.observer.answered(transport, took.into());
    }

    /// Reports a decision that belongs to a sampled trace, if it does.
    pub(crate) fn traced(
        &self,
        trace: Option<TraceContext>,
        transport: Transport,
        began: Timestamp,
        domain: &str,
        decision: &Decision,
    ) {
        if let Some(context) = trace {
            let took = Duration::from(self.clock.now().since(began));
            self.observer.traced(&answer::traced(context, transport, (began, took), domain, decision));
        }
    }

    /// The same if only the verdict is known.
    pub(crate) fn traced_verdict(
        &self,
        trace: Option<TraceContext>,
        transport: Transport,
        began: Timestamp,
        domain: &str,
        allowed: bool,
    ) {
        if let Some(context) = trace {
            let took = Duration::from(self.clock.now().since(began));
            self.observer.traced(&Traced::new(context, transport, (began, took), domain, allowed));
        }
    }

    /// The gate for a surface that reads requests itself.
    #[must_use]
    pub fn gate(&self, transport: Transport, shedder: Option<Arc<Shedder>>) -> Gate {
        Gate {
            limiter: Arc::clone(&self.limiter),
            shedder,
            headers: self.settings.headers,
            closed_status: self.settings.closed_status,
            runtime: Arc::new(TokioRuntime),
            clock: Arc::clone(&self.clock),
            observed: Some((Arc::clone(&self.observer), transport)),
        }
    }

    /// The headers of `sets`, and `Retry-After` of a refusal of `asks`. `asked_at` is from before the decision: with a later
    /// time, the reported second in which a window ends would vary by one.
    pub(crate) fn write_headers(
        &self,
        (decision, asks): (&Decision, &[DescriptorAsk<'_>]),
        sets: HeaderSets,
        asked_at: Timestamp,
        headers: &mut http::HeaderMap,
    ) {
        let value_of = |place: usize, name: &str| answer::value_in(asks.get(place)?.descriptor.entries, name);
        let partitions = Partitions::of(decision, sets, value_of);
        answer::write_headers(decision, sets, asked_at, &partitions, headers);
    }
}
