//! Hop-by-hop headers, and forwarding headers.
//!
//! An untrusted client could claim any address in `X-Forwarded-For`, any scheme, any host: such claims are replaced by what
//! we saw. Only peers that the identity settings trust are believed, and their headers extended.

use std::net::IpAddr;

use bytes::{BufMut, BytesMut};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");

/// Removes hop-by-hop headers, including those that `Connection` lists, except those that must `stay`.
///
/// `TE: trailers` stays: it says that the client can read trailers, which gRPC needs on every hop.
pub(crate) fn strip(headers: &mut HeaderMap, stay: impl Fn(&HeaderName) -> bool) {
    for name in named_by_connection(headers) {
        if !frames_or_addresses(&name) && !stay(&name) {
            headers.remove(name);
        }
    }
    for name in [
        &header::CONNECTION,
        &KEEP_ALIVE,
        &PROXY_CONNECTION,
        &header::PROXY_AUTHENTICATE,
        &header::PROXY_AUTHORIZATION,
        &header::TRANSFER_ENCODING,
        &header::UPGRADE,
    ] {
        headers.remove(name);
    }
    let trailers = headers.get(header::TE).is_some_and(|te| te.as_bytes().eq_ignore_ascii_case(b"trailers"));
    if !trailers {
        headers.remove(header::TE);
    }
}

/// A client must not be able to remove our forwarding headers, the headers it was counted by, or those that frame its
/// message.
fn frames_or_addresses(name: &HeaderName) -> bool {
    let framing = name.as_str().starts_with("content-") || *name == header::HOST;
    framing || is_claim(name) || is_method_override(name)
}

fn is_method_override(name: &HeaderName) -> bool {
    matches!(name.as_str(), "x-http-method-override" | "x-http-method" | "x-method-override")
}

/// The headers that `Connection` lists; most messages have none.
fn named_by_connection(headers: &HeaderMap) -> Vec<HeaderName> {
    words(headers, header::CONNECTION).filter_map(|name| HeaderName::from_bytes(name).ok()).collect()
}

/// Removes names with characters other than letters, digits and dashes: to CGI and its descendants `X_Auth_User`,
/// `X.Auth.User` and `X-Auth-User` are one variable, and it is undefined which of them wins.
pub(crate) fn drop_aliases(headers: &mut HeaderMap) {
    let is_alias =
        |name: &&HeaderName| !name.as_str().bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let aliases: Vec<HeaderName> = headers.keys().filter(is_alias).cloned().collect();
    for alias in aliases {
        headers.remove(alias);
    }
}

/// Joins several `Cookie` lines (RFC 9113, 8.2.3): over HTTP/2 clients send each cookie separately, and servers behind would
/// join them with commas or read only the first.
pub(crate) fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(header::COOKIE).into_iter();
    if lines.next().is_none() || lines.next().is_none() {
        return;
    }
    if let Some(whole) = joined(headers, &header::COOKIE, b"; ") {
        let whole = HeaderValue::from_maybe_shared(whole.freeze());
        headers.insert(header::COOKIE, whole.expect("valid values, joined by what is valid"));
    }
}

/// The protocol of an upgrade, requested or accepted.
///
/// Only WebSockets: a tunnel that speaks HTTP/2 (`Upgrade: h2c`) would carry requests past every limit.
pub(crate) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let wants = words(headers, header::CONNECTION).any(|word| word.eq_ignore_ascii_case(b"upgrade"));
    let protocol = headers.get(header::UPGRADE).filter(|_| wants)?;
    protocol.as_bytes().eq_ignore_ascii_case(b"websocket").then(|| protocol.clone())
}

/// Sets the headers for an upgrade to `protocol`.
pub(crate) fn set_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

fn words(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &[u8]> {
    let lists = headers.get_all(name).into_iter();
    lists.flat_map(|list| list.as_bytes().split(|byte| *byte == b',')).map(|word| word.trim_ascii())
}

/// Whether a peer's forwarding headers are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Trusted,
    Stranger,
}

/// The client, and how it is connected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) address: IpAddr,
    pub(crate) peer: Peer,
    pub(crate) scheme: &'static str,
    pub(crate) host: Option<&'a HeaderValue>,
}

/// Sets the forwarding headers of a request.
pub(crate) fn forward(headers: &mut HeaderMap, caller: &Caller<'_>) {
    if caller.peer == Peer::Stranger {
        forget_claims(headers);
    }
    let peer = caller.address.to_canonical();
    let chain = match joined(headers, &X_FORWARDED_FOR, b", ") {
        Some(mut before) => {
            before.put_slice(b", ");
            before.put_slice(peer.to_string().as_bytes());
            HeaderValue::from_maybe_shared(before.freeze()).unwrap_or_else(|_| address(peer))
        }
        None => address(peer),
    };
    headers.insert(X_FORWARDED_FOR, chain);
    if !headers.contains_key(X_FORWARDED_PROTO) {
        headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static(caller.scheme));
    }
    if let (false, Some(host)) = (headers.contains_key(X_FORWARDED_HOST), caller.host) {
        headers.insert(X_FORWARDED_HOST, host.clone());
    }
}

fn forget_claims(headers: &mut HeaderMap) {
    let names: Vec<HeaderName> = headers.keys().filter(|name| is_claim(name)).cloned().collect();
    for name in names {
        headers.remove(name);
    }
}

/// Whether a header claims where a request comes from, or that it requests something other than its first line says.
fn is_claim(name: &HeaderName) -> bool {
    let name = name.as_str();
    name.starts_with("x-forwarded-")
        || name.starts_with("x-original-")
        || matches!(name, "forwarded" | "x-real-ip" | "x-rewrite-url" | "x-host" | "x-script-name")
        || matches!(name, "x-client-ip" | "x-cluster-client-ip" | "true-client-ip" | "cf-connecting-ip")
        || matches!(name, "fastly-client-ip" | "fly-client-ip" | "x-remote-ip" | "x-remote-addr")
        || matches!(name, "x-envoy-external-address" | "x-envoy-original-path" | "x-azure-clientip")
        || matches!(name, "x-appengine-user-ip" | "proxy-client-ip" | "wl-proxy-client-ip")
        || matches!(name, "x-scheme" | "x-url-scheme" | "front-end-https" | "x-http-host-override")
}

/// All values of a header that was sent in several lines, as one.
fn joined(headers: &HeaderMap, name: &HeaderName, between: &[u8]) -> Option<BytesMut> {
    let mut all = BytesMut::new();
    for value in headers.get_all(name) {
        if !all.is_empty() {
            all.put_slice(between);
        }
        all.put_slice(value.as_bytes());
    }
    (!all.is_empty()).then_some(all)
}

fn address(ip: IpAddr) -> HeaderValue {
    HeaderValue::from_str(&ip.to_string()).expect("an address is printable ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
        let mut headers = HeaderMap::new();
        pairs.for_each(|(name, value)| {
            headers.append(name, value);
        });
        headers
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        let mut lines: Vec<String> =
            headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
        lines.sort();
        lines
    }

    fn caller(peer: Peer, host: Option<&HeaderValue>) -> Caller<'_> {
        let address = "::ffff:192.0.2.7".parse().unwrap();
        Caller { address, peer, scheme: "https", host }
    }

    #[test]
    fn what_concerns_one_hop_goes_no_further() {
        let mut given = headers(&[
            ("connection", "keep-alive, X-Secret-Hop"),
            ("connection", "close"),
            ("keep-alive", "timeout=5"),
            ("x-secret-hop", "1"),
            ("te", "gzip"),
            ("upgrade", "h2c"),
            ("transfer-encoding", "chunked"),
            ("proxy-authorization", "Basic eA=="),
            ("accept", "*/*"),
        ]);
        strip(&mut given, |_| false);
        assert_eq!(shown(&given), ["accept: */*"]);
    }

    #[test]
    fn a_client_cannot_strip_what_frames_or_addresses_its_request() {
        let mut given =
            headers(&[("connection", "host, content-length"), ("host", "a"), ("content-length", "3")]);
        strip(&mut given, |_| false);
        assert_eq!(shown(&given), ["content-length: 3", "host: a"]);
    }

    #[test]
    fn a_client_cannot_strip_what_it_was_counted_by_nor_what_a_proxy_said_of_it() {
        let named = "x-api-key, x-forwarded-for, x-http-method-override, x-hop";
        let mut given = headers(&[
            ("connection", named),
            ("x-api-key", "k"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-http-method-override", "PUT"),
            ("x-hop", "1"),
        ]);
        strip(&mut given, |name| name == "x-api-key");
        let kept = ["x-api-key: k", "x-forwarded-for: 192.0.2.1", "x-http-method-override: PUT"];
        assert_eq!(shown(&given), kept);
    }

    #[test]
    fn names_that_are_one_variable_to_cgi_go_no_further() {
        let mut given = headers(&[
            ("x_original_url", "/admin"),
            ("x_remote_user", "root"),
            ("content_length", "7"),
            ("transfer_encoding", "chunked"),
            ("x.forwarded.for", "192.0.2.1"),
            ("x-kept-1", "y"),
        ]);
        drop_aliases(&mut given);
        assert_eq!(shown(&given), ["x-kept-1: y"]);
    }

    #[test]
    fn cookie_crumbs_become_one_line() {
        let mut given = headers(&[("cookie", "a=1"), ("accept", "*/*"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut given);
        assert_eq!(shown(&given), ["accept: */*", "cookie: a=1; b=2; c=3"]);
    }

    #[test]
    fn te_trailers_stays_for_grpc() {
        let mut given = headers(&[("te", "trailers")]);
        strip(&mut given, |_| false);
        assert_eq!(shown(&given), ["te: trailers"]);
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        assert_eq!(
            upgrade(&headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")])).unwrap(),
            "websocket"
        );
        assert!(upgrade(&headers(&[("upgrade", "websocket")])).is_none());
        assert!(upgrade(&headers(&[("connection", "upgrade")])).is_none());
    }

    #[test]
    fn a_tunnel_that_would_carry_requests_past_us_is_not_asked_for() {
        for protocol in ["h2c", "websocket, h2c", "TLS/1.2", "HTTP/1.1"] {
            let asks = headers(&[("connection", "upgrade, http2-settings"), ("upgrade", protocol)]);
            assert!(upgrade(&asks).is_none(), "{protocol}");
        }
    }

    #[test]
    fn what_a_stranger_claims_about_itself_is_replaced() {
        let host = HeaderValue::from_static("shop.example");
        let mut given = headers(&[
            ("x-forwarded-for", "10.0.0.1"),
            ("x-forwarded-proto", "gopher"),
            ("x-forwarded-host", "evil.example"),
            ("x-forwarded-uri", "/admin"),
            ("x-original-url", "/admin"),
            ("x-real-ip", "10.0.0.1"),
            ("x-rewrite-url", "/admin"),
            ("true-client-ip", "10.0.0.1"),
            ("forwarded", "for=10.0.0.1"),
        ]);
        forward(&mut given, &caller(Peer::Stranger, Some(&host)));
        assert_eq!(
            shown(&given),
            ["x-forwarded-for: 192.0.2.7", "x-forwarded-host: shop.example", "x-forwarded-proto: https",]
        );
    }

    #[test]
    fn what_a_trusted_peer_says_is_kept_and_added_to() {
        let mut given = headers(&[
            ("x-forwarded-for", "198.51.100.1"),
            ("x-forwarded-for", "203.0.113.9"),
            ("x-forwarded-proto", "http"),
            ("x-forwarded-host", "outer.example"),
        ]);
        forward(&mut given, &caller(Peer::Trusted, None));
        assert_eq!(
            shown(&given),
            [
                "x-forwarded-for: 198.51.100.1, 203.0.113.9, 192.0.2.7",
                "x-forwarded-host: outer.example",
                "x-forwarded-proto: http",
            ]
        );
    }
}
