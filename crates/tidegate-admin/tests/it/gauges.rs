use std::sync::Arc;

use tidegate_limiter::{Observer, ShedStats, Utilization};
use tidegate_metrics::{Format, ListenerConnections, Metrics, Registry, StoreUsage};
use tidegate_rules::Priority;
use tidegate_store::MemoryStats;

use crate::scrape::Scrape;
use crate::world::World;

fn read(registry: &Registry) -> Scrape {
    Scrape::parse(&registry.read().text(Format::OpenMetrics), Format::OpenMetrics)
}

#[test]
fn what_the_store_holds_is_read_anew_at_each_scrape() {
    let cells = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = cells.clone();
    let registry = Registry::new(Arc::new(Metrics::new())).with(move || {
        let mut stats = MemoryStats::default();
        stats.cells = counted.fetch_add(10, std::sync::atomic::Ordering::SeqCst);
        (stats.dropped_idle, stats.evicted_in_use, stats.evicted_spent) = (1, 2, 3);
        (stats.records, stats.refused_records) = (4, 5);
        stats
    });
    assert_eq!(read(&registry).get("tidegate_cells", &[]), Some(0.0));
    let scrape = read(&registry);
    assert_eq!(scrape.get("tidegate_cells", &[]), Some(10.0));
    let evicted = |reason: &str| scrape.get("tidegate_cell_evictions_total", &[("reason", reason)]);
    assert_eq!(["idle", "in_use", "spent"].map(evicted), [Some(1.0), Some(2.0), Some(3.0)]);
    assert_eq!(scrape.get("tidegate_store_records", &[]), Some(4.0));
    assert_eq!(scrape.get("tidegate_store_records_refused_total", &[]), Some(5.0));
}

#[test]
fn connections_are_told_by_listener() {
    let listeners = || {
        vec![
            ListenerConnections { listener: "http", open: 3, accepted: 10, refused: 1, evicted: 2 },
            ListenerConnections { listener: "grpc", open: 4, accepted: 20, refused: 0, evicted: 0 },
        ]
    };
    let scrape = read(&Registry::new(Arc::new(Metrics::new())).with(listeners));
    let told =
        |name: &str| ["http", "grpc"].map(|listener| scrape.get(name, &[("listener", listener)]).unwrap());
    assert_eq!(told("tidegate_connections"), [3.0, 4.0]);
    assert_eq!(told("tidegate_connections_accepted_total"), [10.0, 20.0]);
    assert_eq!(told("tidegate_connections_refused_total"), [1.0, 0.0]);
}

#[test]
fn shedding_tells_who_is_shed_and_why() {
    let metrics = Arc::new(Metrics::new());
    for _ in 0..3 {
        metrics.shed(Priority::P3);
    }
    metrics.shed(Priority::P1);
    let stats = |workers| {
        let mut stats = ShedStats::default();
        (stats.in_use, stats.workers, stats.level) = (15, workers, 0.25);
        stats.utilization = Utilization::of(15, 20.try_into().unwrap());
        stats
    };
    let scrape = read(&Registry::new(metrics).with(move || stats(Some(20))));
    let shed = ["P0", "P1", "P2", "P3"]
        .map(|priority| scrape.get("tidegate_shed_total", &[("priority", priority)]).unwrap());
    assert_eq!(shed, [0.0, 1.0, 0.0, 3.0]);
    let told = ["workers_in_use", "workers", "worker_utilization", "shed_level"]
        .map(|name| scrape.get(&format!("tidegate_{name}"), &[]).unwrap());
    assert_eq!(told, [15.0, 20.0, 0.75, 0.25]);
    // The number is absent if it is unknown.
    let scrape = read(&Registry::new(Arc::new(Metrics::new())).with(move || stats(None)));
    assert_eq!(scrape.get("tidegate_workers", &[]), None);
}

#[test]
fn reloads_say_which_rules_are_in_use_and_whether_the_last_was_taken() {
    let world = World::new(&["{ domain: api, rules: [{ name: a, limits: [9/hour] }] }"]);
    let config = || {
        let scrape = world.scrape();
        let gauge = |name: &str| scrape.get(&format!("tidegate_config_{name}"), &[]).unwrap();
        let reloads = |result| scrape.get("tidegate_config_reloads_total", &[("result", result)]).unwrap();
        let gauges = [gauge("version"), gauge("rules"), gauge("last_reload_success")];
        (gauges, [reloads("success"), reloads("failure")])
    };
    world.metrics.began_with(&world.limiter.snapshot());
    assert_eq!(config(), ([1.0, 1.0, 1.0], [0.0, 0.0]));
    world.metrics.reload_failed();
    assert_eq!(config(), ([1.0, 1.0, 0.0], [0.0, 1.0]));
    world.replace_rules(&["{ domain: api, rules: [] }"]);
    world.metrics.reloaded(&world.limiter.snapshot());
    assert_eq!(config(), ([2.0, 0.0, 1.0], [1.0, 1.0]));
}

#[test]
fn how_much_the_store_holds_is_told_wherever_it_is() {
    let usage =
        || StoreUsage { keys: 7, bytes: 4_096, most_bytes: 8_192, evicted: 3, canaries: Some((1, 5)) };
    let scrape = read(&Registry::new(Arc::new(Metrics::new())).with(usage));
    assert_eq!(scrape.get("tidegate_store_keys", &[]), Some(7.0));
    assert_eq!(scrape.get("tidegate_store_memory_bytes", &[]), Some(4_096.0));
    assert_eq!(scrape.get("tidegate_store_canaries_total", &[]), Some(5.0));
    assert_eq!(scrape.get("tidegate_store_canaries_lost_total", &[]), Some(1.0));
}

#[test]
fn what_nobody_feeds_is_not_told() {
    let scrape = World::new(&["{ domain: api, rules: [] }"]).scrape();
    let names = scrape.names();
    assert!(!names.contains("tidegate_cells") && !names.contains("tidegate_connections"), "{names:?}");
}

#[test]
fn the_process_tells_its_version_its_start_and_what_it_uses() {
    let scrape = World::new(&["{ domain: api, rules: [] }"]).scrape();
    assert_eq!(scrape.get("tidegate_build_info", &[("version", env!("CARGO_PKG_VERSION"))]), Some(1.0));
    let started = scrape.get("process_start_time_seconds", &[]).unwrap();
    assert!(started > 1_700_000_000.0, "began at {started}");
    if cfg!(target_os = "linux") {
        // Counted in hundredths of a second: asked until it has used one.
        let cpu =
            || World::new(&["{ domain: api, rules: [] }"]).scrape().get("process_cpu_seconds_total", &[]);
        assert!((0..100_000).any(|_| cpu().unwrap() > 0.0));
        let resident = scrape.get("process_resident_memory_bytes", &[]).unwrap();
        assert!((1e6..1e12).contains(&resident), "{resident} bytes");
    }
}
