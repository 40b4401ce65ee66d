//! What nodes tell each other through the store that they share: a note about each, the published rules, questions and their
//! answers, and the fleet's counts.
//!
//! A store that can carry this implements [`FleetStore`]. Everything here is bytes: what they mean, and who signed them, is
//! decided by those who write and read them. A store carries them without looking inside: it implements all of it, or keeps small
//! values ([`ValueStore`]), over which [`ValueFleet`] does.

mod published;
mod sent;
mod store;
mod value_fleet;
mod values;

pub use published::{Over, Published, PublishedRevision, Publishing};
pub use sent::WithHeartbeat;
pub use store::{
    Answered, FleetHistory, FleetReply, FleetStore, LONGEST_ANSWER, LONGEST_QUESTION, LimiterNote,
    MOST_QUESTIONS, Row, StoredAnswer, StoredQuestion,
};
pub use value_fleet::{HasValueFleet, ValueFleet};
pub use values::{LONGEST_VALUE, ValueStore, Values};
