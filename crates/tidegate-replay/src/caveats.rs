//! How requests were decided at the time, according to the decision log: what a replay can reproduce and what it cannot.

use std::collections::BTreeSet;

use tidegate_decisions::is_hash;
use tidegate_limiter::Source;
use tidegate_rules::RuleSet;

use crate::parse::Recorded;

/// The most versions told apart.
const MOST_TOLD: usize = 64;
/// The most hashed attributes told apart, over all domains.
const MOST_HASHED: usize = 1_024;

/// How requests were decided at the time.
#[derive(Default)]
pub(crate) struct Past {
    by_source: [u64; Source::ALL.len()],
    versions: BTreeSet<u64>,
    /// The lowest and the highest of all versions.
    version_range: Option<(u64, u64)>,
    last_version: Option<u64>,
    banned: u64,
    left_out: u64,
    /// Refused at the time from a deny cache, and admitted now.
    from_memory: u64,
    /// Attributes with hashed values: domain (`None` if the log does not have it) and name.
    hashed: BTreeSet<(Option<String>, String)>,
    /// Refused at the time and admitted now, and the other way round; `None` if the log does not say.
    pub(crate) otherwise: Option<[u64; 2]>,
    /// The same for the rules compared with.
    pub(crate) before_otherwise: Option<[u64; 2]>,
}

/// What is known about hashed values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HashedValues {
    /// Only whether they are equal.
    #[default]
    Opaque,
    /// Values that rules compare with were restored from their hashes.
    LiteralsKnown,
}

/// Rules whose effect cannot be determined.
#[derive(Default)]
pub(crate) struct Unknown {
    /// Domains and names.
    rules: BTreeSet<(String, String)>,
    attributes: BTreeSet<String>,
}

impl Unknown {
    pub(crate) fn has(&self, domain: &str, rule: &str) -> bool {
        self.rules.iter().any(|(of, name)| of == domain && name == rule)
    }

    /// The message in place of a result; `None` if all is known.
    pub(crate) fn sentence(&self) -> Option<String> {
        let (domain, rule) = self.rules.first()?;
        let more = match self.rules.len() {
            1 => String::new(),
            several => format!(" and {} more", several - 1),
        };
        let names: Vec<&str> = self.attributes.iter().map(String::as_str).collect();
        let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        Some(format!(
            "unknown: the log hashes {}, and rule {domain}/{rule}{more} must know the values; add `decision_log: {{ clear: [{}] }}`",
            quoted.join(", "),
            names.join(", ")
        ))
    }
}

impl Past {
    /// Records a line.
    pub(crate) fn note(&mut self, recorded: &Recorded<'_>) {
        let (own, weight) = (&recorded.own, u64::from(recorded.weight));
        if let Some(source) = own.source {
            self.by_source[source as usize] += weight;
        }
        // Almost all have the same version as the line before.
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
            if value.first() != Some(&b'#') || self.hashed.len() >= MOST_HASHED {
                continue;
            }
            let domain = recorded.domain.as_deref();
            let is_known =
                |(of, known): &(Option<String>, String)| of.as_deref() == domain && *known == **name;
            if !self.hashed.iter().any(is_known) && std::str::from_utf8(value).is_ok_and(is_hash) {
                self.hashed.insert((domain.map(str::to_owned), name.to_string()));
            }
        }
    }

    /// Compares the decisions now, and under the rules compared with, to the recorded one.
    pub(crate) fn compare(&mut self, recorded: &Recorded<'_>, now: bool, before: Option<bool>) {
        let Some(refused_then) = recorded.refused else { return };
        let from_memory = recorded.own.source == Some(Source::DenyCache);
        self.from_memory += u64::from(from_memory && refused_then && now);
        let sides = [(&mut self.otherwise, Some(now)), (&mut self.before_otherwise, before)];
        for (otherwise, admitted) in sides.into_iter().filter_map(|(to, admitted)| Some((to, admitted?))) {
            let otherwise = otherwise.get_or_insert_default();
            otherwise[0] += u64::from(refused_then && admitted);
            otherwise[1] += u64::from(!refused_then && !admitted);
        }
    }

    /// The rules that depend on values hashed in the log; requests without a domain are in `domain`.
    pub(crate) fn unknown(&self, rules: [Option<&RuleSet>; 2], domain: &str, known: HashedValues) -> Unknown {
        let mut unknown = Unknown::default();
        for (of, attribute) in &self.hashed {
            for read in rules
                .iter()
                .flatten()
                .map(|rules| rules.values_read(of.as_deref().unwrap_or(domain), attribute))
            {
                let literal = if known == HashedValues::Opaque { &read.by_literal[..] } else { &[] };
                for rule in read.by_pattern.iter().chain(literal) {
                    unknown.rules.insert((rule.domain().to_owned(), rule.name().to_owned()));
                    unknown.attributes.insert(attribute.clone());
                }
            }
        }
        unknown
    }

    /// Caveats for the reader.
    pub(crate) fn notes(&self, rules: &RuleSet, domain: &str, unknown: &Unknown) -> Vec<String> {
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
        // If rules could not match, that is already the reason why they refuse nothing.
        if self.from_memory > 0 && unknown.rules.is_empty() {
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
        let mut shares: BTreeSet<&str> = BTreeSet::new();
        for (of, attribute) in &self.hashed {
            let read = rules.values_read(of.as_deref().unwrap_or(domain), attribute);
            shares.extend(read.by_share.iter().map(|rule| rule.name()));
        }
        if !shares.is_empty() {
            let names: Vec<&str> = shares.into_iter().collect();
            notes.push(format!(
                "keys are hashed in the log: the share of them that {} is in force for, or an experiment, has other callers \
                 here, about as many",
                names.join(", ")
            ));
        }
        notes
    }
}
