//! Questions, in memory.

use std::time::Duration;

use tidegate::{Ask, in_memory};

const RULES: &str = "domain: api
rules:
  - { name: per-user, key: [user], limits: [{ algorithm: token_bucket, rate: 1/h, burst: 10 }] }
  - { name: smooth, match: { smooth: '*' }, limits: [{ algorithm: leaky_bucket, rate: 1/h, max_delay: 10h }] }";

#[test]
fn an_ask_spends_looks_and_gives_back() {
    let limiter = in_memory(RULES).unwrap();
    let alice = Ask::new("api").with("user", "alice");
    let left = |ask: &Ask<'_>| {
        let decision = ask.check_blocking(&limiter).unwrap();
        (decision.allowed, decision.governing().unwrap().limit().unwrap().outcome.remaining)
    };
    assert_eq!(left(&alice.clone().cost(7)), (true, 3));
    assert_eq!(left(&alice.clone().cost(4)), (false, 3));
    assert_eq!(left(&alice.clone().cost(0)), (true, 3));
    assert_eq!(left(&Ask::new("api").with("user", "bob")), (true, 9));
}

#[tokio::test]
async fn hits_that_were_not_needed_go_back() {
    let limiter = in_memory(RULES).unwrap();
    let alice = Ask::new("api").with("user", "alice").cost(10);
    let mut decision = alice.spend(&limiter).await.unwrap();
    assert!(decision.is_allowed() && !alice.check(&limiter).await.unwrap().allowed);
    decision.refund(10).await.unwrap();
    assert!(alice.check(&limiter).await.unwrap().allowed);
}

#[test]
fn one_that_cannot_wait_is_refused_where_another_is_asked_to() {
    let limiter = in_memory(RULES).unwrap();
    let smooth = Ask::new("api").with("smooth", "yes");
    assert!(smooth.check_blocking(&limiter).unwrap().allowed);
    assert!(!smooth.clone().must_go_now().check_blocking(&limiter).unwrap().allowed);
    let waits = smooth.check_blocking(&limiter).unwrap();
    assert!(waits.allowed && waits.delay > tidegate::Micros::ZERO);
}

#[test]
fn a_mistake_in_the_rules_is_shown_with_its_place() {
    let error = in_memory("domain: api\nrules:\n  - { name: r, limit: [1/s] }").unwrap_err();
    assert!(error.to_string().contains("rules:3"), "{error}");
}

#[test]
fn a_decision_says_its_numbers_plainly() {
    let clock = std::sync::Arc::new(tidegate::ManualClock::default());
    let limiter = tidegate::in_memory_with(RULES, clock).unwrap();
    let decision = Ask::new("api").with("user", "alice").cost(9).check_blocking(&limiter).unwrap();
    assert_eq!(
        (decision.rule(), decision.limit(), decision.remaining()),
        (Some("per-user"), Some(10), Some(1))
    );
    assert_eq!(
        (decision.retry_after(), decision.reset_after()),
        (None, Some(Duration::from_secs(9 * 3_600)))
    );
    let refused = Ask::new("api").with("user", "alice").cost(2).check_blocking(&limiter).unwrap();
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(3_600)));
    let nobody = Ask::new("api").check_blocking(&limiter).unwrap();
    assert_eq!((nobody.rule(), nobody.remaining(), nobody.delay()), (None, None, Duration::ZERO));
}

#[test]
fn an_unknown_domain_is_an_error() {
    let limiter = in_memory(RULES).unwrap();
    assert!(Ask::new("apj").check_blocking(&limiter).is_err());
}

#[test]
fn a_check_that_is_not_kept_gives_its_lease_back() {
    let rules =
        "{ domain: d, rules: [{ name: r, limits: [{ algorithm: concurrency, limit: 1, ttl: 1h }] }] }";
    let limiter = in_memory(rules).unwrap();
    let one = Ask::new("d");
    for _ in 0..3 {
        assert!(one.check_blocking(&limiter).unwrap().allowed);
    }
    let held = one.check_blocking(&limiter).unwrap().into_lease().unwrap();
    assert!(!one.check_blocking(&limiter).unwrap().allowed);
    let token = held.leak();
    assert!(!one.check_blocking(&limiter).unwrap().allowed);
    tidegate::block_on(limiter.release(&token)).unwrap();
    assert!(one.check_blocking(&limiter).unwrap().allowed);
}

#[test]
fn a_decision_names_the_rules_that_skipped_it() {
    let rules = "{ domain: d, rules: [{ name: per-user, key: [user], limits: [1/h] }, { name: all, limits: [9/h] }] }";
    let limiter = in_memory(rules).unwrap();
    let skipped = |ask: Ask<'_>| {
        let decision = ask.check_blocking(&limiter).unwrap();
        decision.skipped().map(|rule| rule.name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(skipped(Ask::new("d").with("usr", "ann")), ["per-user"]);
    assert_eq!(skipped(Ask::new("d").with("user", "ann")), [""; 0]);
}
