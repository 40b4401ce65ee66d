//! Replaces hashes in logged decisions by the literals that rules compare with. The log hashes hidden values, and with its
//! secret one can tell whether a hash is that of a known literal. For a pattern with `*` there is no hash to compare.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use tidegate_decisions::{Digester, is_hash};
use tidegate_replay::{Attributes, Recorded};
use tidegate_rules::RuleSet;

/// Literals of rules by domain and attribute, then by their hashes.
#[derive(Default)]
pub(super) struct Literals(HashMap<String, HashMap<String, HashMap<String, Vec<u8>>>>);

impl Literals {
    /// The literals that these rules compare with, for the hashed attributes (pairs of domain and name).
    pub(super) fn new(rules: &[&RuleSet], hashed: &BTreeSet<(String, String)>, names: &Digester) -> Self {
        let mut literals = Literals::default();
        for (domain, attribute) in hashed {
            for literal in rules.iter().flat_map(|rules| rules.values_read(domain, attribute).literals) {
                let of_domain = literals.0.entry(domain.clone()).or_default();
                let of_attribute = of_domain.entry(attribute.clone()).or_default();
                of_attribute.insert(names.hash(attribute, literal), literal.to_vec());
            }
        }
        literals
    }

    pub(super) fn put_into(&self, recorded: &mut Recorded<'_>) {
        let Some(of_domain) = recorded.domain.as_deref().and_then(|domain| self.0.get(domain)) else {
            return;
        };
        let also = recorded.own.also.iter_mut().map(|also| &mut also.attributes);
        for (name, value) in [&mut recorded.attributes].into_iter().chain(also).flatten() {
            let literal =
                of_domain.get(&**name).and_then(|known| known.get(std::str::from_utf8(value).ok()?));
            if let Some(literal) = literal {
                *value = Cow::Owned(literal.clone());
            }
        }
    }
}

/// Names of attributes with hashed values.
pub(super) fn hashed<'a>(attributes: &'a Attributes<'_>) -> impl Iterator<Item = &'a str> {
    let is_hashed = |value: &[u8]| std::str::from_utf8(value).is_ok_and(is_hash);
    attributes.iter().filter(move |(_, value)| is_hashed(value)).map(|(name, _)| &**name)
}
