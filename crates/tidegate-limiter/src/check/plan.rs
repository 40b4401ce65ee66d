//! From matched rules to the cells that a request touches.

use std::ops::Range;

use smallvec::SmallVec;
use tidegate_core::{Ask, Group, Hits, LeaseId, Limit, Micros, Over, Stance, Touch};
use tidegate_rules::{
    CellKeyBytes, Coordination, Match, MatchedLimits, Mode, OnHangup, OnMissingKey, Rule, RuleLimit, Variant,
};
use tidegate_store::{CellKey, Spend};

use super::classify::Cells;
use super::matched::StrictestLimit;
use crate::cell::CellPolicy;
use crate::cell_hash::CellHasher;
use crate::decision::{Decision, Report};
use crate::lease::LeaseIds;
use crate::request::{CheckRequest, DescriptorAsk, Incurred};
use crate::source::Source;

/// Every rule that a request matches, and the cells it touches because of them, without duplicates.
pub(crate) struct Plan<'p> {
    pub(crate) entries: SmallVec<[MatchedLimit<'p>; 4]>,
    pub(crate) spends: SmallVec<[Spend<'p>; 4]>,
    /// The ID of the leases that it takes if it passes; `None` if it takes none.
    pub(crate) lease: Option<LeaseId>,
    /// A missing key refuses it, whatever the limits say: its spends become looks.
    pub(crate) lacks_a_key: bool,
    /// A ban refuses it: nothing else is asked.
    pub(crate) banned: bool,
    /// Its descriptors are readings of one request.
    pub(crate) of_readings: bool,
    /// Asks every cell, even if one of them is known to refuse.
    pub(crate) asks_every_cell: bool,
    /// The store must not be asked.
    pub(crate) without_the_store: bool,
    /// How many of the entries and of the spends are limits. The rest, at the end, are penalties.
    limits: (usize, usize),
}

/// One matched rule's limit, or its lack of one.
#[derive(Clone, Copy)]
pub(crate) struct MatchedLimit<'p> {
    pub(crate) descriptor: usize,
    /// `None` for a limit supplied by the caller.
    pub(crate) rule: Option<&'p Rule>,
    /// The request's side of the rule's experiment.
    pub(crate) variant: Option<Variant>,
    pub(crate) asks: Asks<'p>,
}

impl MatchedLimit<'_> {
    /// Whether the spend at this index decides for it.
    pub(crate) fn is_for(&self, spend: usize) -> bool {
        matches!(self.asks, Asks::Limit { spend: place, .. } if place == spend)
    }
}

#[derive(Clone, Copy)]
pub(crate) enum Asks<'p> {
    /// The spend at this index decides.
    Limit {
        limit: &'p RuleLimit,
        spend: usize,
    },
    Unlimited,
    KeyMissing(OnMissingKey),
    Banned {
        retry_after: Option<Micros>,
    },
}

impl<'p> Plan<'p> {
    #[inline]
    pub(crate) fn new() -> Self {
        Plan {
            entries: SmallVec::new(),
            spends: SmallVec::new(),
            lease: None,
            lacks_a_key: false,
            banned: false,
            of_readings: false,
            asks_every_cell: false,
            without_the_store: false,
            limits: (0, 0),
        }
    }

    pub(crate) fn add_all(
        &mut self,
        request: &'p CheckRequest<'p>,
        matches: &'p [Match<'p>],
        overrides: &'p [(usize, CellKeyBytes)],
        lease_ids: &LeaseIds,
    ) {
        self.asks_every_cell = request.asks_every_cell;
        self.without_the_store = request.without_the_store;
        // The number of a match names its rule within the request.
        let after = u16::try_from(matches.len()).unwrap_or(u16::MAX);
        for (number, found) in (0..).zip(matches) {
            self.add_match(request, found, number, lease_ids);
        }
        for (number, (descriptor, key)) in (after..).zip(overrides) {
            if let Some(own) = request.descriptors[*descriptor].limit {
                let cell = CellKey { scope: &own.limit.scope, key, tag: key };
                let asked = &request.descriptors[*descriptor];
                let over = over(own.limit.over.unwrap_or_default(), asked.incurred);
                let ask = Ask { hits: asked.cost, lease: None, over };
                let group = Group::new(number, Stance::Enforced);
                self.add_limit((*descriptor, None, None), &own.limit, cell, ask, group, 0);
            }
        }
        self.limits = (self.entries.len(), self.spends.len());
        for (number, found) in (0..).zip(matches) {
            if let (MatchedLimits::Enforce(_), Some(penalty)) = (found.limits, found.rule.penalty()) {
                let cell = CellKey { scope: &penalty.scope, key: &found.key, tag: found.tag() };
                let of = (found.descriptor, Some(found.rule), found.variant);
                // Every request looks at it, and only a refused one starts it.
                let known_from = self.known_from(request);
                let group = Group::new(number, stance_of(found.rule)).penalty();
                self.add_limit(of, penalty, cell, Ask::look(), group, known_from);
            }
        }
        if self.lease.is_some() {
            self.stay_out_of_debt();
        }
        if self.banned {
            self.only_refuse();
        } else if self.lacks_a_key {
            self.only_look();
        }
    }

    /// The entries of limits, without penalties.
    pub(crate) fn limits(&self) -> &[MatchedLimit<'p>] {
        &self.entries[..self.limits.0]
    }

    /// The entries of penalties.
    pub(crate) fn penalties(&self) -> &[MatchedLimit<'p>] {
        &self.entries[self.limits.0..]
    }

    /// The indices of refundable spends: a refund lifts no penalty.
    pub(crate) fn refundable(&self) -> Range<usize> {
        0..self.limits.1
    }

    fn add_match(
        &mut self,
        request: &CheckRequest<'_>,
        found: &'p Match<'p>,
        number: u16,
        lease_ids: &LeaseIds,
    ) {
        let (descriptor, rule, variant) = (found.descriptor, Some(found.rule), found.variant);
        match found.limits {
            MatchedLimits::Unlimited => {
                self.entries.push(MatchedLimit { descriptor, rule, variant, asks: Asks::Unlimited });
            }
            MatchedLimits::Banned { retry_after } => {
                self.banned |= found.rule.mode() != Mode::Shadow;
                let asks = Asks::Banned { retry_after };
                self.entries.push(MatchedLimit { descriptor, rule, variant, asks });
            }
            MatchedLimits::KeyMissing(then) => {
                self.lacks_a_key |= then == OnMissingKey::Refuse && found.rule.mode() == Mode::Enforce;
                self.entries.push(MatchedLimit { descriptor, rule, variant, asks: Asks::KeyMissing(then) });
            }
            MatchedLimits::Enforce(limits) => {
                let DescriptorAsk { cost: hits, incurred, .. } = request.descriptors[descriptor];
                let known_from = self.known_from(request);
                for limit in limits {
                    // What was done already holds no place.
                    let takes_lease = limit.limit.takes_lease() && incurred == Incurred::IfAdmitted;
                    let lease = takes_lease.then(|| *self.lease.get_or_insert_with(|| lease_ids.next()));
                    let hits = if limit.limit.takes_lease() && !takes_lease { Hits::ZERO } else { hits };
                    let over = over(limit.over.unwrap_or(found.rule.over()), incurred);
                    let ask = Ask { hits, lease, over };
                    let cell = CellKey { scope: &limit.scope, key: &found.key, tag: found.tag() };
                    let group = Group::new(number, stance_of(found.rule));
                    self.add_limit((descriptor, rule, variant), limit, cell, ask, group, known_from);
                }
            }
        }
    }

    /// The first spend that may share a cell with the next match: two rules never share one, two descriptors may.
    fn known_from(&self, request: &CheckRequest<'_>) -> usize {
        if request.descriptors.len() == 1 { self.spends.len() } else { 0 }
    }

    fn add_limit(
        &mut self,
        (descriptor, rule, variant): (usize, Option<&'p Rule>, Option<Variant>),
        limit: &'p RuleLimit,
        cell: CellKey<'p>,
        ask: Ask,
        group: Group,
        known_from: usize,
    ) {
        // Two descriptors of one request may name the same cell; it is asked once, for the sum of their hits or, if they are
        // readings, for the largest.
        let known = self.spends[known_from..].iter().position(|other| same_cell(&other.cell, &cell));
        let spend = known.map_or(self.spends.len(), |place| known_from + place);
        if let Some(known) = self.spends.get_mut(spend)
            && ask.over == Over::Charge
        {
            known.touch.ask.over = Over::Charge;
        }
        match self.spends.get_mut(spend) {
            Some(known) if self.of_readings => known.touch.ask.hits = known.touch.ask.hits.max(ask.hits),
            Some(known) => known.touch.ask.hits = known.touch.ask.hits.saturating_add(ask.hits),
            None => self.spends.push(Spend { cell, touch: Touch { limit: &limit.limit, ask, group } }),
        }
        self.entries.push(MatchedLimit { descriptor, rule, variant, asks: Asks::Limit { limit, spend } });
    }

    /// Whether the limit at this spend is of a shadow rule that would have refused: as an enforced rule it has spent nothing.
    pub(crate) fn is_of_refusing_shadow(&self, spend: usize, decision: &Decision) -> bool {
        // A penalty that refuses has its report, too.
        let refuses = |one: &MatchedLimit<'_>| {
            let of_rule = |report: &&Report| {
                (report.descriptor, report.rule) == (one.descriptor, one.rule.map(Rule::index))
            };
            decision.reports.iter().filter(of_rule).any(Report::is_refusal)
        };
        self.limits().iter().any(|entry| {
            entry.is_for(spend) && entry.rule.map(Rule::mode) == Some(Mode::Shadow) && refuses(entry)
        })
    }

    /// Whether `decision` is about this request, under the same rules.
    pub(crate) fn is_of(&self, decision: &Decision) -> bool {
        let same = |(entry, report): (&MatchedLimit<'_>, &Report)| {
            entry.descriptor == report.descriptor && entry.rule.map(Rule::index) == report.rule
        };
        self.limits().len() == decision.reports.len() && self.limits().iter().zip(&decision.reports).all(same)
    }

    /// When `decision` expected the full quota of the cell at this spend to be back.
    pub(crate) fn reset_after(&self, spend: usize, decision: &Decision) -> Option<Micros> {
        let about = self.entries.iter().zip(&decision.reports).filter(|(entry, _)| entry.is_for(spend));
        about.filter_map(|(_, report)| report.limit()).map(|limit| limit.outcome.reset_after).max()
    }

    /// Its cells, as every room but the store in memory reads them.
    pub(crate) fn cells(&self, hasher: &CellHasher) -> Cells<'_> {
        let mut cells = Cells::new(hasher, &self.spends, self.policies());
        cells.repeats_refusals &= !self.asks_every_cell;
        cells.without_the_store = self.without_the_store;
        cells.is_only_shown |= self.lacks_a_key;
        cells
    }

    /// The policy of the rule behind each spend.
    pub(crate) fn policies(&self) -> impl Iterator<Item = CellPolicy> {
        let mut next = 0;
        // A spend is added with the first entry that it decides for, so these come in the order of the spends.
        let first_of_next = self.entries.iter().filter(move |entry| {
            let is_first = entry.is_for(next);
            next += usize::from(is_first);
            is_first
        });
        first_of_next.map(|entry| entry.rule.map_or(CellPolicy::CALLER_LIMIT, CellPolicy::of))
    }

    /// The names of the first rule at this spend, and of its limit.
    pub(crate) fn name_of(&self, spend: usize) -> String {
        let first = self.entries.iter().find(|entry| entry.is_for(spend));
        let rule = first.and_then(|entry| entry.rule).map_or("", Rule::name);
        let limit = first.map(|entry| entry.asks).and_then(|asks| match asks {
            Asks::Limit { limit, .. } => Some(limit.name.as_str()),
            _ => None,
        });
        format!("{rule}: {}", limit.unwrap_or_default())
    }

    /// How far charges may exceed the limit at this spend: as far as a debt goes, or set by the first rule there.
    pub(crate) fn overdraft(&self, spend: usize) -> Hits {
        let touch = &self.spends[spend].touch;
        if matches!(touch.ask.over, Over::Debt | Over::Charge) {
            return touch.limit.most_debt();
        }
        let rule = self.entries.iter().find(|entry| entry.is_for(spend)).and_then(|entry| entry.rule);
        rule.map_or(Hits::ZERO, Rule::overdraft)
    }

    /// The source if the store is this node's memory: then every rule is decided as a local rule would be.
    pub(crate) fn source_in_memory(&self) -> Source {
        let coordination =
            |entry: &MatchedLimit<'_>| entry.rule.map_or(Coordination::Exact, Rule::coordination);
        let sources = self.entries.iter().map(|entry| match coordination(entry) {
            Coordination::Exact | Coordination::Escrow => Source::Store,
            Coordination::Approximate { .. } | Coordination::Eventual { .. } => Source::Approximate,
            Coordination::Local => Source::Local,
        });
        sources.fold(Source::None, Source::precedence)
    }

    /// Keeps only the ban: a flood of banned requests must not reach the store.
    fn only_refuse(&mut self) {
        self.entries.retain(|entry| matches!(entry.asks, Asks::Banned { .. }));
        self.spends.clear();
        self.limits = (self.entries.len(), 0);
        self.lease = None;
    }

    /// Turns every spend into a look: for a request that is already refused.
    fn only_look(&mut self) {
        for spend in &mut self.spends {
            spend.touch.ask.hits = Hits::ZERO;
        }
    }

    /// A request that takes a lease passes or spends nothing: a place held for a request that is refused would be lost.
    fn stay_out_of_debt(&mut self) {
        for spend in self.spends.iter_mut().filter(|spend| spend.touch.ask.over == Over::Debt) {
            spend.touch.ask.over = Over::Refuse;
        }
    }

    /// Asks `buckets` only for the front of their queue.
    pub(crate) fn go_now(&mut self, buckets: &'p [(&'p Limit, Limit)]) {
        for spend in &mut self.spends {
            let own = buckets.iter().find(|(limit, _)| std::ptr::eq(*limit, spend.touch.limit));
            spend.touch.limit = own.map_or(spend.touch.limit, |(_, without_waiting)| without_waiting);
        }
    }

    /// Uses, for cells that several descriptors name under different limits, the limit that satisfies them all.
    pub(super) fn keep_strictest(&mut self, strictest: &'p [StrictestLimit]) {
        for spend in &mut self.spends {
            let cell = &spend.cell;
            let known = strictest.iter().find(|one| *one.key == *cell.key && one.scope == *cell.scope);
            spend.touch.limit = known.map_or(spend.touch.limit, |one| &one.limit);
        }
    }

    /// Whether every limit that gives it a lease wants it back when the client hangs up.
    pub(crate) fn leases_end_with_client(&self) -> bool {
        self.entries.iter().all(|entry| match entry.asks {
            Asks::Limit { limit, .. } if limit.limit.takes_lease() => limit.on_hangup == OnHangup::Release,
            _ => true,
        })
    }

    /// The cells in which this request takes a lease if it passes.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Spend<'p>> {
        let takes_one = |spend: &&Spend<'_>| spend.touch.limit.takes_lease();
        self.spends.iter().filter(takes_one).filter(|spend| spend.touch.ask.hits > Hits::ZERO)
    }
}

/// What a cost above what is left does where the limit says `over`.
fn over(over: Over, incurred: Incurred) -> Over {
    match (over, incurred) {
        (Over::Debt, Incurred::Already) => Over::Charge,
        _ => over,
    }
}

fn stance_of(rule: &Rule) -> Stance {
    match rule.mode() {
        Mode::Enforce => Stance::Enforced,
        Mode::Shadow => Stance::Shadow,
        Mode::Quota => Stance::AnyOf,
    }
}

fn same_cell(one: &CellKey<'_>, other: &CellKey<'_>) -> bool {
    one.scope.digest() == other.scope.digest() && one.key == other.key && one.scope == other.scope
}
