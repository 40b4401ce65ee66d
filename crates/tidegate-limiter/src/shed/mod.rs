//! Turns requests away before they cost anything, while what they are for has more to do than it can.
//!
//! A limit says how much one caller may do; a shedder says how much *all* of them may, right now, on this node. Three
//! machines, each pure: [`Thresholds`] keep the last workers for those who matter most, at once; [`ShedLevel`] integrates
//! how busy the workers are, and sheds a growing part of the least critical traffic until they are not; [`Gradient2`] finds
//! out how many requests a service can work on, where nobody can say. [`ShedMachine`] puts them together, and [`Shedder`]
//! shares that among threads.
//!
//! Nothing here reads a clock but through the one it is given, waits, or asks a store: a shed request spends nothing.

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
