//! Sheds requests before they cost anything, while the backend is overloaded.
//!
//! A limit bounds one caller; a shedder bounds *all* of them, right now, on this node. Three machines, each pure:
//! [`Thresholds`] reserve the last workers for the most critical classes, at once; [`ShedLevel`] integrates how busy the
//! workers are, and sheds a growing part of the least critical traffic until they are not; [`Gradient2`] measures how many
//! requests a service can process where that is unknown. [`ShedMachine`] combines them, and [`Shedder`] shares that among
//! threads.
//!
//! Nothing here waits, calls a store, or reads any clock but the one it is given: a shed request spends nothing.

mod classes;
mod gradient;
mod level;
mod machine;
mod shedder;
mod utilization;

pub use classes::Classes;
pub use gradient::{Gradient2, Gradient2Config};
pub use level::{LevelConfig, LevelConfigError, ShedLevel};
pub use machine::{Capacity, Reason, ShedMachine, Thresholds};
pub use shedder::{Permit, Shed, ShedStats, Shedder, ShedderConfig};
pub use utilization::{Percent, Utilization};
