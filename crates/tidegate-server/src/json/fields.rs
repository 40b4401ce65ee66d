//! Field values, each with its bound and a message for every wrong JSON type.

use super::{MAX_ATTRIBUTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Unexpected, Visitor};
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

/// A string of at most `MAX` bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text<'a, const MAX: usize>(Cow<'a, str>);

impl<const MAX: usize> Text<'_, MAX> {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a, const MAX: usize> Deserialize<'de> for Text<'a, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor::<MAX>).map(Text)
    }
}

struct TextVisitor<const MAX: usize>;

impl<const MAX: usize> TextVisitor<MAX> {
    fn check<E: Error>(text: &str) -> Result<(), E> {
        if text.len() <= MAX {
            return Ok(());
        }
        Err(E::custom(format_args!("expected a string of at most {MAX} bytes, found {} bytes", text.len())))
    }

    fn not_text<T, E: Error>(found: Unexpected<'_>) -> Result<T, E> {
        Err(E::custom(format_args!("expected a string, found {}; hint: put it in quotes", named(found))))
    }
}

impl<'de, const MAX: usize> Visitor<'de> for TextVisitor<MAX> {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Self::check(text).map(|()| Cow::Borrowed(text))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Self::check(text).map(|()| Cow::Owned(text.to_owned()))
    }

    fn visit_bool<E: Error>(self, found: bool) -> Result<Self::Value, E> {
        Self::not_text(Unexpected::Bool(found))
    }

    fn visit_i64<E: Error>(self, found: i64) -> Result<Self::Value, E> {
        Self::not_text(Unexpected::Signed(found))
    }

    fn visit_u64<E: Error>(self, found: u64) -> Result<Self::Value, E> {
        Self::not_text(Unexpected::Unsigned(found))
    }

    fn visit_f64<E: Error>(self, found: f64) -> Result<Self::Value, E> {
        Self::not_text(Unexpected::Float(found))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Err(E::custom("expected a string, found null; hint: leave the field out"))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(A::Error::custom("expected a string, found an array"))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(A::Error::custom("expected a string, found an object"))
    }
}

/// A whole number from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count(pub u64);

impl<'de> Deserialize<'de> for Count {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CountVisitor)
    }
}

struct CountVisitor;

impl CountVisitor {
    fn not_a_count<T, E: Error>(found: Unexpected<'_>, hint: &str) -> Result<T, E> {
        let found = named(found);
        Err(E::custom(format_args!("expected a whole number from 0 to {}, found {found}{hint}", u64::MAX)))
    }
}

impl<'de> Visitor<'de> for CountVisitor {
    type Value = Count;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number from 0 up")
    }

    fn visit_u64<E: Error>(self, count: u64) -> Result<Count, E> {
        Ok(Count(count))
    }

    fn visit_i64<E: Error>(self, found: i64) -> Result<Count, E> {
        Self::not_a_count(Unexpected::Signed(found), "")
    }

    fn visit_f64<E: Error>(self, found: f64) -> Result<Count, E> {
        Self::not_a_count(Unexpected::Float(found), "")
    }

    fn visit_str<E: Error>(self, found: &str) -> Result<Count, E> {
        let hint = if found.parse::<u64>().is_ok() { "; hint: write it without quotes" } else { "" };
        Self::not_a_count(Unexpected::Other("a string"), hint)
    }

    fn visit_bool<E: Error>(self, found: bool) -> Result<Count, E> {
        Self::not_a_count(Unexpected::Bool(found), "")
    }

    fn visit_unit<E: Error>(self) -> Result<Count, E> {
        Self::not_a_count(Unexpected::Other("null"), "; hint: leave the field out")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Count, A::Error> {
        Self::not_a_count(Unexpected::Other("an array"), "")
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Count, A::Error> {
        Self::not_a_count(Unexpected::Other("an object"), "")
    }
}

/// The attributes of a request: at most [`MAX_ATTRIBUTES`] names, each once, in the order sent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes<'a>(Vec<(Name<'a>, Value<'a>)>);

type Name<'a> = Text<'a, MAX_NAME_BYTES>;
type Value<'a> = Text<'a, MAX_VALUE_BYTES>;

impl Attributes<'_> {
    /// Names and values.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(AttributesVisitor)
    }
}

pub(super) const OBJECT_OF_STRINGS: &str = "an object of strings";

struct AttributesVisitor;

impl<'de> Visitor<'de> for AttributesVisitor {
    type Value = Attributes<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(OBJECT_OF_STRINGS)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut attributes = Attributes::default();
        while let Some(name) = map.next_key::<Name<'de>>()? {
            if attributes.0.len() == MAX_ATTRIBUTES {
                return Err(A::Error::custom(format_args!("expected at most {MAX_ATTRIBUTES} attributes")));
            }
            // At most 64 names: a scan beats a set.
            if attributes.iter().any(|(earlier, _)| earlier == name.as_str()) {
                return Err(A::Error::custom(format_args!("duplicate field `{}`", name.as_str())));
            }
            attributes.0.push((name, map.next_value()?));
        }
        Ok(attributes)
    }
}

/// A `T` as an object. Derived parsers would also accept its fields as an array, in order, without names.
pub(super) struct Object<T>(pub(super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Object)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

fn named(found: Unexpected<'_>) -> String {
    match found {
        Unexpected::Bool(value) => format!("the boolean {value}"),
        Unexpected::Signed(number) => format!("the number {number}"),
        Unexpected::Unsigned(number) => format!("the number {number}"),
        Unexpected::Float(number) => format!("the number {number}"),
        other => other.to_string(),
    }
}
