//! What is wrong with a configuration of identity.

/// A field that cannot be used, and a way out.
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
