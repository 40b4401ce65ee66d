//! The input for alerts: what nodes announce, what the fleet counted in a minute, and the top callers.

use std::collections::{BTreeSet, HashMap};

use tidegate_decisions::{DecisionLog, Digester, RankBy, Top};
use tidegate_telemetry::alerts::{Counts, Minute, RuleCallers, RuleName, Signals};

use super::ControlPlane;
use super::fleet::{FleetError, NodeStatus};
use super::merged::{HistoryChunk, Missed, Resolution, SLOTS};

/// The fewest seconds of a minute that nodes must have reported.
const LEAST_TOLD: usize = 40;
/// The most rules whose top callers are reported, and the most callers of each.
const MOST_RULES: usize = 12;
const MOST_CALLERS: usize = 2;
/// The fewest logged decisions to name top callers from: with fewer it would be chance.
const LEAST_KEPT: u64 = 40;
/// The number of top callers compared with the previous reading.
const COMPARED: usize = 64;

impl ControlPlane {
    /// Sets the signals that this node announces to the others.
    pub fn tell_signals(&self, signals: Signals) {
        *self.alerts.signals.lock() = Some(signals);
    }

    /// The signals that the other nodes last announced; `None` if the store does not answer.
    pub async fn others_signals(&self) -> Option<Vec<Signals>> {
        let own = self.note();
        let is_other = |note: &NodeStatus| note.name != own.name || note.started_us != own.started_us;
        let notes = self.fleet.known_nodes().await.ok()?;
        // What is missed goes into the fleet's history, where who looks at a dip finds it.
        *self.alerts.missed.lock() = Missed::of(&notes, self.clock.now().as_micros());
        Some(notes.into_iter().filter(is_other).map(signals_of).collect())
    }

    /// The most severe alert of any node in the fleet; an error if the others cannot be reached. All nodes are asked because
    /// one that started a moment ago knows less than the others, and one may have its own watch switched off.
    pub(crate) async fn fleets_alert(&self) -> Result<Option<String>, FleetError> {
        let own = self.alerts.desk.get().and_then(|desk| desk.worst());
        if own.is_some() || !self.is_shared() {
            return Ok(own);
        }
        let notes = self.fleet.nodes().await?;
        Ok(notes.into_iter().find_map(|note| note.signals?.alert))
    }

    /// The version of the rules that this node runs, and when its process started.
    #[must_use]
    pub fn running_version(&self) -> (u64, u64) {
        (self.note().version, self.identity.started_us)
    }

    /// Whether other nodes can exist.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.fleet.is_shared()
    }

    /// The fleet's counts for a minute since 1970; `None` if too few of its seconds were reported.
    pub async fn fleet_minute(&self, number: u64) -> Option<Minute> {
        let chunks = self.fleet.history(Resolution::Seconds, number..=number).await.ok()?;
        whole_minute(chunks.into_iter().next()?)
    }

    /// The rules that are in use.
    #[must_use]
    pub fn rules_in_use(&self) -> BTreeSet<RuleName> {
        let snapshot = self.limiter.snapshot();
        snapshot.rules().rules().map(|rule| RuleName::new(rule.domain(), rule.name())).collect()
    }

    /// The top callers of each rule since the last call, from the decision log.
    pub fn callers_lately(&self, watch: &mut CallerWatch) -> Vec<RuleCallers> {
        self.decisions.as_ref().map(|log| watch.lately(log)).unwrap_or_default()
    }

    /// Sends an event that alerts have changed.
    pub fn alerts_changed(&self) {
        self.events.emit("alerts", &serde_json::json!({}));
    }
}

/// A node that announces no signals is known only by its release and version.
fn signals_of(note: NodeStatus) -> Signals {
    let NodeStatus { name, release, version, started_us, signals, lost, .. } = note;
    let mut told = signals.unwrap_or_default();
    if lost {
        // Of a node that is no longer heard, only what it ran is known: it may come back with that.
        told = Signals { rules: told.rules, lost, ..Signals::default() };
    }
    Signals { node: name, release, version, started_us, ..told }
}

fn whole_minute(chunk: HistoryChunk) -> Option<Minute> {
    let told = chunk.rows.get(super::merged::NODES)?.iter().filter(|nodes| **nodes > 0).count();
    if told < LEAST_TOLD {
        return None;
    }
    let mut minute = Minute { number: chunk.number, ..Minute::default() };
    for (name, counts) in &chunk.rows {
        let Some((domain, rule)) = super::merged::rule_of(name).filter(|(domain, _)| !domain.is_empty())
        else {
            continue;
        };
        let width = counts.len() / SLOTS as usize;
        let sum = |place: usize| {
            counts.iter().skip(place).step_by(width.max(1)).map(|n| f64::from(*n)).sum::<f64>()
        };
        let (allowed, refused, shadow) = (sum(0), sum(1), sum(2));
        let counts = Counts { total: allowed + refused + shadow, refused, shadow };
        minute.rules.insert(RuleName::new(domain, rule), counts);
    }
    Some(minute)
}

/// Remembers the previous counts of callers.
#[derive(Debug)]
pub struct CallerWatch {
    /// The number of admissions that a logged one stands for.
    one_in: u64,
    before: HashMap<(String, String), Top>,
}

impl CallerWatch {
    /// For a log that keeps one in this many admissions.
    #[must_use]
    pub fn new(one_in: u32) -> Self {
        CallerWatch { one_in: u64::from(one_in).max(1), before: HashMap::new() }
    }

    /// The callers of rules with enough logged decisions since they were last reported. Other rules wait for more.
    fn lately(&mut self, log: &DecisionLog) -> Vec<RuleCallers> {
        let rules = log.top().rules();
        self.before.retain(|rule, _| rules.binary_search(rule).is_ok());
        let mut told: Vec<RuleCallers> = rules
            .into_iter()
            .filter_map(|(domain, rule)| {
                let now = log.top_of(&domain, &rule, RankBy::Used, COMPARED);
                let name = RuleName::new(&domain, &rule);
                let before = self.before.entry((domain, rule)).or_insert_with(|| now.clone());
                // A sketch that was reset says nothing about the time since.
                let asked = now.total.checked_sub(before.total);
                let enough = asked.is_none_or(|asked| asked >= LEAST_KEPT * self.one_in);
                let before = enough.then(|| std::mem::replace(before, now.clone()))?;
                Some(RuleCallers { rule: name, asked: asked?, most: most(&now, &before, log.names()) })
            })
            .collect();
        told.sort_by_key(|callers| std::cmp::Reverse(callers.asked));
        told.truncate(MOST_RULES);
        told
    }
}

/// The callers with the most requests since `before`, masked.
fn most(now: &Top, before: &Top, names: &Digester) -> Vec<(String, u64)> {
    let known: HashMap<&[(String, String)], u64> =
        before.callers.iter().map(|caller| (&caller.key[..], caller.count)).collect();
    let since = |caller: &tidegate_decisions::TopCaller| {
        let then = known.get(&caller.key[..]).copied().unwrap_or(caller.error);
        caller.count.saturating_sub(then)
    };
    let mut callers: Vec<_> = now.callers.iter().map(|caller| (since(caller), caller)).collect();
    callers.sort_by_key(|(more, _)| std::cmp::Reverse(*more));
    callers.truncate(MOST_CALLERS);
    callers.into_iter().map(|(more, caller)| (masked(&caller.key, names), more)).collect()
}

/// Hashes stay as they are. Plain values are cut to their beginning, because an alert leaves the fleet. Which of them a value
/// is depends on its attribute: callers choose plain values, and may choose one that looks like a hash.
fn masked(key: &[(String, String)], names: &Digester) -> String {
    let part = |(name, value): &(String, String)| match names.is_clear(name) {
        false => format!("{name}={value}"),
        true => format!("{name}={}…", value.chars().take(2).collect::<String>()),
    };
    let text = key.iter().map(part).collect::<Vec<_>>().join(" ");
    text[..text.floor_char_boundary(120)].to_owned()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_decisions::{Clear, DecisionLogConfig, TopCaller};
    use tidegate_store::SystemClock;

    use super::*;

    /// A log that has the values of some attributes in clear.
    fn log(clear: Clear) -> DecisionLog {
        let config = DecisionLogConfig { clear, ..DecisionLogConfig::default() };
        DecisionLog::open(config, Arc::new(SystemClock::new())).expect("it has no file")
    }

    fn caller(user: &str, count: u64, error: u64) -> TopCaller {
        let key = vec![("user".to_owned(), user.to_owned())];
        TopCaller { key, count, error, left_permille: None, left_ago_us: None }
    }

    fn top(callers: Vec<TopCaller>) -> Top {
        Top { callers, ..Top::default() }
    }

    #[test]
    fn who_asked_most_is_by_what_came_since() {
        let before = top(vec![caller("#aa", 100, 0), caller("#bb", 30, 0)]);
        // A caller that was not ranked before may have asked as often as its error says.
        let now = top(vec![caller("#aa", 110, 0), caller("#bb", 70, 0), caller("#cc", 60, 5)]);
        let most = most(&now, &before, log(Clear::Only(Vec::new())).names());
        assert_eq!(most, [("user=#cc".to_owned(), 55), ("user=#bb".to_owned(), 40)]);
    }

    #[test]
    fn no_value_is_told_in_clear_whatever_it_looks_like() {
        let log = log(Clear::Only(vec!["user".to_owned()]));
        let key = |user: &str| [("user".to_owned(), user.to_owned()), ("ip".to_owned(), "#5f3a".to_owned())];
        for (user, told) in [("alice", "user=al…"), ("#alice", "user=#a…"), ("#0123456789abcdef", "user=#0…")]
        {
            assert_eq!(masked(&key(user), log.names()), format!("{told} ip=#5f3a"));
        }
    }

    /// A minute with `told` reported seconds: in each, two requests are admitted, one is refused and three are refused in
    /// shadow.
    fn minute(told: usize) -> HistoryChunk {
        let nodes = (0..60).map(|second| u32::from(second < told)).collect();
        let counts = (0..60).flat_map(|second| if second < told { [2, 1, 3, 0] } else { [0; 4] }).collect();
        let named = [("n", nodes), ("rapi\0per-user", counts), ("r\0others", vec![9; 240])];
        HistoryChunk { number: 7, rows: named.map(|(name, counts)| (name.to_owned(), counts)).into() }
    }

    #[test]
    fn a_minute_is_the_sum_of_its_seconds_by_rule() {
        let minute = whole_minute(minute(60)).unwrap();
        let counts = Counts { total: 360.0, refused: 60.0, shadow: 180.0 };
        assert_eq!((minute.number, minute.rules), (7, [(RuleName::new("api", "per-user"), counts)].into()));
    }

    #[test]
    fn a_minute_of_which_too_little_was_told_is_none() {
        assert!(whole_minute(minute(LEAST_TOLD)).is_some() && whole_minute(minute(LEAST_TOLD - 1)).is_none());
    }
}
