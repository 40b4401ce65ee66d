//! The address and protocol of one upstream server.

use std::fmt;
use std::str::FromStr;

use http::Uri;
use http::uri::PathAndQuery;

/// One upstream server.
///
/// ```
/// use tidegate_proxy::Target;
///
/// let target: Target = "https://api.internal".parse()?;
/// assert_eq!(target.to_string(), "https://api.internal:443");
/// # Ok::<(), tidegate_proxy::TargetError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub(crate) scheme: Scheme,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The protocol of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    /// HTTP/1.1 without TLS.
    Http,
    /// TLS with HTTP/2 or HTTP/1.1, as the server prefers.
    Https,
    /// HTTP/2 without TLS, from the first byte.
    H2c,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
            Scheme::H2c => "h2c",
        }
    }
}

/// Why a text is not a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It is not an address.
    #[error("it is not an address")]
    NotAnAddress,
    /// It begins with something other than `http://`, `https://` or `h2c://`.
    #[error("it begins with none of http://, https:// and h2c://")]
    Scheme,
    /// Something follows the port.
    #[error("it has a path, a user or a query")]
    More,
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        let uri: Uri = text.parse().map_err(|_| TargetError::NotAnAddress)?;
        let (scheme, default_port) = match uri.scheme_str() {
            Some("http") => (Scheme::Http, 80),
            Some("https") => (Scheme::Https, 443),
            Some("h2c") => (Scheme::H2c, 80),
            _ => return Err(TargetError::Scheme),
        };
        let authority = uri.authority().ok_or(TargetError::NotAnAddress)?;
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        if !matches!(path, "" | "/") || authority.as_str().contains('@') {
            return Err(TargetError::More);
        }
        // `[::1]` in an address is `::1` for connecting and in certificates.
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let ported = authority.as_str().len() > authority.host().len();
        let port = match authority.port_u16() {
            Some(port) if port > 0 => port,
            None if !ported => default_port,
            _ => return Err(TargetError::NotAnAddress),
        };
        Ok(Target { scheme, host, port })
    }
}

impl Target {
    /// `host:port`.
    pub(crate) fn authority(&self) -> String {
        let Target { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme.name(), self.authority())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_scheme_a_host_and_perhaps_a_port() {
        let shown = |text: &str| text.parse::<Target>().map(|target| target.to_string());
        assert_eq!(shown("http://127.0.0.1:3000").unwrap(), "http://127.0.0.1:3000");
        assert_eq!(shown("http://backend/").unwrap(), "http://backend:80");
        assert_eq!(shown("https://[::1]").unwrap(), "https://[::1]:443");
        assert_eq!(shown("h2c://grpc:50051").unwrap(), "h2c://grpc:50051");
        for (text, error) in [
            ("backend:80", TargetError::Scheme),
            ("ftp://backend", TargetError::Scheme),
            ("http://backend/v1", TargetError::More),
            ("http://me@backend", TargetError::More),
            ("http://backend:0", TargetError::NotAnAddress),
            ("http://backend:99999", TargetError::NotAnAddress),
            ("http://", TargetError::NotAnAddress),
        ] {
            assert_eq!(shown(text), Err(error), "{text}");
        }
    }
}
