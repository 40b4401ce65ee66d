//! A list of outcomes that allocates only for more than two cells.
//!
//! Most requests touch one cell. A single outcome can be returned in registers, where a list with room for several is
//! written to memory and copied (a fifth of the cost of an in-memory decision).

use std::ops::{Deref, DerefMut};

use tidegate_core::Outcome;

/// One outcome per spend, in order. Dereferences to a slice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcomes(List);

#[derive(Clone, Debug, PartialEq, Eq)]
enum List {
    One(Outcome),
    Two([Outcome; 2]),
    /// Zero, or more than two.
    Other(Vec<Outcome>),
}

impl Outcomes {
    /// An empty list.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Outcomes(List::Other(Vec::new()))
    }

    /// Adds the outcome of the next spend.
    #[inline]
    pub fn push(&mut self, outcome: Outcome) {
        match &mut self.0 {
            List::Other(none) if none.is_empty() => self.0 = List::One(outcome),
            List::One(first) => self.0 = List::Two([*first, outcome]),
            List::Two([first, second]) => self.0 = List::Other(many([*first, *second, outcome])),
            List::Other(many) => many.push(outcome),
        }
    }
}

#[cold]
fn many(first: [Outcome; 3]) -> Vec<Outcome> {
    let mut many = Vec::with_capacity(8);
    many.extend(first);
    many
}

impl Default for Outcomes {
    #[inline]
    fn default() -> Self {
        Outcomes::new()
    }
}

impl From<Outcome> for Outcomes {
    #[inline]
    fn from(outcome: Outcome) -> Self {
        Outcomes(List::One(outcome))
    }
}

impl Deref for Outcomes {
    type Target = [Outcome];

    #[inline]
    fn deref(&self) -> &[Outcome] {
        match &self.0 {
            List::One(one) => std::slice::from_ref(one),
            List::Two(two) => two,
            List::Other(other) => other,
        }
    }
}

impl DerefMut for Outcomes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Outcome] {
        match &mut self.0 {
            List::One(one) => std::slice::from_mut(one),
            List::Two(two) => two,
            List::Other(other) => other,
        }
    }
}

impl Extend<Outcome> for Outcomes {
    #[inline]
    fn extend<I: IntoIterator<Item = Outcome>>(&mut self, outcomes: I) {
        outcomes.into_iter().for_each(|outcome| self.push(outcome));
    }
}

impl FromIterator<Outcome> for Outcomes {
    #[inline]
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        let mut all = Outcomes::new();
        all.extend(outcomes);
        all
    }
}

impl IntoIterator for Outcomes {
    type Item = Outcome;
    type IntoIter = IntoOutcomes;

    #[inline]
    fn into_iter(self) -> IntoOutcomes {
        IntoOutcomes { outcomes: self, next: 0 }
    }
}

impl<'a> IntoIterator for &'a Outcomes {
    type Item = &'a Outcome;
    type IntoIter = std::slice::Iter<'a, Outcome>;

    #[inline]
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

/// Iterates over the outcomes of an [`Outcomes`].
#[derive(Debug)]
pub struct IntoOutcomes {
    outcomes: Outcomes,
    next: usize,
}

impl Iterator for IntoOutcomes {
    type Item = Outcome;

    #[inline]
    fn next(&mut self) -> Option<Outcome> {
        let outcome = self.outcomes.get(self.next).copied();
        self.next += usize::from(outcome.is_some());
        outcome
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.outcomes.len() - self.next;
        (left, Some(left))
    }
}

impl ExactSizeIterator for IntoOutcomes {}
