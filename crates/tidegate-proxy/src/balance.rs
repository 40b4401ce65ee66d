//! Load balancing: a request goes to the server with the fewest requests in flight among the healthy ones.
//!
//! A group is shared by all workers, so that they share what they learn about a server. It opens no connections and reads no
//! clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_core::{Micros, Timestamp};

use crate::stats::Counts;
use crate::target::Target;

/// The most targets of a group: a request remembers the tried ones in a bit set of this size.
pub const MOST_TARGETS: usize = 64;

/// When a server is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// After this many consecutive failures: no connection, or no answer.
    pub failures: u32,
    /// For this long; afterwards, one more failure is enough.
    pub lasts: Duration,
}

impl Default for Ejection {
    fn default() -> Self {
        Self { failures: 3, lasts: Duration::from_secs(10) }
    }
}

/// Servers that are interchangeable.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    members: Box<[Member]>,
    ejection: Ejection,
    /// Where the next search starts, so that equal servers take turns.
    turn: AtomicUsize,
    pub(crate) counts: Counts,
}

#[derive(Debug)]
struct Member {
    target: Target,
    in_flight: AtomicUsize,
    failures: AtomicU32,
    /// In microseconds since the epoch.
    ejected_until: AtomicU64,
    /// The last result of the active health check.
    unwell: AtomicBool,
}

/// The targets that one request has tried without success.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tried(u64);

impl Tried {
    pub(crate) fn add(&mut self, place: usize) {
        self.0 |= 1 << place;
    }

    fn has(self, place: usize) -> bool {
        self.0 & (1 << place) != 0
    }
}

impl Group {
    /// At most [`MOST_TARGETS`] targets; more are ignored.
    pub(crate) fn new(name: String, targets: Vec<Target>, ejection: Ejection) -> Self {
        let member = |target| Member {
            target,
            in_flight: AtomicUsize::new(0),
            failures: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            unwell: AtomicBool::new(false),
        };
        let members = targets.into_iter().take(MOST_TARGETS).map(member).collect();
        Group { name, members, ejection, turn: AtomicUsize::new(0), counts: Counts::default() }
    }

    pub(crate) fn targets(&self) -> impl ExactSizeIterator<Item = &Target> {
        self.members.iter().map(|member| &member.target)
    }

    pub(crate) fn target(&self, place: usize) -> &Target {
        &self.members[place].target
    }

    /// A target that was not tried yet. If none is healthy, an unhealthy one: an attempt is better than a certain refusal.
    pub(crate) fn choose(self: &Arc<Self>, tried: Tried, now: Timestamp) -> Option<Chosen> {
        let count = self.members.len();
        if count == 0 {
            return None;
        }
        let first = self.turn.fetch_add(1, Ordering::Relaxed);
        let places = (0..count).map(|step| first.wrapping_add(step) % count).filter(|at| !tried.has(*at));
        let load = |place: &usize| {
            let member = &self.members[*place];
            (!member.is_well(now), member.in_flight.load(Ordering::Relaxed))
        };
        let place = places.min_by_key(load)?;
        self.members[place].in_flight.fetch_add(1, Ordering::Relaxed);
        Some(Chosen { group: Arc::clone(self), place })
    }

    /// Records that the target answered.
    pub(crate) fn succeeded(&self, place: usize) {
        let failures = &self.members[place].failures;
        if failures.load(Ordering::Relaxed) > 0 {
            failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records that the target could not be reached, or did not answer.
    pub(crate) fn failed(&self, place: usize, now: Timestamp) {
        let member = &self.members[place];
        let failures = member.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < self.ejection.failures.max(1) {
            return;
        }
        // One failure below the threshold: when the ejection is over, the first request decides.
        member.failures.store(self.ejection.failures.saturating_sub(1), Ordering::Relaxed);
        let lasts = Micros::from(self.ejection.lasts);
        let was_well = member.is_well(now);
        let until = now.since(Timestamp::default()).get().saturating_add(lasts.get());
        member.ejected_until.store(until, Ordering::Relaxed);
        if was_well {
            tracing::warn!(upstream = self.name, server = %member.target, lasts = ?self.ejection.lasts,
                "an upstream server is ejected for a while");
        }
    }

    /// Records the result of the active health check.
    pub(crate) fn checked(&self, place: usize, well: bool) {
        let member = &self.members[place];
        if member.unwell.swap(!well, Ordering::Relaxed) == well {
            tracing::warn!(upstream = self.name, server = %member.target, well, "an upstream server's health changed");
        }
    }

    /// The number of healthy targets.
    pub(crate) fn well(&self, now: Timestamp) -> usize {
        self.members.iter().filter(|member| member.is_well(now)).count()
    }

    /// The requests in flight of each target.
    #[cfg(test)]
    fn in_flight(&self) -> Vec<usize> {
        self.members.iter().map(|member| member.in_flight.load(Ordering::Relaxed)).collect()
    }
}

impl Member {
    fn is_well(&self, now: Timestamp) -> bool {
        !self.unwell.load(Ordering::Relaxed)
            && self.ejected_until.load(Ordering::Relaxed) <= now.since(Timestamp::default()).get()
    }
}

/// A chosen target; counts one request in flight until it is dropped.
#[derive(Debug)]
pub(crate) struct Chosen {
    group: Arc<Group>,
    pub(crate) place: usize,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.group.members[self.place].in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn group(targets: usize) -> Arc<Group> {
        let targets = (0..targets).map(|at| format!("http://127.0.0.1:{}", 1000 + at).parse().unwrap());
        Arc::new(Group::new("api".to_owned(), targets.collect(), Ejection::default()))
    }

    fn later(seconds: u64) -> Timestamp {
        START + Micros::from_secs(seconds)
    }

    fn chosen(group: &Arc<Group>, now: Timestamp) -> usize {
        group.choose(Tried::default(), now).unwrap().place
    }

    #[test]
    fn the_target_with_the_fewest_in_flight_is_next() {
        let group = group(3);
        let held: Vec<Chosen> = (0..7).map(|_| group.choose(Tried::default(), START).unwrap()).collect();
        let mut counts = group.in_flight();
        counts.sort_unstable();
        assert_eq!(counts, [2, 2, 3]);
        drop(held);
        assert_eq!(group.in_flight(), [0, 0, 0]);
    }

    #[test]
    fn equals_take_turns() {
        let group = group(3);
        let mut order: Vec<usize> = (0..6).map(|_| chosen(&group, START)).collect();
        order.sort_unstable();
        assert_eq!(order, [0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn a_target_is_left_alone_after_three_failures_in_a_row_and_tried_again_later() {
        let group = group(2);
        for _ in 0..2 {
            group.failed(0, START);
        }
        group.succeeded(0);
        for _ in 0..2 {
            group.failed(0, START);
        }
        assert!((0..4).any(|_| chosen(&group, START) == 0), "two in a row are not enough");
        group.failed(0, START);
        assert!((0..4).all(|_| chosen(&group, later(9)) == 1));
        assert!((0..4).any(|_| chosen(&group, later(10)) == 0));
        // It is on probation: the first failure ejects it again.
        group.failed(0, later(10));
        assert!((0..4).all(|_| chosen(&group, later(19)) == 1));
    }

    #[test]
    fn a_check_that_fails_takes_a_target_out_until_one_succeeds() {
        let group = group(2);
        group.checked(1, false);
        assert!((0..4).all(|_| chosen(&group, later(1000)) == 0));
        group.checked(1, true);
        assert!((0..4).any(|_| chosen(&group, later(1000)) == 1));
    }

    #[test]
    fn where_none_is_well_one_is_tried_all_the_same() {
        let group = group(2);
        group.checked(0, false);
        group.checked(1, false);
        assert!(group.choose(Tried::default(), START).is_some());
    }

    #[test]
    fn no_target_is_tried_twice() {
        let group = group(2);
        let mut tried = Tried::default();
        let first = group.choose(tried, START).unwrap().place;
        tried.add(first);
        let second = group.choose(tried, START).unwrap().place;
        assert_ne!(first, second);
        tried.add(second);
        assert!(group.choose(tried, START).is_none());
    }
}
