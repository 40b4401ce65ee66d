//! What a set does with every request that has the same attributes, whatever their values: found once, and used for each.
//!
//! Only what no value and no time can change is foreseen, and only the common case of it: one enforced limit. Everything else
//! is left to [`RuleSet::matches`].

use tidegate_core::Over;

use super::native::{NativeDomain, Selector};
use super::{CellKeyBytes, append_to_key};
use crate::choice::{LimitSet, UsualLimits};
use crate::rule::{Mode, OnMissingKey, Rule, RuleLimit};
use crate::ruleset::{Domain, RuleSet, UnknownDomain};
use crate::secret::hashed;

/// What becomes of every request that has the same attributes.
#[derive(Debug)]
pub enum Foreseen<'r> {
    /// This limit decides it.
    Sole(SoleLimit<'r>),
    /// This rule may give it a lease.
    TakesLease(&'r Rule),
    /// No rule counts it. This one would, if it had this attribute too.
    NotCounted(&'r Rule, &'r str),
    /// It depends on values or time, or on more than one limit.
    Depends,
}

/// The one limit that decides every request with the same attributes.
#[derive(Debug)]
pub struct SoleLimit<'r> {
    /// Its rule.
    pub rule: &'r Rule,
    /// The limit.
    pub limit: &'r RuleLimit,
    /// Makes the key of its cells.
    pub key: KeyPlan,
}

impl SoleLimit<'_> {
    /// What a cost above what is left does.
    #[must_use]
    pub fn over(&self) -> Over {
        self.limit.over.unwrap_or(self.rule.over())
    }
}

/// Makes a cell's key from the values of known attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyPlan(Box<[KeyPart]>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct KeyPart {
    /// The index of its value.
    value: usize,
    /// Whether the key has its hash.
    is_hashed: bool,
}

impl KeyPlan {
    /// Calls `with` with the key made of one value per attribute, in the order of the attributes. A short key is never
    /// allocated, nor moved.
    ///
    /// # Panics
    /// If there are fewer values than attributes.
    #[inline]
    pub fn with_key<V: AsRef<[u8]>, T>(&self, values: &[V], with: impl FnOnce(&[u8]) -> T) -> T {
        let mut buffer = [0; SHORT_KEY];
        let mut length = 0;
        for part in &self.0 {
            let value = values[part.value].as_ref();
            let place = buffer.get_mut(length..length + 1 + value.len());
            let (Some([prefix, rest @ ..]), false) = (place, part.is_hashed || value.len() > ONE_BYTE_LENGTH)
            else {
                return with(&self.long_key(values));
            };
            *prefix = value.len() as u8;
            rest.copy_from_slice(value);
            length += 1 + value.len();
        }
        with(&buffer[..length])
    }

    #[inline(never)]
    fn long_key<V: AsRef<[u8]>>(&self, values: &[V]) -> CellKeyBytes {
        let mut key = CellKeyBytes::new();
        for part in &self.0 {
            let value = values[part.value].as_ref();
            if part.is_hashed {
                append_to_key(&mut key, &hashed(value));
            } else {
                append_to_key(&mut key, value);
            }
        }
        key
    }
}

/// Longer keys are built in a list.
const SHORT_KEY: usize = 64;
/// The longest part whose length is one byte in a key, as [`append_to_key`] writes it.
const ONE_BYTE_LENGTH: usize = 0x7f;

impl RuleSet {
    /// What becomes of every request of the domain that has these attributes and no others.
    ///
    /// # Errors
    /// No file has the domain.
    pub fn foresee(&self, domain: &str, attributes: &[&str]) -> Result<Foreseen<'_>, UnknownDomain> {
        let Some(rules_of_domain) = self.domain(domain) else {
            return Err(UnknownDomain { domain: domain.to_owned() });
        };
        Ok(match rules_of_domain {
            Domain::Native(native) => {
                let sole = native.sole_limit(self, attributes);
                let sole = sole.filter(|_| !self.overrides.contains_key(domain));
                match (native.lease(self, attributes), native.first_without_key(self, attributes)) {
                    (_, Some((rule, attribute))) => Foreseen::NotCounted(rule, attribute),
                    (Some(rule), None) => Foreseen::TakesLease(rule),
                    (None, None) => sole.map_or(Foreseen::Depends, Foreseen::Sole),
                }
            }
            // Its limits depend on values, and none of them takes a lease.
            Domain::Envoy(_) => Foreseen::Depends,
        })
    }
}

impl RuleSet {
    /// The rules that skip every request of the domain that has these attributes and no others, each with the attribute of its
    /// key that is missing.
    pub fn skipped_without_key<'r>(
        &'r self,
        domain: &str,
        attributes: &[&str],
    ) -> impl Iterator<Item = (&'r Rule, &'r str)> {
        let native = match self.domain(domain) {
            Some(Domain::Native(native)) => Some(native),
            Some(Domain::Envoy(_)) | None => None,
        };
        let skipped = native.into_iter().flat_map(move |native| {
            native
                .possible(self, attributes)
                .filter_map(|(selector, rule)| Some((rule, native.missing(selector, rule, attributes)?)))
        });
        skipped.collect::<Vec<_>>().into_iter()
    }
}

impl NativeDomain {
    /// The selectors of the rules that requests with these attributes may match.
    fn possible<'r, 'a>(
        &'r self,
        set: &'r RuleSet,
        attributes: &'a [&'a str],
    ) -> impl Iterator<Item = (&'r Selector, &'r Rule)> {
        let rules = self.selectors.iter().map(|selector| (selector, set.rule(selector.rule)));
        rules.filter(|(selector, rule)| {
            let lacks_one = selector
                .conditions
                .iter()
                .any(|condition| condition.is.is_some() && !self.is_among(condition.attribute, attributes));
            rule.enabled && !set.flag_states().keep_off(rule) && !lacks_one
        })
    }

    fn is_among(&self, attribute: u32, attributes: &[&str]) -> bool {
        attributes.contains(&self.attributes.name(attribute))
    }

    /// The attribute for want of which the rule skips requests with these, as `Selector::match_of` says it.
    fn missing<'r>(&'r self, selector: &Selector, rule: &Rule, attributes: &[&str]) -> Option<&'r str> {
        if rule.rollout.is_none() && selector.on_missing_key == OnMissingKey::Refuse {
            return None;
        }
        let missing = selector.key.iter().find(|attribute| !self.is_among(**attribute, attributes))?;
        Some(self.attributes.name(*missing))
    }

    /// The first rule that may match requests with these attributes, if all such rules skip them.
    fn first_without_key<'r>(&'r self, set: &'r RuleSet, attributes: &[&str]) -> Option<(&'r Rule, &'r str)> {
        let mut possible = self
            .possible(set, attributes)
            .map(|(selector, rule)| Some((rule, self.missing(selector, rule, attributes)?)));
        let first = possible.next()??;
        possible.all(|skipped| skipped.is_some()).then_some(first)
    }

    /// A rule that may give a lease to requests with these attributes.
    fn lease<'r>(&'r self, set: &'r RuleSet, attributes: &[&str]) -> Option<&'r Rule> {
        let takes_one = |rule: &&Rule| rule.limits().any(|limit| limit.limit.takes_lease());
        self.possible(set, attributes).map(|(_, rule)| rule).find(takes_one)
    }

    fn sole_limit<'r>(&'r self, set: &'r RuleSet, attributes: &[&str]) -> Option<SoleLimit<'r>> {
        if self.replaces_any {
            return None;
        }
        let (mut sole, mut coordination) = (None, None);
        for (selector, rule) in self.possible(set, attributes) {
            let is_among = |attribute: &u32| self.is_among(*attribute, attributes);
            if selector.conditions.iter().any(|condition| is_among(&condition.attribute)) {
                return None;
            }
            // What is said to have decided depends on all rules that match, also on those that count nothing.
            if *coordination.get_or_insert(rule.coordination) != rule.coordination {
                return None;
            }
            if !selector.key.iter().all(is_among) {
                match self.missing(selector, rule, attributes) {
                    Some(_) => continue,
                    None => return None,
                }
            }
            let depends_on_key = rule.rollout.is_some() || rule.limits.experiment.is_some();
            if depends_on_key
                || rule.penalty.is_some()
                || rule.mode != Mode::Enforce
                || selector.colocate.is_some()
                || rule.coordination.is_global()
            {
                return None;
            }
            if !rule.limits.overrides.is_empty() {
                return None;
            }
            let set = match &rule.limits.usual {
                UsualLimits::Same(set) => set,
                UsualLimits::ByTier(tiers) if is_among(&tiers.on) => return None,
                UsualLimits::ByTier(tiers) => &tiers.sets[tiers.default],
            };
            let limit = match set {
                // It has no numbers, and keeps nobody out.
                LimitSet::Unlimited => continue,
                LimitSet::Enforce(limits) => match &**limits {
                    [limit] if sole.is_none() => limit,
                    _ => return None,
                },
            };
            sole = Some(SoleLimit { rule, limit, key: self.key_plan(selector, attributes)? });
        }
        sole
    }

    fn key_plan(&self, selector: &Selector, attributes: &[&str]) -> Option<KeyPlan> {
        let part = |attribute: &u32| {
            // If a name occurs twice, the first counts.
            let value = attributes.iter().position(|name| *name == self.attributes.name(*attribute))?;
            Some(KeyPart { value, is_hashed: selector.hashed.contains(attribute) })
        };
        selector.key.iter().map(part).collect::<Option<_>>().map(KeyPlan)
    }
}
