//! Single values of a request head: host, cookie, query parameter, credential.
//!
//! A value sent twice is rejected, or returned as often: it is unknown which one the server behind uses.

use std::borrow::Cow;

use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName};
use http::{HeaderMap, Uri};

use smallvec::SmallVec;

use super::RequestHead;
use super::escapes::{unescape, unescape_bytes};
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

/// The distinct values of the cookies called `name`, in order: browsers send several if paths or hosts differ, and servers
/// use the first or the last.
pub(super) fn cookies(headers: &HeaderMap, name: &str) -> SmallVec<[Vec<u8>; 1]> {
    let lines = headers.get_all(COOKIE).into_iter();
    let mut values: SmallVec<[Vec<u8>; 1]> = SmallVec::new();
    for pair in lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')) {
        let Some((known, value)) = split_at_equals(pair) else { continue };
        // Parsers trim names, and some unescape them.
        if unescape_bytes(known.trim_ascii()) != name.as_bytes() {
            continue;
        }
        let value = cookie_value(value.trim_ascii());
        if !values.contains(&value) {
            values.push(value);
            if values.len() > MOST_COOKIES {
                break;
            }
        }
    }
    values
}

/// As many as a request may have readings: with one more it is rejected, and comparing each of the thousands of others that
/// a head has room for with all before it would be wasted work.
const MOST_COOKIES: usize = super::reading::MOST_READINGS;

/// A cookie's value in one form for all the spellings that some parser considers equal: quoted, with `\141`, with `%61`.
fn cookie_value(value: &[u8]) -> Vec<u8> {
    let Some(mut rest) = value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")) else {
        return unescape_bytes(value);
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
    unescape_bytes(&bare)
}

/// The query parameter called `name`, decoded as in a form.
///
/// # Errors
/// There are two with different values: servers use the first, the last or a list.
pub(super) fn query<'a>(uri: &'a Uri, name: &str) -> Result<Option<Cow<'a, [u8]>>, Problem> {
    let Some(text) = uri.query() else { return Ok(None) };
    let mut found: Option<Cow<'a, [u8]>> = None;
    let mut separators = text.bytes().filter(|byte| *byte == b';').peekable();
    // Some servers also split at semicolons; a name found behind one is a second reading.
    let by_semicolon = separators.peek().is_some().then(|| text.split(['&', ';'])).into_iter().flatten();
    for pair in text.split('&').chain(by_semicolon) {
        let (known, value) = pair.split_once('=').unwrap_or((pair, ""));
        let known = form(known);
        // `name[]` and `name[x]` are `name` to PHP, Rails and Express.
        let same = known.strip_prefix(name.as_bytes()).is_some_and(|rest| matches!(rest, [] | [b'[', ..]));
        if !same {
            continue;
        }
        let value = form(value);
        if found.as_ref().is_some_and(|before| *before != value) {
            let detail = format!("the query has several values for `{name}`");
            return Err(Problem::new(Kind::MalformedRequest, detail).at("query").hint("give it one"));
        }
        found = Some(value);
    }
    Ok(found)
}

/// A header's credential, without the scheme if there is one.
pub(super) fn credential<'a>(
    headers: &'a HeaderMap,
    name: &HeaderName,
) -> Result<Credential<&'a [u8]>, Problem> {
    let value = match single(headers, name)? {
        Some(value) if !value.is_empty() => value,
        _ => return Ok(Credential::Absent),
    };
    if *name != AUTHORIZATION {
        return Ok(Credential::Known(value));
    }
    let (scheme, key) = split_scheme(value);
    // Two spellings that a lenient server decodes to the same must not be two keys here.
    let spelled_once = !scheme.eq_ignore_ascii_case(b"basic") || is_canonical_base64(key);
    Ok(if spelled_once { Credential::Known(key) } else { Credential::Unreadable })
}

/// The token of a header with the scheme `Bearer`.
#[cfg(feature = "jwt")]
pub(super) fn bearer<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Credential<&'a [u8]>, Problem> {
    let value = match single(headers, name)? {
        Some(value) if !value.is_empty() => value,
        _ => return Ok(Credential::Absent),
    };
    let (scheme, token) = split_scheme(value);
    Ok(match scheme.eq_ignore_ascii_case(b"bearer") {
        true => Credential::Known(token),
        // In headers other than `Authorization`, a token usually stands alone.
        false if *name != AUTHORIZATION => Credential::Known(value),
        false => Credential::Unreadable,
    })
}

/// The credential of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Credential<T> {
    /// None.
    Absent,
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
        assert_eq!(query(&uri, "name").unwrap().unwrap().as_ref(), b"a b&c");
        assert_eq!(query(&uri, "absent").unwrap(), None);
    }

    #[test]
    fn a_query_parameter_of_two_values_is_refused_however_it_is_hidden() {
        for text in ["/?u=1&u=2", "/?u=1&%75=2", "/?u=1;u=2", "/?u=1&u[]=2", "/?u[a]=1&u[b]=2", "/?u&u=1"] {
            assert!(query(&uri(text), "u").is_err(), "{text}");
        }
        assert_eq!(query(&uri("/?x=1;u=2"), "u").unwrap().unwrap().as_ref(), b"2");
    }

    #[test]
    fn a_cookie_is_found_among_others_however_it_is_spelled() {
        let read = |text: &'static str| cookies(&headers(&[(COOKIE, "a=1"), (COOKIE, text)]), "sid").to_vec();
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
        assert_eq!(cookies(&headers, "sid").len(), MOST_COOKIES + 1);
    }

    #[test]
    fn a_key_of_basic_authorization_has_one_spelling() {
        let read = |text: &'static str| {
            let headers = headers(&[(AUTHORIZATION, text)]);
            match credential(&headers, &AUTHORIZATION).unwrap() {
                Credential::Known(key) => String::from_utf8(key.to_vec()).unwrap(),
                other => format!("{other:?}"),
            }
        };
        assert_eq!(read("Basic dXNlcjpwdw=="), "dXNlcjpwdw==");
        assert_eq!(read("basic\t dXNlcjpwdzE="), "dXNlcjpwdzE=");
        for other in [
            "Basic dXNlcjpwdw",
            "Basic dXNlcjpwdw=",
            "Basic dXNlcjpwdx==",
            "Basic dXNl.cjpwdw==",
            "Basic dXNlcjpwdw== x",
        ] {
            assert_eq!(read(other), "Unreadable", "{other}");
        }
    }
}
