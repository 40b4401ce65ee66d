//! The configured limits as metrics, so that a graph can show usage beside the limit.
//!
//! Only default limits, tiers and experiments have series: those of single keys would name callers.

use std::fmt;

use parking_lot::Mutex;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;
use tidegate_limiter::Snapshot;

use super::rules::LONGEST_LABEL;
use crate::exposition::gauge;

/// The most limits with a series of their own.
const MOST_LIMIT_SERIES: usize = 10_000;

/// The limits of the rules in use.
#[derive(Default)]
pub(super) struct LimitTable(Mutex<KnownLimits>);

#[derive(Default)]
struct KnownLimits {
    series: Vec<LimitSeries>,
    left_out: u64,
}

struct LimitSeries {
    domain: String,
    rule: String,
    tier: String,
    limit: String,
    quota: u64,
    window_seconds: Option<f64>,
}

impl LimitSeries {
    fn labels(&self) -> [(&'static str, &str); 4] {
        [("domain", &self.domain), ("rule", &self.rule), ("tier", &self.tier), ("limit", &self.limit)]
    }
}

impl LimitTable {
    /// Replaces the limits by those of `snapshot`.
    pub(super) fn take(&self, snapshot: &Snapshot) {
        let mut known = KnownLimits::default();
        for rule in snapshot.rules().rules().filter(|rule| !rule.is_carrier()) {
            for (tier, limits) in rule.limit_sets() {
                for limit in limits {
                    let (domain, rule, tier, name) = (rule.domain(), rule.name(), &tier, &limit.name);
                    let longest = [domain, rule, tier, name].iter().map(|label| label.len()).max();
                    if known.series.len() >= MOST_LIMIT_SERIES || longest > Some(LONGEST_LABEL) {
                        known.left_out += 1;
                        continue;
                    }
                    known.series.push(LimitSeries {
                        domain: domain.to_owned(),
                        rule: rule.to_owned(),
                        tier: tier.clone(),
                        limit: name.clone(),
                        quota: limit.limit.quota(),
                        window_seconds: limit.limit.quota_window().map(|window| window.get() as f64 / 1e6),
                    });
                }
            }
        }
        *self.0.lock() = known;
    }

    pub(super) fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let known = self.0.lock();
        let help = "The most hits that an idle key may spend at once under each limit of a rule, by tier where it has tiers.";
        let mut family = encoder.encode_descriptor("limit", help, None, MetricType::Gauge)?;
        for one in &known.series {
            ConstGauge::new(one.quota).encode(family.encode_family(&one.labels())?)?;
        }
        let help = "The time in which that many hits come back; absent for calendar windows and concurrency.";
        let seconds = Some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor("limit_window", help, seconds, MetricType::Gauge)?;
        for one in &known.series {
            if let Some(window) = one.window_seconds {
                ConstGauge::new(window).encode(family.encode_family(&one.labels())?)?;
            }
        }
        let help = "Limits in use without a series of their own: there are too many, or a name is too long.";
        gauge(encoder, "limits_without_series", help, known.left_out)
    }
}
