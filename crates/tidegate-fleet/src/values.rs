//! A store of small values, which is all that a fleet needs ([`ValueFleet`](crate::ValueFleet)).

use tidegate_core::{Micros, Timestamp};

use crate::store::FleetReply;

/// The longest value that a [`ValueStore`] must take: a quarter of a MiB.
pub const LONGEST_VALUE: usize = 256 * 1024;

/// The store's time, and its values; none where there is none.
pub type Values = (Timestamp, Vec<Option<Vec<u8>>>);

/// A store of small values that several nodes change.
///
/// Nobody waits for these calls but a heartbeat and the control plane: they may take longer than a decision.
pub trait ValueStore: Send + Sync + 'static {
    /// The values with these names.
    fn values<'a>(&'a self, names: &'a [Vec<u8>]) -> FleetReply<'a, Values>;

    /// Keeps a value for `ttl`, whatever was there; none removes it.
    fn put<'a>(&'a self, name: &'a [u8], value: Option<&'a [u8]>, ttl: Micros) -> FleetReply<'a, ()>;

    /// Keeps a value for `ttl` in the place of `known` (none: nothing); false if something else is there.
    fn swap<'a>(
        &'a self,
        name: &'a [u8],
        known: Option<&'a [u8]>,
        value: &'a [u8],
        ttl: Micros,
    ) -> FleetReply<'a, bool>;
}
