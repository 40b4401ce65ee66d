//! The log behind a real limiter, on the memory store.

#![expect(clippy::unwrap_used, reason = "a test may fail")]

use std::fs;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use serde_json::Value;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_decisions::{Clear, DecisionLog, DecisionLogConfig, FileConfig, Query, RankBy, Steps, Verdict};
use tidegate_limiter::{CheckRequest, DescriptorAsk, LimitOverride, Limiter, LimiterConfig, SpentAt};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore};
use tidegate_testkit::poll;

const RULES: &str = "{ domain: api, rules: [
  { name: per-user, key: [user], limits: [{ algorithm: sliding_log, limit: 3, window: 1h }] },
  { name: tried, shadow: true, match: { path: /login }, key: [ip], limits: [{ algorithm: sliding_log, limit: 1, window: 1h }] }] }
---
{ domain: jobs, rules: [{ name: at-once, key: [team], limits: [{ algorithm: concurrency, limit: 3, ttl: 60s }] }] }";
const START: u64 = 1_800_057_600_000_000;

struct World {
    limiter: Limiter,
    log: Arc<DecisionLog>,
    clock: Arc<ManualClock>,
}

impl World {
    fn new(config: DecisionLogConfig) -> World {
        World::of(RULES, config)
    }

    fn of(rules: &str, config: DecisionLogConfig) -> World {
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(START)));
        let log = Arc::new(DecisionLog::open(config, clock.clone()).unwrap());
        let rules = RuleSet::compile(&[Source::new("rules.yaml", rules)], Format::Native).unwrap();
        let store = MemoryStore::with_clock(MemoryConfig::default(), clock.clone());
        let mut config = LimiterConfig::new(rules, Arc::new(store), log.clone());
        config.clock = clock.clone();
        World { limiter: Limiter::new(config), log, clock }
    }

    /// Asks once, and says whether it passed.
    fn ask(&self, attributes: &[(&str, &str)]) -> bool {
        let entries: Vec<(&str, &[u8])> =
            attributes.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        let asks = [DescriptorAsk::one(&entries)];
        let request = CheckRequest::new("api", &asks);
        at_once(self.limiter.check(&request)).unwrap().allowed
    }
}

fn at_once<T>(work: impl Future<Output = T>) -> T {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => unreachable!("memory answers at once"),
    }
}

fn everything() -> DecisionLogConfig {
    let node = "node-a".to_owned();
    DecisionLogConfig { admissions_one_in: Some(1), node, ..DecisionLogConfig::default() }
}

#[test]
fn a_line_says_who_was_refused_by_what_and_hides_the_caller() {
    let world = World::new(DecisionLogConfig { clear: Clear::Only(vec!["path".to_owned()]), ..everything() });
    let ask = || world.ask(&[("user", "alice"), ("ip", "203.0.113.7"), ("path", "/login")]);
    assert_eq!([ask(), ask(), ask(), ask()], [true, true, true, false]);
    let found = world.log.search(&Query { verdict: Some(Verdict::Refused), most: 10, ..Query::default() });
    assert_eq!((found.fit, found.records.len()), (1, 1));
    let line: Value = serde_json::from_str(&found.records[0].line()).unwrap();
    let expect = |field: &str, value: Value| assert_eq!(line[field], value, "{line}");
    expect("time_us", START.into());
    expect("domain", "api".into());
    expect("rule", "per-user".into());
    expect("verdict", "refused".into());
    expect("limit", 3.into());
    expect("remaining", 0.into());
    expect("retry_after_ms", 3_600_000.into());
    expect("source", "store".into());
    expect("node", "node-a".into());
    expect("version", 1.into());
    expect("n", 1.into());
    expect("key", serde_json::json!(["user"]));
    expect("shadow_refused", serde_json::json!(["tried"]));
    assert_eq!(line["attributes"]["path"], "/login");
    let user = line["attributes"]["user"].as_str().unwrap();
    assert!(user.starts_with('#') && !line.to_string().contains("alice"), "{line}");
}

#[test]
fn tiers_are_told_apart_and_who_has_its_own_limits_is_left_out_of_what_a_limit_could_be() {
    let rules = "{ domain: api, rules: [
      { name: plans, key: [user], tiers: { on: plan, default: free, free: [{ algorithm: fixed_window, limit: 5, window: 1h }],
        gold: [{ algorithm: fixed_window, limit: 50, window: 1h }] } },
      { name: own, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 1h }],
        key_overrides: [{ when: { user: acme }, limits: [{ algorithm: fixed_window, limit: 500, window: 1h }] }] }] }";
    let world = World::of(rules, everything());
    let ask = |user: &str, plan: &str, times: u64| {
        (0..times).for_each(|_| {
            world.ask(&[("user", user), ("plan", plan)]);
        });
    };
    ask("a", "free", 4);
    ask("b", "gold", 30);
    ask("acme", "gold", 20);
    let told: Vec<_> = world.log.demand().of(Some("api"), None);
    let told: Vec<(&str, &str, u64, u64, u64)> =
        told.iter().map(|one| (&*one.rule, &*one.limit, one.quota, one.requests(), one.left_out)).collect();
    let limit = |tier: &str| format!("{} of {tier}", told[0].1);
    assert_eq!(
        told,
        [
            ("own", told[0].1, 5, 34, 20),
            ("plans", &*limit("free"), 5, 4, 0),
            ("plans", &*limit("gold"), 50, 50, 0),
        ]
    );
}

#[test]
fn what_rules_count_by_is_kept_of_a_request_with_very_many_attributes() {
    let world = World::new(DecisionLogConfig { clear: Clear::All, ..everything() });
    let names: Vec<String> = (0..40).map(|number| format!("a{number}")).collect();
    let mut attributes: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "x")).collect();
    attributes.extend([("path", "/login"), ("ip", "203.0.113.7"), ("user", "alice")]);
    assert!(world.ask(&attributes));
    let query =
        Query { attributes: vec![("user".to_owned(), "alice".to_owned())], most: 1, ..Query::default() };
    let found = world.log.search(&query);
    assert_eq!(found.fit, 1, "a caller is found by its key");
    let kept: Vec<&str> = found.records[0].attributes.iter().map(|(name, _)| &**name).collect();
    assert_eq!((kept.len(), &kept[..3]), (16, &["ip", "user", "a0"][..]), "the shadow rule's key, too");
}

#[test]
fn what_is_given_back_is_told_with_its_key_its_own_limit_and_how_much_is_left_out() {
    let world = World::new(DecisionLogConfig { clear: Clear::All, ..everything() });
    let names: Vec<String> = (0..40).map(|number| format!("a{number}")).collect();
    let mut entries: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b"x"[..])).collect();
    entries.push(("user", b"alice"));
    let own = LimitOverride::new("api", 7, Micros::from_secs(60)).unwrap();
    let others: Vec<Vec<(&str, &[u8])>> = (0..20).map(|_| vec![("ip", &b"203.0.113.7"[..])]).collect();
    let mut asks = vec![DescriptorAsk::one(&entries).limit(Some(&own))];
    asks.extend(others.iter().map(|other| DescriptorAsk::one(other)));
    let request = CheckRequest::new("api", &asks);
    at_once(world.limiter.refund(&request, Hits::new(2), SpentAt::Unknown)).unwrap();
    at_once(world.limiter.reset(&request)).unwrap();
    let lines: Vec<Value> =
        world.log.recent().iter().map(|entry| serde_json::from_str(&entry.line()).unwrap()).collect();
    assert_eq!([&lines[0]["event"], &lines[1]["event"]], ["refunded", "reset"]);
    for line in &lines {
        assert_eq!(line["own_limit"], serde_json::json!({ "limit": 7, "window_us": 60_000_000 }), "{line}");
        assert_eq!(
            (line["attributes"]["user"].as_str(), &line["also_left_out"]),
            (Some("alice"), &5.into()),
            "{line}"
        );
    }
}

#[test]
fn the_end_of_a_lease_says_its_domain_and_renewals_beyond_the_rate_are_counted() {
    let world = World::new(DecisionLogConfig { refusals_per_second: 2, ..everything() });
    let entries = [("team", &b"blue"[..])];
    let asks = [DescriptorAsk::one(&entries)];
    let lease = at_once(world.limiter.check(&CheckRequest::new("jobs", &asks))).unwrap().lease.unwrap();
    for _ in 0..50 {
        at_once(world.limiter.renew(&lease)).unwrap();
    }
    at_once(world.limiter.release(&lease)).unwrap();
    let domains: Vec<Option<String>> =
        world.log.recent().iter().map(|entry| entry.domain().map(str::to_owned)).collect();
    assert!(domains.iter().all(|domain| domain.as_deref() == Some("jobs")), "{domains:?}");
    // Beside the admission and the end: the first two, and few of those beyond the rate.
    let (renewals, left_out) = (domains.len() - 2, world.log.stats().renewals_left_out);
    assert!((2..10).contains(&renewals), "{renewals} renewals");
    assert_eq!(renewals as u64 + left_out, 50);
}

#[test]
fn a_search_finds_a_caller_by_its_name_or_by_its_hash_and_by_time() {
    let world = World::new(everything());
    for user in ["alice", "bob", "alice"] {
        world.ask(&[("user", user)]);
        world.clock.advance(Micros::from_secs(60));
    }
    let fit = |query: Query| world.log.search(&query).fit;
    let alice = vec![("user".to_owned(), "alice".to_owned())];
    assert_eq!(fit(Query { attributes: alice.clone(), ..Query::default() }), 2);
    let hash = vec![("user".to_owned(), world.log.names().hash("user", b"alice"))];
    assert_eq!(fit(Query { attributes: hash, ..Query::default() }), 2);
    let later = Query {
        attributes: alice,
        from_us: Some(START + 1),
        to_us: Some(START + 120_000_001),
        ..Query::default()
    };
    assert_eq!(fit(later), 1);
    assert_eq!(fit(Query { rule: Some("other".to_owned()), ..Query::default() }), 0);
    assert_eq!(world.log.search(&Query::default()).oldest_us, Some(START));
}

#[test]
fn a_search_counts_admissions_and_refusals_in_each_step() {
    let world = World::new(everything());
    for user in ["alice", "alice", "bob", "alice", "alice"] {
        world.ask(&[("user", user)]);
        world.clock.advance(Micros::from_secs(60));
    }
    let steps = Steps { from_us: START + 60_000_000, step_us: 120_000_000, number: 3 };
    let alice = vec![("user".to_owned(), "alice".to_owned())];
    let found = world.log.search(&Query { attributes: alice, steps: Some(steps), ..Query::default() });
    // The first is before the first step; the fourth of alice is one more than she has.
    assert_eq!((found.fit, found.steps), (4, vec![[1, 0], [1, 1], [0, 0]]));
    let endless = Steps { step_us: 0, number: usize::MAX, ..steps };
    let found = world.log.search(&Query { steps: Some(endless), ..Query::default() });
    assert_eq!((found.fit, found.steps.len()), (5, Steps::MOST), "another node asks for anything");
}

#[test]
fn what_is_kept_adds_up_to_what_was_decided() {
    let config = DecisionLogConfig { admissions_one_in: Some(10), refusals_per_second: 50, ..everything() };
    let world = World::new(config);
    let (mut admitted, mut refused) = (0u64, 0u64);
    for n in 0..6_000 {
        let user = (n % 500).to_string();
        if world.ask(&[("user", &user)]) {
            admitted += 1
        } else {
            refused += 1
        }
        if n % 100 == 0 {
            world.clock.advance(Micros::from_secs(1));
        }
    }
    let stand_for =
        |verdict| world.log.search(&Query { verdict: Some(verdict), ..Query::default() }).stand_for;
    assert_eq!((admitted, refused), (1_500, 4_500));
    assert_eq!(stand_for(Verdict::Admitted), admitted);
    // Beyond the rate, one in sixteen and fewer is kept: an estimate.
    let told = stand_for(Verdict::Refused);
    assert!(told.abs_diff(refused) < refused / 5, "{told} of {refused}");
}

#[test]
fn a_flood_of_strange_callers_stays_within_its_bytes() {
    let world = World::new(DecisionLogConfig { memory_bytes: 256 << 10, clear: Clear::All, ..everything() });
    for n in 0..20_000 {
        let long = format!("{n}{}", "x".repeat(n % 3_000));
        world.ask(&[("user", &long), ("ip", &long), ("path", "/login")]);
    }
    let stats = world.log.stats();
    assert!(stats.bytes <= 256 << 10 && stats.records > 100, "{stats:?}");
    assert_eq!(stats.kept, 20_000);
    // Two rankings of two rules, and the callers with known peaks under each limit.
    assert!(stats.callers <= 4 * 256 + 2 * 6_144, "{stats:?}");
}

#[test]
fn callers_are_ranked_under_every_rule_they_match() {
    let world = World::new(DecisionLogConfig { clear: Clear::All, ..everything() });
    for _ in 0..9 {
        world.ask(&[("user", "alice"), ("ip", "10.0.0.1"), ("path", "/login")]);
    }
    for _ in 0..2 {
        world.ask(&[("user", "bob"), ("ip", "10.0.0.1"), ("path", "/login")]);
    }
    let top = |rule: &str, by: RankBy| {
        let callers = world.log.top_of("api", rule, by, 10).callers;
        callers.iter().map(|caller| (caller.key[0].1.clone(), caller.count)).collect::<Vec<_>>()
    };
    assert_eq!(top("per-user", RankBy::Used), [("alice".to_owned(), 9), ("bob".to_owned(), 2)]);
    assert_eq!(top("per-user", RankBy::Refused), [("alice".to_owned(), 6)]);
    assert_eq!(top("per-user", RankBy::Near)[0].0, "alice");
    // Refusals of a shadow rule are ranked too: that is what it is for.
    assert_eq!(top("tried", RankBy::Used), [("10.0.0.1".to_owned(), 11)]);
}

#[test]
fn lines_reach_their_file_and_a_bad_path_is_an_error_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("decisions.log");
    let file = FileConfig { path: path.clone(), most_bytes: 1 << 20, keep: 1 };
    let world = World::new(DecisionLogConfig { file: Some(file), ..everything() });
    for _ in 0..5 {
        world.ask(&[("user", "alice")]);
    }
    let text = poll(Duration::from_secs(20), || {
        let text = fs::read_to_string(&path).ok()?;
        (text.lines().count() == 5).then_some(text)
    });
    let last: Value = serde_json::from_str(text.unwrap().lines().last().unwrap()).unwrap();
    assert_eq!(last["verdict"], "refused");
    let missing = FileConfig { path: dir.path().join("no/such/folder/x"), most_bytes: 1, keep: 1 };
    let clock = Arc::new(ManualClock::default());
    assert!(DecisionLog::open(DecisionLogConfig { file: Some(missing), ..everything() }, clock).is_err());
}

#[test]
fn rotation_under_load_tears_no_line_and_loses_none() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("decisions.log");
    let file = FileConfig { path, most_bytes: 20_000, keep: 1_000 };
    let world = World::new(DecisionLogConfig { file: Some(file), ..everything() });
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let world = &world;
            scope.spawn(move || {
                for n in 0..1_000 {
                    world.ask(&[("user", &format!("{thread}-{n}"))]);
                }
            });
        }
    });
    assert!(world.log.flush(Duration::from_secs(30)));
    let files: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() > 10, "{}", files.len());
    let mut lines = 0;
    for file in files {
        let text = fs::read_to_string(file).unwrap();
        assert!(text.len() <= 20_000);
        for line in text.lines() {
            assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
            lines += 1;
        }
    }
    assert_eq!(lines + world.log.stats().dropped, 4_000);
    assert_eq!(world.log.stats().dropped, 0, "the queue holds 8192");
}

#[test]
fn keys_of_any_bytes_are_kept_apart_and_hurt_nobody() {
    let world = World::new(DecisionLogConfig { clear: Clear::All, ..everything() });
    let long = [b'k'; 1_024];
    let keys: [&[u8]; 7] =
        [b"\xff\xfe", b"\xff\xff", b"a\0b", b"\x1b[2J\r\n", b"\"},{\"", &long, &long[..1_023]];
    for key in keys {
        let entries = [("user", key)];
        let asks = [DescriptorAsk::one(&entries)];
        let request = CheckRequest::new("api", &asks);
        let check = pin!(world.limiter.check(&request));
        assert!(matches!(check.poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(Ok(_))));
    }
    let top = world.log.top_of("api", "per-user", RankBy::Used, 10);
    assert_eq!((top.callers.len(), top.total), (7, 7), "{top:?}");
    for record in world.log.recent() {
        let line: Value = serde_json::from_str(&record.line()).unwrap();
        assert!(!record.line().contains('\n') && line["attributes"]["user"].is_string());
    }
}
