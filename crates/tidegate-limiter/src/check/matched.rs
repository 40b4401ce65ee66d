//! The rules that a request matches, in a form that a plan can borrow from.

use smallvec::SmallVec;
use tidegate_core::{Limit, Scope, Timestamp, append_part};
use tidegate_rules::{
    CellKeyBytes, Descriptor, Match, MatchedLimits, Matches, OnMissingKey, Priority, RuleLimit, UnknownDomain,
};
use tidegate_store::Clock;

use super::plan::Plan;
use crate::lease::LeaseIds;
use crate::limiter::Limiter;
use crate::request::{CheckRequest, Patience};
use crate::snapshot::Snapshot;

/// The rules that a request matches. Large, so it is filled in place.
pub(crate) struct Matched<'r> {
    matches: Matches<'r>,
    overrides: OverrideKeys,
    without_waiting: WithoutWaiting<'r>,
    /// Cells that several descriptors name under different limits: all of them must hold.
    strictest: Vec<StrictestLimit>,
    /// When the check arrived.
    pub(crate) asked_at: Timestamp,
    /// Whether its descriptors are readings of one request.
    pub(crate) of_readings: bool,
}

/// A cell that a request names under several limits, and the limit that satisfies them all.
pub(super) struct StrictestLimit {
    pub(super) scope: Scope,
    pub(super) key: CellKeyBytes,
    pub(super) limit: Limit,
}

/// The keys of descriptors with a limit override: the whole descriptor.
pub(crate) type OverrideKeys = SmallVec<[(usize, CellKeyBytes); 1]>;

/// Leaky buckets, each with its equivalent for a caller that cannot wait.
pub(crate) type WithoutWaiting<'r> = SmallVec<[(&'r Limit, Limit); 1]>;

impl<'r> Matched<'r> {
    #[inline]
    pub(crate) fn new() -> Self {
        Matched {
            matches: Matches::new(),
            overrides: OverrideKeys::new(),
            without_waiting: WithoutWaiting::new(),
            strictest: Vec::new(),
            asked_at: Timestamp::default(),
            of_readings: false,
        }
    }

    /// Matches `request` against the rules of `snapshot`, where a copy of the result does not matter.
    pub(crate) fn of(
        snapshot: &'r Snapshot,
        request: &CheckRequest<'_>,
        limiter: &Limiter,
    ) -> Result<Self, UnknownDomain> {
        let mut matched = Matched::new();
        matched.find(snapshot, request, limiter)?;
        Ok(matched)
    }

    /// Matches `request` against the rules of `snapshot`.
    pub(crate) fn find(
        &mut self,
        snapshot: &'r Snapshot,
        request: &CheckRequest<'_>,
        limiter: &Limiter,
    ) -> Result<(), UnknownDomain> {
        let now = limiter.clock.now();
        self.asked_at = now;
        let found = match request.descriptors {
            [ask] if ask.limit.is_none() => {
                snapshot.rules().matches(request.domain, &[ask.descriptor], now, &mut self.matches)
            }
            [_, _, ..] if request.are_readings => self.find_readings(snapshot, request, now),
            _ => self.find_several(snapshot, request, now),
        };
        found.inspect_err(|_| limiter.observer.unknown_domain())?;
        if request.descriptors.len() > 1 {
            self.find_strictest(request);
        }
        if request.patience == Patience::MustGoNow {
            without_waiting(&self.matches, &mut self.without_waiting);
        }
        Ok(())
    }

    /// Matches each reading as if it were the only one, so that a rule which replaces others in one reading does not lift
    /// them from the next.
    fn find_readings(
        &mut self,
        snapshot: &'r Snapshot,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Result<(), UnknownDomain> {
        self.of_readings = true;
        for (place, ask) in request.descriptors.iter().enumerate() {
            let mut found = Matches::new();
            snapshot.rules().matches(request.domain, &[ask.descriptor], now, &mut found)?;
            for mut found in found.drain() {
                found.descriptor = place;
                if !self.matches.iter().any(|known| asks_the_same(known, &found)) {
                    self.matches.push(found);
                }
            }
        }
        Ok(())
    }

    fn find_several(
        &mut self,
        snapshot: &'r Snapshot,
        request: &CheckRequest<'_>,
        now: Timestamp,
    ) -> Result<(), UnknownDomain> {
        // Rules ignore a descriptor with a limit override: they neither limit it nor replace other rules for it.
        let by_rules = request.descriptors.iter().enumerate().filter(|(_, ask)| ask.limit.is_none());
        let (places, descriptors): (SmallVec<[usize; 2]>, SmallVec<[Descriptor<'_>; 2]>) =
            by_rules.map(|(place, ask)| (place, ask.descriptor)).unzip();
        snapshot.rules().matches(request.domain, &descriptors, now, &mut self.matches)?;
        for found in self.matches.iter_mut() {
            found.descriptor = places[found.descriptor];
        }
        let own_limits = request.descriptors.iter().enumerate().filter(|(_, ask)| ask.limit.is_some());
        self.overrides.extend(own_limits.map(|(number, ask)| {
            let mut key = CellKeyBytes::new();
            for (name, value) in ask.descriptor.entries {
                append_part(&mut key, name.as_bytes());
                append_part(&mut key, value);
            }
            (number, key)
        }));
        Ok(())
    }

    /// Finds the cells that several descriptors name under different limits: tiers of one rule, or limit overrides.
    fn find_strictest(&mut self, request: &CheckRequest<'_>) {
        let by_rules = self.matches.iter().flat_map(|found| {
            let limits = if let MatchedLimits::Enforce(limits) = found.limits { limits } else { &[] };
            limits.iter().map(|limit| (limit, &found.key))
        });
        let own = self.overrides.iter().filter_map(|(descriptor, key)| {
            request.descriptors[*descriptor].limit.map(|own| (&own.limit, key))
        });
        let limits: SmallVec<[(&RuleLimit, &CellKeyBytes); 4]> = by_rules.chain(own).collect();
        let mut strictest: Vec<StrictestLimit> = Vec::new();
        for (place, (first, key)) in limits.iter().enumerate() {
            let is_same = |(other, its_key): &&(&RuleLimit, &CellKeyBytes)| {
                its_key == key && other.scope == first.scope
            };
            if limits[..place].iter().any(|other| is_same(&other)) {
                continue;
            }
            let others = limits[place + 1..].iter().filter(is_same);
            let limit = others.fold(first.limit.clone(), |limit, (other, _)| {
                limit.strictest(&other.limit).unwrap_or(limit)
            });
            if limit != first.limit {
                let limit = match request.patience {
                    Patience::MustGoNow => limit.without_waiting().unwrap_or(limit),
                    Patience::Waits => limit,
                };
                strictest.push(StrictestLimit { scope: first.scope.clone(), key: (*key).clone(), limit });
            }
        }
        self.strictest = strictest;
    }

    /// The matching rules.
    pub(crate) fn matches(&self) -> &[Match<'r>] {
        &self.matches
    }

    /// The highest priority among the matching rules, if any states one. A rule that is skipped because its key is missing
    /// does not count.
    pub(crate) fn priority(&self) -> Option<Priority> {
        let skipped =
            |found: &Match<'_>| matches!(found.limits, MatchedLimits::KeyMissing(OnMissingKey::Skip));
        let have_a_say = self.matches.iter().filter(|found| !skipped(found));
        have_a_say.filter_map(|found| found.rule.priority()).min()
    }

    /// The cells that `request` touches because of these matches, where a copy of them does not matter.
    pub(crate) fn plan<'p>(&'p self, request: &'p CheckRequest<'p>, lease_ids: &LeaseIds) -> Plan<'p> {
        let mut plan = Plan::new();
        self.add_to(&mut plan, request, lease_ids);
        plan
    }

    /// Adds the cells that `request` touches because of these matches.
    #[inline]
    pub(crate) fn add_to<'p>(
        &'p self,
        plan: &mut Plan<'p>,
        request: &'p CheckRequest<'p>,
        lease_ids: &LeaseIds,
    ) {
        plan.of_readings = self.of_readings;
        plan.add_all(request, &self.matches, &self.overrides, lease_ids);
        if !self.without_waiting.is_empty() {
            plan.go_now(&self.without_waiting);
        }
        if !self.strictest.is_empty() {
            plan.keep_strictest(&self.strictest);
        }
    }
}

/// Whether two matches spend from the same cells.
fn asks_the_same(one: &Match<'_>, other: &Match<'_>) -> bool {
    let same_limits = match (one.limits, other.limits) {
        (MatchedLimits::Enforce(one), MatchedLimits::Enforce(other)) => std::ptr::eq(one, other),
        (MatchedLimits::Unlimited, MatchedLimits::Unlimited) => true,
        (MatchedLimits::KeyMissing(one), MatchedLimits::KeyMissing(other)) => one == other,
        _ => false,
    };
    same_limits && one.rule.index() == other.rule.index() && one.key == other.key
}

/// The leaky buckets among the limits of `matches`, for a request that cannot wait.
fn without_waiting<'r>(matches: &[Match<'r>], buckets: &mut WithoutWaiting<'r>) {
    for found in matches {
        let MatchedLimits::Enforce(limits) = found.limits else { continue };
        for RuleLimit { limit, .. } in limits {
            buckets.extend(limit.without_waiting().map(|without_waiting| (limit, without_waiting)));
        }
    }
}
