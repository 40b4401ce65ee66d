//! Concurrency: how many requests are being served at once, as leases that end by themselves if their holder dies.
//!
//! A request takes one lease whatever its cost: cost says how much work it is, not how many of it there are. The lease's
//! id is made by the node that asks, so that an acquire of unknown fate can still be released.

use std::collections::VecDeque;
use std::num::NonZeroU64;

use crate::error::LimitError;
use crate::fixed_window::check_window;
use crate::outcome::Outcome;
use crate::sliding_log::RefusedHits;
use crate::units::{Hits, Micros, Timestamp};

/// At most `limit` requests at once, each for `ttl` unless renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Concurrency {
    limit: u64,
    ttl: Micros,
    refused: RefusedHits,
}

/// Names one lease; random, made by the node that asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub NonZeroU64);

/// One request being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name; none for a refused request that counts all the same.
    pub id: Option<LeaseId>,
    /// When it ends if it is not renewed.
    pub expires_at: Timestamp,
}

/// The requests being served, those that end first in front.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leases(VecDeque<Lease>);

impl Leases {
    /// Leases remembered, whether or not they have ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no lease is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Memory it takes outside itself.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.0.capacity() * size_of::<Lease>()
    }

    fn position(&self, id: LeaseId) -> Option<usize> {
        self.0.iter().position(|lease| lease.id == Some(id))
    }

    fn insert(&mut self, lease: Lease) {
        let at = self.0.partition_point(|other| other.expires_at <= lease.expires_at);
        self.0.insert(at, lease);
    }
}

/// The largest limit; a release searches the leases of one key one by one.
const MOST_LEASES: u64 = 100_000;

impl Concurrency {
    /// At most `limit` requests at once, each for `ttl` unless renewed; a limit of zero is a ban.
    ///
    /// # Errors
    /// When the limit is above 100,000 or the time to live makes no sense.
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

    /// What refused requests do.
    #[must_use]
    pub fn refused_hits(&self) -> RefusedHits {
        self.refused
    }

    /// What this limit would say at `now`. Changes nothing. `retry_after` is when the first lease ends if its holder
    /// died; a release may come sooner.
    #[must_use]
    pub fn look(&self, leases: &Leases, now: Timestamp, hits: Hits) -> Outcome {
        let ends: &VecDeque<Lease> = &leases.0;
        let gone = ends.partition_point(|lease| lease.expires_at <= now);
        let live = (ends.len() - gone) as u64;
        // A lease that outlives `ttl` was written by a clock that has since stepped back, or under a longer `ttl`.
        let ends_in = |lease: &Lease| lease.expires_at.since(now).min(self.ttl);
        let reset_after = ends.back().filter(|_| live > 0).map_or(Micros::ZERO, ends_in);
        let remaining = self.limit.saturating_sub(live);
        if remaining > 0 {
            return match hits {
                Hits::ZERO => Outcome::admitted(remaining, reset_after),
                _ => Outcome::admitted(remaining - 1, self.ttl),
            };
        }
        let in_the_way = usize::try_from(live - self.limit).expect("bounded by the largest limit");
        let retry_after = (self.limit > 0).then(|| ends_in(&ends[gone + in_the_way]));
        Outcome::refused(retry_after, 0, reset_after)
    }

    /// Takes a lease named `id` if there is room; taking it again renews it.
    pub fn acquire(&self, leases: &mut Leases, now: Timestamp, hits: Hits, id: LeaseId) -> Outcome {
        self.tidy(leases, now);
        let held = leases.position(id).and_then(|at| leases.0.remove(at));
        let outcome = self.look(leases, now, hits);
        let keep = if outcome.is_admitted() && hits > Hits::ZERO {
            Some(Lease { id: Some(id), expires_at: now + self.ttl })
        } else {
            held
        };
        keep.into_iter().for_each(|lease| leases.insert(lease));
        outcome
    }

    /// Gives the lease `id` another `ttl`; false if it has ended.
    pub fn renew(&self, leases: &mut Leases, now: Timestamp, id: LeaseId) -> bool {
        self.tidy(leases, now);
        let Some(at) = leases.position(id) else { return false };
        leases.0.remove(at);
        leases.insert(Lease { id: Some(id), expires_at: now + self.ttl });
        true
    }

    /// Ends the lease `id`; false if it had ended already.
    pub fn release(&self, leases: &mut Leases, now: Timestamp, id: LeaseId) -> bool {
        self.tidy(leases, now);
        leases.position(id).and_then(|at| leases.0.remove(at)).is_some()
    }

    /// Notes `count` requests that were refused, each as a lease that nobody can release. The newest `limit` of those are
    /// all that need remembering.
    pub fn note_refused(&self, leases: &mut Leases, now: Timestamp, count: u32) {
        self.tidy(leases, now);
        let most = self.limit.max(1);
        let added = u64::from(count).min(most);
        let nameless = leases.0.iter().filter(|lease| lease.id.is_none()).count() as u64;
        let mut too_many = (nameless + added).saturating_sub(most);
        leases.0.retain(|lease| {
            let drop = lease.id.is_none() && too_many > 0;
            too_many -= u64::from(drop);
            !drop
        });
        for _ in 0..added {
            leases.insert(Lease { id: None, expires_at: now + self.ttl });
        }
    }

    /// Drops what has ended, and shortens what outlives `ttl` (see [`Concurrency::look`]).
    fn tidy(&self, leases: &mut Leases, now: Timestamp) {
        let gone = leases.0.partition_point(|lease| lease.expires_at <= now);
        leases.0.drain(..gone);
        let latest = now + self.ttl;
        for lease in leases.0.iter_mut().rev().take_while(|lease| lease.expires_at > latest) {
            lease.expires_at = latest;
        }
        if leases.0.is_empty() {
            leases.0.shrink_to_fit();
        }
    }
}
