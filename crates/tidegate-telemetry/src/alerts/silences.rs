//! What operators do not want to hear of for a while: one list for the whole fleet, which every node can change.
//!
//! The list lives in the store. A change is made here at once, and joins the fleet's list at the next look; while the store
//! does not answer, when there is most to silence, it waits. Where the store forgot the list, the nodes remember it.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::book::Alert;
use super::kinds::Kind;

/// Silences of a fleet at once: who knows of so many takes no more. Of what nodes take at the same moment, or while the store is
/// away, those hold that join the fleet's list first.
pub const MOST_SILENCES: usize = 100;

/// Silences that were ended here and may still be in the fleet's list, which is bounded, or be in that of an earlier release.
const MOST_ENDED: usize = 10 * MOST_SILENCES;

/// What an operator does not want to hear of, until when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Silence {
    /// Its number.
    #[serde(default)]
    pub id: u64,
    /// Of this kind; of all where there is none.
    #[serde(default)]
    pub kind: Option<Kind>,
    /// With this subject; with all where there is none.
    #[serde(default)]
    pub subject: Option<String>,
    /// Until then, in seconds since 1970.
    pub until_s: u64,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// Who made it; empty where a release before this one did.
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
    /// Made here, and not in the fleet's list yet.
    added: Vec<u64>,
    /// Ended here, and perhaps still in the fleet's list: as many as that has, the latest last.
    ended: VecDeque<u64>,
}

impl Silences {
    /// Adds one, and gives it a number; none where there are too many.
    pub fn add(&mut self, silence: Silence) -> Option<u64> {
        if self.list.len() >= MOST_SILENCES {
            return None;
        }
        // Nodes number alike without asking each other; a program in a browser must be able to read it.
        let id = (getrandom::u64().unwrap_or(silence.until_s) >> 12).max(1);
        self.list.push(Silence { id, ..silence });
        self.added.push(id);
        Some(id)
    }

    /// Ends one. False where there is none of that number.
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

    /// What is silenced at `now_s`.
    pub fn at(&mut self, now_s: u64) -> &[Silence] {
        self.list.retain(|silence| now_s < silence.until_s);
        &self.list
    }

    /// The fleet's list with the changes that were made here; `theirs` is none where the fleet has none.
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

    /// This is now the fleet's list. What was changed here since `joined` was asked for waits for the next time. Where the list is
    /// full, what was added here and is not in it is over: it is given back, to be told of.
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
