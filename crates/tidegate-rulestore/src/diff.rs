//! The differences of two sets of documents, for people.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use similar::TextDiff;
use tidegate_rules::outline;

use crate::document::DocumentSet;

/// Longer diffs are truncated: nobody reads on.
const MOST_BYTES: usize = 256 * 1024;

/// The time to search for the smallest difference in all documents together, enough for a hundred thousand lines. The search takes time proportional
/// to the length of the texts times their difference: for the largest accepted ones, hours. After this, the diff may have
/// some more lines.
const EXACT_FOR: Duration = Duration::from_millis(500);

/// The differences of two sets of documents.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diff {
    /// The older version; `None` if it is not a published one.
    pub from: Option<u64>,
    /// The newer version; `None` if it is not a published one.
    pub to: Option<u64>,
    /// The documents that differ.
    pub documents: Vec<DocumentDiff>,
    /// The rules that differ.
    pub rules: Vec<RuleChange>,
}

/// The differences of one document.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DocumentDiff {
    /// Its domain.
    pub domain: String,
    /// How it changed.
    pub change: Change,
    /// The lines in the format of `diff -u`.
    pub unified: String,
}

/// A changed rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RuleChange {
    /// Its domain.
    pub domain: String,
    /// Its name.
    pub rule: String,
    /// How it changed.
    pub change: Change,
}

/// A kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It was added.
    Added,
    /// It was removed.
    Removed,
    /// It was modified.
    Changed,
}

impl Diff {
    /// The differences between `old` and `new`.
    #[must_use]
    pub fn between(old: &DocumentSet, new: &DocumentSet) -> Self {
        Diff::between_while(&|| true, old, new).expect("somebody waits for it")
    }

    /// Like [`Diff::between`], for somebody who may leave: `None` soon after `wanted` says no, before the next document.
    #[must_use]
    pub fn between_while(wanted: &dyn Fn() -> bool, old: &DocumentSet, new: &DocumentSet) -> Option<Self> {
        let domains: BTreeSet<&str> = old.iter().chain(new.iter()).map(|(domain, _)| domain).collect();
        let mut diff = Diff::default();
        let differs = |domain: &&str| old.get(domain) != new.get(domain);
        let changed = u32::try_from(domains.iter().copied().filter(differs).count()).unwrap_or(u32::MAX);
        let exact_for = EXACT_FOR / changed.max(1);
        for domain in domains {
            let (before, after) = (old.get(domain), new.get(domain));
            let Some(change) = change(before, after) else { continue };
            if !wanted() {
                return None;
            }
            let unified = unified(domain, before.unwrap_or_default(), after.unwrap_or_default(), exact_for);
            diff.documents.push(DocumentDiff { domain: domain.to_owned(), change, unified });
            if !wanted() {
                return None;
            }
            diff.rules.extend(rule_changes(domain, before.unwrap_or_default(), after.unwrap_or_default()));
        }
        Some(diff)
    }

    /// Sets the versions that it compares.
    #[must_use]
    pub fn of(self, from: Option<u64>, to: Option<u64>) -> Self {
        Diff { from, to, ..self }
    }

    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.documents.is_empty()
    }
}

fn change<T: PartialEq>(before: Option<T>, after: Option<T>) -> Option<Change> {
    match (before, after) {
        (Some(before), Some(after)) => (before != after).then_some(Change::Changed),
        (None, Some(_)) => Some(Change::Added),
        (Some(_), None) => Some(Change::Removed),
        (None, None) => None,
    }
}

fn unified(domain: &str, before: &str, after: &str, exact_for: Duration) -> String {
    let lines = TextDiff::configure().timeout(exact_for).diff_lines(before, after);
    let mut text = lines.unified_diff().context_radius(3).header(domain, domain).to_string();
    if text.len() > MOST_BYTES {
        text.truncate(text.floor_char_boundary(MOST_BYTES));
        text.push_str("\n(cut: the whole difference is longer)\n");
    }
    text
}

fn rule_changes(domain: &str, before: &str, after: &str) -> Vec<RuleChange> {
    let (before, after) = (rules_of(before), rules_of(after));
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = names.into_iter().filter_map(|name| {
        let change = change(before.get(name), after.get(name))?;
        Some(RuleChange { domain: domain.to_owned(), rule: name.clone(), change })
    });
    changed.collect()
}

/// The rules of a document and their text; empty if it cannot be parsed.
fn rules_of(text: &str) -> BTreeMap<String, &str> {
    let outlines = outline(text).unwrap_or_default();
    let places = outlines.into_iter().flat_map(|one| one.rules);
    places.map(|place| (place.name, &text[place.span])).collect()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::document::Document;

    fn set(documents: &[(&str, &str)]) -> DocumentSet {
        let document =
            |(domain, text): &(&str, &str)| Document { domain: (*domain).into(), text: (*text).into() };
        DocumentSet::new(documents.iter().map(document))
    }

    #[test]
    fn a_diff_names_documents_and_rules_that_differ() {
        let old = set(&[
            ("api", "domain: api\nrules:\n  - { name: a, limits: [1/s] }\n  - { name: b, limits: [1/s] }\n"),
            ("same", "domain: same\nrules: []\n"),
            ("web", "domain: web\nrules: []\n"),
        ]);
        let new = set(&[
            ("api", "domain: api\nrules:\n  - { name: a, limits: [2/s] }\n  - { name: c, limits: [1/s] }\n"),
            ("same", "domain: same\nrules: []\n"),
            ("mail", "domain: mail\nrules: []\n"),
        ]);
        let diff = Diff::between(&old, &new);
        let documents: Vec<_> = diff.documents.iter().map(|one| (&*one.domain, one.change)).collect();
        assert_eq!(documents, [("api", Change::Changed), ("mail", Change::Added), ("web", Change::Removed)]);
        let rules: Vec<_> = diff.rules.iter().map(|one| (&*one.rule, one.change)).collect();
        assert_eq!(rules, [("a", Change::Changed), ("b", Change::Removed), ("c", Change::Added)]);
        assert!(diff.documents[0].unified.contains("-  - { name: a, limits: [1/s] }"), "{diff:?}");
        assert!(Diff::between(&old, &old).is_empty());
    }

    #[test]
    fn a_diff_that_nobody_waits_for_ends_before_the_next_piece() {
        let (old, new) = (set(&[("api", "a"), ("web", "b")]), set(&[("api", "b"), ("web", "a")]));
        let asked = Cell::new(0);
        let for_pieces = |pieces| {
            asked.set(0);
            let wanted = || asked.replace(asked.get() + 1) < pieces;
            Diff::between_while(&wanted, &old, &new)
        };
        assert_eq!((for_pieces(0), asked.get()), (None, 1));
        assert_eq!((for_pieces(2), asked.get()), (None, 3), "the second document is not begun");
        assert_eq!(for_pieces(4), Some(Diff::between(&old, &new)));
    }
}
