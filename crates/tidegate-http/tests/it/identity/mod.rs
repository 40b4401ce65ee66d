//! The identity of a request.

mod ambiguous;
mod config;
mod frameworks;
mod jwt;
mod reading;
mod security_record;
mod tokens;

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tidegate_core::{Micros, Timestamp};
use tidegate_http::identity::{ForwardedPath, Identity, IdentityConfig, RequestHead};
use tidegate_http::problem::Problem;

/// A request as a test writes it.
pub(crate) struct Ask {
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    peer: IpAddr,
    now: Timestamp,
}

/// `GET uri` from an untrusted peer, at a time when the tokens are valid.
pub(crate) fn get(uri: &str) -> Ask {
    Ask {
        method: Method::GET,
        uri: uri.parse().unwrap(),
        headers: HeaderMap::new(),
        peer: "203.0.113.9".parse().unwrap(),
        now: at_second(1_500_000_000),
    }
}

pub(crate) fn at_second(second: u64) -> Timestamp {
    Timestamp::from_micros(Micros::from_secs(second).get())
}

impl Ask {
    pub(crate) fn from(mut self, peer: &str) -> Self {
        self.peer = peer.parse().unwrap();
        self
    }

    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        let name: HeaderName = name.parse().unwrap();
        self.headers.append(name, HeaderValue::from_str(value).unwrap());
        self
    }

    pub(crate) fn bearing(self, token: &str) -> Self {
        self.with("authorization", &format!("Bearer {token}"))
    }

    pub(crate) fn at(mut self, second: u64) -> Self {
        self.now = at_second(second);
        self
    }

    pub(crate) fn method(mut self, method: &str) -> Self {
        self.method = method.parse().unwrap();
        self
    }

    /// The attribute called `name`, as `identity` usually reads it.
    pub(crate) fn read(&self, identity: &Identity, name: &str) -> Option<String> {
        self.read_all(identity, name).remove(0)
    }

    /// The same, if it is verified: not the substitute for an unreadable credential.
    pub(crate) fn vouched(&self, identity: &Identity, name: &str) -> Option<String> {
        self.read(identity, name).filter(|value| value != ambiguous::ANONYMOUS)
    }

    /// The attribute called `name` in every reading.
    pub(crate) fn read_all(&self, identity: &Identity, name: &str) -> Vec<Option<String>> {
        let attributes = identity.attributes(&self.head(ForwardedPath::Normalised)).unwrap();
        let value = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        attributes.readings().map(|reading| reading.get(name).map(value)).collect()
    }

    /// Why it is rejected, if its path is forwarded like this.
    pub(crate) fn refused(&self, identity: &Identity, forwarded_path: ForwardedPath) -> Problem {
        identity.attributes(&self.head(forwarded_path)).expect_err("it is refused")
    }

    fn head(&self, forwarded_path: ForwardedPath) -> RequestHead<'_> {
        let Ask { method, uri, headers, peer, now } = self;
        RequestHead { method, uri, headers, peer: Some(*peer), now: *now, forwarded_path }
    }
}

/// Identity as this YAML configures it.
pub(crate) fn identity(yaml: &str) -> Identity {
    Identity::new(&parse(yaml)).unwrap()
}

pub(crate) fn parse(yaml: &str) -> IdentityConfig {
    serde_saphyr::from_str(yaml).unwrap()
}

pub(crate) fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}
