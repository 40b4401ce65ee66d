//! Sheds a request or asks the limiter about it, waits where a leaky bucket says so, and holds what a concurrency limit
//! gave.

use std::sync::Arc;

use http::HeaderMap;
use tidegate_core::Micros;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Patience, TokioRuntime, Transport};
use tidegate_tower::identity::Attributes;
use tidegate_tower::{Hold, answer, grpc};

use super::Worker;
use super::answer::{Answer, Held};
use crate::problem::{Kind, Problem};
use crate::service::span;

/// What rules say of a request.
pub(super) enum Limited {
    /// It may pass, now. The headers tell the client about its limits.
    Passes(HeaderMap),
    /// It may not.
    Refused(Box<Answer>),
}

impl Worker {
    /// Asks about a request of these attributes and headers. What it holds from now on is put into `held`.
    ///
    /// # Errors
    /// When no rule speaks of the domain: to let everything pass would be to limit nothing without anybody noticing.
    pub(super) async fn limit(
        &self,
        domain: &str,
        attributes: &Attributes<'_>,
        headers: &HeaderMap,
        held: &mut Held,
    ) -> Result<Limited, Problem> {
        let service = &self.service;
        let began = service.clock.now();
        let entries = attributes.entries();
        let asks = [DescriptorAsk::one(&entries)];
        let question = CheckRequest { domain, descriptors: &asks, patience: Patience::Waits };
        if let Some(shedder) = &self.shared.shedder {
            match service.limiter.admit(&question, shedder) {
                Ok(place) => held.take_place(place),
                Err(shed) => {
                    let (problem, told) = answer::shed(&shed);
                    return Ok(Limited::Refused(Box::new(grpc::or_http(headers, &problem, told))));
                }
            }
        }
        let decision = service.limiter.check(&question).await.map_err(|unknown| {
            service.observer.unknown_domain();
            Problem::new(Kind::UnknownDomain, unknown.to_string())
        })?;
        service.answered(Transport::Proxy, began);
        let mut told = HeaderMap::new();
        service.write_headers(&decision, service.settings.headers, began, &mut told);
        if !decision.allowed {
            let refusal = grpc::or_http(headers, &answer::refusal(&decision), told);
            return Ok(Limited::Refused(Box::new(refusal)));
        }
        if let Some(lease) = decision.lease {
            held.hold(Hold::new(Arc::clone(&service.limiter), Arc::new(TokioRuntime), lease));
        }
        if decision.delay > Micros::ZERO {
            // Counted from here, where the answer came in: the store's clock started earlier, so this is never early.
            held.wait(span(decision.delay)).await;
        }
        Ok(Limited::Passes(told))
    }
}
