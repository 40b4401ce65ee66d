//! A refusal is repeated by the node that heard it: cheaply, for a second at most, and never wrongly.

use tidegate_core::{Micros, Outcome};
use tidegate_limiter::{Decision, LimitReport, Source, SpentAt};

use super::store::Weather;
use super::{Fleet, Setting};
use crate::allocations::allocations;
use crate::world::compile;

fn rules(limit: &str) -> String {
    format!("- {{ name: a, key: [user], limits: [{limit}] }}")
}

fn fleet(limit: &str, nodes: usize) -> Fleet {
    Fleet::new(&rules(limit), Setting { nodes, latency: (250, 250), ..Setting::default() })
}

const TEN_AN_HOUR: &str = "{ algorithm: fixed_window, limit: 10, window: 1h }";

fn numbers(decision: &Decision) -> Outcome {
    decision.governing().unwrap().limit().unwrap().outcome
}

#[test]
fn a_flooded_key_over_its_limit_costs_one_call_per_second_and_node() {
    let fleet = fleet(TEN_AN_HOUR, 2);
    let _ = fleet.nodes[0].check_cost("one", 10);
    let mut asked = 0;
    // Two thousand a second through each node, for ten seconds.
    for _ in 0..10_000 {
        for node in &fleet.nodes {
            asked += 2;
            drop((node.start("one"), node.start("one")));
        }
        fleet.executor.run_for(Micros::from_millis(1));
    }
    let calls = fleet.calls();
    assert_eq!(asked, 40_000);
    assert!((20..=23).contains(&calls), "{calls} calls for ten seconds on two nodes");
}

#[test]
fn after_a_second_one_call_asks_again_and_the_others_wait_for_it() {
    let fleet = fleet(TEN_AN_HOUR, 1);
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 10);
    let _ = node.check("one");
    fleet.run_for_millis(1_000);
    node.link.forget_calls();
    let herd: Vec<_> = (0..200).map(|_| node.start("one")).collect();
    let sources: Vec<Source> = herd.into_iter().map(|one| one.wait().decision.source).collect();
    assert_eq!(node.link.calls(), 1);
    let by = |wanted| sources.iter().filter(|source| **source == wanted).count();
    // Those that came together went as one.
    assert!(by(Source::Store) >= 1);
    assert_eq!(by(Source::Store) + by(Source::DenyCache), 200);
}

#[test]
fn what_costs_at_least_as_much_is_refused_here_and_what_costs_less_is_asked() {
    let fleet = fleet(TEN_AN_HOUR, 1);
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 4);
    assert_eq!(node.check_cost("one", 8).source, Source::Store);
    for cost in [8, 9, 10, 11] {
        let refused = node.check_cost("one", cost);
        assert_eq!((refused.allowed, refused.source), (false, Source::DenyCache), "cost {cost}");
    }
    let cheaper = node.check_cost("one", 2);
    assert_eq!((cheaper.allowed, cheaper.source), (true, Source::Store));
    // What was spent meanwhile does not make the refusal less true.
    let refused = node.check_cost("one", 8);
    assert_eq!((refused.source, numbers(&refused).remaining), (Source::DenyCache, 4));
    assert!(node.check_cost("one", 7).source == Source::Store);
}

#[test]
fn a_refusal_ends_when_its_own_time_is_up() {
    let fleet = fleet("{ algorithm: token_bucket, rate: 10/s, burst: 1 }", 1);
    let node = &fleet.nodes[0];
    let _ = node.check("one");
    let began = fleet.executor.now();
    let refused = node.check("one");
    let retry_after = numbers(&refused).retry_after().unwrap();
    // Counted from when it was asked for, a round trip ago.
    fleet.executor.run_for(retry_after.saturating_sub(Micros::new(501)));
    assert_eq!(node.check("one").source, Source::DenyCache);
    fleet.executor.run_for(Micros::ONE);
    let admitted = node.check("one");
    assert_eq!((admitted.allowed, admitted.source), (true, Source::Store));
    assert!(fleet.executor.now().since(began) < Micros::from_millis(102));
}

#[test]
fn numbers_told_from_here_are_those_of_the_moment() {
    let fleet = fleet("{ algorithm: token_bucket, rate: 10/s, burst: 50 }", 1);
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 45);
    let first = numbers(&node.check_cost("one", 30));
    assert_eq!(first.remaining, 5);
    fleet.executor.run_for(Micros::from_millis(700));
    let later = node.check_cost("one", 30);
    assert_eq!(later.source, Source::DenyCache);
    let later = numbers(&later);
    // Ten come back in a second. The store may have decided when its answer came: what is returned counts from then.
    assert_eq!(later.remaining, 12);
    let passed = Micros::from_millis(700);
    assert_eq!(later.reset_after, first.reset_after.saturating_sub(passed));
    assert_eq!(later.retry_after(), first.retry_after().map(|wait| wait.saturating_sub(passed)));
}

#[test]
fn who_waits_as_long_as_a_remembered_refusal_says_is_admitted() {
    for limit in [
        "{ algorithm: token_bucket, rate: 2/s, burst: 1 }",
        "{ algorithm: sliding_log, limit: 1, window: 500ms }",
        "{ algorithm: fixed_window, limit: 1, window: 500ms }",
    ] {
        let fleet = fleet(limit, 1);
        let node = &fleet.nodes[0];
        // On a slow way, what is counted from when the question was sent is early for whoever finds a fast one.
        node.link.set(Weather::Slow(Micros::from_millis(4)));
        (0..2).for_each(|_| drop(node.check("one")));
        node.link.set(Weather::Fine);
        fleet.executor.run_for(Micros::from_millis(100));
        let remembered = node.check("one");
        assert_eq!(remembered.source, Source::DenyCache, "{limit}");
        fleet.executor.run_for(numbers(&remembered).retry_after().unwrap());
        let admitted = node.check("one");
        assert_eq!((admitted.allowed, admitted.source), (true, Source::Store), "{limit}");
    }
}

#[test]
fn a_refund_or_a_reset_through_this_node_counts_at_once() {
    for give_back in ["refund", "reset"] {
        let fleet = fleet(TEN_AN_HOUR, 1);
        let node = &fleet.nodes[0];
        let _ = node.check_cost("one", 10);
        assert!(!node.check("one").allowed);
        // A request that was refused on its way back must not bring the refusal along.
        let overtaken = node.start("two");
        match give_back {
            "refund" => node.refund("one", 3),
            _ => node.reset("one"),
        }
        overtaken.wait();
        let again = node.check("one");
        assert_eq!((again.allowed, again.source), (true, Source::Store), "{give_back}");
    }
}

#[test]
fn a_refusal_under_way_while_hits_are_given_back_is_not_repeated() {
    let fleet = fleet(TEN_AN_HOUR, 1);
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 10);
    // Refused by the store before the refund, heard of after it.
    let slow = node.start("one");
    fleet.executor.run_for(Micros::new(260));
    let limiter = node.limiter.clone();
    node.link.set(Weather::Slow(Micros::new(1)));
    let refund = fleet.executor.start(async move {
        let entries: [(&str, &[u8]); 1] = [("user", b"one")];
        let asks = [tidegate_limiter::DescriptorAsk::one(&entries)];
        let request = tidegate_limiter::CheckRequest::new("api", &asks);
        limiter.refund(&request, tidegate_core::Hits::new(5), SpentAt::Unknown).await.unwrap();
    });
    refund.wait();
    assert!(!slow.is_done());
    assert!(!slow.wait().decision.allowed);
    assert!(node.check("one").allowed);
}

#[test]
fn a_refund_or_a_reset_through_another_node_counts_within_a_second() {
    for give_back in ["refund", "reset"] {
        let fleet = fleet(TEN_AN_HOUR, 2);
        let [here, there] = &fleet.nodes[..] else { panic!("two nodes") };
        let _ = here.check_cost("one", 10);
        let sent = fleet.executor.now();
        assert!(!here.check("one").allowed);
        match give_back {
            "refund" => there.refund("one", 3),
            _ => there.reset("one"),
        }
        assert!(!here.check("one").allowed, "it cannot know yet");
        fleet.executor.run_for(Micros::from_secs(1).saturating_sub(fleet.executor.now().since(sent)));
        assert!(here.check("one").allowed, "{give_back}");
    }
}

#[test]
fn a_raised_limit_counts_at_once_where_the_rules_changed() {
    let fleet = fleet(TEN_AN_HOUR, 1);
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 10);
    assert!(!node.check("one").allowed);
    node.limiter.use_rules(compile(&rules("{ algorithm: fixed_window, limit: 12, window: 1h }")));
    assert!(node.check("one").allowed);
}

#[test]
fn another_tier_of_the_same_cell_is_another_limit() {
    let rules = "- { name: a, key: [user], tiers: { on: plan, default: free, \
                 free: [{ algorithm: fixed_window, limit: 2, window: 1h }], \
                 pro: [{ algorithm: fixed_window, limit: 9, window: 1h }] } }";
    let fleet = Fleet::new(rules, Setting::default());
    let node = &fleet.nodes[0];
    let check = |plan: &str| {
        let attributes = vec![("user".to_owned(), "one".to_owned()), ("plan".to_owned(), plan.to_owned())];
        fleet.executor.finish(node.checking(attributes, 1)).decision.allowed
    };
    assert_eq!([check("free"), check("free"), check("free")], [true, true, false]);
    assert!(check("pro"));
}

#[test]
fn leases_and_refusals_that_count_are_asked_every_time() {
    for limit in [
        "{ algorithm: concurrency, limit: 1, ttl: 60s }",
        "{ algorithm: sliding_log, limit: 1, window: 1h, count_refused: true }",
    ] {
        let fleet = fleet(limit, 1);
        let node = &fleet.nodes[0];
        let _ = node.check("one");
        for _ in 0..3 {
            let refused = node.check("one");
            assert_eq!((refused.allowed, refused.source), (false, Source::Store), "{limit}");
        }
    }
}

#[test]
fn a_shadow_rule_is_asked_every_time_and_never_refuses() {
    let fleet = Fleet::new(
        "- { name: a, key: [user], shadow: true, limits: [{ algorithm: fixed_window, limit: 1, window: 1h }] }",
        Setting::default(),
    );
    for _ in 0..3 {
        let decision = fleet.nodes[0].check("one");
        assert_eq!((decision.allowed, decision.source), (true, Source::Store));
    }
}

#[test]
fn whatever_the_algorithm_a_refusal_told_here_is_what_the_store_would_say() {
    let limits = [
        "{ algorithm: token_bucket, rate: 7/s, burst: 20 }",
        "{ algorithm: leaky_bucket, rate: 7/s, max_delay: 2s }",
        "{ algorithm: fixed_window, limit: 9, window: 5s }",
        "{ algorithm: sliding_window, limit: 9, window: 5s }",
        "{ algorithm: sliding_log, limit: 9, window: 5s }",
    ];
    for (limit, seed) in limits.into_iter().flat_map(|limit| (0..30).map(move |seed| (limit, seed))) {
        // No time on the way, so that here and there it is the same moment.
        let setting = Setting { seed, latency: (0, 0), ..Setting::default() };
        let fleet = Fleet::new(&rules(limit), setting);
        let twin = Fleet::new(&rules(limit), Setting { seed, latency: (0, 0), ..Setting::default() });
        let mut told_here = 0;
        for _ in 0..200 {
            let pause = Micros::new(fleet.executor.below(120_000));
            let cost = 1 + fleet.executor.below(3) * fleet.executor.below(3);
            fleet.executor.run_for(pause);
            twin.executor.run_for(pause);
            let here = fleet.nodes[0].check_cost("one", cost);
            // The twin remembers nothing: a change of rules makes it forget.
            twin.nodes[0].limiter.use_rules(compile(&rules(limit)));
            let truth = twin.nodes[0].check_cost("one", cost);
            assert_eq!(here.allowed, truth.allowed, "{limit}, seed {seed}");
            if here.source == Source::DenyCache {
                told_here += 1;
                assert_eq!(numbers(&here).reset_after, numbers(&truth).reset_after, "{limit}, seed {seed}");
            }
        }
        assert!(told_here > 10, "{limit}: only {told_here} refusals were told here");
    }
}

#[test]
fn a_refusal_told_here_allocates_nothing_and_wakes_nobody() {
    let fleet = fleet(TEN_AN_HOUR, 1);
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 10);
    let _ = node.check("one");
    let entries: [(&str, &[u8]); 1] = [("user", b"one")];
    let asks = [tidegate_limiter::DescriptorAsk::one(&entries)];
    let request = tidegate_limiter::CheckRequest::new("api", &asks);
    let check = || {
        let decision = crate::world::at_once(node.limiter.check(&request)).unwrap();
        assert_eq!(decision.source, Source::DenyCache);
    };
    check();
    assert_eq!(allocations(|| (0..100).for_each(|_| check())), 0);
}

/// Promise 12.
#[test]
fn the_deny_cache_hides_no_refusal_from_a_cell_that_counts_them() {
    let rules = "
- { name: few, key: [user], limits: [{ algorithm: fixed_window, limit: 3, window: 1h }] }
- { name: tries, key: [user], limits: [{ algorithm: sliding_log, limit: 20, window: 1h, count_refused: true }] }";
    let fleet = Fleet::new(rules, Setting::default());
    let node = &fleet.nodes[0];
    let tries = |decision: &Decision| {
        let counts = |report: &&tidegate_limiter::Report| {
            decision.rule_of(report).is_some_and(|rule| rule.name() == "tries")
        };
        decision.reports().iter().find(counts).unwrap().limit().unwrap().outcome.remaining
    };
    let decisions: Vec<Decision> = (0..20).map(|_| node.check("one")).collect();
    assert_eq!(decisions.iter().filter(|decision| decision.allowed).count(), 3);
    assert_eq!(tries(&node.check_cost("one", 0)), 0, "each refused try was counted");
}

#[test]
fn a_refusal_after_a_penalty_ended_goes_to_the_store_and_begins_the_next_one_once() {
    let rules = "- { name: a, key: [user], penalty: 1s,
        limits: [{ algorithm: sliding_log, limit: 4, window: 2s }] }";
    let fleet = Fleet::new(rules, Setting { nodes: 1, latency: (250, 250), ..Setting::default() });
    let node = &fleet.nodes[0];
    let _ = node.check_cost("one", 4);
    fleet.run_for_millis(200);
    assert!(!node.check("one").allowed, "its penalty ends a second from here");
    fleet.run_for_millis(980);
    assert_eq!(node.check("one").source, Source::Store, "both still refuse");
    fleet.run_for_millis(620);
    node.link.forget_calls();
    assert_eq!(node.check("one").source, Source::Store, "the penalty is over, the limit is not");
    for _ in 0..100 {
        assert_eq!(node.check("one").source, Source::DenyCache, "the next one has begun");
    }
    assert_eq!(node.link.calls(), 1);
    fleet.run_for_millis(300);
    let refused = node.check("one");
    assert!(!refused.allowed, "there is room, but the penalty has begun anew");
    let wait = refused.retry_after().unwrap().as_millis();
    assert!((600..800).contains(&wait), "{wait} ms of the second are left");
}

#[test]
fn a_refusal_known_of_one_rule_keeps_no_penalty_of_another_from_starting() {
    let rules = "
- { name: everybody, key: [], limits: [{ algorithm: fixed_window, limit: 3, window: 1h }] }
- { name: login, key: [user], penalty: 5m, limits: [{ algorithm: sliding_log, limit: 2, window: 1m }] }";
    let fleet = Fleet::new(rules, Setting { nodes: 1, latency: (250, 250), ..Setting::default() });
    let node = &fleet.nodes[0];
    let is_punished = |decision: &Decision| {
        let is_penalty = |limit: &LimitReport| limit.window == Some(Micros::from_secs(300));
        decision.reports().iter().any(|one| one.is_refusal() && one.limit().is_some_and(is_penalty))
    };
    assert!(node.check("x").allowed && node.check("x").allowed && node.check("y").allowed);
    let refused = node.check("y");
    assert!(!refused.allowed && !is_punished(&refused), "only the limit of everybody refuses");
    // That limit is known to refuse, and so does the caller's own.
    assert!(is_punished(&node.check("x")));
    node.link.forget_calls();
    for _ in 0..100 {
        assert_eq!(
            node.check("x").source,
            Source::DenyCache,
            "its penalty is known, and nothing more can start"
        );
    }
    assert_eq!(node.link.calls(), 0);
}
