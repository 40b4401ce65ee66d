//! The store that carries what nodes tell each other.

use std::future::Future;
use std::pin::Pin;

use tidegate_store::StoreError;

use crate::published::{Over, Published, PublishedRevision, Publishing};
use crate::sent::WithHeartbeat;

/// The most open questions; further ones are rejected.
pub const MOST_QUESTIONS: usize = 16;
/// The longest question.
pub const LONGEST_QUESTION: usize = 4 * 1024;
/// The most bytes of an answer, which the node that asked reads in one call: two MiB, and its signature.
pub const LONGEST_ANSWER: usize = (2 << 20) + 256;

/// A limiter's report about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimiterNote {
    /// The limiter's ID.
    pub member: u64,
    /// The age of the report.
    pub age_us: u64,
    /// The report.
    pub note: Vec<u8>,
    /// Whether it counts as lost: no heartbeat for too long, and no sign-off.
    pub lost: bool,
}

/// The resolution of the fleet's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FleetHistory {
    /// Sixty seconds of one minute, kept for a quarter of an hour at least.
    Seconds,
    /// Sixty minutes of one hour, kept for a day at least.
    Minutes,
}

/// A name and its counts.
pub type Row = (Vec<u8>, Vec<u32>);

/// A question to all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredQuestion {
    /// Its ID.
    pub id: u64,
    /// The question.
    pub text: Vec<u8>,
}

/// What became of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// Who asked can read it.
    Kept,
    /// Nobody waits for it any more.
    NotOpen,
    /// It has more than [`LONGEST_ANSWER`] bytes.
    TooLong,
}

/// Who answered, and the answer, or why it cannot be read.
pub type StoredAnswer = (Vec<u8>, Result<Vec<u8>, StoreError>);

/// The result of a call to a store. An error means that the store does not answer.
pub type FleetReply<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A store through which nodes tell each other what they run.
///
/// The limiter sends a heartbeat each second ([`Store::heartbeat`](tidegate_store::Store::heartbeat)). A store with a fleet
/// takes [`with_heartbeat`](Self::with_heartbeat)'s note and counts along, and passes on the published revision and the open
/// questions that it finds.
pub trait FleetStore: Send + Sync + 'static {
    /// What the next heartbeat takes along, and what the last one brought.
    fn with_heartbeat(&self) -> &WithHeartbeat;

    /// The notes of all live limiters, and for ten minutes of those that were lost.
    fn notes(&self) -> FleetReply<'_, Vec<LimiterNote>>;

    /// The fleet's counts of one minute, or one hour, numbered since 1970: for each row, the counts of its sixty slots.
    fn counted(&self, history: FleetHistory, number: u64) -> FleetReply<'_, Vec<Row>>;

    /// Stores the published rules for every node, in one step, if what is there may be replaced. They are kept for a week, so
    /// that nodes can start without the database.
    fn publish<'a>(
        &'a self,
        revision: &'a PublishedRevision,
        published: &'a Published,
        over: Over<'a>,
    ) -> FleetReply<'a, Publishing>;

    /// Replaces the `known` changes by `changes`, in one step, and keeps the set; false if other changes are stored, those of
    /// another database, or a later serial.
    fn publish_changes<'a>(
        &'a self,
        revision: &'a PublishedRevision,
        known: &'a [u8],
        changes: (&'a [u8], u32),
    ) -> FleetReply<'a, bool>;

    /// Keeps the published rules for another week.
    fn keep_published(&self) -> FleetReply<'_, ()>;

    /// The published rules, if any.
    fn published(&self) -> FleetReply<'_, Option<Published>>;

    /// The changes since the published set, and their format; empty if nothing is published.
    fn published_changes(&self) -> FleetReply<'_, (Vec<u8>, u32)>;

    /// Asks all nodes; false if [`MOST_QUESTIONS`] are open, or this one is longer than [`LONGEST_QUESTION`]. It is kept for
    /// ten seconds, with its answers.
    fn put_question<'a>(&'a self, question: &'a StoredQuestion) -> FleetReply<'a, bool>;

    /// Answers a question as `from`.
    fn answer_question<'a>(&'a self, id: u64, from: &'a [u8], answer: &'a [u8]) -> FleetReply<'a, Answered>;

    /// Who has answered so far.
    fn answered(&self, id: u64) -> FleetReply<'_, Vec<Vec<u8>>>;

    /// The answers so far.
    fn answers(&self, id: u64) -> FleetReply<'_, Vec<StoredAnswer>>;

    /// Removes a question and its answers.
    fn forget_question(&self, id: u64) -> FleetReply<'_, ()>;
}
