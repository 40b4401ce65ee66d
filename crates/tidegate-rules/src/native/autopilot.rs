//! Parses how far and how fast a rule's limit may follow demand.

use crate::choice::UsualLimits;
use crate::diagnostics::Report;
use crate::fields::{self, Fields};
use crate::rule::Autopilot;
use crate::yaml::Node;
use tidegate_core::Micros;

pub(crate) const AUTOPILOT_FIELDS: [&str; 4] = ["min", "max", "step", "every"];

/// Steps in shorter periods than this follow noise, in longer ones nothing.
const EVERY: [Micros; 2] = [Micros::from_secs(1), Micros::from_secs(30 * 86_400)];

/// `autopilot: { min: 50, max: 500, step: 10%, every: 1d }`.
pub(super) fn autopilot(
    node: &Node,
    rule: &Fields<'_>,
    usual: Option<&UsualLimits>,
    report: &mut Report<'_>,
) -> Option<Autopilot> {
    let what = "an autopilot";
    let fields = Fields::read(node, what, &AUTOPILOT_FIELDS, report)?;
    let min = fields
        .require("min", what, "the lowest limit that it may set: `min: 50`", report)
        .and_then(|node| fields::count(node, "min", report));
    let max = fields
        .require("max", what, "the highest limit that it may set: `max: 500`", report)
        .and_then(|node| fields::count(node, "max", report));
    let step = fields
        .require("step", what, "by how much the limit may change at once: `step: 10%`", report)
        .and_then(|node| Some((fields::share(node, "step", report)?, node.span)));
    let before = report.errors();
    let every = fields::span_within(&fields, "every", EVERY, report);
    let every = every.or_else(|| (report.errors() == before).then_some(Micros::from_secs(86_400)));
    let (min, max, (step, step_span), every) = (min?, max?, step?, every?);
    if min == 0 || min > max {
        report.error(
            fields.key_span("min"),
            "`min` is at least 1 and at most `max`",
            "for example { min: 50, max: 500 }",
        );
        return None;
    }
    if step.is_none() {
        report.error(step_span, "step must be above 0 %", "use 1% to 100%");
        return None;
    }
    let limits = match usual {
        Some(UsualLimits::Same(set)) if rule.get("experiment").is_none() => set.as_slice(),
        // The mistake in the limits is already reported.
        None => return None,
        _ => &[],
    };
    let [limit] = limits else {
        let hint = "give the limit that it is to steer a rule of its own";
        report.error(
            rule.key_span("autopilot"),
            "an autopilot steers the one limit of a rule with `limits`",
            hint,
        );
        return None;
    };
    let quota = limit.limit.quota();
    if quota < min || quota > max {
        let message = format!("the limit {quota} is not within {min} and {max}");
        report.error(
            fields.key_span("min"),
            message,
            "begin within the bounds that the autopilot is to keep",
        );
        return None;
    }
    Some(Autopilot { min, max, step, every })
}
