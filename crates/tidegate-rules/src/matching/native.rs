//! The rules of one domain in our own format: every rule that matches counts, unless another one replaces it.

use std::ops::Range;

use smallvec::SmallVec;
use tidegate_core::{Timestamp, append_part};

use super::condition::Condition;
use super::index::Index;
use super::{Attributes, CellKeyBytes, Descriptor, Limits, Match, Matches, Present};
use crate::rule::{LimitSet, Mode, OnMissingKey, Rule};

/// The rules of one domain, ready to be matched.
#[derive(Debug)]
pub(crate) struct NativeDomain {
    pub(crate) attributes: Attributes,
    pub(crate) selectors: Box<[Selector]>,
    index: Index,
    replaces_any: bool,
}

/// When a rule matches, and what its key is then.
#[derive(Debug)]
pub(crate) struct Selector {
    /// The rule's place in the set.
    pub(crate) rule: usize,
    pub(crate) conditions: Box<[Condition]>,
    pub(crate) key: Box<[u32]>,
    /// The attribute whose value is the hash tag.
    pub(crate) colocate: Option<u32>,
    pub(crate) on_missing_key: OnMissingKey,
}

impl NativeDomain {
    pub(crate) fn new(attributes: Attributes, selectors: Vec<Selector>, rules: &[Rule]) -> Self {
        let index = Index::new(selectors.iter().map(|selector| &*selector.conditions), attributes.len());
        let replaces_any =
            selectors.iter().any(|selector| !rules[selector.rule].replacing.replaces.is_empty());
        NativeDomain { attributes, selectors: selectors.into(), index, replaces_any }
    }

    /// Appends what matches, for each descriptor of one request.
    pub(crate) fn matches<'r>(
        &'r self,
        rules: &'r [Rule],
        descriptors: &[Descriptor<'_>],
        now: Timestamp,
        found: &mut Matches<'r>,
    ) {
        let before = found.len();
        for (number, descriptor) in descriptors.iter().enumerate() {
            let present = Present::read(descriptor, &self.attributes);
            for candidate in self.index.candidates(&present) {
                let selector = &self.selectors[candidate as usize];
                if selector.conditions.iter().all(|condition| condition.holds(&present)) {
                    found.push(selector.match_of(&rules[selector.rule], number, &present, now));
                }
            }
        }
        if self.replaces_any {
            drop_replaced(found, before, |one| !one.is_skipped(), |by, one| !by.only_in_shadow_of(one));
        }
    }
}

impl Selector {
    /// What this rule asks of a request that meets its conditions.
    pub(crate) fn match_of<'r>(
        &self,
        rule: &'r Rule,
        descriptor: usize,
        present: &Present<'_>,
        now: Timestamp,
    ) -> Match<'r> {
        let mut key = CellKeyBytes::new();
        let mut tag = None;
        for attribute in &self.key {
            let Some(value) = present.get(*attribute) else {
                let limits = Limits::KeyMissing(self.on_missing_key);
                return Match { descriptor, rule, limits, key: CellKeyBytes::new(), tag: None };
            };
            let part = append(&mut key, value);
            if self.colocate == Some(*attribute) {
                tag = Some(part);
            }
        }
        // Where cells live is part of which cells they are, so a tag from outside the key joins it. A request that lacks
        // it is still counted, by the key alone.
        if tag.is_none()
            && let Some(value) = self.colocate.and_then(|attribute| present.get(attribute))
        {
            tag = Some(append(&mut key, value));
        }
        let limits = match rule.limits.of(present, now) {
            LimitSet::Unlimited => Limits::Unlimited,
            LimitSet::Enforce(limits) => Limits::Enforce(limits),
        };
        Match { descriptor, rule, limits, key, tag }
    }
}

/// Appends a part to the key, and says where it stands.
fn append(key: &mut CellKeyBytes, value: &[u8]) -> Range<usize> {
    let start = key.len();
    append_part(key, value);
    start..key.len()
}

impl Match<'_> {
    /// A rule that does not apply for want of a key replaces nothing, or leaving out a header would lift the limits.
    fn is_skipped(&self) -> bool {
        matches!(self.limits, Limits::KeyMissing(OnMissingKey::Skip))
    }

    /// A rule on trial must not switch off one that is enforced.
    fn only_in_shadow_of(&self, other: &Match<'_>) -> bool {
        self.rule.mode == Mode::Shadow && other.rule.mode != Mode::Shadow
    }
}

/// Drops those matches, from `first` on, that another one replaces.
pub(crate) fn drop_replaced(
    found: &mut Matches<'_>,
    first: usize,
    counts: impl Fn(&Match<'_>) -> bool,
    may_replace: impl Fn(&Match<'_>, &Match<'_>) -> bool,
) {
    let request = &found[first..];
    let is_replaced = |one: &Match<'_>| {
        one.rule.replacing.called.is_some_and(|called| {
            request
                .iter()
                .any(|by| by.rule.replacing.replaces.contains(&called) && counts(by) && may_replace(by, one))
        })
    };
    let replaced: SmallVec<[bool; 16]> = request.iter().map(is_replaced).collect();
    let mut at = 0;
    found.retain(|_| {
        at += 1;
        at <= first || !replaced[at - 1 - first]
    });
}
