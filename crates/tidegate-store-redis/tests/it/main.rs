//! The store on real Redis servers.

mod conformance;
mod subject;
