use std::time::Duration;

use tidegate_limiter::{Observer as _, Transport};

use crate::world::World;

const BUCKET: &str = "tidegate_decision_duration_seconds_bucket";

fn world() -> World {
    World::new(&["{ domain: api, rules: [] }"])
}

#[test]
fn durations_fall_into_the_buckets_that_hold_them() {
    let world = world();
    let took_ns = [0_u64, 4_999, 5_000, 5_001, 1_000_000, 1_000_001, 19_999_999, 3_600_000_000_000];
    for ns in took_ns {
        world.metrics.answered(Transport::Grpc, Duration::from_nanos(ns));
    }
    let scrape = world.scrape();
    let bounds: Vec<f64> = scrape.all(BUCKET).map(|(labels, _)| labels["le"].parse().unwrap()).collect();
    assert!(bounds.contains(&0.02), "Envoy gives up after 20 ms: {bounds:?}");
    for (labels, count) in scrape.all(BUCKET) {
        let bound: f64 = labels["le"].parse().unwrap();
        // The oracle: every duration that is not above the bound, one by one.
        let within = took_ns.iter().filter(|ns| **ns as f64 / 1e9 <= bound).count();
        assert_eq!(count, within as f64, "up to {bound} s");
    }
    let sum = scrape.get("tidegate_decision_duration_seconds_sum", &[("transport", "grpc")]).unwrap();
    let exact = took_ns.iter().sum::<u64>() as f64 / 1e9;
    assert!((sum - exact).abs() < 1e-6, "{sum} is not {exact}");
}

#[test]
fn requests_that_were_answered_together_count_one_by_one() {
    let world = world();
    world.metrics.answered_together(Transport::Resp, Duration::from_millis(2), 64);
    let scrape = world.scrape();
    let told = |what: &str| {
        let name = format!("tidegate_decision_duration_seconds_{what}");
        scrape.get(&name, &[("transport", "resp")]).unwrap()
    };
    assert_eq!((told("count"), told("sum")), (64.0, 0.128));
}

#[test]
fn transports_are_told_apart_and_those_that_never_answered_are_not_told_of() {
    let world = world();
    world.metrics.answered(Transport::Http, Duration::from_micros(80));
    world.metrics.answered(Transport::Tower, Duration::from_micros(80));
    world.metrics.answered(Transport::Tower, Duration::from_micros(80));
    let scrape = world.scrape();
    let count =
        |transport: &str| scrape.get("tidegate_decision_duration_seconds_count", &[("transport", transport)]);
    assert_eq!(["http", "tower", "grpc"].map(count), [Some(1.0), Some(2.0), None]);
}

#[test]
fn transports_number_themselves_as_their_list_does() {
    assert!(Transport::ALL.into_iter().enumerate().all(|(place, transport)| transport as usize == place));
}

#[test]
fn a_duration_beyond_all_counting_does_no_harm() {
    let world = world();
    world.metrics.answered(Transport::Grpc, Duration::MAX);
    let count = world.scrape().get("tidegate_decision_duration_seconds_count", &[("transport", "grpc")]);
    assert_eq!(count, Some(1.0));
}
