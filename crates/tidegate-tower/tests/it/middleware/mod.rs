//! The middleware on real servers.
