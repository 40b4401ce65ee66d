//! The rules of one domain in our own format: every matching rule counts, unless another one overrides it.

use std::ops::Range;

use tidegate_core::Timestamp;

use super::condition::Condition;
use super::index::Index;
use super::replacing::drop_replaced;
use super::{Attributes, CellKeyBytes, Descriptor, Match, MatchedLimits, Matches, Present, append_to_key};
use crate::choice::LimitSet;
use crate::flags::FlagStates;
use crate::rule::{Mode, OnMissingKey, Rule};
use crate::secret::hashed;

/// The rules of one domain, ready to be matched.
#[derive(Debug)]
pub(crate) struct NativeDomain {
    pub(crate) attributes: Attributes,
    pub(crate) selectors: Box<[Selector]>,
    index: Index,
    pub(super) replaces_any: bool,
}

/// When a rule matches, and its key then.
#[derive(Debug)]
pub(crate) struct Selector {
    /// The rule's index in the set.
    pub(crate) rule: usize,
    pub(crate) conditions: Box<[Condition]>,
    pub(crate) key: Box<[u32]>,
    /// The attribute whose value is the hash tag.
    pub(crate) colocate: Option<u32>,
    /// Attributes of which the key has the hash.
    pub(crate) hashed: Box<[u32]>,
    pub(crate) on_missing_key: OnMissingKey,
}

impl NativeDomain {
    pub(crate) fn new(attributes: Attributes, selectors: Vec<Selector>, rules: &[Rule]) -> Self {
        let enabled =
            selectors.iter().map(|selector| rules[selector.rule].enabled.then_some(&*selector.conditions));
        let index = Index::new(enabled, attributes.len());
        let replaces_any =
            selectors.iter().any(|selector| !rules[selector.rule].replacing.replaces.is_empty());
        NativeDomain { attributes, selectors: selectors.into(), index, replaces_any }
    }

    /// Appends the matches for each descriptor of one request.
    pub(crate) fn matches<'r>(
        &'r self,
        rules: (&'r [Rule], &FlagStates),
        descriptors: &[Descriptor<'_>],
        now: Timestamp,
        found: &mut Matches<'r>,
    ) {
        let before = found.len();
        for (number, descriptor) in descriptors.iter().enumerate() {
            self.before_replacing(rules, number, descriptor, now, found);
        }
        if self.replaces_any {
            drop_replaced(found, before, may_replace);
        }
    }

    /// Appends the matches of one descriptor, including those that another match overrides.
    pub(crate) fn before_replacing<'r>(
        &'r self,
        (rules, flags): (&'r [Rule], &FlagStates),
        number: usize,
        descriptor: &Descriptor<'_>,
        now: Timestamp,
        found: &mut Matches<'r>,
    ) {
        let present = Present::read(descriptor, &self.attributes);
        for candidate in self.index.candidates(&present) {
            let selector = &self.selectors[candidate as usize];
            let rule = &rules[selector.rule];
            if selector.conditions.iter().all(|condition| condition.holds(&present)) && !flags.keep_off(rule)
            {
                found.extend(selector.match_of(rule, number, &present, now));
            }
        }
    }
}

impl Selector {
    /// The match of this rule for a request that meets its conditions; `None` if it is not rolled out to it.
    pub(crate) fn match_of<'r>(
        &self,
        rule: &'r Rule,
        descriptor: usize,
        present: &Present<'_>,
        now: Timestamp,
    ) -> Option<Match<'r>> {
        let mut key = CellKeyBytes::new();
        let mut tag = None;
        for attribute in &self.key {
            let Some(value) = present.get(*attribute) else {
                // A request without a key cannot be told apart from those that the rule is not rolled out to.
                let then = if rule.rollout.is_some() { OnMissingKey::Skip } else { self.on_missing_key };
                let limits = MatchedLimits::KeyMissing(then);
                return Some(Match {
                    descriptor,
                    rule,
                    limits,
                    variant: None,
                    key: CellKeyBytes::new(),
                    tag: None,
                });
            };
            let part = self.append(&mut key, *attribute, value);
            if self.colocate == Some(*attribute) {
                tag = Some(part);
            }
        }
        // The tag is part of a cell's identity, so a tag from outside the key is appended to it. A request that lacks it is
        // still counted, by the key alone.
        if tag.is_none()
            && let Some(attribute) = self.colocate
            && let Some(value) = present.get(attribute)
        {
            tag = Some(self.append(&mut key, attribute, value));
        }
        if rule.rollout.is_some_and(|split| !split.takes(&key)) {
            return None;
        }
        let (limits, variant) = rule.limits.of(present, &key, now);
        let limits = match limits {
            LimitSet::Unlimited => MatchedLimits::Unlimited,
            LimitSet::Enforce(limits) => MatchedLimits::Enforce(limits),
        };
        Some(Match { descriptor, rule, limits, variant, key, tag })
    }

    /// Appends the value of an attribute to a key, or its hash, and returns its position.
    fn append(&self, key: &mut CellKeyBytes, attribute: u32, value: &[u8]) -> Range<usize> {
        if self.hashed.contains(&attribute) {
            append_to_key(key, &hashed(value))
        } else {
            append_to_key(key, value)
        }
    }
}

/// Whether `by` may switch `one` off, if it overrides it.
///
/// A rule that does not apply because its key is missing overrides nothing; otherwise leaving out a header would lift the
/// limits. A shadow rule does not switch off an enforced one.
pub(crate) fn may_replace(by: &Match<'_>, one: &Match<'_>) -> bool {
    let is_skipped = matches!(by.limits, MatchedLimits::KeyMissing(OnMissingKey::Skip));
    let is_trial = by.rule.mode == Mode::Shadow && one.rule.mode != Mode::Shadow;
    !is_skipped && !is_trial
}
