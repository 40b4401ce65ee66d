//! What is held is what was taken and neither given back nor over: never more than the limit, and nobody ends another's.

use std::time::Duration;

use super::grants::beyond;
use super::sources::RECOVERY;
use super::{Kind, View, Violation};
use crate::history::{Answer, Asked, Cell, History, LeaseCall, LeaseWhat, What};
use crate::limit::Limit;

pub(super) fn check(view: &View<'_>, cell: usize) -> Vec<Violation> {
    let history = view.history;
    let Limit::Concurrency { ttl, .. } = history.cells[cell].limit else { return Vec::new() };
    let leases: Vec<Lease<'_>> =
        view.touching[cell].iter().filter_map(|asked| Lease::of(view, asked, ttl)).collect();
    let name = &history.cells[cell].name;
    let mut violations: Vec<Violation> = too_many(view, cell, &leases).into_iter().collect();
    let emptied = history.troubles.iter().any(|trouble| trouble.what == What::Emptied);
    for lease in &leases {
        if lease.was_lost() && !emptied {
            violations.push(Violation::new(
                Kind::LeasesNotConserved,
                format!("{name}: ended before its time: {:?}", lease.taken),
            ));
        }
        if lease.was_given_back_twice(history) {
            violations.push(Violation::new(
                Kind::LeasesNotConserved,
                format!("{name}: given back twice: {:?}", lease.taken),
            ));
        }
    }
    violations.truncate(3);
    violations
}

/// One lease, and every call about it, by when it was sent.
struct Lease<'h> {
    taken: &'h Asked,
    calls: &'h [&'h LeaseCall],
    ttl: Duration,
}

impl<'h> Lease<'h> {
    fn of(view: &'h View<'_>, taken: &'h Asked, ttl: Duration) -> Option<Self> {
        let Answer::Admitted { lease: Some(token), .. } = &taken.answer else { return None };
        Some(Lease { taken, calls: view.calls_of(token), ttl })
    }

    fn releases(&self) -> impl Iterator<Item = &LeaseCall> {
        self.calls.iter().copied().filter(|call| call.what == LeaseWhat::Release)
    }

    /// Until when it is surely held, if nobody gives it back.
    fn lasts_until(&self, moment: Duration) -> Duration {
        let renewed =
            self.calls.iter().filter(|call| call.what == LeaseWhat::Renew && call.was_held == Some(true));
        let renewed = renewed.filter(|call| call.received <= moment).map(|call| call.sent);
        renewed.max().unwrap_or_default().max(self.taken.sent) + self.ttl
    }

    /// When it may have ended, at the earliest.
    fn may_end(&self) -> Duration {
        let over = self.lasts_until(Duration::MAX);
        self.releases().map(|call| call.sent).min().unwrap_or(over).min(over)
    }

    /// Its holder was told that it had ended, though nothing had ended it.
    fn was_lost(&self) -> bool {
        self.is_the_stores()
            && self.calls.iter().any(|call| {
                let first =
                    self.releases().all(|other| std::ptr::eq(other, *call) || other.sent > call.received);
                call.was_held == Some(false) && first && call.received < self.lasts_until(call.sent)
            })
    }

    /// Twice its holder was told that it had held it, by a store that could be asked: a node that takes the store for away
    /// believes the holder.
    fn was_given_back_twice(&self, history: &History) -> bool {
        let since = |call: &LeaseCall| call.sent.saturating_sub(RECOVERY);
        let asked = |call: &&LeaseCall| history.troubles_in(since(call), call.received).next().is_none();
        let told = |call: &&LeaseCall| call.was_held == Some(true);
        self.is_the_stores() && self.releases().filter(told).filter(asked).count() > 1
    }

    /// What a policy of `open` gives while the store is away is not promised to be little.
    fn is_bounded(&self) -> bool {
        self.taken.source().is_some_and(|source| !source.is_unbounded())
    }

    /// What a policy gave is known only to the node that gave it.
    fn is_the_stores(&self) -> bool {
        self.taken.source().is_some_and(|source| source.is_exact())
    }
}

/// At no moment more leases are surely held than the limit, and what is granted for what went wrong since the oldest of them
/// can have been taken.
fn too_many(view: &View<'_>, cell: usize, leases: &[Lease<'_>]) -> Option<Violation> {
    let mut moments: Vec<(Duration, i64)> = Vec::new();
    for lease in leases.iter().filter(|lease| lease.is_bounded()) {
        let (begins, ends) = (lease.taken.received, lease.may_end());
        if begins < ends {
            moments.extend([(begins, 1), (ends, -1)]);
        }
    }
    // At one moment, ends come first.
    moments.sort_unstable();
    let Cell { name, limit, .. } = &view.history.cells[cell];
    let Limit::Concurrency { ttl, .. } = *limit else { return None };
    let mut held = 0;
    for (moment, change) in moments {
        held += change;
        let most = view.history.cells[cell].limits_in(moment, moment).map(Limit::capacity).max()?;
        if !u64::try_from(held).is_ok_and(|held| held > most) {
            continue;
        }
        let allowed = most + beyond(view, cell, moment.saturating_sub(ttl), moment);
        if u64::try_from(held).is_ok_and(|held| held > allowed) {
            let what = format!("{name}: {held} leases held at {moment:?}, at most {allowed} may be");
            return Some(Violation::new(Kind::TooMany, what));
        }
    }
    None
}
