//! Hand-written histories: each kind of broken promise is found, and what a slow machine explains is not.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Kind, Look, Pace, Script, Span, check, keys_without_ttl, slow_scripts};
use crate::history::{Answer, Asked, Cell, History, LeaseCall, LeaseWhat, Source, Trouble, What};
use crate::limit::{Limit, Rate};

const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const SECOND: Duration = ms(1_000);
const HOUR: Duration = Duration::from_secs(3_600);

fn log(limit: u64, window: Duration) -> Limit {
    Limit::SlidingLog { limit, window, min_interval: Duration::ZERO, count_refused: false }
}

fn fixed(limit: u64) -> Limit {
    Limit::FixedWindow { limit, window: HOUR }
}

fn bucket(burst: u64, count: u64) -> Limit {
    Limit::TokenBucket { burst, rate: Rate { count, period: SECOND } }
}

/// Requests of one shape on one cell.
fn history(limit: Limit, asked: Vec<Asked>) -> History {
    let cells = vec![Cell::new("cell", limit)];
    History { cells, shapes: vec![vec![0]], asked, nodes: 1, epoch: 100 * HOUR, ..History::default() }
}

fn asked(sent: u64, received: u64, answer: Answer) -> Asked {
    Asked { sent: ms(sent), received: ms(received), shape: 0, cost: 1, answer }
}

fn admitted(sent: u64, received: u64) -> Asked {
    admitted_by(Source::Store, sent, received)
}

fn admitted_by(source: Source, sent: u64, received: u64) -> Asked {
    asked(sent, received, Answer::Admitted { source, remaining: sent % 7, lease: None })
}

fn refused(sent: u64, received: u64, retry_after: u64) -> Asked {
    refused_by(Source::Store, sent, received, Some(ms(retry_after)))
}

fn refused_by(source: Source, sent: u64, received: u64, retry_after: Option<Duration>) -> Asked {
    asked(sent, received, Answer::Refused { source, remaining: 0, retry_after })
}

fn trouble(what: What, from: u64, until: u64) -> Trouble {
    Trouble { from: ms(from), until: ms(until), what, spares: BTreeSet::new() }
}

#[track_caller]
fn finds(history: &History, kinds: &[Kind]) {
    let mut found: Vec<Kind> = check(history).iter().map(|violation| violation.kind).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found, kinds, "{:#?}", check(history));
}

#[test]
fn one_more_than_a_log_allows_in_a_window_is_found() {
    let bad = vec![admitted(0, 1), admitted(10, 11), admitted(900, 901)];
    finds(&history(log(2, SECOND), bad), &[Kind::TooMany]);
}

#[test]
fn one_that_may_have_been_decided_in_the_next_window_is_not() {
    let slow = vec![admitted(0, 1), admitted(10, 11), admitted(900, 1_100)];
    finds(&history(log(2, SECOND), slow), &[]);
}

#[test]
fn more_than_burst_and_refill_is_found() {
    let five = |third: u64| vec![admitted(0, 1), admitted(2, 3), admitted(third, third + 1)];
    finds(&history(bucket(2, 10), five(60)), &[Kind::TooMany]);
    finds(&history(bucket(2, 10), five(120)), &[]);
}

#[test]
fn more_than_a_fixed_window_allows_by_the_clock_is_found_though_any_window_may_hold_twice_as_much() {
    let three = vec![admitted(0, 1), admitted(8, 9), admitted(21, 22)];
    finds(&history(fixed(2), three.clone()), &[Kind::TooMany, Kind::WrongNumbers]);
    // The hour ends between the second and the third.
    let mut over_the_hour = history(fixed(2), three);
    over_the_hour.epoch = 100 * HOUR - ms(14);
    finds(&over_the_hour, &[]);
}

#[test]
fn a_store_that_lost_everything_gives_the_limit_once_more_and_no_more() {
    let asked = vec![admitted(0, 1), admitted(2, 3), admitted(20, 21), admitted(22, 23)];
    let mut history = history(log(2, HOUR), asked);
    finds(&history, &[Kind::TooMany]);
    history.troubles.push(trouble(What::Emptied, 5, 10));
    finds(&history, &[]);
    history.asked.push(admitted(30, 31));
    finds(&history, &[Kind::TooMany]);
}

#[test]
fn a_share_is_given_once_in_a_window_however_often_the_store_stalls() {
    let local = |sent| admitted_by(Source::FallbackLocal, sent, sent + 1);
    let mut history = history(log(2, HOUR), vec![admitted(0, 1), admitted(2, 3), local(12), local(13)]);
    history.troubles.extend([trouble(What::Stalled, 10, 20), trouble(What::Stalled, 30, 40)]);
    finds(&history, &[]);
    history.asked.push(local(32));
    finds(&history, &[Kind::TooMany]);
}

#[test]
fn what_an_open_policy_lets_pass_is_not_counted() {
    let open = |sent| admitted_by(Source::FallbackOpen, sent, sent + 1);
    let mut history = history(log(1, HOUR), vec![admitted(0, 1), open(12), open(13), open(14)]);
    history.troubles.push(trouble(What::Stalled, 10, 20));
    finds(&history, &[]);
}

#[test]
fn what_is_known_to_be_spent_is_not_given_again_while_the_store_is_away() {
    let local = |sent| admitted_by(Source::FallbackLocal, sent, sent + 1);
    let mut history = history(log(2, HOUR), vec![admitted(0, 1), admitted(2, 3), local(12)]);
    history.troubles.push(trouble(What::Stalled, 10, 20));
    finds(&history, &[]);
    history.is_known_to_all = true;
    finds(&history, &[Kind::TooMany]);
    // Two nodes have one part each of what is left, rounded up.
    history.nodes = 2;
    finds(&history, &[]);
}

#[test]
fn in_overload_an_open_policy_lets_pass_the_limit_on_each_node_and_no_more() {
    let open = |sent| admitted_by(Source::OverloadOpen, sent, sent + 1);
    let mut history = history(log(1, HOUR), vec![admitted(0, 1), open(12)]);
    finds(&history, &[]);
    history.asked.push(open(13));
    finds(&history, &[Kind::TooMany]);
    history.nodes = 2;
    finds(&history, &[]);
    history.asked.push(open(14));
    finds(&history, &[Kind::TooMany]);
}

#[test]
fn in_overload_a_local_policy_lets_pass_a_share_on_each_node_and_no_more() {
    let local = |sent| admitted_by(Source::OverloadLocal, sent, sent + 1);
    let mut history = history(log(1, HOUR), vec![admitted(0, 1), local(12)]);
    finds(&history, &[]);
    history.asked.push(local(13));
    finds(&history, &[Kind::TooMany]);
    history.asked.pop();
    history.is_known_to_all = true;
    finds(&history, &[Kind::TooMany]);
}

#[test]
fn a_refusal_with_quota_left_is_found() {
    for limit in [log(2, SECOND), fixed(2), bucket(2, 1), Limit::SlidingWindow { limit: 3, window: HOUR }] {
        let one_left = vec![admitted(0, 1), refused(10, 11, 5)];
        let kinds: Vec<Kind> =
            check(&history(limit.clone(), one_left)).iter().map(|found| found.kind).collect();
        assert!(kinds.contains(&Kind::WronglyRefused), "{limit:?}: {kinds:?}");
    }
}

#[test]
fn a_refusal_that_another_request_on_its_way_explains_is_not() {
    let in_flight = vec![admitted(0, 1), admitted(2, 30), refused(10, 11, 900)];
    finds(&history(log(2, SECOND), in_flight), &[]);
    let lost = vec![admitted(0, 1), asked(2, 3, Answer::Lost), refused(10, 11, 900)];
    finds(&history(log(2, SECOND), lost), &[]);
}

#[test]
fn a_refusal_after_the_quota_came_back_is_found() {
    finds(&history(log(1, SECOND), vec![admitted(0, 1), refused(1_100, 1_101, 5)]), &[Kind::WronglyRefused]);
    finds(&history(bucket(1, 10), vec![admitted(0, 1), refused(150, 151, 5)]), &[Kind::WronglyRefused]);
    finds(&history(bucket(1, 10), vec![admitted(0, 1), refused(50, 51, 51)]), &[]);
}

#[test]
fn a_request_over_two_limits_may_be_refused_by_either() {
    let mut both = history(log(5, SECOND), vec![admitted(0, 1), refused(10, 11, 900)]);
    both.cells.push(Cell::new("other", log(1, SECOND)));
    both.shapes[0].push(1);
    finds(&both, &[]);
    both.cells[1].limit = log(3, SECOND);
    finds(&both, &[Kind::WronglyRefused]);
}

#[test]
fn after_a_clock_stepped_back_a_limit_may_refuse_for_its_own_window_and_no_longer() {
    let locked_out = |last: u64| {
        let asked = vec![admitted(0, 1), refused(600, 601, 990), refused(last, last + 1, 1)];
        let mut history = history(log(1, SECOND), asked);
        history.troubles.push(trouble(What::SteppedBack, 500, 501));
        history
    };
    finds(&locked_out(1_500), &[]);
    finds(&locked_out(1_700), &[Kind::WronglyRefused, Kind::DishonestRetryAfter]);
}

#[test]
fn after_a_clock_stepped_back_a_remembered_refusal_is_no_visit_to_the_store() {
    let is_wrong = |last: u64| {
        let remembered = refused_by(Source::DenyCache, 510, 511, Some(ms(490)));
        let asked = vec![admitted(0, 1), remembered, refused(700, 701, 990), refused(last, last + 1, 1)];
        let mut history = history(log(1, SECOND), asked);
        history.troubles.push(trouble(What::SteppedBack, 500, 501));
        check(&history).iter().any(|violation| violation.kind == Kind::WronglyRefused)
    };
    assert!(!is_wrong(1_600));
    assert!(is_wrong(1_800));
}

#[test]
fn who_waited_as_told_and_is_refused_again_is_found() {
    let again = |sent: u64| vec![admitted(0, 1), refused(10, 11, 500), refused(sent, sent + 1, 400)];
    finds(&history(log(1, SECOND), again(515)), &[Kind::DishonestRetryAfter]);
    finds(&history(log(1, SECOND), again(400)), &[]);
}

#[test]
fn who_waited_as_told_while_another_one_asked_is_not() {
    let taken =
        vec![admitted(0, 1), refused(10, 11, 991), admitted(1_005, 1_006), refused(1_010, 1_011, 995)];
    finds(&history(log(1, SECOND), taken), &[]);
}

#[test]
fn where_refusals_count_a_wait_that_ignores_the_own_refusal_is_found() {
    let counting =
        || Limit::SlidingLog { limit: 1, window: SECOND, min_interval: Duration::ZERO, count_refused: true };
    let told = vec![admitted(0, 1), refused(10, 11, 991), refused(1_003, 1_004, 7)];
    finds(&history(counting(), told), &[Kind::DishonestRetryAfter]);
    let with_another =
        vec![admitted(0, 1), refused(10, 11, 991), refused(500, 501, 991), refused(1_003, 1_004, 991)];
    finds(&history(counting(), with_another), &[]);
}

#[test]
fn a_wait_that_nobody_has_to_wait_is_found() {
    let early = vec![admitted(0, 1), refused(10, 11, 990), admitted(500, 501)];
    finds(&history(bucket(1, 5), early.clone()), &[Kind::DishonestRetryAfter]);
    let longer_than_any = vec![admitted(0, 1), refused(10, 11, 2_000)];
    finds(&history(log(1, SECOND), longer_than_any), &[Kind::DishonestRetryAfter]);
    let no_time_at_all = vec![admitted(0, 1), refused_by(Source::Store, 10, 11, None)];
    finds(&history(log(1, SECOND), no_time_at_all), &[Kind::DishonestRetryAfter]);
}

#[test]
fn a_fallback_while_the_store_was_up_is_found() {
    let fallen_back = vec![refused_by(Source::FallbackClosed, 5, 6, None)];
    let mut history = history(fixed(2), fallen_back);
    finds(&history, &[Kind::NotTheStore]);
    history.troubles.push(trouble(What::Stalled, 0, 10));
    finds(&history, &[]);
    // Another server stalled.
    history.troubles[0].spares.insert(0);
    finds(&history, &[Kind::NotTheStore]);
}

#[test]
fn overload_is_found_only_where_every_decision_must_be_the_stores() {
    let mut history = history(fixed(2), vec![refused_by(Source::OverloadLocal, 5, 6, None)]);
    finds(&history, &[]);
    history.must_be_exact = true;
    finds(&history, &[Kind::NotTheStore]);
}

#[test]
fn two_admissions_that_left_as_much_are_found() {
    let as_much = vec![admitted(0, 1), admitted(7, 8)];
    finds(&history(fixed(9), as_much.clone()), &[Kind::WrongNumbers]);
    // What the store spent for one that had stopped waiting was given back between them.
    let late = refused_by(Source::OverloadLocal, 2, 3, None);
    finds(&history(fixed(9), [as_much, vec![late]].concat()), &[]);
}

fn lease(sent: u64, token: &str) -> Asked {
    asked(
        sent,
        sent + 1,
        Answer::Admitted { source: Source::Store, remaining: 0, lease: Some(token.to_owned()) },
    )
}

fn call(what: LeaseWhat, sent: u64, token: &str, was_held: bool) -> LeaseCall {
    LeaseCall {
        sent: ms(sent),
        received: ms(sent + 1),
        lease: token.to_owned(),
        what,
        was_held: Some(was_held),
    }
}

fn slots(limit: u64) -> Limit {
    Limit::Concurrency { limit, ttl: SECOND, count_refused: false }
}

#[test]
fn more_leases_at_once_than_the_limit_are_found() {
    finds(&history(slots(1), vec![lease(0, "a"), lease(10, "b")]), &[Kind::TooMany]);
    // The first may have ended by itself, or been given back.
    finds(&history(slots(1), vec![lease(0, "a"), lease(1_100, "b")]), &[]);
    let mut given_back = history(slots(1), vec![lease(0, "a"), lease(10, "b")]);
    given_back.lease_calls.push(call(LeaseWhat::Release, 5, "a", true));
    finds(&given_back, &[]);
    given_back.lease_calls[0] = call(LeaseWhat::Release, 20, "a", true);
    finds(&given_back, &[Kind::TooMany]);
}

/// Promise 9: a full limit, one stall, and as many leases again.
#[test]
fn leases_of_a_node_that_saw_the_limit_full_are_found() {
    let local = |sent, token: &str| {
        let lease = Some(token.to_owned());
        asked(sent, sent + 1, Answer::Admitted { source: Source::FallbackLocal, remaining: 0, lease })
    };
    let taken = vec![lease(0, "a"), lease(1, "b"), local(12, "c"), local(13, "d")];
    let mut history = history(slots(2), taken);
    history.troubles.extend([trouble(What::Stalled, 10, 15), trouble(What::Stalled, 30, 35)]);
    finds(&history, &[]);
    history.asked.push(local(32, "e"));
    finds(&history, &[Kind::TooMany]);
    history.asked.truncate(3);
    history.is_known_to_all = true;
    finds(&history, &[Kind::TooMany]);
}

#[test]
fn a_renewed_lease_lasts_longer() {
    let mut renewed = history(slots(1), vec![lease(0, "a"), lease(1_100, "b")]);
    renewed.lease_calls.push(call(LeaseWhat::Renew, 500, "a", true));
    finds(&renewed, &[Kind::TooMany]);
}

#[test]
fn a_lease_that_somebody_else_ended_is_found() {
    let mut lost = history(slots(2), vec![lease(0, "a"), lease(1, "b")]);
    lost.lease_calls =
        vec![call(LeaseWhat::Release, 10, "a", true), call(LeaseWhat::Release, 20, "b", false)];
    finds(&lost, &[Kind::LeasesNotConserved]);
    // Over by then.
    lost.lease_calls[1] = call(LeaseWhat::Release, 1_500, "b", false);
    finds(&lost, &[]);
}

#[test]
fn a_lease_given_back_twice_is_found() {
    let mut twice = history(slots(2), vec![lease(0, "a")]);
    twice.lease_calls =
        vec![call(LeaseWhat::Release, 10, "a", true), call(LeaseWhat::Release, 20, "a", true)];
    finds(&twice, &[Kind::LeasesNotConserved]);
}

#[test]
fn a_lease_that_was_given_back_and_stays_is_found() {
    let mut stays = history(slots(1), vec![lease(0, "a"), refused(500, 501, 400)]);
    finds(&stays, &[]);
    stays.lease_calls.push(call(LeaseWhat::Release, 10, "a", true));
    finds(&stays, &[Kind::WronglyRefused]);
}

#[test]
fn a_key_without_a_time_to_live_is_found() {
    let keys = [("expires".to_owned(), 1_000), ("gone".to_owned(), -2), ("stays".to_owned(), -1)];
    let found = keys_without_ttl(keys);
    assert_eq!(found.iter().map(|found| found.what.as_str()).collect::<Vec<_>>(), ["stays"]);
}

/// What is found of scripts that took so many milliseconds between two looks, while Redis waited for a core for so many.
fn slow(took: &[u64], waited: u64, pace: Pace) -> usize {
    let script = |took: &u64| Script { took: ms(*took), words: "evalsha".to_owned() };
    let span = Span { from: 100 * SECOND, until: 101 * SECOND, waited: ms(waited) };
    let look = Look { span, scripts: took.iter().map(script).collect() };
    let stopped = Span { from: 102 * SECOND, until: 103 * SECOND, waited: SECOND };
    slow_scripts(&[look], &[stopped], pace).len()
}

#[test]
fn a_slow_script_is_found_unless_redis_had_no_core_meanwhile() {
    let usual = Pace::of(&[]);
    assert_eq!(slow(&[3], 0, usual), 1);
    assert_eq!(slow(&[3], 2, usual), 0);
    assert_eq!(slow(&[30], 2, usual), 1);
    let look = Look {
        span: Span { from: SECOND, until: 2 * SECOND, waited: Duration::ZERO },
        scripts: vec![Script { took: ms(30), words: "evalsha".to_owned() }],
    };
    let stopped = Span { from: ms(1_500), until: ms(1_600), waited: ms(100) };
    assert_eq!(slow_scripts(&[look], &[stopped], usual).len(), 0);
}

#[test]
fn what_redis_waited_for_a_core_excuses_one_slow_script_and_not_each_of_many() {
    let usual = Pace::of(&[]);
    assert_eq!(slow(&[30], 30, usual), 0);
    assert_eq!(slow(&[30, 3, 30], 30, usual), 1);
    assert_eq!(slow(&[3, 3, 3], 3, usual), 0, "each may have taken two");
}

#[test]
fn on_a_machine_that_is_slower_a_script_may_take_as_much_longer_and_no_more() {
    let [twice, faster] = [900, 100].map(|best| Pace::of(&[ms(50), Duration::from_micros(best), ms(9)]));
    assert_eq!((slow(&[3], 0, twice), slow(&[5], 0, twice)), (0, 1));
    assert_eq!(slow(&[3], 0, faster), 1, "what is fast is not asked for more");
    assert_eq!(slow(&[3], 0, faster.max(twice)), 0);
}
