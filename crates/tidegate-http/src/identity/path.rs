//! Path normalisation: the forms that rules match and count by, and the form to forward.
//!
//! Servers read `/login`, `//login`, `/LOGIN`, `/%6Cogin`, `/x/../login` and `/login/` in different ways, and a limit on one
//! of them must hold for all. So rules see a form in which they are equal. The forwarded path is normalised by the same
//! walk, but only where RFC 3986 says that the meaning does not change: a server may distinguish case, a final slash and an
//! escaped one.
//!
//! What servers still disagree on is settled in one of two ways, so that no request runs what it was not counted for:
//! - refused ([`PathError`]): a backslash, a control character, `..` that some server sees and another does not;
//! - counted under every reading ([`NormalPath::readings`]): whether `%2F` separates, whether `;x` and final dots belong to a
//!   segment. Servers of each kind are common, and so are honest clients that write such paths.

use std::borrow::Cow;

use serde::Deserialize;
use smallvec::SmallVec;

use super::escapes::{canonical, escape, printable, unescape};

/// The longest path; a longer one is rejected, because rules must see all of it.
pub const MOST_PATH_BYTES: usize = 8 * 1024;

/// Whether paths that differ only in case are equal to rules.
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

/// How a path reaches the server behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardedPath {
    /// As its [normal form](NormalPath::forward).
    Normalised,
    /// As the client wrote it: another program forwards it.
    AsWritten,
}

/// A path in its normal forms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NormalPath<'a> {
    matching: Cow<'a, str>,
    forward: Cow<'a, str>,
    others: SmallVec<[String; 1]>,
}

/// Why a path is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// A slash to some servers.
    #[error("the path holds a backslash, which some servers take for a slash")]
    Backslash,
    /// The end of the path to some servers.
    #[error("the path holds a control character")]
    Control,
    /// It climbs for some servers and not for others.
    #[error("the path climbs with `..` in a way that servers read differently")]
    Dots,
    /// Half an escape.
    #[error("the path holds a `%` that begins no escape")]
    Escape,
    /// An overlong encoding, which some servers read as `/` or `.`.
    #[error("the path holds an overlong character")]
    Overlong,
    /// More than [`MOST_PATH_BYTES`].
    #[error("the path is longer than {MOST_PATH_BYTES} bytes")]
    TooLong,
}

impl<'a> NormalPath<'a> {
    /// Normalises the path of a request's target.
    ///
    /// # Errors
    /// Servers would disagree on its meaning in a way that cannot be counted.
    pub fn read(path: &'a str, case: PathCase, forwarded_path: ForwardedPath) -> Result<Self, PathError> {
        if path.len() > MOST_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        if is_plain(path) {
            // The usual case: only letter case and a final slash to normalise.
            let trimmed = if path.len() > 1 { path.strip_suffix('/').unwrap_or(path) } else { path };
            let matching = folded(Cow::Borrowed(trimmed), case);
            return Ok(NormalPath { matching, forward: path.into(), others: SmallVec::new() });
        }
        refuse_what_servers_misread(path.as_bytes(), forwarded_path)?;
        let written = canonical(path);
        if forwarded_path == ForwardedPath::AsWritten && written.split('/').any(is_dots) {
            return Err(PathError::Dots);
        }
        let forward = remove_dots(&written);
        if hides_dots(&forward) {
            return Err(PathError::Dots);
        }
        let mut readings = Quirks::of(&forward, path, forwarded_path).map(|quirks| {
            let reading = reading(&forward, quirks);
            if case == PathCase::Insensitive { reading.to_ascii_lowercase() } else { reading }
        });
        let matching = readings.next().expect("no quirk is a reading as well");
        let mut others: SmallVec<[String; 1]> = SmallVec::new();
        for other in readings {
            if other != matching && !others.contains(&other) {
                others.push(other);
            }
        }
        Ok(NormalPath { matching: matching.into(), forward: forward.into(), others })
    }

    /// The form that rules match and count by, as most servers read it.
    #[must_use]
    pub fn matching(&self) -> &str {
        &self.matching
    }

    /// Every form that some server may read, the usual one first.
    pub fn readings(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.matching).chain(self.others.iter().map(String::as_str))
    }

    /// The usual form, borrowed from the request if it was already normal.
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

fn folded(path: Cow<'_, str>, case: PathCase) -> Cow<'_, str> {
    let fold = case == PathCase::Insensitive && path.bytes().any(|byte| byte.is_ascii_uppercase());
    if fold { path.to_ascii_lowercase().into() } else { path }
}

/// Whether a path has no escapes, no parameters, no segment that is empty or begins or ends with a dot, and only ordinary
/// characters.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let ordinary = |byte: &u8| matches!(byte, b'!'..=b'~') && !matches!(byte, b'%' | b'\\' | b';');
    bytes.first() == Some(&b'/')
        && bytes.last() != Some(&b'.')
        && bytes.iter().all(ordinary)
        && !bytes.windows(2).any(|pair| matches!(pair, b"//" | b"/." | b"./"))
}

fn refuse_what_servers_misread(path: &[u8], forwarded_path: ForwardedPath) -> Result<(), PathError> {
    let mut rest = path;
    let mut before = 0;
    while let Some((first, after)) = rest.split_first() {
        let byte = match escape(rest) {
            Some((byte, after)) => {
                rest = after;
                byte
            }
            None if *first == b'%' && forwarded_path == ForwardedPath::AsWritten => {
                return Err(PathError::Escape);
            }
            None => {
                rest = after;
                *first
            }
        };
        match byte {
            b'\\' => return Err(PathError::Backslash),
            ..b' ' | 0x7f => return Err(PathError::Control),
            0x80..=0xbf if matches!(before, 0xc0 | 0xc1) => return Err(PathError::Overlong),
            _ => before = byte,
        }
    }
    Ok(())
}

fn is_dots(segment: &str) -> bool {
    matches!(segment, "." | "..")
}

/// Whether some server sees dots where RFC 3986 sees none: behind an escaped slash, before a parameter, or among spaces,
/// which Windows ignores.
fn hides_dots(forward: &str) -> bool {
    let segments = forward.split('/').flat_map(|segment| segment.split("%2F"));
    segments.map(without_parameters).any(|segment| {
        let bare = segment.replace("%20", "");
        bare.bytes().all(|byte| byte == b'.') && segment.contains('.')
    })
}

fn without_parameters(segment: &str) -> &str {
    segment.split_once(';').map_or(segment, |(name, _)| name)
}

/// How a server's reading of a path deviates from the usual one.
#[derive(Clone, Copy, Debug, Default)]
struct Quirks {
    /// `%2F` is a character like others (Node, Go's and Rust's routers); usually it separates (WSGI, nginx).
    keeps_escaped_slashes: bool,
    /// `;x` is a parameter and no part of the segment (servlets).
    drops_parameters: bool,
    /// Dots and spaces at the end of a segment are ignored (Windows).
    trims_ends: bool,
    /// What follows `//` is a host (`new URL(…)` of browsers and Node).
    takes_a_host: bool,
}

impl Quirks {
    /// No quirk, and then every combination of those that matter for this path.
    fn of(forward: &str, written: &str, forwarded_path: ForwardedPath) -> impl Iterator<Item = Quirks> {
        let ends = |segment: &str| segment.ends_with('.') || segment.ends_with("%20");
        let differs = [
            forward.contains("%2F"),
            forward.contains(';'),
            forward.split('/').flat_map(|part| part.split("%2F")).map(without_parameters).any(ends)
                || forward.split('/').any(ends),
            forwarded_path == ForwardedPath::AsWritten && written.starts_with("//"),
        ];
        (0..16_u8).filter_map(move |choice| {
            let has = |quirk: u8| choice & (1 << quirk) != 0;
            let possible = (0..4).all(|quirk| !has(quirk) || differs[usize::from(quirk)]);
            possible.then(|| Quirks {
                keeps_escaped_slashes: has(0),
                drops_parameters: has(1),
                trims_ends: has(2),
                takes_a_host: has(3),
            })
        })
    }
}

/// How a server with these quirks reads a path without dotted segments.
fn reading(forward: &str, quirks: Quirks) -> String {
    if forward == "*" {
        return forward.to_owned();
    }
    let mut segments: Vec<&str> = forward.split('/').filter(|segment| !segment.is_empty()).collect();
    if quirks.takes_a_host && !segments.is_empty() {
        segments.remove(0);
    }
    let mut out = String::with_capacity(forward.len());
    for segment in segments {
        if quirks.keeps_escaped_slashes {
            push_segment(&mut out, segment, quirks);
        } else {
            segment.split("%2F").for_each(|part| push_segment(&mut out, part, quirks));
        }
    }
    if out.is_empty() { "/".to_owned() } else { out }
}

fn push_segment(out: &mut String, segment: &str, quirks: Quirks) {
    let segment = if quirks.drops_parameters { without_parameters(segment) } else { segment };
    let text = printable(&unescape(segment));
    let text = if quirks.trims_ends { text.trim_end_matches(['.', ' ']) } else { &text };
    if !text.is_empty() {
        out.push('/');
        // One is left only if it does not separate.
        out.push_str(&text.replace('/', "%2f"));
    }
}

/// Removes empty segments, `.` and `..`; nothing climbs above the root, and a final slash stays.
fn remove_dots(path: &str) -> String {
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
    if out.is_empty() || is_folder {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(path: &str, forwarded_path: ForwardedPath) -> Result<NormalPath<'_>, PathError> {
        NormalPath::read(path, PathCase::Insensitive, forwarded_path)
    }

    fn forms(path: &str) -> (String, String) {
        let path = read(path, ForwardedPath::Normalised).unwrap();
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
    fn what_servers_read_differently_is_refused() {
        for (path, error) in [
            ("/expensive/..%5Cfree", PathError::Backslash),
            ("/expensive/..\\free", PathError::Backslash),
            ("/expensive/42\\..\\..\\free", PathError::Backslash),
            ("/expensive/..%2Ffree", PathError::Dots),
            ("/expensive%2f..%2ffree", PathError::Dots),
            ("/v1/a%2F.%2Fb", PathError::Dots),
            ("/v1/..;/login", PathError::Dots),
            ("/v1/.;x=1/login", PathError::Dots),
            ("/v1/..%20/login", PathError::Dots),
            ("/v1/.../login", PathError::Dots),
            ("/login%00.png", PathError::Control),
            ("/login%0A", PathError::Control),
            ("/login%7f", PathError::Control),
            ("/a/%c0%ae%c0%ae/b", PathError::Overlong),
            ("/a%C0%AFb", PathError::Overlong),
        ] {
            assert_eq!(read(path, ForwardedPath::Normalised), Err(error), "{path}");
            assert_eq!(read(path, ForwardedPath::AsWritten).unwrap_err(), error, "{path}");
        }
        // A `..` over an escaped slash also climbs over what that slash separates.
        assert_eq!(forms("/v1/a%2Fb/../login").1, "/v1/login");
    }

    #[test]
    fn dots_and_half_escapes_are_refused_where_somebody_else_forwards_them() {
        for path in ["/x/../login", "/./login", "/x/%2e%2e/login", "/a/..", "/.."] {
            assert_eq!(read(path, ForwardedPath::AsWritten), Err(PathError::Dots), "{path}");
        }
        assert_eq!(read("/a%zz", ForwardedPath::AsWritten), Err(PathError::Escape));
        assert_eq!(read("/a%2", ForwardedPath::AsWritten), Err(PathError::Escape));
    }

    #[test]
    fn what_servers_disagree_on_is_counted_under_every_reading() {
        let readings = |path, forwarded_path| {
            let path = read(path, forwarded_path).unwrap();
            path.readings().map(str::to_owned).collect::<Vec<_>>()
        };
        let normalised = |path| readings(path, ForwardedPath::Normalised);
        assert_eq!(normalised("/npm/@scope%2Fname"), ["/npm/@scope/name", "/npm/@scope%2fname"]);
        assert_eq!(normalised("/login;jsessionid=1"), ["/login;jsessionid=1", "/login"]);
        assert_eq!(normalised("/login."), ["/login.", "/login"]);
        assert_eq!(normalised("/login%20"), ["/login ", "/login"]);
        assert_eq!(normalised("/a%2Fb;c").len(), 4);
        assert_eq!(normalised("//free/login"), ["/free/login"]);
        assert_eq!(readings("//free/login", ForwardedPath::AsWritten), ["/free/login", "/login"]);
        assert_eq!(normalised("/v1.0/.well-known/a.b"), ["/v1.0/.well-known/a.b"]);
    }

    #[test]
    fn a_path_is_matched_whole_or_refused() {
        let long = |zeros: usize| format!("/api/{}42/export", "0".repeat(zeros));
        assert!(forms(&long(5000)).0.ends_with("042/export"));
        assert_eq!(read(&long(MOST_PATH_BYTES), ForwardedPath::Normalised), Err(PathError::TooLong));
    }

    #[test]
    fn case_can_be_kept_apart() {
        let path = NormalPath::read("/Items/A/", PathCase::Sensitive, ForwardedPath::Normalised).unwrap();
        assert_eq!(path.matching(), "/Items/A");
    }

    proptest! {
        #[test]
        fn forwarding_changes_nothing_that_rules_see(path in "(/|\\.\\./|%2[eEfF5]|%20|[a-cA-C.3%é; ]){0,16}") {
            let Ok(once) = read(&path, ForwardedPath::Normalised) else { return Ok(()) };
            prop_assert_eq!(&read(once.forward(), ForwardedPath::Normalised).unwrap(), &once);
        }

        #[test]
        fn no_segment_of_a_normal_path_is_empty_or_dotted(path in any::<String>()) {
            let Ok(path) = read(&path, ForwardedPath::Normalised) else { return Ok(()) };
            for form in path.readings().chain([path.forward()]) {
                let inner = form.trim_start_matches('/').trim_end_matches('/');
                prop_assert!(inner.is_empty() || inner.split('/').all(|part| !["", ".", ".."].contains(&part)), "{form}");
            }
            prop_assert!(path.forward().bytes().all(|byte| matches!(byte, b'!'..=b'~')));
        }

        #[test]
        fn a_plain_path_takes_the_short_way_to_the_same_end(path in "(/[a-zA-Z0-9_~-]{1,6}){1,4}/?") {
            prop_assert_eq!(forms(&path).0, reading(&canonical(&path), Quirks::default()).to_ascii_lowercase());
        }
    }
}
