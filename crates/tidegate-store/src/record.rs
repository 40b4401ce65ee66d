//! Records: a few bytes that all nodes share, besides the cells. Examples: the answer to a named request, a fleet's
//! secret.

use crate::error::StoreError;

/// A record's name and value. The name is also its tag, which selects its node in a partitioned store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// Its name.
    pub name: &'a [u8],
    /// Its value.
    pub value: &'a [u8],
}

/// The error of a store without records.
pub(crate) fn no_records() -> StoreError {
    StoreError::NotApplied { endpoint: "store".to_owned(), source: "it keeps no records".into() }
}
