//! Which rules may match a request: found by the most selective condition of each.
//!
//! Every rule is filed in one place: under the values, the literal ends or a literal part of one condition's patterns, under
//! an attribute that must be present, or, where nothing of that kind is asked, among those that are always tested. The place is the one
//! that the fewest rules share, so that ten thousand rules on `POST` are told apart by their paths.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::Present;
use super::anchors::{Anchors, End};
use super::condition::Condition;
use super::parts::Parts;
use crate::glob::Pattern;

/// Numbers of rules that may match.
pub(crate) type Candidates = SmallVec<[u32; 16]>;

/// The index over all rules of a domain.
#[derive(Debug)]
pub(crate) struct Index {
    by_attribute: Box<[AttributeIndex]>,
    always: Box<[u32]>,
}

#[derive(Debug)]
struct AttributeIndex {
    exact: HashMap<Box<[u8]>, SmallVec<[u32; 2]>, RandomState>,
    prefixes: Anchors,
    suffixes: Anchors,
    parts: Parts,
    present: Box<[u32]>,
}

/// A place to file a rule under.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Place {
    Exact(u32, Box<[u8]>),
    Prefix(u32, Box<[u8]>),
    Suffix(u32, Box<[u8]>),
    Part(u32, Box<[u8]>),
    Present(u32),
}

/// How many rules could be filed under each place.
type Shared = HashMap<Place, u32, RandomState>;

impl Index {
    /// An index over rules given by their conditions, numbered in this order, on attributes below `attributes`; a rule
    /// without is never found.
    pub(crate) fn new<'c>(
        rules: impl Iterator<Item = Option<&'c [Condition]>> + Clone,
        attributes: usize,
    ) -> Self {
        let mut shared = Shared::default();
        for place in rules.clone().flatten().flatten().flat_map(options_of).flatten() {
            *shared.entry(place).or_default() += 1;
        }
        let mut filed: Vec<Filed> = (0..attributes).map(|_| Filed::default()).collect();
        let mut always = Vec::new();
        for (number, conditions) in (0..).zip(rules) {
            let Some(conditions) = conditions else { continue };
            let places = conditions.iter().filter_map(|condition| places_of(condition, &shared));
            let best = places.min_by_key(|places| places.iter().map(|place| cost(place, &shared)).max());
            match best {
                Some(places) => places.into_iter().for_each(|place| file(&mut filed, place, number)),
                None => always.push(number),
            }
        }
        Index { by_attribute: filed.into_iter().map(Filed::index).collect(), always: always.into() }
    }

    /// Those that may match, ascending, none twice.
    pub(crate) fn candidates(&self, present: &Present<'_>) -> Candidates {
        let mut found = Candidates::from_slice(&self.always);
        for (attribute, value) in present.iter() {
            let index = &self.by_attribute[attribute as usize];
            if let Some(rules) = index.exact.get(value) {
                found.extend_from_slice(rules);
            }
            index.prefixes.each(value, |rule| found.push(rule));
            index.suffixes.each(value, |rule| found.push(rule));
            index.parts.each(value, |rule| found.push(rule));
            if !index.present.is_empty() {
                found.extend_from_slice(&index.present);
            }
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }
}

#[derive(Default)]
struct Filed {
    exact: HashMap<Box<[u8]>, SmallVec<[u32; 2]>, RandomState>,
    prefixes: Vec<(Box<[u8]>, u32)>,
    suffixes: Vec<(Box<[u8]>, u32)>,
    parts: Vec<(Box<[u8]>, u32)>,
    present: Vec<u32>,
}

impl Filed {
    fn index(self) -> AttributeIndex {
        AttributeIndex {
            exact: self.exact,
            prefixes: Anchors::new(End::Front, self.prefixes),
            suffixes: Anchors::new(End::Back, self.suffixes),
            parts: Parts::new(self.parts),
            present: self.present.into(),
        }
    }
}

fn file(filed: &mut [Filed], place: Place, number: u32) {
    match place {
        Place::Exact(attribute, value) => {
            filed[attribute as usize].exact.entry(value).or_default().push(number)
        }
        Place::Prefix(attribute, prefix) => filed[attribute as usize].prefixes.push((prefix, number)),
        Place::Suffix(attribute, suffix) => filed[attribute as usize].suffixes.push((suffix, number)),
        Place::Part(attribute, part) => filed[attribute as usize].parts.push((part, number)),
        Place::Present(attribute) => filed[attribute as usize].present.push(number),
    }
}

/// Where a rule with this condition is best filed so that no match is missed; none if requests without the attribute match.
fn places_of(condition: &Condition, shared: &Shared) -> Option<Vec<Place>> {
    let options = options_of(condition);
    let best = |options: Vec<Place>| options.into_iter().min_by_key(|place| cost(place, shared));
    (!options.is_empty()).then(|| options.into_iter().filter_map(best).collect())
}

/// For each pattern of the condition, the places that would find it.
fn options_of(condition: &Condition) -> Vec<Vec<Place>> {
    let patterns = condition.is.iter().flatten();
    patterns.map(|pattern| options_of_pattern(condition.attribute, pattern)).collect()
}

fn options_of_pattern(attribute: u32, pattern: &Pattern) -> Vec<Place> {
    match pattern {
        Pattern::Exact(value) => vec![Place::Exact(attribute, value.clone())],
        Pattern::Glob(glob) => {
            let prefix = (!glob.prefix().is_empty()).then(|| Place::Prefix(attribute, glob.prefix().into()));
            let suffix = (!glob.suffix().is_empty()).then(|| Place::Suffix(attribute, glob.suffix().into()));
            let part = glob.longest_part().map(|part| Place::Part(attribute, part.into()));
            let found: Vec<Place> = prefix.into_iter().chain(suffix).chain(part).collect();
            if found.is_empty() { vec![Place::Present(attribute)] } else { found }
        }
    }
}

/// How many rules share a place; among equals, how rarely requests come by.
fn cost(place: &Place, shared: &Shared) -> (u32, u8) {
    let kind = match place {
        Place::Exact(..) => 0,
        Place::Prefix(..) => 1,
        Place::Suffix(..) => 2,
        Place::Part(..) => 3,
        Place::Present(_) => 4,
    };
    (shared.get(place).copied().unwrap_or_default(), kind)
}
