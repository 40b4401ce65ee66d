//! The public face of the crate: identity on hand-made requests.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod identity;
