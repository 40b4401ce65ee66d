//! From matched rules to the cells that a request touches.

use smallvec::SmallVec;
use tidegate_core::{Ask, Hits, LeaseId, Limit, Stance, Touch};
use tidegate_rules::{CellKeyBytes, Limits, Match, Mode, OnMissingKey, Rule, RuleLimit};
use tidegate_store::{CellKey, Spend};

use crate::decision::Decision;
use crate::request::{CheckRequest, Patience};

/// Every rule that a request matches, and the cells it touches because of them, each once.
pub(crate) struct Plan<'p> {
    pub(crate) entries: SmallVec<[Entry<'p>; 4]>,
    pub(crate) spends: SmallVec<[Spend<'p>; 4]>,
}

/// One matched rule's limit, or its lack of one.
#[derive(Clone, Copy)]
pub(crate) struct Entry<'p> {
    pub(crate) descriptor: usize,
    /// None for a limit that the caller brought along.
    pub(crate) rule: Option<&'p Rule>,
    pub(crate) asks: Asks<'p>,
}

impl Entry<'_> {
    /// Whether the spend at this place decides for it.
    pub(crate) fn is_for(&self, spend: usize) -> bool {
        matches!(self.asks, Asks::Limit { spend: place, .. } if place == spend)
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Asks<'p> {
    /// The spend at this place decides.
    Limit {
        limit: &'p RuleLimit,
        spend: usize,
    },
    Unlimited,
    KeyMissing(OnMissingKey),
}

/// The keys of descriptors that bring their own limit: the whole descriptor.
pub(crate) type OverrideKeys = SmallVec<[(usize, CellKeyBytes); 1]>;

/// Leaky buckets, each with what it is to a caller that cannot wait.
pub(crate) type WithoutWaiting<'r> = SmallVec<[(&'r Limit, Limit); 1]>;

/// The leaky buckets among the limits of `matches`, for a request that cannot wait; none for one that can.
pub(crate) fn without_waiting<'r>(request: &CheckRequest<'_>, matches: &[Match<'r>]) -> WithoutWaiting<'r> {
    let mut buckets = WithoutWaiting::new();
    if request.patience == Patience::MustGoNow {
        for found in matches {
            let Limits::Enforce(limits) = found.limits else { continue };
            for RuleLimit { limit, .. } in limits {
                if let Limit::LeakyBucket(bucket) = limit {
                    buckets.push((limit, Limit::LeakyBucket(bucket.without_waiting())));
                }
            }
        }
    }
    buckets
}

/// The keys of the descriptors in `request` that bring their own limit.
pub(crate) fn override_keys(request: &CheckRequest<'_>) -> OverrideKeys {
    let own_limits = request.descriptors.iter().enumerate().filter(|(_, ask)| ask.limit.is_some());
    own_limits
        .map(|(number, ask)| {
            let mut key = CellKeyBytes::new();
            for (name, value) in ask.descriptor.entries {
                tidegate_core::append_part(&mut key, name.as_bytes());
                tidegate_core::append_part(&mut key, value);
            }
            (number, key)
        })
        .collect()
}

impl<'p> Plan<'p> {
    pub(crate) fn new(
        request: &'p CheckRequest<'p>,
        matches: &'p [Match<'p>],
        overrides: &'p [(usize, CellKeyBytes)],
        lease: LeaseId,
    ) -> Self {
        let mut plan = Plan { entries: SmallVec::new(), spends: SmallVec::new() };
        for found in matches {
            plan.add_match(request, found, lease);
        }
        for (descriptor, key) in overrides {
            if let Some(own) = request.descriptors[*descriptor].limit {
                let cell = CellKey { scope: &own.limit.scope, key, tag: key };
                let cost = request.descriptors[*descriptor].cost;
                plan.add_limit(*descriptor, None, &own.limit, cell, Ask { hits: cost, lease: Some(lease) });
            }
        }
        plan
    }

    fn add_match(&mut self, request: &CheckRequest<'_>, found: &'p Match<'p>, lease: LeaseId) {
        let (descriptor, rule) = (found.descriptor, Some(found.rule));
        match found.limits {
            Limits::Unlimited => self.entries.push(Entry { descriptor, rule, asks: Asks::Unlimited }),
            Limits::KeyMissing(then) => {
                self.entries.push(Entry { descriptor, rule, asks: Asks::KeyMissing(then) });
            }
            Limits::Enforce(limits) => {
                let ask = Ask { hits: request.descriptors[descriptor].cost, lease: Some(lease) };
                for limit in limits {
                    let cell = CellKey { scope: &limit.scope, key: &found.key, tag: found.tag() };
                    self.add_limit(descriptor, rule, limit, cell, ask);
                }
            }
        }
    }

    fn add_limit(
        &mut self,
        descriptor: usize,
        rule: Option<&'p Rule>,
        limit: &'p RuleLimit,
        cell: CellKey<'p>,
        ask: Ask,
    ) {
        // Two descriptors of one request may name the same cell; it is asked once, for the sum.
        let known = self.spends.iter().position(|other| same_cell(&other.cell, &cell));
        let spend = known.unwrap_or(self.spends.len());
        match self.spends.get_mut(spend) {
            Some(known) => known.touch.ask.hits = known.touch.ask.hits.saturating_add(ask.hits),
            None => {
                let stance = match rule.map(Rule::mode) {
                    None | Some(Mode::Enforce) => Stance::Enforced,
                    Some(Mode::Shadow | Mode::Quota) => Stance::Advisory,
                };
                self.spends.push(Spend { cell, touch: Touch { limit: &limit.limit, ask, stance } });
            }
        }
        self.entries.push(Entry { descriptor, rule, asks: Asks::Limit { limit, spend } });
    }

    /// Whether a missing key refuses this request, whatever the limits say.
    pub(crate) fn is_refused_for_a_missing_key(&self) -> bool {
        let enforced = |entry: &Entry<'_>| entry.rule.is_none_or(|rule| rule.mode() == Mode::Enforce);
        let refuses = |entry: &Entry<'_>| matches!(entry.asks, Asks::KeyMissing(OnMissingKey::Refuse));
        self.entries.iter().any(|entry| refuses(entry) && enforced(entry))
    }

    /// Whether the limit at this spend let the request pass.
    pub(crate) fn was_admitted(&self, spend: usize, decision: &Decision) -> bool {
        let mut about = self.entries.iter().zip(&decision.reports).filter(|(entry, _)| entry.is_for(spend));
        about.any(|(_, report)| !report.is_refusal())
    }

    /// Turns every spend into a look: for a request that is refused already.
    pub(crate) fn only_look(&mut self) {
        for spend in &mut self.spends {
            spend.touch.ask.hits = Hits::ZERO;
        }
    }

    /// Asks `buckets` for a place at their front alone.
    pub(crate) fn go_now(&mut self, buckets: &'p [(&'p Limit, Limit)]) {
        for spend in &mut self.spends {
            let own = buckets.iter().find(|(limit, _)| std::ptr::eq(*limit, spend.touch.limit));
            spend.touch.limit = own.map_or(spend.touch.limit, |(_, without_waiting)| without_waiting);
        }
    }

    /// The cells in which this request takes a lease if it passes.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Spend<'p>> {
        let takes_one = |spend: &&Spend<'_>| matches!(spend.touch.limit, Limit::Concurrency(_));
        self.spends.iter().filter(takes_one).filter(|spend| spend.touch.ask.hits > Hits::ZERO)
    }
}

fn same_cell(one: &CellKey<'_>, other: &CellKey<'_>) -> bool {
    one.scope.digest() == other.scope.digest() && one.key == other.key && one.scope == other.scope
}
