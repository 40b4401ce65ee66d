//! `coordination: approximate` on two servers that share a real Redis: whom it refuses, and how much it may admit.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::time::Duration;

use tidegate_testkit::resp::Client;
use tidegate_testkit::{Redis, eventually};

use crate::redis_world::{Answer, Node, PATIENCE, PATIENT, check, now, pass, tell};

const ALGORITHMS: [&str; 3] = ["fixed_window", "sliding_window", "sliding_log"];

/// Promise 11: 40 a second where 50 are allowed, evenly over both nodes. Hits that are reported after their window must not be
/// held against the next one.
#[test]
fn nobody_is_refused_below_an_approximate_limit_whose_nodes_report_as_seldom_as_its_window_or_more_seldom() {
    const APART: Duration = Duration::from_millis(25);
    let rules = ALGORITHMS.iter().flat_map(|algorithm| ["1s", "2s"].map(|sync| (*algorithm, sync)));
    let users: Vec<(&str, &str)> = rules.collect();
    let rule = |(algorithm, sync): &(&str, &str)| {
        format!(
            "- {{ name: {algorithm}-{sync}, match: {{ plan: {algorithm}-{sync} }}, key: [plan], coordination: approximate, sync_every: {sync}, limits: [{{ algorithm: {algorithm}, limit: 50, window: 1s }}] }}\n"
        )
    };
    let redis = Redis::start();
    let nodes = Node::pair(&redis.url(), PATIENT, &users.iter().map(rule).collect::<String>());
    let mut clients = nodes.each_ref().map(Node::client);
    let mut refused = BTreeMap::<String, usize>::new();
    for turn in 0..200 {
        let sent = now();
        for (algorithm, sync) in &users {
            let plan = format!("{algorithm}-{sync}");
            let answer = check(&mut clients[turn % 2], &[("plan", &plan)], 1);
            *refused.entry(plan).or_default() += usize::from(!answer.allowed);
        }
        // Never more than 40 a second: who is late does not catch up.
        pass(APART.saturating_sub(sent.elapsed()));
    }
    assert!(refused.values().all(|refused| *refused == 0), "of 200 each: {refused:?}");
}

/// What was admitted under one key of the rule below, and by whom.
#[derive(Debug, Default)]
struct Admitted {
    all: usize,
    by_a_node: usize,
    /// How many had passed when the first was refused.
    before_a_refusal: Option<usize>,
}

impl Admitted {
    fn note(&mut self, answer: &Answer) {
        if answer.allowed {
            self.all += 1;
            self.by_a_node += usize::from(answer.source == "approximate");
        } else {
            self.before_a_refusal.get_or_insert(self.all);
        }
    }

    /// The nodes decided, nobody was refused below the limit of 600, and all of it stays within the bound.
    fn assert_within_the_bound(&self, how: &str) {
        tell!("{how}: {self:?}");
        assert!(self.by_a_node > 0, "the nodes decide: {self:?}");
        assert!(self.before_a_refusal.is_some_and(|passed| passed >= 600), "{self:?}");
        assert!(self.all < BOUND, "{self:?}");
    }
}

/// A log, so that the bound holds for any minute, whenever the test begins.
const SIX_HUNDRED: &str = "\
- { name: a, key: [user], coordination: approximate, sync_every: 200ms, limits: [{ algorithm: sliding_log, limit: 600, window: 1m }] }
";

/// Two nodes that have known each other for long enough to decide by themselves.
fn settled_pair(redis: &Redis) -> [Node; 2] {
    let nodes = Node::pair(&redis.url(), PATIENT, SIX_HUNDRED);
    for node in &nodes {
        let mut client = node.client();
        eventually("the node decides by itself", PATIENCE, || {
            check(&mut client, &[("user", "first")], 1).source == "approximate"
        });
    }
    nodes
}

/// Less than 2 L + N in all, on N nodes: docs/operate/lost.md.
const BOUND: usize = 2 * 600 + 2;

#[test]
fn an_approximate_limit_that_is_asked_evenly_refuses_nobody_below_it_and_stays_within_its_bound() {
    let redis = Redis::start();
    let nodes = settled_pair(&redis);
    let mut clients = nodes.each_ref().map(Node::client);
    let mut admitted = Admitted::default();
    for turn in 0..2_000 {
        admitted.note(&check(&mut clients[turn % 2], &[("user", "42")], 1));
    }
    admitted.assert_within_the_bound("asked evenly");
}

/// The worst that may happen: one node has its share and nothing to report yet, and uses it after the other has spent all.
#[test]
fn an_approximate_limit_that_one_node_floods_first_refuses_nobody_below_it_and_stays_within_its_bound() {
    let redis = Redis::start();
    let nodes = settled_pair(&redis);
    let mut clients = nodes.each_ref().map(Node::client);
    let mut admitted = Admitted::default();
    admitted.note(&check(&mut clients[0], &[("user", "42")], 1));
    let flood = vec![["TG.CHECK", "api", "user", "42"].map(str::to_owned).to_vec(); 1_500];
    for client in clients.iter_mut().rev() {
        client.pipeline(&flood).iter().for_each(|reply| admitted.note(&Answer::read(reply)));
    }
    admitted.assert_within_the_bound("one node after the other");
}

/// Promise 10, and its figures: six nodes of a limit of 1,000 admit fewer than 2,006. Each is asked from the moment that it listens,
/// when it may not have heard of the others, and once more when all of them listen.
#[test]
fn six_nodes_that_start_together_stay_within_the_bound_of_an_approximate_limit() {
    const NODES: usize = 6;
    const RULES: &str = "\
- { name: a, key: [user], coordination: approximate, sync_every: 200ms, limits: [{ algorithm: sliding_log, limit: 1000, window: 1m }] }
";
    let redis = Redis::start();
    let (url, all_listen) = (redis.url(), Barrier::new(NODES));
    let of_a_node = || {
        let node = Node::start(&url, PATIENT, RULES);
        let at_once = flood(&mut node.client(), "at once", 1_100);
        all_listen.wait();
        let together = flood(&mut node.client(), "together", 1_100);
        // A node that is gone would no longer be one of six.
        all_listen.wait();
        [at_once, together]
    };
    let nodes: Vec<[usize; 2]> = std::thread::scope(|scope| {
        let nodes: Vec<_> = (0..NODES).map(|_| scope.spawn(of_a_node)).collect();
        nodes.into_iter().map(|node| node.join().unwrap()).collect()
    });
    tell!("admitted by each of {NODES} cold nodes: {nodes:?}");
    for (asked, what) in ["from when each listens", "when all listen"].into_iter().enumerate() {
        let admitted: usize = nodes.iter().map(|of_a_node| of_a_node[asked]).sum();
        assert!((1_000..2_006).contains(&admitted), "{what}: {admitted}");
    }
}

/// How many of so many requests at once pass.
fn flood(client: &mut Client, user: &str, count: usize) -> usize {
    let words = ["TG.CHECK", "api", "user", user].map(str::to_owned).to_vec();
    let replies = client.pipeline(&vec![words; count]);
    replies.iter().filter(|reply| Answer::read(reply).allowed).count()
}
