//! Puts lines of access logs in the order of their times.
//!
//! A server writes a line when a request ends, so a long request stands behind shorter ones that came later. Decided in the
//! order of the lines, it would count at their time, and bunches of requests would be refused that never were one. Lines
//! are held until later ones show that nothing earlier is likely to come: bounded in number and time, or the whole log.

use std::collections::VecDeque;

use tidegate_core::{Micros, Timestamp};

use crate::parse::Recorded;

/// The order in which lines of an access log are replayed. Decision logs have an order of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// As the lines come: a line earlier than the one before it counts at that one's time.
    AsRead,
    /// By time, as far as 16,384 lines or ten minutes of the log reach.
    #[default]
    Window,
    /// By time, over the whole log, which is held in memory: about half a kilobyte per line.
    Whole,
}

/// The most lines held, and the longest time.
const MOST_HELD: usize = 1 << 14;
const LONGEST: Micros = Micros::from_secs(600);

/// Lines that are held, and what was done with them.
#[derive(Debug, Default)]
pub(crate) struct Reorder {
    is_whole: bool,
    /// In the order of their times; lines of one time keep theirs.
    held: VecDeque<Box<Recorded<'static>>>,
    latest: Option<Timestamp>,
    /// Lines that came behind a later one, and the largest difference.
    pub(crate) moved: u64,
    pub(crate) most_moved: Micros,
}

impl Reorder {
    /// `None` if lines are replayed as they come.
    pub(crate) fn of(order: Order) -> Option<Self> {
        (order != Order::AsRead).then(|| Reorder { is_whole: order == Order::Whole, ..Reorder::default() })
    }

    /// The latest time of all lines.
    pub(crate) fn latest(&self) -> Option<Timestamp> {
        self.latest
    }

    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// Takes a line.
    pub(crate) fn put(&mut self, line: Box<Recorded<'static>>) {
        let at = line.when();
        match self.latest.filter(|latest| at < *latest) {
            Some(latest) => {
                self.moved += 1;
                self.most_moved = self.most_moved.max(latest.since(at));
            }
            None => self.latest = Some(at),
        }
        if self.is_whole || self.held.back().is_none_or(|last| last.when() <= at) {
            self.held.push_back(line);
        } else {
            let place = self.held.partition_point(|other| other.when() <= at);
            self.held.insert(place, line);
        }
    }

    /// The next line whose turn it certainly is, as far as is known.
    pub(crate) fn next(&mut self) -> Option<Box<Recorded<'static>>> {
        let first = self.held.front().filter(|_| !self.is_whole)?;
        let is_old = self.latest.is_some_and(|latest| first.when() + LONGEST < latest);
        if is_old || self.held.len() > MOST_HELD { self.held.pop_front() } else { None }
    }

    /// The lines that are left, in order.
    pub(crate) fn rest(&mut self) -> VecDeque<Box<Recorded<'static>>> {
        let mut rest = std::mem::take(&mut self.held);
        if self.is_whole {
            rest.make_contiguous().sort_by_key(|line| line.when());
        }
        rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(seconds: u64, cost: u64) -> Box<Recorded<'static>> {
        Box::new(Recorded { at: Timestamp::from_micros(seconds * 1_000_000), cost, ..Recorded::default() })
    }

    /// The seconds and costs of lines, in the order in which they come out.
    fn order(order: Order, lines: &[(u64, u64)]) -> (Vec<(u64, u64)>, u64, Micros) {
        let mut reorder = Reorder::of(order).unwrap();
        let mut out = Vec::new();
        let mut take = |line: Box<Recorded<'static>>| out.push((line.at.as_micros() / 1_000_000, line.cost));
        for (at, cost) in lines {
            reorder.put(line(*at, *cost));
            while let Some(next) = reorder.next() {
                take(next);
            }
        }
        reorder.rest().into_iter().for_each(take);
        (out, reorder.moved, reorder.most_moved)
    }

    #[test]
    fn lines_come_by_time_and_those_of_one_time_as_they_were() {
        let lines = [(10, 1), (12, 2), (11, 3), (12, 4), (10, 5)];
        let sorted = vec![(10, 1), (10, 5), (11, 3), (12, 2), (12, 4)];
        for how in [Order::Window, Order::Whole] {
            assert_eq!(order(how, &lines), (sorted.clone(), 2, Micros::from_secs(2)), "{how:?}");
        }
        assert!(Reorder::of(Order::AsRead).is_none());
    }

    #[test]
    fn what_is_behind_by_more_than_the_window_comes_late_unless_the_whole_log_is_held() {
        let lines = [(1_000, 1), (2_000, 2), (100, 3)];
        assert_eq!(order(Order::Window, &lines).0, [(1_000, 1), (100, 3), (2_000, 2)]);
        assert_eq!(order(Order::Whole, &lines).0, [(100, 3), (1_000, 1), (2_000, 2)]);
    }

    #[test]
    fn no_more_lines_are_held_than_the_bound() {
        let mut reorder = Reorder::of(Order::Window).unwrap();
        for number in 0..MOST_HELD + 10 {
            reorder.put(line(5, number as u64));
            while reorder.next().is_some() {}
            assert!(reorder.len() <= MOST_HELD);
        }
    }
}
