//! What the nodes of a fleet know, each of its own decisions: asked of all of them, and put together by who asked.
//!
//! A question travels with the heartbeat, so the others hear it within a second. Every answer has a bound (`telling.rs`), and a
//! node that does not answer in time is named: what was found is of the others.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_decisions::{By, DecisionLog, LimitDemand, Query, RuleTop, join_demands};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::Control;
use super::fleet::{FleetAnswer, FleetError, FleetQuestion, NodeNote};
use super::telling::{answer, told, too_long};

/// The most bytes of one node's answer: of a sample every line that is missing shortens what can be played.
pub const MOST_ANSWER_BYTES: usize = 2 << 20;
/// How long the others have to answer. They hear of a question within a second.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// Questions that this node remembers to have answered, and to have asked.
const MOST_REMEMBERED: usize = 64;

/// What all nodes are asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Question {
    /// Decisions that fit, callers by their hashes.
    Decisions { search: Query },
    /// The busiest callers.
    Top { domain: Option<String>, rule: Option<String>, by: By },
    /// How much callers ask for.
    Demand { domain: Option<String>, rule: Option<String> },
    /// The newest decisions, to be played again.
    Sample { domain: Option<String> },
}

/// What a node says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "snake_case")]
pub(crate) enum Told {
    Decisions {
        decisions: Vec<Value>,
        fit: u64,
        stand_for: u64,
        oldest_us: Option<u64>,
        cut: bool,
    },
    Top {
        rules: Vec<RuleTop>,
    },
    Demand {
        limits: Vec<LimitDemand>,
    },
    /// Lines of the log, oldest first, and since when they are complete.
    Sample {
        lines: Vec<String>,
        since_us: Option<u64>,
    },
    /// It keeps no decisions.
    Nothing,
    /// More than an answer may have.
    TooLong,
}

/// What the nodes said, and who said nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gathered {
    /// Node by node, this one first.
    pub(crate) told: Vec<(String, Told)>,
    /// Nodes whose part is missing, and why.
    pub(crate) missing: Vec<Missing>,
}

/// What callers ask of limits, and who said so.
#[derive(Clone, Debug, Default)]
pub(crate) struct JoinedDemand {
    pub(crate) limits: Vec<LimitDemand>,
    pub(crate) nodes: Vec<String>,
    pub(crate) missing: Vec<Missing>,
}

/// A node whose part is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Missing {
    pub(crate) node: String,
    pub(crate) why: String,
}

impl Control {
    /// Asks every node, this one included.
    pub(crate) async fn gather(&self, log: &Arc<DecisionLog>, question: Question) -> Gathered {
        let (own_log, own_question) = (log.clone(), question.clone());
        let own = spawn_blocking(move || told(&own_log, &own_question, usize::MAX));
        let (own, others) = tokio::join!(own, self.ask_others(&question));
        let own = own.unwrap_or(Told::Nothing);
        let mut gathered = others;
        gathered.told.insert(0, (self.node.clone(), own));
        gathered
    }

    async fn ask_others(&self, question: &Question) -> Gathered {
        if !self.fleet.is_shared() {
            return Gathered::default();
        }
        let unknown = |why: String| Gathered {
            told: Vec::new(),
            missing: vec![Missing { node: "the other nodes".to_owned(), why }],
        };
        let notes = match self.fleet.known_nodes().await {
            Ok(notes) => notes,
            Err(error) => return unknown(error.to_string()),
        };
        let own = self.answers_as();
        let (lost, alive): (Vec<NodeNote>, Vec<NodeNote>) = notes.into_iter().partition(|note| note.lost);
        let lost = lost.iter().filter(|note| answers_as(note) != own);
        let lost: Vec<Missing> =
            lost.map(|note| Missing { node: note.name.clone(), why: unheard(note) }).collect();
        let mut others: BTreeMap<String, String> =
            alive.iter().map(|note| (answers_as(note), note.name.clone())).collect();
        others.remove(&own);
        if others.is_empty() {
            return Gathered { told: Vec::new(), missing: lost };
        }
        let id = self.new_question();
        let text = serde_json::to_vec(question).unwrap_or_default();
        if let Err(error) = self.fleet.ask(&FleetQuestion { id, text }).await {
            return unknown(error.to_string());
        }
        self.wait_for(id, others.len()).await;
        let answers = self.fleet.answers(id).await;
        let _ = self.fleet.forget(id).await;
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return unknown(error.to_string()),
        };
        let mut gathered = Gathered { told: Vec::new(), missing: lost };
        for FleetAnswer { from, text } in answers {
            let Some(node) = others.remove(&from) else { continue };
            let why = match text.map(|text| serde_json::from_slice(&text)) {
                Ok(Ok(Told::Nothing)) => "it keeps no decisions".to_owned(),
                Ok(Ok(Told::TooLong)) => "its answer is too long".to_owned(),
                Ok(Ok(told)) => {
                    gathered.told.push((node, told));
                    continue;
                }
                Ok(Err(_)) => "it answers as another release does".to_owned(),
                Err(error) => format!("its answer cannot be read: {error}"),
            };
            gathered.missing.push(Missing { node, why });
        }
        let late = || format!("it did not answer within {} s", ANSWERED_WITHIN.as_secs());
        gathered.missing.extend(others.into_values().map(|node| Missing { node, why: late() }));
        gathered.told.sort_by(|(a, _), (b, _)| a.cmp(b));
        gathered
    }

    /// The name of a question that this node asks, and does not answer: it would be taken for the answer of another.
    fn new_question(&self) -> u64 {
        let id = RandomState::new().hash_one(self.clock.now().as_micros());
        let mut asked = self.asked.lock();
        if asked.len() >= MOST_REMEMBERED {
            asked.pop_front();
        }
        asked.push_back(id);
        id
    }

    /// What callers ask of limits, joined over the nodes.
    pub(crate) async fn demand(
        &self,
        log: &Arc<DecisionLog>,
        domain: Option<String>,
        rule: Option<String>,
    ) -> JoinedDemand {
        let gathered = self.gather(log, Question::Demand { domain, rule }).await;
        let (mut parts, mut nodes) = (Vec::new(), Vec::new());
        for (node, told) in gathered.told {
            let Told::Demand { limits } = told else { continue };
            nodes.push(node);
            parts.extend(limits);
        }
        JoinedDemand { limits: join_demands(parts), nodes, missing: gathered.missing }
    }

    /// Until so many have answered, or none more will in time.
    async fn wait_for(&self, id: u64, count: usize) {
        let until = Instant::now() + ANSWERED_WITHIN;
        while Instant::now() < until {
            sleep(LOOK_EVERY).await;
            if self.fleet.answered(id).await.is_ok_and(|answered| answered >= count) {
                return;
            }
        }
    }

    /// Answers what other nodes ask, for as long as this one runs.
    pub(super) async fn answer_questions(&self) {
        let mut questions = self.fleet.questions();
        let mut answered: VecDeque<u64> = VecDeque::new();
        loop {
            let asked = questions.borrow_and_update().clone();
            for question in asked {
                if answered.contains(&question.id) || self.asked.lock().contains(&question.id) {
                    continue;
                }
                answered.truncate(MOST_REMEMBERED);
                answered.push_front(question.id);
                self.answer(question).await;
            }
            if questions.changed().await.is_err() {
                return;
            }
        }
    }

    async fn answer(&self, question: FleetQuestion) {
        // One that a newer release asks is not answered: it names this node as missing.
        let Ok(wanted) = serde_json::from_slice::<Question>(&question.text) else { return };
        let log = self.metrics.decisions().cloned();
        // Not at low priority: somebody waits, and it takes milliseconds.
        let Ok(told) = spawn_blocking(move || answer(log.as_deref(), &wanted)).await else { return };
        let from = self.answers_as();
        let Err(error) = self.fleet.answer(question.id, &from, &told).await else { return };
        tracing::warn!(%error, "another node's question has no answer from this node: it is shown as missing there");
        if let FleetError::Refused(_) = error {
            let _ = self.fleet.answer(question.id, &from, &too_long()).await;
        }
    }

    fn answers_as(&self) -> String {
        format!("{} {}", self.node, self.started_us)
    }
}

/// What a node's answers are signed with: names may be given twice.
fn answers_as(note: &NodeNote) -> String {
    format!("{} {}", note.name, note.started_us)
}

/// Why a lost node's part is missing.
pub(crate) fn unheard(note: &NodeNote) -> String {
    format!("it was not heard for {} s, and did not take leave", note.last_seen_ms / 1_000)
}
