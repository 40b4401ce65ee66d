//! Demand on limits, compared with counts by hand.

use super::*;

const MINUTE: Option<Micros> = Some(Micros::from_secs(60));

/// Caller `caller` makes a request under a limit of 100 per minute, has used `used` after it, and was refused or not.
fn note(demand: &Demand, caller: u32, used: u64, refused: bool, now_us: u64) {
    note_of("r", demand, caller, used, refused, now_us);
}

fn note_of(rule: &str, demand: &Demand, caller: u32, used: u64, refused: bool, now_us: u64) {
    let key = [("user", caller.to_string())];
    demand.note(&Asked {
        domain: "api",
        rule,
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

/// A caller's hash with well-mixed low bits.
fn hash(n: u64) -> u32 {
    u32::try_from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).unwrap()
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
    // A minute later it requests ten more than it may.
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
    // Caller n makes n requests, for n from 1 to 20, spread over three nodes, under a limit of 5.
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

#[test]
fn six_thousand_callers_of_one_limit_are_told_apart_among_forty_limits_and_in_few_bytes() {
    let demand = Demand::default();
    for limit in 0..40_u64 {
        let callers = if limit == 0 { 6_000 } else { 20 };
        (0..callers).for_each(|n| note_of(&format!("r{limit:02}"), &demand, hash(n), 1 + n % 9, false, 1));
    }
    let mut found = demand.of(None, None).remove(0);
    assert_eq!((found.callers.len(), found.sampled_one_in()), (6_000, 1));
    let written = serde_json::to_string(&found).unwrap();
    assert!(written.len() <= found.bytes() && found.bytes() < 160_000, "{} {}", written.len(), found.bytes());
    let read: LimitDemand = serde_json::from_str(&written).unwrap();
    assert_eq!(read, found);
    found.cut(160_000);
    assert_eq!(found, read, "what fits is left as it is");
}

#[test]
fn what_releases_before_wrote_with_names_is_read_as_what_is_written_now() {
    let demand = Demand::default();
    (0..3).for_each(|_| note(&demand, 7, 100, true, 2));
    let found = demand.of(None, None).remove(0);
    let mut named = serde_json::to_value(&found).unwrap();
    assert_eq!(named["callers"], serde_json::json!([[7, 100, 3]]));
    named["callers"] = serde_json::to_value(found.callers[0]).map(|peak| vec![peak].into()).unwrap();
    named["runs"] = serde_json::to_value(found.runs[0]).map(|run| vec![run].into()).unwrap();
    assert_eq!(named["runs"][0]["requests"], 3);
    assert_eq!(serde_json::from_value::<LimitDemand>(named).unwrap(), found);
}

#[test]
fn where_all_limits_have_too_many_callers_the_largest_are_sampled_and_the_small_are_not() {
    let demand = Demand::default();
    // 30 limits of 6,000 callers by turns, and a small one.
    for n in 0..6_000 {
        (0..30).for_each(|limit| note_of(&format!("r{limit:02}"), &demand, hash(n), 1, false, 1));
        if n % 60 == 0 {
            note_of("small", &demand, hash(n), 1, false, 1);
        }
    }
    assert!(
        (MOST_CALLERS_OF_ALL / 2..=MOST_CALLERS_OF_ALL).contains(&demand.callers()),
        "{}",
        demand.callers()
    );
    for found in demand.of(None, None) {
        let (callers, one_in) = (found.peaks().total(), found.sampled_one_in());
        let expected = if found.rule == "small" { (100..=100, 1..=1) } else { (5_400..=6_600, 1..=2) };
        assert!(expected.0.contains(&callers) && expected.1.contains(&one_in), "{}: {callers}", found.rule);
    }
}

#[test]
fn however_few_bytes_there_are_a_caller_is_left_and_no_request_is_lost() {
    let demand = Demand::default();
    for n in 0..3_000 {
        note(&demand, hash(n), 1 + n % 100, n % 7 == 0, n * 1_000_000);
    }
    let whole = demand.of(None, None).remove(0);
    for most_bytes in [0, 500, 1_000, 2_000, 5_000, 20_000] {
        let mut cut = whole.clone();
        cut.cut(most_bytes);
        assert_eq!(cut.requests(), whole.requests(), "{most_bytes}");
        assert_eq!(cut.requests_above(100), whole.requests_above(100), "{most_bytes}");
        assert!(!cut.callers.is_empty() && cut.suggestion(5).is_some(), "{most_bytes}");
        assert!(most_bytes < 1_000 || cut.bytes() <= most_bytes, "{most_bytes}: {}", cut.bytes());
        if most_bytes >= 2_000 {
            let callers = cut.peaks().total();
            assert!((1_500..6_000).contains(&callers), "{most_bytes}: {callers}");
        }
    }
}

#[test]
fn a_part_without_callers_takes_none_away_from_the_others() {
    let demand = Demand::default();
    (0..20).for_each(|n| note(&demand, hash(n), 3, false, 1));
    let whole = demand.of(None, None).remove(0);
    let empty = LimitDemand { callers: Vec::new(), halvings: 16, ..whole.clone() };
    let joined = join_demands(vec![whole.clone(), empty]).remove(0);
    assert_eq!((joined.sampled_one_in(), joined.callers), (1, whole.callers));
}
