//! The names of rules that verdicts borrow: kept for good, each once, and found without a lock.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

/// Places in the first table; each further one has twice as many.
const FIRST: usize = 32;
/// 131,040 places: more than the rules that anybody has, whatever their names become.
const TABLES: usize = 12;
/// How many places of a table a name may have.
const TRIES: usize = 4;

type Table = Box<[OnceLock<Box<str>>]>;

/// A name is in the first free one of the places that are its own, table after table. No place is ever freed, so looking finds
/// a name before it finds a free place.
#[derive(Debug, Default)]
pub(super) struct Names([OnceLock<Table>; TABLES]);

impl Names {
    /// The same name, which lives as long as this; `None` if all of its places are taken.
    pub(super) fn keep(&self, name: &str) -> Option<&str> {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let first = usize::try_from(hasher.finish() >> 32).unwrap_or_default();
        (0..).zip(&self.0).find_map(|(number, table)| {
            let places = table.get_or_init(|| (0..FIRST << number).map(|_| OnceLock::new()).collect());
            (0..TRIES)
                .map(|next| &**places[(first + next) % places.len()].get_or_init(|| name.into()))
                .find(|kept| *kept == name)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kept_once_and_found_again() {
        let names = Names::default();
        let all: Vec<String> = (0..1_000).map(|number| format!("rule-{number}")).collect();
        let kept: Vec<&str> = all.iter().map(|name| names.keep(name).unwrap()).collect();
        assert_eq!(kept, all);
        for (name, kept) in all.iter().zip(kept) {
            assert!(std::ptr::eq(names.keep(name).unwrap(), kept));
        }
    }
}
