//! Stores for cells behind one contract: this process's memory, or a Redis that all nodes share.
//!
//! [`Store`] is the contract, [`MemoryStore`] the store without external dependencies, and `conformance` (a feature, for
//! tests) the suite that checks a store.

mod clock;
#[cfg(feature = "conformance")]
pub mod conformance;
mod contract;
#[cfg(feature = "counter")]
mod counter;
mod error;
mod lag;
mod memory;
mod observer;
mod outcomes;
mod random;
mod record;
mod servers;

pub use clock::{Clock, ManualClock, SystemClock};
pub use contract::{
    BatchOutcomes, CellCharge, CellKey, HELD_RETRY_AFTER, LeaseRef, Refund, RefundId, Reply, Request,
    RequestOutcomes, Spend, Stamped, Store,
};
pub use error::{BoxError, StoreError};
pub use lag::{MOST_LAG, Slice};
pub use memory::{MemoryConfig, MemoryStats, MemoryStore, memory_bytes};
pub use observer::{CallObserver, NoCallObserver};
pub use outcomes::{IntoOutcomes, Outcomes};
pub use random::{random_bytes, random_hash_keys};
pub use record::Record;
pub use servers::Servers;
