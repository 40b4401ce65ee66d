//! Bursts on one key of a healthy Redis, again and again: its limit is admitted once, by whatever policy its rule has.

use std::time::Duration;

use tidegate_testkit::Redis;
use tidegate_testkit::resp::Client;

use crate::redis_world::{Answer, DEFAULT, Node, PATIENT, POLICIES, alone, now, pass, tell};

const CONNECTIONS: usize = 40;
const PIPELINED: usize = 128;
const BURSTS: u32 = 8;
/// Longer than a refusal is remembered, so that each burst reaches Redis.
const APART: Duration = Duration::from_millis(2_100);
const LIMIT: usize = 100;

const RULES: &str = "\
- { name: open, match: { policy: open }, key: [user], on_store_failure: open, limits: [100/h] }
- { name: closed, match: { policy: closed }, key: [user], on_store_failure: closed, limits: [100/h] }
- { name: local, match: { policy: local }, key: [user], on_store_failure: local, limits: [100/h] }
";

/// What each policy answered to all bursts.
#[derive(Debug, Default)]
struct Tally {
    asked: usize,
    admitted: usize,
    overloaded: usize,
    failed: usize,
}

impl Tally {
    fn note(&mut self, answer: &Answer) {
        self.asked += 1;
        self.admitted += usize::from(answer.allowed);
        self.overloaded += usize::from(answer.source.starts_with("overload_"));
        self.failed += usize::from(answer.is_fallback());
    }
}

/// A server, its clients, and what they were answered under each policy.
struct Crowd {
    user: &'static str,
    clients: Vec<Client>,
    tallies: [Tally; 3],
}

impl Crowd {
    fn of(node: &Node, user: &'static str) -> Crowd {
        let clients = (0..CONNECTIONS).map(|_| node.client()).collect();
        Crowd { user, clients, tallies: [(); 3].map(|()| Tally::default()) }
    }

    /// One burst on the same key of each policy: all connections at once.
    fn burst(&mut self) {
        let user = self.user;
        let ask = |client: &mut Client| {
            POLICIES.map(|policy| {
                let words = ["TG.CHECK", "api", "policy", policy, "user", user].map(str::to_owned).to_vec();
                client.pipeline(&vec![words; PIPELINED]).iter().map(Answer::read).collect::<Vec<_>>()
            })
        };
        let answers: Vec<[Vec<Answer>; 3]> = std::thread::scope(|scope| {
            let asking: Vec<_> =
                self.clients.iter_mut().map(|client| scope.spawn(move || ask(client))).collect();
            asking.into_iter().map(|client| client.join().unwrap()).collect()
        });
        for of_one in &answers {
            for (tally, answers) in self.tallies.iter_mut().zip(of_one) {
                answers.iter().for_each(|answer| tally.note(answer));
            }
        }
    }
}

/// Promise 1, with its figures: of 40,960 requests a hundred pass. A node with time enough, in the same bursts, shows that they do
/// so exactly where a machine is too busy for ten milliseconds.
#[test]
fn eight_bursts_of_forty_connections_admit_a_limit_once_whatever_the_policy() {
    let _alone = alone();
    let redis = Redis::start();
    let nodes = [DEFAULT, PATIENT].map(|timeout| Node::ready(&redis.url(), timeout, RULES));
    let mut crowds = [Crowd::of(&nodes[0], "42"), Crowd::of(&nodes[1], "7")];
    let began = now();
    for number in 0..BURSTS {
        pass((number * APART).saturating_sub(began.elapsed()));
        crowds.iter_mut().for_each(Crowd::burst);
    }
    for (timeout, crowd) in [DEFAULT, PATIENT].into_iter().zip(&crowds) {
        for (policy, tally) in POLICIES.into_iter().zip(&crowd.tallies) {
            tell!("{timeout}, {policy}: {tally:?}");
            assert_eq!(tally.asked, CONNECTIONS * PIPELINED * BURSTS as usize);
            assert_eq!(tally.failed, 0, "Redis was well all the time: {timeout}, {policy}: {tally:?}");
            assert!(timeout == DEFAULT || tally.overloaded == 0, "{policy}: {tally:?}");
            // Who is late meets overload: a closed rule lets pass nothing then, and the others up to the limit once more.
            let most = if policy != "closed" && tally.overloaded > 0 { 2 * LIMIT } else { LIMIT };
            assert!((LIMIT..=most).contains(&tally.admitted), "{timeout}, {policy}: {tally:?}");
        }
    }
}
