//! A rule's condition on one attribute.

use crate::glob::Pattern;
use crate::matching::Present;

/// What an attribute must be for a rule to match.
#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) attribute: u32,
    /// It must be one of these; if `None`, it may also be absent.
    pub(crate) is: Option<Box<[Pattern]>>,
    /// It must be none of these.
    pub(crate) not: Box<[Pattern]>,
    /// The condition as text for people.
    pub(crate) written: Box<str>,
}

impl Condition {
    pub(crate) fn holds(&self, present: &Present<'_>) -> bool {
        let Some(value) = present.get(self.attribute) else { return self.is.is_none() };
        let is_one_of = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(value));
        self.is.as_deref().is_none_or(is_one_of) && !is_one_of(&self.not)
    }
}
