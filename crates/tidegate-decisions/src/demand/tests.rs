//! What is known of limits, against counts by hand.

use super::*;

const MINUTE: Option<Micros> = Some(Micros::from_secs(60));

/// Caller `caller` asks under a limit of 100 a minute, has used `used` after that, and was refused or not.
fn note(demand: &Demand, caller: u32, used: u64, refused: bool, now_us: u64) {
    let key = [("user", caller.to_string())];
    demand.note(&Asked {
        domain: "api",
        rule: "r",
        limit: "l",
        algorithm: "fixed_window",
        quota: 100,
        window: MINUTE,
        remaining: 100 - used,
        refused,
        hits: 1,
        n: 1,
        now_us,
        caller,
        key: &key,
    });
}

#[test]
fn the_limit_that_999_of_1000_callers_stay_within_is_suggested_and_who_lies_above_is_named() {
    let demand = Demand::default();
    for caller in 0..3_000 {
        (1..=u64::from(caller % 10)).for_each(|used| note(&demand, caller, used, false, 1));
    }
    for caller in [5_000, 5_001] {
        (1..=50).for_each(|used| note(&demand, caller, used, false, 1));
    }
    let found = demand.of(Some("api"), None).remove(0);
    let suggested = found.suggestion(5).unwrap();
    assert_eq!((suggested.limit, suggested.above), (9, 2));
    assert_eq!(suggested.confidence_percent, 93);
    assert_eq!(suggested.requests_above, 2 * 41);
    let named: Vec<(&str, u64)> =
        suggested.busiest.iter().map(|one| (one.key[0].1.as_str(), one.peak.needed())).collect();
    assert_eq!(named, [("5000", 50), ("5001", 50)]);
    assert_eq!(found.requests(), 300 * 45 + 100);
}

#[test]
fn what_is_refused_in_one_window_is_asked_beyond_the_limit() {
    let demand = Demand::default();
    (1..=100).for_each(|used| note(&demand, 7, used, false, 1));
    (0..30).for_each(|_| note(&demand, 7, 100, true, 2));
    // A minute later it asks for ten more than it may.
    (0..10).for_each(|_| note(&demand, 7, 100, true, 61_000_000));
    let found = demand.of(None, None).remove(0);
    assert_eq!(found.callers[0].needed(), 130);
    assert_eq!(
        (found.requests_above(100), found.requests_above(110), found.requests_above(90)),
        (40, 20, 50)
    );
}

#[test]
fn nodes_that_saw_parts_of_a_caller_know_together_what_one_would() {
    let (one, other, whole) = (Demand::default(), Demand::default(), Demand::default());
    for used in 1..=100u64 {
        // The counter is the store's: both nodes see it grow.
        note(if used % 3 == 0 { &one } else { &other }, 7, used, false, 1);
        note(&whole, 7, used, false, 1);
    }
    for n in 0..20u64 {
        note(if n % 2 == 0 { &one } else { &other }, 7, 100, true, 2);
        note(&whole, 7, 100, true, 2);
    }
    let parts = [&one, &other].map(|node| node.of(None, None).remove(0)).to_vec();
    let joined = join_demands(parts).remove(0);
    let alone = whole.of(None, None).remove(0);
    assert_eq!(joined.callers, alone.callers);
    assert_eq!(joined.requests(), alone.requests());
}

#[test]
fn a_fleet_counts_what_each_limit_would_have_refused_as_exactly_as_one_node() {
    // Callers 1 to 20 ask as often as they are called, by turns of three nodes, under a limit of 5.
    let nodes = [Demand::default(), Demand::default(), Demand::default()];
    let mut turn = 0;
    for caller in 1..=20_u32 {
        for asked in 1..=u64::from(caller) {
            let key = [("user", caller.to_string())];
            turn += 1;
            nodes[turn % 3].note(&Asked {
                domain: "api",
                rule: "r",
                limit: "l",
                algorithm: "fixed_window",
                quota: 5,
                window: MINUTE,
                remaining: 5_u64.saturating_sub(asked),
                refused: asked > 5,
                hits: 1,
                n: 1,
                now_us: 7,
                caller,
                key: &key,
            });
        }
    }
    let parts = nodes.iter().map(|node| node.of(None, None).remove(0)).collect();
    let joined = join_demands(parts).remove(0);
    for limit in 0..=20 {
        let exact: u64 = (1..=20_u64).map(|asked| asked.saturating_sub(limit)).sum();
        let callers = (1..=20_u64).filter(|asked| *asked > limit).count() as u64;
        assert_eq!((joined.requests_above(limit), joined.peaks().above(limit)), (exact, callers), "{limit}");
    }
    assert_eq!(joined.requests(), 210);
}

#[test]
fn refusals_of_one_caller_by_two_nodes_at_different_times_are_not_added() {
    let (one, other) = (Demand::default(), Demand::default());
    (0..10).for_each(|_| note(&one, 7, 100, true, 2));
    (0..30).for_each(|_| note(&other, 7, 100, true, 61_000_000));
    let parts = [&one, &other].map(|node| node.of(None, None).remove(0)).to_vec();
    assert_eq!(join_demands(parts).remove(0).callers[0].needed(), 130);
}

#[test]
fn more_callers_and_windows_than_are_known_apart_lose_no_request() {
    let demand = Demand::default();
    let minutes = 2 * MOST_RUNS as u64;
    (0..minutes).for_each(|minute| (0..3).for_each(|_| note(&demand, 7, 100, true, minute * 1_000_000)));
    (0..minutes).for_each(|minute| note(&demand, 8, 100, true, minute * 60_000_000));
    let mut found = demand.of(None, None).remove(0);
    assert!(found.runs.len() <= 2 * MOST_RUNS);
    let all = found.requests();
    assert_eq!(all, 4 * minutes);
    found.cut(8_000);
    assert_eq!((found.requests(), found.requests_above(100)), (all, all));
    assert!(found.bytes() <= 8_000);
}

#[test]
fn more_callers_than_the_table_holds_are_sampled_alike_everywhere_and_still_estimate_all() {
    let hash = |n: u64| u32::try_from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap();
    let [one, other] = [0u64, 1].map(|node| {
        let demand = Demand::default();
        // Half of the callers are the same on both.
        (0..60_000u64).for_each(|n| note(&demand, hash(n + node * 30_000), 1 + n % 7, false, 1));
        demand
    });
    assert!(one.callers() <= MOST_CALLERS);
    let parts = [&one, &other].map(|node| node.of(None, None).remove(0)).to_vec();
    let mut joined = join_demands(parts).remove(0);
    let estimate = joined.peaks().total();
    assert!((80_000..100_000).contains(&estimate), "{estimate} of 90000");
    joined.cut(10_000);
    assert!(joined.bytes() <= 10_000 && !joined.callers.is_empty());
    let after = joined.peaks().total();
    assert!((50_000..140_000).contains(&after), "{after} of 90000");
}

#[test]
fn what_is_older_than_two_days_is_forgotten_and_a_changed_window_begins_anew() {
    let demand = Demand::default();
    let day = 24 * 3_600_000_000;
    note(&demand, 1, 90, false, 1);
    note(&demand, 1, 10, false, day + 2);
    let peak = |demand: &Demand| demand.of(None, None)[0].callers[0].needed();
    assert_eq!(peak(&demand), 90, "yesterday counts");
    note(&demand, 1, 20, false, 2 * day + 4);
    assert_eq!(peak(&demand), 20);
}

#[test]
fn confidence_grows_with_the_number_of_callers() {
    assert_eq!([0, 10, 693, 2_995, 100_000].map(confidence_percent), [0, 0, 50, 95, 100]);
}
