//! More is asked of a real Redis than it answers in time, or than may wait for it: that is overload, which has a name of its own,
//! opens no breaker, and gives nobody anew what was spent.

use std::time::Duration;

use tidegate_testkit::resp::Value;
use tidegate_testkit::{Redis, eventually, in_three_tries};

use crate::redis_world::{Answer, Node, PATIENCE, PATIENT, POLICIES, alone, check, now, pass, tell};

/// The deadline: a stall of one and a half is silence that is too short to be a failure, which takes three.
const DEADLINE: Duration = Duration::from_millis(600);
const STALL: Duration = Duration::from_millis(900);
/// A refusal is repeated for a second; later the store is asked.
const FORGOTTEN: Duration = Duration::from_millis(1_050);

const FIVE: &str = "\
- { name: open, match: { policy: open }, key: [user], on_store_failure: open, limits: [{ algorithm: sliding_log, limit: 5, window: 1d }] }
- { name: closed, match: { policy: closed }, key: [user], on_store_failure: closed, limits: [{ algorithm: sliding_log, limit: 5, window: 1d }] }
- { name: local, match: { policy: local }, key: [user], on_store_failure: local, limits: [{ algorithm: sliding_log, limit: 5, window: 1d }] }
";

fn overloads(node: &Node, reason: &str) -> f64 {
    node.metric(&format!("tidegate_overloads_total{{reason=\"{reason}\"}}"))
}

/// Nobody says that the store has failed: no breaker, and no line of the log.
fn assert_not_a_failure(node: &Node) {
    assert_eq!(node.metric_sum("tidegate_breaker_state{"), 0.0, "a breaker is open");
    assert!(!node.server.stderr().contains("does not answer"), "{}", node.server.stderr());
}

/// What each policy answers to `user` while Redis stands still for `STALL`, with its `retry_after_ms`; all of them ask at once.
/// Fails if the machine made the stall much longer, or asked only after it.
fn asked_in_a_stall(redis: &Redis, node: &Node, user: &str) -> Result<[(Answer, Value); 3], String> {
    let ask = |policy: &'static str| {
        let reply = node.client().cmd(&["TG.CHECK", "api", "policy", policy, "user", user]);
        (Answer::read(&reply), reply.array()[3].clone())
    };
    redis.pause();
    let began = now();
    let answers = std::thread::scope(|scope| {
        let asking = POLICIES.map(|policy| scope.spawn(move || ask(policy)));
        pass(STALL);
        redis.resume();
        let lasted = began.elapsed();
        let answers = asking.map(|one| one.join().unwrap());
        match answers.iter().any(|(answer, _)| answer.source == "store") {
            _ if lasted > 2 * STALL => Err(format!("the machine made a stall last {lasted:?}")),
            true => Err(format!("some were in time: {answers:?}")),
            false => Ok(answers),
        }
    });
    eventually("the store decides again", PATIENCE, || {
        check(&mut node.client(), &[("policy", "closed"), ("user", "somebody")], 0).is_exact()
    });
    answers
}

/// A node on Redis where `user` has spent all that each policy allows, and nobody remembers a refusal.
fn spent_by(redis: &Redis, user: &str) -> Node {
    let node = Node::ready(&redis.url(), &format!("{}ms", DEADLINE.as_millis()), FIVE);
    let mut client = node.client();
    for policy in POLICIES {
        let passed = (0..6).filter(|_| check(&mut client, &[("policy", policy), ("user", user)], 1).allowed);
        assert_eq!(passed.count(), 5, "{policy}");
    }
    pass(FORGOTTEN);
    node
}

#[test]
fn a_stall_that_is_shorter_than_a_failure_is_overload_with_a_metric_and_a_source_of_its_own() {
    let _alone = alone();
    in_three_tries(|| {
        let redis = Redis::start();
        let node = Node::ready(&redis.url(), &format!("{}ms", DEADLINE.as_millis()), FIVE);
        assert_eq!(overloads(&node, "deadline"), 0.0);
        let answers = asked_in_a_stall(&redis, &node, "new")?;
        tell!("{answers:?}");
        let expected = [("open", true), ("closed", false), ("local", true)];
        for ((answer, _), (policy, allowed)) in answers.iter().zip(expected) {
            assert_eq!((answer.source.as_str(), answer.allowed), (&*format!("overload_{policy}"), allowed));
        }
        assert!(overloads(&node, "deadline") >= 3.0, "three requests were late");
        assert_not_a_failure(&node);
        Ok(())
    });
}

#[test]
fn in_overload_nobody_who_has_spent_all_is_given_a_share_whatever_the_policy() {
    let _alone = alone();
    in_three_tries(|| {
        let redis = Redis::start();
        let node = spent_by(&redis, "spent");
        let before = overloads(&node, "deadline");
        for (policy, (answer, retry_after_ms)) in
            POLICIES.iter().zip(asked_in_a_stall(&redis, &node, "spent")?)
        {
            assert!(!answer.allowed, "{policy}: {answer:?}");
            if answer.source == "overload_local" {
                assert_eq!(retry_after_ms, Value::Int(100), "to be asked again soon");
            }
        }
        assert!(overloads(&node, "deadline") > before, "nobody was late");
        assert_not_a_failure(&node);
        Ok(())
    });
}

/// Requests that differ in cost are not one to the store, and those on one key may take a sixteenth of the room: 4,096.
#[test]
fn a_queue_that_is_full_turns_away_at_once_and_opens_no_breaker() {
    const ROOM: usize = 65_536 / 16;
    const CONNECTIONS: usize = 64;
    const EACH: usize = 128;
    let rules = "- { name: much, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 1000000000, window: 1d }] }\n";
    let _alone = alone();
    let redis = Redis::start();
    let node = Node::start_with(&redis.url(), PATIENT, rules, "workers: 1\n");
    eventually("the node is in touch with its store", PATIENCE, || node.readyz() == "ready\n");
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| node.client()).collect();
    redis.pause();
    for (number, client) in clients.iter_mut().enumerate() {
        let words = |place: usize| {
            let cost = (1 + number * EACH + place).to_string();
            ["TG.CHECK", "api", "COST", &cost, "user", "42"].map(str::to_owned).to_vec()
        };
        client.send(&(0..EACH).map(words).collect::<Vec<_>>()).unwrap();
    }
    eventually("some are turned away", PATIENCE, || overloads(&node, "queue_full") > 0.0);
    let late = overloads(&node, "deadline");
    redis.resume();
    assert_eq!(late, 0.0, "they are turned away before any deadline");
    let read = |client: &mut tidegate_testkit::resp::Client| Answer::read(&client.receive().unwrap());
    let answers: Vec<Answer> =
        clients.iter_mut().flat_map(|client| (0..EACH).map(|_| read(client)).collect::<Vec<_>>()).collect();
    let turned_away = answers.iter().filter(|answer| answer.source == "overload_closed").count();
    tell!("{turned_away} of {} were turned away", answers.len());
    assert!(
        answers.iter().all(|answer| answer.allowed == (answer.source == "store")),
        "the others are decided"
    );
    assert!((1..=CONNECTIONS * EACH - ROOM).contains(&turned_away), "{turned_away}");
    assert_eq!(overloads(&node, "queue_full"), turned_away as f64);
    assert_not_a_failure(&node);
}

/// The charge may meet a Redis that stands still, and that discards it when it goes on: debts are paid every half second, so
/// stalls begin at several moments of that.
#[test]
fn what_an_open_rule_admits_in_overload_is_charged_though_the_stall_lasts() {
    let redis = Redis::start();
    let node = Node::ready(&redis.url(), "200ms", FIVE);
    for number in 0..5 {
        let user = format!("u{number}");
        let of_open = [("policy", "open"), ("user", user.as_str())];
        check(&mut node.client(), &of_open, 0);
        pass(Duration::from_millis(100 * number));
        redis.pause();
        let admitted = std::thread::scope(|scope| {
            let asking = scope.spawn(|| check(&mut node.client(), &of_open, 1));
            pass(Duration::from_millis(1_200));
            redis.resume();
            asking.join().unwrap()
        });
        tell!("{user}: {admitted:?}");
        assert!(admitted.allowed, "{user}");
        if admitted.source == "overload_open" {
            eventually("it is charged", PATIENCE, || {
                let seen = check(&mut node.client(), &of_open, 0);
                seen.is_exact() && seen.remaining == 4
            });
        }
    }
}
