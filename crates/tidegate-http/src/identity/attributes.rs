//! The attributes of one request.

use std::borrow::Cow;
use std::ops::Deref;

use smallvec::SmallVec;

use super::path::NormalPath;
use super::secret::hash_secret;

/// The longest value. A longer one that identity reads is rejected, since rules must see all of it; any other longer value
/// keeps its beginning and ends with a hash of the whole.
pub const MOST_VALUE_BYTES: usize = 8 * 1024;
const HASH_BYTES: usize = 64;

/// Names and values in the form of a rule's descriptor. Dereferences to a slice.
#[derive(Clone, Debug)]
pub struct Entries<'a>(SmallVec<[(&'a str, &'a [u8]); 12]>);

impl<'a> Deref for Entries<'a> {
    type Target = [(&'a str, &'a [u8])];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

type Attribute<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

/// The attributes of a request: names and values, in order, each name once.
#[derive(Clone, Debug, Default)]
pub struct Attributes<'a> {
    values: SmallVec<[Attribute<'a>; 8]>,
    pub(super) path: NormalPath<'a>,
    /// The attributes as servers see them that read the request differently.
    pub(super) others: Vec<Attributes<'a>>,
}

impl<'a> Attributes<'a> {
    /// An empty set.
    #[must_use]
    pub fn new() -> Self {
        Attributes::default()
    }

    /// Adds one, unless its name exists.
    pub fn push(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, [u8]>>) {
        let name = name.into();
        if self.get(&name).is_none() {
            self.values.push((name, bounded(value.into())));
        }
    }

    /// Adds one to every reading of the request, unless its name exists.
    pub fn push_everywhere(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, [u8]>>) {
        let (name, value) = (name.into(), value.into());
        self.others.iter_mut().for_each(|other| other.push(name.clone(), value.clone()));
        self.push(name, value);
    }

    /// The value called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.values.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// All readings of the request, the usual one first: it is counted under each of them.
    pub fn readings(&self) -> impl Iterator<Item = &Attributes<'a>> {
        std::iter::once(self).chain(&self.others)
    }

    /// The names and values of the usual reading, in the form of a rule's descriptor.
    #[must_use]
    pub fn entries(&self) -> Entries<'_> {
        Entries(self.values.iter().map(|(name, value)| (&**name, &**value)).collect())
    }

    /// The path in both forms: the one for rules, and the one to forward.
    #[must_use]
    pub fn path(&self) -> &NormalPath<'a> {
        &self.path
    }

    /// Adds one composed of several others, if all of them exist. Each part is prefixed with its length: plain concatenation
    /// would make `a_b`, `c` and `a`, `b_c` the same.
    pub(super) fn push_composite(&mut self, name: &'a str, parts: &[String]) {
        let mut whole = Vec::new();
        for part in parts {
            let Some(value) = self.get(part) else { return };
            whole.extend_from_slice(value.len().to_string().as_bytes());
            whole.push(b':');
            whole.extend_from_slice(value);
        }
        self.push(name, whole);
    }
}

fn bounded(value: Cow<'_, [u8]>) -> Cow<'_, [u8]> {
    if value.len() <= MOST_VALUE_BYTES {
        return value;
    }
    let mut short = value[..MOST_VALUE_BYTES - HASH_BYTES].to_vec();
    short.extend_from_slice(hash_secret(&value).as_bytes());
    Cow::Owned(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_value_keeps_its_beginning_and_stays_apart_from_its_like() {
        let long = |last: u8| [vec![b'a'; 9000], vec![last]].concat();
        let mut attributes = Attributes::new();
        attributes.push("one", long(b'1'));
        attributes.push("two", long(b'2'));
        let (one, two) = (attributes.get("one").unwrap(), attributes.get("two").unwrap());
        assert_eq!((one.len(), two.len()), (MOST_VALUE_BYTES, MOST_VALUE_BYTES));
        assert!(one.starts_with(b"aaaa") && one != two);
    }

    #[test]
    fn the_first_of_a_name_counts() {
        let mut attributes = Attributes::new();
        attributes.push("user", &b"verified"[..]);
        attributes.push("user", &b"claimed"[..]);
        assert_eq!(*attributes.entries(), [("user", &b"verified"[..])]);
    }
}
