//! Why a rule counts for a request, or does not: for people, never on the way of a request.

use std::fmt;

#[cfg(feature = "serde")]
use serde::Serialize;
use tidegate_core::Timestamp;

use crate::glob::Pattern;
use crate::matching::envoy::{EnvoyDomain, Step};
use crate::matching::native::{NativeDomain, Selector, may_replace};
use crate::matching::replacing::replaced_by;
use crate::matching::{Descriptor, Limits, Match, Matches, Present};
use crate::rule::{Mode, OnMissingKey, Rule};

/// What every rule of a domain makes of one request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Explanation {
    /// The domain.
    pub domain: String,
    /// Its rules, in the order of the file.
    pub rules: Vec<RuleExplanation>,
}

/// What one rule makes of a request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct RuleExplanation {
    /// The rule's name.
    pub rule: String,
    /// Whether it counts.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub outcome: RuleOutcome,
}

/// Whether a rule counts for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "outcome", rename_all = "snake_case"))]
pub enum RuleOutcome {
    /// It does.
    Counts {
        /// Whether it may refuse.
        mode: Mode,
        /// The limits that apply.
        limits: Vec<LimitExplanation>,
        /// Where they come from: `limits`, a tier, or the overrides for single keys.
        from: String,
        /// Whose cells are used: each part of the key with its value.
        key: Vec<String>,
    },
    /// It lets the request pass uncounted.
    Unlimited {
        /// Where that is said.
        from: String,
    },
    /// It would match, but the request lacks an attribute of the key.
    KeyMissing {
        /// The attribute.
        attribute: String,
        /// What happens then.
        then: OnMissingKey,
    },
    /// It matches, but another rule that matches overrides it.
    Replaced {
        /// That other rule.
        by: String,
    },
    /// It does not match.
    NotMatched {
        /// Why not.
        because: String,
    },
}

/// A limit that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct LimitExplanation {
    /// Its name.
    pub name: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// The most hits that an idle key may spend at once.
    pub limit: u64,
    /// The time in which they come back, where that is one span.
    pub window: Option<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for one in &self.rules {
            writeln!(f, "{}: {}", one.rule, one.outcome)?;
        }
        Ok(())
    }
}

impl fmt::Display for RuleOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RuleOutcome::Counts { mode, limits, from, key } => {
                f.write_str(match mode {
                    Mode::Enforce => "counts",
                    Mode::Shadow => "counts, but never refuses",
                    Mode::Quota => "counts as a quota",
                })?;
                let key = if key.is_empty() { "everybody".into() } else { key.join(", ") };
                write!(f, ", one cell for {key} (from {from})")?;
                limits.iter().try_for_each(|limit| write!(f, "\n  {limit}"))
            }
            RuleOutcome::Unlimited { from } => write!(f, "passes uncounted (from {from})"),
            RuleOutcome::KeyMissing { attribute, then: OnMissingKey::Skip } => {
                write!(f, "skipped: the key needs `{attribute}`")
            }
            RuleOutcome::KeyMissing { attribute, then: OnMissingKey::Refuse } => {
                write!(f, "refuses: the key needs `{attribute}`")
            }
            RuleOutcome::Replaced { by } => write!(f, "overridden by {by}"),
            RuleOutcome::NotMatched { because } => write!(f, "does not match: {because}"),
        }
    }
}

impl fmt::Display for LimitExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} by {}", self.name, self.limit, self.algorithm)?;
        self.window.iter().try_for_each(|window| write!(f, " in {window}"))
    }
}

/// What each rule of our own format makes of a request.
pub(crate) fn native(
    domain: &NativeDomain,
    rules: &[Rule],
    descriptor: &Descriptor<'_>,
    now: Timestamp,
) -> Vec<RuleExplanation> {
    let present = Present::read(descriptor, &domain.attributes);
    let mut found = Matches::new();
    domain.before_replacing(rules, 0, descriptor, now, &mut found);
    let outcome = |selector: &Selector| {
        let Some(one) = found.iter().find(|one| one.rule.index == selector.rule) else {
            return RuleOutcome::NotMatched { because: unmet(domain, selector, &present) };
        };
        if let Some(by) = replaced_by(one, &found, may_replace) {
            return RuleOutcome::Replaced { by: by.rule.name.clone() };
        }
        let names =
            selector.key.iter().chain(&selector.colocate).map(|attribute| domain.attributes.name(*attribute));
        let key =
            names.zip(parts(&one.key)).map(|(name, value)| format!("{name}={}", shown(value))).collect();
        let from = one.rule.limits.origin(&present, now);
        match one.limits {
            Limits::KeyMissing(then) => {
                let missing = selector.key.iter().find(|attribute| present.get(**attribute).is_none());
                let attribute = missing.map_or("", |attribute| domain.attributes.name(*attribute)).to_owned();
                RuleOutcome::KeyMissing { attribute, then }
            }
            _ => counts(one, from, key),
        }
    };
    let name = |selector: &Selector| rules[selector.rule].name.clone();
    let explain = |selector| RuleExplanation { rule: name(selector), outcome: outcome(selector) };
    domain.selectors.iter().map(explain).collect()
}

/// What each limit of envoyproxy/ratelimit's format makes of a request.
pub(crate) fn envoy(
    domain: &EnvoyDomain,
    rules: &[Rule],
    descriptor: &Descriptor<'_>,
    now: Timestamp,
) -> Vec<RuleExplanation> {
    let mut found = Matches::new();
    domain.matches(rules, &[*descriptor], now, &mut found);
    let outcome = |rule: usize, path: &[Step]| match found.iter().find(|one| one.rule.index == rule) {
        Some(one) => {
            let parts: Vec<&[u8]> = parts(&one.key).collect();
            let key = parts.chunks(2).map(|pair| format!("{}={}", shown(pair[0]), shown(pair[1]))).collect();
            counts(one, "rate_limit".into(), key)
        }
        None => RuleOutcome::NotMatched { because: off_path(path, descriptor) },
    };
    let explain = |(rule, path): &(usize, Box<[Step]>)| RuleExplanation {
        rule: rules[*rule].name.clone(),
        outcome: outcome(*rule, path),
    };
    domain.paths.iter().map(explain).collect()
}

fn counts(one: &Match<'_>, from: String, key: Vec<String>) -> RuleOutcome {
    let Limits::Enforce(limits) = one.limits else { return RuleOutcome::Unlimited { from } };
    let limits = limits
        .iter()
        .map(|limit| LimitExplanation {
            name: limit.name.clone(),
            algorithm: limit.limit.algorithm().name(),
            limit: limit.limit.quota(),
            window: limit.limit.quota_window().map(|window| window.to_string()),
        })
        .collect();
    RuleOutcome::Counts { mode: one.rule.mode, limits, from, key }
}

/// The first condition that a request does not meet.
fn unmet(domain: &NativeDomain, selector: &Selector, present: &Present<'_>) -> String {
    let Some(condition) = selector.conditions.iter().find(|condition| !condition.holds(present)) else {
        return String::new();
    };
    let name = domain.attributes.name(condition.attribute);
    match present.get(condition.attribute) {
        Some(value) => format!("`{name}` is `{}`, and must be {}", shown(value), condition.written),
        None => format!("`{name}` is absent, and must be {}", condition.written),
    }
}

/// Where a descriptor leaves the path to a limit.
fn off_path(path: &[Step], descriptor: &Descriptor<'_>) -> String {
    for (number, (step, (name, value))) in (1..).zip(path.iter().zip(descriptor.entries)) {
        let joined = [name.as_bytes(), b"_", value].concat();
        let fits = match &step.value {
            _ if step.key.contains('*') => Pattern::parse_unescaped(&step.joined()).matches(&joined),
            _ if *step.key != **name => false,
            Some(pattern) => Pattern::parse_unescaped(pattern).matches(value),
            None => true,
        };
        if !fits {
            let wanted =
                step.value.as_ref().map_or(step.key.to_string(), |value| format!("{}={value}", step.key));
            return format!("entry {number} is `{name}={}`, and must be `{wanted}`", shown(value));
        }
    }
    if path.len() != descriptor.entries.len() {
        return format!("it is {} entries deep, the descriptor {}", path.len(), descriptor.entries.len());
    }
    "a more exact descriptor, or one earlier in the file, comes first".into()
}

/// The parts of a key, each of which has its length before it.
fn parts(mut key: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length_ends = key.iter().position(|byte| *byte < 0x80)? + 1;
        let (length, rest) = key.split_at(length_ends);
        let length = length.iter().rev().fold(0, |length, byte| length << 7 | usize::from(byte & 0x7f));
        let (part, rest) = rest.split_at_checked(length)?;
        key = rest;
        Some(part)
    })
}

/// A value as text that fits a line.
fn shown(value: &[u8]) -> String {
    const LONGEST: usize = 80;
    let text = String::from_utf8_lossy(&value[..value.len().min(4 * LONGEST)]).escape_debug().to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
