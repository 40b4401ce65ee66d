//! The identity of a request: the attributes that rules match on and count by, read only from its head.
//!
//! Pure: the peer's address and the time are parameters, nothing is awaited, and the same head gives the same attributes on
//! every surface. A client's claim is never mistaken for a verified value: a token with an invalid signature leaves its
//! bearer anonymous, and a forwarding header counts only as far as trusted proxies wrote it.
//!
#![doc = include_str!("guide.md")]

mod attributes;
mod base64;
mod client_ip;
mod config;
mod error;
mod escapes;
mod fields;
#[cfg(feature = "jwt")]
mod jwks;
#[cfg(feature = "jwt")]
mod jwt;
mod method;
mod path;
mod reading;
mod route;
mod secret;
mod spellings;

use std::collections::BTreeSet;
use std::net::IpAddr;

use http::header::HeaderName;
use http::{HeaderMap, Method, Uri};
use tidegate_core::Timestamp;

pub use attributes::{Attributes, Entries, MOST_VALUE_BYTES};
pub use config::{ApiKeyConfig, Claims, IdentityConfig, JwtConfig, Named, PathCase};
pub use error::IdentityError;
#[cfg(feature = "jwt")]
pub use jwks::{JwksError, keep_jwks_fresh};
pub use path::{ForwardedPath, MOST_PATH_BYTES, NormalPath, PathError};
pub use secret::{Secret, hash_secret};

use client_ip::ClientIp;
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
    /// The address of the connection's peer, if there is one.
    pub peer: Option<IpAddr>,
    /// The time, for tokens that expire.
    pub now: Timestamp,
    /// How its path reaches the server behind.
    pub forwarded_path: ForwardedPath,
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
    /// The names of all attributes that requests may get.
    given: BTreeSet<String>,
}

impl Identity {
    /// Whether paths that differ only in case are equal.
    #[must_use]
    pub fn path_case(&self) -> PathCase {
        self.path_case
    }

    /// Whether requests get an attribute of this name, if they carry its source.
    #[must_use]
    pub fn gives(&self, attribute: &str) -> bool {
        self.given.contains(attribute)
    }

    /// The names of all attributes that requests may get, in order.
    pub fn attribute_names(&self) -> impl Iterator<Item = &str> {
        self.given.iter().map(String::as_str)
    }

    /// Whether `peer` is trusted to describe others: their addresses, and the method, host and target of a request that it
    /// asks about.
    #[must_use]
    pub fn trusts(&self, peer: Option<IpAddr>) -> bool {
        self.client_ip.trusts(peer)
    }

    /// Attributes that come from the peer's address if nothing better is known of a client.
    pub fn from_peer(&self) -> impl Iterator<Item = &str> {
        let own = [config::names::IP, config::names::CLIENT];
        let made_of_them = move |parts: &[String]| parts.iter().any(|part| own.contains(&part.as_str()));
        let composites = self.composites.iter().filter(move |(_, parts)| made_of_them(parts));
        own.into_iter().chain(composites.map(|(name, _)| name.as_str()))
    }

    /// Whether a header identifies or locates a client, here or to servers in general: the server behind must see what we
    /// counted.
    #[must_use]
    pub fn reads(&self, header: &HeaderName) -> bool {
        let name = header.as_str();
        let configured = self.headers.iter().map(|(_, header)| header).chain(&self.api_key);
        #[cfg(feature = "jwt")]
        let configured = configured.chain(self.jwt.as_ref().map(jwt::Jwt::header));
        const GENERAL: [&str; 6] =
            ["authorization", "cookie", "forwarded", "host", "proxy-authorization", "x-real-ip"];
        name.starts_with("x-forwarded-")
            || GENERAL.contains(&name)
            || configured.into_iter().any(|configured| configured == header)
    }
}
