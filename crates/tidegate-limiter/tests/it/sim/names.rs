//! Requests that name themselves, on a store that fails in every way: the same question has one answer.

use tidegate_limiter::{Claim, ClaimError, RequestId};

use super::store::Weather;
use super::{Fleet, Node, Setting};

const FAILURES: [Weather; 4] = [Weather::Refuses, Weather::Hangs, Weather::LosesReplies, Weather::Cuts];

fn id(asked: &str) -> RequestId {
    RequestId::new("api", b"", "r-1", asked.as_bytes())
}

/// What is known of a question called `r-1`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Known {
    /// Nothing: it is withdrawn again.
    Nothing,
    Answered(Vec<u8>),
    Conflict(ClaimError),
}

/// How the first who asks ends.
#[derive(Clone, Copy)]
enum Ends {
    Answered,
    Withdrawn,
}

impl Node {
    /// Asks, as the first; the store is in `weather` by the time that there is an answer.
    fn first(&self, weather: Weather, ends: Ends) {
        let (limiter, link) = (self.limiter.clone(), self.link.clone());
        self.executor.finish(async move {
            let Ok(Claim::First(first)) = limiter.claim(&id("what")).await else { panic!("it is the first") };
            link.set(weather);
            match ends {
                Ends::Answered => first.answered(b"yes").await,
                Ends::Withdrawn => first.withdrawn().await,
            }
        });
    }

    fn known(&self, asked: &'static str) -> Known {
        let limiter = self.limiter.clone();
        self.executor.finish(async move {
            match limiter.claim(&id(asked)).await {
                Ok(Claim::First(first)) => {
                    first.withdrawn().await;
                    Known::Nothing
                }
                Ok(Claim::Answered(answer)) => Known::Answered(answer),
                Err(error) => Known::Conflict(error),
            }
        })
    }
}

fn two_nodes() -> Fleet {
    Fleet::running("- { name: a, key: [user], limits: [5/h] }", Setting { nodes: 2, ..Setting::default() })
}

/// The store fails before the name is claimed, or between the claim and the answer.
#[test]
fn an_answer_that_the_store_did_not_take_is_repeated_here_at_once_and_everywhere_once_it_is_back() {
    for weather in FAILURES {
        for at_first in [Weather::Fine, weather] {
            let fleet = two_nodes();
            let yes = Known::Answered(b"yes".to_vec());
            fleet.set(at_first);
            fleet.nodes[0].first(weather, Ends::Answered);
            assert_eq!(fleet.nodes[0].known("what"), yes, "{at_first:?}, {weather:?}");
            let other = Known::Conflict(ClaimError::UsedForAnother);
            assert_eq!(fleet.nodes[0].known("something else"), other, "{at_first:?}, {weather:?}");
            fleet.set(Weather::Fine);
            fleet.run_for_millis(2_000);
            for node in &fleet.nodes {
                assert_eq!(node.known("what"), yes, "{at_first:?}, {weather:?}");
            }
        }
    }
}

#[test]
fn a_name_that_was_withdrawn_is_free_on_every_node_once_the_store_is_back() {
    for weather in FAILURES {
        let fleet = two_nodes();
        fleet.nodes[0].first(weather, Ends::Withdrawn);
        fleet.set(Weather::Fine);
        fleet.run_for_millis(2_000);
        assert_eq!(fleet.nodes[1].known("what"), Known::Nothing, "{weather:?}");
    }
}

#[test]
fn an_answer_is_known_here_for_a_minute() {
    let fleet = two_nodes();
    fleet.nodes[0].first(Weather::Refuses, Ends::Answered);
    fleet.run_for_millis(59_000);
    assert_eq!(fleet.nodes[0].known("what"), Known::Answered(b"yes".to_vec()));
    fleet.run_for_millis(2_000);
    assert_eq!(fleet.nodes[0].known("what"), Known::Nothing);
}

#[test]
fn an_answer_that_is_written_late_is_known_elsewhere_no_longer_than_its_minute() {
    let fleet = two_nodes();
    fleet.nodes[0].first(Weather::Refuses, Ends::Answered);
    fleet.run_for_millis(55_000);
    fleet.set(Weather::Fine);
    fleet.run_for_millis(2_000);
    assert_eq!(fleet.nodes[1].known("what"), Known::Answered(b"yes".to_vec()));
    fleet.run_for_millis(5_000);
    assert_eq!(fleet.nodes[1].known("what"), Known::Nothing);
}

#[test]
fn a_hundred_names_that_are_given_up_at_once_cost_a_call_each() {
    let fleet = two_nodes();
    let limiter = fleet.nodes[0].limiter.clone();
    fleet.executor.finish(async move {
        let mut firsts = Vec::new();
        for number in 0..100 {
            let id = RequestId::new("api", b"", &number.to_string(), b"what");
            let Ok(Claim::First(first)) = limiter.claim(&id).await else { panic!("it is the first") };
            firsts.push(first);
        }
        drop(firsts);
    });
    fleet.run_for_millis(2_000);
    let seen = fleet.nodes[0].link.seen.lock().unwrap();
    let records = seen.others.iter().filter(|(_, name)| *name == "record").count();
    // A claim and its end each, and the key of leases now and then.
    assert!((200..=210).contains(&records), "{records}");
}

#[test]
fn answers_without_end_take_bounded_memory() {
    let fleet = two_nodes();
    fleet.set(Weather::Refuses);
    let limiter = fleet.nodes[0].limiter.clone();
    fleet.executor.finish(async move {
        for number in 0..20_000 {
            let id = RequestId::new("api", b"", &number.to_string(), b"what");
            let Ok(Claim::First(first)) = limiter.claim(&id).await else { panic!("it is the first") };
            first.answered(&[0; 1_000]).await;
        }
    });
    let stats = fleet.nodes[0].limiter.remote_stats().unwrap();
    assert_eq!((stats.unwritten_names, stats.names_lost), (4_096, 20_000 - 4_096));
    // Of those that it repeats itself the oldest made room.
    let known = |number: u64| {
        let limiter = fleet.nodes[0].limiter.clone();
        let id = RequestId::new("api", b"", &number.to_string(), b"what");
        fleet.executor.finish(async move { matches!(limiter.claim(&id).await, Ok(Claim::Answered(_))) })
    };
    assert_eq!([0, 19_000].map(known), [false, true]);
}
