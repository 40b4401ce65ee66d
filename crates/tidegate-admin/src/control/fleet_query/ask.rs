//! Asks every node of the fleet about its own decisions, and merges the answers.
//!
//! A question travels with the heartbeat, so the other nodes receive it within a second. Answers are bounded (`answer.rs`).
//! A node that does not answer in time is listed as missing; the result then covers only the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tidegate_decisions::{DecisionLog, LimitDemand, Query, RankBy, RuleTop, SideCallers, join_demands};
use tidegate_fleet::StoredQuestion;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::answer::{answer, build, too_long};
use crate::control::fleet::{Fleet, FleetAnswer, FleetError, NodeStatus};
use crate::control::{NodeIdentity, SharedAnswers};

/// The most bytes of one node's answer. Large, because every missing line of a sample shortens what can be replayed.
pub const MOST_ANSWER_BYTES: usize = 2 << 20;
/// How long other nodes have to answer. They receive a question within a second.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How often the number of answers is polled.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// The most question ids remembered, both of those answered and of those asked.
const MOST_REMEMBERED: usize = 64;

/// A question to all nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Question {
    /// Matching decisions, with hashed callers.
    Decisions { search: Query },
    /// The top callers.
    Top { domain: Option<String>, rule: Option<String>, by: RankBy },
    /// How much callers request of each limit.
    Demand { domain: Option<String>, rule: Option<String> },
    /// The callers on each side of a rule's experiment.
    Sides { domain: String, rule: String },
    /// The newest decisions, for a replay.
    Sample { domain: Option<String> },
}

/// A node's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "told", rename_all = "snake_case")]
pub(crate) enum NodeAnswer {
    Decisions {
        decisions: Vec<Map<String, Value>>,
        fit: u64,
        stand_for: u64,
        oldest_us: Option<u64>,
        cut: bool,
        /// Admitted and refused decisions in each step; empty if none were asked for.
        #[serde(default)]
        steps: Vec<[u64; 2]>,
    },
    Top {
        rules: Vec<RuleTop>,
    },
    Demand {
        limits: Vec<LimitDemand>,
    },
    Sides {
        sides: Vec<SideCallers>,
    },
    /// Lines of the log, oldest first, and the time since which they are complete.
    Sample {
        lines: Vec<String>,
        since_us: Option<u64>,
    },
    /// The node keeps no decision log.
    Nothing,
    /// The answer would exceed [`MOST_ANSWER_BYTES`].
    TooLong,
}

/// The answers of all nodes, and the nodes that did not answer.
#[derive(Clone, Debug, Default)]
pub(crate) struct FleetAnswers {
    /// Answers by node name, this node first.
    pub(crate) answers: Vec<(String, NodeAnswer)>,
    /// Nodes without an answer, and why.
    pub(crate) missing: Vec<UnansweredNode>,
}

/// The demand on each limit, summed over the nodes, and the nodes that contributed.
#[derive(Clone, Debug, Default)]
pub(crate) struct JoinedDemand {
    pub(crate) limits: Vec<LimitDemand>,
    pub(crate) nodes: Vec<String>,
    pub(crate) missing: Vec<UnansweredNode>,
}

/// A node whose answer is missing, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct UnansweredNode {
    pub(crate) node: String,
    pub(crate) why: String,
}

/// Questions to the other nodes, and answers to theirs.
pub(crate) struct FleetQuestions {
    fleet: Arc<dyn Fleet>,
    decisions: Option<Arc<DecisionLog>>,
    identity: Arc<NodeIdentity>,
    /// The ids of this node's own questions, newest last: it must not answer them itself.
    own: Mutex<VecDeque<u64>>,
    /// What the other nodes answered a moment ago, by the text of the question.
    shared: SharedAnswers<Vec<u8>, Arc<FleetAnswers>>,
}

impl FleetQuestions {
    pub(crate) fn new(
        fleet: Arc<dyn Fleet>,
        decisions: Option<Arc<DecisionLog>>,
        identity: Arc<NodeIdentity>,
    ) -> Self {
        FleetQuestions { fleet, decisions, identity, own: Mutex::default(), shared: SharedAnswers::default() }
    }

    /// Asks every node, this one included. The other nodes are asked once by all who ask the same, and take an answer of this age.
    pub(crate) async fn gather(
        &self,
        log: &Arc<DecisionLog>,
        question: Question,
        fresh: Duration,
    ) -> FleetAnswers {
        let (own_log, own_question) = (log.clone(), question.clone());
        let own = spawn_blocking(move || build(&own_log, &own_question, usize::MAX));
        let others = async {
            // A sample is too large to keep.
            match question {
                Question::Sample { .. } => self.ask_others(&question).await,
                _ => {
                    let text = serde_json::to_vec(&question).unwrap_or_default();
                    let asked = async { Arc::new(self.ask_others(&question).await) };
                    Arc::unwrap_or_clone(self.shared.get(text, fresh, asked).await)
                }
            }
        };
        let (own, others) = tokio::join!(own, others);
        let own = own.unwrap_or(NodeAnswer::Nothing);
        let mut gathered = others;
        gathered.answers.insert(0, (self.identity.node.clone(), own));
        gathered
    }

    async fn ask_others(&self, question: &Question) -> FleetAnswers {
        if !self.fleet.is_shared() {
            return FleetAnswers::default();
        }
        let unknown = |why: String| FleetAnswers {
            answers: Vec::new(),
            missing: vec![UnansweredNode { node: "the other nodes".to_owned(), why }],
        };
        let notes = match self.fleet.known_nodes().await {
            Ok(notes) => notes,
            Err(error) => return unknown(error.to_string()),
        };
        let own = self.answers_as();
        let (lost, alive): (Vec<NodeStatus>, Vec<NodeStatus>) = notes.into_iter().partition(|note| note.lost);
        let lost = lost.iter().filter(|note| answers_as(note) != own);
        let lost: Vec<UnansweredNode> =
            lost.map(|note| UnansweredNode { node: note.name.clone(), why: why_missing(note) }).collect();
        let mut others: BTreeMap<String, String> =
            alive.iter().map(|note| (answers_as(note), note.name.clone())).collect();
        others.remove(&own);
        if others.is_empty() {
            return FleetAnswers { answers: Vec::new(), missing: lost };
        }
        let id = self.new_question();
        let text = serde_json::to_vec(question).unwrap_or_default();
        if let Err(error) = self.fleet.ask(&StoredQuestion { id, text }).await {
            return unknown(error.to_string());
        }
        self.wait_for(id, &others).await;
        let answers = self.fleet.answers(id).await;
        let _ = self.fleet.forget(id).await;
        let answers = match answers {
            Ok(answers) => answers,
            Err(error) => return unknown(error.to_string()),
        };
        let mut gathered = FleetAnswers { answers: Vec::new(), missing: lost };
        for FleetAnswer { from, text } in answers {
            let Some(node) = others.remove(&from) else { continue };
            let why = match text.map(|text| serde_json::from_slice(&text)) {
                Ok(Ok(NodeAnswer::Nothing)) => "it keeps no decisions".to_owned(),
                Ok(Ok(NodeAnswer::TooLong)) => "its answer is too long".to_owned(),
                Ok(Ok(answer)) => {
                    gathered.answers.push((node, answer));
                    continue;
                }
                Ok(Err(_)) => "its answer is in the format of another release".to_owned(),
                Err(error) => format!("its answer cannot be read: {error}"),
            };
            gathered.missing.push(UnansweredNode { node, why });
        }
        let late = || format!("it did not answer within {} s", ANSWERED_WITHIN.as_secs());
        gathered.missing.extend(others.into_values().map(|node| UnansweredNode { node, why: late() }));
        gathered.answers.sort_by(|(a, _), (b, _)| a.cmp(b));
        gathered
    }

    /// A new question id. This node remembers it so as not to answer it: its answer would pass for another node's.
    fn new_question(&self) -> u64 {
        // Any id that no other question has will do.
        let id = getrandom::u64().expect("the system has random numbers");
        let mut own = self.own.lock();
        if own.len() >= MOST_REMEMBERED {
            own.pop_front();
        }
        own.push_back(id);
        id
    }

    /// The demand on limits, merged over all nodes.
    pub(crate) async fn demand(
        &self,
        log: &Arc<DecisionLog>,
        domain: Option<String>,
        rule: Option<String>,
        fresh: Duration,
    ) -> JoinedDemand {
        let gathered = self.gather(log, Question::Demand { domain, rule }, fresh).await;
        let (mut parts, mut nodes) = (Vec::new(), Vec::new());
        for (node, answer) in gathered.answers {
            let NodeAnswer::Demand { limits } = answer else { continue };
            nodes.push(node);
            parts.extend(limits);
        }
        JoinedDemand { limits: join_demands(parts), nodes, missing: gathered.missing }
    }

    /// Waits until all of `others` have answered, or the time is up. A node that joined since may answer too.
    async fn wait_for(&self, id: u64, others: &BTreeMap<String, String>) {
        let until = Instant::now() + ANSWERED_WITHIN;
        while Instant::now() < until {
            sleep(LOOK_EVERY).await;
            let Ok(answered) = self.fleet.answered(id).await else { continue };
            if others.keys().all(|other| answered.contains(other)) {
                return;
            }
        }
    }

    /// Answers other nodes' questions, for as long as this node runs.
    pub(crate) async fn answer_all(&self) {
        let mut questions = self.fleet.questions();
        let mut answered: VecDeque<u64> = VecDeque::new();
        loop {
            let asked = questions.borrow_and_update().clone();
            for question in asked {
                if answered.contains(&question.id) || self.own.lock().contains(&question.id) {
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

    async fn answer(&self, question: StoredQuestion) {
        // A question of a newer release is not answered; the asking node lists this one as missing.
        let Ok(wanted) = serde_json::from_slice::<Question>(&question.text) else { return };
        let log = self.decisions.clone();
        // Not at low priority: a person waits, and it takes milliseconds.
        let Ok(text) = spawn_blocking(move || answer(log.as_deref(), &wanted)).await else { return };
        let from = self.answers_as();
        let Err(error) = self.fleet.answer(question.id, &from, &text).await else { return };
        tracing::warn!(%error, "could not answer another node's question; it lists this node as missing");
        if let FleetError::Refused(_) = error {
            let _ = self.fleet.answer(question.id, &from, &too_long()).await;
        }
    }

    fn answers_as(&self) -> String {
        format!("{} {}", self.identity.node, self.identity.started_us)
    }
}

/// Identifies a node's answers. The name alone is not enough: two nodes may have the same one.
fn answers_as(note: &NodeStatus) -> String {
    format!("{} {}", note.name, note.started_us)
}

/// Why a lost node's answer is missing.
pub(crate) fn why_missing(note: &NodeStatus) -> String {
    format!("it was not heard for {} s, and did not shut down cleanly", note.last_seen_ms / 1_000)
}
