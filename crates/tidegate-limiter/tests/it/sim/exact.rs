//! Without faults: exactly the limit, however many nodes ask, and no more calls than round trips.

use tidegate_core::Micros;
use tidegate_limiter::{QueueBounds, Source};

use super::{Fleet, Setting};

const THOUSAND: &str =
    "- { name: a, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1h }] }";

fn flood(rules: &str, seed: u64, skew: Micros) -> (usize, Fleet) {
    let fleet = Fleet::new(rules, Setting { seed, nodes: 3, latency: (50, 900), skew, ..Setting::default() });
    // Sixty-four at a time through each node, each asking again as soon as it is answered.
    let clients: Vec<_> = fleet
        .nodes
        .iter()
        .flat_map(|node| (0..64).map(move |_| node))
        .map(|node| {
            let node = node.clone();
            fleet.executor.start(async move {
                let mut admitted = 0;
                for _ in 0..12 {
                    let checked = node.checking(vec![("user".into(), "one".into())], 1).await;
                    assert!(matches!(checked.decision.source, Source::Store | Source::DenyCache));
                    admitted += usize::from(checked.decision.allowed);
                }
                admitted
            })
        })
        .collect();
    let admitted = clients.into_iter().map(|client| client.wait()).sum();
    (admitted, fleet)
}

#[test]
fn three_nodes_with_sixty_four_requests_in_flight_admit_exactly_the_limit() {
    for seed in 0..40 {
        let (admitted, fleet) = flood(THOUSAND, seed, Micros::ZERO);
        assert_eq!(admitted, 1_000, "seed {seed}");
        fleet.nodes.iter().for_each(|node| node.assert_idle());
    }
}

#[test]
fn so_they_do_under_two_rules_and_with_clocks_an_hour_apart() {
    let rules = format!(
        "{THOUSAND}\n- {{ name: b, key: [user], limits: [{{ algorithm: sliding_log, limit: 700, window: 1d }}] }}"
    );
    for seed in 0..10 {
        assert_eq!(flood(&rules, seed, Micros::from_secs(3_600)).0, 700, "seed {seed}");
    }
}

#[test]
fn while_tokens_remain_a_node_makes_one_call_per_round_trip_and_key() {
    let fleet = Fleet::new(THOUSAND, Setting { latency: (500, 500), ..Setting::default() });
    let node = &fleet.nodes[0];
    let mut waiting = vec![];
    // For a hundred round trips of a millisecond, fifteen requests in each.
    for tenth in 0..1_000 {
        if tenth % 10 < 3 {
            waiting.extend((0..5).map(|_| node.start("one")));
        }
        fleet.executor.run_for(Micros::new(100));
    }
    let calls = node.link.calls();
    assert_eq!(waiting.len(), 1_500);
    assert!(waiting.into_iter().filter(|one| one.is_done()).count() >= 1_480);
    assert!(calls <= 101, "{calls} calls in 100 round trips");
    let seen = node.link.seen.lock().unwrap();
    assert_eq!(seen.most_at_once_per_lane, 1);
    // Equal requests are one to the store.
    assert!(seen.decides.iter().all(|(_, requests)| *requests == 1));
}

#[test]
fn requests_that_come_together_travel_together_whatever_their_keys() {
    let fleet = Fleet::new(THOUSAND, Setting { latency: (500, 500), ..Setting::default() });
    let waiting: Vec<_> = (0..500).map(|user| fleet.nodes[0].start(&user.to_string())).collect();
    for one in waiting {
        assert!(one.wait().took <= Micros::from_millis(2), "the next call at the latest");
    }
    assert!(fleet.calls() <= QueueBounds::default().calls + 1, "{} calls", fleet.calls());
}

#[test]
fn at_low_load_nobody_waits_for_a_call_of_others() {
    let fleet = Fleet::new(THOUSAND, Setting { latency: (500, 500), ..Setting::default() });
    let mut waiting = vec![];
    // As many as may be under way, each a moment after the other.
    for user in 0..QueueBounds::default().calls {
        waiting.push(fleet.nodes[0].start(&user.to_string()));
        fleet.executor.run_for(Micros::new(50));
    }
    for one in waiting {
        assert_eq!(one.wait().took, Micros::from_millis(1));
    }
}

#[test]
fn a_batch_of_many_keys_is_one_call() {
    let fleet = Fleet::new(THOUSAND, Setting::default());
    let limiter = fleet.nodes[0].limiter.clone();
    let allowed = fleet.executor.finish(async move {
        let users: Vec<String> = (0..100).map(|user| user.to_string()).collect();
        let entries: Vec<[(&str, &[u8]); 1]> = users.iter().map(|user| [("user", user.as_bytes())]).collect();
        let asks: Vec<_> =
            entries.iter().map(|entries| [tidegate_limiter::DescriptorAsk::one(entries)]).collect();
        let requests: Vec<_> =
            asks.iter().map(|asks| tidegate_limiter::CheckRequest::new("api", asks)).collect();
        limiter.check_batch(&requests).await.into_iter().filter(|one| one.as_ref().unwrap().allowed).count()
    });
    assert_eq!((allowed, fleet.calls()), (100, 1));
}
