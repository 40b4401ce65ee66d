//! The limits of a domain as a file of envoyproxy/ratelimit, so that there is one compiler, with its diagnostics.

use serde_json::{Map, Value, json};

use super::messages::{Descriptor, Policy, RateLimitConfig};

/// The deepest nesting: a message may be nested as deep as its length allows.
const DEEPEST: usize = 64;

/// A file of envoyproxy/ratelimit, in JSON, which is YAML.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitFile {
    /// What messages call it: the name that the server gave the resource.
    pub name: String,
    /// Its text.
    pub text: String,
}

pub(super) fn file(config: &RateLimitConfig) -> Result<LimitFile, String> {
    let name = if config.name.is_empty() { &config.domain } else { &config.name };
    let descriptors = level(&config.descriptors, DEEPEST).map_err(|why| format!("{name}: {why}"))?;
    // Indented, so that a mistake has a line of its own.
    let text = format!("{:#}\n", json!({ "domain": config.domain, "descriptors": descriptors }));
    Ok(LimitFile { name: format!("xds:{name}"), text })
}

fn level(descriptors: &[Descriptor], depth: usize) -> Result<Vec<Value>, String> {
    if depth == 0 {
        return Err(format!("descriptors are nested more than {DEEPEST} deep"));
    }
    descriptors.iter().map(|one| descriptor(one, depth)).collect()
}

fn descriptor(one: &Descriptor, depth: usize) -> Result<Value, String> {
    let mut fields = Map::new();
    fields.insert("key".into(), json!(one.key));
    if !one.value.is_empty() {
        fields.insert("value".into(), json!(one.value));
    }
    if let Some(policy) = &one.rate_limit {
        fields.insert("rate_limit".into(), limit(policy)?);
    }
    if !one.descriptors.is_empty() {
        fields.insert("descriptors".into(), level(&one.descriptors, depth - 1)?.into());
    }
    let flags = [
        ("shadow_mode", one.shadow_mode),
        ("detailed_metric", one.detailed_metric),
        ("quota_mode", one.quota_mode),
    ];
    fields.extend(
        flags.into_iter().filter(|(_, is_set)| *is_set).map(|(name, _)| (name.into(), Value::Bool(true))),
    );
    Ok(fields.into())
}

fn limit(policy: &Policy) -> Result<Value, String> {
    const UNITS: [&str; 7] = ["second", "minute", "hour", "day", "month", "year", "week"];
    let mut fields = Map::new();
    if policy.unlimited {
        fields.insert("unlimited".into(), Value::Bool(true));
    } else {
        let unit = usize::try_from(policy.unit - 1).ok().and_then(|unit| UNITS.get(unit));
        let unit = unit.ok_or_else(|| format!("a limit has the unknown unit {}", policy.unit))?;
        fields.insert("unit".into(), json!(unit));
        fields.insert("requests_per_unit".into(), json!(policy.requests_per_unit));
    }
    if !policy.name.is_empty() {
        fields.insert("name".into(), json!(policy.name));
    }
    if !policy.replaces.is_empty() {
        let names: Vec<Value> = policy.replaces.iter().map(|one| json!({ "name": one.name })).collect();
        fields.insert("replaces".into(), names.into());
    }
    Ok(fields.into())
}

#[cfg(test)]
mod tests {
    use super::super::messages::Replaced;
    use super::*;

    fn policy(unit: i32, requests_per_unit: u32) -> Policy {
        Policy { unit, requests_per_unit, ..Policy::default() }
    }

    #[test]
    fn message_becomes_the_file_that_says_the_same() {
        let user = Descriptor {
            key: "user".into(),
            rate_limit: Some(Policy {
                name: "per-user".into(),
                replaces: vec![Replaced { name: "all".into() }],
                ..policy(7, 5)
            }),
            ..Descriptor::default()
        };
        let path = Descriptor {
            key: "path".into(),
            value: "/a".into(),
            shadow_mode: true,
            descriptors: vec![user],
            ..Descriptor::default()
        };
        let config = RateLimitConfig { name: "gw".into(), domain: "edge".into(), descriptors: vec![path] };
        let file = file(&config).unwrap();
        assert_eq!(file.name, "xds:gw");
        let expected = json!({ "domain": "edge", "descriptors": [{
            "key": "path", "value": "/a", "shadow_mode": true, "descriptors": [{
                "key": "user", "rate_limit": {
                    "unit": "week", "requests_per_unit": 5, "name": "per-user", "replaces": [{ "name": "all" }],
                },
            }],
        }] });
        assert_eq!(serde_json::from_str::<Value>(&file.text).unwrap(), expected);
    }

    #[test]
    fn message_that_no_file_can_say_is_refused_with_its_name() {
        let with = |descriptor: Descriptor| {
            let config =
                RateLimitConfig { name: "gw".into(), domain: "d".into(), descriptors: vec![descriptor] };
            file(&config).unwrap_err()
        };
        let unit = Descriptor { key: "a".into(), rate_limit: Some(policy(0, 5)), ..Descriptor::default() };
        assert_eq!(with(unit), "gw: a limit has the unknown unit 0");
        let nest = |below| Descriptor { key: "a".into(), descriptors: vec![below], ..Descriptor::default() };
        let deep = (0..DEEPEST).fold(Descriptor::default(), |below, _| nest(below));
        assert!(with(deep).contains("nested more than 64 deep"));
    }
}
