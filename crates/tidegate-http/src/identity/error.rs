//! Errors in the configuration of identity.

/// An invalid field, and a hint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("identity.{field}: {problem}")]
pub struct IdentityError {
    /// The field, as a path below `identity`.
    pub field: String,
    /// What is wrong with it.
    pub problem: String,
    /// What to do about it.
    pub hint: &'static str,
}

impl IdentityError {
    pub(super) fn new(field: impl Into<String>, problem: impl std::fmt::Display, hint: &'static str) -> Self {
        IdentityError { field: field.into(), problem: problem.to_string(), hint }
    }
}
