//! The configured limits as metrics, so that a graph can show usage beside the limit.
//!
//! Only default limits, tiers and experiments have series: those of single keys would name callers.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_limiter::Snapshot;

use super::rules::LONGEST_LABEL;
use crate::family::{Families, Text};

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
    domain: Arc<str>,
    rule: Arc<str>,
    tier: Arc<str>,
    limit: Arc<str>,
    quota: u64,
    window_seconds: Option<f64>,
}

impl LimitSeries {
    fn labels(&self) -> [(&'static str, Text); 4] {
        let labels =
            [("domain", &self.domain), ("rule", &self.rule), ("tier", &self.tier), ("limit", &self.limit)];
        labels.map(|(label, value)| (label, value.into()))
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
                        domain: domain.into(),
                        rule: rule.into(),
                        tier: tier.as_str().into(),
                        limit: name.as_str().into(),
                        quota: limit.limit.quota(),
                        window_seconds: limit.limit.quota_window().map(|window| window.get() as f64 / 1e6),
                    });
                }
            }
        }
        *self.0.lock() = known;
    }

    pub(super) fn describe(&self, families: &mut Families) {
        let known = self.0.lock();
        let help =
            "Most hits that an idle key may spend at once, by limit, and by tier where a rule has tiers.";
        let family = families.gauges("limit", help);
        known.series.iter().for_each(|one| family.add(one.labels(), one.quota));
        let help = "Time in which a spent limit is whole again; absent for calendar windows and concurrency.";
        let family = families.gauges("limit_window_seconds", help);
        for one in &known.series {
            one.window_seconds.into_iter().for_each(|window| family.add(one.labels(), window));
        }
        let help = "Limits in use without a series of their own: there are too many, or a name is too long.";
        families.gauge("limits_without_series", help, known.left_out);
    }
}
