//! Regions that come and go, are cut off for long, or get other numbers; clocks that differ; and limits of a few hits.

use tidegate_core::Micros;

use super::regions::{Apart, LIMIT, Regions, WINDOW_US, fixed_window, fixed_window_of, rule};
use super::store::Weather;

const WINDOW_MILLIS: u64 = WINDOW_US / 1_000;

#[test]
fn a_lowered_limit_reaches_a_key_that_never_pauses() {
    // What 5 s may admit once the lower number holds and the burst is gone: the refill of the time and of a second, or the limit.
    for (before, after, most) in [
        (
            "{ algorithm: token_bucket, rate: 1000/s, burst: 16000 }",
            "{ algorithm: token_bucket, rate: 100/s, burst: 1600 }",
            600,
        ),
        (
            "{ algorithm: sliding_window, limit: 3000, window: 10s }",
            "{ algorithm: sliding_window, limit: 100, window: 10s }",
            100,
        ),
    ] {
        let mut regions = Regions::new(&rule(before, ""), 11);
        // No node alone asks for more than the lower number: all of them together do.
        regions.ask(4_000, [1, 1, 1]);
        assert!(regions.admitted() > 1_000, "{before}");
        regions.use_rules(&rule(after, ""));
        regions.ask(10_000, [1, 1, 1]);
        regions.answers();
        regions.ask(5_000, [1, 1, 1]);
        let admitted = regions.admitted();
        assert!(admitted <= most, "{admitted} in 5 s, of {after} instead of {before}");
    }
}

#[test]
fn a_raised_limit_reaches_a_key_that_is_refused_all_the_time() {
    for (before, after, more) in [
        (fixed_window(), fixed_window_of(2 * LIMIT), LIMIT),
        (
            "{ algorithm: token_bucket, rate: 30/s, burst: 30 }".to_owned(),
            "{ algorithm: token_bucket, rate: 300/s, burst: 300 }".to_owned(),
            300,
        ),
        (
            "{ algorithm: sliding_log, limit: 300, window: 10s }".to_owned(),
            "{ algorithm: sliding_log, limit: 600, window: 10s }".to_owned(),
            300,
        ),
    ] {
        let mut regions = Regions::new(&rule(&before, ""), 12);
        regions.until_next_window();
        regions.ask(4_000, [2, 2, 2]);
        regions.answers();
        regions.ask(200, [2, 2, 2]);
        assert!(regions.admitted() < 30, "{before} is used up");
        regions.use_rules(&rule(&after, ""));
        regions.ask(4_000, [2, 2, 2]);
        let admitted = regions.admitted();
        assert!(admitted * 10 >= more * 9, "{admitted} of {more} more: {after} instead of {before}");
    }
}

#[test]
fn a_region_cut_off_for_ten_minutes_never_makes_the_others_go_over_nor_does_its_return() {
    const FEW: u64 = 300;
    for (seed, broken, long) in
        [(21, Weather::Hangs, 60), (22, Weather::LosesReplies, 6), (23, Weather::Refuses, 6)]
    {
        let mut regions = Regions::new(&rule(&fixed_window_of(FEW), ""), seed);
        regions.until_next_window();
        let windows = |regions: &mut Regions, count: u64| {
            let mut admitted = 0;
            for _ in 0..count {
                regions.ask_every(50, WINDOW_MILLIS, &[1, 1, 1]);
                admitted += regions.admitted();
            }
            admitted
        };
        windows(&mut regions, 2);
        regions.set(1, broken);
        let cut_off = windows(&mut regions, long);
        regions.set(1, Weather::Fine);
        let back = windows(&mut regions, 6);
        regions.assert_never_over_of(FEW);
        println!("{broken:?}: cut off {cut_off} of {}, back {back} of {}", long * FEW, 6 * FEW);
        // Answers that are lost charge home, and are spent by nobody: less is used, never more.
        let is_charged = broken == Weather::LosesReplies;
        assert!(is_charged || cut_off * 10 >= long * FEW * 9, "the others use it: {cut_off}");
        assert!(back * 10 >= 6 * FEW * 9, "{back} of {}", 6 * FEW);
    }
}

#[test]
fn regions_that_are_added_and_removed_midway_keep_the_limit_and_a_newcomer_gets_some_at_once() {
    for (seed, takes_leave) in [(31, true), (32, false)] {
        let mut regions = Regions::new(&rule(&fixed_window(), ""), seed);
        regions.until_next_window();
        regions.ask(2_000, [1, 1, 1]);
        regions.answers();
        regions.add_region();
        regions.ask_every(10, 500, &[1, 1, 1, 2]);
        let newcomer = regions.nodes[6..].iter().map(|node| node.limiter.shares().unwrap().taken);
        assert!(newcomer.sum::<u64>() > 0, "within half a second");
        regions.ask_every(10, 7_500, &[1, 1, 1, 2]);
        regions.answers();
        match takes_leave {
            true => regions.end(0),
            false => regions.lose(0),
        }
        for _ in 0..4 {
            regions.ask_every(10, WINDOW_MILLIS, &[0, 1, 1, 2]);
            regions.answers();
        }
        regions.assert_never_over();
        // The last window has just begun.
        let last: u64 = regions.admitted_in.values().rev().skip(1).take(3).sum();
        assert!(last * 10 >= 3 * LIMIT * 9, "{:?}", regions.admitted_in);
    }
}

#[test]
fn clocks_that_differ_by_more_than_a_share_lasts_and_step_back_change_nothing() {
    // The sixth node is 40 s ahead of the first: four windows.
    let apart = Apart { ahead: Micros::from_secs(8), ..Apart::new(&rule(&fixed_window(), ""), 41) };
    let mut regions = Regions::with(apart);
    regions.until_next_window();
    let mut used = 0;
    for window in 0..5 {
        if window == 2 {
            regions.nodes[1].set_back(Micros::from_secs(3_600));
            regions.nodes[4].set_back(Micros::from_secs(25));
        }
        regions.ask(WINDOW_MILLIS, [1, 1, 1]);
        used += regions.admitted();
    }
    regions.assert_never_over();
    assert!(used * 10 >= 5 * LIMIT * 9, "{used} of {}", 5 * LIMIT);
}

#[test]
fn a_share_below_one_hit_goes_to_whoever_asks() {
    const FEW: u64 = 3;
    let mut regions = Regions::new(&rule(&fixed_window_of(FEW), ""), 51);
    regions.until_next_window();
    for often in [[1, 1, 1], [0, 0, 1], [0, 1, 0], [1, 1, 1]] {
        regions.ask_every(100, WINDOW_MILLIS, &often);
        assert_eq!(regions.admitted(), FEW, "{often:?}");
    }
    regions.assert_never_over_of(FEW);
}

#[test]
fn the_home_of_a_domain_counts_for_it_and_the_home_of_all_others_hears_nothing() {
    let rules = rule(&fixed_window(), "");
    let mut regions = Regions::with(Apart { by_domain: true, ..Apart::new(&rules, 61) });
    regions.to_other_home.iter().for_each(|link| link.set(Weather::Hangs));
    regions.until_next_window();
    regions.ask(WINDOW_MILLIS, [2, 2, 2]);
    let admitted = regions.admitted();
    regions.assert_never_over();
    assert!(admitted * 10 >= LIMIT * 9, "{admitted}");
    assert!(regions.to_other_home.iter().all(|link| link.calls() == 0));
}

#[test]
fn reports_that_overtake_each_other_add_up_to_the_same() {
    let rules = rule(&fixed_window_of(100_000), ", consistency: eventual, sync_every: 200ms");
    for seed in 71..75 {
        let mut regions = Regions::with(Apart { far: (1_000, 110_000), ..Apart::new(&rules, seed) });
        regions.until_next_window();
        regions.ask(2_000, [1, 2, 3]);
        let admitted = regions.admitted();
        assert_eq!(admitted, 1_200);
        regions.executor.run_for(Micros::from_secs(1));
        // Who is new hears the total, however the reports came in.
        regions.add_region();
        assert!(regions.nodes[6].check("one").allowed);
        regions.executor.run_for(Micros::from_secs(1));
        let looked = regions.nodes[6].check_cost("one", 0);
        let left = looked.governing().unwrap().limit().unwrap().outcome.remaining;
        assert_eq!(left, 100_000 - admitted - 1, "seed {seed}");
    }
}
