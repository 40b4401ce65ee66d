//! The last lines, in bounded memory, and a search over them.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::Entry;
use crate::record::{Digester, Record, Verdict};

/// The last lines, at most so many bytes of them.
pub(crate) struct Ring {
    entries: VecDeque<Entry>,
    bytes: usize,
    most_bytes: usize,
    /// Whether any was dropped to make room.
    has_dropped: bool,
}

/// What is searched for. What is left out fits everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// The domain.
    pub domain: Option<String>,
    /// The rule that decided.
    pub rule: Option<String>,
    /// Whether it passed.
    pub verdict: Option<Verdict>,
    /// Attributes, as they were sent or as the log shows them.
    pub attributes: Vec<(String, String)>,
    /// From this time on, in microseconds since the Unix epoch.
    pub from_us: Option<u64>,
    /// Before this time.
    pub to_us: Option<u64>,
    /// The most records to return.
    pub most: usize,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The newest that fit, newest first.
    pub records: Vec<Arc<Record>>,
    /// How many fit, those that are not returned included.
    pub fit: u64,
    /// How many decisions those stand for.
    pub stand_for: u64,
    /// The oldest that is kept: nothing is known of what was before.
    pub oldest_us: Option<u64>,
}

impl Query {
    /// The same with callers by their hashes alone: for those who need not know who they are.
    #[must_use]
    pub fn hidden(mut self, names: &Digester) -> Self {
        for (name, value) in &mut self.attributes {
            *value = names.masked(name, value);
        }
        self
    }
}

impl Ring {
    pub(crate) fn new(most_bytes: usize) -> Self {
        Ring { entries: VecDeque::new(), bytes: 0, most_bytes, has_dropped: false }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.bytes += entry.bytes();
        self.entries.push_back(entry);
        while self.bytes > self.most_bytes {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.bytes -= oldest.bytes();
            self.has_dropped = true;
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Since when it holds all that was kept; none where that is since the beginning.
    pub(crate) fn complete_since_us(&self) -> Option<u64> {
        self.entries.front().filter(|_| self.has_dropped).map(Entry::time_us)
    }

    /// All of them, oldest first. Cheap: they are shared.
    pub(crate) fn all(&self) -> Vec<Entry> {
        self.entries.iter().cloned().collect()
    }
}

/// Searches the decisions among `entries`, oldest first.
pub(crate) fn search(entries: &[Entry], query: &Query, names: &Digester) -> Found {
    // Hashed once: the ring holds tens of thousands of records.
    let wanted: Vec<(&str, &str, String)> = query
        .attributes
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str(), names.hash(name, value.as_bytes())))
        .collect();
    let has = |record: &Record, (name, value, hash): &(&str, &str, String)| {
        let own = record.attributes.iter().find(|(known, _)| **known == **name);
        own.is_some_and(|(_, own)| {
            **own == **value
                || **own == **hash
                || value.starts_with('#') && names.is_hash_of(value, name, own)
        })
    };
    let fits = |record: &&Arc<Record>| {
        query.domain.as_ref().is_none_or(|domain| **domain == *record.domain)
            && query.rule.as_ref().is_none_or(|rule| record.rule.as_deref() == Some(rule.as_str()))
            && query.verdict.is_none_or(|verdict| verdict == record.verdict)
            && query.from_us.is_none_or(|from| record.time_us >= from)
            && query.to_us.is_none_or(|to| record.time_us < to)
            && wanted.iter().all(|one| has(record, one))
    };
    let mut found = Found { oldest_us: entries.first().map(Entry::time_us), ..Found::default() };
    for record in entries.iter().rev().filter_map(Entry::decision).filter(fits) {
        found.fit += 1;
        found.stand_for += u64::from(record.n);
        if found.records.len() < query.most {
            found.records.push(record.clone());
        }
    }
    found
}
