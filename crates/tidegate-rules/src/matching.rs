//! Finds the rules that match a request without testing those that cannot.
//!
//! Nothing is parsed or decided here. A request is read once into [`Present`]; an index over the most selective condition of
//! every rule gives the few candidates, and only those are tested in full.

pub(crate) mod anchors;
pub(crate) mod condition;
pub(crate) mod envoy;
pub(crate) mod foresee;
pub(crate) mod index;
pub(crate) mod lists;
pub(crate) mod native;
pub(crate) mod parts;
pub(crate) mod patterns;
pub(crate) mod replacing;

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tidegate_core::{Micros, append_part};

pub use foresee::{Foreseen, KeyPlan, SoleLimit};
pub use lists::{CellKeyBytes, Matches};

use crate::choice::{LimitSet, UsualLimits};
use crate::rule::{OnMissingKey, Rule, RuleLimit};

/// The attributes of a request: names and values, in its own order, which matters to envoyproxy/ratelimit's rules. Values
/// are bytes: Redis keys need not be text. If a name occurs twice, the first counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// Attribute name, value.
    pub entries: &'a [(&'a str, &'a [u8])],
}

/// A rule that matches a request.
#[derive(Clone, Debug)]
pub struct Match<'r> {
    /// The index of the matching descriptor.
    pub descriptor: usize,
    /// The rule.
    pub rule: &'r Rule,
    /// What it requires of this request.
    pub limits: MatchedLimits<'r>,
    /// The request's side of the rule's experiment, if there is one.
    pub variant: Option<Variant>,
    /// The key of this request's cells; empty if there is one cell for everybody.
    pub key: CellKeyBytes,
    pub(crate) tag: Option<Range<usize>>,
}

impl Match<'_> {
    /// The bytes that decide where the cells live: cells with the same tag live together. It is the whole key, unless the
    /// rule has `colocate`.
    #[must_use]
    pub fn tag(&self) -> &[u8] {
        self.tag.clone().map_or(&self.key, |tag| &self.key[tag])
    }
}

/// Where the limits of a match come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitsFrom<'r> {
    /// They are the rule's own, for everybody.
    Rule,
    /// They are those of this tier.
    Tier(&'r str),
    /// They are an experiment's, or of this caller only: an override in the rule, or a runtime one.
    Others,
}

impl<'r> Match<'r> {
    /// Where its limits come from.
    #[must_use]
    pub fn limits_from(&self) -> LimitsFrom<'r> {
        let MatchedLimits::Enforce(limits) = self.limits else { return LimitsFrom::Others };
        let is_it = |set: &LimitSet| std::ptr::eq(set.as_slice(), limits);
        match &self.rule.limits.usual {
            UsualLimits::Same(set) if is_it(set) => LimitsFrom::Rule,
            UsualLimits::ByTier(tiers) => {
                let mut named = tiers.names.iter().filter(|(_, set)| is_it(&tiers.sets[**set]));
                let name = named.next().and_then(|(name, _)| std::str::from_utf8(name).ok());
                name.map_or(LimitsFrom::Others, LimitsFrom::Tier)
            }
            UsualLimits::Same(_) => LimitsFrom::Others,
        }
    }
}

/// A side of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    /// It gets the rule's usual limits.
    Control,
    /// It gets the experiment's limits.
    Experiment,
}

impl Variant {
    /// Its name in metrics and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Variant::Control => "control",
            Variant::Experiment => "experiment",
        }
    }
}

/// Appends a part to a key, prefixed with its length, and returns its position.
#[inline]
fn append_to_key(key: &mut CellKeyBytes, part: &[u8]) -> Range<usize> {
    let start = key.len();
    match u8::try_from(part.len()) {
        // The encoding of `append_part` for short parts, as almost all are, in one copy instead of byte by byte.
        Ok(length @ 0..0x80) => {
            key.push(length);
            key.extend_from_slice(part);
        }
        _ => append_part(key, part),
    }
    start..key.len()
}

/// What a rule requires of a matching request.
#[derive(Clone, Copy, Debug)]
pub enum MatchedLimits<'r> {
    /// All of these limits, or nothing is spent.
    Enforce(&'r [RuleLimit]),
    /// Nothing: it is admitted uncounted.
    Unlimited,
    /// The request lacks an attribute of the key.
    KeyMissing(OnMissingKey),
    /// It is refused, whatever else matches, and spends nothing.
    Banned {
        /// The remaining time; `None` for ever.
        retry_after: Option<Micros>,
    },
}

/// The attributes of one descriptor that some rule of the domain uses, by their numbers.
#[derive(Debug, Default)]
pub(crate) struct Present<'a>(SmallVec<[(u32, &'a [u8]); 8]>);

impl<'a> Present<'a> {
    pub(crate) fn read(descriptor: &Descriptor<'a>, attributes: &Attributes) -> Self {
        let mut present = Present::default();
        for (name, value) in descriptor.entries {
            if let Some(attribute) = attributes.get(name)
                && present.get(attribute).is_none()
            {
                present.0.push((attribute, value));
            }
        }
        present
    }

    pub(crate) fn get(&self, attribute: u32) -> Option<&'a [u8]> {
        self.0.iter().find(|(other, _)| *other == attribute).map(|(_, value)| *value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &'a [u8])> {
        self.0.iter().copied()
    }
}

/// The attribute names that the rules of a domain use, as numbers.
#[derive(Debug, Default)]
pub(crate) struct Attributes {
    numbers: HashMap<Box<str>, u32, RandomState>,
    names: Vec<Box<str>>,
}

impl Attributes {
    pub(crate) fn get(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The number of `name`, assigned if it has none.
    pub(crate) fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.get(name) {
            return number;
        }
        let number = u32::try_from(self.names.len()).expect("fewer attributes than bytes in a file");
        self.numbers.insert(name.into(), number);
        self.names.push(name.into());
        number
    }

    pub(crate) fn name(&self, number: u32) -> &str {
        &self.names[number as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_every_length_are_written_as_core_writes_them() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0x4000] {
            let part = vec![7; length];
            let mut ours = CellKeyBytes::from(&b"before"[..]);
            let mut cores = ours.clone();
            append_part(&mut cores, &part);
            assert_eq!(append_to_key(&mut ours, &part), 6..cores.len());
            assert_eq!(ours, cores, "{length}");
        }
    }
}
