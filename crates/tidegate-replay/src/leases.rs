//! Leases of requests in progress, and until when each is held, as far as the log says.
//!
//! An access log says how long a request took. The decision log has the release or renewal of a lease as a line with the
//! lease's mark; without one, the lease ends by its time to live, in the store. A request that was refused at the time has
//! no recorded end: it is held for the average time of the leases under the same limit so far.
//!
//! Memory is bounded by the leases held at once, and by a number of releases without a known lease.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use foldhash::quality::RandomState;
use smallvec::SmallVec;
use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::LeaseToken;

use crate::callers::Side;
use crate::latest::LatestMap;
use crate::parse::Recorded;

/// The most releases without a known lease that are remembered, the latest ones: the clocks of nodes differ, so a
/// release may be logged before its admission.
const MOST_EARLY: usize = 16_384;

/// The most ended leases that are still tracked, in addition to as many as are open.
const MOST_ENDED: usize = 1_024;

/// The leases held.
pub(crate) struct Leases {
    /// Leases with a known end.
    held: BinaryHeap<Held>,
    /// The number of leases taken so far.
    taken: u64,
    /// Leases whose end is a later line, by their marks.
    open: HashMap<u64, Open, RandomState>,
    /// The earliest times at which those expire.
    expiring: BinaryHeap<Reverse<(Timestamp, u64)>>,
    early: LatestMap<()>,
    /// How long leases were held, by limit.
    lengths: HashMap<u64, Lengths, RandomState>,
    pub(crate) counts: LeaseCounts,
}

/// How the ends of leases were determined.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LeaseCounts {
    /// Unknown: they count as released at once.
    pub(crate) untimed: u64,
    /// By the average time of others.
    pub(crate) supposed: u64,
    /// By their time to live.
    pub(crate) expired: u64,
    /// The most requests that one line with a lease stands for, if more than one.
    pub(crate) one_in: u32,
}

/// A lease with a known end.
pub(crate) struct Held {
    pub(crate) until: Timestamp,
    /// Breaks ties between equal ends.
    sequence: u64,
    pub(crate) side: Side,
    pub(crate) token: LeaseToken,
}

/// The leases of a line whose end is a later line.
pub(crate) struct Open {
    since: Timestamp,
    /// When the last of them expires.
    until: Timestamp,
    pub(crate) tokens: SmallVec<[(Side, LeaseToken); 1]>,
}

/// The total time that leases were held, and their number.
#[derive(Default)]
struct Lengths {
    leases: u64,
    total_us: u128,
}

/// What to do with a lease that was just taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Hold it.
    Held,
    /// Release it at once: nothing is known about its end.
    DoneAtOnce,
}

/// Which leases of a line are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holds {
    /// This one, as recorded.
    AsRecorded,
    /// None: it is one of many that the line stands for, which came at other times.
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
    /// Records a lease that `recorded` took.
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
        // Released leases stay in the queue until their time to live is over, which may be long.
        if self.expiring.len() > 2 * self.open.len() + MOST_ENDED {
            self.expiring.retain(|Reverse((_, mark))| self.open.contains_key(mark));
        }
    }

    /// How long leases under the same limit were held on average; `None` if none has ended yet.
    fn usual(&self, token: &LeaseToken) -> Option<Micros> {
        let lengths = self.lengths.get(&token.limit_mark())?;
        let usual = lengths.total_us / u128::from(lengths.leases);
        Some(Micros::new(u64::try_from(usual).unwrap_or(u64::MAX)))
    }

    /// The next lease with a known end by `at`.
    pub(crate) fn pop_until(&mut self, at: Timestamp) -> Option<Held> {
        self.held.peek().filter(|held| held.until <= at)?;
        self.held.pop()
    }

    /// Drops the leases that expired before `at`; the store has, too.
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

    /// The leases released at `at`; `None` if the admission was not seen, or was refused here.
    pub(crate) fn released(&mut self, mark: u64, at: Timestamp) -> Option<Open> {
        let open = self.end(mark, at);
        if open.is_none() {
            self.early.insert(mark, ());
        }
        open
    }

    /// The leases of a line that are not yet released.
    pub(crate) fn held_by(&self, mark: u64) -> &[(Side, LeaseToken)] {
        self.open.get(&mark).map_or(&[], |open| &open.tokens)
    }

    /// The leases renewed at `at`.
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
    /// Reversed: the heap returns the one that ends first.
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.until, other.sequence).cmp(&(self.until, self.sequence))
    }
}
