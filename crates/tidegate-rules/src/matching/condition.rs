//! What a rule asks of one attribute.

use crate::glob::Pattern;
use crate::matching::Present;

/// What one attribute must be for a rule to match.
#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) attribute: u32,
    pub(crate) test: Test,
    /// The test as a person reads it.
    pub(crate) written: Box<str>,
}

#[derive(Debug)]
pub(crate) enum Test {
    /// Present, and one of these.
    AnyOf(Box<[Pattern]>),
    /// None of these. An absent attribute is none of them.
    NoneOf(Box<[Pattern]>),
    /// Present, and none of these.
    PresentButNot(Box<[Pattern]>),
    /// Not there at all.
    Absent,
}

impl Condition {
    pub(crate) fn holds(&self, present: &Present<'_>) -> bool {
        let value = present.get(self.attribute);
        let is_one_of = |patterns: &[Pattern]| {
            value.is_some_and(|value| patterns.iter().any(|pattern| pattern.matches(value)))
        };
        match &self.test {
            Test::AnyOf(patterns) => is_one_of(patterns),
            Test::NoneOf(patterns) => !is_one_of(patterns),
            Test::PresentButNot(patterns) => value.is_some() && !is_one_of(patterns),
            Test::Absent => value.is_none(),
        }
    }
}
