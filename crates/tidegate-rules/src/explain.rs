//! Explains why a rule counts for a request or does not: for people, never on the request path.

use std::collections::BTreeMap;
use std::fmt;

#[cfg(feature = "serde")]
use serde::Serialize;
use tidegate_core::{Hits, Micros, Over, Timestamp};

use crate::algorithms::properties;
use crate::flags::FlagStates;
use crate::glob::Pattern;
use crate::matching::envoy::{EnvoyDomain, Step};
use crate::matching::native::{NativeDomain, Selector, may_replace};
use crate::matching::replacing::replaced_by;
use crate::matching::{Descriptor, Match, MatchedLimits, Matches, Present};
use crate::rule::{Coordination, Mode, OnMissingKey, Rule};

/// The outcome of every rule of a domain for one request.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(Serialize))]
pub struct Explanation {
    /// The domain.
    pub domain: String,
    /// Its rules, matching ones first, each in the order of the file.
    pub rules: Vec<RuleExplanation>,
}

/// The outcome of one rule for a request.
#[derive(Clone, Debug)]
pub struct RuleExplanation {
    /// The rule's name.
    pub rule: String,
    /// Whether it counts.
    pub outcome: RuleOutcome,
}

/// For programs, with the text for people beside it, so that programs need not write their own.
#[cfg(feature = "serde")]
impl Serialize for RuleExplanation {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct WithWords<'e> {
            rule: &'e str,
            says: String,
            #[serde(flatten)]
            outcome: &'e RuleOutcome,
        }
        let RuleExplanation { rule, outcome } = self;
        WithWords { rule, says: outcome.to_string(), outcome }.serialize(serializer)
    }
}

impl RuleExplanation {
    /// The outcome of a ban of a whole domain.
    pub(crate) fn of_override(one: &Match<'_>) -> Self {
        RuleExplanation {
            rule: one.rule.name.clone(),
            outcome: counts(one, String::new(), Vec::new(), Vec::new()),
        }
    }
}

/// The outcome of a rule for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(Serialize))]
#[cfg_attr(feature = "serde", serde(tag = "outcome", rename_all = "snake_case"))]
#[non_exhaustive]
pub enum RuleOutcome {
    /// It counts.
    Counts {
        /// Whether it may refuse.
        mode: Mode,
        /// The limits that apply.
        limits: Vec<LimitExplanation>,
        /// Where they come from: `limits`, a tier, or an override of a single key.
        from: String,
        /// The key of its cells: each part with its value.
        key: Vec<String>,
        /// Notes: expired overrides, an unknown tier, a rollout, an experiment, a penalty.
        #[cfg_attr(feature = "serde", serde(skip_serializing_if = "Vec::is_empty"))]
        notes: Vec<String>,
    },
    /// It admits the request uncounted.
    Unlimited {
        /// Where that is configured.
        from: String,
    },
    /// It refuses: the key is banned.
    Banned {
        /// The remaining time, in microseconds; `None` for ever.
        retry_after_us: Option<u64>,
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
    /// It would match, but is not in force for this request.
    Off {
        /// Why not.
        because: String,
    },
}

impl RuleOutcome {
    /// Whether the rule matches, so that it takes part in the decision or would but for another rule.
    #[must_use]
    pub fn is_match(&self) -> bool {
        !matches!(self, RuleOutcome::NotMatched { .. } | RuleOutcome::Off { .. })
    }
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
    /// The window in which they come back, if it is a fixed duration.
    pub window: Option<String>,
    /// Its other fields, as a rule has them: `rate`, `burst`, `min_interval`, `count_refused`, `max_delay`, `ttl`.
    #[cfg_attr(feature = "serde", serde(flatten))]
    pub fields: BTreeMap<&'static str, String>,
}

impl Explanation {
    /// Only the rules that match, and the number of others.
    #[must_use]
    pub fn matching(&self) -> (Explanation, usize) {
        let rules: Vec<RuleExplanation> =
            self.rules.iter().filter(|one| one.outcome.is_match()).cloned().collect();
        let others = self.rules.len() - rules.len();
        (Explanation { domain: self.domain.clone(), rules }, others)
    }
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
            RuleOutcome::Counts { mode, limits, from, key, notes } => {
                f.write_str(match mode {
                    Mode::Enforce => "counts",
                    Mode::Shadow => "counts, but never refuses",
                    Mode::Quota => "counts as a quota",
                })?;
                let key = if key.is_empty() { "everybody".into() } else { key.join(", ") };
                write!(f, ", one cell for {key} (from {from})")?;
                limits.iter().try_for_each(|limit| write!(f, "\n  {limit}"))?;
                notes.iter().try_for_each(|note| write!(f, "\n  note: {note}"))
            }
            RuleOutcome::Banned { retry_after_us } => {
                f.write_str("refuses: the key is banned")?;
                let longer = retry_after_us.map(|longer| Micros::new(longer).to_string());
                longer.iter().try_for_each(|longer| write!(f, " for another {longer}"))
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
            RuleOutcome::Off { because } => write!(f, "is off: {because}"),
        }
    }
}

impl fmt::Display for LimitExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} by {}", self.name, self.limit, self.algorithm)?;
        self.window.iter().try_for_each(|window| write!(f, " in {window}"))?;
        self.fields.iter().try_for_each(|(name, value)| write!(f, ", {name} {value}"))
    }
}

/// The outcomes of the rules of a native domain.
pub(crate) fn native(
    domain: &NativeDomain,
    (rules, flags): (&[Rule], &FlagStates),
    descriptor: &Descriptor<'_>,
    now: Timestamp,
) -> Vec<RuleExplanation> {
    let present = Present::read(descriptor, &domain.attributes);
    let mut found = Matches::new();
    domain.before_replacing((rules, flags), 0, descriptor, now, &mut found);
    let outcome = |selector: &Selector| {
        let Some(one) = found.iter().find(|one| one.rule.index == selector.rule) else {
            return not_found(domain, selector, (&rules[selector.rule], flags), &present);
        };
        if let Some(by) = replaced_by(one, &found, may_replace) {
            return RuleOutcome::Replaced { by: by.rule.name.clone() };
        }
        let names =
            selector.key.iter().chain(&selector.colocate).map(|attribute| domain.attributes.name(*attribute));
        let key =
            names.zip(parts(&one.key)).map(|(name, value)| format!("{name}={}", shown(value))).collect();
        let from = one.rule.limits.origin(&present, &one.key, now);
        match one.limits {
            MatchedLimits::KeyMissing(then) => {
                let missing = selector.key.iter().find(|attribute| present.get(**attribute).is_none());
                let attribute = missing.map_or("", |attribute| domain.attributes.name(*attribute)).to_owned();
                RuleOutcome::KeyMissing { attribute, then }
            }
            _ => counts(one, from, key, notes(one, &present, now, flags)),
        }
    };
    let name = |selector: &Selector| rules[selector.rule].name.clone();
    let explain = |selector| RuleExplanation { rule: name(selector), outcome: outcome(selector) };
    matching_first(domain.selectors.iter().map(explain).collect())
}

fn matching_first(mut rules: Vec<RuleExplanation>) -> Vec<RuleExplanation> {
    rules.sort_by_key(|one| !one.outcome.is_match());
    rules
}

/// The outcomes of the limits of an envoyproxy/ratelimit domain.
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
            counts(one, "rate_limit".into(), key, Vec::new())
        }
        None => RuleOutcome::NotMatched { because: off_path(path, descriptor) },
    };
    let explain = |(rule, path): &(usize, Box<[Step]>)| RuleExplanation {
        rule: rules[*rule].name.clone(),
        outcome: outcome(*rule, path),
    };
    matching_first(domain.paths.iter().map(explain).collect())
}

/// Why a rule was not found by the matcher.
fn not_found(
    domain: &NativeDomain,
    selector: &Selector,
    (rule, flags): (&Rule, &FlagStates),
    present: &Present<'_>,
) -> RuleOutcome {
    if let Some(because) = unmet(domain, selector, present) {
        return RuleOutcome::NotMatched { because };
    }
    let because = match (rule.rollout(), rule.flag()) {
        _ if !rule.is_enabled() => "it says `enabled: false`".to_owned(),
        (_, Some(flag)) if flags.keep_off(rule) => flags.says(flag),
        (Some(share), _) => format!("this key is not among the {share} that it is rolled out to"),
        (None, _) => String::new(),
    };
    RuleOutcome::Off { because }
}

/// Notes about a rule that counts.
fn notes(one: &Match<'_>, present: &Present<'_>, now: Timestamp, flags: &FlagStates) -> Vec<String> {
    let choice = &one.rule.limits;
    let mut notes: Vec<String> = one.rule.flag().map(|flag| flags.says(flag)).into_iter().collect();
    if let Some(tier) = choice.unknown_tier(present) {
        notes.push(format!("the tier `{}` is unknown, so the default applies", shown(tier)));
    }
    for (number, until) in choice.expired(present, now) {
        notes.push(format!("key_overrides, number {}, ended at {}", number + 1, moment(until)));
    }
    if let Some(share) = one.rule.rollout() {
        notes.push(format!("rolled out to {share} of keys, this one among them"));
    }
    if let (Some(share), Some(variant)) = (one.rule.experiment(), one.variant) {
        notes.push(format!("experiment on {share} of keys: this one is in `{}`", variant.name()));
    }
    if let Some(penalty) = one.rule.penalty().and_then(|penalty| penalty.limit.quota_window()) {
        notes.push(format!("once refused, refused for {penalty}"));
    }
    if one.rule.overdraft() > Hits::ZERO {
        notes.push(format!("charges after the fact may go {} beyond a limit", one.rule.overdraft().get()));
    }
    notes.extend(over_notes(one));
    notes.extend(global_note(one.rule.coordination()));
    notes.extend(held_note(one));
    notes
}

/// Where a rule for all regions is counted.
fn global_note(coordination: Coordination) -> Option<String> {
    match coordination {
        Coordination::Escrow => Some("counted at home for all regions, before hits are spent".to_owned()),
        Coordination::Eventual { sync_every } => Some(format!(
            "counted at home for all regions, which decide at once and report every {sync_every}"
        )),
        Coordination::Exact | Coordination::Approximate { .. } | Coordination::Local => None,
    }
}

/// For how long clients may hold its hits, which its limits allow for.
fn held_note(one: &Match<'_>) -> Option<String> {
    let MatchedLimits::Enforce(limits) = one.limits else { return None };
    let held = limits.iter().filter_map(|limit| limit.held).min()?;
    Some(format!("clients may take hits and spend them within {held}, which the limits above allow for"))
}

/// What a cost above what is left does, where it is not just refused.
fn over_notes(one: &Match<'_>) -> Vec<String> {
    let MatchedLimits::Enforce(limits) = one.limits else { return Vec::new() };
    let counted = limits.iter().filter(|limit| !limit.limit.takes_lease());
    let over: Vec<Over> = counted.map(|limit| limit.over.unwrap_or(one.rule.over())).collect();
    let means = [
        (Over::Debt, "a cost above what is left is refused and counted: time repays it"),
        (Over::Cap, "a cost above what is left takes what is left, and passes"),
    ];
    let used = means.into_iter().filter(|(what, _)| over.contains(what));
    used.map(|(_, text)| text.to_owned()).collect()
}

fn moment(time: Timestamp) -> String {
    let micros = i64::try_from(time.as_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map_or_else(|_| "?".to_owned(), |moment| moment.to_string())
}

/// Applies an override of a single key to a rule that would count.
pub(crate) fn overridden(one: &Match<'_>, outcome: &mut RuleOutcome) {
    let from = "an override of this key".to_owned();
    match std::mem::replace(outcome, RuleOutcome::Unlimited { from: String::new() }) {
        RuleOutcome::Counts { key, .. } => *outcome = counts(one, from, key, Vec::new()),
        RuleOutcome::Unlimited { .. } => *outcome = counts(one, from, Vec::new(), Vec::new()),
        other => *outcome = other,
    }
}

fn counts(one: &Match<'_>, from: String, key: Vec<String>, notes: Vec<String>) -> RuleOutcome {
    if let MatchedLimits::Banned { retry_after } = one.limits {
        return RuleOutcome::Banned { retry_after_us: retry_after.map(Micros::get) };
    }
    let MatchedLimits::Enforce(limits) = one.limits else { return RuleOutcome::Unlimited { from } };
    let limits = limits
        .iter()
        .map(|limit| LimitExplanation {
            name: limit.name.clone(),
            algorithm: limit.limit.algorithm().name(),
            limit: limit.limit.quota(),
            window: limit.limit.quota_window().map(|window| window.to_string()),
            fields: properties(&limit.limit),
        })
        .collect();
    RuleOutcome::Counts { mode: one.rule.mode, limits, from, key, notes }
}

/// The first condition that a request does not meet.
fn unmet(domain: &NativeDomain, selector: &Selector, present: &Present<'_>) -> Option<String> {
    let condition = selector.conditions.iter().find(|condition| !condition.holds(present))?;
    let name = domain.attributes.name(condition.attribute);
    Some(match present.get(condition.attribute) {
        Some(value) => format!("`{name}` is `{}`, and must be {}", shown(value), condition.written),
        None => format!("`{name}` is absent, and must be {}", condition.written),
    })
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

/// The parts of a key, each prefixed with its length.
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
