//! A server's address as typed: `host:port`, `http://host:port/base/path` or the same with `https`.

use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, Uri, header, request};
use http_body_util::Full;
use hyper::body::Bytes;
use serde_json::Value;
use tidegate_telemetry::{ClientError, Plaintext};

use crate::commands::admin_client::runtime;
use crate::failure::Failure;

/// A server's address, not resolved yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    scheme: &'static str,
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

    /// A request for `path` there.
    pub(crate) fn request(&self, method: &Method, path: &str) -> request::Builder {
        Request::builder()
            .method(method)
            .uri(self.path(path))
            .header(header::HOST, self.authority.as_str())
            .header(header::CONTENT_TYPE, "application/json")
    }

    /// Sends a request with this body, and waits for the whole answer. The certificate of an `https` address is checked
    /// against `ca`, or what the system trusts.
    pub(crate) fn ask(
        &self,
        request: request::Builder,
        body: &Value,
        limits: &AskLimits<'_>,
    ) -> Result<Response<Bytes>, Failure> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let request = request.body(Full::from(body)).map_err(|error| Failure::new(error.to_string()))?;
        let url = format!("{}://{}", self.scheme, self.authority);
        let there = tidegate_telemetry::Endpoint::new(&url, limits.ca, Plaintext::Anywhere)
            .map_err(|error| Failure::new(error.problem).hint(CA_HINT))?;
        runtime()?.block_on(async {
            self.check_host().await?;
            let answered = there.send(request, limits.within, limits.most_bytes).await;
            answered.map_err(|error| self.failure(error, limits))
        })
    }

    fn failure(&self, error: ClientError, limits: &AskLimits<'_>) -> Failure {
        match error {
            ClientError::Unreachable(error) => {
                let hint = match error.kind() {
                    // As rustls reports a certificate that it does not trust, or a server that does not speak TLS.
                    io::ErrorKind::InvalidData => CA_HINT,
                    _ => limits.if_absent,
                };
                Failure::new(format!("cannot connect to {self}: {error}")).hint(hint)
            }
            ClientError::TooSlow(within) => {
                Failure::new(format!("no answer within {within:?}")).hint(limits.if_slow)
            }
            error => Failure::new(format!("no answer from {self}: {error}")).hint(limits.if_absent),
        }
    }

    /// The first address of the name, for a command that speaks no TLS itself.
    pub(crate) fn resolve(&self) -> Result<SocketAddr, Failure> {
        if self.scheme == "https" {
            return Err(Failure::new(format!("{self}: https is not supported here"))
                .hint("reach the server's plain listener, or a local proxy that adds TLS"));
        }
        let (host, port) = self.host_and_port();
        let mut found =
            (host, port).to_socket_addrs().map_err(|error| unknown_host(host, &error.to_string()))?;
        found.next().ok_or_else(|| unknown_host(host, "it has no address"))
    }

    fn host_and_port(&self) -> (&str, u16) {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        (host, self.authority.port_u16().unwrap_or(80))
    }

    /// Whether the host has an address: a misspelt one is worth its own message.
    async fn check_host(&self) -> Result<(), Failure> {
        let (host, port) = self.host_and_port();
        let found = tokio::net::lookup_host((host, port)).await;
        let mut found = found.map_err(|error| unknown_host(host, &error.to_string()))?;
        found.next().map(drop).ok_or_else(|| unknown_host(host, "it has no address"))
    }
}

fn unknown_host(host: &str, reason: &str) -> Failure {
    Failure::new(format!("cannot find the host `{host}`: {reason}"))
        .hint("check the spelling, or give the IP address")
}

/// The bounds of one request, and hints for when they are not met.
pub(crate) struct AskLimits<'a> {
    pub(crate) ca: Option<&'a Path>,
    pub(crate) within: Duration,
    pub(crate) most_bytes: usize,
    pub(crate) if_absent: &'static str,
    pub(crate) if_slow: &'static str,
}

const CA_HINT: &str = "name a PEM file with its certificate authority: --ca FILE, or TIDEGATE_CA";

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
        // Digits alone would be an address: 8080 is 0.0.31.144.
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad("its host is missing"));
        }
        let with_scheme = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = with_scheme.parse().map_err(|error: http::uri::InvalidUri| bad(&error.to_string()))?;
        let scheme = match uri.scheme() {
            Some(scheme) if *scheme == Scheme::HTTP => "http",
            Some(scheme) if *scheme == Scheme::HTTPS => "https",
            _ => return Err(bad("expected http:// or https://")),
        };
        if uri.query().is_some() {
            return Err(bad("it has a query"));
        }
        let authority = uri.authority().filter(|authority| !authority.host().is_empty());
        let authority = authority.ok_or_else(|| bad("it has no host"))?.clone();
        if authority.as_str().contains('@') {
            return Err(bad("it has a user name"));
        }
        let base_path = uri.path().trim_end_matches('/').to_owned();
        Ok(Endpoint { scheme, authority, base_path })
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.scheme == "https" { "https://" } else { "" };
        write!(f, "{scheme}{}{}", self.authority, self.base_path)
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
        check("https://gateway/limits/", "gateway", "/limits/v1/check");
    }

    #[test]
    fn what_is_no_http_address_is_refused() {
        for bad in ["", "redis://a:1", "http://", "http://u:p@a", "a:1?x=2", "a b", "8080"] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
