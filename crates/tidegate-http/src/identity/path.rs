//! One path, however it is written: the form that rules match and count by, and the form to forward.
//!
//! Servers read `/login`, `//login`, `/LOGIN`, `/%6Cogin`, `/x/../login` and `/login/` in different ways, and a limit on one
//! of them must hold for all. So rules see a form in which they are the same. What is forwarded is normalised by the same
//! walk, but only where RFC 3986 says that nothing changes its meaning: a server may care for case, for a final slash and
//! for an escaped one.

use std::borrow::Cow;

use serde::Deserialize;

/// Whether paths that differ in case alone are one to rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum PathCase {
    /// They are, and rules write them in lower case.
    #[default]
    Insensitive,
    /// They are not.
    Sensitive,
}

/// A path in its two normal forms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NormalPath<'a> {
    matching: Cow<'a, str>,
    forward: Cow<'a, str>,
    readings: Readings,
}

/// Whether servers agree on what a path means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Readings {
    #[default]
    One,
    Several,
}

impl<'a> NormalPath<'a> {
    /// Normalises the path of a request's target.
    #[must_use]
    pub fn new(path: &'a str, case: PathCase) -> Self {
        if is_plain(path) {
            // As almost all are: nothing to undo but case and a final slash.
            let trimmed = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
            let matching = folded(Cow::Borrowed(trimmed), case);
            return NormalPath { matching, forward: path.into(), readings: Readings::One };
        }
        let matching = meaning(path);
        let forward = remove_dots(&canonical_escapes(path), After::Keep);
        // `/v1/a%2Fb/../login` climbs over `b`, or over `a%2Fb`, depending on who reads it.
        let (forward, readings) = if meaning(&forward) == matching {
            (forward, Readings::One)
        } else {
            (escaped(&unescape(&matching)), Readings::Several)
        };
        NormalPath { matching: folded(matching.into(), case), forward: forward.into(), readings }
    }

    /// Whether servers that are given the path as it was written would disagree on what it means: it climbs with `..` over
    /// an escaped slash. Who forwards the normal form need not care; who leaves the path to others should refuse it.
    #[must_use]
    pub fn is_ambiguous(&self) -> bool {
        self.readings == Readings::Several
    }

    /// The form that rules match and count by.
    #[must_use]
    pub fn matching(&self) -> &str {
        &self.matching
    }

    /// The form that rules match, borrowed from the request where nothing had to be undone.
    pub(super) fn matching_bytes(&self) -> Cow<'a, [u8]> {
        match &self.matching {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.clone().into_bytes()),
        }
    }

    /// The form to forward.
    #[must_use]
    pub fn forward(&self) -> &str {
        &self.forward
    }
}

/// What becomes of a final slash.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    Keep,
    Drop,
}

fn folded(path: Cow<'_, str>, case: PathCase) -> Cow<'_, str> {
    let fold = case == PathCase::Insensitive && path.bytes().any(|byte| byte.is_ascii_uppercase());
    if fold { path.to_ascii_lowercase().into() } else { path }
}

/// Whether a path has no escape, no empty or dotted segment, and nothing but ordinary characters.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let ordinary = |byte: &u8| matches!(byte, b'!'..=b'~') && !matches!(byte, b'%' | b'\\');
    bytes.first() == Some(&b'/')
        && bytes.iter().all(ordinary)
        && !bytes.windows(2).any(|pair| pair[0] == b'/' && matches!(pair[1], b'/' | b'.'))
}

/// Every `%xx` as the byte it stands for, once: what is escaped twice stays escaped.
pub(super) fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match escape(rest) {
            Some((byte, after)) => {
                bytes.push(byte);
                rest = after;
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

/// The byte of the escape that `text` begins with, and what follows.
fn escape(text: &[u8]) -> Option<(u8, &[u8])> {
    let [b'%', high, low, rest @ ..] = text else { return None };
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let byte = u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()?;
    Some((byte, rest))
}

/// What a path comes down to: everything unescaped, then empty and dotted segments removed.
fn meaning(path: &str) -> String {
    remove_dots(&printable(&unescape(path)), After::Drop)
}

/// Bytes as a path that may be sent.
fn escaped(path: &[u8]) -> String {
    let mut out = Vec::with_capacity(path.len());
    for byte in path {
        let plain = byte.is_ascii_alphanumeric() || b"/-._~!$&'()*+,;=:@".contains(byte);
        if plain { out.push(*byte) } else { push_escape(&mut out, *byte, HEX_UPPER) }
    }
    String::from_utf8(out).expect("everything but ASCII is escaped")
}

/// RFC 3986, 6.2.2: what need not be escaped is not, and the rest is escaped with capitals.
fn canonical_escapes(path: &str) -> String {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        match escape(rest) {
            Some((byte, after)) => {
                let unreserved = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
                if unreserved {
                    out.push(byte)
                } else {
                    push_escape(&mut out, byte, HEX_UPPER)
                }
                rest = after;
            }
            None => {
                // A control or a byte beyond ASCII has no business in a request line; and a `%` that begins no escape must
                // not come to begin one.
                let plain = matches!(first, b'!'..=b'~') && *first != b'%';
                if plain {
                    out.push(*first)
                } else {
                    push_escape(&mut out, *first, HEX_UPPER)
                }
                rest = after;
            }
        }
    }
    String::from_utf8(out).expect("everything but ASCII is escaped")
}

/// Bytes as text: what is no UTF-8, a control, or `%` itself is written as `%xx`, so that no two paths become one. A
/// backslash is a slash, as it is to many a server.
fn printable(bytes: &[u8]) -> String {
    let mut text = Vec::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '%' => text.extend_from_slice(b"%25"),
                '\\' => text.push(b'/'),
                control if control.is_ascii_control() => push_escape(&mut text, control as u8, HEX_LOWER),
                other => text.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        for byte in chunk.invalid() {
            push_escape(&mut text, *byte, HEX_LOWER);
        }
    }
    String::from_utf8(text).expect("only whole characters were taken over")
}

const HEX_UPPER: &[u8; 16] = b"0123456789ABCDEF";
const HEX_LOWER: &[u8; 16] = b"0123456789abcdef";

fn push_escape(out: &mut Vec<u8>, byte: u8, digits: &[u8; 16]) {
    out.extend_from_slice(&[b'%', digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]);
}

/// Removes empty segments, `.` and `..`; nothing climbs above the root.
fn remove_dots(path: &str, final_slash: After) -> String {
    if path == "*" {
        return path.to_owned();
    }
    let mut segments: Vec<&str> = Vec::new();
    let mut is_folder = false;
    for segment in path.split('/') {
        is_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in &segments {
        out.push('/');
        out.push_str(segment);
    }
    if out.is_empty() || (is_folder && final_slash == After::Keep) {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn forms(path: &str) -> (String, String) {
        let path = NormalPath::new(path, PathCase::Insensitive);
        (path.matching().to_owned(), path.forward().to_owned())
    }

    #[test]
    fn every_way_to_write_a_path_matches_as_one() {
        for path in [
            "/v1/login",
            "/v1/login/",
            "//v1//login",
            "/V1/LogIn",
            "/%761/%6Cogin",
            "/v1%2Flogin",
            "/v1/./login",
            "/v1/x/../login",
            "/../v1/login",
            "/v1/%2e%2E/v1/login",
            "/v1\\login",
            "/v1%5Clogin",
            "/v1/login/.",
            "/v1/login//",
        ] {
            assert_eq!(forms(path).0, "/v1/login", "{path}");
        }
    }

    #[test]
    fn what_is_forwarded_keeps_what_a_server_may_care_for() {
        for (path, forward) in [
            ("/v1/Login/", "/v1/Login/"),
            ("/a%2fb", "/a%2Fb"),
            ("/%7Euser/%41", "/~user/A"),
            ("//a/./b/../c", "/a/c"),
            ("/a/b/..", "/a/"),
            ("/a%20b%zz", "/a%20b%25zz"),
            ("/%0%30", "/%2500"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("", "/"),
            ("*", "*"),
        ] {
            assert_eq!(forms(path).1, forward, "{path}");
        }
    }

    #[test]
    fn what_is_escaped_twice_is_unescaped_once() {
        assert_eq!(forms("/%252e%252e/a").0, "/%252e%252e/a");
        assert_eq!(forms("/%25").0, "/%25");
    }

    #[test]
    fn what_is_forwarded_is_what_rules_saw_even_where_servers_would_disagree() {
        for (path, matching, forward) in [
            ("/v1/a%2Fb/../login", "/v1/a/login", "/v1/a/login"),
            ("/v1/a\\b/../login", "/v1/a/login", "/v1/a/login"),
            ("/v1/a%2Fb/../%3F%25", "/v1/a/?%25", "/v1/a/%3F%25"),
        ] {
            let normal = NormalPath::new(path, PathCase::Insensitive);
            assert_eq!((normal.matching(), normal.forward()), (matching, forward), "{path}");
            assert!(normal.is_ambiguous(), "{path}");
        }
        for path in ["/v1/a%2Fb", "/v1/../login", "/a%2F../b", "/v1\\login"] {
            assert!(!NormalPath::new(path, PathCase::Insensitive).is_ambiguous(), "{path}");
        }
    }

    #[test]
    fn case_can_be_kept_apart() {
        assert_eq!(NormalPath::new("/Items/A/", PathCase::Sensitive).matching(), "/Items/A");
    }

    proptest! {
        #[test]
        fn forwarding_changes_nothing_that_rules_see(path in "(/|\\.\\./|%2[eEfF5]|%5[cC]|%0|[a-cA-C.3%é \\\\]){0,16}") {
            let (matching, forward) = forms(&path);
            prop_assert_eq!(forms(&forward), (matching, forward.clone()));
        }

        #[test]
        fn no_segment_of_a_normal_path_is_empty_or_dotted(path in any::<String>()) {
            let (matching, forward) = forms(&path);
            for form in [&matching, &forward] {
                let inner = form.trim_start_matches('/').trim_end_matches('/');
                prop_assert!(inner.is_empty() || inner.split('/').all(|part| !["", ".", ".."].contains(&part)), "{form}");
            }
            prop_assert!(forward.bytes().all(|byte| matches!(byte, b'!'..=b'~')));
        }

        #[test]
        fn a_plain_path_takes_the_short_way_to_the_same_end(path in "(/[a-zA-Z0-9._~-]{1,6}){1,4}/?") {
            let long_way = remove_dots(&printable(&unescape(&path)), After::Drop).to_ascii_lowercase();
            prop_assert_eq!(forms(&path).0, long_way);
        }
    }
}
