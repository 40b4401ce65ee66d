//! Who a request is.

mod config;
mod jwt;
mod reading;
mod security_record;
mod tokens;

use std::net::IpAddr;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use tidegate_core::{Micros, Timestamp};
use tidegate_http::identity::{Identity, IdentityConfig, RequestHead};

/// A request as a test writes it.
pub(crate) struct Ask {
    uri: Uri,
    headers: HeaderMap,
    peer: IpAddr,
    now: Timestamp,
}

/// `GET uri` from a stranger, at a time when the tokens hold.
pub(crate) fn get(uri: &str) -> Ask {
    Ask {
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

    /// The attribute called `name`, as `identity` reads it.
    pub(crate) fn read(&self, identity: &Identity, name: &str) -> Option<String> {
        let Ask { uri, headers, peer, now } = self;
        let head = RequestHead { method: &Method::GET, uri, headers, peer: Some(*peer), now: *now };
        let attributes = identity.attributes(&head);
        attributes.get(name).map(|value| String::from_utf8(value.to_vec()).unwrap())
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
