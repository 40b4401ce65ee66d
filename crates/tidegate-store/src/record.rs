//! Records: a few bytes that all nodes see, beside the cells. What a named request was answered, a secret that a fleet
//! shares.

use crate::error::StoreError;

/// A record: what it is called, and what it says. The name is also its tag: it tells where a partitioned store keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// What it is called.
    pub name: &'a [u8],
    /// What it says.
    pub value: &'a [u8],
}

/// The answer of a store that keeps no records.
pub(crate) fn no_records() -> StoreError {
    StoreError::NotApplied { endpoint: "store".to_owned(), source: "it keeps no records".into() }
}
