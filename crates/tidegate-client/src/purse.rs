//! One key's purse, and what the server last said of it. Pure: time is a parameter.

use tidegate_core::{Micros, Outcome, Purse, Returned, Timestamp, Verdict};

use crate::wire::Taken;

/// A purse is filled for this long ahead.
const TERM: Micros = Micros::from_millis(200);
/// A refusal is repeated for so long at most: hits may have come back.
const REPEATED: Micros = Micros::from_secs(1);
/// So long before a refusal ends, and after a take that got less than it wanted, the next take may find more.
pub(crate) const SOON: Micros = Micros::from_millis(50);
/// How long a key is asked for that a rule does not lend.
const ASKED_FOR: Micros = Micros::from_secs(5);
/// How long a key is asked for that the server cannot read.
const NOT_READ_FOR: Micros = Micros::from_secs(30);
/// How long an unused key is kept.
const KEPT_FOR: Micros = Micros::from_secs(5);
/// Hits reach the server within this time, or are not returned.
const TRANSIT: Micros = Micros::from_secs(1);
/// A take is at most an eighth of what remained: a purse's order is half of its share among so many holders.
const SHARERS: u64 = 4;

/// What a purse says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// It has paid.
    Paid,
    /// The server refused a moment ago, and would again.
    Refused(Option<Micros>),
    /// The server must be asked.
    Unknown,
}

/// The state of a key.
#[derive(Debug)]
pub(crate) struct KeyState {
    purse: Purse,
    used: Timestamp,
    /// How often the server was asked since this began: of a key that is seen once it is not known whether it comes again.
    asked: u32,
    /// A take is under way.
    is_taking: bool,
    /// Until when the last refusal is repeated, and when it says that a hit passes.
    refused: Option<(Timestamp, Option<Timestamp>)>,
    /// Until when each request is asked for.
    not_lent: Option<Timestamp>,
    /// What the last take got, for how long; and what a client without a server made of it since.
    got: (u64, Micros),
    alone: (Timestamp, u64),
}

/// Whether to send a message soon: it is for more hits, or not.
pub(crate) type WantsMore = bool;

impl KeyState {
    pub(crate) fn new(now: Timestamp) -> Self {
        KeyState {
            purse: Purse::new(TERM, now),
            used: now,
            asked: 0,
            is_taking: false,
            refused: None,
            not_lent: None,
            got: (0, Micros::ZERO),
            alone: (now, 0),
        }
    }

    /// Pays for a request of `hits`, or says why not.
    pub(crate) fn pay(&mut self, now: Timestamp, hits: u64) -> (Found, WantsMore) {
        self.used = now;
        if self.not_lent.is_some_and(|until| now < until) || hits == 0 {
            return (Found::Unknown, false);
        }
        if self.purse.spend(now, hits) {
            return (Found::Paid, !self.is_taking && self.purse.is_due(now));
        }
        if let Some((until, passes)) = self.refused.filter(|(until, _)| now < *until) {
            let is_over_soon = until - now <= SOON;
            if is_over_soon {
                self.purse.wait_for(hits);
            }
            return (Found::Refused(passes.map(|at| at.since(now))), is_over_soon && !self.is_taking);
        }
        self.asked = self.asked.saturating_add(1);
        if self.asked > 1 {
            self.purse.wait_for(hits);
        }
        (Found::Unknown, self.asked > 1 && !self.is_taking)
    }

    /// How many hits to take now; 0 for none.
    pub(crate) fn wants(&mut self, now: Timestamp) -> u64 {
        let is_lent = self.not_lent.is_none_or(|until| until <= now);
        let is_refused = self.refused.is_some_and(|(until, _)| now < until && until - now > SOON);
        if !is_lent || is_refused || self.is_taking || !self.purse.is_due(now) {
            return 0;
        }
        let hits = self.purse.order(now, SHARERS);
        self.is_taking = hits > 0;
        hits
    }

    /// The server, asked for `wanted` hits at `asked`, said this.
    pub(crate) fn taken(&mut self, (asked, now): (Timestamp, Timestamp), wanted: u64, told: &Taken) {
        self.is_taking = false;
        if told.ask.is_some() {
            self.not_lent = Some(now + ASKED_FOR);
            return;
        }
        let granted = told.granted.min(wanted);
        let held = Micros::from_millis(told.held_ms);
        let reset_after = told.reset_after_ms.map_or(held, Micros::from_millis);
        // Where no limit counts, nothing bounds the next take.
        let remaining = told.remaining.unwrap_or(u64::MAX);
        let verdict = Verdict::Admitted { delay: Micros::ZERO };
        let outcome = Outcome { verdict, remaining, reset_after: reset_after.max(held) };
        self.purse.receive(asked, granted, &outcome, Some(held));
        if granted > 0 {
            self.got = (granted, held);
        }
        self.refused = match granted {
            0 => Some(refusal(now, told.retry_after_ms)),
            few if few < wanted => Some((now + SOON, Some(now + SOON))),
            _ => None,
        };
    }

    /// The server refuses messages that name this key.
    pub(crate) fn not_read(&mut self, now: Timestamp) {
        self.is_taking = false;
        self.not_lent = Some(now + NOT_READ_FOR);
    }

    /// Nobody answered.
    pub(crate) fn not_taken(&mut self) {
        self.is_taking = false;
    }

    /// The server, asked for one hit, refused it.
    pub(crate) fn refused(&mut self, now: Timestamp, retry_after_ms: Option<u64>) {
        self.refused = Some(refusal(now, retry_after_ms));
    }

    /// Decides without a server: as many hits for each time that they may be held as the last take got.
    pub(crate) fn alone(&mut self, now: Timestamp, hits: u64) -> bool {
        let (got, held) = self.got;
        if now.since(self.alone.0) >= held {
            self.alone = (now, 0);
        }
        let fits = got.saturating_sub(self.alone.1) >= hits;
        if fits {
            self.alone.1 += hits;
        }
        fits
    }

    /// Takes out what is to be returned.
    pub(crate) fn returns(&mut self, now: Timestamp) -> Vec<Returned> {
        self.purse.returns(now, TRANSIT)
    }

    /// Takes out everything.
    pub(crate) fn empty(&mut self, now: Timestamp) -> Vec<Returned> {
        self.purse.empty(now, TRANSIT)
    }

    pub(crate) fn is_unused(&self, now: Timestamp) -> bool {
        now.since(self.used) >= KEPT_FOR && self.purse.holds() == 0 && !self.is_taking
    }
}

/// One without an end is heard of again, too.
fn refusal(now: Timestamp, retry_after_ms: Option<u64>) -> (Timestamp, Option<Timestamp>) {
    let after = retry_after_ms.map(Micros::from_millis);
    let repeated = after.map_or(REPEATED, |after| after.min(REPEATED));
    (now + repeated, after.map(|after| now + after))
}
