//! One line of the log, and the hashing of callers.

use std::borrow::Cow;
use std::hash::Hasher as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{Decided, Incurred, LeaseToken, Patience, Report, ReportKind, RuleResult};
use tidegate_rules::Match;

use crate::config::Clear;
use crate::event::as_mark;
use crate::extra_descriptors::{AlsoAsked, OwnLimit, also_asked, own_limit};

/// The most attributes in a line, and the longest names and values.
const MOST_ATTRIBUTES: usize = 16;
pub(crate) const LONGEST_NAME: usize = 64;
const LONGEST_VALUE: usize = 256;

/// When a request was made, decided and answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct When {
    pub(crate) time_us: u64,
    /// By the store's clock, if it reported the time.
    pub(crate) decided_us: Option<u64>,
    pub(crate) answered_in_us: u64,
}

impl When {
    /// The middle: only the store knows the exact time, and this minimizes the error.
    pub(crate) fn between(asked: Timestamp, answered_us: u64, decided: Option<Timestamp>) -> Self {
        let answered_in_us = answered_us.saturating_sub(asked.as_micros());
        let decided_us = decided.map(Timestamp::as_micros);
        When { time_us: answered_us - answered_in_us / 2, decided_us, answered_in_us }
    }
}

/// Whether a request was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It was.
    Admitted,
    /// It was not.
    Refused,
}

/// One logged decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Record {
    /// The time in microseconds since the Unix epoch, by the node's clock.
    pub time_us: u64,
    /// The same by the store's clock, if the store decided: nodes that share a store agree on the order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_us: Option<u64>,
    /// The position among several requests that one store call decided at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nth: Option<u32>,
    /// The domain.
    pub domain: Box<str>,
    /// The rule whose numbers the caller received; `None` if no rule matched.
    pub rule: Option<Box<str>>,
    /// Whether it was admitted.
    pub verdict: Verdict,
    /// The limit's number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// What remained of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// When to retry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u64>,
    /// Shadow rules that would have refused it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub shadow_refused: Vec<Box<str>>,
    /// What decided it.
    pub source: &'static str,
    /// The node.
    #[serde(serialize_with = "as_text")]
    pub node: Arc<str>,
    /// The version of the rules: the published version or, if rules come from files, the number of rule sets that this node
    /// has taken into use.
    pub version: u64,
    /// The number of decisions that this one stands for.
    pub n: u32,
    /// The hits that it spent, or would have spent.
    pub cost: u64,
    /// How long the answer took: it was decided at most half of that before or after `time_us`.
    pub answered_in_us: u64,
    /// Whether a ban refused it.
    #[serde(skip_serializing_if = "is_false")]
    pub banned: bool,
    /// Whether the caller could be asked to wait (leaky bucket).
    #[serde(skip_serializing_if = "is_true")]
    pub waits: bool,
    /// Whether its cost was incurred before it was known, and charged whatever was left.
    #[serde(skip_serializing_if = "is_false")]
    pub incurred: bool,
    /// The mark of the lease that it took. The end of the lease is a separate line with the same mark.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_mark")]
    pub lease: Option<u64>,
    /// The limit that came with the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_limit: Option<OwnLimit>,
    /// The attributes that form the rule's key.
    pub key: Vec<Box<str>>,
    /// The logged attributes of the request: names, and values in clear or hashed.
    #[serde(serialize_with = "as_map")]
    pub attributes: Vec<(Box<str>, Box<str>)>,
    /// Its other descriptors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<AlsoAsked>,
    /// How many of them precede the descriptor of this line.
    #[serde(skip_serializing_if = "is_zero")]
    pub also_before: usize,
    /// The number of further descriptors left out.
    #[serde(skip_serializing_if = "is_zero")]
    pub also_left_out: usize,
    /// Whether its descriptors are alternative readings of one request.
    #[serde(skip_serializing_if = "is_false")]
    pub readings: bool,
}

impl Record {
    pub(crate) fn new(
        decided: &Decided<'_>,
        (When { time_us, decided_us, answered_in_us }, n): (When, u32),
        node: Arc<str>,
        names: &Digester,
    ) -> Self {
        let (request, decision) = (decided.request, decided.decision);
        let governing = decision.governing();
        let rule = governing.and_then(|report| decision.rule_of(report));
        let place = governing.map_or(0, |report| report.descriptor);
        let ask = request.descriptors.get(place);
        let (also, also_left_out) = also_asked(request, place, names);
        let is_ban = |report: &&Report| matches!(report.kind, ReportKind::Banned { .. });
        let limit = governing.and_then(|report| report.limit());
        let matches = || decided.by_match().map(|(found, ..)| found);
        let shadow = decided.by_match().filter(|(_, result, _)| *result == RuleResult::ShadowRefused);
        Record {
            time_us,
            decided_us,
            nth: decision.decided_nth(),
            domain: short(request.domain),
            rule: rule.map(|rule| short(rule.name())),
            verdict: if decision.allowed { Verdict::Admitted } else { Verdict::Refused },
            limit: limit.map(|limit| limit.quota),
            remaining: limit.map(|limit| limit.outcome.remaining),
            retry_after_ms: governing.and_then(|report| report.retry_after()).map(Micros::as_millis_ceil),
            shadow_refused: shadow.map(|(found, ..)| short(found.rule.name())).collect(),
            source: decision.source.name(),
            node,
            version: decision.rules_version(),
            n,
            cost: ask.map_or(0, |ask| ask.cost.get()),
            answered_in_us,
            banned: governing.as_ref().is_some_and(is_ban),
            waits: request.patience == Patience::Waits,
            incurred: ask.is_some_and(|ask| ask.incurred == Incurred::Already),
            lease: decision.lease.as_ref().map(LeaseToken::mark),
            own_limit: ask.and_then(own_limit),
            key: rule
                .map(|rule| rule.key().iter().map(|name| cut(name, LONGEST_NAME)).collect())
                .unwrap_or_default(),
            attributes: ask
                .map(|ask| names.attributes(&most_telling(matches(), ask.descriptor.entries)))
                .unwrap_or_default(),
            also_before: place.min(also.len()),
            also,
            also_left_out,
            readings: decided.of_readings,
        }
    }

    /// Its approximate size in memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, value)| name.len() + value.len() + 32);
        let key = self.key.iter().chain(&self.shadow_refused).map(|name| name.len() + 16);
        let texts = self.domain.len() + self.rule.as_ref().map_or(0, |rule| rule.len());
        let also: usize = self.also.iter().map(AlsoAsked::bytes).sum();
        size_of::<Record>() + texts + also + attributes.sum::<usize>() + key.sum::<usize>()
    }

    /// The line, without the line break.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("a record is plain data")
    }
}

/// The attributes to log, bounded: those that a rule counts by come first, because a caller is found by its key.
pub(crate) fn most_telling<'s, 'e, 'm>(
    matches: impl Iterator<Item = &'m Match<'m>>,
    entries: &'s [(&'e str, &'e [u8])],
) -> Cow<'s, [(&'e str, &'e [u8])]> {
    if entries.len() <= MOST_ATTRIBUTES {
        return entries.into();
    }
    let keys: Vec<&str> = matches.flat_map(|found| found.rule.key()).map(String::as_str).collect();
    let is_key = |name: &str| keys.contains(&name);
    let (keys, others): (Vec<_>, Vec<_>) = entries.iter().partition(|(name, _)| is_key(name));
    keys.into_iter().chain(others).take(MOST_ATTRIBUTES).collect()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_true(flag: &bool) -> bool {
    *flag
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
pub(crate) fn is_zero(count: &usize) -> bool {
    *count == 0
}

pub(crate) fn as_text<S: serde::Serializer>(text: &Arc<str>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(text)
}

pub(crate) fn as_map<S: serde::Serializer>(pairs: &[(Box<str>, Box<str>)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

pub(crate) fn short(text: &str) -> Box<str> {
    cut(text, LONGEST_VALUE)
}

fn cut(text: &str, most: usize) -> Box<str> {
    text[..text.floor_char_boundary(most)].into()
}

/// Whether a text looks like a hashed value. Callers may send such values, too.
#[must_use]
pub fn is_hash(text: &str) -> bool {
    let digits = text.strip_prefix('#').filter(|digits| digits.len() == 16);
    digits.is_some_and(|digits| digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')))
}

/// Names callers: in clear, or by a keyed hash that only holders of the secret can compute.
pub struct Digester {
    keys: [u64; 2],
    clear: Clear,
}

impl Digester {
    pub(crate) fn new(secret: Option<&str>, clear: Clear) -> Self {
        let keys = match secret {
            Some(secret) => {
                let mut hasher = SipHasher13::new_with_keys(0x6465_6369_7369_6f6e, 0x6c6f_6720_6b65_7973);
                hasher.write(secret.as_bytes());
                let hash = hasher.finish128();
                [hash.h1, hash.h2]
            }
            None => {
                let random = || getrandom::u64().expect("the system has random numbers");
                [random(), random()]
            }
        };
        Digester { keys, clear }
    }

    /// The hash of an attribute's value: `#` and sixteen hexadecimal digits.
    #[must_use]
    pub fn hash(&self, name: &str, value: &[u8]) -> String {
        let mut hasher = SipHasher13::new_with_keys(self.keys[0], self.keys[1]);
        hasher.write_usize(name.len());
        hasher.write(name.as_bytes());
        hasher.write(value);
        let hash = hasher.finish128().h1;
        // By hand: this runs for every attribute of every line, and `format!` takes ten times as long.
        let mut text = [b'#'; 17];
        for (place, digit) in text[1..].iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(hash >> (60 - 4 * place) & 15) as usize];
        }
        str::from_utf8(&text).expect("digits").to_owned()
    }

    /// A number for a caller, the same on all nodes with the same secret.
    pub(crate) fn caller(&self, key: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.keys[0], self.keys[1]);
        hasher.write(key);
        hasher.finish128().h2
    }

    /// An attribute's value as shown and logged.
    #[must_use]
    pub fn shown(&self, name: &str, value: &[u8]) -> String {
        if !self.clear.has(name) {
            return self.hash(name, value);
        }
        match std::str::from_utf8(value) {
            // A shortened value could match another caller's, so its hash is appended.
            Ok(text) if text.len() > LONGEST_VALUE => {
                let start = &text[..text.floor_char_boundary(LONGEST_VALUE - 17)];
                format!("{start}{}", self.hash(name, value))
            }
            Ok(text) => text.to_owned(),
            Err(_) => self.hash(name, value),
        }
    }

    /// Whether the values of this attribute are logged in clear.
    #[must_use]
    pub fn is_clear(&self, name: &str) -> bool {
        self.clear.has(name)
    }

    /// What a viewer sees of a logged value: its hash.
    #[must_use]
    pub fn masked(&self, name: &str, shown: &str) -> String {
        if is_hash(shown) { shown.to_owned() } else { self.hash(name, shown.as_bytes()) }
    }

    /// Whether `hash` is the hash of a value that is shown in clear, whole or shortened with its hash appended.
    pub(crate) fn is_hash_of(&self, hash: &str, name: &str, shown: &str) -> bool {
        !is_hash(shown) && (self.hash(name, shown.as_bytes()) == hash || shown.ends_with(hash))
    }

    /// The attributes of a descriptor as logged.
    pub(crate) fn attributes(&self, entries: &[(&str, &[u8])]) -> Vec<(Box<str>, Box<str>)> {
        let shown = |(name, value): &(&str, &[u8])| {
            (cut(name, LONGEST_NAME), self.shown(name, value).into_boxed_str())
        };
        entries.iter().take(MOST_ATTRIBUTES).map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_hashed_unless_it_is_listed_as_clear() {
        let names = Digester::new(Some("secret"), Clear::Only(vec!["path".to_owned()]));
        assert_eq!(names.shown("path", b"/items"), "/items");
        let user = names.shown("user", b"42");
        assert!(user.starts_with('#') && user.len() == 17, "{user}");
        assert_ne!(user, names.shown("ip", b"42"), "the name is part of it");
        assert_eq!(user, Digester::new(Some("secret"), Clear::Only(Vec::new())).shown("user", b"42"));
        assert_ne!(user, Digester::new(Some("other"), Clear::Only(Vec::new())).shown("user", b"42"));
        assert_ne!(user, Digester::new(None, Clear::Only(Vec::new())).shown("user", b"42"));
        assert_eq!(names.masked("path", "/items"), names.hash("path", b"/items"));
        assert_eq!(names.masked("user", &user), user, "it is hidden already");
    }

    #[test]
    fn all_in_clear_leaves_out_what_is_named_like_a_secret_unless_it_is_listed() {
        let all = Digester::new(Some("secret"), Clear::All);
        assert_eq!(all.shown("user", b"42"), "42");
        assert!(is_hash(&all.shown("api_key", b"sk-1")) && is_hash(&all.shown("Authorization", b"Bearer x")));
        let listed = Digester::new(Some("secret"), Clear::Only(vec!["api_key".to_owned()]));
        assert_eq!(listed.shown("api_key", b"sk-1"), "sk-1");
    }

    #[test]
    fn a_value_that_only_begins_like_a_hash_is_hidden_from_a_viewer_and_found_by_its_own() {
        let names = Digester::new(Some("secret"), Clear::All);
        for sent in ["#secret-key", "#", "#0123456789abcde", "#0123456789ABCDEF", "#0123456789abcdef0"] {
            let hash = names.hash("user", sent.as_bytes());
            assert_eq!(names.masked("user", sent), hash, "{sent}");
            assert!(names.is_hash_of(&hash, "user", sent), "{sent}");
        }
    }

    #[test]
    fn long_values_are_cut_and_stay_apart() {
        let names = Digester::new(None, Clear::All);
        let long = |last: &str| format!("{}{last}", "ä".repeat(400));
        let (one, other) = (names.shown("a", long("1").as_bytes()), names.shown("a", long("2").as_bytes()));
        assert!(one.len() <= LONGEST_VALUE && one != other);
        assert!(names.shown("a", b"\xff").starts_with('#'));
        // Both are found by the hash of the value sent.
        let hash = names.hash("a", long("1").as_bytes());
        assert!(names.is_hash_of(&hash, "a", &one) && !names.is_hash_of(&hash, "a", &other));
        assert!(names.is_hash_of(&names.hash("a", b"x"), "a", "x"));
    }
}
