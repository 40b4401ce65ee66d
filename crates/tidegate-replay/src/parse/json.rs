//! Walks over one JSON object without building anything: logs have a few fields that matter among many that do not.
//!
//! It reads what well-formed JSON says, refuses what is not closed, and bounds how deep it looks. A number or a word is not
//! checked further: whoever wants it as a number finds out.

use std::borrow::Cow;

use super::BadLine;
use super::time::whole;

/// A value as it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Raw<'a> {
    /// A string, without its quotes, and with nothing in it that is escaped.
    Text(&'a [u8]),
    /// A string, without its quotes, escapes as they are.
    Escaped(&'a [u8]),
    /// An object or a list, brackets included.
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
    /// The text of a string; nothing for `null` and others.
    pub(super) fn text(self) -> Option<Cow<'a, [u8]>> {
        match self {
            Raw::Text(text) => Some(Cow::Borrowed(text)),
            Raw::Escaped(text) => unescape(text),
            Raw::Nested(_) | Raw::Bare(_) => None,
        }
    }

    /// A string or a number as it is written.
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

/// Calls `each` with the name of every field of the object in `line`, in their order, and with what stands there: it takes
/// the value. Nothing but spaces may stand around the object.
pub(super) fn fields<'a>(
    line: &'a [u8],
    each: impl FnMut(&'a [u8], &mut Walk<'a>) -> Result<(), BadLine>,
) -> Result<(), BadLine> {
    let mut walk = Walk::over(line);
    walk.fields(each)?;
    walk.end()
}

/// What is left of a line.
pub(super) struct Walk<'a> {
    rest: &'a [u8],
}

/// The name of a field.
pub(super) struct Name<'a> {
    /// Without its quotes, escapes as they are.
    pub(super) text: &'a [u8],
    /// All that stands between the value before and its own, which is where a walk stands now.
    pub(super) written: &'a [u8],
}

impl<'a> Walk<'a> {
    /// Begins at the first byte of a line.
    pub(super) fn over(line: &'a [u8]) -> Self {
        Walk { rest: line }
    }

    /// Refuses what is left, if it is not only spaces.
    pub(super) fn end(&mut self) -> Result<(), BadLine> {
        if self.next().is_none() { Ok(()) } else { Err(BROKEN) }
    }

    /// As [`fields`], for an object that stands here.
    pub(super) fn fields(
        &mut self,
        mut each: impl FnMut(&'a [u8], &mut Walk<'a>) -> Result<(), BadLine>,
    ) -> Result<(), BadLine> {
        let mut place = 0;
        while let Some(name) = self.next_name(place)? {
            each(name.text, self)?;
            place += 1;
        }
        Ok(())
    }

    /// Goes to the value of the field at `place` of the object that stands here, after the value before; none where the object
    /// ends.
    pub(super) fn next_name(&mut self, place: usize) -> Result<Option<Name<'a>>, BadLine> {
        let before = self.rest;
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
        Ok(Some(Name { text, written: &before[..before.len() - self.rest.len()] }))
    }

    /// Goes over `text`, if it stands here byte for byte.
    #[inline]
    pub(super) fn skip_text(&mut self, text: &[u8]) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Calls `each` where every item of a list stands, which stands here: it takes the item.
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

    /// Whether an object stands here.
    pub(super) fn is_object(&mut self) -> bool {
        self.next() == Some(b'{')
    }

    /// Goes over a value that does not matter.
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

    /// Takes a value, of which only the text of a string matters.
    #[inline]
    pub(super) fn text(&mut self) -> Result<Option<Cow<'a, [u8]>>, BadLine> {
        if self.next() != Some(b'"') {
            return self.ignore().map(|()| None);
        }
        self.skip();
        let (text, escaped) = self.string()?;
        Ok(if escaped { unescape(text) } else { Some(Cow::Borrowed(text)) })
    }

    /// Takes a value.
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

    /// A number or a word.
    #[inline]
    fn bare(&mut self) -> Result<&'a [u8], BadLine> {
        let end = self.rest.iter().position(|byte| ENDS_BARE[usize::from(*byte)]);
        let end = end.filter(|end| *end > 0).ok_or(BROKEN)?;
        Ok(self.take(end))
    }

    /// The next byte that is no space: what is left begins with it.
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

    /// Goes over the byte that is next.
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

    /// Takes so many bytes.
    #[inline]
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.rest.split_at(count);
        self.rest = rest;
        taken
    }

    /// A string whose first quote is taken already, and whether something in it is escaped.
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

    /// A string whose first quote is taken already, and in which a backslash stands at `first`.
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

    /// An object or a list.
    fn nested(&mut self) -> Result<&'a [u8], BadLine> {
        let (whole, mut depth) = (self.rest, 0usize);
        loop {
            match self.rest.first().ok_or(BROKEN)? {
                b'"' => {
                    self.skip();
                    self.string()?;
                    // What follows a string is looked at next.
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

/// Where the first quote or backslash stands. Strings of logs are short: eight bytes at a time are looked at without the
/// beginning and end that a search by vectors has.
#[inline]
pub(super) fn quote_or_backslash(text: &[u8]) -> Option<usize> {
    /// Every byte a 1: times a byte, it is that byte eight times.
    const ONES: u64 = u64::MAX / 255;
    // The highest bit of the first byte that is zero, and perhaps of later ones.
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
