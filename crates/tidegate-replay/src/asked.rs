//! Turns a recorded request into a limiter request.

use smallvec::SmallVec;
use tidegate_core::{Hits, Micros};
use tidegate_limiter::{CheckRequest, DescriptorAsk, Incurred, LimitOverride, Patience};
use tidegate_rules::Descriptor;

use crate::parse::{Attributes, Recorded};

type Entries<'e> = SmallVec<[(&'e str, &'e [u8]); 8]>;

/// Whether a request spends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Spending {
    /// As recorded.
    AsRecorded,
    /// Nothing: it only reads.
    Nothing,
}

/// Calls `then` with the limiter request for `recorded` in `domain`.
#[inline]
pub(crate) fn with_request<T>(
    recorded: &Recorded<'_>,
    spending: Spending,
    domain: &str,
    then: impl FnOnce(&CheckRequest<'_>) -> T,
) -> T {
    // Filled in place: it is large.
    let mut entries = Entries::new();
    entries.extend(recorded.attributes.iter().map(|(name, value)| (&**name, &**value)));
    let cost = |cost: u64| if spending == Spending::Nothing { 0 } else { cost };
    let ask = ask(&entries, cost(recorded.cost)).incurred(incurred(recorded.own.incurred));
    let patience = if recorded.own.must_go_now { Patience::MustGoNow } else { Patience::Waits };
    if recorded.own.also.is_empty() && recorded.own.limit.is_none() {
        return then(&CheckRequest::new(domain, &[ask]).patience(patience));
    }
    let own_limit = |limit: Option<(u64, Micros)>| {
        limit.and_then(|(limit, window)| LimitOverride::new(domain, limit, window).ok())
    };
    let first = own_limit(recorded.own.limit);
    let others: Vec<(Entries<'_>, Option<LimitOverride>)> = recorded
        .own
        .also
        .iter()
        .map(|also| (self::entries(&also.attributes), own_limit(also.limit)))
        .collect();
    let mut asks = Vec::with_capacity(1 + others.len());
    for ((entries, limit), also) in others.iter().zip(&recorded.own.also) {
        let ask = self::ask(entries, cost(also.cost)).incurred(incurred(also.incurred));
        asks.push(ask.limit(limit.as_ref()));
    }
    // In their order: of readings with the same cell, the first one's cost counts.
    asks.insert(recorded.own.also_before.min(asks.len()), ask.limit(first.as_ref()));
    then(&CheckRequest::new(domain, &asks).patience(patience))
}

fn entries<'e>(attributes: &'e Attributes<'_>) -> Entries<'e> {
    attributes.iter().map(|(name, value)| (&**name, &**value)).collect()
}

fn ask<'e>(entries: &'e [(&'e str, &'e [u8])], cost: u64) -> DescriptorAsk<'e> {
    DescriptorAsk::of(Descriptor { entries }).cost(Hits::new(cost))
}

fn incurred(already: bool) -> Incurred {
    if already { Incurred::Already } else { Incurred::IfAdmitted }
}
