//! Runtime overrides of single keys: other limits, none at all, or a ban, while rules are in use.
//!
//! They are applied to the matches, so that rules know nothing of them, and found by the value of one attribute: a hundred
//! thousand of them cost a request one lookup for each attribute that some of them use. Each expires on its own.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;
use smallvec::SmallVec;
use tidegate_core::Timestamp;

use crate::calendar::Calendars;
use crate::choice::LimitSet;
use crate::diagnostics::Report;
use crate::limits::LimitReader;
use crate::load::Source;
use crate::matching::{CellKeyBytes, Descriptor, Match, MatchedLimits, Matches};
use crate::native::keeps_scope;
use crate::room::{RoomOf, check_set};
use crate::rule::Rule;
use crate::ruleset::RuleSet;
use crate::yaml;

/// The name of the rule that carries the bans of a whole domain. No rule of a file has it: names in brackets are our own.
pub(crate) const BAN: &str = "(ban)";

/// Why an override without attributes is rejected.
const FOR_EVERYBODY: &str = "it names no attribute, so it would be for everybody";

/// An override of a single key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeOverride {
    /// The domain.
    pub domain: String,
    /// The rule; `None` for every rule of the domain.
    pub rule: Option<String>,
    /// Attributes and their values; all must hold.
    pub when: Vec<(String, String)>,
    /// Its effect.
    pub effect: OverrideEffect,
    /// When it expires; `None` for never.
    pub until: Option<Timestamp>,
}

/// The effect of an override.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideEffect {
    /// The key gets these limits: YAML, as in a rule's `limits`.
    Limits(String),
    /// The key is admitted uncounted.
    Unlimited,
    /// The key is refused.
    Ban,
}

/// An override without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverrideProblem {
    /// Its index in the list.
    pub place: usize,
    /// Why.
    pub message: String,
}

/// The overrides of one domain.
#[derive(Debug, Default)]
pub(crate) struct Overrides {
    list: Vec<Override>,
    /// By the value of the most selective attribute.
    by_value: Vec<(Box<str>, ByValue)>,
    /// The index, among the carriers, of the rule for bans of the whole domain.
    carrier: Option<usize>,
}

/// The indexes of rules, by domain and name.
type Names = HashMap<Box<str>, HashMap<Box<str>, usize, RandomState>, RandomState>;

/// An attribute and its required value.
type Held = (Box<str>, Box<[u8]>);

type ByValue = HashMap<Box<[u8]>, SmallVec<[u32; 1]>, RandomState>;

#[derive(Debug)]
struct Override {
    /// The rule's index; `None` for all rules.
    rule: Option<usize>,
    when: Box<[Held]>,
    effect: Effect,
    until: Option<Timestamp>,
}

#[derive(Debug)]
enum Effect {
    /// Shared with all others of the rule that have the same limits.
    Limits(Arc<LimitSet>),
    Ban,
}

impl Override {
    fn holds(&self, descriptor: &Descriptor<'_>, now: Timestamp) -> bool {
        let has = |(name, value): &Held| value_of(descriptor, name) == Some(&**value);
        self.until.is_none_or(|until| now < until) && self.when.iter().all(has)
    }

    /// Of those that apply to a request the highest rank wins: a ban over all, one rule's over the whole domain's.
    fn rank(&self) -> u8 {
        match (&self.effect, self.rule) {
            (Effect::Limits(_), None) => 0,
            (Effect::Limits(_), Some(_)) => 1,
            (Effect::Ban, _) => 2,
        }
    }
}

impl RuleSet {
    /// The same rules with these overrides in place of the current ones. One that is invalid, because its rule is gone or
    /// its limits have a mistake, is left out and reported: it must not keep the others, or the rules, from being used. The
    /// rules are not compiled again.
    #[must_use]
    pub fn with_overrides(&self, overrides: &[RuntimeOverride]) -> (Self, Vec<OverrideProblem>) {
        self.with_overrides_within(overrides, &|_| None)
    }

    /// The same; one that its store has no room for is reported, too. `room_of` knows the room of a rule's store.
    #[must_use]
    pub fn with_overrides_within(
        &self,
        overrides: &[RuntimeOverride],
        room_of: RoomOf<'_>,
    ) -> (Self, Vec<OverrideProblem>) {
        let mut rules = self.bare();
        let mut problems = Vec::new();
        let mut limits = LimitTexts::default();
        let common = Common::of(overrides);
        let names: Names = if overrides.is_empty() { Names::default() } else { self.names() };
        for (place, one) in overrides.iter().enumerate() {
            if let Err(message) = rules.add_override(one, (&names, &common), (&mut limits, room_of)) {
                problems.push(OverrideProblem { place, message });
            }
        }
        (rules, problems)
    }

    /// Whether an override would have an effect on these rules.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check_override(&self, one: &RuntimeOverride) -> Result<(), String> {
        self.check_override_within(one, &|_| None)
    }

    /// The same, where stores have room for what `room_of` knows of a rule.
    ///
    /// # Errors
    /// The reason why not.
    pub fn check_override_within(&self, one: &RuntimeOverride, room_of: RoomOf<'_>) -> Result<(), String> {
        let known = |name: &str| {
            self.written().find(|rule| rule.name() == name && rule.domain() == one.domain).map(Rule::index)
        };
        self.resolve(one, known, (&mut LimitTexts::default(), room_of))?;
        if one.when.is_empty() { Err(FOR_EVERYBODY.into()) } else { Ok(()) }
    }

    /// The rule of an override, and its effect.
    fn resolve<'o>(
        &self,
        one: &'o RuntimeOverride,
        known: impl Fn(&str) -> Option<usize>,
        (limits, room_of): (&mut LimitTexts<'o>, RoomOf<'_>),
    ) -> Result<(Option<usize>, Effect), String> {
        if !self.has_domain(&one.domain) {
            return Err(format!("no rule has the domain `{}`", one.domain));
        }
        let place = |name: &String| {
            known(name).ok_or_else(|| format!("the domain `{}` has no rule `{name}`", one.domain))
        };
        let rule = one.rule.as_ref().map(place).transpose()?;
        let effect = match (&one.effect, &one.rule) {
            (OverrideEffect::Ban, _) => Effect::Ban,
            (OverrideEffect::Unlimited, _) => Effect::Limits(Arc::new(LimitSet::Unlimited)),
            (OverrideEffect::Limits(_), None) => return Err("limits need a rule to which they belong".into()),
            (OverrideEffect::Limits(text), Some(name)) => {
                let of_rule = rule.map(|index| self.rule(index));
                let limits = limits.read(text, &one.domain, name, of_rule)?;
                if let Some(rule) = of_rule {
                    keeps_scope(rule, &limits)?;
                    let fits = |(_, room)| {
                        check_set(rule, limits.as_slice(), room, || self.taken_beside(rule, room_of))
                    };
                    room_of(rule).map_or(Ok(()), fits)?;
                }
                Effect::Limits(limits)
            }
        };
        Ok((rule, effect))
    }

    fn add_override<'o>(
        &mut self,
        one: &'o RuntimeOverride,
        (names, common): (&Names, &Common<'_>),
        within: (&mut LimitTexts<'o>, RoomOf<'_>),
    ) -> Result<(), String> {
        let known = |name: &str| names.get(&*one.domain).and_then(|rules| rules.get(name)).copied();
        let (rule, effect) = self.resolve(one, known, within)?;
        if rule.is_none() && matches!(effect, Effect::Ban) {
            self.carry_bans(&one.domain);
        }
        let table = self.overrides.entry(one.domain.as_str().into()).or_default();
        table.add(one, rule, effect, common)
    }

    fn names(&self) -> Names {
        let mut names = Names::default();
        for rule in self.written() {
            names.entry(rule.domain().into()).or_default().insert(rule.name().into(), rule.index());
        }
        names
    }

    /// Adds the rule that carries bans of the whole domain, so that a ban also counts if no rule matches.
    fn carry_bans(&mut self, domain: &str) {
        let (index, place) = (self.len(), self.carriers.len());
        let table = self.overrides.entry(domain.into()).or_default();
        if table.carrier.is_none() {
            table.carrier = Some(place);
            self.carriers.push(Rule::carrier(index, BAN, domain));
        }
    }
}

impl Overrides {
    fn add(
        &mut self,
        one: &RuntimeOverride,
        rule: Option<usize>,
        effect: Effect,
        common: &Common<'_>,
    ) -> Result<(), String> {
        let (name, value) = common.rarest(one).ok_or(FOR_EVERYBODY)?;
        let number = u32::try_from(self.list.len()).map_err(|_| "there are too many overrides")?;
        let known = self.by_value.iter().position(|(known, _)| **known == *name);
        let place = known.unwrap_or_else(|| {
            self.by_value.push((name.into(), ByValue::default()));
            self.by_value.len() - 1
        });
        self.by_value[place].1.entry(value.as_bytes().into()).or_default().push(number);
        let when =
            one.when.iter().map(|(name, value)| (name.as_str().into(), value.as_bytes().into())).collect();
        self.list.push(Override { rule, when, effect, until: one.until });
        Ok(())
    }

    /// Applies the overrides to the matches from `first` on.
    pub(crate) fn apply<'r>(
        &'r self,
        carriers: &'r [Rule],
        descriptors: &[Descriptor<'_>],
        now: Timestamp,
        first: usize,
        found: &mut Matches<'r>,
    ) {
        for (number, descriptor) in descriptors.iter().enumerate() {
            let mut fitting = self.fitting(descriptor, now);
            fitting.sort_by_key(|one| one.rank());
            for one in fitting {
                self.lay(one, carriers, (number, now), first, found);
            }
        }
    }

    fn lay<'r>(
        &'r self,
        one: &'r Override,
        carriers: &'r [Rule],
        (descriptor, now): (usize, Timestamp),
        first: usize,
        found: &mut Matches<'r>,
    ) {
        let banned = MatchedLimits::Banned { retry_after: one.until.map(|until| until.since(now)) };
        if let (Effect::Ban, None, Some(carrier)) = (&one.effect, one.rule, self.carrier) {
            let (rule, limits) = (&carriers[carrier], banned);
            found.push(Match {
                descriptor,
                rule,
                limits,
                key: CellKeyBytes::new(),
                tag: None,
                variant: None,
            });
            return;
        }
        let mine = |matched: &&mut Match<'_>| {
            matched.descriptor == descriptor && one.rule.is_none_or(|rule| rule == matched.rule.index())
        };
        for matched in found[first..].iter_mut().filter(mine) {
            matched.limits = match (&one.effect, matched.limits) {
                (Effect::Ban, _) => banned,
                // Without a key there is no cell for other limits.
                (_, missing @ MatchedLimits::KeyMissing(_)) => missing,
                (Effect::Limits(limits), _) => match &**limits {
                    LimitSet::Unlimited => MatchedLimits::Unlimited,
                    LimitSet::Enforce(limits) => MatchedLimits::Enforce(limits),
                },
            };
        }
    }

    /// The overrides that apply to a request.
    fn fitting(&self, descriptor: &Descriptor<'_>, now: Timestamp) -> SmallVec<[&Override; 2]> {
        let mut fitting = SmallVec::new();
        for (name, by_value) in &self.by_value {
            let candidates = value_of(descriptor, name).and_then(|value| by_value.get(value));
            let candidates = candidates.into_iter().flatten().map(|number| &self.list[*number as usize]);
            fitting.extend(candidates.filter(|one| one.holds(descriptor, now)));
        }
        fitting
    }

    /// Whether an override of this rule applies to a request.
    pub(crate) fn touches(&self, rule: usize, descriptor: &Descriptor<'_>, now: Timestamp) -> bool {
        self.fitting(descriptor, now).iter().any(|one| one.rule.is_none_or(|other| other == rule))
    }
}

/// How many overrides share a value: an override is filed under the value that the fewest share.
struct Common<'o>(HashMap<(&'o str, &'o str), u32, RandomState>);

impl<'o> Common<'o> {
    fn of(overrides: &'o [RuntimeOverride]) -> Self {
        let mut common = HashMap::default();
        for (name, value) in overrides.iter().flat_map(|one| &one.when) {
            *common.entry((name.as_str(), value.as_str())).or_default() += 1;
        }
        Common(common)
    }

    fn rarest<'w>(&self, one: &'w RuntimeOverride) -> Option<(&'w str, &'w str)> {
        let values = one.when.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        values.min_by_key(|pair| self.0.get(pair).copied().unwrap_or_default())
    }
}

fn value_of<'d>(descriptor: &Descriptor<'d>, name: &str) -> Option<&'d [u8]> {
    descriptor.entries.iter().find(|(other, _)| *other == name).map(|(_, value)| *value)
}

/// Limits that were already parsed: of a hundred thousand overrides most are equal, and parsing YAML takes longer than
/// everything else for an override.
#[derive(Default)]
struct LimitTexts<'o> {
    calendars: Calendars,
    known: HashMap<[&'o str; 3], Arc<LimitSet>, RandomState>,
}

impl<'o> LimitTexts<'o> {
    fn read(
        &mut self,
        text: &'o str,
        domain: &'o str,
        name: &'o str,
        rule: Option<&Rule>,
    ) -> Result<Arc<LimitSet>, String> {
        if let Some(known) = self.known.get(&[domain, name, text]) {
            return Ok(known.clone());
        }
        let lends = rule.is_some_and(Rule::lends_to_clients);
        let mut limits = read_limits(text, (domain, name, lends), &mut self.calendars)?;
        if let Some(rule) = rule {
            rule.policies.find(name, &mut limits);
        }
        let limits = Arc::new(limits);
        self.known.insert([domain, name, text], limits.clone());
        Ok(limits)
    }
}

fn read_limits(
    text: &str,
    (domain, rule, lends): (&str, &str, bool),
    calendars: &mut Calendars,
) -> Result<LimitSet, String> {
    let source = Source::new("limits", text);
    let sources = [&source];
    let mut report = Report::new(&sources);
    let documents = yaml::parse(0, text, &mut report);
    let mut reader = LimitReader { domain, rule, lends, calendars, now: None };
    let limits = documents.first().and_then(|node| reader.limit_set(node, "`limits`", &mut report));
    match (report.finish(), limits) {
        (Ok(_), Some(limits)) => Ok(limits),
        (Err(found), _) => {
            let first = found.iter().next().map(|one| format!("{}; {}", one.message, one.hint));
            Err(first.unwrap_or_default())
        }
        (Ok(_), None) => Err("there are no limits".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::Format;

    const RULES: &str = "
domain: api
rules:
  - { name: per-user, key: [user], limits: [100/minute] }
  - { name: writes, match: { method: POST }, key: [user], limits: [10/minute] }
";
    const NOW: Timestamp = Timestamp::from_micros(1_000_000);

    fn one(rule: Option<&str>, when: &[(&str, &str)], effect: OverrideEffect) -> RuntimeOverride {
        let when = when.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        RuntimeOverride { domain: "api".into(), rule: rule.map(Into::into), when, effect, until: None }
    }

    fn limits(text: &str) -> OverrideEffect {
        OverrideEffect::Limits(text.into())
    }

    /// The matching rules and what each requires, in short.
    #[track_caller]
    fn asks(overrides: &[RuntimeOverride], entries: &[(&str, &[u8])]) -> Vec<(String, String)> {
        let rules = RuleSet::compile(&[Source::new("a.yaml", RULES)], Format::Native).unwrap();
        let (rules, problems) = rules.with_overrides(overrides);
        assert_eq!(problems, []);
        let mut found = Matches::new();
        rules.matches("api", &[Descriptor { entries }], NOW, &mut found).unwrap();
        let ask = |one: &Match<'_>| match one.limits {
            MatchedLimits::Enforce(limits) => {
                limits.iter().map(|limit| limit.limit.quota().to_string()).collect()
            }
            MatchedLimits::Unlimited => "unlimited".into(),
            MatchedLimits::Banned { .. } => "banned".into(),
            MatchedLimits::KeyMissing(_) => "missing".into(),
        };
        found.iter().map(|one| (one.rule.name().to_owned(), ask(one))).collect()
    }

    #[track_caller]
    fn check(overrides: &[RuntimeOverride], entries: &[(&str, &[u8])], expected: &[(&str, &str)]) {
        let found = asks(overrides, entries);
        let found: Vec<(&str, &str)> = found.iter().map(|(rule, ask)| (&**rule, &**ask)).collect();
        assert_eq!(found, expected);
    }

    const POST_42: [(&str, &[u8]); 2] = [("user", b"42"), ("method", b"POST")];

    #[test]
    fn limits_of_one_rule_replace_those_of_that_rule_for_that_key_alone() {
        let overrides = [one(Some("writes"), &[("user", "42")], limits("[7/minute]"))];
        check(&overrides, &POST_42, &[("per-user", "100"), ("writes", "7")]);
        check(&overrides, &[("user", b"43"), ("method", b"POST")], &[("per-user", "100"), ("writes", "10")]);
    }

    #[test]
    fn unlimited_for_a_whole_domain_lifts_every_rule() {
        let overrides = [one(None, &[("user", "42")], OverrideEffect::Unlimited)];
        check(&overrides, &POST_42, &[("per-user", "unlimited"), ("writes", "unlimited")]);
    }

    #[test]
    fn a_ban_counts_also_where_no_rule_matches() {
        let overrides = [one(None, &[("ip", "203.0.113.7")], OverrideEffect::Ban)];
        check(&overrides, &[("ip", b"203.0.113.7")], &[("per-user", "missing"), (BAN, "banned")]);
    }

    #[test]
    fn a_ban_wins_over_everything_and_one_rules_limits_over_the_domains() {
        let user = [("user", "42")];
        let unlimited = one(None, &user, OverrideEffect::Unlimited);
        let own = one(Some("writes"), &user, limits("[7/minute]"));
        let ban = one(Some("writes"), &user, OverrideEffect::Ban);
        check(&[own.clone(), unlimited.clone()], &POST_42, &[("per-user", "unlimited"), ("writes", "7")]);
        check(&[ban, own, unlimited], &POST_42, &[("per-user", "unlimited"), ("writes", "banned")]);
    }

    #[test]
    fn every_attribute_of_an_override_must_hold() {
        let both = [one(None, &[("method", "POST"), ("user", "42")], OverrideEffect::Unlimited)];
        check(&both, &[("user", b"42")], &[("per-user", "100")]);
        check(&both, &POST_42, &[("per-user", "unlimited"), ("writes", "unlimited")]);
    }

    #[test]
    fn an_override_ends_when_it_says() {
        let mut ban = one(Some("per-user"), &[("user", "42")], OverrideEffect::Ban);
        ban.until = Some(Timestamp::from_micros(NOW.as_micros() + 1));
        check(&[ban.clone()], &[("user", b"42")], &[("per-user", "banned")]);
        ban.until = Some(NOW);
        check(&[ban], &[("user", b"42")], &[("per-user", "100")]);
    }

    #[test]
    fn a_limit_that_envoy_would_call_as_bans_are_called_is_numbered() {
        let text =
            "{ domain: api, descriptors: [{ key: (ban), rate_limit: { unit: day, requests_per_unit: 5 } }] }";
        let rules = RuleSet::compile(&[Source::new("a.yaml", text)], Format::EnvoyRatelimit).unwrap();
        let (rules, _) = rules.with_overrides(&[one(None, &[("(ban)", "x")], OverrideEffect::Ban)]);
        let names: Vec<&str> = rules.rules().map(Rule::name).collect();
        assert_eq!(names, ["(ban)#2", BAN]);
    }

    #[test]
    fn overrides_take_the_place_of_others_and_no_rule_is_compiled_again() {
        let rules = RuleSet::compile(&[Source::new("a.yaml", RULES)], Format::Native).unwrap();
        let ban = |user: &str| one(None, &[("user", user)], OverrideEffect::Ban);
        let (first, _) = rules.with_overrides(&[ban("42")]);
        let (second, _) = first.with_overrides(&[ban("43")]);
        assert!(std::ptr::eq(first.rule(0), second.rule(0)));
        let bans = |user: &[u8]| {
            let mut found = Matches::new();
            second.matches("api", &[Descriptor { entries: &[("user", user)] }], NOW, &mut found).unwrap();
            found.iter().any(|one| matches!(one.limits, MatchedLimits::Banned { .. }))
        };
        assert_eq!((bans(b"42"), bans(b"43")), (false, true));
        assert!(second.changes_since(&first).is_empty(), "who carries a ban is no rule of anybody's");
    }

    #[test]
    fn limits_that_regions_cannot_count_together_do_not_replace_those_of_their_rules() {
        let text = "{ domain: api, rules: [{ name: paid, key: [user], scope: global, limits: [1000/hour] }, { name: near, key: \
                    [user], limits: [1000/hour] }] }";
        let rules = RuleSet::compile(&[Source::new("a.yaml", text)], Format::Native).unwrap();
        for (text, problem) in [
            ("[50/hour]", None),
            ("[{ algorithm: concurrency, limit: 2, ttl: 5s }]", Some("a place in use")),
            ("[{ algorithm: sliding_log, limit: 2, window: 100ms }]", Some("too short")),
            ("[{ algorithm: fixed_window, limit: 2, window: 1h, over: debt }]", Some("refuses a cost")),
        ] {
            let found = |rule: &str| rules.check_override(&one(Some(rule), &[("user", "42")], limits(text)));
            let said = found("paid").err().unwrap_or_default();
            assert_eq!(problem.is_some_and(|part| said.contains(part)), problem.is_some(), "{text}: {said}");
            assert_eq!(said.is_empty(), problem.is_none(), "{text}: {said}");
            found("near").unwrap();
        }
    }

    #[test]
    fn what_makes_no_sense_is_named_and_the_others_go_on() {
        let user = [("user", "42")];
        let overrides = [
            one(Some("gone"), &user, OverrideEffect::Ban),
            one(Some("per-user"), &user, limits("[many]")),
            one(None, &user, limits("[1/s]")),
            one(Some("per-user"), &[], OverrideEffect::Ban),
            RuntimeOverride { domain: "other".into(), ..one(None, &user, OverrideEffect::Ban) },
            one(Some("per-user"), &user, OverrideEffect::Ban),
        ];
        let rules = RuleSet::compile(&[Source::new("a.yaml", RULES)], Format::Native).unwrap();
        let (rules, problems) = rules.with_overrides(&overrides);
        let places: Vec<usize> = problems.iter().map(|problem| problem.place).collect();
        assert_eq!(places, [0, 1, 2, 3, 4], "{problems:?}");
        let mut found = Matches::new();
        rules.matches("api", &[Descriptor { entries: &[("user", b"42")] }], NOW, &mut found).unwrap();
        assert!(matches!(found[0].limits, MatchedLimits::Banned { .. }));
    }
}
