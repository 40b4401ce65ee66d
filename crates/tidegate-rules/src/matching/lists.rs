//! Lists that allocate only for unusual requests: those that match many rules, or have a long key.
//!
//! Our own types, so that the library that keeps short lists inline is not part of the API.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::Match;

/// The rules that match a request. Dereferences to a slice.
#[derive(Clone, Debug, Default)]
pub struct Matches<'r>(SmallVec<[Match<'r>; 4]>);

impl<'r> Matches<'r> {
    /// None yet.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        Matches(SmallVec::new())
    }

    /// Adds one.
    #[inline]
    pub fn push(&mut self, found: Match<'r>) {
        self.0.push(found);
    }

    /// Takes all of them out, in order.
    pub fn drain(&mut self) -> impl ExactSizeIterator<Item = Match<'r>> {
        self.0.drain(..)
    }

    pub(crate) fn retain(&mut self, keep: impl FnMut(&mut Match<'r>) -> bool) {
        self.0.retain(keep);
    }
}

impl<'r> Deref for Matches<'r> {
    type Target = [Match<'r>];

    #[inline]
    fn deref(&self) -> &[Match<'r>] {
        &self.0
    }
}

impl DerefMut for Matches<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl<'r> Extend<Match<'r>> for Matches<'r> {
    #[inline]
    fn extend<I: IntoIterator<Item = Match<'r>>>(&mut self, found: I) {
        self.0.extend(found);
    }
}

/// The values of a rule's key attributes, each prefixed with its length. Dereferences to a slice.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct CellKeyBytes(SmallVec<[u8; 64]>);

impl CellKeyBytes {
    /// The key of the one cell that everybody shares.
    #[must_use]
    #[inline]
    pub fn new() -> Self {
        CellKeyBytes(SmallVec::new())
    }

    #[inline]
    pub(crate) fn push(&mut self, byte: u8) {
        self.0.push(byte);
    }

    #[inline]
    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }
}

impl From<&[u8]> for CellKeyBytes {
    #[inline]
    fn from(bytes: &[u8]) -> Self {
        CellKeyBytes(SmallVec::from_slice(bytes))
    }
}

impl fmt::Debug for CellKeyBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Deref for CellKeyBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl Extend<u8> for CellKeyBytes {
    #[inline]
    fn extend<I: IntoIterator<Item = u8>>(&mut self, bytes: I) {
        self.0.extend(bytes);
    }
}
