//! The Store contract on whatever keeps items, and changes them only if nobody else has meanwhile.
//!
//! Core decides, in the node; the servers keep bytes. All limits of one key tuple are one [`Item`], so they change together. A store
//! implements [`Items`]: it reads items, has them decided, and stores what becomes of them unless somebody else was quicker. This
//! crate names the items, decides what they become ([`ItemStore`]), and estimates the time of servers that show whole seconds
//! ([`ServerClock`]).
//!
//! Nothing here knows a wire, a connection or a server.

mod clock;
mod deadline;
mod decide;
mod failure;
mod item;
mod name;
mod store;

pub use clock::{MOST_AHEAD, ServerClock};
pub use deadline::{BEGINS_WITHIN, Deadline, pause};
pub use failure::Failure;
pub use item::{Hold, Item};
pub use name::{Name, Namer, Part, WHOLE};
pub use store::{Changed, ItemStore, Items, Layout, Place, Work};
