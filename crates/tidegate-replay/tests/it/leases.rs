//! Leases in a replay, compared with times computed by hand.

use std::collections::BTreeSet;

use tidegate_core::Micros;
use tidegate_decisions::DecisionLogConfig;
use tidegate_replay::{Format, Line, MergeByTime, Options, Otherwise, Parser, Reader, Replay, Report, text};

use crate::live::{Live, at_once, everything, play};
use crate::{replay, rules};

/// One slot for everybody, for at most ten seconds.
const ONE: &str = "
  - { name: slot, key: [], limits: [{ algorithm: concurrency, limit: 1, ttl: 10s }] }
";
const TWO: &str = "
  - { name: slot, key: [], limits: [{ algorithm: concurrency, limit: 2, ttl: 10s }] }
";
const START: u64 = 1_800_057_600;

/// An admission with the lease of this mark, this many milliseconds after the start.
fn admitted(at_ms: u64, lease: u64) -> String {
    let time = START * 1_000_000 + at_ms * 1_000;
    format!(
        "{{\"time_us\":{time},\"domain\":\"web\",\"verdict\":\"admitted\",\"n\":1,\"lease\":\"{lease:016x}\",\"attributes\":{{}}}}\n"
    )
}

fn refused(at_ms: u64) -> String {
    let time = START * 1_000_000 + at_ms * 1_000;
    format!("{{\"time_us\":{time},\"domain\":\"web\",\"verdict\":\"refused\",\"n\":1,\"attributes\":{{}}}}\n")
}

fn event(at_ms: u64, what: &str, lease: u64) -> String {
    let time = START * 1_000_000 + at_ms * 1_000;
    format!("{{\"time_us\":{time},\"event\":\"{what}\",\"lease\":\"{lease:016x}\",\"node\":\"a\",\"n\":1}}\n")
}

/// Refused in total, refused of those admitted at the time, and admitted of those refused at the time.
fn outcome(report: &Report) -> (u64, u64, u64) {
    let otherwise = report.decided_otherwise.unwrap_or_default();
    (report.refused.now, otherwise.refused_now, otherwise.admitted_now)
}

fn says(report: &Report, part: &str) -> bool {
    report.notes.iter().any(|note| note.contains(part))
}

/// The same lines, with the time of a store whose clock is an hour ahead, and `off_us` off.
fn decided(line: &str, off_us: i64) -> String {
    let rest = line.strip_prefix("{\"time_us\":").unwrap();
    let (time, rest) = rest.split_once(',').unwrap();
    let at: u64 = time.parse().unwrap();
    let decided = (at + 3_600_000_000).saturating_add_signed(off_us);
    format!("{{\"time_us\":{time},\"decided_us\":{decided},\"answered_in_us\":40000,{rest}")
}

#[test]
fn who_was_first_is_what_the_store_says_whatever_the_nodes_do() {
    // Logged before the release that it waited for, and as long after another that it did not wait for.
    let log = [
        decided(&admitted(0, 1), 0),
        decided(&admitted(10, 2), 15_000),
        decided(&event(20, "released", 1), 0),
        decided(&event(30, "released", 2), 10_000),
        decided(&refused(45), -6_000),
        decided(&admitted(50, 3), 0),
    ];
    let report = replay(&log.concat(), Format::Tidegate, ONE, None);
    assert_eq!(outcome(&report), (1, 0, 0), "{:?}", report.notes);
    assert_eq!(report.lines.out_of_order, 0);
}

#[test]
fn of_what_memory_did_in_one_microsecond_the_order_is_one_that_agrees() {
    // A slot was released between a refusal and an admission.
    let log = [
        decided(&admitted(0, 1), 0),
        decided(&admitted(9, 2), 0),
        decided(&refused(9), 0),
        decided(&event(9, "released", 1), 0),
        decided(&refused(11), 0),
    ];
    let report = replay(&log.concat(), Format::Tidegate, ONE, None);
    assert_eq!(outcome(&report), (2, 0, 0), "{:?}", report.notes);
}

#[test]
fn a_penalty_begins_with_the_refusal_also_in_logs_that_have_a_line_for_it() {
    const PUNISHED: &str = "
  - { name: punished, key: [], penalty: 10s, limits: [{ algorithm: sliding_log, limit: 2, window: 1s }] }
";
    let ask = |at_ms: u64, verdict: &str, more: &str| {
        let time = START * 1_000_000 + at_ms * 1_000;
        decided(
            &format!(
                "{{\"time_us\":{time},\"domain\":\"web\",\"verdict\":\"{verdict}\",\"n\":1,{more}\"attributes\":{{}}}}\n"
            ),
            0,
        )
    };
    let time = START * 1_000_000 + 20_000;
    let line =
        format!("{{\"time_us\":{time},\"event\":\"penalized\",\"penalty\":\"00000000000000aa\",\"n\":1}}\n");
    let log = [
        ask(0, "admitted", ""),
        ask(10, "refused", "\"cost\":2,\"penalty\":\"00000000000000aa\","),
        decided(&line, 0),
        ask(10_009, "refused", ""),
        ask(10_010, "admitted", ""),
    ];
    let report = replay(&log.concat(), Format::Tidegate, PUNISHED, None);
    assert_eq!(outcome(&report), (2, 0, 0), "{:?}", report.notes);
}

#[test]
fn a_lease_is_held_until_the_line_that_releases_it() {
    let log =
        [admitted(0, 1), refused(500), event(900, "released", 1), admitted(901, 2), refused(902)].concat();
    let report = replay(&log, Format::Tidegate, ONE, None);
    assert_eq!(outcome(&report), (2, 0, 0), "{:?}", report.notes);
    assert_eq!((report.lines.played, report.lines.events, report.lines.bad), (4, 1, 0));
    assert!(!says(&report, "done at once"), "{:?}", report.notes);
    // The line must not be taken for one that was left out.
    assert!(!text(&report, 80).contains("were not played"), "{}", text(&report, 80));
}

#[test]
fn a_lease_whose_release_is_lost_ends_by_its_time_to_live_and_the_report_says_so() {
    let log = [admitted(0, 1), refused(9_999), admitted(10_001, 2), refused(10_002)].concat();
    let report = replay(&log, Format::Tidegate, ONE, None);
    assert_eq!(outcome(&report), (2, 0, 0), "{:?}", report.notes);
    assert!(says(&report, "1 leases were not released in the log"), "{:?}", report.notes);
}

#[test]
fn a_renewed_lease_lives_for_its_time_to_live_from_then_on() {
    let log =
        [admitted(0, 1), event(6_000, "renewed", 1), refused(15_999), admitted(16_001, 2), refused(16_002)]
            .concat();
    assert_eq!(outcome(&replay(&log, Format::Tidegate, ONE, None)), (2, 0, 0));
    // Released after its first time to live: the renewal had kept it.
    let log = [
        admitted(0, 1),
        event(6_000, "renewed", 1),
        refused(12_000),
        event(13_000, "released", 1),
        admitted(13_001, 2),
    ]
    .concat();
    assert_eq!(outcome(&replay(&log, Format::Tidegate, ONE, None)), (1, 0, 0));
}

#[test]
fn who_was_refused_then_and_passes_now_is_held_for_as_long_as_others_were() {
    // Two leases of 1 s and 3 s: the third request, refused at the time, is held for 2 s now.
    let known = [
        admitted(0, 1),
        event(1_000, "released", 1),
        admitted(2_000, 2),
        event(5_000, "released", 2),
        admitted(6_000, 3),
        refused(7_000),
    ];
    let then = |more: &[String]| replay(&[&known[..], more].concat().concat(), Format::Tidegate, TWO, None);
    let report = then(&[refused(8_999)]);
    assert_eq!(outcome(&report), (1, 0, 1), "both slots are taken until 9 s: {:?}", report.notes);
    assert!(says(&report, "1 requests pass here of which the log tells no end"), "{:?}", report.notes);
    assert_eq!(outcome(&then(&[refused(9_000)])), (0, 0, 2));
    // If none has ended so far, the length is unknown: it counts as released at once, and the report says so.
    let report = replay(&[admitted(0, 1), refused(1), refused(2)].concat(), Format::Tidegate, TWO, None);
    assert_eq!(outcome(&report), (0, 0, 2));
    assert!(says(&report, "2 requests do not say how long they took"), "{:?}", report.notes);
}

#[test]
fn a_log_of_an_older_release_is_read_and_its_leases_count_as_done_at_once() {
    let line = |at: u64| {
        format!(
            "{{\"time_us\":{},\"domain\":\"web\",\"verdict\":\"admitted\",\"n\":1,\"cost\":1,\"attributes\":{{}}}}\n",
            START * 1_000_000 + at
        )
    };
    let report = replay(&[line(0), line(1), line(2)].concat(), Format::Tidegate, ONE, None);
    assert_eq!((report.refused.now, report.lines.bad), (0, 0));
    assert!(says(&report, "3 requests do not say how long they took"), "{:?}", report.notes);
    // Where no rule limits concurrency it does not matter.
    let window = "\n  - { name: slot, key: [], limits: [9/second] }\n";
    let report = replay(&line(0), Format::Tidegate, window, None);
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}

#[test]
fn logs_of_several_nodes_are_played_as_one_and_a_release_meets_its_admission_in_another() {
    let one = [admitted(0, 1), admitted(3_000, 3), refused(3_500)].concat();
    // This node's clock is behind: its release comes before the admission.
    let two = [
        refused(500),
        event(900, "released", 1),
        admitted(1_000, 2),
        event(999, "released", 2),
        event(2_999, "released", 3),
    ]
    .concat();
    let play = |logs: &[&str]| {
        let mut replay = Replay::new(rules(ONE), None, Options::new("web"));
        let logs = logs.iter().map(|log| (Reader::new(log.as_bytes()), None));
        replay.play_merged(&mut MergeByTime::new(logs), |_| ()).unwrap();
        replay.finish()
    };
    let report = play(&[&one, &two]);
    // The last one is admitted now: by the other clock, the lease that caused its refusal had ended.
    assert_eq!(outcome(&report), (1, 0, 1), "{:?}", report.notes);
    assert_eq!((report.lines.out_of_order, report.lines.events), (0, 3));
    let other_order = play(&[&two, &one]);
    assert_eq!(text(&report, 80), text(&other_order, 80));
}

#[test]
fn one_in_so_many_leases_is_kept_whole_on_every_node_and_tells_no_secret() {
    let many = "
  - { name: slots, key: [], limits: [{ algorithm: concurrency, limit: 100000, ttl: 1h }] }
";
    let config = || DecisionLogConfig { admissions_one_in: Some(10), ..everything() };
    let (live, other) = (Live::new(many, config()), Live::new(many, config()));
    let tokens: Vec<_> = (0..4_000).map(|_| live.take()).collect();
    for token in &tokens {
        // Ended through another limiter's log than the one with the admission.
        other.hear_released(token);
    }
    let marks = |lines: &[String]| -> BTreeSet<String> {
        let told = lines.iter().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        told.map(|line| line["lease"].as_str().unwrap().to_owned()).collect()
    };
    let (admissions, releases) = (live.lines(), other.lines());
    assert_eq!(marks(&admissions), marks(&releases));
    // About one in ten, each of which stands for ten: far beyond chance.
    assert!((250..550).contains(&admissions.len()), "{}", admissions.len());
    assert!(admissions.iter().all(|line| line.contains("\"n\":10,")));
    // What stands there is no lease.
    for mark in marks(&admissions).iter().take(3) {
        assert!(live.limiter().read_lease(mark).is_err());
        assert!(tokens.iter().all(|token| !token.to_string().contains(mark.as_str())));
    }
}

#[test]
fn renewals_in_a_loop_fill_no_log() {
    let config = DecisionLogConfig { refusals_per_second: 5, ..everything() };
    let live = Live::new(ONE, config);
    let token = live.take();
    for _ in 0..1_000 {
        at_once(live.limiter().renew(&token)).unwrap();
    }
    let renewals = || live.lines().iter().filter(|line| line.contains("renewed")).count();
    // Beyond the rate ever fewer are kept, at random places.
    let kept = renewals();
    assert!((5..30).contains(&kept), "{kept}");
    live.pass(Micros::from_secs(1));
    at_once(live.limiter().renew(&token)).unwrap();
    assert_eq!(renewals(), kept + 1);
    assert!(play(&live.lines(), ONE).0.iter().all(|(_, now, refused)| *now != *refused));
}

#[test]
fn what_the_store_had_no_part_in_is_counted_by_who_decided() {
    let line = |number: u64, source: &str, verdict: &str| {
        format!(
            "{{\"time_us\":{},\"domain\":\"web\",\"verdict\":\"{verdict}\",\"source\":\"{source}\",\"version\":1,\"n\":1,\
             \"attributes\":{{\"user\":\"#0123456789abcdef\",\"other\":\"#0123456789abcdef\"}}}}\n",
            START * 1_000_000 + number
        )
    };
    let log = [
        line(1, "store", "admitted"),
        line(2, "fallback_local", "refused"),
        line(3, "overload_open", "admitted"),
        line(4, "overload_open", "admitted"),
        line(5, "approximate", "admitted"),
        line(6, "deny_cache", "refused"),
    ]
    .concat();
    let rule =
        "\n  - { name: r, key: [user], limits: [{ algorithm: fixed_window, limit: 9, window: 1d }] }\n";
    let report = replay(&log, Format::Tidegate, rule, None);
    assert_eq!(outcome(&report), (0, 0, 2));
    for told in [
        "3 requests were decided without the store when they happened (fallback_local 1, overload_open 2)",
        "1 requests were decided by their node, as their rules ask (approximate 1)",
        "1 of the requests that pass here were refused by their node's memory",
    ] {
        assert!(says(&report, told), "{told}: {:?}", report.notes);
    }
    assert!(!says(&report, "versions") && !says(&report, "ban"), "{:?}", report.notes);
}

/// The same line with an answer that took this many milliseconds: half before its time, half after.
fn within(line: &str, ms: u64) -> String {
    line.replacen("{", &format!("{{\"answered_in_us\":{},", ms * 1_000), 1)
}

#[test]
fn of_orders_that_the_times_allow_one_is_played_that_the_log_agrees_with() {
    // By the middle of their times, the first two of each would be decided differently.
    let released_before_it_looks = [
        admitted(0, 1),
        within(&admitted(990, 2), 40),
        within(&event(1_000, "released", 1), 40),
        refused(2_000),
    ];
    let refused_before_it_looks = [
        admitted(0, 1),
        within(&event(990, "released", 1), 40),
        within(&refused(1_000), 40),
        admitted(2_000, 2),
    ];
    // The slow one could have been admitted at once, in place of the next: it was admitted after the release.
    let slow_one_was_last = [
        admitted(0, 1),
        within(&event(900, "released", 1), 2),
        within(&admitted(920, 2), 2),
        within(&admitted(930, 3), 100),
        within(&event(940, "released", 2), 2),
        refused(2_000),
    ];
    // Full only because of the second of them, which was before the release that ends sooner.
    let filled_before_the_release = [
        admitted(0, 9),
        within(&admitted(985, 1), 60),
        within(&event(1_001, "released", 9), 4),
        within(&refused(1_002), 12),
        within(&admitted(1_500, 2), 2),
        refused(2_000),
    ];
    for (rules, lines) in [
        (ONE, &released_before_it_looks[..]),
        (ONE, &refused_before_it_looks[..]),
        (ONE, &slow_one_was_last[..]),
        (TWO, &filled_before_the_release[..]),
    ] {
        let timed = |line: &String| if line.contains("answered_in") { line.clone() } else { within(line, 0) };
        let log: String = lines.iter().map(timed).collect();
        let report = replay(&log, Format::Tidegate, rules, None);
        assert_eq!(report.decided_otherwise, Some(Otherwise::default()), "{log}");
        assert_eq!(report.lines.out_of_order, 0, "{log}");
        // Checks with cost 0 are not counted.
        let requests = lines.iter().filter(|line| line.contains("verdict")).count() as u64;
        assert_eq!((report.requests, report.rules[0].requests), (requests, requests), "{log}");
    }
    // An older log without answer times is replayed in its own order.
    let older = released_before_it_looks.concat().replace("\"answered_in_us\":40000,", "");
    assert_eq!(outcome(&replay(&older, Format::Tidegate, ONE, None)), (1, 1, 1));
}

#[test]
fn a_refusal_with_a_penalty_is_not_played_before_what_passed_earlier() {
    // Lines are put in order wherever a rule takes leases, this one included.
    let rules = "
  - { name: pen, match: { k: pen }, key: [user], penalty: 1s, limits: [{ algorithm: sliding_log, limit: 3, window: 500ms }] }
  - { name: slot, match: { k: slot }, key: [], limits: [{ algorithm: concurrency, limit: 1, ttl: 10s }] }
";
    let line = |at_us: u64, verdict: &str, cost: u64, answered_in_us: u64| {
        let time = START * 1_000_000 + at_us;
        format!(
            "{{\"time_us\":{time},\"domain\":\"web\",\"verdict\":\"{verdict}\",\"n\":1,\"cost\":{cost},\
             \"answered_in_us\":{answered_in_us},\"attributes\":{{\"user\":\"a\",\"k\":\"pen\"}}}}\n"
        )
    };
    let log = [
        line(0, "admitted", 2, 20),
        line(100_000, "admitted", 1, 31),
        line(100_019, "refused", 2, 57),
        line(300_000, "refused", 1, 20),
    ];
    let report = replay(&log.concat(), Format::Tidegate, rules, None);
    assert_eq!(outcome(&report), (2, 0, 0), "{:?}", report.notes);
}

#[test]
fn what_was_renewed_before_another_lease_of_the_request_had_ended_lives_on_in_a_replay_too() {
    let rules = "
  - { name: slot, key: [], limits: [{ name: long, algorithm: concurrency, limit: 1, ttl: 5s }, { name: short, algorithm: concurrency, limit: 1, ttl: 2s }] }
";
    let live = Live::new(rules, everything());
    let token = live.take();
    live.pass(Micros::from_secs(3));
    assert!(at_once(live.limiter().renew(&token)).is_err(), "the short one had ended");
    live.pass(Micros::from_secs(3));
    assert!(!live.passes(), "the long one lives until 8 s");
    live.pass(Micros::from_secs(3));
    assert!(live.passes());
    let decided = play(&live.lines(), rules).0;
    assert_eq!(decided.iter().map(|(_, now, _)| *now).collect::<Vec<_>>(), [true, false, true]);
}

#[test]
fn leases_that_end_one_after_the_other_make_room_one_after_the_other() {
    let two = "
  - { name: own, key: [user], limits: [{ algorithm: concurrency, limit: 1, ttl: 1h }] }
  - { name: all, key: [], limits: [{ algorithm: concurrency, limit: 2, ttl: 1h }] }
";
    let with_user = |line: String, user: &str| line.replace("{}", &format!("{{\"user\":\"{user}\"}}"));
    // The first limit of a lease that a limiter with these rules gives, as every node marks it.
    let under = Live::new(two, everything()).take_as("a").limit_mark();
    let part =
        event(1_000, "released", 1).replace("\"node\"", &format!("\"under\":\"{under:016x}\",\"node\""));
    let known = [
        with_user(admitted(0, 1), "a"),
        with_user(admitted(100, 2), "b"),
        with_user(refused(200), "a"),
        part,
        // Its own place is free, and that among all is not.
        with_user(refused(1_500), "a"),
        event(2_000, "released", 1),
        with_user(admitted(2_100, 3), "a"),
        with_user(refused(2_200), "a"),
    ]
    .concat();
    let report = replay(&known, Format::Tidegate, two, None);
    assert_eq!(report.decided_otherwise, Some(Otherwise::default()), "{:?}", report.notes);
    let refused: Vec<(&str, u64)> =
        report.rules.iter().map(|rule| (rule.rule.as_str(), rule.refused.now)).collect();
    // At 0.2 and 2.2 s both limits refuse; at 1.5 s only the one for all.
    assert_eq!(refused, [("all", 3), ("own", 2)]);
}

/// The same line, that costs so much.
fn costs(line: &str, cost: u64) -> String {
    line.replacen("{", &format!("{{\"cost\":{cost},"), 1)
}

#[test]
fn of_many_leases_that_a_line_stands_for_one_is_held_and_the_report_says_how_little_that_is() {
    let ten = TWO.replace("limit: 2", "limit: 10");
    let sampled = |line: String| line.replace("\"n\":1,", "\"n\":100,");
    let log = [sampled(admitted(0, 1)), sampled(admitted(1_000, 2)), event(2_000, "released", 1)].concat();
    for (rules, refused) in [(ten.as_str(), 0), (TWO, 0), (ONE, 100)] {
        let report = replay(&log, Format::Tidegate, rules, None);
        // With one slot the second line finds it held.
        assert_eq!((report.requests, report.refused.now), (200, refused), "{rules}");
        assert!(says(&report, "keeps one lease in 100"), "{:?}", report.notes);
        assert!(!says(&report, "do not say how long"), "{:?}", report.notes);
    }
    let whole = replay(&admitted(0, 1), Format::Tidegate, ONE, None);
    assert!(!says(&whole, "one lease in"), "{:?}", whole.notes);
}

#[test]
fn a_lease_is_one_lease_whatever_the_request_costs_when_an_order_is_chosen() {
    // The second slot is taken, and then refused: to one that costs five it would look full before.
    let log = [
        within(&admitted(0, 9), 0),
        within(&admitted(985, 1), 60),
        costs(&within(&refused(1_002), 12), 5),
        within(&refused(2_000), 0),
    ];
    let report = replay(&log.concat(), Format::Tidegate, TWO, None);
    assert_eq!(report.decided_otherwise, Some(Otherwise::default()), "{:?}", report.notes);
}

#[test]
fn two_descriptors_that_count_on_one_cell_need_room_for_both_when_an_order_is_chosen() {
    let rules = "
  - { name: three, key: [], limits: [{ algorithm: fixed_window, limit: 3, window: 1d }] }
  - { name: slot, match: { kind: slow }, key: [], limits: [{ algorithm: concurrency, limit: 1, ttl: 10s }] }
";
    let without_lease =
        |at: u64| within(&refused(at), 40).replace("\"refused\",\"n\":1,", "\"admitted\",\"n\":1,");
    let also = "\"also\":[{\"cost\":1,\"attributes\":{}}],\"attributes\"";
    // One is left for two that ask: they were admitted after the reset.
    let reset = event(1_001, "reset", 0)
        .replace("\"lease\":\"0000000000000000\"", "\"domain\":\"web\",\"attributes\":{}");
    let log = [
        costs(&without_lease(0), 2),
        without_lease(1_000).replace("\"attributes\"", also),
        within(&reset, 60),
    ];
    let report = replay(&log.concat(), Format::Tidegate, rules, None);
    assert_eq!((report.requests, report.lines.events), (2, 1), "{:?}", report.lines);
    assert_eq!(report.decided_otherwise, Some(Otherwise::default()), "{:?}", report.notes);
}

#[test]
fn after_a_pause_an_order_is_chosen_by_what_is_left_then() {
    // The first lease has outlived its time: the slot is free, so the refused one came second.
    let log = [within(&admitted(0, 1), 0), within(&admitted(12_005, 2), 40), within(&refused(12_000), 20)];
    let report = replay(&log.concat(), Format::Tidegate, ONE, None);
    assert_eq!(report.decided_otherwise, Some(Otherwise::default()), "{:?}", report.notes);
}

#[test]
fn a_lease_is_not_released_before_it_was_taken() {
    // By their ends the release would be first; then the length of the lease would be unknown.
    let log = [
        within(&admitted(0, 1), 0),
        within(&event(900, "released", 1), 0),
        within(&admitted(1_000, 2), 80),
        within(&event(1_010, "released", 2), 2),
        within(&admitted(2_000, 3), 0),
        within(&refused(2_500), 0),
    ];
    let report = replay(&log.concat(), Format::Tidegate, TWO, None);
    // Held for 0.9 s and 0.01 s: so is the last one for 0.455 s, not for 0.9 s.
    let probe = [within(&refused(2_960), 0), within(&refused(2_961), 0)];
    let probed = replay(&[&log[..], &probe].concat().concat(), Format::Tidegate, TWO, None);
    assert_eq!(outcome(&report), (0, 0, 1), "{:?}", report.notes);
    assert_eq!(outcome(&probed), (1, 0, 2), "{:?}", probed.notes);
}

#[test]
fn lines_far_behind_are_counted_as_out_of_order_under_concurrency_limits_too() {
    let log = [within(&admitted(5_000, 1), 0), within(&refused(5_500), 0), within(&refused(1_000), 0)];
    let report = replay(&log.concat(), Format::Tidegate, ONE, None);
    assert_eq!((report.lines.out_of_order, report.lines.most_out_of_order_us), (1, 4_000_000));
}

#[test]
fn a_log_with_gaps_of_days_and_one_without_are_played_as_one() {
    const DAY: u64 = 86_400_000;
    let gaps = [0, 2, 4].map(|day| refused(day * DAY)).concat();
    let steady: String = (0..10).map(|half| refused(half * DAY / 2 + 1_000)).collect();
    let mut replay = Replay::new(rules(ONE), None, Options::new("web"));
    let logs = [&gaps, &steady].map(|log| (Reader::new(log.as_bytes()), None));
    replay.play_merged(&mut MergeByTime::new(logs), |_| ()).unwrap();
    let report = replay.finish();
    assert_eq!((report.lines.played, report.lines.bad, report.lines.out_of_order), (13, 0, 0));
}

#[test]
fn what_waits_counts_as_requests_too() {
    let mut replay = Replay::new(rules(ONE), None, Options::new("web"));
    let mut parser = Parser::new(Format::Tidegate).unwrap();
    let many = within(&refused(0), 1).replace("\"n\":1,", "\"n\":1000,");
    for line in [within(&refused(0), 1), many, within(&refused(1), 1)] {
        replay.play_line(Line::Text(line.trim_end().as_bytes()), &mut parser);
    }
    assert_eq!(replay.requests(), 1_002);
}

#[test]
fn a_refund_in_a_domain_without_rules_is_no_event_that_was_played() {
    let refund = "{\"time_us\":1800057600000000,\"event\":\"refunded\",\"domain\":\"other\",\"amount\":1,\"attributes\":{}}";
    let report = replay(refund, Format::Tidegate, ONE, None);
    assert_eq!((report.lines.events, report.lines.unknown_domain), (0, 1));
}

#[test]
fn requests_with_more_descriptors_than_are_kept_and_many_versions_are_counted_as_they_are() {
    let line = |version: u64| {
        refused(version).replace("\"n\":1,", &format!("\"n\":10,\"version\":{version},\"also_left_out\":2,"))
    };
    let log: String = (1..=100).rev().map(line).collect();
    let report = replay(&log, Format::Tidegate, "\n  - { name: r, key: [], limits: [9/second] }\n", None);
    assert!(says(&report, "1000 requests had more descriptors"), "{:?}", report.notes);
    assert!(says(&report, "at least 64 versions of rules, 1 to 100"), "{:?}", report.notes);
}
