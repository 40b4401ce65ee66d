//! What shedding does for a service, over minutes of virtual time, at its real settings.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_limiter::{
    Capacity, CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver, Observer, Patience, Permit,
    Shedder, ShedderConfig,
};
use tidegate_rules::{Format, Priority, RuleSet, Source};
use tidegate_store::{MemoryConfig, MemoryStore, SystemClock};

use crate::overload::{Overload, Second};
use crate::world::at_once;

const CALM: Range<usize> = 5..60;
const BUSY: Range<usize> = 60..300;
const AFTER: Range<usize> = 300..600;

/// Of one class, the part that was answered in time.
fn goodput(seconds: &[Second], class: usize) -> f64 {
    let sum = |count: fn(&Second) -> [u32; 4]| -> f64 {
        seconds.iter().map(|second| f64::from(count(second)[class])).sum()
    };
    sum(|second| second.good) / sum(|second| second.sent)
}

fn shed(seconds: &[Second], class: usize) -> u32 {
    seconds.iter().map(|second| second.shed[class]).sum()
}

#[test]
fn in_a_fourfold_overload_p0_gets_what_it_got_before_and_who_matters_less_gets_less() {
    for seed in 0..3 {
        let seconds = Overload::fourfold().run(seed);
        let (calm, busy) = (&seconds[CALM], &seconds[BUSY]);
        assert!(goodput(busy, 0) >= 0.95 * goodput(calm, 0), "{}", goodput(busy, 0));
        assert_eq!(shed(&seconds, 0), 0);
        let parts = [0, 1, 2, 3].map(|class| goodput(busy, class));
        assert!(parts.is_sorted_by(|more, less| more > less), "{parts:?}");
        // What is shed for is used: P1 alone could fill the workers, and nearly does.
        let served: u32 = busy.iter().map(|second| second.good.iter().sum::<u32>()).sum();
        assert!(f64::from(served) > 0.7 * 400.0 * 240.0, "{served}");
    }
}

#[test]
fn without_shedding_the_same_overload_drowns_p0_too() {
    let seconds = Overload { believed: 1_000_000, ..Overload::fourfold() }.run(1);
    assert!(goodput(&seconds[CALM], 0) > 0.99 && goodput(&seconds[BUSY], 0) < 0.05);
    // And long after, while the workers do what nobody waits for any more.
    assert!(goodput(&seconds[AFTER], 0) < 0.05);
}

#[test]
fn once_the_overload_is_over_the_level_falls_without_a_jump_and_all_come_back_the_critical_first() {
    let seconds = Overload::fourfold().run(7);
    let levels: Vec<f64> = seconds[AFTER].iter().map(|second| second.level).collect();
    assert!(levels[0] > 0.3, "{}", levels[0]);
    // Arrivals are random, so a single second may be busy; ten are not.
    let by_tens: Vec<f64> = levels[2..].iter().copied().step_by(10).collect();
    for pair in by_tens.windows(2) {
        assert!(pair[1] <= pair[0] + 0.001 && pair[0] - pair[1] <= 10.0 / 120.0, "{pair:?}");
    }
    // The level sheds P2 no longer while it still sheds P3.
    let last = |class| seconds[AFTER].iter().rposition(|second| second.shed[class] > second.sent[class] / 5);
    assert!(last(1) <= last(2) && last(2) < last(3), "{:?}", [last(1), last(2), last(3)]);
    let settled = &seconds[AFTER][240..];
    assert!(settled.iter().all(|second| second.level < 0.01));
}

fn limiter(rules: &str) -> Limiter {
    observed(rules, Arc::new(NoObserver))
}

fn observed(rules: &str, observer: Arc<dyn Observer>) -> Limiter {
    let source = Source::new("api.yaml", format!("domain: api\nrules: {rules}"));
    let rules = RuleSet::compile(&[source], Format::Native).unwrap_or_else(|error| panic!("{error}"));
    let store = MemoryStore::new(MemoryConfig::new().max_cells(1_000).max_log_bytes(1 << 20));
    Limiter::new(LimiterConfig::new(rules, Arc::new(store), observer))
}

/// Lets a request in, or the priority by which it is shed; nothing else of it matters.
fn admit(limiter: &Limiter, shedder: &Arc<Shedder>, entries: &[(&str, &[u8])]) -> Result<Permit, Priority> {
    let asks = [DescriptorAsk::one(entries)];
    let request = CheckRequest::new("api", &asks).patience(Patience::MustGoNow);
    let admitted = at_once(limiter.admit_and_check(&request, shedder));
    admitted.map(|(permit, _)| permit).map_err(|shed| shed.priority)
}

/// A shedder of ten workers, all of them busy: whoever is not P0 is shed.
fn busy_shedder() -> (Arc<Shedder>, Vec<Permit>) {
    let config = ShedderConfig::new(Capacity::Workers(10.try_into().unwrap()));
    let shedder = Shedder::new(config, Arc::new(SystemClock::new()));
    let busy = (0..10).map(|_| shedder.enter(Priority::P0).unwrap()).collect();
    (shedder, busy)
}

#[test]
fn the_most_critical_of_the_rules_that_match_decides_how_critical_a_request_is() {
    let limiter = limiter(
        "[{ name: all, limits: unlimited, priority: P2 },
          { name: pay, match: { path: '/pay*' }, limits: unlimited, priority: P0 },
          { name: silent, limits: unlimited },
          { name: user, key: [user], limits: [9/minute], priority: P1 },
          { name: watched, match: { path: /new }, limits: [9/minute], shadow: true, priority: P1 }]",
    );
    let (shedder, _busy) = busy_shedder();
    let shed = |entries: &[(&str, &[u8])]| admit(&limiter, &shedder, entries).err();
    assert_eq!(shed(&[("path", b"/x")]), Some(Priority::P2));
    assert_eq!(shed(&[("path", b"/pay"), ("user", b"1")]), None);
    assert_eq!(shed(&[("path", b"/x"), ("user", b"1")]), Some(Priority::P1));
    assert_eq!(shed(&[("path", b"/new")]), Some(Priority::P1));
}

#[test]
fn where_no_rule_says_how_critical_a_request_is_its_class_does() {
    let limiter = limiter("[{ name: all, limits: unlimited }]");
    let config = ShedderConfig::new(Capacity::Workers(10.try_into().unwrap()));
    let shedder = Shedder::new(config, Arc::new(SystemClock::new()));
    let admit = |entries: &[(&str, &[u8])]| admit(&limiter, &shedder, entries);
    let _busy: Vec<_> = (0..8).map(|_| admit(&[("method", b"POST")]).unwrap()).collect();
    assert_eq!(admit(&[("method", b"GET")]).unwrap_err(), Priority::P2);
    assert_eq!(admit(&[("method", b"GET"), ("mode", b"test")]).unwrap_err(), Priority::P3);
    assert!(admit(&[("method", b"POST")]).is_ok());
}

/// Counts how often a domain was found to have no rules, which is found by matching them.
#[derive(Default)]
struct Unmatched(AtomicUsize);

impl Observer for Unmatched {
    fn unknown_domain(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn rules_are_matched_once_for_shedding_and_for_deciding() {
    let unmatched = Arc::new(Unmatched::default());
    let limiter = observed("[{ name: all, limits: unlimited }]", unmatched.clone());
    let shedder = Shedder::new(
        ShedderConfig::new(Capacity::Workers(10.try_into().unwrap())),
        Arc::new(SystemClock::new()),
    );
    let asks = [DescriptorAsk::one(&[("user", b"1")])];
    let admitted = at_once(limiter.admit_and_check(&CheckRequest::new("shop", &asks), &shedder));
    assert!(admitted.is_ok_and(|(_, decided)| decided.is_err()), "it is let in, and has no rules");
    assert_eq!(unmatched.0.load(Ordering::Relaxed), 1);
}

#[test]
fn what_is_shed_spends_nothing() {
    let limiter = limiter("[{ name: user, key: [user], limits: [1/minute], priority: P1 }]");
    let (shedder, busy) = busy_shedder();
    let user: [(&str, &[u8]); 1] = [("user", b"1")];
    assert_eq!(admit(&limiter, &shedder, &user).err(), Some(Priority::P1));
    drop(busy);
    let asks = [DescriptorAsk::one(&user)];
    let request = CheckRequest::new("api", &asks).patience(Patience::MustGoNow);
    assert!(at_once(limiter.check(&request)).unwrap().allowed);
}

/// A reservation for critical traffic is two rules: one that holds everybody else back, and one that lets it by.
#[tokio::test]
async fn critical_traffic_passes_a_shared_limit_that_is_full_of_others() {
    let limiter = limiter(
        "[{ name: fleet, key: [], limits: [{ algorithm: concurrency, limit: 8, ttl: 60s }] },
          { name: critical, match: { path: '/pay*' }, limits: unlimited, priority: P0, overrides: [fleet] }]",
    );
    let ask = async |path: &[u8]| {
        let entries = [("path", path)];
        let asks = [DescriptorAsk::one(&entries)];
        let request = CheckRequest::new("api", &asks).patience(Patience::MustGoNow);
        limiter.check(&request).await.unwrap()
    };
    let mut leases = Vec::new();
    for _ in 0..8 {
        leases.extend(ask(b"/notes").await.lease);
    }
    assert_eq!(leases.len(), 8);
    assert!(!ask(b"/notes").await.allowed);
    // As often as it likes, and it takes no place from the others.
    for _ in 0..20 {
        let decision = ask(b"/pay").await;
        assert!(decision.allowed && decision.lease.is_none());
    }
    limiter.release(&leases[0]).await.unwrap();
    assert!(ask(b"/notes").await.allowed);
}
