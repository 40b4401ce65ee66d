//! The public face of the crate: identity on hand-made requests, the middleware on real servers.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod identity;
mod middleware;
