//! The one integration test binary of the server crate.

mod generated;
