//! Who came first of those that were under way at once.
//!
//! A line of our own log says how long its answer took, and so within which time it was decided, but not when. Where leases come and
//! go, that matters: whoever asks a moment before another releases is refused. Of all orders that the times allow, one is chosen
//! that agrees with what the log says was decided, as far as one is found. Under other rules than those of then, it is one order of
//! many that may have been.

use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use foldhash::quality::RandomState;
use tidegate_core::{Micros, Timestamp};

use crate::parse::{Attributes, Recorded, Tells};

/// The most lines that wait, and the longest that an answer is taken to be under way: slower ones are rare, and hold all others up.
const MOST_WAITING: usize = 256;
const LONGEST: Micros = Micros::from_millis(100);
/// The most leases of which it is remembered who took them.
const MOST_TAKEN: usize = 65_536;
/// How far clocks may be apart: within a process, and of nodes that are kept in time.
const APART: Micros = Micros::new(50);
/// Of how many of each kind it is tried whether they agree.
const MOST_TRIED: usize = 16;

/// Lines that were under way at once.
#[derive(Default)]
pub(crate) struct Sequence {
    waiting: Vec<UnderWay>,
    /// The latest line, and the longest time under way.
    latest: Timestamp,
    longest: Micros,
    /// Who took the leases that are not released yet, of the latest ones.
    taken: HashMap<u64, Attributes<'static>, RandomState>,
    taken_in_turn: VecDeque<u64>,
}

/// A line, and within which time it happened.
struct UnderWay {
    recorded: Recorded<'static>,
    from: Timestamp,
    until: Timestamp,
}

impl Sequence {
    /// Lets a line wait.
    pub(crate) fn put(&mut self, recorded: Recorded<'static>) {
        let under_way = recorded.own.answered_in.unwrap_or_default().min(LONGEST) + APART + APART;
        let half = Micros::new(under_way.get() / 2);
        self.latest = self.latest.max(recorded.at);
        self.longest = self.longest.max(under_way);
        let (from, until) = (recorded.at.back(half), recorded.at + half);
        self.waiting.push(UnderWay { recorded, from, until });
    }

    /// The next line; none while another may come that was first. `passes` says whether a request would pass now.
    pub(crate) fn next(
        &mut self,
        is_end: bool,
        mut passes: impl FnMut(&Recorded<'_>) -> bool,
    ) -> Option<Recorded<'static>> {
        let first_end = self.waiting.iter().map(|line| line.until).min()?;
        let all_are_here = self.latest > first_end + self.longest;
        if !is_end && !all_are_here && self.waiting.len() < MOST_WAITING {
            return None;
        }
        let mut may_be_next: Vec<usize> =
            (0..self.waiting.len()).filter(|place| self.waiting[*place].from <= first_end).collect();
        may_be_next.sort_by_key(|place| self.waiting[*place].until);
        let next = match may_be_next[..] {
            [only] => only,
            _ => self.choose(&may_be_next, &mut passes),
        };
        let next = self.waiting.remove(next).recorded;
        self.remember(&next);
        Some(next)
    }

    /// The place of the one to be played. Who was refused changes nothing, so it goes as soon as it agrees with the log. Of the
    /// others the one that ends first goes; where it does not agree yet, what may help it goes before. Nothing goes earlier than
    /// it must, for it might take the place of one that had no choice.
    fn choose(&self, places: &[usize], passes: &mut impl FnMut(&Recorded<'_>) -> bool) -> usize {
        let line = |place: usize| &self.waiting[place].recorded;
        let is_such = |place: usize, refused: bool| {
            line(place).tells == Tells::Request && line(place).refused == Some(refused)
        };
        let mut refused = places.iter().copied().filter(|place| is_such(*place, true)).take(MOST_TRIED);
        if let Some(agrees) = refused.find(|place| !passes(line(*place))) {
            return agrees;
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
    fn most_alike(&self, first: usize, places: &[usize], fits: impl Fn(usize) -> bool) -> Vec<usize> {
        let own = self.who(first);
        let in_common = |place: usize| own.iter().filter(|pair| self.who(place).contains(pair)).count();
        let fitting = places.iter().copied().filter(|place| fits(*place));
        let mut likely: Vec<(usize, usize)> = fitting.map(|place| (in_common(place), place)).collect();
        likely.sort_by_key(|(in_common, _)| Reverse(*in_common));
        likely.into_iter().map(|(_, place)| place).collect()
    }

    /// Who is at a place: of a lease, who took it.
    fn who(&self, place: usize) -> &Attributes<'static> {
        let recorded = &self.waiting[place].recorded;
        let taken = recorded.own.lease.filter(|_| recorded.tells != Tells::Request);
        taken.and_then(|mark| self.taken.get(&mark)).unwrap_or(&recorded.attributes)
    }

    /// Remembers who took a lease, until it is released.
    fn remember(&mut self, recorded: &Recorded<'static>) {
        let Some(mark) = recorded.own.lease else { return };
        match recorded.tells {
            Tells::Request => {
                self.taken.insert(mark, recorded.attributes.clone());
                self.taken_in_turn.push_back(mark);
                if self.taken_in_turn.len() > MOST_TAKEN
                    && let Some(oldest) = self.taken_in_turn.pop_front()
                {
                    self.taken.remove(&oldest);
                }
            }
            Tells::Released if recorded.own.under.is_none() => drop(self.taken.remove(&mark)),
            _ => {}
        }
    }
}
