//! Spellings that some server takes for another: blanks around a value, and names that frameworks read as one.
//!
//! Nothing here is decided for good: what may be read in two ways is returned in both, the usual first, and counted as both.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::reading::MOST_READINGS;

/// The values that something may have, each once, the usual first.
///
/// At most one more than a request may have readings: with that many it is rejected, and comparing each of the thousands
/// that a head has room for with all before it would be wasted work.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Alternatives<'a>(SmallVec<[Cow<'a, [u8]>; 1]>);

impl<'a> Alternatives<'a> {
    pub(super) fn push(&mut self, value: Cow<'a, [u8]>) {
        if self.0.len() <= MOST_READINGS && !self.0.contains(&value) {
            self.0.push(value);
        }
    }

    /// Adds `value`, and what is left of it for servers that trim it.
    pub(super) fn push_trimmed(&mut self, value: Cow<'a, [u8]>) {
        let spans = trims(&value);
        self.push(value.clone());
        for (from, to) in spans.into_iter().flatten() {
            self.push(match &value {
                Cow::Borrowed(bytes) => Cow::Borrowed(&bytes[from..to]),
                Cow::Owned(bytes) => Cow::Owned(bytes[from..to].to_vec()),
            });
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Cow<'a, [u8]>> {
        self.0.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() > MOST_READINGS
    }

    pub(super) fn get(&self, index: usize) -> &Cow<'a, [u8]> {
        &self.0[index]
    }

    /// The same, each changed by `change`.
    pub(super) fn map<'b>(self, change: impl Fn(Cow<'a, [u8]>) -> Cow<'b, [u8]>) -> Alternatives<'b> {
        Alternatives(self.0.into_iter().map(change).collect())
    }
}

/// Where the text of `value` begins and ends for servers that trim more than HTTP does: by Latin-1, as Python's servers do
/// with the text of a header, and by UTF-8, as Django and Laravel do.
fn trims(value: &[u8]) -> [Option<(usize, usize)>; 2] {
    let plain = |byte: Option<&u8>| byte.is_none_or(|byte| matches!(byte, b'!'..=b'~'));
    if plain(value.first()) && plain(value.last()) {
        return [None, None];
    }
    [trim(value, latin1_blank, latin1_blank), trim(value, utf8_blank_first, utf8_blank_last)].map(Some)
}

fn trim(
    value: &[u8],
    first: impl Fn(&[u8]) -> Option<usize>,
    last: impl Fn(&[u8]) -> Option<usize>,
) -> (usize, usize) {
    let (mut from, mut to) = (0, value.len());
    while let Some(width) = first(&value[from..]) {
        from += width;
    }
    while let Some(width) =
        last(&value[from..to].iter().rev().take(3).copied().collect::<SmallVec<[u8; 3]>>())
    {
        to -= width;
    }
    (from, to)
}

/// The width of the blank that `text` begins with, in Latin-1: what Python strips, and what Java and PHP trim.
fn latin1_blank(text: &[u8]) -> Option<usize> {
    matches!(text.first()?, 0..=b' ' | 0x7f | 0x85 | 0xa0).then_some(1)
}

/// The width of the blank that `text` begins with, in UTF-8.
fn utf8_blank_first(text: &[u8]) -> Option<usize> {
    (1..=text.len().min(3)).find(|width| is_blank(&text[..*width]))
}

/// The width of the blank that ends a text of which `reversed` are the last bytes, last first.
fn utf8_blank_last(reversed: &[u8]) -> Option<usize> {
    (1..=reversed.len()).find(|width| {
        let bytes: SmallVec<[u8; 3]> = reversed[..*width].iter().rev().copied().collect();
        is_blank(&bytes)
    })
}

/// Whether these bytes are one character that some server trims: white space, and what Laravel takes for it.
fn is_blank(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let mut characters = text.chars();
    let blank = |character: char| {
        character <= ' '
            || character.is_whitespace()
            || matches!(character, '\u{7f}' | '\u{200b}' | '\u{200e}' | '\u{feff}')
    };
    characters.next().is_some_and(blank) && characters.next().is_none()
}

/// The position and width of the first blank, in Latin-1 or UTF-8.
pub(super) fn first_blank(value: &[u8]) -> Option<(usize, usize)> {
    (0..value.len()).find_map(|at| {
        let rest = &value[at..];
        utf8_blank_first(rest).or_else(|| latin1_blank(rest)).map(|width| (at, width))
    })
}

/// `value` without any blank at its ends, in Latin-1 or UTF-8.
pub(super) fn without_blanks(mut value: &[u8]) -> &[u8] {
    loop {
        let [latin1, utf8] = trims(value);
        let Some((from, to)) = utf8.filter(|span| *span != (0, value.len())).or(latin1) else { return value };
        if (from, to) == (0, value.len()) {
            return value;
        }
        value = &value[from..to];
    }
}

/// How a name that was sent compares with one that identity reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Likeness {
    /// Every server takes it for the name, or for a part of it: `name[]` and `name[x]`.
    Same,
    /// Some server does.
    Alias,
    /// None does.
    Other,
}

/// Compares a decoded name with `name`.
///
/// PHP's own server skips a question mark before the first name; PHP skips leading spaces, ends a name at NUL, and writes `_` for spaces, dots and an open bracket. Rack and Express drop
/// brackets around a name. ASP.NET does not tell capitals apart. Python strips blanks.
pub(super) fn likeness(sent: &[u8], name: &[u8]) -> Likeness {
    if sent.strip_prefix(name).is_some_and(|rest| matches!(rest, [] | [b'[', ..])) {
        return Likeness::Same;
    }
    let asked = sent.iter().take_while(|byte| **byte == b'?').count();
    let text = without_blanks(&sent[asked..]);
    let text = text.split(|byte| *byte == 0).next().unwrap_or(text);
    let opened = text.iter().take_while(|byte| matches!(byte, b'[' | b']')).count();
    let inner = text[opened..].split(|byte| matches!(byte, b'[' | b']')).next().unwrap_or_default();
    let alias = [text, inner].into_iter().any(|text| folded(text).eq(folded(name)));
    if alias { Likeness::Alias } else { Likeness::Other }
}

fn folded(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().map(|byte| match byte {
        b' ' | b'.' | b'[' => b'_',
        other => other.to_ascii_lowercase(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trimmed(value: &[u8]) -> Vec<Vec<u8>> {
        let mut all = Alternatives::default();
        all.push_trimmed(Cow::Borrowed(value));
        all.iter().map(|value| value.to_vec()).collect()
    }

    #[test]
    fn a_value_is_trimmed_in_latin_1_and_in_utf_8() {
        assert_eq!(trimmed(b"s1"), [b"s1".to_vec()]);
        assert_eq!(trimmed(b"\xa0s1\x85"), [b"\xa0s1\x85".to_vec(), b"s1".to_vec()]);
        let em_space = "\u{2003}s1\u{feff}".as_bytes();
        assert_eq!(trimmed(em_space), [em_space.to_vec(), b"s1".to_vec()]);
        // Its last byte is a blank in Latin-1.
        assert_eq!(trimmed("voilà".as_bytes()), ["voilà".as_bytes().to_vec(), b"voil\xc3".to_vec()]);
        assert_eq!(trimmed(b" "), [b" ".to_vec(), b"".to_vec()]);
    }

    #[test]
    fn a_name_is_compared_as_frameworks_read_it() {
        for same in ["to.ken", "to.ken[]", "to.ken[a][b]", "to.ken["] {
            assert_eq!(likeness(same.as_bytes(), b"to.ken"), Likeness::Same, "{same}");
        }
        for alias in [
            " to.ken",
            "to_ken",
            "to ken",
            "to[ken",
            "to.ken\0x",
            "[to.ken]",
            "TO.KEN",
            "to.ken\u{a0}",
            "]to.ken",
            "?to.ken",
        ] {
            assert_eq!(likeness(alias.as_bytes(), b"to.ken"), Likeness::Alias, "{alias}");
        }
        for other in ["token", "to.ken2", "xto.ken", "to", "", "[]", "a[to.ken]"] {
            assert_eq!(likeness(other.as_bytes(), b"to.ken"), Likeness::Other, "{other}");
        }
        assert_eq!(likeness(b"filter[other]", b"filter[user]"), Likeness::Other);
    }
}
