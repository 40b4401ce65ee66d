//! Rules that count by what no surface reads from requests: they would limit nobody, and nobody would notice.
//!
//! `/v1/check`, RLS and RESP bring their own attributes. The proxy and forward-auth read them, as `identity` says: what it does
//! not say is missing from every request, and a rule passes over requests that lack its key. Where neither is configured, rules
//! by `user` and the like are taken for those of `/v1/check`; should a gateway ask `/v1/auth` all the same, its first request is
//! logged there.

use std::fmt;

use tidegate_http::identity::IdentityConfig;
use tidegate_rules::RuleSet;

use crate::settings::Settings;

/// What reads attributes from requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Surfaces {
    identity: IdentityConfig,
    /// The domains that the proxy asks about: their requests come with nothing else.
    proxied: Vec<String>,
}

/// A rule, and what it counts by that is never there.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unread {
    rule: String,
    domain: String,
    attribute: String,
    surface: &'static str,
}

impl Surfaces {
    pub(crate) fn of(settings: &Settings) -> Self {
        let proxied =
            settings.proxy.iter().flat_map(|proxy| proxy.domains().map(str::to_owned).collect::<Vec<_>>());
        Surfaces { identity: settings.identity.clone(), proxied: proxied.collect() }
    }

    /// Every rule whose key the surfaces do not read.
    pub(crate) fn unread(&self, rules: &RuleSet) -> Vec<Unread> {
        let keys = rules.rules().flat_map(|rule| rule.key().iter().map(move |attribute| (rule, attribute)));
        keys.filter(|(_, attribute)| !self.identity.gives(attribute))
            .filter_map(|(rule, attribute)| {
                let surface = if self.proxied.iter().any(|domain| domain == rule.domain()) {
                    "the proxy"
                } else if is_identitys_own(attribute) || self.reads_for_gateways() {
                    "/v1/auth"
                } else {
                    // Clients of other surfaces bring it, as far as can be known.
                    return None;
                };
                let (rule, domain) = (rule.name().to_owned(), rule.domain().to_owned());
                Some(Unread { rule, domain, attribute: attribute.clone(), surface })
            })
            .collect()
    }

    /// Whether somebody said what to read, and not for the proxy: then gateways ask, and bring nothing else.
    fn reads_for_gateways(&self) -> bool {
        self.proxied.is_empty() && self.identity != IdentityConfig::default()
    }
}

/// Whether an attribute is one that identity gives and clients seldom bring.
fn is_identitys_own(attribute: &str) -> bool {
    matches!(attribute, "api_key" | "route") || attribute.starts_with("path.")
}

impl Unread {
    /// The line of the configuration that is missing.
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
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Unread { rule, domain, attribute, surface } = self;
        write!(
            f,
            "rule `{rule}` of `{domain}` counts by `{attribute}`, which {surface} is not configured to read: there it limits \
             nobody"
        )
    }
}

#[cfg(test)]
mod tests {
    use tidegate_rules::{Format, Source};

    use super::*;

    fn unread(surfaces: &Surfaces, key: &str) -> Vec<String> {
        let text = format!("{{ domain: d, rules: [{{ name: r, key: [{key}], limits: [1/s] }}] }}");
        let rules = RuleSet::compile(&[Source::new("r", text)], Format::Native).unwrap();
        surfaces.unread(&rules).iter().map(Unread::line).collect()
    }

    #[test]
    fn what_identity_alone_gives_is_missed_everywhere_and_the_rest_behind_the_proxy() {
        let anywhere = Surfaces::default();
        assert_eq!(unread(&anywhere, "api_key"), ["identity: { api_key: { header: x-api-key } }"]);
        assert_eq!(unread(&anywhere, "path.id"), ["identity: { paths: [\"/users/{id}\"] }"]);
        for known in ["ip", "client", "method, path, host", "user", "tenant"] {
            assert_eq!(unread(&anywhere, known), [""; 0], "{known}");
        }
        let proxied = Surfaces { proxied: vec!["d".to_owned()], ..Surfaces::default() };
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
        // With a proxy it is for the proxy's domains, and others may be those of `/v1/check`.
        let proxied = Surfaces { proxied: vec!["edge".to_owned()], ..given };
        assert_eq!(unread(&proxied, "org"), [""; 0]);
    }
}
