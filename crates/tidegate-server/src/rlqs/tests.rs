//! Envoys as the real one behaves, over streams that delay, lose and break, at injected times: what they hold together is summed
//! up here, and compared with the limit.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;

use proptest::prelude::{ProptestConfig, any, prop_assert, prop_assert_eq, proptest};
use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{Limiter, LimiterConfig, NoObserver};
use tidegate_rules::{Format, RuleSet, Source};
use tidegate_store::{ManualClock, MemoryConfig, MemoryStore};

use super::session::QuotaSession;
use super::*;
use crate::service::{Service, ServiceSettings};

const STEP: Micros = Micros::from_millis(250);
const STEPS_PER_REPORT: u64 = 20;
const SETTLED: u64 = LENT_FOR.get() / STEP.get() + 1;

struct World {
    clock: Arc<ManualClock>,
    service: Arc<Service>,
    quotas: Arc<Quotas>,
}

impl World {
    fn new(limits: &str) -> Self {
        let rules = format!("{{ domain: edge, rules: [{{ name: all, key: [], limits: [{limits}] }}] }}");
        let rules = RuleSet::compile(&[Source::new("rules.yaml", &rules)], Format::Native).unwrap();
        let clock = Arc::new(ManualClock::at(Timestamp::from_micros(1_800_000_000_000_000)));
        let bounds = MemoryConfig::new().max_cells(1_000).max_log_bytes(1 << 20);
        let store = Arc::new(MemoryStore::with_clock(bounds, clock.clone()));
        let limiter = Arc::new(Limiter::new(LimiterConfig::new(rules, store, Arc::new(NoObserver))));
        let (observer, settings) = (Arc::new(NoObserver), ServiceSettings::default());
        let service = Arc::new(Service { limiter, observer, clock: clock.clone(), settings });
        let mut world = World { quotas: Quotas::new(clock.clone()), clock, service };
        world.restart();
        world
    }

    /// A new process lends, which knows nothing of the last one.
    fn restart(&mut self) {
        self.quotas = Quotas::new(self.clock.clone());
        self.quotas.may_lend(self.quotas.now(), Micros::new(u64::MAX));
    }

    fn settle(&self) {
        self.clock.advance(LENT_FOR);
    }

    fn now(&self) -> Timestamp {
        self.quotas.now()
    }

    fn stream(&self) -> QuotaSession {
        let place = self.quotas.open_stream().unwrap();
        QuotaSession::new(self.service.clone(), place, IpAddr::from([127, 0, 0, 1]))
    }
}

fn bucket(name: &str) -> BucketId {
    BucketId { bucket: [("tenant".to_owned(), name.as_bytes().to_vec())].into() }
}

fn report(name: &str, elapsed_s: i64, allowed: u64, denied: u64) -> RateLimitQuotaUsageReports {
    let usage = BucketQuotaUsage {
        bucket_id: Some(bucket(name)),
        time_elapsed: Some(prost_types::Duration { seconds: elapsed_s, nanos: 0 }),
        num_requests_allowed: allowed,
        num_requests_denied: denied,
    };
    RateLimitQuotaUsageReports { domain: "edge".to_owned(), bucket_quota_usages: vec![usage] }
}

/// What the answer to a report says: requests per fill; none if there is no assignment.
fn ask(stream: &mut QuotaSession, report: RateLimitQuotaUsageReports) -> Option<Option<u64>> {
    stream.take(report).unwrap();
    let answer = stream.answer()?;
    let [action] = &answer.bucket_action[..] else { panic!("{answer:?}") };
    let Some(Action::QuotaAssignmentAction(assignment)) = &action.bucket_action else { return Some(None) };
    assert_eq!(assignment.assignment_time_to_live.unwrap().seconds, 15);
    let strategy = assignment.rate_limit_strategy.unwrap().strategy.unwrap();
    Some(Some(match strategy {
        Strategy::TokenBucket(bucket) => bucket.tokens_per_fill.unwrap().into(),
        Strategy::BlanketRule(rule) if rule == i32::from(BlanketRule::DenyAll) => 0,
        other => panic!("{other:?}"),
    }))
}

fn share(stream: &mut QuotaSession, report: RateLimitQuotaUsageReports) -> u64 {
    ask(stream, report).expect("an answer").expect("an assignment")
}

/// One Envoy.
struct Envoy {
    stream: Option<QuotaSession>,
    /// Requests per fill, and until when.
    holds: (u64, Timestamp),
    /// When they arrive, and what they say; none: forget the bucket.
    on_the_way: VecDeque<(Timestamp, Option<u64>)>,
    has_bucket: bool,
    demand: u64,
    /// Requests since the last report, in quarters: what passed, and what did not.
    passed: u64,
    refused: u64,
    silent_until: Timestamp,
}

impl Envoy {
    fn new() -> Self {
        let never = Timestamp::default();
        Envoy {
            stream: None,
            holds: (0, never),
            on_the_way: VecDeque::new(),
            has_bucket: false,
            demand: 0,
            passed: 0,
            refused: 0,
            silent_until: never,
        }
    }

    fn held(&self, now: Timestamp) -> u64 {
        let (share, until) = self.holds;
        if now < until { share } else { 0 }
    }

    fn receive(&mut self, now: Timestamp) {
        while let Some((_, share)) = self.on_the_way.pop_front_if(|(at, _)| *at <= now) {
            self.has_bucket = share.is_some();
            self.holds = (share.unwrap_or(0), now + VALID_FOR);
        }
        let passes = self.demand.min(self.held(now));
        self.passed += passes;
        self.refused += self.demand - passes;
    }

    fn report(&mut self, world: &World, delay: Micros) {
        let now = world.now();
        let stream = self.stream.get_or_insert_with(|| world.stream());
        let elapsed = if self.has_bucket { 5 } else { 0 };
        self.has_bucket = true;
        let report = report("a", elapsed, self.passed / 4, self.refused / 4);
        (self.passed, self.refused) = (0, 0);
        if let Some(share) = ask(stream, report) {
            // In order: none overtakes another.
            let after = self.on_the_way.back().map_or(now, |(at, _)| *at);
            self.on_the_way.push_back(((now + delay).max(after), share));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn envoys_never_hold_more_than_the_limit_together(
        seed in any::<u64>(),
        limit in 1_u64..300,
        envoys in 1_usize..7,
        trouble in 0_u64..30,
    ) {
        let world = World::new(&format!("{limit}/second"));
        let mut random = Seeded(seed | 1);
        let mut all: Vec<Envoy> = (0..envoys).map(|_| Envoy::new()).collect();
        for step in 0..1_200_u64 {
            world.clock.advance(STEP);
            let now = world.now();
            for (number, envoy) in all.iter_mut().enumerate() {
                if random.below(100) == 0 {
                    envoy.demand = random.below(limit * 2);
                }
                if random.below(1_000) < trouble {
                    match random.below(4) {
                        // The stream breaks; what is on the way is lost, or still arrives.
                        0 => (envoy.stream, envoy.on_the_way) = (None, VecDeque::new()),
                        1 => envoy.stream = None,
                        // It is cut off, and nobody notices.
                        2 => envoy.silent_until = now + Micros::from_secs(random.below(40)),
                        // It starts again.
                        _ => *envoy = Envoy::new(),
                    }
                }
                envoy.receive(now);
                let is_due = (step + 7 * number as u64).is_multiple_of(STEPS_PER_REPORT);
                if is_due && now < envoy.silent_until {
                    // Its report is lost, and what it counted.
                    (envoy.passed, envoy.refused) = (0, 0);
                } else if is_due {
                    let delay = Micros::new(random.below(APPLIED_WITHIN.get() - STEP.get()));
                    envoy.report(&world, delay);
                }
            }
            let held: u64 = all.iter().map(|envoy| envoy.held(now)).sum();
            prop_assert!(held <= limit, "{held} of {limit} at step {step}");
        }
    }

    #[test]
    fn a_restarted_server_lends_no_more_than_what_is_left_by_the_last(
        seed in any::<u64>(),
        limit in 1_u64..300,
        envoys in 1_usize..7,
    ) {
        let mut world = World::new(&format!("{limit}/second"));
        let mut random = Seeded(seed | 1);
        let mut all: Vec<Envoy> = (0..envoys).map(|_| Envoy::new()).collect();
        let mut kept = 0;
        for step in 0..3 * SETTLED + 400 {
            world.clock.advance(STEP);
            let now = world.now();
            if step == SETTLED + 200 {
                world.restart();
                all.iter_mut().for_each(|envoy| (envoy.stream, envoy.on_the_way) = (None, VecDeque::new()));
            }
            for (number, envoy) in all.iter_mut().enumerate() {
                if random.below(100) == 0 {
                    envoy.demand = random.below(limit * 2);
                }
                envoy.receive(now);
                if (step + 7 * number as u64).is_multiple_of(STEPS_PER_REPORT) {
                    let delay = Micros::new(random.below(Micros::from_secs(1).get()));
                    envoy.report(&world, delay);
                }
            }
            let held: u64 = all.iter().map(|envoy| envoy.held(now)).sum();
            prop_assert!(held <= limit, "{held} of {limit} at step {step}");
            if step == 2 * SETTLED + 190 {
                kept = all.iter().filter(|envoy| now < envoy.holds.1).count();
            }
        }
        prop_assert_eq!(kept, envoys, "each has an assignment when the new server has settled");
    }
}

struct Seeded(u64);

impl Seeded {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound.max(1)
    }
}

/// Reports of two streams every five seconds, with these demands; what each has in the end.
fn rounds(world: &World, streams: &mut [QuotaSession; 2], demands: [u64; 2], rounds: usize) -> [u64; 2] {
    let mut shares = [0; 2];
    for _ in 0..rounds {
        world.clock.advance(Micros::from_secs(5));
        for ((stream, demand), share_now) in streams.iter_mut().zip(demands).zip(&mut shares) {
            *share_now = share(stream, report("a", 5, 0, demand * 5));
        }
    }
    shares
}

#[test]
fn demand_that_moves_takes_its_share_along_within_three_reports() {
    let world = World::new("100/second");
    world.settle();
    let mut streams = [world.stream(), world.stream()];
    for stream in &mut streams {
        let _first = share(stream, report("a", 0, 0, 1));
    }
    assert_eq!(rounds(&world, &mut streams, [200, 200], 4), [50, 50]);
    let moved = rounds(&world, &mut streams, [200, 0], 3);
    assert!(moved[0] >= 90 && moved[0] + moved[1] <= 100, "{moved:?}");
    let back = rounds(&world, &mut streams, [0, 200], 3);
    assert!(back[1] >= 90 && back[0] + back[1] <= 100, "{back:?}");
}

#[test]
fn shares_of_an_even_load_stay_as_they_are() {
    let world = World::new("100/second");
    world.settle();
    let mut streams = [world.stream(), world.stream()];
    for stream in &mut streams {
        let _first = share(stream, report("a", 0, 0, 1));
    }
    let first = rounds(&world, &mut streams, [40, 40], 4);
    for demand in [41, 39, 42, 38, 40] {
        assert_eq!(rounds(&world, &mut streams, [demand, 80 - demand], 1), first);
    }
}

#[test]
fn a_limit_smaller_than_the_number_of_envoys_goes_to_the_busiest() {
    let world = World::new("1/second");
    world.settle();
    let mut streams = [world.stream(), world.stream()];
    for stream in &mut streams {
        let _first = share(stream, report("a", 0, 0, 1));
    }
    assert_eq!(rounds(&world, &mut streams, [0, 9], 6), [0, 1]);
    assert_eq!(rounds(&world, &mut streams, [9, 0], 6), [1, 0]);
}

#[test]
fn a_bucket_is_abandoned_after_a_minute_without_requests_and_may_come_back() {
    let world = World::new("100/second");
    world.settle();
    let mut stream = world.stream();
    let _first = share(&mut stream, report("a", 0, 1, 0));
    for _ in 0..11 {
        world.clock.advance(Micros::from_secs(5));
        assert!(matches!(ask(&mut stream, report("a", 5, 0, 0)), Some(Some(_))));
    }
    world.clock.advance(Micros::from_secs(5));
    assert_eq!(ask(&mut stream, report("a", 5, 0, 0)), Some(None), "abandoned");
    assert_eq!(world.quotas.counts().buckets, 0);
    // What it held may still be used for a while, if the message is lost.
    assert_eq!(share(&mut stream, report("a", 0, 1, 0)), 0);
    world.settle();
    assert_eq!(share(&mut stream, report("a", 5, 1, 0)), 100);
}

#[test]
fn rules_that_ban_or_do_not_match_are_blanket_rules() {
    let rule_of = |text: &str| {
        let world = World::new("100/second");
        let rules = RuleSet::compile(&[Source::new("rules.yaml", text)], Format::Native).unwrap();
        world.service.limiter.use_rules(rules);
        world.settle();
        let mut stream = world.stream();
        stream.take(report("a", 0, 1, 0)).unwrap();
        let answer = stream.answer().unwrap();
        let Some(Action::QuotaAssignmentAction(assignment)) = answer.bucket_action[0].bucket_action else {
            panic!("{answer:?}")
        };
        assignment.rate_limit_strategy.unwrap().strategy.unwrap()
    };
    let (allow, deny) = (BlanketRule::AllowAll.into(), BlanketRule::DenyAll.into());
    let other =
        "{ domain: edge, rules: [{ name: one, match: { tenant: b }, key: [tenant], limits: [1/second] }] }";
    assert_eq!(rule_of(other), Strategy::BlanketRule(allow));
    let leases = "{ domain: edge, rules: [{ name: one, key: [], limits: [{ algorithm: concurrency, limit: 1, ttl: 1m }] }] }";
    assert_eq!(rule_of(leases), Strategy::BlanketRule(allow), "not a rate");
    let missing =
        "{ domain: edge, rules: [{ name: one, key: [user], on_missing_key: refuse, limits: [1/second] }] }";
    assert_eq!(rule_of(missing), Strategy::BlanketRule(deny));
    let two = "{ domain: edge, rules: [{ name: one, key: [], limits: [100/second, 60/minute] }] }";
    let Strategy::TokenBucket(slowest) = rule_of(two) else { panic!("no bucket") };
    assert_eq!((slowest.tokens_per_fill, slowest.fill_interval.unwrap().seconds), (Some(60), 60));
}

#[test]
fn a_domain_without_rules_ends_the_stream_and_so_does_another_lender() {
    let world = World::new("100/second");
    let mut stream = world.stream();
    let unknown = RateLimitQuotaUsageReports { domain: "elsewhere".to_owned(), ..report("a", 0, 1, 0) };
    assert_eq!(stream.take(unknown).unwrap_err().code(), tonic::Code::NotFound);
    let mut stream = world.stream();
    stream.take(report("a", 0, 1, 0)).unwrap();
    let other = RateLimitQuotaUsageReports { domain: "other".to_owned(), ..report("a", 0, 1, 0) };
    assert_eq!(stream.take(other).unwrap_err().code(), tonic::Code::InvalidArgument);
    world.quotas.stop_lending();
    assert_eq!(stream.take(report("a", 5, 1, 0)).unwrap_err().code(), tonic::Code::Unavailable);
}

#[test]
fn a_bucket_that_no_answer_can_name_is_skipped_and_the_others_are_answered() {
    let world = World::new("100/second");
    world.settle();
    let mut stream = world.stream();
    let mut reports = report("good", 0, 1, 0);
    let mut bad = reports.bucket_quota_usages[0].clone();
    bad.bucket_id = Some(BucketId { bucket: [("tenant".to_owned(), vec![0xff])].into() });
    reports.bucket_quota_usages.insert(0, bad);
    stream.take(reports).unwrap();
    let answer = stream.answer().unwrap();
    assert_eq!(answer.bucket_action.len(), 1);
    assert_eq!(answer.bucket_action[0].bucket_id, Some(bucket("good")));
    assert_eq!(world.quotas.counts().refused_buckets, 1);
}

#[test]
fn streams_and_shares_beyond_their_bounds_are_refused() {
    let world = World::new("1000000/second");
    world.settle();
    let mut stream = world.stream();
    let names: Vec<String> = (0..=MAX_SHARES).map(|number| number.to_string()).collect();
    let shares: Vec<u64> = names.iter().map(|name| share(&mut stream, report(name, 0, 1, 0))).collect();
    // The first has all until its next report, and one more has no share even then.
    assert!(shares[0] > 0 && shares[1..].iter().all(|share| *share == 0));
    for _ in 0..4 {
        world.clock.advance(Micros::from_secs(5));
        for name in &names {
            let _share = share(&mut stream, report(name, 5, 1, 0));
        }
    }
    let last = names
        .iter()
        .map(|name| share(&mut stream, report(name, 5, 1, 0)))
        .filter(|share| *share == 0)
        .count();
    assert_eq!(last, 1);

    let places: Vec<_> = (1..MAX_STREAMS).map(|_| world.quotas.open_stream().unwrap()).collect();
    assert!(world.quotas.open_stream().is_none());
    assert_eq!(world.quotas.counts().refused_streams, 1);
    drop(places);
    assert!(world.quotas.open_stream().is_some());
}

#[test]
fn an_envoy_whose_stream_broke_keeps_what_it_proves_to_use() {
    let world = World::new("100/second");
    world.settle();
    let mut streams = [world.stream(), world.stream()];
    for stream in &mut streams {
        let _first = share(stream, report("a", 0, 0, 1));
    }
    let [first, _] = rounds(&world, &mut streams, [60, 40], 4);
    let [broken, _other] = streams;
    drop(broken);
    world.clock.advance(Micros::from_secs(5));
    let kept = share(&mut world.stream(), report("a", 5, first * 5, 0));
    assert!(kept <= first && kept * 10 >= first * 6, "{kept} of {first}");
    // A new process proves nothing.
    assert!(share(&mut world.stream(), report("a", 0, 500, 0)) <= 100 - first);
}
