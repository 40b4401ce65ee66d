//! Single values of a request head: host, cookie, query parameter, credential.
//!
//! A value sent twice is rejected, or returned as often: it is unknown which one the server behind uses.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName};
use http::{HeaderMap, Uri};

use smallvec::SmallVec;

use super::escapes::{unescape, unescape_bytes};
use super::spellings::{Alternatives, Likeness, first_blank, likeness, without_blanks};
use super::{RequestHead, base64};
use crate::problem::{Kind, Problem};

/// The requested host: lower case, without port or final dot, so that each has one name.
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

/// The only line of a header, if it was sent.
///
/// # Errors
/// It was sent twice: some servers use the first, some the last, some both as one.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, Problem> {
    let mut lines = headers.get_all(name).into_iter();
    let line = lines.next();
    if lines.next().is_some() {
        return Err(Problem::new(Kind::MalformedRequest, format!("the header {name} was sent twice"))
            .at(name.as_str())
            .hint("send it once"));
    }
    Ok(line.map(|line| line.as_bytes().trim_ascii()))
}

/// The only line of a header, in every way that servers trim it.
///
/// # Errors
/// It was sent twice.
pub(super) fn trimmed<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Alternatives<'a>, Problem> {
    let mut values = Alternatives::default();
    if let Some(value) = single(headers, name)? {
        values.push_trimmed(Cow::Borrowed(value));
    }
    Ok(values)
}

/// The distinct values of the cookies called `name`, in order: browsers send several if paths or hosts differ, and servers
/// use the first or the last.
pub(super) fn cookies(headers: &HeaderMap, name: &str) -> Alternatives<'static> {
    let mut values = Alternatives::default();
    for pair in
        headers.get_all(COOKIE).into_iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'))
    {
        read_cookie(pair, name, &mut values);
        let loose = pair.trim_ascii();
        if loose.iter().any(splits_cookies) {
            let loose = without_spaces_at_equals(loose);
            let pairs = loose.split(splits_cookies).filter(|pair| !pair.ends_with(b"="));
            pairs.for_each(|pair| read_cookie(pair, name, &mut values));
        }
        if values.is_full() {
            break;
        }
    }
    values
}

/// Python's `http.cookies` also splits at spaces, though not beside `=`, and servers of RFC 2965 at commas.
fn splits_cookies(byte: &u8) -> bool {
    matches!(byte, b',' | b' ' | b'\t')
}

fn without_spaces_at_equals(pair: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pair.len());
    for byte in pair {
        match byte {
            b'=' => out.truncate(out.trim_ascii_end().len()),
            b' ' | b'\t' if out.last() == Some(&b'=') => continue,
            _ => {}
        }
        out.push(*byte);
    }
    out
}

fn read_cookie(pair: &[u8], name: &str, values: &mut Alternatives<'static>) {
    let Some((known, value)) = split_at_equals(pair) else { return };
    // Parsers trim names, and some unescape them.
    if likeness(&unescape_bytes(known.trim_ascii()), name.as_bytes()) == Likeness::Other {
        return;
    }
    let mut trimmed = Alternatives::default();
    trimmed.push_trimmed(Cow::Borrowed(value.trim_ascii()));
    for value in trimmed.iter() {
        values.push(cookie_value(value).into());
        // Older Express takes a quote at the beginning for two.
        if let [b'"', inner @ .., last] = &**value
            && *last != b'"'
            && !inner.is_empty()
        {
            values.push(cookie_value(inner).into());
        }
    }
}

/// A cookie's value in one form for all the spellings that some parser considers equal: quoted, with `\141`, `%61`, `%20`.
fn cookie_value(value: &[u8]) -> Vec<u8> {
    let Some(mut rest) = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else {
        return without_spaces(unescape_bytes(value));
    };
    let mut bare = Vec::with_capacity(rest.len());
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..] => {
                ((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'), after)
            }
            [b'\\', escaped, after @ ..] => (*escaped, after),
            _ => (*first, after),
        };
        bare.push(byte);
        rest = after;
    }
    without_spaces(unescape_bytes(&bare))
}

/// Rack reads `+` as a space.
fn without_spaces(mut value: Vec<u8>) -> Vec<u8> {
    value.iter_mut().filter(|byte| **byte == b' ').for_each(|byte| *byte = b'+');
    value
}

/// The query parameter called `name`, decoded as in a form: its value first, then those that only some server reads.
///
/// # Errors
/// There are two with different values: servers use the first, the last or a list.
pub(super) fn query<'a>(uri: &'a Uri, name: &str) -> Result<Alternatives<'a>, Problem> {
    let Some(text) = uri.query() else { return Ok(Alternatives::default()) };
    let mut found: Option<Cow<'a, [u8]>> = None;
    let mut aliases = Alternatives::default();
    let mut separators = text.bytes().filter(|byte| *byte == b';').peekable();
    // Some servers also split at semicolons; a name found behind one is a second reading.
    let by_semicolon = separators.peek().is_some().then(|| text.split(['&', ';'])).into_iter().flatten();
    for pair in text.split('&').chain(by_semicolon) {
        let (known, value) = pair.split_once('=').unwrap_or((pair, ""));
        match likeness(&form(known), name.as_bytes()) {
            Likeness::Other => {}
            Likeness::Alias => aliases.push(form(value)),
            Likeness::Same => {
                let value = form(value);
                if found.as_ref().is_some_and(|before| *before != value) {
                    let detail = format!("the query has several values for `{name}`");
                    return Err(Problem::new(Kind::MalformedRequest, detail).at("query").hint("give it one"));
                }
                found = Some(value);
            }
        }
    }
    let mut values = Alternatives::default();
    found.iter().chain(aliases.iter()).for_each(|value| values.push_trimmed(value.clone()));
    Ok(values)
}

/// The keys that a header's credential may be, without the scheme if there is one.
pub(super) fn credential<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Credentials<Cow<'a, [u8]>>, Problem> {
    let values = trimmed(headers, name)?;
    let mut keys = Credentials::new();
    for value in values.iter().filter(|value| !value.is_empty()) {
        let &Cow::Borrowed(value) = value else { continue };
        if *name == AUTHORIZATION {
            push_keys(value, &mut keys);
        } else {
            keys.push(Credential::Known(Cow::Borrowed(value)));
        }
    }
    Ok(keys)
}

fn push_keys<'a>(value: &'a [u8], keys: &mut Credentials<Cow<'a, [u8]>>) {
    let loosely = first_blank(value).map(|(at, width)| (&value[..at], without_blanks(&value[at + width..])));
    for (scheme, key) in std::iter::once(split_scheme(value)).chain(loosely) {
        // Two spellings that a lenient server decodes to the same must not be two keys here.
        if !scheme.eq_ignore_ascii_case(b"basic") || is_canonical_base64(key) {
            push_once(keys, Credential::Known(Cow::Borrowed(key)));
            continue;
        }
        base64::canonical(key)
            .into_iter()
            .for_each(|key| push_once(keys, Credential::Known(Cow::Owned(key))));
        push_once(keys, Credential::Unreadable);
    }
}

fn push_once<T: PartialEq>(all: &mut Credentials<T>, one: Credential<T>) {
    if !all.contains(&one) {
        all.push(one);
    }
}

/// A header that may hold a token: the whole value, and the token with the scheme `Bearer`.
#[cfg(feature = "jwt")]
pub(super) fn bearer<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<Bearer<'a>>, Problem> {
    let value = match single(headers, name)? {
        Some(value) if !value.is_empty() => value,
        _ => return Ok(None),
    };
    let (scheme, token) = split_scheme(value);
    let token = match scheme.eq_ignore_ascii_case(b"bearer") {
        true => Some(token),
        // In headers other than `Authorization`, a token usually stands alone.
        false => (*name != AUTHORIZATION).then_some(value),
    };
    Ok(Some(Bearer { value, token }))
}

/// A header that may hold a token.
#[cfg(feature = "jwt")]
pub(super) struct Bearer<'a> {
    pub(super) value: &'a [u8],
    pub(super) token: Option<&'a [u8]>,
}

/// What the credential of a request may be, each once; empty if there is none.
pub(super) type Credentials<T> = SmallVec<[Credential<T>; 1]>;

/// The credential of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credential<T> {
    /// One that cannot be read here, though the server behind may be able to.
    Unreadable,
    /// This.
    Known(T),
}

/// The scheme, and the rest; an empty scheme if there is one word.
fn split_scheme(value: &[u8]) -> (&[u8], &[u8]) {
    let space = value.iter().position(u8::is_ascii_whitespace);
    space.map_or((&[], value), |space| (&value[..space], value[space..].trim_ascii()))
}

/// Whether no other text decodes to the same bytes: whole groups, padding only where required, no bits left over.
fn is_canonical_base64(text: &[u8]) -> bool {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let left_over = match (digits.len() % 4, text.len() - digits.len()) {
        (0, 0) => 0,
        (2, 2) => 0b1111,
        (3, 1) => 0b11,
        _ => return false,
    };
    digits.iter().all(|byte| value(*byte).is_some())
        && digits.last().and_then(|last| value(*last)).is_none_or(|last| last & left_over == 0)
}

fn split_at_equals(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = pair.iter().position(|byte| *byte == b'=')?;
    Some((&pair[..at], &pair[at + 1..]))
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

    fn all(values: Alternatives<'_>) -> Vec<Vec<u8>> {
        values.iter().map(|value| value.to_vec()).collect()
    }

    fn first(uri: &Uri, name: &str) -> Option<Vec<u8>> {
        query(uri, name).unwrap().iter().next().map(|value| value.to_vec())
    }

    fn headers(lines: &[(HeaderName, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_query_parameter_is_read_as_a_form_is() {
        let uri = uri("/search?x=1&na%6De=a+b%26c&name=a%20b%26c");
        assert_eq!(first(&uri, "name").unwrap(), b"a b&c");
        assert_eq!(first(&uri, "absent"), None);
    }

    #[test]
    fn a_query_parameter_of_two_values_is_refused_however_it_is_hidden() {
        for text in ["/?u=1&u=2", "/?u=1&%75=2", "/?u=1;u=2", "/?u=1&u[]=2", "/?u[a]=1&u[b]=2", "/?u&u=1"] {
            assert!(query(&uri(text), "u").is_err(), "{text}");
        }
        assert_eq!(first(&uri("/?x=1;u=2"), "u").unwrap(), b"2");
    }

    #[test]
    fn a_cookie_is_found_among_others_however_it_is_spelled() {
        let read = |text: &'static str| all(cookies(&headers(&[(COOKIE, "a=1"), (COOKIE, text)]), "sid"));
        for text in [
            "sid=s1",
            "sid =s1",
            "sid\t=s1",
            " sid = s1 ",
            "sid=\"s1\"",
            "sid=%731",
            "sid=\"\\1631\"",
            "s%69d=s1",
        ] {
            assert_eq!(read(text), [b"s1"], "{text}");
        }
        assert_eq!(read("sid=\"x=y\"; late=2"), [b"x=y"]);
        assert_eq!(read("si=1; sidd=2"), Vec::<Vec<u8>>::new());
        assert_eq!(read("sid=s1; sid=s2; sid=s1"), [b"s1", b"s2"]);
    }

    #[test]
    fn cookies_beyond_those_that_can_be_counted_are_not_looked_at() {
        let many = (0..5_000).map(|number| format!("sid={number}; ")).collect::<String>();
        let headers = HeaderMap::from_iter([(COOKIE, many.parse().unwrap())]);
        assert_eq!(cookies(&headers, "sid").len(), crate::identity::reading::MOST_READINGS + 1);
    }

    #[test]
    fn a_key_of_basic_authorization_has_one_spelling() {
        let read = |text: &'static str| {
            let headers = headers(&[(AUTHORIZATION, text)]);
            let keys = credential(&headers, &AUTHORIZATION).unwrap();
            let key = |key: &Credential<Cow<'_, [u8]>>| match key {
                Credential::Known(key) => String::from_utf8(key.to_vec()).unwrap(),
                Credential::Unreadable => "unreadable".to_owned(),
            };
            keys.iter().map(key).collect::<Vec<_>>()
        };
        assert_eq!(read("Basic dXNlcjpwdw=="), ["dXNlcjpwdw=="]);
        assert_eq!(read("basic\t dXNlcjpwdzE="), ["dXNlcjpwdzE="]);
        for other in ["Basic dXNlcjpwdw", "Basic dXNlcjpwdw=", "Basic dXNlcjpwdx==", "Basic dXNl.cjpwdw=="] {
            assert_eq!(read(other), ["dXNlcjpwdw==", "unreadable"], "{other}");
        }
    }
}
