//! `/v1/utilization`: an external reporter says how busy the workers are, and load is shed accordingly.

use std::num::NonZeroUsize;

use http::StatusCode;
use tidegate_limiter::{ShedStats, Utilization};

use super::{Answer, HttpState, JSON, answer};
use crate::json;
use crate::problem::{Kind, Problem};

impl HttpState {
    pub(super) fn report_utilization(&self, body: &[u8]) -> Result<Answer, Problem> {
        let report: json::WorkerReport = json::parse(body)?;
        let capacity = usize::try_from(report.capacity.0).unwrap_or(usize::MAX);
        let capacity = NonZeroUsize::new(capacity).ok_or_else(|| {
            Problem::new(Kind::InvalidField, "there must be at least one worker").at("capacity")
        })?;
        let Some(shedder) = &self.gate.shedder else {
            return Err(Problem::new(Kind::NotFound, "this server sheds no load")
                .hint("add a section `shedding` to its configuration"));
        };
        let in_use = usize::try_from(report.in_use.0).unwrap_or(usize::MAX);
        shedder.report(Utilization::of(in_use, capacity));
        let ShedStats { utilization, level, .. } = shedder.stats();
        let body = serde_json::json!({ "utilization": utilization.ratio(), "shed_level": level });
        Ok(answer(StatusCode::OK, JSON, body.to_string()))
    }
}
