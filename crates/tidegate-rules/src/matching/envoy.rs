//! The limits of one domain in envoyproxy/ratelimit's format: at most one per descriptor, found level by level.
//!
//! At each level, the entry's key and value are looked up together, then among values with wildcards in the order of the
//! file, then the key alone; there is no backtracking. The limit of the last entry is the one that counts.
//!
//! That service joins key and value with `_` before it compares, so there `a_b`, `c` matches what was written for `a`,
//! `b_c`. Here they are compared separately. Only a key with a wildcard in it is compared as that service does.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tidegate_core::Timestamp;

use super::patterns::{Literal, PatternIndex, UseCounts};
use super::replacing::drop_replaced;
use super::{CellKeyBytes, Descriptor, Match, MatchedLimits, Matches, append_to_key};
use crate::choice::LimitSet;
use crate::glob::Pattern;
use crate::rule::Rule;
use crate::secret::{hashed, is_secret_name};

/// A key, and its required value; any if `None`.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) key: Box<str>,
    pub(crate) value: Option<Box<str>>,
}

impl Step {
    /// Key and value as that service joins them.
    pub(crate) fn joined(&self) -> String {
        match &self.value {
            Some(value) => format!("{}_{value}", self.key),
            None => self.key.to_string(),
        }
    }
}

/// The limits of one domain, ready to be matched.
#[derive(Debug)]
pub(crate) struct EnvoyDomain {
    root: Level,
    /// For each limit, the descriptor's path to it.
    pub(crate) paths: Box<[(usize, Box<[Step]>)]>,
}

/// The descriptors at one level.
#[derive(Debug)]
struct Level {
    keys: HashMap<Box<str>, Values, RandomState>,
    /// Keys with a wildcard: patterns for key and value joined.
    wild_keys: Wildcards,
    branches: Box<[BranchNode]>,
}

/// A descriptor's index within its level, in the order of the file.
type Branch = u32;

/// The possible values of one key.
#[derive(Debug)]
struct Values {
    any: Option<Branch>,
    exact: HashMap<Box<[u8]>, Branch, RandomState>,
    wild: Wildcards,
}

#[derive(Debug)]
struct BranchNode {
    rule: Option<usize>,
    /// What replaces the value in a shared counter's key.
    shared: Option<Box<[u8]>>,
    below: Option<Level>,
}

/// Patterns in the order of the file.
#[derive(Debug)]
struct Wildcards {
    list: Box<[(Branch, Pattern)]>,
    index: PatternIndex,
}

impl EnvoyDomain {
    pub(crate) fn new(root: LevelBuilder, paths: Vec<(usize, Box<[Step]>)>) -> Self {
        EnvoyDomain { root: Level::new(root), paths: paths.into() }
    }

    /// Appends the matches for each descriptor of one request.
    pub(crate) fn matches<'r>(
        &'r self,
        rules: &'r [Rule],
        descriptors: &[Descriptor<'_>],
        now: Timestamp,
        found: &mut Matches<'r>,
    ) {
        let before = found.len();
        for (number, descriptor) in descriptors.iter().enumerate() {
            let mut key = CellKeyBytes::new();
            if let Some(rule) = self.find(descriptor, &mut key) {
                let rule = &rules[rule];
                let limits = match rule.limits.of(&super::Present::default(), &key, now).0 {
                    LimitSet::Unlimited => MatchedLimits::Unlimited,
                    LimitSet::Enforce(limits) => MatchedLimits::Enforce(limits),
                };
                found.push(Match { descriptor: number, rule, limits, variant: None, key, tag: None });
            }
        }
        if found[before..].iter().any(|one| !one.rule.replacing.replaces.is_empty()) {
            drop_replaced(found, before, |_, one| !matches!(one.limits, MatchedLimits::Unlimited));
        }
    }

    /// The limit for a descriptor; its entries are written to `key`.
    fn find(&self, descriptor: &Descriptor<'_>, key: &mut CellKeyBytes) -> Option<usize> {
        let (last, before) = descriptor.entries.split_last()?;
        let mut level = &self.root;
        for (name, value) in before {
            let node = level.step(name, value)?;
            node.append_entry(name, value, key);
            level = node.below.as_ref()?;
        }
        let node = level.step(last.0, last.1)?;
        node.append_entry(last.0, last.1, key);
        node.rule
    }
}

impl EnvoyDomain {
    /// Equal for descriptors that lead to the same limits; `rule` maps an index to its name.
    pub(crate) fn canonical<'r>(&self, rule: &dyn Fn(usize) -> &'r str) -> String {
        self.root.canonical(rule)
    }
}

impl Level {
    fn canonical<'r>(&self, rule: &dyn Fn(usize) -> &'r str) -> String {
        let mut steps: Vec<(Branch, String)> = Vec::new();
        let mut is_in_order = !self.wild_keys.list.is_empty();
        for (key, values) in &self.keys {
            is_in_order |= !values.wild.list.is_empty();
            steps.extend(values.any.map(|branch| (branch, format!("{key:?}"))));
            let exact = values.exact.iter();
            steps.extend(
                exact.map(|(value, branch)| (*branch, format!("{key:?} = {}", value.escape_ascii()))),
            );
        }
        // Only wildcards depend on the order of the file.
        steps.sort_unstable_by(
            |one, other| {
                if is_in_order { one.0.cmp(&other.0) } else { one.1.cmp(&other.1) }
            },
        );
        let steps: Vec<String> = steps
            .iter()
            .map(|(branch, step)| {
                let node = &self.branches[*branch as usize];
                let below = node.below.as_ref().map(|below| below.canonical(rule));
                format!("{step} {:?} {:?} {below:?}", node.rule.map(rule), node.shared)
            })
            .collect();
        format!("{steps:?}")
    }

    fn step(&self, key: &str, value: &[u8]) -> Option<&BranchNode> {
        let values = self.keys.get(key);
        let branch = values.and_then(|values| values.exact.get(value).copied()).or_else(|| {
            let by_value = values.and_then(|values| values.wild.first(value));
            let by_key = self.first_wild_key(key, value);
            by_value.into_iter().chain(by_key).min().or_else(|| values?.any)
        })?;
        Some(&self.branches[branch as usize])
    }

    fn first_wild_key(&self, key: &str, value: &[u8]) -> Option<Branch> {
        if self.wild_keys.list.is_empty() {
            return None;
        }
        let mut joined: SmallVec<[u8; 128]> = SmallVec::from_slice(key.as_bytes());
        joined.push(b'_');
        joined.extend_from_slice(value);
        self.wild_keys.first(&joined)
    }
}

impl BranchNode {
    fn append_entry(&self, name: &str, value: &[u8], key: &mut CellKeyBytes) {
        append_to_key(key, name.as_bytes());
        match &self.shared {
            Some(shared) => append_to_key(key, shared),
            None if is_secret_name(name) => append_to_key(key, &hashed(value)),
            None => append_to_key(key, value),
        };
    }
}

impl Wildcards {
    fn new(list: Vec<(Branch, Pattern)>) -> Self {
        let shared = UseCounts::count(list.iter().flat_map(|(_, pattern)| Literal::all_of(pattern)));
        let rarest = |pattern: &Pattern| {
            Literal::all_of(pattern).into_iter().min_by_key(|literal| shared.cost(literal, literal))
        };
        let filed = (0..).zip(&list).filter_map(|(number, (_, pattern))| Some((rarest(pattern)?, number)));
        let index = PatternIndex::new(filed.collect());
        Wildcards { list: list.into(), index }
    }

    /// The first in the file that matches `value`.
    fn first(&self, value: &[u8]) -> Option<Branch> {
        let mut first: Option<u32> = None;
        self.index.each(value, |number| {
            if first.is_none_or(|first| number < first) && self.list[number as usize].1.matches(value) {
                first = Some(number);
            }
        });
        first.map(|number| self.list[number as usize].0)
    }
}

/// A level while its file is being read.
pub(crate) type LevelBuilder = Vec<BranchBuilder>;

/// A descriptor while its file is being read.
pub(crate) struct BranchBuilder {
    pub(crate) step: Step,
    /// The index of its limit in the set.
    pub(crate) rule: Option<usize>,
    pub(crate) counters: Counters,
    pub(crate) below: LevelBuilder,
}

/// Whether the values that match a wildcard are counted together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Counters {
    OnePerValue,
    Shared,
}

impl Level {
    fn new(builder: LevelBuilder) -> Self {
        let mut keys: HashMap<Box<str>, ValuesBuilder, RandomState> = HashMap::default();
        let mut wild_keys = Vec::new();
        let mut branches = Vec::new();
        for (number, BranchBuilder { step, rule, counters, below }) in (0..).zip(builder) {
            let pattern = || step.value.as_deref().unwrap_or(&step.key).as_bytes().into();
            let shared = (counters == Counters::Shared).then(pattern);
            let below = (!below.is_empty()).then(|| Level::new(below));
            branches.push(BranchNode { rule, shared, below });
            let is_wild_key = step.key.contains('*');
            if is_wild_key {
                wild_keys.push((number, Pattern::parse_unescaped(&step.joined())));
            }
            let values = keys.entry(step.key).or_default();
            let Some(value) = step.value else {
                values.any = Some(number);
                continue;
            };
            if !is_wild_key && value.contains('*') {
                values.wild.push((number, Pattern::parse_unescaped(&value)));
            }
            // A value that is literally the wildcard's text finds it before any other wildcard.
            values.exact.insert(value.as_bytes().into(), number);
        }
        let keys = keys.into_iter().map(|(key, values)| (key, values.build())).collect();
        Level { keys, wild_keys: Wildcards::new(wild_keys), branches: branches.into() }
    }
}

#[derive(Default)]
struct ValuesBuilder {
    any: Option<Branch>,
    exact: HashMap<Box<[u8]>, Branch, RandomState>,
    wild: Vec<(Branch, Pattern)>,
}

impl ValuesBuilder {
    fn build(self) -> Values {
        Values { any: self.any, exact: self.exact, wild: Wildcards::new(self.wild) }
    }
}
