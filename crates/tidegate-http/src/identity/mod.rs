//! Who a request is: the attributes that rules match on and count by, read from its head alone.
//!
//! Pure: the peer's address and the time are handed in, nothing is awaited, and the same head gives the same attributes on
//! every surface. What a client merely claims is never taken for what somebody vouched for: a token whose signature does
//! not hold leaves its bearer anonymous, and a forwarding header counts only as far as trusted proxies wrote it.
//!
#![doc = include_str!("guide.md")]

mod attributes;
mod client_ip;
mod config;
mod error;
mod fields;
#[cfg(feature = "jwt")]
mod jwks;
#[cfg(feature = "jwt")]
mod jwt;
mod path;
mod route;
mod secret;

use std::borrow::Cow;
use std::net::IpAddr;

use http::header::HeaderName;
use http::{HeaderMap, Method, Uri};
use tidegate_core::Timestamp;

pub use attributes::{Attributes, Entries, MOST_VALUE_BYTES};
pub use config::{ApiKeyConfig, Claims, IdentityConfig, JwtConfig, Named, PathCase};
pub use error::IdentityError;
#[cfg(feature = "jwt")]
pub use jwks::{JwksError, keep_jwks_fresh};
pub use path::NormalPath;
pub use secret::{Secret, hash_secret};

use client_ip::ClientIp;
use config::names;
use route::Routes;

/// The head of a request, and what only its receiver knows.
#[derive(Clone, Copy, Debug)]
pub struct RequestHead<'r> {
    /// The method.
    pub method: &'r Method,
    /// The target.
    pub uri: &'r Uri,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// Who is at the other end of the connection, where there is one.
    pub peer: Option<IpAddr>,
    /// The time, for tokens that expire.
    pub now: Timestamp,
}

/// Reads identities as configured.
#[derive(Debug)]
pub struct Identity {
    client_ip: ClientIp,
    api_key: Option<HeaderName>,
    #[cfg(feature = "jwt")]
    jwt: Option<jwt::Jwt>,
    headers: Vec<(String, HeaderName)>,
    cookies: Vec<(String, String)>,
    query: Vec<(String, String)>,
    path_case: PathCase,
    routes: Routes,
    client: Vec<String>,
    composites: Vec<(String, Vec<String>)>,
}

impl Identity {
    /// Everything that `head` says of itself, normalised.
    #[must_use]
    pub fn attributes<'a>(&'a self, head: &RequestHead<'a>) -> Attributes<'a> {
        let path = NormalPath::new(head.uri.path(), self.path_case);
        let mut attributes = Attributes::new();
        attributes.push(names::METHOD, head.method.as_str().as_bytes());
        if let Some(host) = fields::host(head) {
            attributes.push(names::HOST, host);
        }
        self.routes.read(&path, &mut attributes);
        attributes.push(names::PATH, path.matching_bytes());
        for (name, header) in &self.headers {
            if let Some(value) = head.headers.get(header) {
                attributes.push(name.as_str(), value.as_bytes());
            }
        }
        for (name, parameter) in &self.query {
            if let Some(value) = fields::query(head.uri, parameter) {
                attributes.push(name.as_str(), value);
            }
        }
        for (name, cookie) in &self.cookies {
            if let Some(value) = fields::cookie(head.headers, cookie) {
                // A session's cookie opens the session: it is no more to be kept than a password.
                attributes.push(name.as_str(), hash_secret(value).into_bytes());
            }
        }
        self.read_who(head, &mut attributes);
        for (name, parts) in &self.composites {
            attributes.push_composite(name, parts);
        }
        attributes.path = path;
        attributes
    }

    /// Whether what `peer` says of others is believed: their addresses, and the method, host and target of a request that
    /// it asks about.
    #[must_use]
    pub fn trusts(&self, peer: Option<IpAddr>) -> bool {
        self.client_ip.trusts(peer)
    }

    /// Removes headers that a server behind may take for those that identity is read from: `X_Auth_User` and `X-Auth-User`
    /// are one variable to CGI and its descendants. For whoever forwards the request.
    pub fn remove_aliases(&self, headers: &mut HeaderMap) {
        let is_alias = |name: &&HeaderName| {
            name.as_str().contains('_') && self.is_read(&name.as_str().replace('_', "-"))
        };
        let aliases: Vec<HeaderName> = headers.keys().filter(is_alias).cloned().collect();
        for alias in aliases {
            headers.remove(alias);
        }
    }

    /// Whether a header tells who or where a client is, here or to servers in general.
    fn is_read(&self, name: &str) -> bool {
        let configured = self.headers.iter().map(|(_, header)| header).chain(&self.api_key);
        #[cfg(feature = "jwt")]
        let configured = configured.chain(self.jwt.as_ref().map(jwt::Jwt::header));
        const GENERAL: [&str; 6] =
            ["authorization", "cookie", "forwarded", "host", "proxy-authorization", "x-real-ip"];
        name.starts_with("x-forwarded-")
            || GENERAL.contains(&name)
            || configured.into_iter().any(|header| header.as_str() == name)
    }

    /// Claim, API key, address, and the best of them.
    fn read_who<'a>(&'a self, head: &RequestHead<'a>, attributes: &mut Attributes<'a>) {
        #[cfg(feature = "jwt")]
        if let Some(jwt) = &self.jwt {
            jwt.read(head, attributes);
        }
        if let Some(header) = &self.api_key
            && let Some(key) = fields::credential(head.headers, header)
        {
            attributes.push(names::API_KEY, hash_secret(key).into_bytes());
        }
        if let Some(address) = self.client_ip.of(head) {
            attributes.push(names::IP, self.client_ip.group(address).into_bytes());
        }
        let best = self.client.iter().find_map(|name| Some((name, attributes.get(name)?)));
        if let Some((name, value)) = best {
            // No name holds `=`, so no two clients make the same text.
            let client = [name.as_bytes(), b"=", value].concat();
            attributes.push(names::CLIENT, Cow::Owned(client));
        }
    }
}
