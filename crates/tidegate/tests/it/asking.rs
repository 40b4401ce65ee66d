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
    let limiter = tidegate::Setup::new(RULES).clock(clock).in_memory().unwrap();
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

#[test]
fn every_kind_of_value_names_the_caller_that_its_text_names() {
    let limiter = in_memory("{ domain: d, rules: [{ name: r, key: [user], limits: [100/h] }] }").unwrap();
    let left = |ask: Ask<'_>| ask.check_blocking(&limiter).unwrap().remaining().unwrap();
    let text = "42".to_owned();
    let asks = [
        Ask::new("d").with("user", 42),
        Ask::new("d").with("user", 42_u64),
        Ask::new("d").with("user", "42"),
        Ask::new("d").with("user", &text),
        Ask::new("d").with("user", text.clone()),
        Ask::new("d").with("user", b"42"),
        Ask::new("d").with("user", vec![b'4', b'2']),
        Ask::new("d").with("user", std::borrow::Cow::from("42")),
    ];
    assert_eq!(asks.map(left), [99, 98, 97, 96, 95, 94, 93, 92]);
    let address = std::net::Ipv4Addr::LOCALHOST;
    assert_eq!(left(Ask::new("d").with("user", address)), 99);
    assert_eq!(left(Ask::new("d").with("user", "127.0.0.1")), 98);
}

/// A limiter by a clock, and a sleep that sets it.
fn with_clock(rules: &str) -> (tidegate::Limiter, std::sync::Arc<tidegate::ManualClock>) {
    let clock = std::sync::Arc::new(tidegate::ManualClock::default());
    (tidegate::Setup::new(rules).clock(clock.clone()).in_memory().unwrap(), clock)
}

#[test]
fn who_waits_until_ready_goes_when_the_quota_allows_it_and_not_before() {
    use tidegate::Clock;
    let (limiter, clock) = with_clock(RULES);
    let sleep = |span: Duration| {
        clock.advance(span);
        std::future::ready(())
    };
    let alice = Ask::new("api").with("user", "alice");
    let ready = |ask: &Ask<'_>| tidegate::block_on(ask.until_ready(&limiter, sleep)).unwrap().allowed;
    for _ in 0..10 {
        assert!(ready(&alice));
    }
    assert_eq!(clock.now().as_micros(), 0, "a burst of ten needs no waiting");
    assert!(ready(&alice) && ready(&alice));
    assert_eq!(clock.now().as_micros(), 2 * 3_600_000_000);
    assert!(
        !ready(&alice.clone().cost(11)),
        "more than the bucket holds never passes, and is not waited for"
    );
    // A leaky bucket admits at once, and says how long to wait.
    let smooth = Ask::new("api").with("smooth", "yes");
    assert!(ready(&smooth) && ready(&smooth));
    assert_eq!(clock.now().as_micros(), 3 * 3_600_000_000);
}

#[test]
fn a_lease_around_work_lives_as_long_as_the_work_and_no_longer() {
    let rules =
        "{ domain: d, rules: [{ name: r, limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }] }";
    let (limiter, clock) = with_clock(rules);
    let job = Ask::new("d");
    let lease = || job.check_blocking(&limiter).unwrap().into_lease().unwrap();
    let sleep = |span: Duration| {
        clock.advance(span);
        std::future::ready(())
    };
    // Work that is pending until ten thirds of the time to live have passed.
    let mut left = 10;
    let work = std::future::poll_fn(|_| {
        assert!(!job.check_blocking(&limiter).unwrap().allowed, "its place is taken");
        left -= 1;
        if left == 0 { std::task::Poll::Ready("done") } else { std::task::Poll::Pending }
    });
    assert_eq!(tidegate::block_on(lease().around(work, sleep)).unwrap(), "done");
    assert!(job.check_blocking(&limiter).unwrap().allowed, "and free again");
    // Time jumps over its end: the work stops.
    let jump = |_| {
        clock.advance(Duration::from_secs(61));
        std::future::ready(())
    };
    let lost = tidegate::block_on(lease().around(std::future::pending::<()>(), jump));
    assert!(matches!(lost, Err(tidegate::LeaseError::Ended)), "{lost:?}");
}

#[test]
fn a_prepared_check_that_would_limit_nobody_is_an_error() {
    let rules = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [1/minute] }] }";
    let limiter = in_memory(rules).unwrap();
    let error = limiter.prepare("api", ["usr"]).unwrap_err().to_string();
    assert!(error.contains("rule per-user counts by `user`"), "{error}");
    assert!(limiter.prepare("api", ["user"]).is_ok());
}

#[test]
fn a_prepared_check_follows_rules_that_change() {
    let rules = |limit: &str| {
        tidegate::rules::Rules::new("api").rule(tidegate::rules::Rule::new("r").key("user").limit(limit))
    };
    let limiter = in_memory(rules("1/h")).unwrap();
    let per_user = limiter.prepare("api", ["user"]).unwrap();
    let allowed = |user: &str| per_user.check_blocking(&[user]).unwrap().is_allowed();
    assert_eq!([allowed("ann"), allowed("ann"), allowed("bob")], [true, false, true]);
    limiter.replace_rules(rules("2/h")).unwrap();
    assert_eq!([allowed("ann"), allowed("ann")], [true, false]);
    let mistakes = limiter.replace_rules("{ domain: api, rules: [] }").unwrap_err();
    assert!(mistakes.to_string().contains("there are no rules"), "{mistakes}");
    assert!(!allowed("ann"), "the old rules stay");
}
