//! The attributes of one request.

use std::borrow::Cow;
use std::ops::Deref;

use smallvec::SmallVec;

use super::path::NormalPath;
use super::secret::hash_secret;

/// The longest value. What identity reads and is longer is refused, since rules must see the whole of it; what else is
/// longer keeps its beginning and ends with a hash of the whole.
pub const MOST_VALUE_BYTES: usize = 8 * 1024;
const HASH_BYTES: usize = 64;

/// Names and values as a rule's descriptor takes them. It is read as a slice.
#[derive(Clone, Debug)]
pub struct Entries<'a>(SmallVec<[(&'a str, &'a [u8]); 12]>);

impl<'a> Deref for Entries<'a> {
    type Target = [(&'a str, &'a [u8])];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

type Attribute<'a> = (Cow<'a, str>, Cow<'a, [u8]>);

/// What a request says of itself: names and values, in order, each name once.
#[derive(Clone, Debug, Default)]
pub struct Attributes<'a> {
    values: SmallVec<[Attribute<'a>; 8]>,
    pub(super) path: NormalPath<'a>,
    /// What the request says of itself to servers that read it otherwise.
    pub(super) others: Vec<Attributes<'a>>,
}

impl<'a> Attributes<'a> {
    /// None yet.
    #[must_use]
    pub fn new() -> Self {
        Attributes::default()
    }

    /// Adds one, unless one of that name is there.
    pub fn push(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, [u8]>>) {
        let name = name.into();
        if self.get(&name).is_none() {
            self.values.push((name, bounded(value.into())));
        }
    }

    /// Adds one to every reading of the request, unless one of that name is there.
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

    /// Every way to read the request, the usual one first: it is counted under each of them.
    pub fn readings(&self) -> impl Iterator<Item = &Attributes<'a>> {
        std::iter::once(self).chain(&self.others)
    }

    /// Every name and value of the usual reading, as a rule's descriptor takes them.
    #[must_use]
    pub fn entries(&self) -> Entries<'_> {
        Entries(self.values.iter().map(|(name, value)| (&**name, &**value)).collect())
    }

    /// The path in both its forms: the one that rules saw, and the one to forward.
    #[must_use]
    pub fn path(&self) -> &NormalPath<'a> {
        &self.path
    }

    /// Adds one made of several others, if they are all there. Each part's length stands before it: joined text would
    /// make `a_b`, `c` and `a`, `b_c` the same.
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
