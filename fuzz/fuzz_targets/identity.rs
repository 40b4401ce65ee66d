//! Any bytes as the head of a request: its attributes are bounded, each is there once, and none of them is what a stranger
//! merely claimed to be.

#![no_main]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::LazyLock;

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use libfuzzer_sys::fuzz_target;
use tidegate_core::Timestamp;
use tidegate_http::identity::{
    ForwardedPath, Identity, IdentityConfig, JwtConfig, MOST_VALUE_BYTES, Named, NormalPath, PathCase,
    RequestHead, Secret,
};

const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 9));
const PROXY: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

static IDENTITY: LazyLock<Identity> = LazyLock::new(|| {
    let named = |pairs: &[(&str, &str)]| {
        Named(pairs.iter().map(|(name, from)| ((*name).to_owned(), (*from).to_owned())).collect())
    };
    let mut jwt = JwtConfig::default();
    jwt.secret = Some(Secret::new("nobody knows this one"));
    let mut config = IdentityConfig::default()
        .trusted_proxies(["10.0.0.0/8"])
        .api_key("x-api-key")
        .jwt(jwt)
        .header("tenant", "x-tenant")
        .paths(["/users/{id}", "/files/{*rest}"]);
    config.cookies = named(&[("session", "sid")]);
    config.query = named(&[("q", "q")]);
    config.composites = Named(vec![("both".to_owned(), vec!["tenant".to_owned(), "q".to_owned()])]);
    Identity::new(&config).expect("the configuration makes sense")
});

/// The first line is the target, every other a header.
fn head(bytes: &[u8]) -> Option<(Uri, HeaderMap)> {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let uri = Uri::try_from(lines.next()?).ok()?;
    let mut headers = HeaderMap::new();
    for line in lines.take(64) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
            headers.append(name, value);
        }
    }
    Some((uri, headers))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((uri, headers)) = head(bytes) else { return };
    for peer in [STRANGER, PROXY] {
        let now = Timestamp::from_micros(1_500_000_000_000_000);
        let forwarded_path = ForwardedPath::Normalised;
        let head =
            RequestHead { method: &Method::GET, uri: &uri, headers: &headers, peer: Some(peer), now, forwarded_path };
        let Ok(attributes) = IDENTITY.attributes(&head) else { continue };
        let entries = attributes.entries();
        let names: BTreeSet<&str> = entries.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), entries.len(), "an attribute is there twice");
        assert!(entries.iter().all(|(_, value)| value.len() <= MOST_VALUE_BYTES));
        let believed = attributes.get("user").is_some_and(|user| user.first() != Some(&0xff));
        assert!(!believed, "a token was believed that nobody signed");
        if peer == STRANGER {
            assert_eq!(attributes.get("ip"), Some(&b"203.0.113.9"[..]));
        }
        if let Some(key) = attributes.get("api_key") {
            assert!(key[0] == 0xff || (key.len() == 64 && key.iter().all(u8::is_ascii_hexdigit)));
        }
        assert!(attributes.get("client").is_some());
        let path = attributes.path();
        let again = NormalPath::read(path.forward(), PathCase::Insensitive, forwarded_path);
        assert_eq!(again.as_ref(), Ok(path));
    }
});
