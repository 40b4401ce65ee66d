//! What is lent of each limit, and to which bucket of which stream.
//!
//! Plain code: it takes times and returns shares. A *holder* is one bucket of one Envoy.

use std::collections::HashMap;

use tidegate_core::{Claim, Lender, Lending, Micros, Share, Timestamp};

use super::terms::Terms;
use super::{LENT_FOR, MAX_SHARES};

/// How much a holder needs until its next report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// It is new: an equal part.
    Unknown,
    /// It passed and refused this much.
    Demand(u64),
    /// Exactly this, while the server does not know what else is lent.
    AtMost(u64),
}

/// A claim of a holder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    pub(super) holder: u64,
    /// The serial of the last share that the holder certainly applied.
    pub(super) confirmed: u64,
    /// What it was sent last.
    pub(super) current: u64,
    pub(super) need: Need,
    /// More than this it cannot use, because another limit gives it less at most.
    pub(super) most: u64,
}

/// The shares of one limit, for one key.
#[derive(Debug)]
struct LentLimit {
    terms: Terms,
    lender: Lender<u64>,
    /// What each holder needs, and when it said so.
    needs: HashMap<u64, (u64, Timestamp)>,
}

/// All limits that are lent.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    by_cell: HashMap<Box<[u8]>, LentLimit>,
    last_holder: u64,
    swept: Timestamp,
}

impl Budgets {
    /// A number for a holder that none had.
    pub(super) fn new_holder(&mut self) -> u64 {
        self.last_holder += 1;
        self.last_holder
    }

    /// A holder's share of the limit with these terms whose cell is `cell`. None if too many share it.
    pub(super) fn claim(&mut self, cell: &[u8], terms: Terms, ask: Ask, now: Timestamp) -> Option<Share> {
        if !self.by_cell.contains_key(cell) {
            self.by_cell.insert(cell.into(), LentLimit::new(terms));
        }
        let budget = self.by_cell.get_mut(cell).expect("it is there now");
        budget.terms = terms;
        budget.claim(ask, now)
    }

    /// Moves up to `part` of what is lent to `from` to `to`, which is one of them under another name.
    ///
    /// Nobody knows which one. So it is taken from what ends first: whichever it is, its own old part ends no earlier, and covers what
    /// the others still use. Where one of them has ended already it may be that one, and has nothing to hand over.
    pub(super) fn hand_over(&mut self, cell: &[u8], from: &[u64], to: u64, part: u64, now: Timestamp) {
        let Some(budget) = self.by_cell.get_mut(cell) else { return };
        budget.needs.retain(|holder, _| !from.contains(holder));
        let _capacity_comes_back = budget.lender.expire(now);
        let ends = |holder: &u64| budget.lender.lent_to(holder).map(|(_, ends)| (ends, *holder));
        let Some(mut by_end) = from.iter().map(ends).collect::<Option<Vec<_>>>() else { return };
        by_end.sort_unstable();
        by_end.iter().fold(part, |left, (_, holder)| left - budget.lender.hand_over(holder, &to, left));
    }

    /// Forgets limits of which nothing is lent any more; every few seconds is enough.
    pub(super) fn sweep(&mut self, now: Timestamp) {
        if now.since(self.swept) < SWEPT_EVERY {
            return;
        }
        self.swept = now;
        self.by_cell.retain(|_, budget| {
            let _capacity_comes_back = budget.lender.expire(now);
            budget.lender.holders() > 0
        });
    }

    /// The number of limits, and requests per second lent of all of them, in thousandths.
    pub(super) fn lent(&self) -> (usize, u64) {
        let lent = self.by_cell.values().map(|budget| budget.terms.per_second_milli(budget.lender.lent()));
        (self.by_cell.len(), lent.fold(0, u64::saturating_add))
    }
}

const SWEPT_EVERY: Micros = Micros::from_secs(10);

impl LentLimit {
    fn new(terms: Terms) -> Self {
        LentLimit {
            terms,
            lender: Lender::new(Lending::Capacity, LENT_FOR, MAX_SHARES),
            needs: HashMap::new(),
        }
    }

    fn claim(&mut self, ask: Ask, now: Timestamp) -> Option<Share> {
        let _capacity_comes_back = self.lender.expire(now);
        self.needs.retain(|_, (_, at)| now.since(*at) < LENT_FOR);
        let wants = self.wants(ask, now).min(ask.most);
        let claim = Claim { holds: ask.confirmed, used: 0, wants };
        let (share, _) = self.lender.renew(now, self.terms.capacity, None, &ask.holder, claim)?;
        Some(share)
    }

    /// What a holder should have: what it needs, and an equal part of what nobody needs, so that it can take more than it did
    /// before its next report.
    fn wants(&mut self, ask: Ask, now: Timestamp) -> u64 {
        let capacity = self.terms.capacity;
        let is_new = !self.needs.contains_key(&ask.holder);
        let holders = (self.needs.len() + usize::from(is_new)) as u64;
        let need = match ask.need {
            Need::AtMost(proven) => proven,
            Need::Unknown => capacity / holders,
            // A little for an idle one: its first requests come before its next report.
            Need::Demand(demand) => {
                demand.saturating_add(demand.div_ceil(4)).max(capacity.div_ceil(8 * holders))
            }
        };
        self.needs.insert(ask.holder, (need, now));
        if let Need::AtMost(proven) = ask.need {
            return proven;
        }
        let needed = self.needs.values().map(|(need, _)| *need).fold(0, u64::saturating_add);
        let wants = need.saturating_add(capacity.saturating_sub(needed) / holders);
        // Each change fills Envoy's bucket again.
        let differs = wants.abs_diff(ask.current);
        if differs.saturating_mul(10) <= ask.current { ask.current } else { wants }
    }
}
