//! A digest of a rule set's behaviour, to see whether two nodes run the same rules.
//!
//! It covers the compiled rules, not the files: comments, descriptions, the order of rules and the notation of a limit make
//! no difference. Processes of one release compute the same; another release may not. Runtime overrides are left out.

use std::collections::HashMap;
use std::fmt::Write as _;

use tidegate_core::Limit;

use crate::choice::LimitSet;
use crate::glob::Pattern;
use crate::matching::native::{NativeDomain, Selector};
use crate::rule::{Rule, RuleLimit};
use crate::ruleset::{Domain, RuleSet};

/// The number of a calendar's boundaries included: enough to see daylight saving time in every year.
const BOUNDARIES: usize = 1_024;

impl RuleSet {
    /// The digest: the same for the same rules in every process of one release.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut lines = Vec::new();
        let called = self.called();
        for (name, domain) in self.all_domains() {
            match domain {
                Domain::Native(native) => {
                    lines.extend(native.selectors.iter().map(|selector| {
                        let rule = self.rule(selector.rule);
                        let attribute = |number| native.attributes.name(number);
                        let limits = rule.limits.canonical(&attribute);
                        format!("{} {limits} {}", of_rule(rule, &called), of_selector(native, selector))
                    }));
                }
                Domain::Envoy(envoy) => {
                    lines.push(format!("{name:?} {}", envoy.canonical(&|rule| self.rule(rule).name())));
                    lines.extend(envoy.paths.iter().map(|(rule, _)| {
                        let rule = self.rule(*rule);
                        // Nothing there refers to an attribute by number.
                        format!("{} {}", of_rule(rule, &called), rule.limits.canonical(&|_| ""))
                    }));
                }
            }
        }
        lines.sort_unstable();
        let mut digest = Fnv::default();
        lines.iter().for_each(|line| digest.add(line.as_bytes()));
        digest.0
    }

    /// The names of the rules that others refer to by a number, which depends on the order of the file.
    fn called(&self) -> Called<'_> {
        let mut called: Called<'_> = HashMap::new();
        for rule in self.written() {
            if let Some(number) = rule.replacing.called {
                called.entry((rule.domain(), number)).or_default().push(rule.name());
            }
        }
        called.values_mut().for_each(|names| names.sort_unstable());
        called
    }
}

type Called<'r> = HashMap<(&'r str, u32), Vec<&'r str>>;

/// A rule without its index, its description and its limits.
fn of_rule(rule: &Rule, called: &Called<'_>) -> String {
    let mut replaces: Vec<&[&str]> = rule
        .replacing
        .replaces
        .iter()
        .filter_map(|number| called.get(&(rule.domain(), *number)).map(Vec::as_slice))
        .collect();
    replaces.sort_unstable();
    format!("{:?} {:?} {:?} {replaces:?}", rule.domain(), rule.name(), rule.settings())
}

fn of_selector(native: &NativeDomain, selector: &Selector) -> String {
    let patterns = |patterns: &[Pattern]| {
        let mut texts: Vec<String> = patterns.iter().map(Pattern::canonical).collect();
        texts.sort_unstable();
        texts
    };
    let mut conditions: Vec<String> = selector
        .conditions
        .iter()
        .map(|one| {
            let name = native.attributes.name(one.attribute);
            format!("{name:?} {:?} {:?}", one.is.as_deref().map(patterns), patterns(&one.not))
        })
        .collect();
    conditions.sort_unstable();
    let colocate = selector.colocate.map(|attribute| native.attributes.name(attribute));
    let hashed: Vec<&str> =
        selector.hashed.iter().map(|attribute| native.attributes.name(*attribute)).collect();
    format!("{conditions:?} {colocate:?} {:?} {hashed:?}", selector.on_missing_key)
}

pub(crate) fn of_limits(set: &LimitSet) -> String {
    let mut text = match set {
        LimitSet::Unlimited => "unlimited".to_owned(),
        LimitSet::Enforce(_) => String::new(),
    };
    for limit in set.as_slice() {
        // Writing to a String cannot fail.
        let RuleLimit { limit, name, over, on_hangup, .. } = limit;
        let _ = write!(text, "[{name:?} {} {over:?} {on_hangup:?}]", of_limit(limit));
    }
    text
}

pub(crate) fn of_limit(limit: &Limit) -> String {
    if let Limit::FixedWindow(window) = limit
        && let Some(boundaries) = window.boundaries()
    {
        let mut digest = Fnv::default();
        let some = boundaries.iter().step_by(boundaries.len() / BOUNDARIES + 1);
        some.for_each(|boundary| digest.add(&boundary.as_micros().to_le_bytes()));
        return format!("{} {} {:016x}", window.limit(), boundaries.len(), digest.0);
    }
    format!("{limit:?}")
}

/// FNV-1a: the same everywhere, and nobody gains by a collision.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::Source;
    use crate::ruleset::Format;

    fn of(text: &str, format: Format) -> u64 {
        RuleSet::compile(&[Source::new("rules.yaml", text)], format).unwrap().digest()
    }

    fn native(rules: &str) -> u64 {
        of(&format!("domain: api\nrules:\n{rules}"), Format::Native)
    }

    #[test]
    fn the_same_rules_written_otherwise_have_the_same_digest() {
        let one = "\
- { name: a, match: { path: [/a, '/b/*'], method: GET }, key: [user], limits: [100/minute, 5/s] }
- { name: b, key: [ip], overrides: [a], limits: [1/s] }
- { name: c, key: [user], tiers: { on: plan, default: free, free: [1/s], pro: [9/s] } }
";
        let other = "\
# In another order, with words.
- { name: c, key: [user], tiers: { on: plan, default: free, pro: [9/s], free: [1/1s] }, owner: us }
- { name: b, key: [ip], overrides: [a], limits: [1/second] }
- { name: a, match: { method: GET, path: ['/b/*', /a] }, key: [user], limits: [100/1m, 5/s], description: d }
";
        assert_eq!(native(one), native(other));
    }

    #[test]
    fn whatever_decides_otherwise_has_another_digest() {
        let base = "name: a, key: [user], limits: [100/minute]";
        let tiers = "name: a, key: [user], tiers: { on: plan, default: free, free: [1/s], pro: [9/s] }";
        let log = "algorithm: sliding_log, limit: 20, window: 1h";
        let monthly = |zone: &str| {
            format!(
                "name: a, limits: [{{ name: m, algorithm: fixed_window, limit: 9, window: day, tz: {zone} }}]"
            )
        };
        let own = |user: &str, limit: u32| {
            format!("{base}, key_overrides: [{{ when: {{ user: {user} }}, limits: [{limit}/minute] }}]")
        };
        let rules = [
            base.to_owned(),
            base.replace("100", "200"),
            base.replace("minute", "hour"),
            base.replace("user", "ip"),
            base.replace("name: a", "name: b"),
            format!("{base}, shadow: true"),
            format!("{base}, enabled: false"),
            format!("{base}, when: {{ flag: f }}"),
            format!("{base}, when: {{ flag: g }}"),
            format!("{base}, when: {{ flag: g, default: true }}"),
            format!("{base}, on_store_failure: closed"),
            format!("{base}, on_missing_key: refuse"),
            format!("{base}, coordination: local"),
            format!("{base}, priority: P1"),
            format!("{base}, colocate: user"),
            format!("{base}, hash: [user]"),
            format!("{base}, rollout: 10%"),
            format!("{base}, penalty: 5m"),
            format!("{base}, match: {{ path: /a }}"),
            format!("{base}, match: {{ path: '/a*' }}"),
            format!("{base}, match: {{ path: '/*a' }}"),
            format!("{base}, match: {{ path: '/a\\*' }}"),
            format!("{base}, match: {{ path: {{ not: /a }} }}"),
            format!("{base}, experiment: {{ split: 20%, limits: [200/minute] }}"),
            format!("{base}, experiment: {{ split: 30%, limits: [200/minute] }}"),
            own("x", 5),
            own("y", 5),
            own("x", 6),
            tiers.to_owned(),
            tiers.replace("default: free", "default: pro"),
            tiers.replace("on: plan", "on: tier"),
            tiers.replace("pro", "best"),
            format!("name: a, limits: [{{ {log} }}]"),
            format!("name: a, limits: [{{ {log}, count_refused: true }}]"),
            format!("name: a, limits: [{{ {log}, min_interval: 1s }}]"),
            monthly("Europe/Paris"),
            monthly("Africa/Lagos"),
        ];
        let digests: Vec<u64> = rules.iter().map(|rule| native(&format!("- {{ {rule} }}\n"))).collect();
        for (place, digest) in digests.iter().enumerate() {
            let twin = digests[..place].iter().position(|other| other == digest);
            assert_eq!(twin.map(|twin| &rules[twin]), None, "as {}", rules[place]);
        }
        let two = "- { name: a, limits: [1/s] }\n- { name: b, limits: [2/s]";
        assert_ne!(native(&format!("{two} }}\n")), native(&format!("{two}, overrides: [a] }}\n")));
    }

    #[test]
    fn envoys_limits_and_the_way_to_them_have_a_digest() {
        let tree = "\
domain: d
descriptors:
- key: path
  value: /a
  descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 5 }
  - { key: user, value: free }
- { key: host, rate_limit: { unit: second, requests_per_unit: 5 } }
";
        let digest = of(tree, Format::EnvoyRatelimit);
        assert_eq!(digest, of(&format!("# the same\n{tree}"), Format::EnvoyRatelimit));
        for (from, to) in [
            ("requests_per_unit: 5 }\n  -", "requests_per_unit: 6 }\n  -"),
            ("unit: second", "unit: hour"),
            ("value: /a", "value: /b"),
            ("value: /a", "value: /a*"),
            ("value: free", "value: paid"),
            ("key: host,", "key: host, shadow_mode: true,"),
        ] {
            let changed = tree.replace(from, to);
            assert_ne!(changed, tree);
            assert_ne!(of(&changed, Format::EnvoyRatelimit), digest, "{from} -> {to}");
        }
    }
}
