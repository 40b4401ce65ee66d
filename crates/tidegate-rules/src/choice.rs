//! Which limits of a rule apply to a request: the same for all, by tier, or those of a single key.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tidegate_core::Timestamp;

use crate::digest::of_limits;
use crate::matching::{Present, Variant};
use crate::policy::PolicyNames;
use crate::rule::RuleLimit;
use crate::split::Split;

/// Limits that apply together.
#[derive(Clone, Debug)]
pub(crate) enum LimitSet {
    Unlimited,
    Enforce(Box<[RuleLimit]>),
}

impl LimitSet {
    pub(crate) fn as_slice(&self) -> &[RuleLimit] {
        match self {
            LimitSet::Unlimited => &[],
            LimitSet::Enforce(limits) => limits,
        }
    }

    /// These limits, and those of `usual` for other slots.
    fn with_others_of(&self, usual: &LimitSet) -> LimitSet {
        let LimitSet::Enforce(own) = self else { return LimitSet::Unlimited };
        let is_own = |other: &&RuleLimit| own.iter().any(|limit| limit.slot() == other.slot());
        let others = usual.as_slice().iter().filter(|other| !is_own(other));
        LimitSet::Enforce(own.iter().chain(others).cloned().collect())
    }
}

/// Which limits apply to which request.
#[derive(Debug)]
pub(crate) struct LimitChoice {
    pub(crate) usual: UsualLimits,
    pub(crate) overrides: KeyOverrides,
    pub(crate) experiment: Option<Experiment>,
}

/// Other limits for a share of the keys.
#[derive(Debug)]
pub(crate) struct Experiment {
    pub(crate) split: Split,
    pub(crate) limits: LimitSet,
}

/// The limits that apply without an override of a single key.
#[derive(Debug)]
pub(crate) enum UsualLimits {
    Same(LimitSet),
    ByTier(TierSets),
}

/// One set of limits per value of an attribute.
#[derive(Debug)]
pub(crate) struct TierSets {
    pub(crate) on: u32,
    pub(crate) sets: Box<[LimitSet]>,
    pub(crate) names: HashMap<Box<[u8]>, usize, RandomState>,
    pub(crate) default: usize,
}

/// Limits of single keys, found by the value of their first attribute: a rule may have thousands.
#[derive(Debug, Default)]
pub(crate) struct KeyOverrides {
    list: Vec<KeyChoice>,
    /// By the first attribute, then its value.
    by_first: HashMap<u32, RulesByValue, RandomState>,
}

/// Numbers of overrides, by the value that an attribute must have.
type RulesByValue = HashMap<Box<[u8]>, SmallVec<[u32; 2]>, RandomState>;

#[derive(Debug)]
pub(crate) struct KeyChoice {
    pub(crate) when: When,
    pub(crate) until: Option<Timestamp>,
    /// The limits of these callers, including the usual ones that they keep; one set, or one per tier.
    pub(crate) limits: Box<[LimitSet]>,
}

impl KeyChoice {
    /// An override with `own` limits that keeps the others of `usual`.
    pub(crate) fn keeping(when: When, until: Option<Timestamp>, own: &LimitSet, usual: &UsualLimits) -> Self {
        let limits = usual.sets().iter().map(|usual| own.with_others_of(usual)).collect();
        KeyChoice { when, until, limits }
    }

    /// An override with only `own` limits.
    pub(crate) fn alone(when: When, until: Option<Timestamp>, own: LimitSet) -> Self {
        KeyChoice { when, until, limits: Box::new([own]) }
    }
}

impl UsualLimits {
    /// How many sets there are: one, or one per tier.
    pub(crate) fn len(&self) -> usize {
        self.sets().len()
    }

    /// One set, or one per tier.
    fn sets(&self) -> &[LimitSet] {
        match self {
            UsualLimits::Same(set) => std::slice::from_ref(set),
            UsualLimits::ByTier(tiers) => &tiers.sets,
        }
    }

    /// The index in [`UsualLimits::sets`] that applies.
    fn of(&self, present: &Present<'_>) -> usize {
        match self {
            UsualLimits::Same(_) => 0,
            UsualLimits::ByTier(tiers) => tiers.of(present),
        }
    }
}

/// Attributes and the values they must have; at least one.
pub(crate) type When = Box<[(u32, Box<[u8]>)]>;

impl LimitChoice {
    /// The same limits for everybody.
    pub(crate) fn same(set: LimitSet) -> Self {
        LimitChoice { usual: UsualLimits::Same(set), overrides: KeyOverrides::default(), experiment: None }
    }

    /// The limits for a request with these attributes and this key at `now`, and its side of an experiment.
    pub(crate) fn of(
        &self,
        present: &Present<'_>,
        key: &[u8],
        now: Timestamp,
    ) -> (&LimitSet, Option<Variant>) {
        if let Some(own) = self.overrides.of(present, now) {
            let limits = &self.overrides.list[own].limits;
            // One set for all, or one per tier.
            let set = if limits.len() == 1 { 0 } else { self.usual.of(present) };
            return (&limits[set], None);
        }
        match &self.experiment {
            Some(experiment) if experiment.split.takes(key) => {
                (&experiment.limits, Some(Variant::Experiment))
            }
            experiment => {
                let side = experiment.as_ref().map(|_| Variant::Control);
                (&self.usual.sets()[self.usual.of(present)], side)
            }
        }
    }

    /// Expired overrides for these attributes.
    pub(crate) fn expired(&self, present: &Present<'_>, now: Timestamp) -> Vec<(usize, Timestamp)> {
        let ended = |(number, one): (usize, &KeyChoice)| {
            let until = one.until.filter(|until| *until <= now && one.is_for(present))?;
            Some((number, until))
        };
        self.overrides.list.iter().enumerate().filter_map(ended).collect()
    }

    /// The tier of a request, if it is unknown.
    pub(crate) fn unknown_tier<'p>(&self, present: &Present<'p>) -> Option<&'p [u8]> {
        let UsualLimits::ByTier(tiers) = &self.usual else { return None };
        present.get(tiers.on).filter(|named| !tiers.names.contains_key(*named))
    }

    /// Where [`LimitChoice::of`] found them, for people.
    pub(crate) fn origin(&self, present: &Present<'_>, key: &[u8], now: Timestamp) -> String {
        if let Some(own) = self.overrides.of(present, now) {
            return format!("key_overrides, number {}", own + 1);
        }
        if self.experiment.as_ref().is_some_and(|experiment| experiment.split.takes(key)) {
            return "experiment".into();
        }
        match &self.usual {
            UsualLimits::Same(_) => "limits".into(),
            UsualLimits::ByTier(tiers) => {
                let chosen = tiers.of(present);
                let name = tiers.names.iter().find(|(_, set)| **set == chosen);
                format!("tier {}", name.map_or("".into(), |(name, _)| String::from_utf8_lossy(name)))
            }
        }
    }

    /// The sets that apply to groups of callers, and their names.
    pub(crate) fn named_sets(&self) -> Vec<(String, &[RuleLimit])> {
        let mut sets: Vec<(String, &[RuleLimit])> = match &self.usual {
            UsualLimits::Same(set) => vec![(String::new(), set.as_slice())],
            UsualLimits::ByTier(tiers) => tiers
                .names
                .iter()
                .map(|(name, set)| (String::from_utf8_lossy(name).into_owned(), tiers.sets[*set].as_slice()))
                .collect(),
        };
        sets.sort_by(|one, other| one.0.cmp(&other.0));
        let experiment = self.experiment.iter();
        sets.extend(experiment.map(|experiment| ("experiment".to_owned(), experiment.limits.as_slice())));
        sets
    }

    /// Equal for limits that behave equally; `attribute` maps a number to its name.
    pub(crate) fn canonical<'n>(&self, attribute: &dyn Fn(u32) -> &'n str) -> String {
        let usual = match &self.usual {
            UsualLimits::Same(set) => of_limits(set),
            UsualLimits::ByTier(tiers) => {
                let names = tiers.canonical(&tiers.sets);
                format!("{:?} {names:?} {}", attribute(tiers.on), of_limits(&tiers.sets[tiers.default]))
            }
        };
        let own = self.overrides.list.iter().map(|one| {
            let when = one.when.iter().map(|(number, value)| (attribute(*number), value.escape_ascii()));
            let mut when: Vec<String> = when.map(|(name, value)| format!("{name:?} {value}")).collect();
            when.sort_unstable();
            // One set, or one per tier by name, because the order is the file's.
            let limits: Vec<String> = match &self.usual {
                UsualLimits::ByTier(tiers) if one.limits.len() > 1 => tiers.canonical(&one.limits),
                _ => one.limits.iter().map(of_limits).collect(),
            };
            format!("{when:?} {:?} {limits:?}", one.until)
        });
        let own: Vec<String> = own.collect();
        let experiment = self.experiment.as_ref().map(|one| (one.split.share, of_limits(&one.limits)));
        format!("{usual} {own:?} {experiment:?}")
    }

    /// Names the limits of every set for callers.
    pub(crate) fn name_policies(&mut self, rule: &str) -> PolicyNames {
        let mut names = PolicyNames::default();
        let usual = match &mut self.usual {
            UsualLimits::Same(set) => std::slice::from_mut(set),
            UsualLimits::ByTier(tiers) => &mut tiers.sets,
        };
        let own = self.overrides.list.iter_mut().flat_map(|one| &mut one.limits);
        let experiment = self.experiment.iter_mut().map(|experiment| &mut experiment.limits);
        usual.iter_mut().chain(own).chain(experiment).for_each(|set| names.add(rule, set));
        names
    }

    /// Every set that may apply.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &LimitSet> {
        let own = self.overrides.list.iter().flat_map(|one| &one.limits);
        self.usual.sets().iter().chain(own).chain(self.experiment.iter().map(|experiment| &experiment.limits))
    }
}

impl TierSets {
    /// The limits of each tier in these sets, by its name.
    fn canonical(&self, sets: &[LimitSet]) -> Vec<String> {
        let names = self.names.iter().map(|(name, set)| (name.escape_ascii(), &sets[*set]));
        let mut tiers: Vec<String> = names.map(|(name, set)| format!("{name} {}", of_limits(set))).collect();
        tiers.sort_unstable();
        tiers
    }

    fn of(&self, present: &Present<'_>) -> usize {
        let named = present.get(self.on).and_then(|value| self.names.get(value));
        named.copied().unwrap_or(self.default)
    }
}

impl KeyOverrides {
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The values of an attribute that have limits of their own.
    pub(crate) fn values_of(&self, attribute: u32) -> impl Iterator<Item = &[u8]> {
        let whens = self.list.iter().flat_map(|one| &*one.when);
        whens.filter(move |(of, _)| *of == attribute).map(|(_, value)| &**value)
    }

    pub(crate) fn push(&mut self, one: KeyChoice) {
        let number = u32::try_from(self.list.len()).expect("fewer overrides than bytes in a file");
        let (attribute, value) = &one.when[0];
        let by_value = self.by_first.entry(*attribute).or_default();
        by_value.entry(value.clone()).or_default().push(number);
        self.list.push(one);
    }

    /// The first, in the order of the file, that matches these attributes and has not expired.
    fn of(&self, present: &Present<'_>, now: Timestamp) -> Option<usize> {
        if self.list.is_empty() {
            return None;
        }
        let candidates =
            present.iter().filter_map(|(attribute, value)| self.by_first.get(&attribute)?.get(value));
        let fits = |number: &u32| self.list[*number as usize].fits(present, now);
        let fitting = candidates.filter_map(|numbers| numbers.iter().copied().find(fits));
        fitting.min().map(|number| number as usize)
    }
}

impl KeyChoice {
    fn fits(&self, present: &Present<'_>, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until) && self.is_for(present)
    }

    fn is_for(&self, present: &Present<'_>) -> bool {
        self.when.iter().all(|(attribute, value)| present.get(*attribute) == Some(value))
    }
}
