//! Walks over one JSON object without building a tree: logs have a few fields that matter among many that do not.
//!
//! It parses well-formed JSON, rejects unclosed values, and bounds the depth. Numbers and words are not validated here; that
//! is left to the code that converts them.

use std::borrow::Cow;

use super::BadLine;
use super::time::whole;

/// A value as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raw<'a> {
    /// A string without its quotes, free of escapes.
    Text(&'a [u8]),
    /// A string without its quotes, with its escapes.
    Escaped(&'a [u8]),
    /// An object or a list, including brackets.
    Nested(&'a [u8]),
    /// A number, or a word such as `null`.
    Bare(&'a [u8]),
}

const BROKEN: BadLine = BadLine("it is not a JSON object");
const DEEPEST: usize = 64;

/// Whether a byte ends a number or a word.
const ENDS_BARE: [bool; 256] = {
    let mut ends = [false; 256];
    let mut byte = 0u8;
    while byte < 128 {
        ends[byte as usize] = matches!(byte, b',' | b'}' | b']') || byte.is_ascii_whitespace();
        byte += 1;
    }
    ends
};

impl<'a> Raw<'a> {
    /// The text of a string; `None` for `null` and other values.
    pub(super) fn text(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Raw::Text(text) => Some(Cow::Borrowed(text)),
            Raw::Escaped(text) => unescape(text),
            Raw::Nested(_) | Raw::Bare(_) => None,
        }
    }

    /// A string or a number as written.
    pub(super) fn scalar(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Raw::Bare(b"null") => None,
            Raw::Bare(bare) => Some(Cow::Borrowed(bare)),
            _ => self.text(),
        }
    }

    /// A whole number.
    pub(super) fn integer(self) -> Option<u64> {
        let Raw::Bare(bare) = self else { return None };
        whole(bare)
    }
}

/// Calls `each` with the name of every field of the object in `line`, in order; `each` must consume the value. Only
/// whitespace may surround the object.
pub(super) fn fields<'a>(
    line: &'a [u8],
    each: impl FnMut(&'a [u8], &mut Walk<'a>) -> Result<(), BadLine>,
) -> Result<(), BadLine> {
    let mut walk = Walk::over(line);
    walk.fields(each)?;
    walk.end()
}

/// The rest of a line.
pub(super) struct Walk<'a> {
    rest: &'a [u8],
}

impl<'a> Walk<'a> {
    /// Starts at the first byte of a line.
    pub(super) fn over(line: &'a [u8]) -> Self {
        Walk { rest: line }
    }

    /// Rejects the rest unless it is whitespace.
    pub(super) fn end(&mut self) -> Result<(), BadLine> {
        if self.next().is_none() { Ok(()) } else { Err(BROKEN) }
    }

    /// Like [`fields`], for an object at the current position.
    pub(super) fn fields(
        &mut self,
        mut each: impl FnMut(&'a [u8], &mut Walk<'a>) -> Result<(), BadLine>,
    ) -> Result<(), BadLine> {
        let mut place = 0;
        while let Some(name) = self.next_name(place)? {
            each(name, self)?;
            place += 1;
        }
        Ok(())
    }

    /// Advances to the value of the next field of the current object, and returns its name with its escapes; `place` is 0 for
    /// the first one. `None` at the end of
    /// the object.
    fn next_name(&mut self, place: usize) -> Result<Option<&'a [u8]>, BadLine> {
        if place == 0 {
            self.expect(b'{')?;
        }
        match self.next() {
            Some(b'}') => {
                self.skip();
                return Ok(None);
            }
            Some(b',') if place > 0 => self.skip(),
            _ if place > 0 => return Err(BROKEN),
            _ => {}
        }
        self.expect(b'"')?;
        let (text, _) = self.string()?;
        self.expect(b':')?;
        Ok(Some(text))
    }

    /// Calls `each` at every item of the list at the current position; `each` must consume the item.
    pub(super) fn items(
        &mut self,
        mut each: impl FnMut(&mut Walk<'a>) -> Result<(), BadLine>,
    ) -> Result<(), BadLine> {
        self.expect(b'[')?;
        if self.next() == Some(b']') {
            return self.expect(b']');
        }
        loop {
            each(self)?;
            if self.next() != Some(b',') {
                return self.expect(b']');
            }
            self.skip();
        }
    }

    /// Whether an object is next.
    pub(super) fn is_object(&mut self) -> bool {
        self.next() == Some(b'{')
    }

    /// Skips a value.
    #[inline]
    pub(super) fn ignore(&mut self) -> Result<(), BadLine> {
        match self.next().ok_or(BROKEN)? {
            b'"' => {
                self.skip();
                self.string().map(drop)
            }
            b'{' | b'[' => self.nested().map(drop),
            _ => self.bare().map(drop),
        }
    }

    /// Consumes a value, and returns its text if it is a string.
    #[inline]
    pub(super) fn text(&mut self) -> Result<Option<Cow<'a, [u8]>>, BadLine> {
        if self.next() != Some(b'"') {
            return self.ignore().map(|()| None);
        }
        self.skip();
        let (text, escaped) = self.string()?;
        Ok(if escaped { unescape(text) } else { Some(Cow::Borrowed(text)) })
    }

    /// Consumes a value.
    pub(super) fn value(&mut self) -> Result<Raw<'a>, BadLine> {
        match self.next().ok_or(BROKEN)? {
            b'"' => {
                self.skip();
                let (text, escaped) = self.string()?;
                Ok(if escaped { Raw::Escaped(text) } else { Raw::Text(text) })
            }
            b'{' | b'[' => self.nested().map(Raw::Nested),
            _ => self.bare().map(Raw::Bare),
        }
    }

    /// Consumes a number or a word.
    #[inline]
    fn bare(&mut self) -> Result<&'a [u8], BadLine> {
        let end = self.rest.iter().position(|byte| ENDS_BARE[usize::from(*byte)]);
        let end = end.filter(|end| *end > 0).ok_or(BROKEN)?;
        Ok(self.take(end))
    }

    /// Skips whitespace, and returns the next byte without consuming it.
    #[inline]
    fn next(&mut self) -> Option<u8> {
        while let [first, rest @ ..] = self.rest {
            if !first.is_ascii_whitespace() {
                return Some(*first);
            }
            self.rest = rest;
        }
        None
    }

    /// Skips one byte.
    #[inline]
    fn skip(&mut self) {
        self.rest = &self.rest[1..];
    }

    #[inline]
    fn expect(&mut self, byte: u8) -> Result<(), BadLine> {
        if self.next() != Some(byte) {
            return Err(BROKEN);
        }
        self.skip();
        Ok(())
    }

    /// Consumes `count` bytes.
    #[inline]
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    /// The rest of a string after the opening quote, and whether it has escapes.
    #[inline]
    fn string(&mut self) -> Result<(&'a [u8], bool), BadLine> {
        match quote_or_backslash(self.rest) {
            Some(end) if self.rest[end] == b'"' => {
                let (text, rest) = (&self.rest[..end], &self.rest[end + 1..]);
                self.rest = rest;
                Ok((text, false))
            }
            Some(end) => self.escaped_string(end).map(|text| (text, true)),
            None => Err(BROKEN),
        }
    }

    /// The rest of a string after the opening quote, with a backslash at `first`.
    #[cold]
    fn escaped_string(&mut self, first: usize) -> Result<&'a [u8], BadLine> {
        let mut end = first;
        while self.rest[end] == b'\\' {
            let after = end + 2;
            end = after + quote_or_backslash(self.rest.get(after..).ok_or(BROKEN)?).ok_or(BROKEN)?;
        }
        let (text, rest) = (&self.rest[..end], &self.rest[end + 1..]);
        self.rest = rest;
        Ok(text)
    }

    /// Consumes an object or a list.
    fn nested(&mut self) -> Result<&'a [u8], BadLine> {
        let (whole, mut depth) = (self.rest, 0usize);
        loop {
            match self.rest.first().ok_or(BROKEN)? {
                b'"' => {
                    self.skip();
                    self.string()?;
                    // The byte after a string is looked at next.
                    continue;
                }
                b'{' | b'[' if depth == DEEPEST => return Err(BadLine("it is nested too deep")),
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.skip();
            if depth == 0 {
                return Ok(&whole[..whole.len() - self.rest.len()]);
            }
        }
    }
}

/// The index of the first quote or backslash. Strings in logs are short: eight bytes at a time avoids the setup and tail of
/// a SIMD search.
#[inline]
pub(super) fn quote_or_backslash(text: &[u8]) -> Option<usize> {
    /// A 1 in every byte: multiplied by a byte, it repeats that byte eight times.
    const ONES: u64 = u64::MAX / 255;
    // Sets the highest bit of the first zero byte, and perhaps of later ones.
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & (ONES << 7);
    let (words, last) = text.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let found = zeros(word ^ (ONES * u64::from(b'"'))) | zeros(word ^ (ONES * u64::from(b'\\')));
        if found != 0 {
            return Some(place * 8 + found.trailing_zeros() as usize / 8);
        }
    }
    let found = last.iter().position(|byte| matches!(byte, b'"' | b'\\'));
    found.map(|place| words.len() * 8 + place)
}

/// The text of a field's name.
pub(super) fn unescaped(name: &[u8]) -> Option<Cow<'_, [u8]>> {
    if name.contains(&b'\\') { unescape(name) } else { Some(Cow::Borrowed(name)) }
}

#[cold]
fn unescape(text: &[u8]) -> Option<Cow<'_, [u8]>> {
    // Rare enough for a full JSON parser, which needs the quotes back.
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
        fields(line, |name, walk| {
            let value = walk.value()?;
            let text = match value {
                Raw::Nested(text) => String::from_utf8_lossy(text).into_owned(),
                _ => String::from_utf8_lossy(&value.scalar().unwrap_or_default()).into_owned(),
            };
            all.push((String::from_utf8_lossy(name).into_owned(), text));
            Ok(())
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
        fn what_serde_writes_is_read(map in prop::collection::btree_map(".{0,12}", ".{0,30}", 0..6)) {
            let line = serde_json::to_vec(&map).unwrap();
            let mut pairs = Vec::new();
            let text = |raw: Cow<'_, [u8]>| String::from_utf8(raw.into_owned()).unwrap();
            fields(&line, |name, walk| {
                pairs.push((text(unescaped(name).unwrap()), text(walk.value()?.text().unwrap())));
                Ok(())
            })
            .unwrap();
            prop_assert_eq!(pairs, Vec::from_iter(map));
        }

        #[test]
        fn any_bytes_are_read_or_refused(line in prop::collection::vec(any::<u8>(), 0..64)) {
            if serde_json::from_slice::<serde_json::Map<String, Value>>(&line).is_ok() {
                prop_assert!(fields(&line, |_, walk| walk.ignore()).is_ok());
            } else {
                let _ = fields(&line, |_, walk| walk.ignore());
            }
        }
    }
}
