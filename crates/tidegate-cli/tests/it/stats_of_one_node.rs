//! Whose numbers charts show while the store that nodes share is gone.

use serde_json::{Value, json};
use tidegate_testkit::{Redis, eventually};

use crate::redis_world::PATIENCE;
use crate::telemetry_out::Server;

#[test]
fn steps_are_of_one_node_while_a_killed_redis_is_gone_and_of_the_fleet_once_it_is_back() {
    let redis = Redis::start();
    let server = Server::start(&redis.url(), "");
    let mut users = (0..).map(|user| format!("u{user}"));
    // Seconds that are long enough ago for every node to have told of them.
    let mut stats = || {
        server.check(&users.next().unwrap(), None);
        let stats = server.api("GET", "stats?from=7s&to=5s&step=1s", "");
        assert_eq!(stats.status, 200, "{}", stats.text());
        stats.json()
    };
    let is = |stats: &Value, of_one_node: bool| stats["partial"] == json!([of_one_node, of_one_node]);
    let has_numbers =
        |stats: &Value| stats["total"]["allowed"].as_array().unwrap().iter().all(|n| n.as_f64() > Some(0.0));
    eventually("they are the fleet's", PATIENCE, || is(&stats(), false));
    redis.kill();
    eventually("they are this node's own, and shown", PATIENCE, || {
        let stats = stats();
        is(&stats, true) && has_numbers(&stats)
    });
    redis.restart();
    eventually("they are the fleet's again", PATIENCE, || {
        let stats = stats();
        is(&stats, false) && has_numbers(&stats)
    });
}
