//! Answers other nodes' questions about this node's decisions, within a bounded number of bytes.
//!
//! The size of an answer is estimated before it is serialized, which is fast but not exact. So the serialized answer is
//! measured again, and if it is too long, it is built again from fewer entries.

use serde_json::to_vec;
use tidegate_decisions::{DecisionLog, LimitDemand, Query, RuleTop};

use super::ask::{MOST_ANSWER_BYTES, NodeAnswer, Question};

/// The most bytes of an answer with single decisions or top callers: people read these.
const MOST_READ_BYTES: usize = 256 << 10;
/// Attempts to shorten an answer before it is replaced by `TooLong`.
const TRIES: usize = 6;
/// Entries of a sketch: all that this node has for a rule.
const ALL_PLACES: usize = usize::MAX;

/// This node's answer, as JSON.
pub(super) fn answer(log: Option<&DecisionLog>, question: &Question) -> Vec<u8> {
    let most_bytes = match question {
        Question::Sample { .. } | Question::Demand { .. } => MOST_ANSWER_BYTES,
        Question::Decisions { .. } | Question::Top { .. } | Question::Sides { .. } => MOST_READ_BYTES,
    };
    match log {
        Some(log) => within(most_bytes, |bytes| build(log, question, bytes)),
        None => serialized(&NodeAnswer::Nothing),
    }
}

/// The answer that says the real one is too long.
pub(super) fn too_long() -> Vec<u8> {
    serialized(&NodeAnswer::TooLong)
}

/// Calls `build` with smaller and smaller budgets until its serialized answer has at most `most_bytes`.
fn within(most_bytes: usize, build: impl Fn(usize) -> NodeAnswer) -> Vec<u8> {
    let mut bytes = most_bytes;
    for _ in 0..TRIES {
        let answer = serialized(&build(bytes));
        if answer.len() <= most_bytes {
            return answer;
        }
        // Slightly less than in proportion, so that the next attempt is likely to fit.
        let fits = bytes.saturating_mul(most_bytes) / answer.len();
        bytes = fits - fits / 16;
    }
    too_long()
}

fn serialized(answer: &NodeAnswer) -> Vec<u8> {
    to_vec(answer).expect("the keys of an answer are text")
}

/// This node's answer, in approximately `most_bytes`.
pub(super) fn build(log: &DecisionLog, question: &Question, most_bytes: usize) -> NodeAnswer {
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
            NodeAnswer::Top { rules: rules.into_iter().map(top).collect() }
        }
        Question::Demand { domain, rule } => {
            let mut limits = log.demand().of(domain.as_deref(), rule.as_deref());
            cut(&mut limits, most_bytes);
            NodeAnswer::Demand { limits }
        }
        Question::Sides { domain, rule } => NodeAnswer::Sides { sides: log.sides(domain, rule) },
        Question::Sample { domain } => sample(log, domain.as_deref(), most_bytes),
    }
}

fn cut(limits: &mut [LimitDemand], most_bytes: usize) {
    let needs: Vec<usize> = limits.iter().map(LimitDemand::bytes).collect();
    for (limit, share) in limits.iter_mut().zip(shares(&needs, most_bytes)) {
        limit.cut(share);
    }
}

/// Divides `most` by need: each gets what it needs, or an equal part of what the smaller needs leave over.
fn shares(needs: &[usize], most: usize) -> Vec<usize> {
    let mut by_need: Vec<usize> = (0..needs.len()).collect();
    by_need.sort_by_key(|place| needs[*place]);
    let (mut shares, mut left) = (vec![0; needs.len()], most);
    for (served, place) in by_need.into_iter().enumerate() {
        shares[place] = needs[place].min(left / (needs.len() - served));
        left -= shares[place];
    }
    shares
}

fn decisions(log: &DecisionLog, search: &Query, most_bytes: usize) -> NodeAnswer {
    let found = log.search(search);
    let (mut bytes, mut decisions) = (256, Vec::new());
    for record in &found.records {
        bytes = record.line().len().saturating_add(bytes).saturating_add(1);
        if bytes > most_bytes {
            break;
        }
        if let Ok(serde_json::Value::Object(decision)) = serde_json::to_value(&**record) {
            decisions.push(decision);
        }
    }
    let cut = decisions.len() < found.records.len();
    NodeAnswer::Decisions {
        decisions,
        fit: found.fit,
        stand_for: found.stand_for,
        oldest_us: found.oldest_us,
        cut,
        steps: found.steps,
    }
}

fn sample(log: &DecisionLog, domain: Option<&str>, most_bytes: usize) -> NodeAnswer {
    let entries = log.recent();
    let fit = entries.iter().rev().filter(|entry| domain.is_none() || entry.domain() == domain);
    let (mut bytes, mut lines, mut since_us) = (256, Vec::new(), log.complete_since_us());
    for entry in fit {
        let line = entry.line();
        // Escaping doubles these characters.
        bytes += line.len() + line.matches(['"', '\\']).count() + 3;
        if bytes > most_bytes {
            // Complete only from the next microsecond on: other entries with this timestamp may be missing too.
            since_us = Some(entry.time_us() + 1);
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    NodeAnswer::Sample { lines, since_us }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_decisions::DecisionLogConfig;
    use tidegate_limiter::{CheckRequest, DescriptorAsk, Limiter, LimiterConfig};
    use tidegate_rules::{Format, RuleSet, Source};
    use tidegate_store::{MemoryConfig, MemoryStore, SystemClock};

    use super::*;

    /// The log of a limiter that has taken and released this many leases in each of these domains.
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
        let limiter = Limiter::new(LimiterConfig::new(rules, store, log.clone()));
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
        let NodeAnswer::Sample { lines, since_us } = sample(&log, Some("jobs"), 4 << 10) else {
            panic!("a sample")
        };
        assert_eq!((lines.len(), since_us), (6, None), "three admissions and their ends: {lines:?}");
        assert!(lines.iter().all(|line| line.contains("\"domain\":\"jobs\"")), "{lines:?}");
        let NodeAnswer::Sample { lines, .. } = sample(&log, None, usize::MAX) else { panic!("a sample") };
        assert_eq!(lines.len(), 2 * 203);
    }

    #[tokio::test]
    async fn an_answer_that_came_out_longer_than_it_was_thought_is_told_shorter() {
        let log = log_of(&[("jobs", 200)]).await;
        // Uses three times its budget, until the serialized answer fits.
        let answer = within(16 << 10, |bytes| sample(&log, None, 3 * bytes));
        assert!(answer.len() <= 16 << 10, "{}", answer.len());
        let NodeAnswer::Sample { lines, since_us } = serde_json::from_slice(&answer).unwrap() else {
            panic!("a sample")
        };
        assert!(lines.len() > 20 && since_us.is_some(), "{} lines", lines.len());
    }

    #[test]
    fn what_cannot_be_told_shorter_is_said_to_be_too_long() {
        let long = || NodeAnswer::Sample { lines: vec!["-".repeat(2_000)], since_us: None };
        assert_eq!(within(1_000, |_| long()), too_long());
    }

    #[test]
    fn each_gets_what_it_needs_and_only_what_is_scarce_is_divided() {
        assert_eq!(shares(&[10, 500, 20], 600), [10, 500, 20], "enough for all");
        assert_eq!(shares(&[10, 500, 20], 300), [10, 270, 20], "the rest is for who needs more");
        assert_eq!(shares(&[900, 10, 500, 400], 1_010), [334, 10, 333, 333]);
        assert_eq!(shares(&[50, 50], 20), [10, 10]);
        assert_eq!(shares(&[7, 9], usize::MAX), [7, 9]);
        assert!(shares(&[], 20).is_empty());
    }
}
