//! How requests were decided when they happened, as far as our own log says: what a replay can and what it cannot repeat.

use std::collections::BTreeSet;

use tidegate_decisions::is_hash;
use tidegate_limiter::Source;
use tidegate_rules::RuleSet;

use crate::parse::Recorded;

/// Versions, and names of hashed attributes, that are told apart.
const MOST_TOLD: usize = 64;

/// How requests were decided when they happened.
#[derive(Default)]
pub(crate) struct Past {
    by_source: [u64; Source::ALL.len()],
    versions: BTreeSet<u64>,
    /// The lowest and the highest of all.
    version_range: Option<(u64, u64)>,
    last_version: Option<u64>,
    banned: u64,
    left_out: u64,
    /// Refused then by what a node remembered, and admitted now.
    from_memory: u64,
    hashed: BTreeSet<String>,
    /// Refused then and admitted now, and the other way round; none where the log does not say.
    pub(crate) otherwise: Option<[u64; 2]>,
}

impl Past {
    /// Notes a line.
    pub(crate) fn note(&mut self, recorded: &Recorded<'_>) {
        let (own, weight) = (&recorded.own, u64::from(recorded.weight));
        if let Some(source) = own.source {
            self.by_source[source as usize] += weight;
        }
        // Almost all are of the same version as the line before.
        if own.version != self.last_version
            && let Some(version) = own.version
        {
            if self.versions.len() < MOST_TOLD {
                self.versions.insert(version);
            }
            let (lowest, highest) = self.version_range.unwrap_or((version, version));
            self.version_range = Some((lowest.min(version), highest.max(version)));
            self.last_version = own.version;
        }
        self.banned += if own.banned { weight } else { 0 };
        self.left_out += if own.also_left_out > 0 { weight } else { 0 };
        for (name, value) in &recorded.attributes {
            if value.first() == Some(&b'#')
                && self.hashed.len() < MOST_TOLD
                && !self.hashed.contains(&**name)
                && std::str::from_utf8(value).is_ok_and(is_hash)
            {
                self.hashed.insert(name.to_string());
            }
        }
    }

    /// Notes what is decided now of a request that was decided then.
    pub(crate) fn compare(&mut self, recorded: &Recorded<'_>, admitted_now: bool) {
        let Some(refused_then) = recorded.refused else { return };
        let from_memory = recorded.own.source == Some(Source::DenyCache);
        self.from_memory += u64::from(from_memory && refused_then && admitted_now);
        let otherwise = self.otherwise.get_or_insert_default();
        match (refused_then, admitted_now) {
            (true, true) => otherwise[0] += 1,
            (false, false) => otherwise[1] += 1,
            _ => {}
        }
    }

    /// What a reader should know.
    pub(crate) fn notes(&self, rules: &RuleSet) -> Vec<String> {
        let mut notes = Vec::new();
        let of = |fits: &dyn Fn(Source) -> bool| {
            let sources = Source::ALL.into_iter().filter(|source| fits(*source));
            let told = sources.map(|source| (source.name(), self.by_source[source as usize]));
            let told: Vec<(&str, u64)> = told.filter(|(_, count)| *count > 0).collect();
            let list: Vec<String> = told.iter().map(|(name, count)| format!("{name} {count}")).collect();
            (told.iter().map(|(_, count)| count).sum::<u64>(), list.join(", "))
        };
        let (without, list) = of(&Source::is_without_the_store);
        if without > 0 {
            notes.push(format!(
                "{without} requests were decided without the store when they happened ({list}): here it always answers"
            ));
        }
        let (alone, list) = of(&|source| matches!(source, Source::Approximate | Source::Local));
        if alone > 0 {
            notes.push(format!(
                "{alone} requests were decided by their node, as their rules ask ({list}): here one counts for all nodes"
            ));
        }
        if self.from_memory > 0 {
            notes.push(format!(
                "{} of the requests that pass here were refused by their node's memory of an earlier refusal (deny_cache), which \
                 for up to a second does not hear what is given back through another node",
                self.from_memory
            ));
        }
        if self.banned > 0 {
            notes.push(format!(
                "{} requests were refused by a ban when they happened: here only bans count that stand in the rules",
                self.banned
            ));
        }
        if let Some((first, last)) = self.version_range.filter(|(first, last)| first < last) {
            let at_least = if self.versions.len() < MOST_TOLD { "" } else { "at least " };
            notes.push(format!(
                "the log was decided under {at_least}{} versions of rules, {first} to {last}: here the same rules decide all of it",
                self.versions.len()
            ));
        }
        if self.left_out > 0 {
            notes.push(format!(
                "{} requests had more descriptors than the log keeps: what those spent is missing here",
                self.left_out
            ));
        }
        let asked = |name: &&String| rules.domains().any(|domain| rules.asks_for(domain, name));
        let hashed: Vec<&str> = self.hashed.iter().filter(asked).map(String::as_str).collect();
        if !hashed.is_empty() {
            notes.push(format!(
                "the values of {} are hashed in the log: rules count by them here, and cannot match on them",
                hashed.join(", ")
            ));
        }
        notes
    }
}
