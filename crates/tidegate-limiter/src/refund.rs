//! Refunds by callers that did not need their hits, and resets by operators.
//!
//! Whatever changes here leaves this node's deny cache at once.

use std::error::Error;
use std::fmt;

use smallvec::SmallVec;
use tidegate_core::{Hits, Limit, Micros, Over};
use tidegate_rules::{Coordination, UnknownDomain};
use tidegate_store::{Clock, Refund, RefundId, Stamped, StoreError};

use crate::cell::{CellAsk, Refunds};
use crate::check::{Cells, Matched, Plan};
use crate::decision::Decision;
use crate::limiter::Limiter;
use crate::observer::{Settlement, SpentBefore};
use crate::request::CheckRequest;
use crate::source::Source;
use crate::spent::{SpentToken, SpentTokenError};

/// Why hits could not be refunded or charged, or cells not reset.
#[derive(Debug)]
#[non_exhaustive]
pub enum RefundError {
    /// No rule has the domain.
    UnknownDomain(UnknownDomain),
    /// The store did not answer.
    Store(StoreError),
}

impl fmt::Display for RefundError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RefundError::UnknownDomain(error) => error.fmt(f),
            RefundError::Store(error) => error.fmt(f),
        }
    }
}

impl Error for RefundError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RefundError::UnknownDomain(error) => error.source(),
            RefundError::Store(error) => error.source(),
        }
    }
}

impl From<UnknownDomain> for RefundError {
    fn from(error: UnknownDomain) -> Self {
        RefundError::UnknownDomain(error)
    }
}

impl From<StoreError> for RefundError {
    fn from(error: StoreError) -> Self {
        RefundError::Store(error)
    }
}

/// When the hits to refund were spent: they belong to the window that was charged, and to no later one.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum SpentAt<'d> {
    /// Unknown: they go back into the current window.
    Unknown,
    /// At most this long ago, counted from before the check was sent: too large an age refunds too little, too small an age
    /// may refund what a later window has spent.
    Ago(Micros),
    /// As `Ago`, but these limits have refilled already, whatever their algorithm says: each as rule name and limit name, in
    /// the form of [`Settlement::Refunded`](crate::Settlement::Refunded). For replaying what another limiter did.
    AgoExcept(Micros, &'d [String]),
    /// From a decision of any node of the fleet, kept by its caller. If the request touched several buckets, none is refunded
    /// once the first has refilled.
    Token(SpentToken),
    /// By this decision of this limiter.
    By(&'d Decision),
    /// By this decision of this limiter, which was charged more since: when its quota was to be back is no longer known.
    /// Until a full bucket would have refilled, all of it counts as spent.
    Charged(&'d Decision),
}

/// Hits to refund to one cell of a request.
#[derive(Clone, Copy)]
pub(crate) struct Return {
    /// Index into the request's spends.
    pub(crate) place: usize,
    pub(crate) hits: Hits,
    pub(crate) age: Micros,
}

impl Limiter {
    /// Reads a spent token: the text form of a decision's [`spent`](crate::Decision::spent).
    ///
    /// # Errors
    /// When it is not a spent token, or is from a time that this node's clock has not reached.
    pub fn read_spent(&self, text: &[u8]) -> Result<SpentToken, SpentTokenError> {
        SpentToken::read(text, self.clock.now())
    }

    /// Refunds `amount` hits to every cell that `request` would touch. Its own costs are ignored. Hits that have refilled
    /// since they were spent are not refunded again. A shadow rule that would have refused has spent nothing: it gets nothing
    /// back if `spent` is the decision, which says so, and `amount` otherwise.
    ///
    /// # Errors
    /// When no rule has the domain, or the store did not answer. A failed refund may have been applied, across several store
    /// nodes also in part: [`Limiter::refund_once`] is safe to retry.
    pub async fn refund(
        &self,
        request: &CheckRequest<'_>,
        amount: Hits,
        spent: SpentAt<'_>,
    ) -> Result<(), RefundError> {
        self.give_back(request, amount, spent, None).await
    }

    /// An idempotent [`Limiter::refund`]: called again with the same `id` within a minute, on any node, it refunds only what
    /// the earlier calls did not.
    ///
    /// # Errors
    /// As [`Limiter::refund`]. It may then be retried.
    pub async fn refund_once(
        &self,
        request: &CheckRequest<'_>,
        amount: Hits,
        spent: SpentAt<'_>,
        id: RefundId,
    ) -> Result<(), RefundError> {
        self.give_back(request, amount, spent, Some(id)).await
    }

    async fn give_back(
        &self,
        request: &CheckRequest<'_>,
        amount: Hits,
        spent: SpentAt<'_>,
        id: Option<RefundId>,
    ) -> Result<(), RefundError> {
        let snapshot = self.rules.load_full();
        let matched = Matched::of(&snapshot, request, self)?;
        let plan = matched.plan(request, &self.lease_ids);
        let (all, before) = (self.returns(&plan, amount, spent), self.spent_before(spent));
        if all.is_empty() {
            return Ok(());
        }
        let back = plan.refundable().filter(|place| !all.iter().any(|one| one.place == *place));
        let back: Vec<String> = back.map(|place| plan.name_of(place)).collect();
        let refunded = match &self.remote {
            // An in-process store never loses an answer, so no refund is retried.
            None => self.store.refund(&refunds(&plan, &all)).answer().await?,
            Some(remote) => {
                // This node's own cells come last: if the store fails, nothing was refunded here that a retry would repeat.
                let cells = plan.cells(&self.hasher);
                let due = self.due_at_store(&cells, &all);
                let refunded = remote.refund(stored(&cells, &all, &due), id).await;
                self.gave_back(&cells, &all);
                let refunded = refunded?;
                remote.refund_soon(self.give_back_here(&cells, &all, &due));
                refunded
            }
        };
        let how = Settlement::Refunded(request, amount, before, &back);
        self.settled(how, (matched.asked_at, refunded.at), matched.matches());
        Ok(())
    }

    /// How long ago hits were spent, if known.
    pub(crate) fn spent_before(&self, spent: SpentAt<'_>) -> SpentBefore {
        if matches!(spent, SpentAt::Unknown) { None } else { self.age_of(spent) }
    }

    /// How long ago hits were spent; `None` if they were not, because the request was refused.
    pub(crate) fn age_of(&self, spent: SpentAt<'_>) -> Option<Micros> {
        match spent {
            SpentAt::Unknown => Some(Micros::ZERO),
            SpentAt::Ago(age) | SpentAt::AgoExcept(age, _) => Some(age),
            SpentAt::Token(token) => Some(token.age(self.clock.now())),
            SpentAt::By(decision) | SpentAt::Charged(decision) => {
                decision.allowed.then(|| self.clock.now().since(decision.asked_at()))
            }
        }
    }

    /// What to refund to which cell: nothing to those whose quota is back since.
    fn returns(&self, plan: &Plan<'_>, hits: Hits, spent: SpentAt<'_>) -> SmallVec<[Return; 4]> {
        let age = match self.age_of(spent) {
            Some(age) if !matches!(spent, SpentAt::By(decision) if decision.source == Source::FallbackOpen) => {
                age
            }
            // A refused or fail-open request was not counted: there is nothing to refund.
            _ => return SmallVec::new(),
        };
        let is_back = |place: usize| match spent {
            SpentAt::Unknown => false,
            SpentAt::By(decision) | SpentAt::Charged(decision)
                if plan.is_of(decision) && plan.is_of_refusing_shadow(place, decision) =>
            {
                true
            }
            SpentAt::By(decision) if plan.is_of(decision) => {
                plan.reset_after(place, decision).is_some_and(|reset_after| age >= reset_after)
            }
            SpentAt::Token(token) if token.is_refilled(age) && plan.spends[place].touch.limit.refills() => {
                true
            }
            SpentAt::AgoExcept(_, back) if back.contains(&plan.name_of(place)) => true,
            // A bucket is idle again by then at the latest, whatever was in it. The store handles windows.
            SpentAt::By(_)
            | SpentAt::Charged(_)
            | SpentAt::Token(_)
            | SpentAt::Ago(_)
            | SpentAt::AgoExcept(..) => {
                let limit = plan.spends[place].touch.limit;
                limit.refills()
                    && refill_time(limit, plan.overdraft(place)).is_some_and(|refill| age >= refill)
            }
        };
        // What a limit did not spend, because its cap left it out, does not go back.
        let unspent = match spent {
            SpentAt::Token(token) => token.unspent(),
            SpentAt::By(decision) | SpentAt::Charged(decision) => {
                decision.spent().map_or(Hits::ZERO, |token| token.unspent())
            }
            SpentAt::Unknown | SpentAt::Ago(_) | SpentAt::AgoExcept(..) => Hits::ZERO,
        };
        let due = |place: usize| match plan.spends[place].touch.ask.over {
            Over::Cap => hits.saturating_sub(unspent),
            Over::Refuse | Over::Debt | Over::Charge => hits,
        };
        let places = plan.refundable().filter(|place| !is_back(*place) && due(*place) > Hits::ZERO);
        places.map(|place| Return { place, hits: due(place), age }).collect()
    }

    /// Restores the full quota of every cell that `request` would touch.
    ///
    /// # Errors
    /// When no rule has the domain, or the store did not answer.
    pub async fn reset(&self, request: &CheckRequest<'_>) -> Result<(), RefundError> {
        let snapshot = self.rules.load_full();
        let matched = Matched::of(&snapshot, request, self)?;
        let plan = matched.plan(request, &self.lease_ids);
        let cells = plan.cells(&self.hasher);
        let mut last = Stamped::default();
        for ask in &cells.asks {
            last = match &self.remote {
                None => self.store.reset(ask.spend.cell, ask.limit()).answer().await?,
                Some(_) if let Some(home) = self.home(ask) => {
                    self.local.set(ask.spend, 0);
                    let reset = home.reset(home.home_cell(ask)).await;
                    home.local.purses.forget(ask.hash);
                    reset?
                }
                Some(remote) => {
                    self.local.set(ask.spend, 0);
                    let reset = remote.reset(ask.cell()).await;
                    self.forget(&cells);
                    reset?
                }
            };
        }
        self.settled(Settlement::Reset(request), (matched.asked_at, last.at), matched.matches());
        Ok(())
    }

    /// The hits that the store must refund per cell: all for an exact cell, none for a local one, for an approximate one
    /// those that were reported.
    fn due_at_store(&self, cells: &Cells<'_>, returns: &[Return]) -> SmallVec<[Hits; 4]> {
        let due = |Return { place, hits, age }: &Return| match self.local.coordination(&cells.asks[*place]) {
            Coordination::Exact => *hits,
            Coordination::Local | Coordination::Escrow | Coordination::Eventual { .. } => Hits::ZERO,
            Coordination::Approximate { .. } => {
                let hash = cells.asks[*place].hash;
                let unreported = self.local.approximate.unreported_since(hash, self.clock.now().back(*age));
                Hits::new(hits.get().saturating_sub(unreported))
            }
        };
        returns.iter().map(due).collect()
    }

    /// Refunds what this node counted itself, which is what is not `due` at the store. Returns what was reported to the store
    /// since then: that must be refunded there after all.
    fn give_back_here(&self, cells: &Cells<'_>, returns: &[Return], due: &[Hits]) -> Refunds {
        let mut late = Refunds::new();
        for (Return { place, hits, age }, due) in returns.iter().zip(due) {
            let ask = &cells.asks[*place];
            match self.local.coordination(ask) {
                Coordination::Exact => {}
                Coordination::Local => self.local.refund(ask.spend, *hits, *age),
                Coordination::Escrow | Coordination::Eventual { .. } => {
                    self.local.refund(ask.spend, *hits, *age);
                    self.refund_home(ask, *hits, *age);
                }
                Coordination::Approximate { .. } => {
                    self.local.refund(ask.spend, *hits, *age);
                    let here = Hits::new(hits.get() - due.get());
                    let spent_at = self.clock.now().back(*age);
                    let put_back = self.local.approximate.put_back(ask.hash, here, spent_at);
                    if put_back < here.get() {
                        let left = Hits::new(here.get() - put_back);
                        late.push((ask.cell(), left, *age));
                    }
                }
            }
        }
        late
    }

    /// Refunds what home counted; in the background, because it is far away.
    fn refund_home(&self, ask: &CellAsk<'_>, hits: Hits, age: Micros) {
        let Some(home) = self.home(ask) else { return };
        let spent_at = self.clock.now().back(age);
        let unreported = home.local.approximate.put_back(ask.hash, hits, spent_at);
        let reported = Hits::new(hits.get() - unreported);
        if reported > Hits::ZERO {
            // Prepaid hits were charged before they were spent.
            let age = age + home.local.purses.charged_before(ask);
            home.refund_soon(std::iter::once((home.home_cell(ask), reported, age)).collect());
        }
    }

    fn forget(&self, cells: &Cells<'_>) {
        let now = self.clock.now();
        cells.asks.iter().for_each(|ask| self.deny_cache.forget(ask.hash, now));
    }

    /// Updates the deny cache: these hits went back, or may have.
    fn gave_back(&self, cells: &Cells<'_>, all: &[Return]) {
        let now = self.clock.now();
        for Return { place, hits, .. } in all {
            self.deny_cache.gave_back(cells.asks[*place].hash, *hits, now);
        }
    }
}

/// How long a bucket takes to refill from its deepest debt.
fn refill_time(limit: &Limit, overdraft: Hits) -> Option<Micros> {
    let (quota, window) = (u128::from(limit.quota()), limit.quota_window()?);
    let most = u128::from(window.get()) * (quota + u128::from(overdraft.get()));
    Some(Micros::new(u64::try_from(most.div_ceil(quota.max(1))).unwrap_or(u64::MAX)))
}

fn refunds<'p>(plan: &Plan<'p>, returns: &[Return]) -> SmallVec<[Refund<'p>; 4]> {
    let refund = |Return { place, hits, age }: &Return| {
        let spend = &plan.spends[*place];
        Refund { cell: spend.cell, limit: spend.touch.limit, hits: *hits, age: *age, id: None }
    };
    returns.iter().map(refund).collect()
}

/// The part of `returns` that goes to the store.
fn stored(cells: &Cells<'_>, returns: &[Return], due: &[Hits]) -> Refunds {
    let due = returns.iter().zip(due).filter(|(_, due)| **due > Hits::ZERO);
    due.map(|(one, due)| (cells.asks[one.place].cell(), *due, one.age)).collect()
}
