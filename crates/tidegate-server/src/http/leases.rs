//! `/v1/release` and `/v1/renew`.

use http::StatusCode;
use tidegate_limiter::{LeaseError, LeaseToken};

use super::{Answer, HttpState, JSON, answer};
use crate::json;
use crate::problem::{Kind, Problem};

impl HttpState {
    pub(super) async fn release(&self, body: &[u8]) -> Result<Answer, Problem> {
        let lease = self.read_lease(body)?;
        match self.service.limiter.release(&lease).await {
            Ok(()) => Ok(answer(StatusCode::OK, JSON, r#"{"released":true}"#)),
            // It no longer counts, which is what the caller wants: releasing twice does no harm.
            Err(LeaseError::Ended) => Ok(answer(StatusCode::OK, JSON, r#"{"released":false}"#)),
            Err(LeaseError::Store(error)) => Err(super::store_unavailable(&error)),
            Err(other) => Err(Problem::new(Kind::StoreUnavailable, other.to_string())),
        }
    }

    pub(super) async fn renew(&self, body: &[u8]) -> Result<Answer, Problem> {
        let lease = self.read_lease(body)?;
        match self.service.limiter.renew(&lease).await {
            Ok(()) => {
                let body = serde_json::json!({ "renewed": true, "ttl_ms": lease.ttl().as_millis_ceil() });
                Ok(answer(StatusCode::OK, JSON, body.to_string()))
            }
            Err(LeaseError::Ended) => Err(Problem::new(Kind::LeaseEnded, "the lease has ended")
                .at("lease")
                .hint("check again for a new one, and renew well before its time to live ends")),
            Err(LeaseError::Store(error)) => Err(super::store_unavailable(&error)),
            Err(other) => Err(Problem::new(Kind::StoreUnavailable, other.to_string())),
        }
    }

    fn read_lease(&self, body: &[u8]) -> Result<LeaseToken, Problem> {
        let request: json::Lease<'_> = json::parse(body)?;
        let lease = self.service.limiter.read_lease(request.lease.as_str());
        lease.map_err(|error| Problem::new(Kind::InvalidField, error.to_string()).at("lease"))
    }
}
