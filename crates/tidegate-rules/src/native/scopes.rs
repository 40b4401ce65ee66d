//! Checks that the limits of a rule for all regions can be counted by all of them, and which rules lend hits to clients.

use tidegate_core::{Algorithm, Limit, Micros, Over};

use super::options::Options;
use crate::choice::{LimitChoice, LimitSet};
use crate::diagnostics::Report;
use crate::fields::{self, Fields};
use crate::rule::{Coordination, Rule, RuleLimit};

/// Reports hits into the window that they were admitted in: nodes that hear of each other less often than this many times in a
/// window would count in the next one.
const SYNCS_PER_WINDOW: u64 = 8;

const DEBT: &str = "a rule for all regions refuses a cost above what is left";

/// Reports limits that `scope: global` cannot keep.
pub(super) fn check(fields: &Fields<'_>, options: &Options, limits: &LimitChoice, report: &mut Report<'_>) {
    let Some(coordination) = options.coordination.filter(|chosen| chosen.is_global()) else { return };
    let field = if fields.get("scope").is_some() { "scope" } else { "name" };
    let mut mistake = |message: String, hint: &str| {
        report.error(fields.key_span(field), message, hint);
    };
    if options.penalty.is_some() {
        mistake("a rule for all regions cannot have a `penalty`".into(), "put it into a rule of the region");
    }
    if options.overdraft.is_some_and(|hits| hits > 0) {
        mistake(
            "a rule for all regions cannot have an `overdraft`".into(),
            "put it into a rule of the region",
        );
    }
    let is_debt = |limit: &RuleLimit| limit.over.or(options.over).unwrap_or_default() != Over::Refuse;
    if limits.sets().flat_map(|set| set.as_slice()).any(is_debt) {
        mistake(DEBT.into(), "use `over: refuse`, or a rule of the region");
    }
    let unfit = limits
        .sets()
        .flat_map(|set| set.as_slice())
        .find_map(|limit| Some((limit, unfit(coordination, &limit.limit)?)));
    if let Some((limit, (problem, hint))) = unfit {
        mistake(format!("all regions cannot count `{}` together: {problem}", limit.name), hint);
    }
}

/// Whether clients take its hits ahead. Reports what a rule cannot be or have then; its limits are checked as they are read.
pub(super) fn lends(fields: &Fields<'_>, options: &Options, report: &mut Report<'_>) -> bool {
    const FIELD: &str = "lease_to_clients";
    let Some(true) = fields.get(FIELD).and_then(|node| fields::flag(node, FIELD, report)) else {
        return false;
    };
    let mut mistake = |problem: &str, hint: &str| {
        report.error(fields.key_span(FIELD), format!("a rule with `{FIELD}` {problem}"), hint);
    };
    if options.coordination.unwrap_or_default() != Coordination::Exact {
        mistake(
            "counts in the store of its region, hit by hit",
            "remove `coordination` or `scope`, or `lease_to_clients`",
        );
    }
    if options.shadow == Some(true) {
        mistake("refuses: a shadow rule has nothing to lend", "remove one of the two");
    }
    if options.penalty.is_some() {
        mistake("cannot have a `penalty`: clients do not report what they refuse", "remove one of the two");
    }
    if options.overdraft.is_some_and(|hits| hits > 0) {
        mistake("cannot have an `overdraft`", "remove one of the two");
    }
    if options.over.unwrap_or_default() != Over::Refuse {
        mistake("refuses a cost above what is left", "use `over: refuse`, or remove `lease_to_clients`");
    }
    if fields.get("autopilot").is_some() {
        mistake("cannot have an `autopilot`: what clients refuse is not seen", "remove one of the two");
    }
    true
}

/// Whether these limits can stand in the place of the rule's, for one key.
pub(crate) fn keeps_scope(rule: &Rule, limits: &LimitSet) -> Result<(), String> {
    let coordination = rule.coordination();
    for limit in limits.as_slice().iter().filter(|_| coordination.is_global()) {
        if limit.over.unwrap_or(rule.over()) != Over::Refuse {
            return Err(DEBT.into());
        }
        if let Some((problem, hint)) = unfit(coordination, &limit.limit) {
            return Err(format!("all regions cannot count `{}` together: {problem}; {hint}", limit.name));
        }
    }
    Ok(())
}

/// Why `limit` cannot be counted so, and what to do.
fn unfit(coordination: Coordination, limit: &Limit) -> Option<(String, &'static str)> {
    let Some(sync_every) = coordination.sync_every() else {
        return limit.prepaid().is_none().then(|| not_prepaid(limit));
    };
    if limit.takes_lease() {
        let problem = "places in use do not add up over regions".to_owned();
        return Some((problem, "use a rule of the region: its number, divided"));
    }
    let window = limit.quota_window()?;
    let is_slow = sync_every.get().saturating_mul(SYNCS_PER_WINDOW) > window.get();
    let longest = Micros::new(window.get() / SYNCS_PER_WINDOW);
    let problem = format!("a window of {window} needs a `sync_every` of at most {longest}");
    is_slow.then_some((problem, "set a shorter `sync_every`, or use a longer window"))
}

fn not_prepaid(limit: &Limit) -> (String, &'static str) {
    let region = "use a rule of the region: its number, divided";
    match limit.algorithm() {
        Algorithm::Concurrency => ("a place in use is held in one store".into(), region),
        Algorithm::LeakyBucket => ("a place in its queue is held in one store".into(), region),
        Algorithm::SlidingLog if limit.min_interval() > Micros::ZERO => {
            ("`min_interval` needs the time of the last request".into(), region)
        }
        Algorithm::SlidingLog if limit.counts_refused() => {
            ("refused requests are not counted at home".into(), "remove `count_refused`")
        }
        Algorithm::TokenBucket
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog => (
            "its window, or the refill of its burst, is too short to cross the links between regions".into(),
            "use a window or a burst of several seconds: such as `burst: 50` for `rate: 10/s`",
        ),
    }
}
