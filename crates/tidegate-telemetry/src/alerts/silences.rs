//! Silences of alerts: one list for the whole fleet, which every node can change.
//!
//! The list is in the store. A change takes effect here at once, and joins the fleet's list at the next look; while the
//! store does not answer, which is when silences are needed most, it waits. If the store loses the list, the nodes restore
//! it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::active::Alert;
use super::kinds::Kind;

/// The most silences of a fleet: a node that knows of this many accepts no more. Of those added concurrently, or while the
/// store is unreachable, the first to join the fleet's list win.
pub const MOST_SILENCES: usize = 100;

/// Silences ended here that may still be in the fleet's list, which is bounded, or in that of an earlier release.
const MOST_ENDED: usize = 10 * MOST_SILENCES;

/// A silence of alerts until some time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Its id.
    #[serde(default)]
    pub id: u64,
    /// The kind of alerts; all if `None`.
    #[serde(default)]
    pub kind: Option<Kind>,
    /// The subject of alerts; all if `None`.
    #[serde(default)]
    pub subject: Option<String>,
    /// When it ends, in seconds since 1970.
    pub until_s: u64,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// Its author; empty from an earlier release.
    #[serde(default)]
    pub author: String,
}

impl Silence {
    pub(super) fn covers(&self, alert: &Alert, now_s: u64) -> bool {
        now_s < self.until_s
            && self.kind.is_none_or(|kind| kind == alert.kind)
            && self.subject.as_ref().is_none_or(|subject| *subject == alert.subject)
    }
}

/// The list, as far as this node knows it.
#[derive(Debug, Default)]
pub struct Silences {
    list: Vec<Silence>,
    /// Added here, and not yet in the fleet's list.
    added: Vec<u64>,
    /// Ended here, and perhaps still in the fleet's list; latest last.
    ended: VecDeque<u64>,
}

impl Silences {
    /// Adds one, and returns its id; `None` if there are too many.
    pub fn add(&mut self, silence: Silence) -> Option<u64> {
        if self.list.len() >= MOST_SILENCES {
            return None;
        }
        // Random, because nodes assign ids without coordination; short enough for JavaScript's numbers.
        let id = (getrandom::u64().unwrap_or(silence.until_s) >> 12).max(1);
        self.list.push(Silence { id, ..silence });
        self.added.push(id);
        Some(id)
    }

    /// Ends one. False if there is none with this id.
    pub fn end(&mut self, id: u64) -> bool {
        let before = self.list.len();
        self.list.retain(|silence| silence.id != id);
        self.added.retain(|added| *added != id);
        if self.list.len() == before {
            return false;
        }
        if self.ended.len() >= MOST_ENDED {
            self.ended.pop_front();
        }
        self.ended.push_back(id);
        true
    }

    /// The silences at `now_s`.
    pub fn at(&mut self, now_s: u64) -> &[Silence] {
        self.list.retain(|silence| now_s < silence.until_s);
        &self.list
    }

    /// The fleet's list with the changes made here; `theirs` is `None` if the fleet has no list.
    #[must_use]
    pub fn joined(&self, theirs: Option<Vec<Silence>>, now_s: u64) -> Vec<Silence> {
        let Some(mut joined) = theirs else { return self.list.clone() };
        joined.retain(|silence| now_s < silence.until_s && !self.ended.contains(&silence.id));
        let is_new = |silence: &&Silence| {
            self.added.contains(&silence.id) && !joined.iter().any(|other| other.id == silence.id)
        };
        let new: Vec<Silence> = self.list.iter().filter(is_new).cloned().collect();
        joined.extend(new);
        joined.truncate(MOST_SILENCES);
        joined
    }

    /// Takes `joined` as the fleet's list. Changes made here since [`Silences::joined`] wait for the next exchange. Silences
    /// added here that did not fit in a full list are dropped and returned, to be logged.
    pub fn agreed(&mut self, joined: Vec<Silence>) -> Vec<Silence> {
        let has = |id: &u64| joined.iter().any(|silence| silence.id == *id);
        self.added.retain(|id| !has(id));
        self.ended.retain(has);
        let mut unsent: Vec<Silence> =
            self.list.iter().filter(|silence| self.added.contains(&silence.id)).cloned().collect();
        self.list = joined;
        self.list.retain(|silence| !self.ended.contains(&silence.id));
        let room = MOST_SILENCES.saturating_sub(self.list.len()).min(unsent.len());
        let found_no_room = unsent.split_off(room);
        self.added.retain(|id| !found_no_room.iter().any(|silence| silence.id == *id));
        self.list.extend(unsent);
        found_no_room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until(until_s: u64) -> Silence {
        let (reason, author) = (String::new(), "alice".to_owned());
        Silence { id: 0, kind: None, subject: None, until_s, reason, author }
    }

    fn ids(list: &[Silence]) -> Vec<u64> {
        list.iter().map(|silence| silence.id).collect()
    }

    /// One exchange with the list in the store.
    fn exchange(node: &mut Silences, store: &mut Option<Vec<Silence>>, now_s: u64) -> usize {
        let joined = node.joined(store.clone(), now_s);
        *store = Some(joined.clone());
        node.agreed(joined).len()
    }

    #[test]
    fn what_one_node_adds_all_have_and_what_another_ends_none_has() {
        let (mut a, mut b, mut store) = (Silences::default(), Silences::default(), None);
        let id = a.add(until(100)).unwrap();
        exchange(&mut a, &mut store, 0);
        exchange(&mut b, &mut store, 0);
        assert_eq!(ids(b.at(0)), [id]);
        assert!(b.end(id) && !b.end(id));
        exchange(&mut b, &mut store, 1);
        exchange(&mut a, &mut store, 1);
        assert!(a.at(1).is_empty());
        assert_eq!(store, Some(vec![]));
    }

    #[test]
    fn a_silence_made_while_the_store_is_away_holds_here_and_joins_later() {
        let (mut a, mut b, mut store) = (Silences::default(), Silences::default(), None);
        let first = b.add(until(100)).unwrap();
        exchange(&mut b, &mut store, 0);
        let second = a.add(until(100)).unwrap();
        assert_eq!(ids(a.at(0)), [second], "before any exchange");
        exchange(&mut a, &mut store, 1);
        assert_eq!(ids(a.at(1)), [first, second]);
    }

    #[test]
    fn a_store_that_forgot_is_told_again_and_what_is_past_is_dropped() {
        let (mut a, mut store) = (Silences::default(), None);
        let id = a.add(until(100)).unwrap();
        exchange(&mut a, &mut store, 0);
        store = None;
        exchange(&mut a, &mut store, 1);
        assert_eq!(ids(store.as_deref().unwrap()), [id]);
        assert!(a.at(100).is_empty());
        exchange(&mut a, &mut store, 100);
        assert_eq!(store, Some(vec![]));
    }

    #[test]
    fn of_what_two_nodes_took_at_the_same_moment_a_hundred_hold_and_the_others_are_told_of() {
        let (mut a, mut b, mut store) = (Silences::default(), Silences::default(), None);
        for node in [&mut a, &mut b] {
            (0..80).for_each(|_| assert!(node.add(until(100)).is_some()));
        }
        assert_eq!(exchange(&mut a, &mut store, 0), 0);
        assert_eq!(exchange(&mut b, &mut store, 0), 60);
        assert_eq!(exchange(&mut a, &mut store, 0), 0);
        assert_eq!(exchange(&mut b, &mut store, 0), 0, "told once");
        assert_eq!((ids(a.at(0)), a.at(0).len()), (ids(b.at(0)), MOST_SILENCES));
        assert_eq!((a.add(until(100)), b.add(until(100))), (None, None));
    }

    #[test]
    fn silences_made_and_ended_again_and_again_while_the_store_is_away_take_bounded_memory() {
        let (mut a, mut store) = (Silences::default(), None);
        let kept = a.add(until(100)).unwrap();
        exchange(&mut a, &mut store, 0);
        for _ in 0..5_000 {
            let id = a.add(until(100)).unwrap();
            assert!(a.end(id));
        }
        assert!(a.ended.len() <= MOST_ENDED);
        assert!(a.end(kept));
        exchange(&mut a, &mut store, 1);
        assert_eq!((store, a.ended.len()), (Some(vec![]), 0), "what was ended last is ended for all");
    }

    #[test]
    fn there_is_a_bound_and_every_number_fits_a_browser() {
        let mut silences = Silences::default();
        let numbers: Vec<Option<u64>> = (0..=MOST_SILENCES).map(|_| silences.add(until(9))).collect();
        assert_eq!(numbers.iter().flatten().count(), MOST_SILENCES);
        assert!(numbers.iter().flatten().all(|id| *id < 1 << 53));
    }
}
