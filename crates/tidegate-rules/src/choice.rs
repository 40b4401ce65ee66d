//! Which limits of a rule apply to which request: the same for all, by tier, or those of a single key.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tidegate_core::Timestamp;

use crate::matching::Present;
use crate::rule::RuleLimit;

/// Limits that apply together.
#[derive(Debug)]
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
}

/// Which limits apply to which request.
#[derive(Debug)]
pub(crate) struct LimitChoice {
    pub(crate) usual: UsualLimits,
    pub(crate) overrides: KeyOverrides,
}

/// What applies where no single key has its own limits.
#[derive(Debug)]
pub(crate) enum UsualLimits {
    Same(LimitSet),
    ByTier(Tiers),
}

/// One set of limits per value of an attribute.
#[derive(Debug)]
pub(crate) struct Tiers {
    pub(crate) on: u32,
    pub(crate) sets: Box<[LimitSet]>,
    pub(crate) names: HashMap<Box<[u8]>, usize, RandomState>,
    pub(crate) default: usize,
}

/// Limits of single keys, found by the value of their first attribute: a rule may have thousands.
#[derive(Debug, Default)]
pub(crate) struct KeyOverrides {
    list: Vec<KeyOverride>,
    by_first: Vec<ByFirstValue>,
}

#[derive(Debug)]
pub(crate) struct KeyOverride {
    pub(crate) when: When,
    pub(crate) until: Option<Timestamp>,
    pub(crate) limits: LimitSet,
}

/// Attributes and the values they must have; at least one.
pub(crate) type When = Box<[(u32, Box<[u8]>)]>;

/// The overrides whose first attribute is this one, by its value.
#[derive(Debug)]
struct ByFirstValue {
    attribute: u32,
    numbers: HashMap<Box<[u8]>, SmallVec<[u32; 2]>, RandomState>,
}

impl LimitChoice {
    /// The same limits for everybody.
    pub(crate) fn same(set: LimitSet) -> Self {
        LimitChoice { usual: UsualLimits::Same(set), overrides: KeyOverrides::default() }
    }

    /// The limits for a request with these attributes at `now`.
    pub(crate) fn of(&self, present: &Present<'_>, now: Timestamp) -> &LimitSet {
        if let Some(own) = self.overrides.of(present, now) {
            return &self.overrides.list[own].limits;
        }
        match &self.usual {
            UsualLimits::Same(set) => set,
            UsualLimits::ByTier(tiers) => &tiers.sets[tiers.of(present)],
        }
    }

    /// Where [`LimitChoice::of`] found them, for a person.
    pub(crate) fn origin(&self, present: &Present<'_>, now: Timestamp) -> String {
        if let Some(own) = self.overrides.of(present, now) {
            return format!("key_overrides, number {}", own + 1);
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

    /// Every set that may apply.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &LimitSet> {
        let usual = match &self.usual {
            UsualLimits::Same(set) => std::slice::from_ref(set),
            UsualLimits::ByTier(tiers) => &tiers.sets,
        };
        usual.iter().chain(self.overrides.list.iter().map(|one| &one.limits))
    }
}

impl Tiers {
    fn of(&self, present: &Present<'_>) -> usize {
        let named = present.get(self.on).and_then(|value| self.names.get(value));
        named.copied().unwrap_or(self.default)
    }
}

impl KeyOverrides {
    pub(crate) fn push(&mut self, one: KeyOverride) {
        let number = u32::try_from(self.list.len()).expect("fewer overrides than bytes in a file");
        let (attribute, value) = &one.when[0];
        let known = self.by_first.iter().position(|by| by.attribute == *attribute);
        let place = known.unwrap_or_else(|| {
            self.by_first.push(ByFirstValue { attribute: *attribute, numbers: HashMap::default() });
            self.by_first.len() - 1
        });
        self.by_first[place].numbers.entry(value.clone()).or_default().push(number);
        self.list.push(one);
    }

    /// The first, in the order of the file, that is for these attributes and has not ended.
    fn of(&self, present: &Present<'_>, now: Timestamp) -> Option<usize> {
        let candidates = self.by_first.iter().filter_map(|by| by.numbers.get(present.get(by.attribute)?));
        let fits = |number: &u32| self.list[*number as usize].fits(present, now);
        let fitting = candidates.filter_map(|numbers| numbers.iter().copied().find(fits));
        fitting.min().map(|number| number as usize)
    }
}

impl KeyOverride {
    fn fits(&self, present: &Present<'_>, now: Timestamp) -> bool {
        self.until.is_none_or(|until| now < until)
            && self.when.iter().all(|(attribute, value)| present.get(*attribute) == Some(value))
    }
}
