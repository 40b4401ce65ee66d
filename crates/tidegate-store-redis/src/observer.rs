//! Who hears of calls: metrics, without this crate knowing any metrics library.

use std::time::Duration;

/// What a call was for.
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
    /// Putting back what one part of a request spent whose other parts did not pass.
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
    /// There is no connection, and making one fails.
    Unreachable,
    /// The connection was lost while the answer was awaited.
    ConnectionLost,
    /// Too many calls are under way already.
    Overload,
    /// The server is still reading its data.
    Loading,
    /// The server is a replica.
    ReadOnly,
    /// The server has no memory left.
    OutOfMemory,
    /// The cluster does not serve the slot now, or it is on the move.
    Cluster,
    /// The server does not know us, or does not let us.
    NotAllowed,
    /// The server, or what answers for it, said something else.
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
            Reason::Cluster => "cluster",
            Reason::NotAllowed => "not_allowed",
            Reason::Other => "other",
        }
    }
}

/// Hears of every call to a server. It is called between two awaits: it must not block.
pub trait Observer: Send + Sync + 'static {
    /// A call ended after `took`, one round trip and what came of it. `items` were sent along.
    fn called(&self, operation: Operation, items: usize, took: Duration, failure: Option<Reason>);
}

/// Hears nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {
    fn called(&self, _: Operation, _: usize, _: Duration, _: Option<Reason>) {}
}
