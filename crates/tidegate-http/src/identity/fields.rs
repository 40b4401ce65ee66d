//! Single values out of a head: host, cookie, query parameter, credential.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName};
use http::{HeaderMap, Uri};

use super::RequestHead;
use super::path::unescape;

/// The host that was asked for: lower case, without port or final dot, so that each has one name.
pub(super) fn host<'a>(head: &RequestHead<'a>) -> Option<Cow<'a, [u8]>> {
    let named = head.uri.authority().map(|authority| authority.as_str());
    let named = named.or_else(|| head.headers.get(HOST)?.to_str().ok())?;
    let named = named.rsplit_once('@').map_or(named, |(_, host)| host);
    let bare = match named.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => named.split_once(':').map_or(named, |(host, _)| host),
    };
    let bare = bare.strip_suffix('.').unwrap_or(bare);
    let upper = bare.bytes().any(|byte| byte.is_ascii_uppercase());
    Some(if upper { bare.to_ascii_lowercase().into_bytes().into() } else { bare.as_bytes().into() })
}

/// The first cookie called `name`.
pub(super) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let lines = headers.get_all(COOKIE).into_iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')).find_map(|pair| {
        let (known, value) = split_at_equals(pair.trim_ascii())?;
        (known == name.as_bytes()).then(|| unquoted(value))
    })
}

/// The first query parameter called `name`, as a form would have it.
pub(super) fn query<'a>(uri: &'a Uri, name: &str) -> Option<Cow<'a, [u8]>> {
    uri.query()?.split('&').find_map(|pair| {
        let (known, value) = pair.split_once('=').unwrap_or((pair, ""));
        (form(known).as_ref() == name.as_bytes()).then(|| form(value))
    })
}

/// What a header holds to prove who is asking: without the scheme where there is one, and nothing where it was sent twice,
/// for then the server behind may believe the other.
pub(super) fn credential<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next().filter(|_| values.next().is_none())?.as_bytes().trim_ascii();
    let value = if *name == AUTHORIZATION { after_scheme(value) } else { value };
    (!value.is_empty()).then_some(value)
}

/// What a header that must say `Bearer` holds after it.
#[cfg(feature = "jwt")]
pub(super) fn bearer<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a [u8]> {
    let mut values = headers.get_all(name).into_iter();
    let value = values.next().filter(|_| values.next().is_none())?.as_bytes().trim_ascii();
    const SCHEME: &[u8] = b"bearer ";
    match value.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => Some(token.trim_ascii()),
        // Elsewhere than in `Authorization`, a token usually stands alone.
        _ => (*name != AUTHORIZATION).then_some(value),
    }
}

fn after_scheme(value: &[u8]) -> &[u8] {
    let space = value.iter().position(|byte| *byte == b' ');
    space.map_or(value, |space| value[space..].trim_ascii())
}

fn split_at_equals(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((&pair[..at], &pair[at + 1..]))
}

fn unquoted(value: &[u8]) -> &[u8] {
    value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value)
}

fn form(text: &str) -> Cow<'_, [u8]> {
    if !text.contains(['%', '+']) {
        return text.as_bytes().into();
    }
    unescape(&text.replace('+', " ")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().unwrap()
    }

    #[test]
    fn a_query_parameter_is_read_as_a_form_is() {
        let uri = uri("/search?x=1&na%6De=a+b%26c&name=second");
        assert_eq!(query(&uri, "name").unwrap().as_ref(), b"a b&c");
        assert_eq!(query(&uri, "absent"), None);
    }

    #[test]
    fn a_cookie_is_found_among_others() {
        let mut headers = HeaderMap::new();
        headers.append(COOKIE, "a=1; sid=\"x=y\"".parse().unwrap());
        headers.append(COOKIE, "late=2".parse().unwrap());
        assert_eq!(cookie(&headers, "sid"), Some(&b"x=y"[..]));
        assert_eq!(cookie(&headers, "late"), Some(&b"2"[..]));
        assert_eq!(cookie(&headers, "si"), None);
    }
}
