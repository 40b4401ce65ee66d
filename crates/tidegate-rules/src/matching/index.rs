//! Finds the rules that may match a request, by the most selective condition of each.
//!
//! Every rule is filed once: under a literal of each pattern of one condition or, if no condition requires an attribute,
//! among those that are always tested. The condition is the one whose literals the fewest rules share, so that ten thousand
//! rules on `POST` are distinguished by their paths.

use smallvec::SmallVec;

use super::Present;
use super::condition::Condition;
use super::patterns::{Literal, PatternIndex, UseCounts};

/// Numbers of rules that may match.
pub(crate) type Candidates = SmallVec<[u32; 16]>;

/// The index over all rules of a domain.
#[derive(Debug)]
pub(crate) struct Index {
    by_attribute: Box<[PatternIndex]>,
    always: Box<[u32]>,
}

/// A literal of an attribute.
type Place = (u32, Literal);

impl Index {
    /// An index over rules given by their conditions, numbered in this order, on attributes below `attributes`; a rule
    /// given as `None` is never found.
    pub(crate) fn new<'c>(
        rules: impl Iterator<Item = Option<&'c [Condition]>> + Clone,
        attributes: usize,
    ) -> Self {
        let shared = UseCounts::count(rules.clone().flatten().flatten().flat_map(options_of).flatten());
        let mut filed: Vec<Vec<(Literal, u32)>> = vec![Vec::new(); attributes];
        let mut always = Vec::new();
        for (number, conditions) in (0..).zip(rules) {
            let Some(conditions) = conditions else { continue };
            let places = conditions.iter().filter_map(|condition| places_of(condition, &shared));
            let best = places.min_by_key(|places| places.iter().map(|place| cost(place, &shared)).max());
            match best {
                Some(places) => places
                    .into_iter()
                    .for_each(|(attribute, literal)| filed[attribute as usize].push((literal, number))),
                None => always.push(number),
            }
        }
        Index { by_attribute: filed.into_iter().map(PatternIndex::new).collect(), always: always.into() }
    }

    /// The rules that may match, ascending, without duplicates.
    pub(crate) fn candidates(&self, present: &Present<'_>) -> Candidates {
        let mut found = Candidates::from_slice(&self.always);
        for (attribute, value) in present.iter() {
            self.by_attribute[attribute as usize].each(value, |rule| found.push(rule));
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
        found
    }
}

/// Where to file a rule with this condition so that no match is missed; `None` if requests without the attribute match.
fn places_of(condition: &Condition, shared: &UseCounts<Place>) -> Option<Vec<Place>> {
    let options = options_of(condition);
    let best = |options: Vec<Place>| options.into_iter().min_by_key(|place| cost(place, shared));
    (!options.is_empty()).then(|| options.into_iter().filter_map(best).collect())
}

/// For each pattern of the condition, the places under which it would be found.
fn options_of(condition: &Condition) -> Vec<Vec<Place>> {
    let places = |pattern| {
        Literal::all_of(pattern).into_iter().map(|literal| (condition.attribute, literal)).collect()
    };
    condition.is.iter().flatten().map(places).collect()
}

fn cost(place: &Place, shared: &UseCounts<Place>) -> (u32, u8) {
    shared.cost(place, &place.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glob::Pattern;
    use crate::matching::{Attributes, Descriptor};

    /// How many of ten thousand rules are tested for a request that one of them matches.
    fn candidates(pattern: fn(usize) -> String, path: &str) -> usize {
        let mut attributes = Attributes::default();
        let attribute = attributes.number("path");
        let condition = |number| Condition {
            attribute,
            is: Some([Pattern::parse(&pattern(number))].into()),
            not: Box::default(),
            written: "".into(),
        };
        let rules: Vec<[Condition; 1]> = (0..10_000).map(|number| [condition(number)]).collect();
        let index = Index::new(rules.iter().map(|rule| Some(&rule[..])), 1);
        let entries = [("path", path.as_bytes())];
        let found = index.candidates(&Present::read(&Descriptor { entries: &entries }, &attributes));
        assert!(found.contains(&7), "{path}");
        found.len()
    }

    #[test]
    fn of_ten_thousand_globs_only_those_are_looked_at_whose_rarest_literal_the_value_holds() {
        assert_eq!(candidates(|n| format!("/v1/users/{n}"), "/v1/users/7"), 1);
        assert_eq!(candidates(|n| format!("/v1/users/{n}/*"), "/v1/users/7/a"), 1);
        assert_eq!(candidates(|n| format!("*.tenant{n}.example"), "www.tenant7.example"), 1);
        assert_eq!(candidates(|n| format!("*x{n}x*"), "/a/x7x/b"), 1);
        assert_eq!(candidates(|n| format!("u*/{n}/*"), "users/7/a"), 1);
        assert_eq!(candidates(|n| format!("/v*/users/*/x{n}x/*/edit"), "/v1/users/a/x7x/b/edit"), 1);
    }
}
