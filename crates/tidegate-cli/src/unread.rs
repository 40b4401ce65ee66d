//! Finds rules whose key uses attributes that nothing reads from requests: they would limit nobody, and nothing else would
//! show it.
//!
//! The proxy and forward-auth read attributes as `identity` says: any other attribute is missing from every request, and a
//! rule skips requests that lack its key. `/v1/check`, RLS and RESP bring their own attributes: so nothing is said where
//! neither the proxy nor `identity` is configured, and `identity.sent_by_callers` names what else callers send.

use std::collections::HashMap;
use std::fmt;

use tidegate_http::identity::IdentityConfig;
use tidegate_rules::{Format, RuleSet, Source, outline};

use crate::settings::Settings;

/// What reads attributes from requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surfaces {
    identity: IdentityConfig,
    /// The domains of the proxy: their requests have no other attributes.
    proxied: Vec<String>,
}

/// An attribute in rules' keys that is never there, or only if callers send it.
#[derive(Debug)]
pub(crate) struct Unread {
    attribute: String,
    missed_by: MissedBy,
    /// The rules with it in their key; never empty.
    rules: Vec<RuleName>,
}

/// A rule's name in a warning.
#[derive(Debug, PartialEq, Eq)]
struct RuleName {
    rule: String,
    domain: String,
    /// Only for the first of several: that is where a reader begins.
    place: Option<RuleLine>,
}

/// What checks requests of the rules' domain without the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MissedBy {
    Proxy,
    ForwardAuth,
}

/// The position of a rule in its file.
#[derive(Debug, PartialEq, Eq)]
struct RuleLine {
    file: String,
    line: usize,
}

/// Finds the position of each rule in `files`.
pub(crate) fn locate(found: &mut [Unread], files: &[(Source, Format)]) {
    let mut names: HashMap<(String, String), Vec<&mut Option<RuleLine>>> = HashMap::new();
    for first in found.iter_mut().filter_map(|one| one.rules.first_mut()) {
        names.entry((first.domain.clone(), first.rule.clone())).or_default().push(&mut first.place);
    }
    if names.is_empty() {
        return;
    }
    for (source, _) in files.iter().filter(|(_, format)| *format == Format::Native) {
        // Invalid YAML was rejected before.
        for document in outline(&source.text).unwrap_or_default() {
            let domain = document.domain.unwrap_or_default();
            for rule in document.rules {
                for place in names.get_mut(&(domain.clone(), rule.name)).into_iter().flatten() {
                    let line = source.text[..rule.span.start].matches('\n').count() + 1;
                    **place = Some(RuleLine { file: source.name.clone(), line });
                }
            }
        }
    }
}

impl Surfaces {
    pub(crate) fn of(settings: &Settings) -> Self {
        let proxied =
            settings.proxy.iter().flat_map(|proxy| proxy.domains().map(str::to_owned).collect::<Vec<_>>());
        Surfaces { identity: settings.identity.clone(), proxied: proxied.collect() }
    }

    /// The attributes in rules' keys that the surfaces do not read.
    pub(crate) fn unread(&self, rules: &RuleSet) -> Vec<Unread> {
        let mut all: Vec<Unread> = Vec::new();
        for rule in rules.rules().filter(|rule| rule.is_enabled()) {
            for attribute in rule.key().iter().filter(|attribute| !self.identity.gives(attribute)) {
                let Some(missed_by) = self.missed_by(rule.domain(), attribute) else { continue };
                let (name, domain) = (rule.name().to_owned(), rule.domain().to_owned());
                let name = RuleName { rule: name, domain, place: None };
                match all.iter_mut().find(|one| one.attribute == *attribute && one.missed_by == missed_by) {
                    Some(known) => known.rules.push(name),
                    None => all.push(Unread { attribute: attribute.clone(), missed_by, rules: vec![name] }),
                }
            }
        }
        all
    }

    fn missed_by(&self, domain: &str, attribute: &str) -> Option<MissedBy> {
        if self.proxied.iter().any(|proxied| proxied == domain) {
            return Some(MissedBy::Proxy);
        }
        if self.identity.sent_by_callers.iter().any(|sent| sent == attribute) {
            return None;
        }
        self.reads_for_gateways().then_some(MissedBy::ForwardAuth)
    }

    /// Whether `identity` is configured, and not for the proxy: then gateways use `/v1/auth`, and send nothing else.
    fn reads_for_gateways(&self) -> bool {
        let mut read = self.identity.clone();
        read.sent_by_callers.clear();
        self.proxied.is_empty() && read != IdentityConfig::default()
    }
}

impl Unread {
    /// Whether `other` is the same attribute, missed in the same way by the same rules, whatever their position.
    pub(crate) fn is_same(&self, other: &Unread) -> bool {
        let names = |one: &Unread| -> Vec<(String, String)> {
            one.rules.iter().map(|name| (name.domain.clone(), name.rule.clone())).collect()
        };
        self.attribute == other.attribute && self.missed_by == other.missed_by && names(self) == names(other)
    }

    /// The file and line of the first rule.
    pub(crate) fn place(&self) -> Option<(&str, usize)> {
        self.rules[0].place.as_ref().map(|place| (place.file.as_str(), place.line))
    }

    /// The missing line of the configuration.
    pub(crate) fn line(&self) -> String {
        match self.attribute.as_str() {
            "api_key" => "identity: { api_key: { header: x-api-key } }".to_owned(),
            "route" => "identity: { paths: [\"/users/{id}\"] }".to_owned(),
            "user" => {
                "identity: { jwt: { jwks: https://issuer.example/keys, claims: { user: sub } } }".to_owned()
            }
            "session" | "sid" => format!("identity: {{ cookies: {{ {0}: {0} }} }}", self.attribute),
            place if place.starts_with("path.") => {
                format!("identity: {{ paths: [\"/users/{{{}}}\"] }}", &place["path.".len()..])
            }
            other => format!("identity: {{ headers: {{ {other}: x-{} }} }}", other.replace(['_', '.'], "-")),
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> String {
        let (line, attribute) = (self.line(), &self.attribute);
        match self.missed_by {
            MissedBy::Proxy => format!("add to the configuration: {line}"),
            MissedBy::ForwardAuth => format!(
                "add to the configuration: {line}; or send `{attribute}` in /v1/check, gRPC or RESP, and say so: \
                 identity: {{ sent_by_callers: [{attribute}] }}"
            ),
        }
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unread { attribute, missed_by, rules } = self;
        let RuleName { rule, domain, .. } = &rules[0];
        if let Some((file, line)) = self.place() {
            write!(f, "{file}:{line}: ")?;
        }
        write!(f, "rule `{rule}` of `{domain}`")?;
        match rules.len() - 1 {
            0 => write!(f, " counts by `{attribute}`, which ")?,
            1 => write!(f, " and 1 other rule count by `{attribute}`, which ")?,
            others => write!(f, " and {others} other rules count by `{attribute}`, which ")?,
        }
        f.write_str(match missed_by {
            MissedBy::Proxy => "the proxy is not configured to read: there it limits nobody",
            MissedBy::ForwardAuth => "/v1/auth is not configured to read: there it limits nobody",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unread(surfaces: &Surfaces, key: &str) -> Vec<String> {
        found(surfaces, key).iter().map(Unread::line).collect()
    }

    fn found(surfaces: &Surfaces, key: &str) -> Vec<Unread> {
        let text = format!("{{ domain: d, rules: [{{ name: r, key: [{key}], limits: [1/s] }}] }}");
        let rules = RuleSet::compile(&[Source::new("r", text)], Format::Native).unwrap();
        surfaces.unread(&rules)
    }

    #[test]
    fn rules_alone_say_nothing_of_callers_and_a_proxy_reads_what_identity_says() {
        let anywhere = Surfaces::default();
        for key in ["api_key", "path.id", "user", "ip", "client", "method, path, host"] {
            assert_eq!(unread(&anywhere, key), [""; 0], "{key}");
        }
        let proxied = Surfaces { proxied: vec!["d".to_owned()], ..Surfaces::default() };
        assert_eq!(unread(&proxied, "api_key"), ["identity: { api_key: { header: x-api-key } }"]);
        assert_eq!(unread(&proxied, "path.id"), ["identity: { paths: [\"/users/{id}\"] }"]);
        assert_eq!(unread(&proxied, "ip, tenant_id"), ["identity: { headers: { tenant_id: x-tenant-id } }"]);
        assert_eq!(unread(&proxied, "user").len(), 1);
    }

    #[test]
    fn whoever_says_what_to_read_is_told_of_everything_that_is_left_out() {
        let identity: IdentityConfig = serde_json::from_value(serde_json::json!({
            "api_key": { "header": "x-api-key" },
            "jwt": { "secret": "0123456789abcdef", "claims": { "user": "sub", "plan": "tier" } },
            "headers": { "tenant": "x-tenant" },
            "cookies": { "session": "sid" },
            "query": { "page": "p" },
            "paths": ["/users/{id}", "/files/{*rest}"],
            "composites": { "user_route": ["user", "route"] },
        }))
        .unwrap();
        let given = Surfaces { identity, ..Surfaces::default() };
        let read = "api_key, user, plan, tenant, session, page, route, path.id, path.rest, user_route, ip, client, host";
        assert_eq!(unread(&given, read), [""; 0]);
        for (missing, line) in [
            ("org", "identity: { headers: { org: x-org } }"),
            ("sid", "identity: { cookies: { sid: sid } }"),
            ("path.name", "identity: { paths: [\"/users/{name}\"] }"),
        ] {
            assert_eq!(unread(&given, missing), [line]);
        }
        // With a proxy, it is for the proxy's domains; others may be those of `/v1/check`.
        let proxied = Surfaces { proxied: vec!["edge".to_owned()], ..given };
        assert_eq!(unread(&proxied, "org"), [""; 0]);
    }

    #[test]
    fn an_attribute_is_named_once_with_all_its_rules() {
        let text = "domain: d\nrules:\n  - { name: a, key: [user], limits: [1/s] }\n  - { name: b, key: [user], limits: [1/s] }\n";
        let source = Source::new("r.yaml", text);
        let rules = RuleSet::compile(std::slice::from_ref(&source), Format::Native).unwrap();
        let proxied = Surfaces { proxied: vec!["d".to_owned()], ..Surfaces::default() };
        let mut found = proxied.unread(&rules);
        locate(&mut found, &[(source, Format::Native)]);
        assert_eq!(
            found.iter().map(Unread::to_string).collect::<Vec<_>>(),
            [
                "r.yaml:3: rule `a` of `d` and 1 other rule count by `user`, which the proxy is not configured to read: there \
                 it limits nobody"
            ]
        );
    }

    #[test]
    fn who_says_that_callers_send_an_attribute_hears_no_more_of_it_except_of_the_proxy() {
        let mut said = Surfaces::default();
        said.identity.sent_by_callers.push("user".to_owned());
        assert_eq!(unread(&said, "user"), [""; 0]);
        assert_eq!(unread(&said, "org"), [""; 0], "naming what is sent does not make gateways ask");
        assert_eq!(unread(&Surfaces { proxied: vec!["d".to_owned()], ..said }, "user").len(), 1);
    }
}
