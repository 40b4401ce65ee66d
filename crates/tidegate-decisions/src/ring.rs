//! The newest lines, in bounded memory, and a search over them.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::event::Entry;
use crate::record::{Digester, Record, Verdict};

/// The newest lines, in a bounded number of bytes.
pub(crate) struct Ring {
    entries: VecDeque<Entry>,
    bytes: usize,
    most_bytes: usize,
    /// Whether any line was dropped to make room.
    has_dropped: bool,
}

/// A search. A field that is `None` or empty matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Query {
    /// The domain.
    pub domain: Option<String>,
    /// The rule that decided.
    pub rule: Option<String>,
    /// Admitted or refused.
    pub verdict: Option<Verdict>,
    /// Attributes, as sent or as logged.
    pub attributes: Vec<(String, String)>,
    /// The start, in microseconds since the Unix epoch.
    pub from_us: Option<u64>,
    /// The end, exclusive.
    pub to_us: Option<u64>,
    /// The most records to return.
    pub most: usize,
    /// Steps to count the matches in.
    #[serde(default)]
    pub steps: Option<Steps>,
}

/// Equal steps of time to count decisions in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Steps {
    /// The start of the first, in microseconds since the Unix epoch.
    pub from_us: u64,
    /// The length of each.
    pub step_us: u64,
    /// How many, at most [`Steps::MOST`].
    pub number: usize,
}

impl Steps {
    /// The most steps of one search.
    pub const MOST: usize = 1_440;

    fn place_of(self, time_us: u64) -> Option<usize> {
        let steps = time_us.checked_sub(self.from_us)?.checked_div(self.step_us)?;
        usize::try_from(steps).ok().filter(|place| *place < self.number.min(Steps::MOST))
    }
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The newest matches, newest first.
    pub records: Vec<Arc<Record>>,
    /// The number of matches, including those not returned.
    pub fit: u64,
    /// The number of decisions that the matches stand for.
    pub stand_for: u64,
    /// The time of the oldest line kept; nothing is known of the time before.
    pub oldest_us: Option<u64>,
    /// The decisions that the matches of each step stand for, admitted and refused. Empty unless steps were asked for.
    pub steps: Vec<[u64; 2]>,
}

impl Query {
    /// Replaces callers by their hashes, for viewers.
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

    /// The time since which the ring holds all kept lines; `None` if since the start.
    pub(crate) fn complete_since_us(&self) -> Option<u64> {
        self.entries.front().filter(|_| self.has_dropped).map(Entry::time_us)
    }

    /// All lines, oldest first. Cheap: they are reference counted.
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
    let steps = vec![[0; 2]; query.steps.map_or(0, |steps| steps.number.min(Steps::MOST))];
    let mut found = Found { oldest_us: entries.first().map(Entry::time_us), steps, ..Found::default() };
    for record in entries.iter().rev().filter_map(Entry::decision).filter(fits) {
        found.fit += 1;
        found.stand_for += u64::from(record.n);
        if let Some(place) = query.steps.and_then(|steps| steps.place_of(record.time_us)) {
            found.steps[place][usize::from(record.verdict == Verdict::Refused)] += u64::from(record.n);
        }
        if found.records.len() < query.most {
            found.records.push(record.clone());
        }
    }
    found
}
