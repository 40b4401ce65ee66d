//! The configuration of identity, and its validation.

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use http::header::{AUTHORIZATION, COOKIE, HeaderName, PROXY_AUTHORIZATION};
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::Identity;
use super::client_ip::ClientIp;
use super::error::IdentityError;
use super::route::{self, Routes};
use super::secret::Secret;

pub use super::path::PathCase;

/// Attributes with fixed names.
pub(super) mod names {
    pub(in super::super) const METHOD: &str = "method";
    pub(in super::super) const PATH: &str = "path";
    pub(in super::super) const HOST: &str = "host";
    pub(in super::super) const IP: &str = "ip";
    pub(in super::super) const CLIENT: &str = "client";
    pub(in super::super) const ROUTE: &str = "route";
    pub(in super::super) const API_KEY: &str = "api_key";
    pub(super) const ALL: [&str; 7] = [METHOD, PATH, HOST, IP, CLIENT, ROUTE, API_KEY];
}

/// How a request's attributes are read
///
/// Every field may be left out: then a client is its peer's address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct IdentityConfig {
    /// Networks of proxies whose X-Forwarded-For is believed; this machine's own always is
    pub trusted_proxies: Vec<String>,
    /// Instead of trusted_proxies: how many proxies every request passes, where none can be bypassed
    pub hops: Option<u8>,
    /// How many bits of an IPv6 address make one client: 64 by default
    pub ipv6_prefix: Option<u8>,
    /// API keys, as attribute `api_key` (hashed)
    pub api_key: Option<ApiKeyConfig>,
    /// JSON Web Tokens
    pub jwt: Option<JwtConfig>,
    /// Attributes from headers, as attribute: header
    pub headers: Named<String>,
    /// Attributes from cookies (hashed), as attribute: cookie
    pub cookies: Named<String>,
    /// Attributes from query parameters, as attribute: parameter
    pub query: Named<String>,
    /// Path templates such as /users/{id}: the one that matches is attribute `route`, its places are `path.id` and so on
    pub paths: Vec<String>,
    /// Whether rules see paths in lower case (insensitive, the default)
    pub path_case: PathCase,
    /// Which attributes tell clients apart, best first, for attribute `client`: claims, api_key, ip by default
    pub client: Option<Vec<String>>,
    /// Attributes made of several others, as attribute: [attribute, attribute]
    pub composites: Named<Vec<String>>,
    /// Attributes that callers of /v1/check, gRPC or RESP send themselves: nothing warns that rules count by them
    pub sent_by_callers: Vec<String>,
}

/// Where API keys are
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ApiKeyConfig {
    /// The header that holds the key, such as x-api-key; in authorization, what follows the scheme
    pub header: String,
}

impl ApiKeyConfig {
    /// Keys in this header.
    #[must_use]
    pub fn new(header: impl Into<String>) -> Self {
        ApiKeyConfig { header: header.into() }
    }
}

/// Which tokens are believed, and which of their claims become attributes
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct JwtConfig {
    /// A file, or an http(s) URL, with the issuer's public keys
    pub jwks: Option<String>,
    /// A secret shared with the issuer
    pub secret: Option<Secret>,
    /// The same, in a file
    pub secret_file: Option<PathBuf>,
    /// The only algorithms to accept: by default those of the keys, and HS256 with a secret
    pub algorithms: Option<Vec<String>>,
    /// The header that holds the token: authorization (Bearer) by default
    pub header: Option<String>,
    /// The claims that become attributes, as attribute: claim or as a list of claims; user: sub by default
    pub claims: Option<Claims>,
    /// What `iss` must be
    pub issuer: Option<String>,
    /// What `aud` must be or contain
    pub audience: Option<String>,
    /// How far the issuer's clock may be off: 5s by default
    pub leeway: Option<String>,
}

/// Each method adds to a configuration, such as the default: `IdentityConfig::default().api_key("x-api-key")`.
impl IdentityConfig {
    /// Trusts proxies in these networks, such as `10.0.0.0/8`.
    #[must_use]
    pub fn trusted_proxies(mut self, networks: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.trusted_proxies.extend(networks.into_iter().map(Into::into));
        self
    }

    /// Reads API keys from this header, as attribute `api_key`.
    #[must_use]
    pub fn api_key(mut self, header: impl Into<String>) -> Self {
        self.api_key = Some(ApiKeyConfig::new(header));
        self
    }

    /// Accepts these tokens.
    #[must_use]
    pub fn jwt(mut self, jwt: JwtConfig) -> Self {
        self.jwt = Some(jwt);
        self
    }

    /// Reads an attribute from a header.
    #[must_use]
    pub fn header(mut self, attribute: impl Into<String>, header: impl Into<String>) -> Self {
        self.headers.0.push((attribute.into(), header.into()));
        self
    }

    /// Recognizes paths by these templates, such as `/users/{id}`.
    #[must_use]
    pub fn paths(mut self, templates: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.paths.extend(templates.into_iter().map(Into::into));
        self
    }

    /// Whether requests get an attribute of this name, if they carry its source.
    #[must_use]
    pub fn gives(&self, attribute: &str) -> bool {
        self.attributes().contains(attribute)
    }

    /// The names of all attributes that requests may get.
    pub(super) fn attributes(&self) -> BTreeSet<String> {
        let always = [names::METHOD, names::PATH, names::HOST, names::IP, names::CLIENT].into_iter();
        let route = (!self.paths.is_empty()).then_some(names::ROUTE);
        let key = self.api_key.is_some().then_some(names::API_KEY);
        let places = self.paths.iter().flat_map(|template| route::parameters(template));
        let named = [&self.headers, &self.cookies, &self.query].into_iter().flat_map(Named::names);
        let named = named.chain(self.composites.names()).map(str::to_owned);
        let claims = self.jwt.iter().flat_map(JwtConfig::attributes);
        let fixed = always.chain(route).chain(key).map(str::to_owned);
        fixed.chain(places.map(|(_, attribute)| attribute)).chain(named).chain(claims).collect()
    }

    /// Makes relative file names relative to the directory of the configuration file.
    pub fn resolve_against(&mut self, directory: &Path) {
        let Some(jwt) = &mut self.jwt else { return };
        if let Some(file) = &mut jwt.secret_file {
            *file = directory.join(&*file);
        }
        if let Some(jwks) = &mut jwt.jwks
            && !is_url(jwks)
        {
            *jwks = directory.join(&*jwks).display().to_string();
        }
    }
}

impl Identity {
    /// Reads identities as configured. Files in the configuration are read now.
    ///
    /// # Errors
    /// A field is invalid, or a file cannot be read.
    pub fn new(config: &IdentityConfig) -> Result<Self, IdentityError> {
        check_names(config)?;
        let claims: Vec<String> = config.jwt.iter().flat_map(JwtConfig::attributes).collect();
        let default_client =
            || claims.iter().take(1).cloned().chain([names::API_KEY.to_owned(), names::IP.to_owned()]);
        #[cfg(not(feature = "jwt"))]
        if config.jwt.is_some() {
            let hint = "build with the feature `jwt`";
            return Err(IdentityError::new("jwt", "tokens cannot be verified by this build", hint));
        }
        Ok(Identity {
            client_ip: ClientIp::new(&config.trusted_proxies, config.hops, config.ipv6_prefix)?,
            api_key: config.api_key.as_ref().map(|key| header("api_key.header", &key.header)).transpose()?,
            #[cfg(feature = "jwt")]
            jwt: config.jwt.as_ref().map(super::jwt::Jwt::new).transpose()?,
            headers: named_headers(&config.headers)?,
            cookies: config.cookies.0.clone(),
            query: config.query.0.clone(),
            path_case: config.path_case,
            routes: Routes::new(&config.paths, config.path_case)?,
            client: config.client.clone().unwrap_or_else(|| default_client().collect()),
            composites: config.composites.0.clone(),
            given: config.attributes(),
        })
    }
}

impl JwtConfig {
    /// The names of the attributes for claims.
    fn attributes(&self) -> impl Iterator<Item = String> {
        let claims = self.claims.clone().unwrap_or_default();
        claims.0.into_iter().map(|(attribute, _)| attribute)
    }
}

pub(super) fn is_url(text: &str) -> bool {
    text.starts_with("https://") || text.starts_with("http://")
}

pub(super) fn header(field: &str, name: &str) -> Result<HeaderName, IdentityError> {
    let parsed = name.parse::<HeaderName>();
    let parsed = parsed
        .map_err(|_| IdentityError::new(field, format!("`{name}` is no header"), "such as x-api-key"))?;
    if parsed.as_str().contains('_') {
        let problem = format!("`{name}` and `{}` are one header to many servers", name.replace('_', "-"));
        return Err(IdentityError::new(field, problem, "write it with dashes, and let clients send it so"));
    }
    Ok(parsed)
}

fn named_headers(named: &Named<String>) -> Result<Vec<(String, HeaderName)>, IdentityError> {
    let read = |(attribute, name): &(String, String)| {
        let field = format!("headers.{attribute}");
        let header = header(&field, name)?;
        if [AUTHORIZATION, PROXY_AUTHORIZATION, COOKIE].contains(&header) {
            let hint = "use api_key, jwt or cookies, which hash or verify what they read";
            return Err(IdentityError::new(field, format!("`{header}` holds secrets"), hint));
        }
        Ok((attribute.clone(), header))
    };
    named.0.iter().map(read).collect()
}

/// Every attribute has one source: a verified value must not be one that a client can also just claim.
fn check_names(config: &IdentityConfig) -> Result<(), IdentityError> {
    let claims: Vec<String> = config.jwt.iter().flat_map(JwtConfig::attributes).collect();
    let sections = [
        ("jwt.claims", claims.iter().map(String::as_str).collect::<Vec<_>>()),
        ("headers", config.headers.names().collect()),
        ("cookies", config.cookies.names().collect()),
        ("query", config.query.names().collect()),
        ("composites", config.composites.names().collect()),
    ];
    let mut seen: BTreeSet<&str> = names::ALL.into_iter().collect();
    for (section, attributes) in &sections {
        for attribute in attributes {
            let field = format!("{section}.{attribute}");
            if attribute.is_empty() || attribute.contains('=') || attribute.starts_with("path.") {
                let hint = "a word such as tenant";
                return Err(IdentityError::new(
                    field,
                    format!("`{attribute}` is no name for an attribute"),
                    hint,
                ));
            }
            if !seen.insert(attribute) {
                let problem = format!("`{attribute}` is already read from elsewhere");
                return Err(IdentityError::new(field, problem, "give every attribute one source"));
            }
        }
    }
    let known = |name: &str| seen.contains(name) || name.starts_with("path.");
    let client = config.client.iter().flatten().map(|name| ("client".to_owned(), name));
    let parts = config.composites.0.iter().flat_map(|(composite, parts)| {
        parts.iter().map(move |part| (format!("composites.{composite}"), part))
    });
    for (field, name) in client.chain(parts) {
        if !known(name) || (field == "client" && name == names::CLIENT) {
            let problem = format!("nothing reads an attribute `{name}`");
            return Err(IdentityError::new(field, problem, "name attributes that other fields define"));
        }
    }
    Ok(())
}

/// Attributes and their sources, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<V>(pub Vec<(String, V)>);

impl<V> Named<V> {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

impl<V> Default for Named<V> {
    fn default() -> Self {
        Named(Vec::new())
    }
}

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Named<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Ordered(PhantomData)).map(Named)
    }
}

/// Claims and the attributes they become.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claims(pub Vec<(String, String)>);

impl Default for Claims {
    fn default() -> Self {
        Claims(vec![("user".to_owned(), "sub".to_owned())])
    }
}

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Claims;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("claims as attribute: claim, or as a list")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Claims, A::Error> {
                Ordered(PhantomData).visit_map(map).map(Claims)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Claims, A::Error> {
                let mut claims = Vec::new();
                while let Some(claim) = list.next_element::<String>()? {
                    claims.push((claim.clone(), claim));
                }
                Ok(Claims(claims))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// A map that keeps its order, and rejects duplicates.
struct Ordered<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Ordered<V> {
    type Value = Vec<(String, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("attributes and what they are read from")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut pairs: Vec<(String, V)> = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, V>()? {
            if pairs.iter().any(|(known, _)| *known == name) {
                return Err(serde::de::Error::custom(format_args!("`{name}` is given twice")));
            }
            pairs.push((name, value));
        }
        Ok(pairs)
    }
}

#[cfg(feature = "schema")]
mod schema {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

    use super::{Claims, Named};

    impl<V: JsonSchema> JsonSchema for Named<V> {
        fn schema_name() -> Cow<'static, str> {
            BTreeMap::<String, V>::schema_name()
        }

        fn inline_schema() -> bool {
            true
        }

        fn json_schema(generator: &mut SchemaGenerator) -> Schema {
            BTreeMap::<String, V>::json_schema(generator)
        }
    }

    impl JsonSchema for Claims {
        fn schema_name() -> Cow<'static, str> {
            "Claims".into()
        }

        fn inline_schema() -> bool {
            true
        }

        fn json_schema(_: &mut SchemaGenerator) -> Schema {
            json_schema!({ "anyOf": [
                { "type": "object", "additionalProperties": { "type": "string" } },
                { "type": "array", "items": { "type": "string" } },
            ] })
        }
    }
}
