//! Checks that the stores have room for what rules keep of one key. Which store counts which rule is not in the rules.

use std::collections::BTreeMap;

use tidegate_core::{CellForm, KeyRoom};

use crate::diagnostics::Diagnostics;
use crate::load::Source;
use crate::placed::{Mistake, report};
use crate::rule::{Rule, RuleLimit};
use crate::ruleset::RuleSet;

const HINT: &str =
    "lower the limit, use `sliding_window` instead of a log, or keep counters in Redis or PostgreSQL";

/// The room of the store that counts a rule, and which store that is; none where there is no bound.
pub type RoomOf<'r> = &'r dyn Fn(&Rule) -> Option<(usize, KeyRoom)>;

impl RuleSet {
    /// Checks that the stores have room for what these rules keep of one key; `room_of` knows it of a rule. Rules with as many
    /// attributes in their keys may share a key, and count together. The set was compiled from `sources`, which are read only to
    /// show places; there are none of rules in code.
    ///
    /// # Errors
    /// The rules that keep too much, each with its place.
    pub fn check_room(
        &self,
        sources: impl FnOnce() -> Vec<Source>,
        room_of: RoomOf<'_>,
    ) -> Result<(), Diagnostics> {
        let (mut mistakes, mut together) = (Vec::new(), BTreeMap::new());
        for rule in self.written() {
            let Some((store, room)) = room_of(rule) else { continue };
            let set = fullest_set(rule, room);
            match taken_by(set, room) {
                0 => {}
                taken if taken > KeyRoom::WHOLE => mistakes.push(alone(rule, set, room)),
                taken => {
                    let group: &mut Vec<(&Rule, u64, KeyRoom)> =
                        together.entry((store, rule.key().len())).or_default();
                    group.push((rule, taken, room));
                }
            }
        }
        for group in together.into_values() {
            if group.iter().map(|(_, taken, _)| taken).sum::<u64>() > KeyRoom::WHOLE {
                mistakes.push(in_group(&group));
            }
        }
        report(mistakes, "limits", sources)
    }

    /// What other rules keep where `rule` does, in millionths of the room.
    pub(crate) fn taken_beside(&self, rule: &Rule, room_of: RoomOf<'_>) -> u64 {
        let place = |rule: &Rule| room_of(rule).map(|(store, room)| (store, rule.key().len(), room));
        let Some(own) = place(rule) else { return 0 };
        let others = self.written().filter(|other| other.index() != rule.index());
        let others = others.filter(|other| place(other) == Some(own));
        others.map(|other| taken_by(fullest_set(other, own.2), own.2)).sum()
    }
}

/// Checks `limits` that take the place of a rule's own for some keys; other rules keep `beside` of the same keys.
pub(crate) fn check_set(
    rule: &Rule,
    limits: &[RuleLimit],
    room: KeyRoom,
    beside: impl FnOnce() -> u64,
) -> Result<(), String> {
    let taken = taken_by(limits, room);
    if taken == 0 || (taken <= KeyRoom::WHOLE && taken + beside() <= KeyRoom::WHOLE) {
        return Ok(());
    }
    let (_, message, hint) = alone(rule, limits, room);
    Err(format!("{message}; {hint}"))
}

/// Of the sets of limits of which each key has one, the one that keeps most.
fn fullest_set(rule: &Rule, room: KeyRoom) -> &[RuleLimit] {
    let sets = rule.limits.sets().map(|set| set.as_slice());
    sets.max_by_key(|set| taken_by(set, room)).unwrap_or_default()
}

fn taken_by(limits: &[RuleLimit], room: KeyRoom) -> u64 {
    limits.iter().map(|limit| room.taken_by(&limit.limit)).sum()
}

fn alone<'r>(rule: &'r Rule, limits: &[RuleLimit], room: KeyRoom) -> Mistake<'r> {
    let KeyRoom { store, leases, logged, .. } = room;
    let kept: Vec<String> = limits.iter().filter_map(said).collect();
    let message = format!(
        "rule `{}` cannot be exact: {store} cannot keep {} of one key, but {leases} leases at once, or logs of {logged} hits",
        rule.name(),
        kept.join(" and ")
    );
    (rule, message, HINT)
}

fn in_group<'r>(group: &[(&'r Rule, u64, KeyRoom)]) -> Mistake<'r> {
    let (most, _, room) = group.iter().max_by_key(|(_, taken, _)| *taken).expect("a group has rules");
    let KeyRoom { store, leases, logged, .. } = room;
    let names: Vec<String> =
        group.iter().map(|(rule, ..)| format!("`{}` ({})", rule.name(), rule.domain())).collect();
    let message = format!(
        "rules {} cannot be exact together: their keys may be the same, and {store} keeps {leases} leases at once of one key, or \
         logs of {logged} hits",
        names.join(", ")
    );
    (most, message, HINT)
}

/// What a limit keeps that needs room.
fn said(limit: &RuleLimit) -> Option<String> {
    match limit.limit.form() {
        CellForm::Counter => None,
        CellForm::Log { hits, .. } => Some(format!("a log of {hits} hits")),
        CellForm::Leases { most } => Some(format!("{most} leases at once")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::Format;
    use crate::runtime::{OverrideEffect, RuntimeOverride};

    const ROOM: KeyRoom = KeyRoom::new("Memcached", 25_000, 200_000);

    fn leases(name: &str, key: &str, limits: &[u64]) -> String {
        let one =
            |limit: &u64| format!("{{ algorithm: concurrency, limit: {limit}, ttl: 30s, name: l{limit} }}");
        let limits: Vec<String> = limits.iter().map(one).collect();
        format!("- {{ name: {name}, key: [{key}], limits: [{}] }}\n", limits.join(", "))
    }

    fn rules(rules: &[String]) -> (RuleSet, Vec<Source>) {
        let sources = vec![Source::new("a.yaml", format!("domain: a\nrules:\n{}", rules.concat()))];
        (RuleSet::compile(&sources, Format::Native).unwrap(), sources)
    }

    fn found(written: &[String]) -> Vec<String> {
        let (rules, sources) = rules(written);
        let checked = rules.check_room(|| sources, &|_| Some((0, ROOM)));
        checked.err().iter().flat_map(Diagnostics::iter).map(ToString::to_string).collect()
    }

    #[test]
    fn what_one_rule_keeps_of_a_key_is_added_up_and_named_with_its_place() {
        assert_eq!(found(&[leases("one", "user", &[25_000])]), [""; 0]);
        let said = "a.yaml:3:29: rule `one` cannot be exact: Memcached cannot keep 20000 leases at once and 6000 leases at once \
                    of one key, but 25000 leases at once, or logs of 200000 hits";
        assert_eq!(found(&[leases("one", "user", &[20_000, 6_000])]), [said]);
    }

    #[test]
    fn rules_that_may_share_a_key_are_added_up() {
        let one = leases("one", "user", &[20_000]);
        assert_eq!(found(&[one.clone(), leases("two", "user, path", &[20_000])]), [""; 0]);
        let said = found(&[one, leases("two", "ip", &[5_001])]);
        assert!(said[0].contains("rules `one` (a), `two` (a) cannot be exact together"), "{said:?}");
    }

    #[test]
    fn a_key_has_one_set_of_a_rule() {
        let tiered = "- { name: t, key: [user], tiers: { on: plan, default: low, \
                      low: [{ algorithm: concurrency, limit: 20000, ttl: 30s }], \
                      high: [{ algorithm: concurrency, limit: 25000, ttl: 30s }] } }\n";
        assert_eq!(found(&[tiered.to_owned()]), [""; 0]);
        let said = found(&[tiered.replace("25000", "25001")]);
        assert!(said[0].contains("cannot keep 25001 leases at once of one key"), "{said:?}");
    }

    #[test]
    fn rules_that_are_code_and_other_stores_are_checked_too() {
        let (rules, _) = rules(&[leases("one", "user", &[25_001])]);
        let said = rules.check_room(Vec::new, &|_| Some((0, ROOM))).unwrap_err().to_string();
        assert!(said.contains("25001 leases at once"), "{said}");
        assert!(rules.check_room(Vec::new, &|_| None).is_ok());
    }

    #[test]
    fn an_override_that_there_is_no_room_for_has_no_effect_and_says_why() {
        let (rules, _) = rules(&[leases("one", "user", &[10]), leases("two", "ip", &[24_000])]);
        let raised = |limit: u64| RuntimeOverride {
            domain: "a".into(),
            rule: Some("one".into()),
            when: vec![("user".into(), "ann".into())],
            effect: OverrideEffect::Limits(format!(
                "[{{ algorithm: concurrency, limit: {limit}, ttl: 30s }}]"
            )),
            until: None,
        };
        let room: RoomOf<'_> = &|_| Some((0, ROOM));
        assert_eq!(rules.check_override_within(&raised(1_000), room), Ok(()));
        let why = rules.check_override_within(&raised(1_001), room).unwrap_err();
        assert!(why.contains("1001 leases at once of one key"), "{why}");
        let (_, problems) = rules.with_overrides_within(&[raised(1_000), raised(30_000)], room);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].place == 1 && problems[0].message.contains("Memcached"), "{problems:?}");
    }
}
