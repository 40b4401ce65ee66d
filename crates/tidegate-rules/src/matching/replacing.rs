//! Drops rules that another matching rule overrides.
//!
//! An overridden rule still overrides others: what counts is what matched, independent of the order.

use smallvec::SmallVec;

use super::{Match, Matches};

/// Whether the first may switch the second off, if it overrides it.
pub(crate) type MayReplace = fn(&Match<'_>, &Match<'_>) -> bool;

/// Drops the matches from `first` on that another one overrides.
pub(crate) fn drop_replaced(found: &mut Matches<'_>, first: usize, may_replace: MayReplace) {
    let request = &found[first..];
    let replaced: SmallVec<[bool; 16]> =
        request.iter().map(|one| replaced_by(one, request, may_replace).is_some()).collect();
    let mut place = 0;
    found.retain(|_| {
        place += 1;
        place <= first || !replaced[place - 1 - first]
    });
}

/// The match of the same request that overrides `one`.
pub(crate) fn replaced_by<'m, 'r>(
    one: &Match<'_>,
    request: &'m [Match<'r>],
    may_replace: MayReplace,
) -> Option<&'m Match<'r>> {
    let called = one.rule.replacing.called?;
    request.iter().find(|by| by.rule.replacing.replaces.contains(&called) && may_replace(by, one))
}
