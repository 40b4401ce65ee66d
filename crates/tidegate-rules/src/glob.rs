//! Patterns in which `*` stands for any run of bytes, including `/`, matched in linear time.
//!
//! There is no other wildcard. A rule writes `\*` for a star and `\\` for a backslash; envoyproxy/ratelimit's patterns
//! have no escape.

use memchr::memmem::Finder;

/// A pattern, split at its stars.
#[derive(Debug)]
pub(crate) struct Glob {
    /// What the text must begin with.
    prefix: Box<[u8]>,
    /// What it must contain in between, in sequence.
    middle: Box<[Finder<'static>]>,
    /// What it must end with.
    suffix: Box<[u8]>,
    /// The shortest text that can match.
    shortest: usize,
}

/// A parsed pattern.
#[derive(Debug)]
pub(crate) enum Pattern {
    /// No star: exactly one text matches.
    Exact(Box<[u8]>),
    /// At least one star.
    Glob(Glob),
}

impl Pattern {
    /// Parses a rule's pattern, including escapes.
    pub(crate) fn parse(text: &str) -> Self {
        let mut parts = vec![Vec::new()];
        let mut bytes = text.bytes().peekable();
        while let Some(byte) = bytes.next() {
            let escaped =
                (byte == b'\\').then(|| bytes.next_if(|next| matches!(next, b'*' | b'\\'))).flatten();
            match (byte, escaped) {
                (b'*', _) => parts.push(Vec::new()),
                (_, Some(escaped)) => parts.last_mut().expect("never empty").push(escaped),
                (byte, None) => parts.last_mut().expect("never empty").push(byte),
            }
        }
        Pattern::of_parts(parts)
    }

    /// Parses a pattern in which every star is a wildcard and a backslash is literal.
    pub(crate) fn parse_unescaped(text: &str) -> Self {
        Pattern::of_parts(text.split('*').map(|part| part.as_bytes().to_vec()).collect())
    }

    fn of_parts(mut parts: Vec<Vec<u8>>) -> Self {
        let shortest = parts.iter().map(Vec::len).sum();
        let prefix = parts.remove(0).into_boxed_slice();
        let Some(suffix) = parts.pop() else { return Pattern::Exact(prefix) };
        let middle =
            parts.iter().filter(|part| !part.is_empty()).map(|part| Finder::new(part).into_owned()).collect();
        Pattern::Glob(Glob { prefix, middle, suffix: suffix.into_boxed_slice(), shortest })
    }

    /// Equal for patterns that match the same, given how they are split.
    pub(crate) fn canonical(&self) -> String {
        match self {
            Pattern::Exact(exact) => format!("={}", exact.escape_ascii()),
            Pattern::Glob(glob) => {
                let parts = [glob.prefix()].into_iter().chain(glob.parts()).chain([glob.suffix()]);
                parts.map(|part| format!("*\"{}\"", part.escape_ascii())).collect()
            }
        }
    }

    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        match self {
            Pattern::Exact(exact) => **exact == *text,
            Pattern::Glob(glob) => glob.matches(text),
        }
    }
}

impl Glob {
    pub(crate) fn prefix(&self) -> &[u8] {
        &self.prefix
    }

    pub(crate) fn suffix(&self) -> &[u8] {
        &self.suffix
    }

    /// Whether every text matches.
    pub(crate) fn takes_all(&self) -> bool {
        self.shortest == 0
    }

    /// The literals that the text must contain between its ends.
    pub(crate) fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.middle.iter().map(Finder::needle)
    }

    /// Taking each part at its first occurrence is enough: if any match exists, this one does.
    pub(crate) fn matches(&self, text: &[u8]) -> bool {
        if text.len() < self.shortest || !text.starts_with(&self.prefix) || !text.ends_with(&self.suffix) {
            return false;
        }
        let mut rest = &text[self.prefix.len()..text.len() - self.suffix.len()];
        self.middle.iter().all(|part| {
            let found = part.find(rest);
            found.inspect(|at| rest = &rest[at + part.needle().len()..]).is_some()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::parse(pattern).matches(text.as_bytes())
    }

    #[test]
    fn a_star_stands_for_any_run_slashes_included() {
        for (pattern, text) in [
            ("/v1/*", "/v1/"),
            ("/v1/*", "/v1/a/b"),
            ("*.json", "/a.json"),
            ("a*b*c", "abc"),
            ("a*b*c", "a-b-b-c"),
            ("*", ""),
            ("**", "x"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("/v1/*", "/v1"), ("a*a", "a"), ("a*b*c", "acb"), ("ab*ba", "aba"), ("", "x")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn an_escaped_star_is_a_star() {
        assert!(matches(r"a\*b", "a*b"));
        assert!(!matches(r"a\*b", "aXb"));
        assert!(matches(r"a\\*", r"a\anything"));
        assert!(matches(r"C:\dir", r"C:\dir"));
        assert!(Pattern::parse_unescaped(r"a\*").matches(br"a\x"));
    }
}
