//! A list of outcomes that allocates only where a request touches many cells.
//!
//! A type of its own: which library keeps short lists inline is nobody's business but ours.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;
use tidegate_core::Outcome;

/// One outcome per spend, in order. It is read as a slice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes(SmallVec<[Outcome; 4]>);

impl Outcomes {
    /// None yet.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Outcomes(SmallVec::new())
    }

    /// Adds what the next spend was told.
    #[inline]
    pub fn push(&mut self, outcome: Outcome) {
        self.0.push(outcome);
    }
}

impl Deref for Outcomes {
    type Target = [Outcome];

    #[inline]
    fn deref(&self) -> &[Outcome] {
        &self.0
    }
}

impl DerefMut for Outcomes {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Outcome] {
        &mut self.0
    }
}

impl Extend<Outcome> for Outcomes {
    #[inline]
    fn extend<I: IntoIterator<Item = Outcome>>(&mut self, outcomes: I) {
        self.0.extend(outcomes);
    }
}

impl FromIterator<Outcome> for Outcomes {
    #[inline]
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        Outcomes(outcomes.into_iter().collect())
    }
}

impl IntoIterator for Outcomes {
    type Item = Outcome;
    type IntoIter = IntoOutcomes;

    #[inline]
    fn into_iter(self) -> IntoOutcomes {
        IntoOutcomes(self.0.into_iter())
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

/// The outcomes of an [`Outcomes`], one after another.
#[derive(Debug)]
pub struct IntoOutcomes(smallvec::IntoIter<[Outcome; 4]>);

impl Iterator for IntoOutcomes {
    type Item = Outcome;

    #[inline]
    fn next(&mut self) -> Option<Outcome> {
        self.0.next()
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0.size_hint()
    }
}

impl ExactSizeIterator for IntoOutcomes {}
