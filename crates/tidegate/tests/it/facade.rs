//! Everything that the facade exports can be used, and implemented, through it alone.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate::observe::{
    BreakerState, CompiledRule, Decided, Match, Observer, Overload, RuleResult, RuleWatcher, StoreCall,
};
use tidegate::redis_config::UrlError;
use tidegate::rules::{self, Rules, TokenBucket};
use tidegate::store::{
    BatchOutcomes, CellCharge, CellKey, CellLimit, CellVerdict, LeaseRef, Outcome, Refund, Reply, Request,
    Stamped, Store,
};
use tidegate::{
    Ask, LimiterConfig, Micros, NoObserver, OnRedisError, RemoteConfig, Runtime, Setup, Source, Task,
};

/// A store of one's own, which admits everything.
struct Generous;

impl Store for Generous {
    fn decide<'a>(&'a self, batch: &'a [Request<'a>]) -> Reply<'a, BatchOutcomes> {
        let yes = Outcome {
            verdict: CellVerdict::Admitted { delay: Micros::ZERO },
            remaining: 7,
            reset_after: Micros::from_secs(1),
        };
        let spends = batch.iter().flat_map(|request| request.spends);
        Reply::Now(Ok(BatchOutcomes::from_iter(spends.map(|_| yes))))
    }
    fn refund<'a>(&'a self, _: &'a [Refund<'a>]) -> Reply<'a, Stamped<()>> {
        Reply::Now(Ok(Stamped::default()))
    }
    fn charge<'a>(&'a self, _: &'a [CellCharge<'a>]) -> Reply<'a, Stamped<()>> {
        Reply::Now(Ok(Stamped::default()))
    }
    fn reset<'a>(&'a self, _: CellKey<'a>, _: &'a CellLimit) -> Reply<'a, Stamped<()>> {
        Reply::Now(Ok(Stamped::default()))
    }
    fn renew<'a>(&'a self, _: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        Reply::Now(Ok(Stamped { value: true, at: None }))
    }
    fn release<'a>(&'a self, _: LeaseRef<'a>) -> Reply<'a, Stamped<bool>> {
        Reply::Now(Ok(Stamped { value: true, at: None }))
    }
}

/// A runtime of one's own: tokio's, counted.
#[derive(Default)]
struct Counted(AtomicUsize);

impl Runtime for Counted {
    fn spawn(&self, task: Task) {
        self.0.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(task);
    }
    fn sleep(&self, span: Micros) -> Task {
        Box::pin(tokio::time::sleep(span.into()))
    }
}

#[tokio::test]
async fn a_store_and_a_runtime_of_ones_own_need_nothing_but_the_facade() {
    let rules = Rules::new("api").rule(rules::Rule::new("r").limit("1/h")).compile().unwrap();
    let runtime = Arc::new(Counted::default());
    let mut remote = RemoteConfig::new(runtime.clone());
    remote.timeout = Micros::from_secs(30);
    let config = LimiterConfig::new(rules, Arc::new(Generous), Arc::new(NoObserver)).over_a_network(remote);
    let limiter = tidegate::Limiter::new(config);
    for _ in 0..3 {
        let decision = Ask::new("api").check(&limiter).await.unwrap();
        assert_eq!((decision.allowed, decision.remaining()), (true, Some(7)));
    }
    assert!(runtime.0.load(Ordering::Relaxed) > 0);
}

/// Writes down what it hears.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

struct Page(Diary, String);

impl Observer for Diary {
    fn watch_rule(&self, rule: &CompiledRule) -> Arc<dyn RuleWatcher> {
        Arc::new(Page(self.clone(), rule.name().to_owned()))
    }
    fn store_called(&self, _: StoreCall, _: Micros) {}
    fn overloaded(&self, _: Overload, _: usize) {}
    fn breaker_changed(&self, _: &str, _: BreakerState) {}
}

impl RuleWatcher for Page {
    fn decided(&self, result: RuleResult, source: Source) {
        let Page(diary, rule) = self;
        diary.0.lock().unwrap().push(format!("{rule} {} {}", result.name(), source.name()));
    }
}

#[test]
fn an_observer_of_ones_own_hears_of_every_decision() {
    let diary = Diary::default();
    let rules = Rules::new("api").rule(rules::Rule::new("r").limit(TokenBucket::per_hour(1).burst(1)));
    let limiter = Setup::new(&rules).observer(diary.clone()).in_memory().unwrap();
    for _ in 0..2 {
        drop(Ask::new("api").check_blocking(&limiter).unwrap());
    }
    assert_eq!(*diary.0.lock().unwrap(), ["r allowed store", "r refused store"]);
}

/// Counts what it is told of, and nothing else: no method is required.
#[derive(Default)]
struct Refusals(AtomicUsize);

impl Observer for Refusals {
    fn decided(&self, decided: &Decided<'_>) {
        self.0.fetch_add(usize::from(!decided.decision.allowed), Ordering::Relaxed);
    }
}

#[test]
fn an_observer_that_is_shared_can_be_asked_what_it_heard() {
    let refusals = Arc::new(Refusals::default());
    let rules = Rules::new("api").rule(rules::Rule::new("r").limit(TokenBucket::per_hour(1).burst(1)));
    let limiter = Setup::new(&rules).observer(refusals.clone()).in_memory().unwrap();
    for _ in 0..3 {
        drop(Ask::new("api").check_blocking(&limiter).unwrap());
    }
    assert_eq!(refusals.0.load(Ordering::Relaxed), 2);
}

#[test]
fn what_methods_of_the_facade_take_and_give_can_be_named() {
    use tidegate::inspect::{Colour, Diagnostic, Severity};
    let mistakes = tidegate::in_memory("{ domain: d, rules: [{ name: r }] }").unwrap_err();
    let first: &Diagnostic = mistakes.iter().next().unwrap();
    assert_eq!(first.severity, Severity::Error);
    assert_eq!(mistakes.render(Colour::Never), mistakes.to_string());
    let keys = |matched: &Match<'_>| matched.rule.key().to_vec();
    let _: fn(&Match<'_>) -> Vec<String> = keys;
    let _: fn(OnRedisError) -> Option<UrlError> = |error| match error {
        OnRedisError::Url(error) => Some(error),
        _ => None,
    };
}

#[test]
fn the_documentation_names_every_field_of_rules_and_limits() {
    let reference = include_str!("../../../../docs/reference/rules.md");
    let told = include_str!("../../src/rules.md");
    let mut missing = Vec::new();
    for part in [
        "rule",
        "concurrency",
        "fixed_window",
        "leaky_bucket",
        "sliding_log",
        "sliding_window",
        "token_bucket",
    ] {
        let section = reference.split(&format!("### `{part}`")).nth(1).unwrap().split("###").next().unwrap();
        let fields: Vec<&str> =
            section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        assert!(fields.len() > 2, "{part}");
        // Every limit has these.
        let own = fields.into_iter().filter(|field| !["algorithm", "name"].contains(field));
        missing.extend(
            own.filter(|field| {
                !told.contains(&format!("`{field}`")) && !told.contains(&format!("`{field}:"))
            }),
        );
    }
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn a_decision_is_printed_without_the_rules_that_it_did_not_meet() {
    let many =
        (0..1_000).map(|number| rules::Rule::new(format!("r{number}")).matches("path", "/x").limit("1/h"));
    let rules =
        many.fold(Rules::new("api"), Rules::rule).rule(rules::Rule::new("mine").key(["user"]).limit("1/h"));
    let limiter = tidegate::in_memory(rules).unwrap();
    let printed = format!("{:?}", Ask::new("api").with("user", "ann").check_blocking(&limiter).unwrap());
    assert!(
        printed.contains("allowed: true") && printed.len() < 1_000,
        "{} bytes: {printed:.200}",
        printed.len()
    );
}

#[test]
fn rules_in_code_are_swapped_in_while_counters_stay() {
    let limit = |burst| TokenBucket::per_hour(1).burst(burst);
    let rules = |burst| Rules::new("api").rule(rules::Rule::new("r").key(["user"]).limit(limit(burst)));
    let limiter = tidegate::in_memory(rules(2)).unwrap();
    let ann = Ask::new("api").with("user", "ann");
    assert!(ann.check_blocking(&limiter).unwrap().allowed && ann.check_blocking(&limiter).unwrap().allowed);
    limiter.replace_rules(rules(3)).unwrap();
    assert!(ann.check_blocking(&limiter).unwrap().allowed, "one more than before");
    assert!(!ann.check_blocking(&limiter).unwrap().allowed, "and what was spent stays spent");
}

/// Where a subscriber writes to.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn with_tracing_rules_that_may_not_be_meant_so_are_seen() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let fine = "{ domain: api, rules: [{ name: r, match: { path: /items }, limits: [1/h] }] }";
    let odd = "{ domain: api, rules: [{ name: r, match: { path: /Items }, limits: [1/h] }] }";
    let seen = || String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let limiter = Setup::new(fine).observer(tidegate::TracingObserver::new()).in_memory().unwrap();
    assert_eq!(seen(), "");
    limiter.replace_rules(odd).unwrap();
    let text = seen();
    assert!(
        text.contains("WARN") && text.contains("paths are lowercased") && text.contains("write `/items`"),
        "{text}"
    );
    assert!(Setup::new(fine).deny_warnings().in_memory().is_ok());
    let mistakes = Setup::new(odd).deny_warnings().in_memory().unwrap_err();
    assert!(mistakes.to_string().contains("paths are lowercased"), "{mistakes}");
}

#[tokio::test]
async fn with_tracing_a_fallback_is_seen() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let rules = "{ domain: api, rules: [{ name: r, limits: [1000/h], on_store_failure: open }] }";
    let limiter =
        Setup::new(rules).observer(tidegate::TracingObserver::new()).on_redis("redis://127.0.0.1:1").unwrap();
    let seen = async {
        loop {
            assert!(Ask::new("api").check(&limiter).await.unwrap().allowed);
            let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
            if text.contains("requests are decided without the store")
                && text.contains("the store does not answer")
            {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let text = tokio::time::timeout(Duration::from_secs(60), seen).await.expect("it is logged");
    assert!(text.contains("WARN") && text.matches("decided without").count() <= 2, "{text}");
}

#[test]
fn a_mistyped_attribute_is_warned_of_once_per_rule() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let rules = "{ domain: mistyped, rules: [{ name: per-user, key: [user], limits: [1/h] }] }";
    let limiter = tidegate::in_memory(rules).unwrap();
    for _ in 0..3 {
        assert!(Ask::new("mistyped").with("usr", "ann").check_blocking(&limiter).unwrap().allowed);
    }
    let meant = "{ domain: meant, rules: [{ name: per-user, key: [user], limits: [1/h] }] }";
    let limiter = tidegate::in_memory(meant).unwrap();
    assert!(Ask::new("meant").without("user").check_blocking(&limiter).unwrap().allowed);
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("did not count a request without `user`").count(), 1, "{text}");
    assert!(text.contains("WARN") && text.contains("its attributes: `usr`"), "{text}");
}
