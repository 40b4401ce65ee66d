//! The client as its users have it: many processes, real servers, and a real Redis.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

mod processes;
