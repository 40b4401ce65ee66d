//! Rate limiting as tower middleware: who a request is, whether it may pass, and what it is told.
//!
//! [`identity`] reads a request's attributes, once and for every HTTP surface; [`answer`], [`headers`] and [`problem`] say
//! what a caller reads about a decision. Nothing here decides: that is the limiter's business.

pub mod answer;
pub mod headers;
pub mod identity;
pub mod problem;
