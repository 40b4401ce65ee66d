//! Rules that keep more of one key than their store does.

use std::sync::Arc;
use std::time::Duration;

use tidegate::memcached::{MemcachedConfig, MemcachedStore};
use tidegate::{Ask, Limiter, LimiterConfig, NoObserver, RemoteConfig, Setup, TokioRuntime, compile};
use tidegate_testkit::Memcached;

const LEASES: &str = "{ domain: d, rules: [{ name: uploads, key: [user], limits: [\
    { name: a, algorithm: concurrency, limit: 20000, ttl: 30s }, { name: b, algorithm: concurrency, limit: 20000, ttl: 30s }] }] }";

fn store(url: &str) -> Arc<MemcachedStore> {
    let config = MemcachedConfig::default().timeout(Duration::from_secs(30));
    Arc::new(MemcachedStore::new(&url.parse().unwrap(), &config).unwrap())
}

#[tokio::test]
async fn limits_that_each_fit_and_together_do_not_are_refused_at_the_start_and_later() {
    let on = |rules: &str| {
        Setup::new(rules).on_shared_store(store("memcached://127.0.0.1:1"), Duration::from_millis(10))
    };
    let said = on(LEASES).unwrap_err().to_string();
    let expected = "rule `uploads` cannot be exact: Memcached cannot keep 20000 leases at once and 20000 leases at once of one key";
    assert!(said.contains(expected), "{said}");
    let limiter =
        on("{ domain: d, rules: [{ name: r, key: [user], limits: [7/minute], on_store_failure: open }] }")
            .unwrap();
    let said = limiter.replace_rules(LEASES).unwrap_err().to_string();
    assert!(said.contains(expected), "{said}");
    assert_eq!(limiter.snapshot().rules().rules().next().unwrap().name(), "r", "the old ones stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_that_has_too_much_opens_no_breaker() {
    let server = Memcached::start();
    // Not checked on purpose: keys of different rules may happen to be the same.
    let logs: Vec<String> = (0..12)
        .map(|number| format!("{{ name: l{number}, algorithm: sliding_log, limit: 100000, window: 1d }}"))
        .collect();
    let rules = format!(
        "{{ domain: d, rules: [{{ name: logs, match: {{ what: log }}, key: [user], on_store_failure: closed, limits: [{}] }}, \
         {{ name: plain, match: {{ what: plain }}, key: [user], on_store_failure: closed, limits: [1000/h] }}] }}",
        logs.join(", ")
    );
    let mut remote = RemoteConfig::new(Arc::new(TokioRuntime));
    remote.timeout = tidegate::Micros::from_secs(30);
    let config = LimiterConfig::new(
        compile(&*rules).unwrap(),
        store(&Memcached::url_of(&[&server])),
        Arc::new(NoObserver),
    );
    let limiter = Limiter::new(config.over_a_network(remote));
    let ask = async |what: &str, cost: u64| {
        let asked =
            Ask::new("d").with("what", what).with("user", "ann").cost(cost).check(&limiter).await.unwrap();
        (asked.allowed, asked.source.name())
    };
    for _ in 0..5 {
        assert_eq!(ask("log", 100_000).await, (false, "fallback_closed"));
        assert_eq!(ask("plain", 1).await, (true, "store"), "others of that server are decided by it");
    }
}
