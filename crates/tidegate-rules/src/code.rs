//! Rules written in Rust, by the names that they have in a rule file.
//!
//! There is one compiler and one validation: rules built here are written as a rule file, which [`Rules::compile`] then
//! parses like any other. A mistake is shown in that text, with its hint, and `Display` prints the text, for example to keep
//! it in a file from now on.
//!
//! ```
//! use std::time::Duration;
//! use tidegate_rules::code::{Concurrency, Rule, Rules, TokenBucket};
//!
//! let rules = Rules::new("api")
//!     .rule(
//!         Rule::new("per-user")
//!             .matches("path", "/v1/*")
//!             .key(["user"])
//!             .limit(TokenBucket::per_minute(100).burst(20)),
//!     )
//!     .rule(Rule::new("uploads").key(["user"]).limit(Concurrency::new(10).ttl(Duration::from_secs(60))));
//! assert_eq!(rules.compile()?.rules().len(), 2);
//! # Ok::<(), tidegate_rules::Diagnostics>(())
//! ```

mod limit;
mod text;

pub use limit::{
    CalendarWindow, Concurrency, FixedWindow, LeakyBucket, Limit, Limits, SlidingLog, SlidingWindow,
    TokenBucket,
};

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use tidegate_core::Over;

use crate::diagnostics::Diagnostics;
use crate::limits::OVER;
use crate::load::Source;
use crate::native::{ON_MISSING_KEY, ON_STORE_FAILURE, PRIORITY};
use crate::rule::{Coordination, OnMissingKey, OnStoreFailure, Priority};
use crate::ruleset::{Format, RuleSet};
use text::{Text, WrittenFields};

/// The file name of rules in code, for diagnostics.
const FILE: &str = "rules in code";

/// Rules of one or more domains: from code, and from files beside it.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    domains: Vec<(String, Vec<Rule>)>,
    files: Vec<Source>,
}

impl Rules {
    /// An empty set of rules for `domain`.
    #[must_use]
    pub fn new(domain: impl Into<String>) -> Self {
        Rules { domains: vec![(domain.into(), Vec::new())], files: Vec::new() }
    }

    /// The following rules are in `domain`.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.domains.push((domain.into(), Vec::new()));
        self
    }

    /// Adds a rule.
    #[must_use]
    pub fn rule(mut self, rule: Rule) -> Self {
        if let Some((_, rules)) = self.domains.last_mut() {
            rules.push(rule);
        }
        self
    }

    /// Adds the rules of a rule file (YAML or JSON), named `name` in diagnostics. Code and files may have rules of the same
    /// domain.
    #[must_use]
    pub fn yaml(mut self, name: &str, text: impl Into<String>) -> Self {
        self.files.push(Source::new(name, text.into()));
        self
    }

    /// The compiled set.
    ///
    /// # Errors
    /// Every mistake that was found, if there is any: a set is accepted whole or not at all.
    pub fn compile(&self) -> Result<RuleSet, Diagnostics> {
        RuleSet::compile(&self.sources(), Format::Native)
    }

    /// The code and the files, as files.
    pub(crate) fn sources(&self) -> Vec<Source> {
        let code = (!self.domains.is_empty()).then(|| Source::new(FILE, self.to_string()));
        code.into_iter().chain(self.files.iter().cloned()).collect()
    }
}

impl fmt::Display for Rules {
    /// The rules in code as a rule file, one line each.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (domain, rules)) in self.domains.iter().enumerate() {
            let (mark, none) =
                (if place > 0 { "---\n" } else { "" }, if rules.is_empty() { " []" } else { "" });
            writeln!(f, "{mark}domain: {}\nrules:{none}", Text::from(domain.as_str()))?;
            for rule in rules {
                writeln!(f, "  - {}", Text::Map(rule.fields.clone()))?;
            }
        }
        Ok(())
    }
}

/// One rule, with the fields of a rule file. Of a field that is given twice, the last one counts.
#[derive(Clone, Debug)]
#[must_use = "a rule does nothing until it is added to Rules"]
pub struct Rule {
    fields: WrittenFields,
}

impl Rule {
    /// A rule; counters, metrics and answers use its name. It needs a limit, or tiers.
    pub fn new(name: impl Into<String>) -> Self {
        Rule { fields: WrittenFields::default() }.with("name", name.into())
    }

    fn with(mut self, field: &str, value: impl Into<Text>) -> Self {
        self.fields.set(field, value.into());
        self
    }

    fn add(mut self, field: &str, value: Text) -> Self {
        self.fields.list(field).push(value);
        self
    }

    /// Applies if `attribute` matches one of `patterns` (globs). Several conditions must all hold.
    pub fn matches(self, attribute: &str, patterns: impl Into<Patterns>) -> Self {
        self.condition(attribute, patterns.into().0)
    }

    /// Applies if `attribute` is absent or matches none of `patterns`.
    pub fn matches_not(self, attribute: &str, patterns: impl Into<Patterns>) -> Self {
        self.condition(attribute, Text::map([("not", patterns.into().0)]))
    }

    fn condition(mut self, attribute: &str, condition: Text) -> Self {
        self.fields.map("match").set(attribute, condition);
        self
    }

    /// One counter per combination of values of these attributes; without a key, one for everybody.
    pub fn key(self, attributes: impl Into<NameList>) -> Self {
        self.with("key", attributes.into().0)
    }

    /// What happens to a request that lacks an attribute of the key; by default the rule skips it.
    pub fn on_missing_key(self, then: OnMissingKey) -> Self {
        self.with("on_missing_key", name_in(&ON_MISSING_KEY, then))
    }

    /// Enforces a limit. Several are enforced together, all or nothing. The shorthand of a rule file also works:
    /// `"100/minute"`.
    pub fn limit(self, limit: impl Into<Limit>) -> Self {
        self.add("limits", limit.into().0)
    }

    /// Counts nothing: for a rule that overrides others.
    pub fn unlimited(self) -> Self {
        self.with("limits", "unlimited")
    }

    /// Limits by the caller's tier, instead of the same for everybody.
    pub fn tiers(self, tiers: Tiers) -> Self {
        self.with("tiers", Text::Map(tiers.fields))
    }

    /// Other limits for single keys.
    pub fn key_override(self, one: KeyOverride) -> Self {
        self.add("key_overrides", Text::Map(one.fields))
    }

    /// Tries `limits` on a share of the keys, in per cent.
    pub fn experiment(self, split_percent: u8, limits: impl Into<Limits>) -> Self {
        let split = Text::Bare(format!("{split_percent}%"));
        self.with("experiment", Text::map([("split", split), ("limits", limits.into().0)]))
    }

    /// Counts only while this feature flag is on; `default` says what holds while nobody says whether it is.
    pub fn when_flag(self, flag: impl Into<String>, default: bool) -> Self {
        self.with("when", Text::map([("flag", Text::from(flag.into())), ("default", Text::from(default))]))
    }

    /// Enforces the rule for a share of the keys, in per cent.
    pub fn rollout(self, percent: u8) -> Self {
        self.with("rollout", Text::Bare(format!("{percent}%")))
    }

    /// Lets the rule's only limit follow demand: within bounds, by at most this many per cent per step.
    pub fn autopilot(self, bounds: RangeInclusive<u64>, step_percent: u8, every: Duration) -> Self {
        let number = |number: &u64| Text::Bare(number.to_string());
        let step = Text::Bare(format!("{step_percent}%"));
        let fields = [
            ("min", number(bounds.start())),
            ("max", number(bounds.end())),
            ("step", step),
            ("every", every.into()),
        ];
        self.with("autopilot", Text::map(fields))
    }

    /// Refuses a caller for this long once it was refused.
    pub fn penalty(self, span: Duration) -> Self {
        self.with("penalty", span)
    }

    /// Lets hits that are known only after the check ([`Spend::charge`]) exceed each limit by this many: the next request
    /// waits for them, too. Without it they fill a limit at most.
    ///
    /// [`Spend::charge`]: https://docs.rs/tidegate/latest/tidegate/struct.Spend.html#method.charge
    pub fn overdraft(self, hits: u64) -> Self {
        self.with("overdraft", hits)
    }

    /// What a cost above what is left does: refused by default.
    pub fn over(self, over: Over) -> Self {
        // A charge after the fact is what a request is; a limit that takes it is one with debts.
        let over = if over == Over::Charge { Over::Debt } else { over };
        self.with("over", name_in(&OVER, over))
    }

    /// What decides if the store does not answer.
    pub fn on_store_failure(self, then: OnStoreFailure) -> Self {
        self.with("on_store_failure", name_in(&ON_STORE_FAILURE, then))
    }

    /// How nodes share the counters.
    pub fn coordination(self, how: Coordination) -> Self {
        match how {
            Coordination::Exact => self.with("coordination", "exact"),
            Coordination::Local => self.with("coordination", "local"),
            Coordination::Approximate { sync_every } => {
                self.with("coordination", "approximate").with("sync_every", Duration::from(sync_every))
            }
            Coordination::Escrow => self.with("scope", "global"),
            Coordination::Eventual { sync_every } => {
                let global = self.with("scope", "global").with("consistency", "eventual");
                global.with("sync_every", Duration::from(sync_every))
            }
        }
    }

    /// Keeps cells with the same value of `attribute` on one node of a partitioned store.
    pub fn colocate(self, attribute: impl Into<String>) -> Self {
        self.with("colocate", attribute.into())
    }

    /// Hashes these attributes of the key, and no others. Without it, names such as `api_key` and `token` are.
    pub fn hash(self, attributes: impl Into<NameList>) -> Self {
        self.with("hash", attributes.into().0)
    }

    /// Counts and reports, but never refuses.
    pub fn shadow(self) -> Self {
        self.with("shadow", true)
    }

    /// Where this rule matches, those rules do not count.
    pub fn overrides(self, rules: impl Into<NameList>) -> Self {
        self.with("overrides", rules.into().0)
    }

    /// How critical its requests are when load is shed.
    pub fn priority(self, priority: Priority) -> Self {
        self.with("priority", name_in(&PRIORITY, priority))
    }

    /// Whether headers and bodies of answers show it; a limit against abuse is better hidden.
    pub fn visible(self, visible: bool) -> Self {
        self.with("visible", visible)
    }

    /// Whether clients may take its hits ahead and decide by themselves.
    pub fn lease_to_clients(self, leases: bool) -> Self {
        self.with("lease_to_clients", leases)
    }

    /// What it is for.
    pub fn description(self, text: impl Into<String>) -> Self {
        self.with("description", text.into())
    }

    /// Whom to ask about it.
    pub fn owner(self, name: impl Into<String>) -> Self {
        self.with("owner", name.into())
    }

    /// Whether it counts at all.
    pub fn enabled(self, enabled: bool) -> Self {
        self.with("enabled", enabled)
    }
}

/// One name of an attribute or a rule, or several: `"user"`, `["tenant", "user"]`, a list.
#[derive(Clone, Debug)]
pub struct NameList(Text);

impl From<&str> for NameList {
    fn from(name: &str) -> Self {
        NameList::from([name])
    }
}

impl From<String> for NameList {
    fn from(name: String) -> Self {
        NameList::from([name])
    }
}

impl<T: Into<String>, const N: usize> From<[T; N]> for NameList {
    fn from(names: [T; N]) -> Self {
        names.into_iter().collect()
    }
}

impl<T: Into<String>> From<Vec<T>> for NameList {
    fn from(names: Vec<T>) -> Self {
        names.into_iter().collect()
    }
}

impl<T: Into<String>> FromIterator<T> for NameList {
    fn from_iter<I: IntoIterator<Item = T>>(names: I) -> Self {
        NameList(Text::list(names.into_iter().map(|name| Text::from(name.into()))))
    }
}

/// One glob, or several of which one must match.
#[derive(Clone, Debug)]
pub struct Patterns(Text);

impl From<&str> for Patterns {
    fn from(pattern: &str) -> Self {
        Patterns(Text::from(pattern))
    }
}

impl From<String> for Patterns {
    fn from(pattern: String) -> Self {
        Patterns(Text::from(pattern))
    }
}

impl<const N: usize> From<[&str; N]> for Patterns {
    fn from(patterns: [&str; N]) -> Self {
        Patterns(Text::list(patterns.into_iter().map(Text::from)))
    }
}

impl From<Vec<String>> for Patterns {
    fn from(patterns: Vec<String>) -> Self {
        Patterns(Text::list(patterns.into_iter().map(Text::from)))
    }
}

/// Limits by tier: `Tiers::on("plan").tier("free", "100/minute").default_tier("free")`.
#[derive(Clone, Debug)]
#[must_use]
pub struct Tiers {
    fields: WrittenFields,
}

impl Tiers {
    /// Tiers named by the attribute `attribute`.
    pub fn on(attribute: impl Into<String>) -> Self {
        let mut fields = WrittenFields::default();
        fields.set("on", Text::from(attribute.into()));
        Tiers { fields }
    }

    /// The limits of the tier `name`.
    pub fn tier(mut self, name: &str, limits: impl Into<Limits>) -> Self {
        self.fields.set(name, limits.into().0);
        self
    }

    /// The tier of callers without one, or with an unknown one.
    pub fn default_tier(mut self, name: impl Into<String>) -> Self {
        self.fields.set("default", Text::from(name.into()));
        self
    }
}

/// Other limits for callers with exactly these values.
#[derive(Clone, Debug)]
#[must_use]
pub struct KeyOverride {
    fields: WrittenFields,
}

impl KeyOverride {
    /// The limits of callers whose `attribute` is `value`.
    pub fn when(attribute: &str, value: impl Into<String>, limits: impl Into<Limits>) -> Self {
        let mut fields = WrittenFields::default();
        fields.set("when", Text::Map(WrittenFields::default()));
        fields.set("limits", limits.into().0);
        KeyOverride { fields }.and(attribute, value)
    }

    /// And whose other attribute has this value.
    pub fn and(mut self, attribute: &str, value: impl Into<String>) -> Self {
        self.fields.map("when").set(attribute, Text::from(value.into()));
        self
    }

    /// The expiry: a time such as `2027-01-01T00:00:00Z`.
    pub fn until(mut self, moment: impl Into<String>) -> Self {
        self.fields.set("until", Text::from(moment.into()));
        self
    }

    /// Whether limits of the rule that it does not name stay.
    pub fn keep_others(mut self, keep: bool) -> Self {
        self.fields.set("keep_others", Text::from(keep));
        self
    }
}

fn name_in<T: PartialEq>(names: &[(&'static str, T)], value: T) -> &'static str {
    names.iter().find(|(_, known)| *known == value).map_or("", |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use crate::limits::LIMIT_FIELDS;
    use crate::native::{AUTOPILOT_FIELDS, EXPERIMENT_FIELDS, KEY_OVERRIDE_FIELDS, RULE_FIELDS};

    #[test]
    fn every_field_of_the_rule_language_can_be_written_in_code() {
        let source = concat!(include_str!("code/limit.rs"), include_str!("code.rs"));
        let fields = RULE_FIELDS
            .iter()
            .chain(&LIMIT_FIELDS)
            .chain(&KEY_OVERRIDE_FIELDS)
            .chain(&EXPERIMENT_FIELDS)
            .chain(&AUTOPILOT_FIELDS);
        let code = source.split("#[cfg(test)]").next().unwrap_or_default();
        for field in fields {
            assert!(code.contains(&format!("\"{field}\"")), "`{field}` cannot be written in code");
        }
    }
}
