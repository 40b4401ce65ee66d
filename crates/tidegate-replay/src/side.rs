//! Applies a recorded line to one set of rules: a limiter on the memory store, which answers at once.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{CheckRequest, Limiter, RefundError, Report as LimiterReport, SpentAt};
use tidegate_rules::{Mode, Rule, RuleLimit};
use tidegate_store::{ManualClock, MemoryStore};

use crate::callers::Side;
use crate::leases::{Holds, Leases, Taken};
use crate::parse::{Recorded, Tells};

/// A limiter with one set of rules.
pub(crate) struct Ruled {
    pub(crate) limiter: Limiter,
    pub(crate) store: Arc<MemoryStore<Arc<ManualClock>>>,
}

impl Ruled {
    /// Whether a request is admitted; `None` if the rules do not have its domain. A lease that it takes is held as recorded.
    pub(crate) fn check(
        &self,
        request: &CheckRequest<'_>,
        recorded: &Recorded<'_>,
        (at, side, holds): (Timestamp, Side, Holds),
        leases: &mut Leases,
    ) -> Option<bool> {
        let decision = match recorded.own.readings {
            true => at_once(self.limiter.check(&request.readings())),
            false => at_once(self.limiter.check(request)),
        };
        // Borrowed: it is large.
        let Ok(decision) = &decision else { return None };
        if let Some(token) = &decision.lease
            && leases.take(recorded, (at, side, holds), token) == Taken::DoneAtOnce
        {
            drop(at_once(self.limiter.release(token)));
        }
        Some(decision.allowed)
    }

    /// Whether there is room for a request; `look` is the same request without cost.
    pub(crate) fn has_room(&self, recorded: &Recorded<'_>, look: &CheckRequest<'_>) -> bool {
        let decision = match recorded.own.readings {
            true => at_once(self.limiter.check(&look.readings())),
            false => at_once(self.limiter.check(look)),
        };
        let Ok(decision) = decision else { return true };
        let takes_lease = |report: &LimiterReport| {
            let (Some(told), Some(rule)) = (report.limit(), decision.rule_of(report)) else { return false };
            let is_of = |limit: &RuleLimit| limit.limit.quota() == told.quota && told.window.is_none();
            rule.limits().any(|limit| limit.limit.takes_lease() && is_of(limit))
        };
        // The costs of descriptors on the same cell add up; of readings only one counts.
        let is_same_cell = |one: &LimiterReport, other: &LimiterReport| {
            let key = |report: &LimiterReport| decision.rule_of(report).map(Rule::key);
            let limit = |report: &LimiterReport| report.limit().map(|limit| (limit.quota, limit.window));
            one == other
                || one.descriptor != other.descriptor
                    && !recorded.own.readings
                    && one.rule.is_some()
                    && (one.rule, limit(one)) == (other.rule, limit(other))
                    && key(one).is_some_and(|key| {
                        key.iter().all(|name| {
                            recorded.attribute(one.descriptor, name)
                                == recorded.attribute(other.descriptor, name)
                        })
                    })
        };
        let reports = decision.reports();
        let has_room = |report: &LimiterReport| {
            let Some(limit) = report.limit().filter(|_| !report.is_refusal()) else {
                return !report.is_refusal();
            };
            let cost = |report: &LimiterReport| recorded.cost_of(report.descriptor);
            let wanted = match &recorded.own.also[..] {
                // A request takes one lease of a cell, whatever its cost.
                _ if takes_lease(report) => 1,
                [] => cost(report),
                _ => {
                    let of_cell = reports.iter().filter(|other| is_same_cell(report, other));
                    of_cell.fold(0, |sum: u64, other| sum.saturating_add(cost(other)))
                }
            };
            limit.outcome.remaining >= wanted
        };
        reports.iter().filter(|report| report.mode == Mode::Enforce).all(has_room)
    }

    /// Applies a recorded refund, charge or reset.
    pub(crate) fn settle(
        &self,
        recorded: &Recorded<'_>,
        request: &CheckRequest<'_>,
    ) -> Result<(), RefundError> {
        let back = &recorded.own.back;
        let spent = |age: Option<Micros>| age.map_or(SpentAt::Unknown, |age| SpentAt::AgoExcept(age, back));
        // A line that stands for several is applied at once.
        let all = |hits: u64| Hits::new(hits.saturating_mul(recorded.weight.into()));
        match recorded.tells {
            Tells::Refunded(hits, age) => at_once(self.limiter.refund(request, all(hits), spent(age))),
            Tells::Charged(hits, age) => at_once(self.limiter.charge(request, all(hits), spent(age))),
            _ => at_once(self.limiter.reset(request)),
        }
    }
}

/// The answer of a limiter on the memory store, which is ready at once. Inlined, so that a future is polled where it was
/// created: some have two kilobytes.
#[inline(always)]
pub(crate) fn at_once<T>(answer: impl Future<Output = T>) -> T {
    match pin!(answer).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("a store in memory answers at once"),
    }
}
