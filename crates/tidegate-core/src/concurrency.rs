//! Concurrency: the number of requests in progress, as leases that expire automatically if their holder dies.
//!
//! A request takes one lease whatever its cost: cost measures work, not the number of requests. The calling node creates
//! the lease ID, so that it can release an acquire of unknown fate. Renew and release touch only that lease: a caller with
//! another `ttl`, because the rule changed, ends nobody else's.
//!
//! If refused requests count, each is kept for `ttl` in a log next to the leases, and takes up room like a lease.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use crate::algorithm::{Algorithm, Behaviour, Facts, Transitions};
use crate::bytes::{Reader, append_number, append_times};
use crate::cell::{Cell, CellForm, CounterBits};
use crate::error::LimitError;
use crate::fixed_window::check_window;
use crate::limit::{Charge, Limit};
use crate::outcome::Outcome;
use crate::request::Ask;
use crate::sliding_log::{Log, RefusedHits, SlidingLog};
use crate::units::{Hits, Micros, Timestamp};

/// At most `limit` requests at once, each for `ttl` unless renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    ttl: Micros,
    refused: RefusedHits,
}

/// Identifies a lease; random, created by the calling node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub NonZeroU64);

/// One request in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    id: LeaseId,
    /// When it ends unless renewed.
    expires_at: Timestamp,
}

/// The requests in progress, and the refused ones that count.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases {
    /// Ordered by expiry, earliest first.
    held: VecDeque<Lease>,
    /// The longest TTL under which any of them was taken: an end further ahead was written before the clock stepped back.
    longest_ttl: Micros,
    refused: Log,
}

impl Leases {
    /// Stored leases and refused requests, expired or not.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held.len() + self.refused.len()
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its heap memory.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.held.capacity() * size_of::<Lease>() + self.refused.heap_bytes()
    }

    pub(crate) fn append_bytes(&self, bytes: &mut Vec<u8>) {
        append_number(bytes, self.longest_ttl.get());
        append_times(bytes, self.held.iter().map(|lease| lease.expires_at));
        self.held.iter().for_each(|lease| bytes.extend(lease.id.0.get().to_le_bytes()));
        self.refused.append_bytes(bytes);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let longest_ttl = Micros::new(reader.number()?);
        let (mut ends, mut last) = (Vec::new(), Timestamp::default());
        for _ in 0..reader.count(1)? {
            last = reader.time_after(last)?;
            ends.push(last);
        }
        let lease = |expires_at| {
            let id = LeaseId(NonZeroU64::new(reader.word()?)?);
            Some(Lease { id, expires_at })
        };
        let held = ends.into_iter().map(lease).collect::<Option<_>>()?;
        Some(Leases { held, longest_ttl, refused: Log::read(reader)? })
    }

    /// Removes the lease `id` and returns its expiry.
    fn take(&mut self, id: LeaseId) -> Option<Timestamp> {
        let at = self.held.iter().position(|lease| lease.id == id)?;
        self.held.remove(at).map(|lease| lease.expires_at)
    }

    fn insert(&mut self, id: LeaseId, expires_at: Timestamp) {
        let at = self.held.partition_point(|other| other.expires_at <= expires_at);
        self.held.insert(at, Lease { id, expires_at });
    }

    /// The number of leases expired at `now`.
    fn ended(&self, now: Timestamp) -> usize {
        self.held.partition_point(|lease| lease.expires_at <= now)
    }

    /// The time until the `index`th lease ends.
    fn ends_in(&self, index: usize, now: Timestamp) -> Micros {
        self.held[index].expires_at.since(now).min(self.longest_ttl)
    }
}

/// The largest limit; a release searches the leases of one key linearly.
const MOST_LEASES: u64 = 100_000;

impl Concurrency {
    /// At most `limit` requests at once, each for `ttl` unless renewed; zero is a ban.
    ///
    /// # Errors
    /// When the limit is above 100,000 or the TTL is invalid.
    pub fn new(limit: u64, ttl: Micros, refused: RefusedHits) -> Result<Self, LimitError> {
        check_window(ttl).map_err(|error| LimitError { field: "ttl", ..error })?;
        if limit > MOST_LEASES {
            let problem = format!("{limit} requests at once cannot be followed");
            return Err(LimitError::new("limit", problem, format!("use at most {MOST_LEASES}")));
        }
        Ok(Concurrency { limit, ttl, refused })
    }

    /// The most requests at once.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How long a lease lives unless renewed.
    #[must_use]
    pub fn ttl(&self) -> Micros {
        self.ttl
    }

    /// How refused requests count.
    #[must_use]
    pub fn refused_hits(&self) -> RefusedHits {
        self.refused
    }

    /// The outcome at `now`. Changes nothing. `retry_after` is when there is room if no holder renews or releases; a
    /// release may come sooner.
    #[must_use]
    pub fn look(&self, leases: &Leases, now: Timestamp, hits: Hits) -> Outcome {
        let ended = leases.ended(now);
        let held = leases.held.len() - ended;
        let refused = self.refused_live(leases, now);
        let live = (held + refused) as u64;

        let last_held = held.checked_sub(1).map(|last| leases.ends_in(ended + last, now));
        let last_refused = refused.checked_sub(1).map(|last| self.refused_ends_in(leases, now, last));
        let reset_after = last_held.max(last_refused).unwrap_or(Micros::ZERO);
        let remaining = self.limit.saturating_sub(live);
        if remaining > 0 {
            return match hits {
                Hits::ZERO => Outcome::admitted(remaining, reset_after),
                _ => Outcome::admitted(remaining - 1, reset_after.max(self.ttl)),
            };
        }
        let retry_after = (self.limit > 0).then(|| {
            let in_the_way = usize::try_from(live - self.limit).expect("bounded by the largest limit");
            let held_ends_in = |index| leases.ends_in(ended + index, now);
            let refused_ends_in = |index| self.refused_ends_in(leases, now, index);
            nth_smallest(in_the_way, (held, held_ends_in), (refused, refused_ends_in))
        });
        Outcome::refused(retry_after, 0, reset_after)
    }

    /// Takes lease `id` if there is room; taking it again renews it.
    pub fn acquire(&self, leases: &mut Leases, now: Timestamp, hits: Hits, id: LeaseId) -> Outcome {
        self.tidy(leases, now);
        let held = leases.take(id);
        let outcome = self.look(leases, now, hits);
        if outcome.is_admitted() && hits > Hits::ZERO {
            self.grant(leases, now, id);
        } else if let Some(expires_at) = held {
            leases.insert(id, expires_at);
        }
        outcome
    }

    /// Extends the lease `id` by `ttl`; false if it has ended.
    pub fn renew(&self, leases: &mut Leases, now: Timestamp, id: LeaseId) -> bool {
        let is_held = leases.take(id).is_some_and(|expires_at| expires_at > now);
        if is_held {
            self.grant(leases, now, id);
        }
        is_held
    }

    /// Ends the lease `id`; false if it had ended already.
    pub fn release(&self, leases: &mut Leases, now: Timestamp, id: LeaseId) -> bool {
        let is_held = leases.take(id).is_some_and(|expires_at| expires_at > now);
        if leases.held.is_empty() {
            leases.held.shrink_to_fit();
        }
        is_held
    }

    /// Records `count` refused requests, each as if in progress for `ttl`. Only the newest `limit` of those are kept.
    pub fn note_refused(&self, leases: &mut Leases, now: Timestamp, count: u32) {
        self.refused_log().enter(&mut leases.refused, now, Hits::new(count.into()));
    }

    fn grant(&self, leases: &mut Leases, now: Timestamp, id: LeaseId) {
        if leases.held.is_empty() {
            leases.longest_ttl = Micros::ZERO;
        }
        leases.longest_ttl = leases.longest_ttl.max(self.ttl);
        leases.insert(id, now + self.ttl);
    }

    /// Drops expired leases, and shortens those that outlive the longest TTL. Refused requests from the future, written
    /// before the clock stepped back, move to now.
    pub(crate) fn tidy(&self, leases: &mut Leases, now: Timestamp) {
        if self.refused == RefusedHits::Count {
            self.refused_log().rebase(&mut leases.refused, now);
        }
        leases.held.drain(..leases.ended(now));
        let latest = now + leases.longest_ttl;
        for lease in leases.held.iter_mut().rev().take_while(|lease| lease.expires_at > latest) {
            lease.expires_at = latest;
        }
        if leases.held.is_empty() {
            leases.held.shrink_to_fit();
        }
    }

    /// Refused requests as a log: at most `limit` within `ttl`.
    fn refused_log(&self) -> SlidingLog {
        SlidingLog::of_refused(self.limit.max(1), self.ttl)
    }

    fn refused_live(&self, leases: &Leases, now: Timestamp) -> usize {
        match self.refused {
            RefusedHits::Forget => 0,
            RefusedHits::Count => self.refused_log().live(&leases.refused, now),
        }
    }

    fn refused_ends_in(&self, leases: &Leases, now: Timestamp, index: usize) -> Micros {
        self.refused_log().leaves_in(&leases.refused, now, index)
    }
}

/// The `n`th smallest, from 0, of two ascending sequences, each given by length and element function.
fn nth_smallest(
    n: usize,
    (one_len, one): (usize, impl Fn(usize) -> Micros),
    (other_len, other): (usize, impl Fn(usize) -> Micros),
) -> Micros {
    // How many of the `n` smallest come from the first.
    let (mut low, mut high) = (n.saturating_sub(other_len), n.min(one_len));
    while low < high {
        let middle = low + (high - low) / 2;
        if one(middle) < other(n - middle - 1) { low = middle + 1 } else { high = middle }
    }
    let candidates = [(low < one_len).then(|| one(low)), (n - low < other_len).then(|| other(n - low))];
    candidates.into_iter().flatten().min().expect("there are more than n in all")
}

impl Concurrency {
    pub(crate) fn in_leases<T>(&self, cell: &mut Cell, step: impl FnOnce(&mut Leases) -> T) -> T {
        let mut leases = match std::mem::take(cell) {
            Cell::Leases(leases) => leases,
            Cell::Vacant | Cell::Counter(_) | Cell::Log(_) => Leases::default(),
        };
        let answer = step(&mut leases);
        *cell = if leases.is_empty() { Cell::Vacant } else { Cell::Leases(leases) };
        answer
    }
}

impl Behaviour for Concurrency {
    #[inline]
    fn facts(&self) -> Facts<'_> {
        Facts {
            algorithm: Algorithm::Concurrency,
            form: CellForm::Leases { most: self.limit },
            quota: self.limit,
            period: None,
            numbers: [self.limit, self.ttl.get(), 0],
            meter: None,
            refused: self.refused,
            min_interval: Micros::ZERO,
            lease_ttl: Some(self.ttl),
            takes_refunds: false,
            ends_at_once: false,
        }
    }

    fn quota_window(&self) -> Option<Micros> {
        None
    }

    fn divided(&self, nodes: u64) -> Result<Self, LimitError> {
        Concurrency::new(self.limit.div_ceil(nodes), self.ttl, self.refused)
    }

    fn paid_ahead(&self, _: Micros) -> Option<Result<Self, LimitError>> {
        // A place is held, not spent.
        None
    }

    fn strictest(&self, other: &Limit) -> Option<Result<Limit, LimitError>> {
        let Limit::Concurrency(other) = other else { return None };
        let (limit, ttl) = (self.limit.min(other.limit), self.ttl.max(other.ttl));
        Some(Concurrency::new(limit, ttl, self.refused.strictest(other.refused)).map(Limit::from))
    }
}

impl Transitions for Concurrency {
    fn spend(&self, cell: &mut Cell, now: Timestamp, ask: Ask) -> Outcome {
        self.in_leases(cell, |leases| match ask.lease {
            Some(id) => self.acquire(leases, now, ask.hits, id),
            None => {
                self.tidy(leases, now);
                self.look(leases, now, ask.hits)
            }
        })
    }

    fn outlook(&self, cell: &Cell, now: Timestamp, ask: Ask) -> Outcome {
        match cell {
            Cell::Leases(leases) => self.look(leases, now, ask.hits),
            Cell::Vacant | Cell::Counter(_) | Cell::Log(_) => self.look(&Leases::default(), now, ask.hits),
        }
    }

    /// A lease is released by its ID.
    fn put_back(&self, _: &mut Cell, _: Timestamp, _: Hits, _: Micros) {}

    /// What is over holds no lease.
    fn take_anyway(&self, _: &mut Cell, _: Timestamp, _: Charge) {}

    fn note(&self, cell: &mut Cell, now: Timestamp, _: Hits, count: u32) {
        self.in_leases(cell, |leases| self.note_refused(leases, now, count));
    }

    fn bring_to_now(&self, cell: &mut Cell, now: Timestamp) {
        self.in_leases(cell, |leases| self.tidy(leases, now));
    }

    #[inline]
    fn step_bits(
        &self,
        _: Option<CounterBits>,
        _: Timestamp,
        _: Hits,
    ) -> Option<(Outcome, Option<CounterBits>)> {
        None
    }
}
