//! Moves limits towards actual demand, slowly and within an operator's bounds. Off unless a rule sets `autopilot`.
//!
//! A step is a version like any other, with the author `autopilot` and a reason, so it can be shown, compared and rolled
//! back. It is published against the version it was computed from, and at most one per period is stored in the database: of
//! several nodes that step at once, one succeeds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Micros;
use tidegate_decisions::{DecisionLog, LimitDemand};
use tidegate_rules::{Autopilot, Mode, Timestamp, with_limit};
use tidegate_rulestore::{Actor, Error, Publication, PublishError, Role, RuleStore};
use tokio::time::{MissedTickBehavior, interval};

use super::{ControlPlane, Enforced, RuleSource, SHARED_FOR, compile, worthy};
use crate::low_priority::polled_at_low_priority;

/// How often rules are checked for a due step.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// After a check without a step, the longest wait until the next check.
const LOOK_AGAIN: Micros = Micros::from_secs(60);
/// The least confidence of a suggestion, in percent.
const LEAST_CONFIDENCE: u64 = 95;
/// A limit within 1/50 of the suggested one is left alone.
const CLOSE_ENOUGH: u64 = 50;
/// The number of newest versions searched for the last step.
const MOST_VERSIONS: u32 = 1_000;
const AUTHOR: &str = "autopilot";

/// Everything that a step depends on.
#[derive(Clone, Debug)]
struct StepInput<'a> {
    pilot: Autopilot,
    limit: u64,
    enforced: Enforced,
    now: Timestamp,
    last_step: Option<Timestamp>,
    demand: Option<&'a LimitDemand>,
    /// A node that did not answer: its demand, or its alerts, are unknown.
    missing: Option<&'a str>,
    /// The active alert, if any.
    alert: Option<&'a str>,
    /// When an alert was last active.
    last_alert: Option<Timestamp>,
}

/// The next limit and the reason; or why the limit stays.
fn next(known: &StepInput<'_>) -> Result<(u64, String), String> {
    let Autopilot { min, max, step, every } = known.pilot;
    if let Some(alert) = known.alert {
        return Err(format!("an alert is active: {alert}"));
    }
    // Demand during an alert is not representative. And a node that is briefly unreachable takes its alert with it.
    if known.last_alert.is_some_and(|last| known.now.since(last) < every) {
        return Err(format!("an alert was active less than {every} ago"));
    }
    if known.last_step.is_some_and(|last| known.now.since(last) < every) {
        return Err(format!("the last step was less than {every} ago"));
    }
    if let Some(node) = known.missing {
        return Err(format!("the node {node} did not answer"));
    }
    let demand = known.demand.ok_or("no caller was seen")?;
    if known.now.since(Timestamp::from_micros(demand.since_us)) < every {
        return Err(format!("callers have been watched for less than {every}"));
    }
    let suggested = worthy(demand, known.enforced, LEAST_CONFIDENCE, 0)?;
    let (limit, target) = (known.limit, suggested.limit.clamp(min, max));
    if target.abs_diff(limit) * CLOSE_ENOUGH < limit || target == limit {
        return Err(format!("the limit {limit} is what is suggested, or close to it"));
    }
    let most = step.of(limit).max(1);
    let next = if target > limit { target.min(limit + most) } else { target.max(limit.saturating_sub(most)) };
    let why = format!(
        "99.9 % of {} callers stay within {} ({} % sure); within {min} and {max}, by at most {step} per {every}",
        demand.peaks().total(),
        suggested.limit,
        suggested.confidence_percent,
    );
    Ok((next.clamp(min, max), why))
}

/// A rule with an autopilot.
#[derive(Clone)]
struct Steered {
    domain: String,
    rule: String,
    limit_name: String,
    limit: u64,
    mode: Mode,
    pilot: Autopilot,
}

impl Steered {
    fn reason(&self) -> String {
        format!("autopilot: {}/{}: ", self.domain, self.rule)
    }
}

impl ControlPlane {
    /// Steps the rules that set `autopilot`, for as long as the node runs.
    pub(super) async fn autopilot(self: &Arc<Self>) {
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look_at: HashMap<(String, String), Timestamp> = HashMap::new();
        let mut last_alert = None;
        loop {
            ticks.tick().await;
            let (now, steered) = (self.clock.now(), self.steered());
            self.autopilot_waits.lock().retain(|(domain, rule), _| {
                steered.iter().any(|one| one.domain == *domain && one.rule == *rule)
            });
            if steered.is_empty() {
                continue;
            }
            let (store, log) = match self.can_steer() {
                Ok(parts) => parts,
                Err(why) => {
                    steered.iter().for_each(|one| self.note_wait(one, why));
                    continue;
                }
            };
            if matches!(self.fleets_alert().await, Ok(Some(_))) {
                last_alert = Some(now);
            }
            look_at.retain(|(domain, rule), _| {
                steered.iter().any(|one| one.domain == *domain && one.rule == *rule)
            });
            for one in &steered {
                let due = look_at.entry((one.domain.clone(), one.rule.clone())).or_insert(now);
                if *due > now {
                    continue;
                }
                *due = now + one.pilot.every.min(LOOK_AGAIN);
                if let Err(error) = self.steer(store, log, one, last_alert).await {
                    self.note_wait(one, &error.to_string());
                }
            }
        }
    }

    /// What every step needs, or why there can be none.
    fn can_steer(&self) -> Result<(&RuleStore, &Arc<DecisionLog>), &'static str> {
        if *self.rules.source() != RuleSource::Database {
            return Err("the rules come from files, and it changes only those of a database");
        }
        let store =
            self.store.as_ref().ok_or("this node has no database: the node that has it makes the steps")?;
        if !self.published.leads() {
            return Err("the fleet follows another node's database: that node makes the steps");
        }
        let log = self
            .decisions
            .as_ref()
            .ok_or("there is no decision log (`decision_log`) to learn demand from")?;
        Ok((store, log))
    }

    /// Records why a rule's limit stays. Logged when the reason changes, other than in its numbers.
    fn note_wait(&self, one: &Steered, why: &str) {
        let name = (one.domain.clone(), one.rule.clone());
        let before = self.autopilot_waits.lock().insert(name, why.to_owned());
        let words = |text: &str| text.replace(|one: char| one.is_ascii_digit(), "");
        match before.is_none_or(|before| words(&before) != words(why)) {
            true => {
                tracing::info!(domain = one.domain, rule = one.rule, "the autopilot makes no step: {why}")
            }
            false => {
                tracing::debug!(domain = one.domain, rule = one.rule, why, "the autopilot makes no step")
            }
        }
    }

    fn steered(&self) -> Vec<Steered> {
        let snapshot = self.limiter.snapshot();
        let enabled = snapshot.rules().rules().filter(|rule| rule.is_enabled());
        let steered = |rule: &tidegate_rules::Rule| {
            let (pilot, limit) = (rule.autopilot()?, rule.limits().next()?);
            Some(Steered {
                domain: rule.domain().to_owned(),
                rule: rule.name().to_owned(),
                limit_name: limit.name.clone(),
                limit: limit.limit.quota(),
                mode: rule.mode(),
                pilot,
            })
        };
        enabled.filter_map(steered).collect()
    }

    /// Makes a step if one is due.
    async fn steer(
        self: &Arc<Self>,
        store: &RuleStore,
        log: &Arc<DecisionLog>,
        one: &Steered,
        last_alert: Option<Timestamp>,
    ) -> Result<(), Error> {
        let (on, reason) = (store.head().await?.version, one.reason());
        let versions = store.versions(u64::MAX, MOST_VERSIONS).await?;
        let own = |version: &&tidegate_rulestore::Version| {
            version.author == AUTHOR && version.reason.starts_with(&reason)
        };
        let last_step = versions.iter().find(own).map(|version| version.at);
        let demand =
            self.questions.demand(log, Some(one.domain.clone()), Some(one.rule.clone()), SHARED_FOR).await;
        // Last, because the other nodes may have taken seconds to answer the questions above.
        let alert = self.fleets_alert().await;
        let known = StepInput {
            pilot: one.pilot,
            limit: one.limit,
            enforced: Enforced::of(one.mode, one.limit),
            now: self.clock.now(),
            last_step,
            demand: demand.limits.iter().find(|limit| limit.limit == one.limit_name),
            missing: match &alert {
                Ok(_) => demand.missing.first().map(|missing| missing.node.as_str()),
                Err(_) => Some("that holds the alerts"),
            },
            alert: alert.as_ref().ok().and_then(|alert| alert.as_deref()),
            last_alert,
        };
        match next(&known) {
            Ok((limit, why)) => {
                let (control, store, one) = (self.clone(), store.clone(), one.clone());
                let step = async move { control.publish_step(&store, on, &one, (limit, &why)).await };
                polled_at_low_priority(step).await
            }
            Err(why) => {
                self.note_wait(one, &why);
                Ok(())
            }
        }
    }

    async fn publish_step(
        self: &Arc<Self>,
        store: &RuleStore,
        on: u64,
        one: &Steered,
        (limit, why): (u64, &str),
    ) -> Result<(), Error> {
        let before = store.documents(on).await?;
        let changed = before
            .get(&one.domain)
            .and_then(|document| with_limit(document, (&one.domain, &one.rule), 0, limit));
        let Some(changed) = changed else {
            self.note_wait(one, "its number is not written in its limit, so it cannot be changed there");
            return Ok(());
        };
        let documents = before.with(&one.domain, changed);
        let now = self.clock.now();
        // The algorithm's own bound may be tighter than the operator's.
        if compile(&documents, now).is_err() {
            self.note_wait(one, &format!("the next limit, {limit}, does not compile"));
            return Ok(());
        }
        let reason = format!("{}{} -> {limit}: {why}", one.reason(), one.limit);
        let by = Actor { name: AUTHOR.to_owned(), role: Role::Editor };
        let publication =
            Publication { on, documents: &documents, by: &by, at: now, reason: &reason, action: "publish" };
        match store.publish(&publication).await {
            Ok(version) => {
                tracing::info!(version = version.number, "{reason}");
                self.published.take_own(store).await;
                Ok(())
            }
            // Another version was published meanwhile: the next check starts from that one.
            Err(PublishError::Conflict { .. }) => Ok(()),
            Err(PublishError::Store(error)) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_decisions::Peak;
    use tidegate_rules::{Format, RuleSet, Source};

    use super::*;

    const DAY_US: u64 = 86_400_000_000;
    const START: u64 = 1_800_000_000_000_000;

    fn pilot() -> Autopilot {
        let rules = "{ domain: api, rules: [{ name: r, key: [user], limits: [100/minute], autopilot: { min: 50, max: 150, step: 10% } }] }";
        let rules = RuleSet::compile(&[Source::new("a", rules)], Format::Native).unwrap();
        rules.rules().next().unwrap().autopilot().unwrap()
    }

    /// Callers that all have this peak, watched since the start.
    fn demand(callers: u32, peak: u64) -> LimitDemand {
        let peaks = (0..callers).map(|caller| Peak { caller, used: peak, refused: 0 });
        LimitDemand { since_us: START, callers: peaks.collect(), ..LimitDemand::default() }
    }

    fn after(days: u64) -> Timestamp {
        Timestamp::from_micros(START + days * DAY_US)
    }

    fn known(demand: &LimitDemand, limit: u64) -> StepInput<'_> {
        StepInput {
            pilot: pilot(),
            limit,
            enforced: Enforced::of(Mode::Enforce, limit),
            now: after(1),
            last_step: None,
            demand: Some(demand),
            missing: None,
            alert: None,
            last_alert: None,
        }
    }

    #[test]
    fn a_limit_follows_by_a_step_per_period_and_stays_within_its_bounds() {
        let (high, low) = (demand(5_000, 1_000), demand(5_000, 3));
        let walk = |demand: &LimitDemand| {
            let (mut limit, mut steps, mut last) = (100, vec![100], None);
            for day in 1..20 {
                let known = StepInput { now: after(day), last_step: last, ..known(demand, limit) };
                if let Ok((next, _)) = next(&known) {
                    (limit, last) = (next, Some(after(day)));
                    steps.push(limit);
                }
            }
            steps
        };
        assert_eq!(walk(&high), [100, 110, 121, 133, 146, 150]);
        assert_eq!(walk(&low), [100, 90, 81, 73, 66, 60, 54, 50]);
    }

    #[test]
    fn only_in_shadow_do_refused_callers_raise_a_limit() {
        let guessers = (0..5_000).map(|caller| Peak { caller, used: 100, refused: 900 });
        let guessers = LimitDemand { callers: guessers.collect(), ..demand(0, 0) };
        let why = "only callers that were refused asked for more than 100";
        assert_eq!(next(&known(&guessers, 100)), Err(why.to_owned()));
        let shadow = StepInput { enforced: Enforced::of(Mode::Shadow, 100), ..known(&guessers, 100) };
        assert_eq!(next(&shadow).map(|(limit, _)| limit), Ok(110));
    }

    #[test]
    fn the_reason_says_what_it_follows_and_how_sure_that_is() {
        let high = demand(5_000, 1_000);
        let (limit, why) = next(&known(&high, 100)).unwrap();
        assert_eq!(limit, 110);
        assert_eq!(
            why,
            "99.9 % of 5000 callers stay within 1007 (99 % sure); within 50 and 150, by at most 10% per 1d"
        );
    }

    #[test]
    fn no_step_is_made_while_something_speaks_against_it() {
        let high = demand(5_000, 1_000);
        let stays = |known: StepInput<'_>, why: &str| {
            let told = next(&known).unwrap_err();
            assert!(told.contains(why), "{told}");
        };
        stays(
            StepInput { alert: Some("Redis is down"), ..known(&high, 100) },
            "an alert is active: Redis is down",
        );
        stays(
            StepInput { last_alert: Some(after(1)), ..known(&high, 100) },
            "an alert was active less than 1d ago",
        );
        stays(
            StepInput { last_step: Some(after(1)), ..known(&high, 100) },
            "the last step was less than 1d ago",
        );
        stays(StepInput { missing: Some("two"), ..known(&high, 100) }, "the node two");
        stays(StepInput { demand: None, ..known(&high, 100) }, "no caller");
        stays(
            StepInput { now: Timestamp::from_micros(START + DAY_US - 1), ..known(&high, 100) },
            "watched for less",
        );
        stays(known(&demand(500, 1_000), 100), "only 39 % sure");
        stays(known(&high, 150), "what is suggested");
        stays(known(&demand(5_000, 101), 100), "close to it");
    }
}
