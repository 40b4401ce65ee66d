//! Reports calls to metrics, without depending on a metrics library.

use std::time::Duration;

/// The purpose of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub enum Operation {
    Decide,
    Refund,
    Charge,
    Reset,
    Renew,
    Release,
    /// Putting back what one part of a request spent after another part refused.
    Cancel,
    Probe,
    Heartbeat,
    Record,
}

impl Operation {
    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Operation::Decide => "decide",
            Operation::Refund => "refund",
            Operation::Charge => "charge",
            Operation::Reset => "reset",
            Operation::Renew => "renew",
            Operation::Release => "release",
            Operation::Cancel => "cancel",
            Operation::Probe => "probe",
            Operation::Heartbeat => "heartbeat",
            Operation::Record => "record",
        }
    }
}

/// Why a call failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No answer in time.
    Timeout,
    /// There is no connection, and connecting fails.
    Unreachable,
    /// The connection was lost before the answer came.
    ConnectionLost,
    /// Too many calls are in flight.
    Overload,
    /// The server is still loading its data.
    Loading,
    /// The server is a replica.
    ReadOnly,
    /// The server is out of memory.
    OutOfMemory,
    /// The master has fewer replicas than `min-replicas-to-write` asks for.
    NoReplicas,
    /// The cluster does not serve the slot now, or the slot is migrating.
    Cluster,
    /// The server rejects the login or denies the command.
    NotAllowed,
    /// The server, or a proxy in front of it, returned another error.
    Other,
}

impl Reason {
    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Reason::Timeout => "timeout",
            Reason::Unreachable => "unreachable",
            Reason::ConnectionLost => "connection_lost",
            Reason::Overload => "overload",
            Reason::Loading => "loading",
            Reason::ReadOnly => "read_only",
            Reason::OutOfMemory => "out_of_memory",
            Reason::NoReplicas => "no_replicas",
            Reason::Cluster => "cluster",
            Reason::NotAllowed => "not_allowed",
            Reason::Other => "other",
        }
    }
}

/// Is notified of every call to a server. It runs between two awaits: it must not block.
pub trait Observer: Send + Sync + 'static {
    /// A call ended after `took`: the whole round trip, with redirects. It carried `items`.
    fn called(&self, operation: Operation, items: usize, took: Duration, failure: Option<Reason>);

    /// A call failed at this server, for example `10.0.0.1:6379`.
    fn failed(&self, _server: &str, _reason: Reason) {}
}

/// Ignores all calls.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn called(&self, _: Operation, _: usize, _: Duration, _: Option<Reason>) {}
}
