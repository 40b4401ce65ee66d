//! What the nodes of a fleet know, each of its own decisions: asked of all of them, and put together by who asked.
//!
//! A question travels with the heartbeat, so the others hear it within a second. Every answer has a bound, and a node that
//! does not answer in time is named: what was found is of the others.

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
use super::fleet::{FleetQuestion, NodeNote};

/// The most bytes of one node's answer.
pub(crate) const MOST_ANSWER_BYTES: usize = 256 << 10;
/// The same of a sample: every line that is missing shortens what can be played.
const MOST_SAMPLE_BYTES: usize = 2 << 20;
/// How long the others have to answer. They hear of a question within a second.
const ANSWERED_WITHIN: Duration = Duration::from_secs(5);
/// How often it is looked whether they have.
const LOOK_EVERY: Duration = Duration::from_millis(40);
/// Questions that this node remembers to have answered, and to have asked.
const MOST_REMEMBERED: usize = 64;
/// Places of a sketch: all that a node has of a rule.
const ALL_PLACES: usize = usize::MAX;

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
        let answers = self.fleet.answers(id).await.unwrap_or_default();
        let _ = self.fleet.forget(id).await;
        let mut gathered = Gathered { told: Vec::new(), missing: lost };
        for (from, answer) in answers {
            let Some(node) = others.remove(&from) else { continue };
            let why = match serde_json::from_slice(&answer) {
                Ok(Told::Nothing) => "it keeps no decisions",
                Ok(told) => {
                    gathered.told.push((node, told));
                    continue;
                }
                Err(_) => "it answers as another release does",
            };
            gathered.missing.push(Missing { node, why: why.to_owned() });
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
        let answer = spawn_blocking(move || {
            let most_bytes = match wanted {
                Question::Sample { .. } => MOST_SAMPLE_BYTES,
                _ => MOST_ANSWER_BYTES,
            };
            let told = log.map_or(Told::Nothing, |log| told(&log, &wanted, most_bytes));
            serde_json::to_vec(&told).unwrap_or_default()
        });
        let Ok(answer) = answer.await else { return };
        if let Err(error) = self.fleet.answer(question.id, &self.answers_as(), &answer).await {
            tracing::debug!(%error, "cannot answer another node");
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

/// What this node says, in at most so many bytes.
fn told(log: &DecisionLog, question: &Question, most_bytes: usize) -> Told {
    match question {
        Question::Decisions { search } => decisions(log, search, most_bytes),
        Question::Top { domain, rule, by } => {
            let fits = |(known, of): &(String, String)| {
                domain.as_ref().is_none_or(|domain| domain == known)
                    && rule.as_ref().is_none_or(|rule| rule == of)
            };
            let rules: Vec<(String, String)> = log.top().rules().into_iter().filter(fits).collect();
            let each = most_bytes / rules.len().max(1);
            let top = |(domain, rule): (String, String)| {
                let mut top = log.top_of(&domain, &rule, *by, ALL_PLACES);
                top.cut(each);
                RuleTop { domain, rule, top }
            };
            Told::Top { rules: rules.into_iter().map(top).collect() }
        }
        Question::Demand { domain, rule } => {
            let mut limits = log.demand().of(domain.as_deref(), rule.as_deref());
            let each = most_bytes / limits.len().max(1);
            limits.iter_mut().for_each(|limit| limit.cut(each));
            Told::Demand { limits }
        }
        Question::Sample { domain } => sample(log, domain.as_deref(), most_bytes),
    }
}

fn decisions(log: &DecisionLog, search: &Query, most_bytes: usize) -> Told {
    let found = log.search(search);
    let (mut bytes, mut decisions) = (256, Vec::new());
    for record in &found.records {
        bytes = record.line().len().saturating_add(bytes).saturating_add(1);
        if bytes > most_bytes {
            break;
        }
        decisions.push(serde_json::to_value(&**record).unwrap_or_default());
    }
    let cut = decisions.len() < found.records.len();
    Told::Decisions { decisions, fit: found.fit, stand_for: found.stand_for, oldest_us: found.oldest_us, cut }
}

fn sample(log: &DecisionLog, domain: Option<&str>, most_bytes: usize) -> Told {
    let entries = log.recent();
    let fit = entries.iter().rev().filter(|entry| domain.is_none() || entry.domain() == domain);
    let (mut bytes, mut lines, mut since_us) = (256, Vec::new(), log.complete_since_us());
    for entry in fit {
        let line = entry.line();
        // Quotes are written twice as long.
        bytes += line.len() + line.matches('"').count() + 3;
        if bytes > most_bytes {
            // Complete from the next moment on: others of the same one may be left out too.
            since_us = Some(entry.time_us() + 1);
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    Told::Sample { lines, since_us }
}

#[cfg(test)]
mod tests {
    use tidegate_decisions::DecisionLogConfig;
    use tidegate_limiter::{
        CheckRequest, Decided, DescriptorAsk, Limiter, LimiterConfig, NoObserver, Observer, RuleWatcher,
        Settled,
    };
    use tidegate_rules::{Format, Rule, RuleSet, Source};
    use tidegate_store::{MemoryConfig, MemoryStore, SystemClock};

    use super::*;

    struct Ears(Arc<DecisionLog>);

    impl Observer for Ears {
        fn watch_rule(&self, rule: &Rule) -> Arc<dyn RuleWatcher> {
            NoObserver.watch_rule(rule)
        }

        fn decided(&self, decided: &Decided<'_>) {
            self.0.hear(decided);
        }

        fn settled(&self, settled: &Settled<'_>) {
            self.0.hear_settled(settled);
        }
    }

    /// The log of a limiter that has taken and released as many leases in each of these domains.
    async fn log_of(domains: &[(&str, usize)]) -> Arc<DecisionLog> {
        let config = DecisionLogConfig { admissions_one_in: Some(1), ..DecisionLogConfig::default() };
        let log = Arc::new(DecisionLog::open(config, Arc::new(SystemClock::new())).expect("it has no file"));
        let rules = domains.iter().map(|(domain, _)| {
            format!("{{ domain: {domain}, rules: [{{ name: slots, limits: [{{ algorithm: concurrency, limit: 9, ttl: 1h }}] }}] }}")
        });
        let rules = rules.collect::<Vec<String>>().join("\n---\n");
        let rules =
            RuleSet::compile(&[Source::new("rules.yaml", rules)], Format::Native).expect("good rules");
        let store = Arc::new(MemoryStore::new(MemoryConfig::default()));
        let limiter = Limiter::new(LimiterConfig::new(rules, store, Arc::new(Ears(log.clone()))));
        for (domain, leases) in domains {
            for _ in 0..*leases {
                let asks = [DescriptorAsk::one(&[("user", b"alice")])];
                let decided = limiter.check(&CheckRequest::new(domain, &asks)).await.expect("a known domain");
                limiter.release(&decided.lease.expect("room for one")).await.expect("it lives");
            }
        }
        log
    }

    #[tokio::test]
    async fn a_sample_of_one_domain_has_no_room_taken_by_the_leases_of_another() {
        let log = log_of(&[("jobs", 3), ("noise", 200)]).await;
        let Told::Sample { lines, since_us } = sample(&log, Some("jobs"), 4 << 10) else {
            panic!("a sample")
        };
        assert_eq!((lines.len(), since_us), (6, None), "three admissions and their ends: {lines:?}");
        assert!(lines.iter().all(|line| line.contains("\"domain\":\"jobs\"")), "{lines:?}");
        let Told::Sample { lines, .. } = sample(&log, None, usize::MAX) else { panic!("a sample") };
        assert_eq!(lines.len(), 2 * 203);
    }
}
