//! No node's clock decides anything: limiters that disagree about the time by hours agree about every request.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Micros, Timestamp};
use tidegate_limiter::{
    CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver, RemoteConfig, Source, TokioRuntime,
};
use tidegate_rules::{Descriptor, Format, RuleSet};
use tidegate_store::{Clock, ManualClock, SystemClock};
use tidegate_store_redis::{RedisConfig, RedisStore};
use tidegate_testkit::Redis;

const LIMITS: [&str; 6] = [
    "{ algorithm: token_bucket, rate: 1/h, burst: 20 }",
    "{ algorithm: fixed_window, limit: 20, window: 7d }",
    "{ algorithm: fixed_window, limit: 20, window: month, tz: Europe/Paris }",
    "{ algorithm: sliding_window, limit: 20, window: 7d }",
    "{ algorithm: sliding_log, limit: 20, window: 7d }",
    "{ algorithm: leaky_bucket, rate: 1/h, max_delay: 20h }",
];

/// A limiter on `redis` that believes it is `ahead` of the real time, or behind it.
fn limiter(redis: &Redis, limit: &str, clock: Arc<dyn Clock>) -> Limiter {
    let rules = format!("{{ domain: api, rules: [{{ name: a, key: [user], limits: [{limit}] }}] }}");
    let rules =
        RuleSet::compile(&[tidegate_rules::Source::new("rules.yaml", rules)], Format::Native).unwrap();
    let patient = Duration::from_secs(5);
    let config = RedisConfig::default().timeout(patient).node_clock(clock.clone());
    let store = RedisStore::new(&redis.url().parse().unwrap(), &config).unwrap();
    let mut config = LimiterConfig::new(rules, Arc::new(store), Arc::new(NoObserver));
    config.clock = clock;
    let mut remote = RemoteConfig::new(Arc::new(TokioRuntime));
    remote.timeout = Micros::from_secs(5);
    Limiter::new(config.over_a_network(remote))
}

/// Whether each of 30 requests passes and what it leaves, asked of the limiters in turn.
async fn decisions(limiters: &[&Limiter], user: &str) -> Vec<(bool, u64)> {
    let entries: [(&str, &[u8]); 1] = [("user", user.as_bytes())];
    let mut decisions = Vec::new();
    for turn in 0..30 {
        let descriptor = Descriptor { entries: &entries };
        let asks = [DescriptorAsk::of(descriptor)];
        let request = CheckRequest::new("api", &asks);
        let decision = limiters[turn % limiters.len()].check(&request).await.unwrap();
        assert!(matches!(decision.source, Source::Store | Source::DenyCache), "{:?}", decision.source);
        let report = decision.governing().unwrap().limit().unwrap();
        decisions.push((decision.allowed, report.outcome.remaining));
    }
    decisions
}

#[test]
fn limiters_whose_clocks_differ_by_hours_give_the_same_decisions() {
    let redis = Redis::start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let hours = |hours: i64| -> Arc<dyn Clock> {
        let now = SystemClock::new().now().as_micros();
        Arc::new(ManualClock::at(Timestamp::from_micros(now.saturating_add_signed(hours * 3_600_000_000))))
    };
    for limit in LIMITS {
        let right = limiter(&redis, limit, Arc::new(SystemClock::new()));
        let (ahead, behind) = (limiter(&redis, limit, hours(1)), limiter(&redis, limit, hours(-1)));
        let lost = limiter(&redis, limit, hours(-24 * 365));
        // The two sliding algorithms take over each other's counters, so each limit has users of its own.
        let (expected, given) = runtime.block_on(async {
            let expected = decisions(&[&right], &format!("one clock, {limit}")).await;
            let many = decisions(&[&ahead, &right, &behind, &lost], &format!("many clocks, {limit}")).await;
            (expected, many)
        });
        assert_eq!(given, expected, "{limit}");
        let admitted = given.iter().filter(|(allowed, _)| *allowed).count();
        assert!((20..=21).contains(&admitted), "{limit}: {admitted} of 30 passed");
    }
}
