//! Orders requests that were in flight together.
//!
//! A line of the decision log has the store's time, or at least how long the answer took, and so an interval in which it was
//! decided. If leases come and go, and the store time is missing or equal for several, the order matters: a request just
//! before another one's release is refused. Of all orders that the times allow, this picks one that agrees with the logged
//! decisions, as far as one is found. Under other rules than those of the time, it is one of many possible orders.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;
use smallvec::SmallVec;
use tidegate_core::{Micros, Timestamp};

use crate::latest::LatestMap;
use crate::parse::{Recorded, Tells};

/// The most lines waiting, and the longest time that an answer counts as in flight: slower ones are rare, and would hold up
/// all others.
const MOST_WAITING: usize = 256;
pub(crate) const LONGEST: Micros = Micros::from_millis(100);
/// The most leases whose callers are remembered.
const MOST_TAKEN: usize = 65_536;
/// The largest clock difference: within a process, and between synchronized nodes.
const APART: Micros = Micros::new(50);
/// The most candidates of each kind that are tried.
const MOST_TRIED: usize = 16;
/// After this many lines, the longest time in flight of earlier ones no longer counts.
const FORGET_AFTER: u32 = 4_096;

/// Lines that were in flight together.
pub(crate) struct RaceOrder {
    /// In time order.
    waiting: VecDeque<UnderWay>,
    latest: Timestamp,
    /// Half of the longest time in flight: of the latest lines, and of as many before those.
    longest_half: [Micros; 2],
    since_forgotten: u32,
    /// The callers of the latest leases that are not yet released.
    taken: LatestMap<Who>,
    /// Scratch space: the indexes of lines that may be next.
    may_be_next: Vec<usize>,
}

/// A line, and the interval in which it happened.
struct UnderWay {
    recorded: Box<Recorded<'static>>,
    who: Who,
    at: Timestamp,
    from: Timestamp,
    until: Timestamp,
}

/// Hashes of a request's attributes, to recognize its caller.
type Who = SmallVec<[u64; 6]>;

/// Whether more lines may follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum More {
    MayCome,
    None,
}

impl Default for RaceOrder {
    fn default() -> Self {
        RaceOrder {
            waiting: VecDeque::new(),
            latest: Timestamp::default(),
            longest_half: [Micros::default(); 2],
            since_forgotten: 0,
            taken: LatestMap::new(MOST_TAKEN),
            may_be_next: Vec::new(),
        }
    }
}

impl RaceOrder {
    /// The number of lines waiting.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Queues a line.
    pub(crate) fn put(&mut self, recorded: Recorded<'static>) {
        let under_way = match recorded.own.decided_at {
            Some(_) => Micros::ZERO,
            None => recorded.own.answered_in.unwrap_or_default().min(LONGEST) + APART + APART,
        };
        let (at, half) = (recorded.when(), Micros::new(under_way.get() / 2));
        self.latest = self.latest.max(at);
        self.longest_half[0] = self.longest_half[0].max(half);
        self.since_forgotten += 1;
        if self.since_forgotten >= FORGET_AFTER {
            (self.longest_half, self.since_forgotten) = ([half, self.longest_half[0]], 0);
        }
        let (from, until) = (at.back(half), at + half);
        let hash = |(name, value): &(_, _)| FixedState::default().hash_one((name, value));
        let who = recorded.attributes.iter().map(hash).collect();
        let place = self.waiting.iter().rposition(|other| other.at <= at);
        let line = UnderWay { recorded: Box::new(recorded), who, at, from, until };
        self.waiting.insert(place.map_or(0, |place| place + 1), line);
    }

    fn longest_half(&self) -> Micros {
        self.longest_half[0].max(self.longest_half[1])
    }

    /// The next line; `None` while an earlier one may still follow. `passes` says whether a request would be admitted at a
    /// time that is not later than that of the next line.
    pub(crate) fn next(
        &mut self,
        more: More,
        mut passes: impl FnMut(&Recorded<'_>, Timestamp) -> bool,
    ) -> Option<Box<Recorded<'static>>> {
        let mut first_end = self.waiting.front()?.until;
        // No line ends before its time, and times only grow.
        for line in self.waiting.iter().take_while({
            let end = first_end;
            move |line| line.at <= end
        }) {
            first_end = first_end.min(line.until);
        }
        let all_are_here = self.latest > first_end + self.longest_half();
        if more == More::MayCome && !all_are_here && self.waiting.len() < MOST_WAITING {
            return None;
        }
        let mut places = std::mem::take(&mut self.may_be_next);
        places.clear();
        let begins_by = first_end + self.longest_half();
        let may_begin = self.waiting.iter().take_while(|line| line.at <= begins_by);
        places
            .extend(may_begin.enumerate().filter(|(_, line)| line.from <= first_end).map(|(place, _)| place));
        let look_at = self.waiting[places[0]].at;
        if self.are_of_one_call(&places) {
            places.truncate(1);
        } else if places.len() > 1 {
            self.leave_out_releases_of_those_that_wait(&mut places);
            places.sort_by_key(|place| self.waiting[*place].until);
        }
        let next = match places[..] {
            [only] => only,
            _ => self.choose(&places, &mut |recorded| passes(recorded, look_at)),
        };
        self.may_be_next = places;
        let next = self.waiting.remove(next)?;
        self.remember(&next);
        Some(next.recorded)
    }

    /// Whether these may be requests of one store call. Their order is one in which the store may have decided them.
    fn are_of_one_call(&self, places: &[usize]) -> bool {
        let mut lines = places.iter().map(|place| &self.waiting[*place].recorded);
        lines.all(|line| line.own.decided_at.is_some() && line.tells == Tells::Request)
    }

    /// A lease is not released before it is taken.
    fn leave_out_releases_of_those_that_wait(&self, places: &mut Vec<usize>) {
        let lease = |place: &usize, kind: fn(Tells) -> bool| {
            let recorded = &self.waiting[*place].recorded;
            recorded.own.lease.filter(|_| kind(recorded.tells))
        };
        let taken = |place: &usize| lease(place, |tells| tells == Tells::Request);
        if !places.iter().any(|place| taken(place).is_some()) {
            return;
        }
        let marks: SmallVec<[u64; 8]> = places.iter().filter_map(taken).collect();
        places.retain(|place| {
            lease(place, |tells| tells != Tells::Request).is_none_or(|mark| !marks.contains(&mark))
        });
    }

    /// The index of the line to replay. A refusal changes little, so it goes as soon as it agrees with the log; but not
    /// before an earlier admitted request of its caller, which a penalty or a counted refusal would keep out. Of the others,
    /// the one that ends first goes; if it does not agree yet, lines that may help it go before. Nothing goes earlier than
    /// it must, because it might take the place of one that had no choice.
    fn choose(&self, places: &[usize], passes: &mut impl FnMut(&Recorded<'_>) -> bool) -> usize {
        let line = |place: usize| &self.waiting[place].recorded;
        let is_such = |place: usize, refused: bool| {
            line(place).tells == Tells::Request && line(place).refused == Some(refused)
        };
        let mut refused = places.iter().copied().filter(|place| is_such(*place, true)).take(MOST_TRIED);
        if let Some(agrees) = refused.find(|place| !passes(line(*place))) {
            let came_before = |other: usize| {
                is_such(other, false)
                    && self.waiting[other].at <= self.waiting[agrees].at
                    && self.is_same_caller(other, agrees)
            };
            let mut before = places.iter().copied().filter(|other| came_before(*other)).take(MOST_TRIED);
            return before.find(|other| passes(line(*other))).unwrap_or(agrees);
        }
        let first = places[0];
        let mut who_takes = |whom: usize| {
            let likely = self.most_alike(whom, places, |place| is_such(place, false));
            likely.into_iter().take(MOST_TRIED).find(|place| passes(line(*place)))
        };
        let helps = if is_such(first, true) {
            // Another request took what this one lacked.
            who_takes(first)
        } else if is_such(first, false) {
            // Another line gave back what this one got.
            let likely = || self.most_alike(first, places, |place| line(place).tells != Tells::Request);
            if passes(line(first)) { None } else { likely().first().copied() }
        } else {
            // A request that was refused meanwhile was refused before this was given back.
            let refused = self.most_alike(first, places, |place| is_such(place, true));
            refused.first().and_then(|refused| who_takes(*refused))
        };
        helps.unwrap_or(first)
    }

    /// Matching lines that share attributes with the one at `first`, most shared first: they are probably of one caller.
    fn most_alike(
        &self,
        first: usize,
        places: &[usize],
        fits: impl Fn(usize) -> bool,
    ) -> SmallVec<[usize; 8]> {
        let own = self.who(first);
        let in_common = |place: usize| own.iter().filter(|pair| self.who(place).contains(pair)).count();
        let fitting = places.iter().copied().filter(|place| fits(*place));
        let mut likely: SmallVec<[(usize, usize); 8]> =
            fitting.map(|place| (in_common(place), place)).collect();
        likely.sort_by_key(|(in_common, _)| Reverse(*in_common));
        likely.into_iter().map(|(_, place)| place).collect()
    }

    /// Whether every attribute of one is also an attribute of the other.
    fn is_same_caller(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.who(one), self.who(other));
        let (fewer, more) = if one.len() <= other.len() { (one, other) } else { (other, one) };
        fewer.iter().all(|pair| more.contains(pair))
    }

    /// The caller of a line; for a lease, the caller that took it.
    fn who(&self, place: usize) -> &Who {
        let UnderWay { recorded, who, .. } = &self.waiting[place];
        let taken = recorded.own.lease.filter(|_| recorded.tells != Tells::Request);
        taken.and_then(|mark| self.taken.get(mark)).unwrap_or(who)
    }

    /// Remembers the caller of a lease until its release.
    fn remember(&mut self, line: &UnderWay) {
        let Some(mark) = line.recorded.own.lease else { return };
        match line.recorded.tells {
            Tells::Request => self.taken.insert(mark, line.who.clone()),
            Tells::Released if line.recorded.own.under.is_none() => drop(self.taken.remove(mark)),
            _ => {}
        }
    }
}
