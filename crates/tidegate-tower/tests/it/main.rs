//! The public face of the crate: identity on hand-made requests, the middleware on real servers.

mod identity;
mod middleware;
