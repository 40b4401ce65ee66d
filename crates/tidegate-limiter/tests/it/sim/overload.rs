//! Too much at once is not a store that fails: nothing opens, nothing is given away, and it ends with its cause.

use tidegate_core::Micros;
use tidegate_limiter::{BreakerState, CheckRequest, DescriptorAsk, Health, Overload, Source};
use tidegate_store::HELD_RETRY_AFTER;

use super::store::Weather;
use super::{Checked, Fleet, Setting};

fn rules(policy: &str, limit: u64) -> String {
    format!(
        "- {{ name: a, key: [user], on_store_failure: {policy}, limits: [{{ algorithm: fixed_window, limit: {limit}, window: 1h }}] }}"
    )
}

fn small_queue() -> Setting {
    Setting {
        change: |remote| {
            (remote.queue.calls, remote.queue.items) = (1, 4);
            (remote.queue.work, remote.queue.bytes) = (Micros::from_millis(1), 1 << 20);
        },
        ..Setting::default()
    }
}

fn all(waiting: Vec<super::Handle<Checked>>) -> Vec<Checked> {
    waiting.into_iter().map(|one| one.wait()).collect()
}

/// Promise 1, without the sockets: 40 connections of 128 each, at once, on one key.
#[test]
fn a_flood_of_any_size_on_one_key_is_exact_under_every_policy() {
    for policy in ["open", "closed", "local"] {
        let fleet = Fleet::running(&rules(policy, 100), Setting { nodes: 2, ..Setting::default() });
        let mut admitted = 0;
        for burst in 0..8 {
            let flood: Vec<_> = (0..5_120).map(|n| fleet.nodes[n % 2].start("one")).collect();
            for Checked { decision, .. } in all(flood) {
                assert!(
                    matches!(decision.source, Source::Store | Source::DenyCache),
                    "{policy}, burst {burst}: {:?}",
                    decision.source
                );
                admitted += u64::from(decision.allowed);
            }
            fleet.run_for_millis(2_100);
        }
        assert_eq!(admitted, 100, "{policy}");
        assert!(fleet.nodes.iter().all(|node| node.heard.overloaded.lock().unwrap().is_empty()));
    }
}

#[test]
fn a_flood_on_a_concurrency_limit_costs_little_more_than_its_leases_and_stays_exact() {
    let rules = "- { name: a, key: [user], limits: [{ algorithm: concurrency, limit: 100, ttl: 1h }] }";
    let fleet = Fleet::running(rules, Setting::default());
    let node = &fleet.nodes[0];
    node.link.forget_calls();
    let flood = all((0..50_000).map(|_| node.start("one")).collect());
    let (calls, decisions) = (node.link.calls(), flood.iter().map(|one| &one.decision));
    let by = |source| decisions.clone().filter(|decision| decision.source == source).count();
    assert_eq!(decisions.clone().filter(|decision| decision.allowed).count(), 100);
    // Leases are not folded: what the queue has no room for is overload.
    assert_eq!(by(Source::Store) + by(Source::DenyCache) + by(Source::OverloadLocal), 50_000);
    assert!(calls <= 20, "{calls} calls");
    // Who asks after one was released is not refused by what was true before.
    let lease = decisions.clone().find_map(|decision| decision.lease.clone()).unwrap();
    let limiter = node.limiter.clone();
    assert!(!node.check("one").allowed);
    fleet.executor.finish(async move { limiter.release(&lease).await }).unwrap();
    assert!(node.check("one").allowed);
}

#[test]
fn flood_of_equal_charges_costs_few_calls_and_all_count() {
    let rules = "- { name: a, key: [user], over: debt, limits: [{ algorithm: token_bucket, rate: 100/s, burst: 100 }] }";
    let fleet = Fleet::running(rules, Setting::default());
    let node = &fleet.nodes[0];
    node.link.forget_calls();
    let flood = all((0..50_000).map(|_| node.start_charge("one", 5)).collect());
    assert!(flood.iter().all(|one| one.decision.source == Source::Store));
    assert_eq!(flood.iter().filter(|one| one.decision.allowed).count(), 20);
    let calls = node.link.calls();
    assert!(calls <= 20, "{calls} calls");
    // A debt of 249,900 hits, at 100 a second.
    let wait = node.check("one").governing().unwrap().limit().unwrap().outcome.retry_after().unwrap();
    assert!((2_498..=2_500).contains(&(wait.get() / 1_000_000)), "{wait:?}");
}

#[test]
fn flood_of_asks_above_what_is_left_is_owed_or_capped_once() {
    for (over, passes) in [("debt", 14), ("cap", 15)] {
        let rules = format!(
            "- {{ name: a, key: [user], over: {over}, limits: [{{ algorithm: fixed_window, limit: 100, window: 1h }}] }}"
        );
        let fleet = Fleet::running(&rules, Setting::default());
        let node = &fleet.nodes[0];
        node.link.forget_calls();
        let flood = all((0..5_000).map(|_| node.start_cost("one", 7)).collect());
        assert_eq!(flood.iter().filter(|one| one.decision.allowed).count(), passes, "{over}");
        let calls = node.link.calls();
        assert!(calls <= 20, "{calls} calls");
    }
}

#[test]
fn each_of_a_flood_has_the_numbers_of_its_own_place() {
    let fleet = Fleet::new(&rules("closed", 100), Setting::default());
    let flood: Vec<_> = (0..300).map(|_| fleet.nodes[0].start("one")).collect();
    let mut left: Vec<u64> = all(flood)
        .into_iter()
        .filter(|one| one.decision.allowed)
        .map(|one| one.decision.governing().unwrap().limit().unwrap().outcome.remaining)
        .collect();
    left.sort_unstable();
    assert!(left.into_iter().eq(0..100), "each number once");
}

#[test]
fn those_of_a_flood_who_leave_take_nobodys_place() {
    for seed in 0..20 {
        let fleet =
            Fleet::new(&rules("closed", 50), Setting { seed, latency: (500, 500), ..Setting::default() });
        let node = &fleet.nodes[0];
        let first = node.start("one");
        fleet.executor.run_for(Micros::new(100));
        let mut flood: Vec<_> = (0..100).map(|_| node.start("one")).collect();
        fleet.executor.settle();
        // Before their call leaves: nobody is charged for them.
        flood.drain(..60).for_each(|one| one.abort());
        assert!(first.wait().decision.allowed);
        assert!(all(flood).iter().all(|one| one.decision.allowed), "seed {seed}");
        let look = node.check_cost("one", 0);
        let left = look.governing().unwrap().limit().unwrap().outcome.remaining;
        assert_eq!(left, 9, "seed {seed}: of 50 after 41 that stayed");
        node.assert_idle();
    }
}

#[test]
fn a_full_queue_is_overload_answered_at_once_and_opens_no_breaker() {
    let fleet = Fleet::new(&rules("closed", 300), small_queue());
    let node = &fleet.nodes[0];
    let first = node.start("first");
    fleet.executor.settle();
    let checked = all((0..10).map(|user| node.start(&user.to_string())).collect());
    let (turned_away, served): (Vec<_>, Vec<_>) =
        checked.iter().partition(|one| one.decision.source == Source::OverloadClosed);
    // One under way, four behind it.
    assert_eq!((turned_away.len(), served.len()), (6, 4));
    assert!(turned_away.iter().all(|one| one.took == Micros::ZERO && !one.decision.allowed));
    assert!(served.iter().all(|one| one.decision.source == Source::Store));
    let heard: usize = node.heard.overloaded.lock().unwrap().iter().map(|(_, requests)| requests).sum();
    assert_eq!(heard, 6);
    assert!(first.wait().decision.allowed);
    assert!(node.heard.breaker.lock().unwrap().is_empty() && node.heard.fell_back.lock().unwrap().is_empty());
}

#[test]
fn what_is_known_to_be_refused_or_spent_stays_so_in_overload_even_where_the_rule_is_open() {
    let fleet = Fleet::new(&rules("open", 300), small_queue());
    let node = &fleet.nodes[0];
    let _ = node.check_cost("refused", 300);
    assert!(!node.check("refused").allowed);
    let _ = node.check_cost("spent", 300);
    let _ = node.check_cost("half", 150);
    fleet.run_for_millis(1_001);
    let _busy = node.start("busy");
    fleet.executor.settle();
    let _full: Vec<_> = (0..4).map(|user| node.start(&user.to_string())).collect();
    fleet.executor.settle();
    let told = ["refused", "spent", "half"].map(|user| {
        let one = node.start(user).wait();
        assert_eq!(one.took, Micros::ZERO);
        (one.decision.allowed, one.decision.source)
    });
    let expected = [(false, Source::DenyCache), (false, Source::OverloadOpen), (true, Source::OverloadOpen)];
    assert_eq!(told, expected);
}

/// Fills the queue of a node, so that nobody else may wait.
fn fill(fleet: &Fleet) -> Vec<super::Handle<Checked>> {
    let node = &fleet.nodes[0];
    let busy = node.start("busy");
    fleet.executor.settle();
    let full = (0..4).map(|user| node.start(&user.to_string()));
    let waiting: Vec<_> = std::iter::once(busy).chain(full).collect();
    fleet.executor.settle();
    waiting
}

fn told(fleet: &Fleet, user: &str, requests: usize) -> (usize, Vec<Source>) {
    let checked: Vec<Checked> = (0..requests).map(|_| fleet.nodes[0].start(user).wait()).collect();
    assert!(checked.iter().all(|one| one.took == Micros::ZERO));
    let mut sources: Vec<Source> = checked.iter().map(|one| one.decision.source).collect();
    sources.dedup();
    (checked.iter().filter(|one| one.decision.allowed).count(), sources)
}

#[test]
fn in_overload_a_local_rule_admits_its_share_and_then_says_to_ask_again_soon() {
    let fleet = Fleet::running(&rules("local", 20), Setting { nodes: 2, ..small_queue() });
    let node = &fleet.nodes[0];
    let _ = node.check_cost("seen", 10);
    let waiting = fill(&fleet);
    for (user, share) in [("seen", 5), ("unseen", 10)] {
        assert_eq!(told(&fleet, user, 30), (share, vec![Source::OverloadLocal]), "{user}");
        let refused = node.start(user).wait().decision;
        assert_eq!((refused.allowed, refused.source), (false, Source::OverloadLocal));
        let wait = refused.governing().unwrap().limit().unwrap().outcome.retry_after();
        assert_eq!(wait, Some(HELD_RETRY_AFTER));
    }
    drop(all(waiting));
    fleet.run_for_millis(2_000);
    for (user, left) in [("seen", 5), ("unseen", 10)] {
        let look = node.check_cost(user, 0);
        assert_eq!(
            look.governing().unwrap().limit().unwrap().outcome.remaining,
            left,
            "{user}: it is charged"
        );
    }
}

#[test]
fn in_overload_no_penalty_begins() {
    let rules = "- { name: a, key: [user], penalty: 5m, on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 20, window: 1h }] }";
    let fleet = Fleet::running(rules, small_queue());
    let waiting = fill(&fleet);
    let refused = fleet.nodes[0].start("late").wait().decision;
    assert_eq!((refused.allowed, refused.source), (false, Source::OverloadClosed));
    assert_eq!(refused.limit(), Some(20), "the limit, and not the penalty's one hit");
    drop(all(waiting));
    fleet.run_for_millis(2_000);
    assert!(fleet.nodes[0].check("late").allowed, "it was never refused by a limit");
}

#[test]
fn charges_in_overload_are_owed_under_every_policy() {
    for policy in ["open", "closed", "local"] {
        let rules = rules(policy, 20).replace("key: [user]", "key: [user], over: debt");
        let fleet = Fleet::running(&rules, small_queue());
        let node = &fleet.nodes[0];
        let waiting = fill(&fleet);
        let source = node.start_charge("late", 7).wait().decision.source;
        assert!(source.is_overload(), "{policy}: {source:?}");
        drop(all(waiting));
        fleet.run_for_millis(2_000);
        let look = node.check_cost("late", 0);
        assert_eq!(look.governing().unwrap().limit().unwrap().outcome.remaining, 13, "{policy}");
    }
}

#[test]
fn overload_refusal_of_a_local_rule_begins_no_penalty() {
    let window = "{ algorithm: fixed_window, limit: 20, window: 1h }";
    let leases = "{ algorithm: concurrency, limit: 20, ttl: 1h }";
    // The share of one of two nodes, and no leases at all: more is refused, though the caller may have more.
    for (limit, share) in [(window, 10), (leases, 0)] {
        let rules = format!("- {{ name: a, key: [user], penalty: 5m, limits: [{limit}] }}");
        let fleet = Fleet::running(&rules, Setting { nodes: 2, ..small_queue() });
        let waiting = fill(&fleet);
        assert_eq!(told(&fleet, "late", 12), (share, vec![Source::OverloadLocal]), "{limit}");
        drop(all(waiting));
        fleet.run_for_millis(2_000);
        assert!(fleet.nodes[0].check("late").allowed, "{limit}: no limit refused it");
    }
}

#[test]
fn in_overload_an_open_rule_lets_pass_no_more_than_its_limit_and_charges_it() {
    let fleet = Fleet::running(&rules("open", 20), Setting { nodes: 2, ..small_queue() });
    let node = &fleet.nodes[0];
    let _ = node.check_cost("seen", 15);
    let waiting = fill(&fleet);
    assert_eq!(told(&fleet, "seen", 30), (5, vec![Source::OverloadOpen]));
    assert_eq!(told(&fleet, "unseen", 30), (20, vec![Source::OverloadOpen]));
    drop(all(waiting));
    fleet.run_for_millis(2_000);
    assert!(!node.check("seen").allowed && !node.check("unseen").allowed);
}

#[test]
fn in_overload_an_open_rule_gives_no_more_leases_than_there_may_be_and_takes_them_back() {
    let rules = "- { name: a, key: [user], on_store_failure: open, limits: [{ algorithm: concurrency, limit: 5, ttl: 1h }] }";
    let fleet = Fleet::running(rules, small_queue());
    let node = &fleet.nodes[0];
    assert!((0..3).all(|_| node.check("seen").allowed));
    let waiting = fill(&fleet);
    assert_eq!(told(&fleet, "seen", 30), (2, vec![Source::OverloadOpen]));
    let mut leases: Vec<_> = (0..5).map(|_| node.start("unseen").wait().decision.lease.unwrap()).collect();
    assert_eq!(told(&fleet, "unseen", 30), (0, vec![Source::OverloadOpen]));
    let (limiter, given_back) = (node.limiter.clone(), leases.pop().unwrap());
    fleet.executor.finish(async move { limiter.release(&given_back).await.unwrap() });
    let _also_waiting = fill(&fleet);
    assert_eq!(told(&fleet, "unseen", 30), (1, vec![Source::OverloadOpen]));
    drop(all(waiting));
}

#[test]
fn a_deadline_that_passes_while_the_store_answers_others_is_overload() {
    // Each call takes 6 ms: who waits for the second one is late, and the store is well.
    let setting =
        Setting { latency: (3_000, 3_000), change: |remote| remote.queue.calls = 1, ..Setting::default() };
    let fleet = Fleet::new(&rules("closed", 300), setting);
    let node = &fleet.nodes[0];
    let mut waiting = vec![];
    for user in 0..200 {
        waiting.push(node.start(&user.to_string()));
        fleet.executor.run_for(Micros::new(200));
    }
    let checked = all(waiting);
    let by = |source| checked.iter().filter(|one| one.decision.source == source).count();
    assert_eq!(by(Source::Store) + by(Source::OverloadClosed), 200);
    assert!(by(Source::Store) >= 100, "{} by the store", by(Source::Store));
    assert!(checked.iter().all(|one| one.took <= Micros::from_millis(10)));
    let heard = node.heard.overloaded.lock().unwrap();
    assert!(heard.iter().all(|(why, _)| *why == Overload::Deadline));
    assert!(node.heard.breaker.lock().unwrap().is_empty());
}

/// Promise 20: a store that decides so many in a second decides so many, also when ten times as many are asked.
#[test]
fn overload_degrades_in_proportion_and_ends_with_its_cause() {
    for policy in ["open", "closed", "local"] {
        // One call at a time, of 2 ms, with a millisecond of work: about 150 requests each millisecond.
        let setting = Setting {
            latency: (1_000, 1_000),
            change: |remote| remote.queue.calls = 1,
            ..Setting::default()
        };
        let fleet = Fleet::new(&rules(policy, 300), setting);
        let node = &fleet.nodes[0];
        let served = |per_millisecond: usize, round: usize| {
            let mut waiting = vec![];
            for tick in 0..60 {
                let user = |n| format!("{round}-{tick}-{n}");
                waiting.extend((0..per_millisecond).map(|n| node.start(&user(n))));
                fleet.run_for_millis(1);
            }
            let checked = all(waiting);
            assert!(checked.iter().all(|one| one.took <= Micros::from_millis(10)));
            checked.iter().filter(|one| one.decision.source == Source::Store).count()
        };
        assert_eq!(served(60, 0), 60 * 60, "{policy}: at half of what it can, all");
        let busy = served(1_000, 1);
        assert!(busy >= 60 * 100, "{policy}: {busy} by the store in 60 ms of ten times too much");
        assert_eq!(served(60, 2), 60 * 60, "{policy}: and all again, at once");
        assert!(node.heard.breaker.lock().unwrap().is_empty());
    }
}

#[test]
fn a_stall_of_twenty_milliseconds_opens_no_breaker() {
    let fleet = Fleet::running(&rules("closed", 300), Setting::default());
    let node = &fleet.nodes[0];
    let mut waiting = vec![];
    for tick in 0..100 {
        match tick {
            20 => node.link.set(Weather::Hangs),
            40 => node.link.set(Weather::Fine),
            _ => {}
        }
        waiting.extend((0..20).map(|n| node.start(&format!("{tick}-{n}"))));
        fleet.run_for_millis(1);
    }
    let checked = all(waiting);
    assert!(node.heard.breaker.lock().unwrap().is_empty(), "{:?}", node.heard.breaker.lock().unwrap());
    let after = checked[50 * 20..].iter().filter(|one| one.decision.source != Source::Store).count();
    assert_eq!(after, 0, "ten milliseconds after the stall");
}

/// Promise 8, its second half.
#[test]
fn a_batch_with_one_check_on_a_dead_shard_takes_no_other_check_along() {
    let fleet = Fleet::running(&rules("closed", 300), Setting::default());
    let node = &fleet.nodes[0];
    *node.link.second_node.lock().unwrap() = Some((b'z', Weather::Hangs));
    for round in 0..6 {
        let limiter = node.limiter.clone();
        let decided = fleet.executor.finish(async move {
            let users = ["a", "b", "z", "c"];
            let entries: Vec<[(&str, &[u8]); 1]> =
                users.iter().map(|user| [("user", user.as_bytes())]).collect();
            let asks: Vec<_> = entries.iter().map(|entries| [DescriptorAsk::one(entries)]).collect();
            let checks: Vec<_> = asks.iter().map(|asks| CheckRequest::new("api", asks)).collect();
            let decisions = limiter.check_batch(&checks).await;
            decisions.into_iter().map(|one| one.unwrap().source).collect::<Vec<_>>()
        });
        // A silent call might be a pause; the prober finds out.
        let lost = if round == 0 { Source::OverloadClosed } else { Source::FallbackClosed };
        assert_eq!(decided, [Source::Store, Source::Store, lost, Source::Store]);
        fleet.run_for_millis(320);
    }
    let breakers: Vec<BreakerState> = node.limiter.nodes().iter().map(|node| node.breaker).collect();
    assert_eq!(breakers, [BreakerState::Closed, BreakerState::Open]);
}

#[test]
fn a_heartbeat_that_is_late_while_the_store_answers_others_is_no_sign_of_ill_health() {
    let fleet = Fleet::running(&rules("local", 100), Setting::default());
    let node = &fleet.nodes[0];
    let beats =
        || node.link.seen.lock().unwrap().others.iter().filter(|(_, call)| *call == "heartbeat").count();
    fleet.set(Weather::Slow(Micros::from_millis(15)));
    while beats() == 0 {
        fleet.run_for_millis(1);
    }
    fleet.set(Weather::Fine);
    // Some of them on the node that hears the beat.
    let users: Vec<_> = (0..8).map(|user| node.start(&format!("user-{user}"))).collect();
    assert!(all(users).iter().all(|one| one.decision.source == Source::Store));
    fleet.run_for_millis(20);
    assert_eq!(node.limiter.health(), Health::Healthy);
}
