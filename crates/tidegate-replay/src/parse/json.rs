//! Walks over one JSON object without building anything: logs have a few fields that matter among many that do not.
//!
//! It reads what well-formed JSON says, refuses what is not closed, and bounds how deep it looks. A number or a word is not
//! checked further: whoever wants it as a number finds out.

use std::borrow::Cow;

use memchr::memchr2;

use super::BadLine;

/// A value as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raw<'a> {
    /// A string, without its quotes, escapes as they are.
    Text(&'a [u8]),
    /// An object or a list, brackets included.
    Nested(&'a [u8]),
    /// A number, or a word such as `null`.
    Bare(&'a [u8]),
}

const BROKEN: BadLine = BadLine("it is not a JSON object");
const DEEPEST: usize = 64;

impl<'a> Raw<'a> {
    /// The text of a string; nothing for `null` and others.
    pub(super) fn text(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Raw::Text(text) => unescape(text),
            Raw::Nested(_) | Raw::Bare(_) => None,
        }
    }

    /// A string or a number as it is written.
    pub(super) fn scalar(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Raw::Bare(b"null") | Raw::Nested(_) => None,
            Raw::Bare(bare) => Some(Cow::Borrowed(bare)),
            Raw::Text(text) => unescape(text),
        }
    }

    /// A whole number.
    pub(super) fn integer(self) -> Option<u64> {
        let Raw::Bare(bare) = self else { return None };
        std::str::from_utf8(bare).ok()?.parse().ok()
    }
}

/// Calls `each` with every field of the object in `line`, in their order. Nothing but spaces may stand around the object.
pub(super) fn fields<'a>(line: &'a [u8], mut each: impl FnMut(&'a [u8], Raw<'a>)) -> Result<(), BadLine> {
    let mut rest = expect(line.trim_ascii_start(), b'{')?.trim_ascii_start();
    if let Some(after) = rest.strip_prefix(b"}") {
        return if after.trim_ascii().is_empty() { Ok(()) } else { Err(BROKEN) };
    }
    loop {
        let (name, after) = string(rest)?;
        let (value, after) = value(expect(after.trim_ascii_start(), b':')?.trim_ascii_start())?;
        each(name, value);
        rest = after.trim_ascii_start();
        match rest.first() {
            Some(b',') => rest = rest[1..].trim_ascii_start(),
            Some(b'}') if rest[1..].trim_ascii().is_empty() => return Ok(()),
            _ => return Err(BROKEN),
        }
    }
}

fn expect(text: &[u8], first: u8) -> Result<&[u8], BadLine> {
    text.split_first().filter(|(byte, _)| **byte == first).map(|(_, rest)| rest).ok_or(BROKEN)
}

fn value(text: &[u8]) -> Result<(Raw<'_>, &[u8]), BadLine> {
    match text.first() {
        Some(b'"') => string(text).map(|(text, rest)| (Raw::Text(text), rest)),
        Some(b'{' | b'[') => nested(text).map(|(text, rest)| (Raw::Nested(text), rest)),
        Some(_) => {
            let ends = |byte: &u8| matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
            let end = text.iter().position(ends).filter(|end| *end > 0).ok_or(BROKEN)?;
            Ok((Raw::Bare(&text[..end]), &text[end..]))
        }
        None => Err(BROKEN),
    }
}

/// A string at the beginning of `text`, and what follows it.
fn string(text: &[u8]) -> Result<(&[u8], &[u8]), BadLine> {
    let text = expect(text, b'"')?;
    let mut from = 0;
    loop {
        let found = from + memchr2(b'"', b'\\', text.get(from..).ok_or(BROKEN)?).ok_or(BROKEN)?;
        if text[found] == b'"' {
            return Ok((&text[..found], &text[found + 1..]));
        }
        from = found + 2;
    }
}

/// An object or a list at the beginning of `text`, and what follows it.
fn nested(text: &[u8]) -> Result<(&[u8], &[u8]), BadLine> {
    let (mut depth, mut at) = (0usize, 0usize);
    loop {
        match text.get(at).ok_or(BROKEN)? {
            b'"' => at = text.len() - string(&text[at..])?.1.len(),
            b'{' | b'[' if depth == DEEPEST => return Err(BadLine("it is nested too deep")),
            b'{' | b'[' => (depth, at) = (depth + 1, at + 1),
            b'}' | b']' if depth == 1 => return Ok(text.split_at(at + 1)),
            b'}' | b']' => (depth, at) = (depth - 1, at + 1),
            _ => at += 1,
        }
    }
}

fn unescape(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    if memchr::memchr(b'\\', text).is_none() {
        return Some(Cow::Borrowed(text));
    }
    // Rare: worth a whole JSON parser, whose quotes were taken off.
    let quoted = [b"\"", text, b"\""].concat();
    serde_json::from_slice::<String>(&quoted).ok().map(|text| Cow::Owned(text.into_bytes()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn seen(line: &[u8]) -> Result<Vec<(String, String)>, BadLine> {
        let mut all = Vec::new();
        fields(line, |name, value| {
            let text = match value {
                Raw::Nested(text) => String::from_utf8_lossy(text).into_owned(),
                _ => String::from_utf8_lossy(&value.scalar().unwrap_or_default()).into_owned(),
            };
            all.push((String::from_utf8_lossy(name).into_owned(), text));
        })?;
        Ok(all)
    }

    #[test]
    fn fields_are_seen_in_order_and_what_is_within_them_is_left_alone() {
        let line = br#" { "a" : "x\"y\u00e9" , "b":-1.5e3,"c":{"a":"}]"},"d":[1,{"e":2}],"f":null } "#;
        let pairs = [
            ("a", "x\"y\u{e9}"),
            ("b", "-1.5e3"),
            ("c", r#"{"a":"}]"}"#),
            ("d", r#"[1,{"e":2}]"#),
            ("f", ""),
        ];
        assert_eq!(seen(line).unwrap(), pairs.map(|(a, b)| (a.to_owned(), b.to_owned())));
        assert_eq!(seen(b"{}").unwrap(), []);
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for line in [
            "",
            "[]",
            "{",
            "{}x",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1,}"#,
            r#"{"a":"\"}"#,
            r#"{"a":{"b":1}"#,
            r#"{"a":1}{"#,
        ] {
            assert!(seen(line.as_bytes()).is_err(), "{line}");
        }
        assert!(seen(format!("{{\"a\":{}1{}}}", "[".repeat(100), "]".repeat(100)).as_bytes()).is_err());
    }

    proptest! {
        /// serde_json is the oracle.
        #[test]
        fn what_serde_writes_is_read(map in prop::collection::btree_map(".{0,8}", ".{0,12}", 0..6)) {
            let line = serde_json::to_vec(&map).unwrap();
            let mut values = Vec::new();
            fields(&line, |_, value| values.push(value.text().unwrap().into_owned())).unwrap();
            let expected: Vec<Vec<u8>> = map.into_values().map(String::into_bytes).collect();
            prop_assert_eq!(values, expected);
        }

        #[test]
        fn any_bytes_are_read_or_refused(line in prop::collection::vec(any::<u8>(), 0..64)) {
            if serde_json::from_slice::<serde_json::Map<String, Value>>(&line).is_ok() {
                prop_assert!(fields(&line, |_, _| ()).is_ok());
            } else {
                let _ = fields(&line, |_, _| ());
            }
        }
    }
}
