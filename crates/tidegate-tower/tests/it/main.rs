//! The public face of the crate: the middleware on real servers.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod middleware;
