//! Metrics of a remote store.

use std::sync::Arc;

use tidegate_core::Micros;
use tidegate_limiter::{
    BreakerState, LateCall, NodeHealth, Observer as _, Overload, RemoteStats, Source, StoreCall,
};
use tidegate_metrics::{BusyRatio, Format, Metrics, Registry};

use crate::scrape::Scrape;

fn read(registry: &Registry) -> Scrape {
    Scrape::parse(&registry.read().text(Format::OpenMetrics), Format::OpenMetrics)
}

fn told_by(metrics: Metrics) -> Scrape {
    read(&Registry::new(Arc::new(metrics)))
}

#[test]
fn calls_are_timed_by_what_was_asked() {
    let metrics = Metrics::new();
    metrics.store_called(StoreCall::Decide, Micros::new(300));
    metrics.store_called(StoreCall::Decide, Micros::from_millis(11));
    metrics.store_called(StoreCall::Refund, Micros::new(1));
    let scrape = told_by(metrics);
    let within =
        |op: &str, le: &str| scrape.get("tidegate_store_duration_seconds_bucket", &[("op", op), ("le", le)]);
    assert_eq!((within("decide", "0.00025"), within("decide", "0.0005")), (Some(0.0), Some(1.0)));
    assert_eq!((within("decide", "0.01"), within("decide", "0.02")), (Some(1.0), Some(2.0)));
    let count = |op: &str| scrape.get("tidegate_store_duration_seconds_count", &[("op", op)]);
    assert_eq!((count("decide"), count("refund"), count("probe")), (Some(2.0), Some(1.0), None));
}

#[test]
fn a_round_trip_is_counted_and_a_failure_by_its_reason() {
    let metrics = Metrics::new();
    for failure in [None, Some("timeout"), Some("loading"), Some("loading"), Some("client-42")] {
        metrics.server_called(failure);
    }
    let scrape = told_by(metrics);
    assert_eq!(scrape.get("tidegate_store_calls_total", &[]), Some(5.0));
    let failed = |reason| scrape.get("tidegate_store_call_failures_total", &[("reason", reason)]);
    assert_eq!(
        (failed("timeout"), failed("loading"), failed("read_only")),
        (Some(1.0), Some(2.0), Some(0.0))
    );
    // A store's error text never becomes a label.
    assert_eq!((failed("other"), failed("client-42")), (Some(1.0), None));
}

#[test]
fn batches_fill_the_bucket_of_their_size() {
    let metrics = Metrics::new();
    [1, 1, 2, 3, 128].into_iter().for_each(|requests| metrics.batch_sent(requests));
    let scrape = told_by(metrics);
    let up_to = |le| scrape.get("tidegate_coalesced_batch_size_bucket", &[("le", le)]).unwrap();
    assert_eq!(
        [up_to("1.0"), up_to("2.0"), up_to("4.0"), up_to("64.0"), up_to("128.0")],
        [2.0, 3.0, 4.0, 4.0, 5.0]
    );
    assert_eq!(scrape.get("tidegate_coalesced_batch_size_sum", &[]), Some(135.0));
}

#[test]
fn what_the_local_layer_spares_and_falls_back_to_is_counted() {
    let metrics = Metrics::new();
    metrics.deny_cache_hit();
    metrics.overloaded(Overload::QueueFull, 3);
    metrics.overloaded(Overload::OwnLag, 2);
    metrics.late_call(LateCall::Answered { given_back: 4 });
    metrics.late_call(LateCall::Lost);
    metrics.fell_back(Source::FallbackLocal);
    metrics.debts_paid(2, 7, None);
    let scrape = told_by(metrics);
    let count = |name: &str| scrape.get(&format!("tidegate_{name}_total"), &[]);
    assert_eq!((count("deny_cache_hits"), count("hits_repaid")), (Some(1.0), Some(7.0)));
    let overloads = |reason| scrape.get("tidegate_overloads_total", &[("reason", reason)]);
    assert_eq!((overloads("queue_full"), overloads("deadline")), (Some(3.0), Some(0.0)));
    assert_eq!(overloads("own_lag"), Some(2.0));
    let late = |end| scrape.get("tidegate_late_store_calls_total", &[("end", end)]);
    assert_eq!((late("answered"), late("lost")), (Some(1.0), Some(1.0)));
    assert_eq!(count("late_requests_given_back"), Some(4.0));
    let fell = |source| scrape.get("tidegate_fallbacks_total", &[("source", source)]);
    assert_eq!((fell("fallback_local"), fell("fallback_open")), (Some(1.0), Some(0.0)));
}

#[test]
fn each_node_says_whether_it_answers_and_what_its_breaker_lets_through() {
    let node = |endpoint: &str, breaker| NodeHealth { endpoint: endpoint.to_owned(), breaker };
    let nodes = move || {
        vec![
            node("a:1", BreakerState::Closed),
            node("b:2", BreakerState::Open),
            node("c:3", BreakerState::HalfOpen),
        ]
    };
    let scrape = read(&Registry::new(Arc::new(Metrics::new())).with(nodes));
    let of = |name: &str| ["a:1", "b:2", "c:3"].map(|node| scrape.get(name, &[("node", node)]).unwrap());
    assert_eq!(of("tidegate_store_up"), [1.0, 0.0, 0.0]);
    assert_eq!(of("tidegate_breaker_state"), [0.0, 2.0, 1.0]);
}

#[test]
fn what_waits_and_what_is_owed_is_told() {
    let stats = || RemoteStats {
        waiting: 5,
        fleet: 3,
        debts: 2,
        unwritten_names: 4,
        names_in_flight: 3,
        hits_forgiven: 9,
        names_lost: 1,
        ..RemoteStats::default()
    };
    let registry = Registry::new(Arc::new(Metrics::new())).with(stats).with(|| BusyRatio(0.25));
    let scrape = read(&registry);
    let gauge = |name: &str| scrape.get(&format!("tidegate_{name}"), &[]);
    assert_eq!(
        (gauge("queue_depth"), gauge("fleet_size"), gauge("store_debts")),
        (Some(5.0), Some(3.0), Some(2.0))
    );
    assert_eq!(gauge("worker_busy_ratio"), Some(0.25));
    assert_eq!(gauge("unwritten_request_names"), Some(4.0));
    assert_eq!(gauge("request_names_in_flight"), Some(3.0));
    let forgotten = |what| scrape.get("tidegate_forgotten_total", &[("what", what)]);
    assert_eq!((forgotten("hits"), forgotten("names")), (Some(9.0), Some(1.0)));
}
