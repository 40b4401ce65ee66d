//! Leases of requests that are not done yet: until when each is held, as far as the log says.
//!
//! An access log says how long a request took. Our own says when a lease was released or renewed, on a line of its own with
//! the lease's mark; where none comes, the lease ends by its time to live, in the store. A request that was refused when it
//! happened has no end to go by: it is held for as long as leases under the same limit were on average so far.
//!
//! What is kept is bounded by the leases that are held at once, and by a number of releases that no lease was found for.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::LeaseToken;

use crate::callers::Side;
use crate::latest::LatestMap;
use crate::parse::Recorded;

/// Releases whose lease has not been seen, of which the last are remembered: clocks of nodes differ, so that a release may be
/// written before the admission.
const MOST_EARLY: usize = 16_384;

/// Leases that have ended and are not forgotten yet, beside as many as are open.
const MOST_ENDED: usize = 1_024;

/// Leases that are held.
pub(crate) struct Leases {
    /// Those whose end is known.
    held: BinaryHeap<Held>,
    /// How many there have been.
    taken: u64,
    /// Those whose end the log is yet to tell, by their marks.
    open: HashMap<u64, Open, RandomState>,
    /// When those end by themselves at the earliest.
    expiring: BinaryHeap<Reverse<(Timestamp, u64)>>,
    early: LatestMap<()>,
    /// How long leases were held, by limit.
    lengths: HashMap<u64, Lengths, RandomState>,
    pub(crate) counts: LeaseCounts,
}

/// How it is known when leases ended.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseCounts {
    /// By nothing: they count as done at once.
    pub(crate) untimed: u64,
    /// By how long others were held.
    pub(crate) supposed: u64,
    /// By their time to live.
    pub(crate) expired: u64,
    /// The most requests that a line stands for which took a lease, where that is more than one.
    pub(crate) one_in: u32,
}

/// A lease whose end is known.
pub(crate) struct Held {
    pub(crate) until: Timestamp,
    /// Tells apart, and orders, what ends at the same time.
    sequence: u64,
    pub(crate) side: Side,
    pub(crate) token: LeaseToken,
}

/// What a line took whose end the log is yet to tell.
pub(crate) struct Open {
    since: Timestamp,
    /// When the last of it ends by itself.
    until: Timestamp,
    pub(crate) tokens: SmallVec<[(Side, LeaseToken); 1]>,
}

/// How long leases were held, together.
#[derive(Default)]
struct Lengths {
    leases: u64,
    total_us: u128,
}

/// What is to be done with a lease that was just taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It is held.
    Held,
    /// It has to be released at once: nobody knows how long it was held.
    DoneAtOnce,
}

/// What of a line's leases is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// This one, for as long as the log says.
    AsRecorded,
    /// None: it is one of many that a line stands for, which came at other times.
    Nothing,
}

impl Default for Leases {
    fn default() -> Self {
        Leases {
            held: BinaryHeap::new(),
            taken: 0,
            open: HashMap::default(),
            expiring: BinaryHeap::new(),
            early: LatestMap::new(MOST_EARLY),
            lengths: HashMap::default(),
            counts: LeaseCounts::default(),
        }
    }
}

impl Leases {
    /// Takes note of a lease that `recorded` took.
    pub(crate) fn take(
        &mut self,
        recorded: &Recorded<'_>,
        (at, side, holds): (Timestamp, Side, Holds),
        token: &LeaseToken,
    ) -> Taken {
        if holds == Holds::Nothing {
            self.counts.one_in = self.counts.one_in.max(recorded.weight);
            return Taken::DoneAtOnce;
        }
        match (recorded.took, recorded.own.lease) {
            (Some(took), _) => self.hold(at + took, side, token),
            (None, Some(mark)) if self.early.get(mark).is_some() => self.hold(at, side, token),
            (None, Some(mark)) => self.wait_for_end(mark, at, side, token),
            (None, None) => match self.usual(token) {
                Some(usual) => {
                    self.counts.supposed += u64::from(side == Side::Now);
                    self.hold(at + usual, side, token);
                }
                None => {
                    self.counts.untimed += u64::from(side == Side::Now);
                    return Taken::DoneAtOnce;
                }
            },
        }
        Taken::Held
    }

    fn hold(&mut self, until: Timestamp, side: Side, token: &LeaseToken) {
        self.taken += 1;
        self.held.push(Held { until, sequence: self.taken, side, token: token.clone() });
    }

    fn wait_for_end(&mut self, mark: u64, at: Timestamp, side: Side, token: &LeaseToken) {
        let until = at + token.longest_ttl();
        let open = self.open.entry(mark).or_insert_with(|| {
            self.expiring.push(Reverse((until, mark)));
            Open { since: at, until, tokens: SmallVec::new() }
        });
        open.until = open.until.max(until);
        open.tokens.push((side, token.clone()));
        // Those that were released stay there until their time to live is over, which may be long.
        if self.expiring.len() > 2 * self.open.len() + MOST_ENDED {
            self.expiring.retain(|Reverse((_, mark))| self.open.contains_key(mark));
        }
    }

    /// How long leases like this one were held so far; none where none has ended.
    fn usual(&self, token: &LeaseToken) -> Option<Micros> {
        let lengths = self.lengths.get(&token.limit_mark())?;
        let usual = lengths.total_us / u128::from(lengths.leases);
        Some(Micros::new(u64::try_from(usual).unwrap_or(u64::MAX)))
    }

    /// The next whose known end is by `at`.
    pub(crate) fn pop_until(&mut self, at: Timestamp) -> Option<Held> {
        self.held.peek().filter(|held| held.until <= at)?;
        self.held.pop()
    }

    /// Forgets those that have ended by themselves before `at`: the store has, too.
    pub(crate) fn expire_until(&mut self, at: Timestamp) {
        while let Some(Reverse((until, mark))) = self.expiring.peek().copied().filter(|next| next.0.0 < at) {
            self.expiring.pop();
            match self.open.get(&mark).map(|open| open.until) {
                // It was renewed meanwhile.
                Some(later) if later > until => self.expiring.push(Reverse((later, mark))),
                Some(_) => {
                    self.counts.expired += 1;
                    self.end(mark, until);
                }
                None => {}
            }
        }
    }

    /// What is released at `at`; none where the admission was not seen, or was refused here.
    pub(crate) fn released(&mut self, mark: u64, at: Timestamp) -> Option<Open> {
        let open = self.end(mark, at);
        if open.is_none() {
            self.early.insert(mark, ());
        }
        open
    }

    /// What a line took that is not released yet.
    pub(crate) fn held_by(&self, mark: u64) -> &[(Side, LeaseToken)] {
        self.open.get(&mark).map_or(&[], |open| &open.tokens)
    }

    /// What is renewed at `at`.
    pub(crate) fn renewed(&mut self, mark: u64, at: Timestamp) -> Option<&Open> {
        let open = self.open.get_mut(&mark)?;
        let longest = open.tokens.iter().map(|(_, token)| token.longest_ttl()).max();
        open.until = open.until.max(at + longest.unwrap_or_default());
        Some(open)
    }

    fn end(&mut self, mark: u64, at: Timestamp) -> Option<Open> {
        let open = self.open.remove(&mark)?;
        for (_, token) in &open.tokens {
            let lengths = self.lengths.entry(token.limit_mark()).or_default();
            lengths.leases += 1;
            lengths.total_us += u128::from(at.since(open.since).get());
        }
        Some(open)
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    /// The one that ends first is the greatest: a heap gives that one.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.until, other.sequence).cmp(&(self.until, self.sequence))
    }
}
