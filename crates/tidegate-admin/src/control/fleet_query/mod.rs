//! Questions to all nodes of the fleet about their decisions, and the answers.

mod answer;
mod ask;

pub use ask::MOST_ANSWER_BYTES;
pub(crate) use ask::{FleetQuestions, JoinedDemand, NodeAnswer, Question, UnansweredNode, why_missing};
