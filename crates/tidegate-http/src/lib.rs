//! Code shared by all HTTP surfaces of tidegate, so that middleware, proxy and forward-auth cannot differ in it.
//!
//! [`identity`] reads a request's attributes from its head; the [`Gate`] takes it from there to its answer: shed, refused,
//! or admitted with what it holds; [`headers`], [`problem`] and [`grpc`] write that answer. There is no socket and no server
//! here, and nothing is decided: the limiter does that.

pub mod answer;
mod gate;
pub mod grpc;
pub mod headers;
mod hold;
pub mod identity;
pub mod problem;

pub use gate::{Admitted, DecisionReport, Gate, GateAnswer, HttpCheck, Refusal, trace_of};
pub use hold::{Held, Hold};
