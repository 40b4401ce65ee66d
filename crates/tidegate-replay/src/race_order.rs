//! Who came first of those that were under way at once.
//!
//! A line of our own log says when the store decided it, or at least how long its answer took, and so within which time. Where leases
//! come and go, and the store does not say when, or decided several at the same microsecond, that matters: whoever asks a moment before another releases is refused. Of all orders that the times allow, one is chosen
//! that agrees with what the log says was decided, as far as one is found. Under other rules than those of then, it is one order of
//! many that may have been.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::hash::BuildHasher as _;

use foldhash::quality::FixedState;
use smallvec::SmallVec;
use tidegate_core::{Micros, Timestamp};

use crate::latest::LatestMap;
use crate::parse::{Recorded, Tells};

/// The most lines that wait, and the longest that an answer is taken to be under way: slower ones are rare, and hold all others up.
const MOST_WAITING: usize = 256;
pub(crate) const LONGEST: Micros = Micros::from_millis(100);
/// The most leases of which it is remembered who took them.
const MOST_TAKEN: usize = 65_536;
/// How far clocks may be apart: within a process, and of nodes that are kept in time.
const APART: Micros = Micros::new(50);
/// Of how many of each kind it is tried whether they agree.
const MOST_TRIED: usize = 16;
/// After so many lines the longest time under way of those before no longer counts.
const FORGET_AFTER: u32 = 4_096;

/// Lines that were under way at once.
pub(crate) struct RaceOrder {
    /// In the order of their times.
    waiting: VecDeque<UnderWay>,
    latest: Timestamp,
    /// Half of the longest time under way: of the latest lines, and of as many before those.
    longest_half: [Micros; 2],
    since_forgotten: u32,
    /// Who took the leases that are not released yet, of the latest ones.
    taken: LatestMap<Who>,
    /// Places of lines that may be next: kept for its memory.
    may_be_next: Vec<usize>,
}

/// A line, and within which time it happened.
struct UnderWay {
    recorded: Box<Recorded<'static>>,
    who: Who,
    at: Timestamp,
    from: Timestamp,
    until: Timestamp,
}

/// Hashes of the attributes of a request.
type Who = SmallVec<[u64; 6]>;

/// Whether more lines may come.
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
    /// How many lines wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Lets a line wait.
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

    /// The next line; none while another may come that was first. `passes` says whether a request would pass at a time, which is
    /// not later than that of the next line.
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

    /// Whether these may be requests of one call to the store. They stand in an order that it may have decided them in.
    fn are_of_one_call(&self, places: &[usize]) -> bool {
        let mut lines = places.iter().map(|place| &self.waiting[*place].recorded);
        lines.all(|line| line.own.decided_at.is_some() && line.tells == Tells::Request)
    }

    /// A lease is not released before it was taken.
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

    /// The place of the one to be played. Who was refused changes little, so it goes as soon as it agrees with the log; but not
    /// before a request of its caller that came earlier and passes, which a penalty or a counted refusal would keep out. Of the
    /// others the one that ends first goes; where it does not agree yet, what may help it goes before. Nothing goes earlier than
    /// it must, for it might take the place of one that had no choice.
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
            // Somebody took what it lacked.
            who_takes(first)
        } else if is_such(first, false) {
            // Somebody gave back what it got.
            let likely = || self.most_alike(first, places, |place| line(place).tells != Tells::Request);
            if passes(line(first)) { None } else { likely().first().copied() }
        } else {
            // Whoever was refused meanwhile was so before this was given back.
            let refused = self.most_alike(first, places, |place| is_such(place, true));
            refused.first().and_then(|refused| who_takes(*refused))
        };
        helps.unwrap_or(first)
    }

    /// Those that fit and have attributes in common with the one at `first`, most of them first: they are likely of one caller.
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

    /// Whether all that one says of itself the other says too.
    fn is_same_caller(&self, one: usize, other: usize) -> bool {
        let (one, other) = (self.who(one), self.who(other));
        let (fewer, more) = if one.len() <= other.len() { (one, other) } else { (other, one) };
        fewer.iter().all(|pair| more.contains(pair))
    }

    /// Who is at a place: of a lease, who took it.
    fn who(&self, place: usize) -> &Who {
        let UnderWay { recorded, who, .. } = &self.waiting[place];
        let taken = recorded.own.lease.filter(|_| recorded.tells != Tells::Request);
        taken.and_then(|mark| self.taken.get(mark)).unwrap_or(who)
    }

    /// Remembers who took a lease, until it is released.
    fn remember(&mut self, line: &UnderWay) {
        let Some(mark) = line.recorded.own.lease else { return };
        match line.recorded.tells {
            Tells::Request => self.taken.insert(mark, line.who.clone()),
            Tells::Released if line.recorded.own.under.is_none() => drop(self.taken.remove(mark)),
            _ => {}
        }
    }
}
