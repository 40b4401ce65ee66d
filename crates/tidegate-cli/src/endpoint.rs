//! A server's address as typed: `host:port` or `http://host:port/base/path`.
//!
//! Only plain HTTP. An `https` address is rejected rather than contacted without TLS.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

use http::Uri;
use http::uri::{Authority, Scheme};

use crate::failure::Failure;

/// A server's address, not resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    authority: Authority,
    base_path: String,
}

impl Endpoint {
    /// The value of the `host` header.
    pub(crate) fn authority(&self) -> &Authority {
        &self.authority
    }

    /// `path` below the base path, if there is one.
    pub(crate) fn path(&self, path: &str) -> String {
        format!("{}{path}", self.base_path)
    }

    /// The first address of the name.
    pub(crate) fn resolve(&self) -> Result<SocketAddr, Failure> {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = self.authority.port_u16().unwrap_or(80);
        let unknown = |reason: String| {
            Failure::new(format!("cannot find the host `{host}`: {reason}"))
                .hint("check the spelling, or give the IP address")
        };
        let mut found = (host, port).to_socket_addrs().map_err(|error| unknown(error.to_string()))?;
        found.next().ok_or_else(|| unknown("it has no address".to_owned()))
    }
}

impl FromStr for Endpoint {
    type Err = Failure;

    fn from_str(text: &str) -> Result<Self, Failure> {
        // The part before the host may be a password.
        let shown = text.rsplit_once('@').map_or_else(|| text.to_owned(), |(_, host)| format!("…@{host}"));
        let bad = |reason: &str| {
            Failure::new(format!("`{shown}` is not a server's address: {reason}"))
                .hint("write it as 127.0.0.1:8080 or http://127.0.0.1:8080")
        };
        let text = text.trim();
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = with_scheme.parse().map_err(|error: http::uri::InvalidUri| bad(&error.to_string()))?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err(bad("https is not supported here")
                .hint("reach the server's plain listener, or a local proxy that adds TLS"));
        }
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(bad("expected http://"));
        }
        if uri.query().is_some() {
            return Err(bad("it has a query"));
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or_else(|| bad("it has no host"))?.clone();
        if authority.as_str().contains('@') {
            return Err(bad("it has a user name"));
        }
        let base_path = uri.path().trim_end_matches('/').to_owned();
        Ok(Endpoint { authority, base_path })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.authority, self.base_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, authority: &str, path: &str) {
        let endpoint: Endpoint = text.parse().unwrap();
        assert_eq!((endpoint.authority().as_str(), endpoint.path("/v1/check").as_str()), (authority, path));
    }

    #[test]
    fn an_address_may_come_with_or_without_a_scheme_and_a_base_path() {
        check("127.0.0.1:8080", "127.0.0.1:8080", "/v1/check");
        check("http://localhost:80/", "localhost:80", "/v1/check");
        check("http://[::1]:8080", "[::1]:8080", "/v1/check");
        check("http://gateway/limits/", "gateway", "/limits/v1/check");
    }

    #[test]
    fn an_ipv6_address_is_resolved_without_its_brackets() {
        let endpoint: Endpoint = "[::1]:8080".parse().unwrap();
        assert_eq!(endpoint.resolve().unwrap(), "[::1]:8080".parse().unwrap());
    }

    #[test]
    fn what_is_no_plain_http_address_is_refused() {
        for bad in ["", "https://a", "redis://a:1", "http://", "http://u:p@a", "a:1?x=2", "a b"] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
