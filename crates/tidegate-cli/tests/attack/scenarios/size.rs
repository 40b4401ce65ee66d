//! As many callers as there may be: nobody is forgotten, and no script takes longer for it.

use tidegate_testkit::Redis;
use tidegate_testkit::resp::Client;

use super::say;
use crate::checker::slow_scripts;
use crate::watch::Watch;
use crate::world::{Node, PATIENCE, PATIENT, now};

const CONNECTIONS: usize = 8;
const AT_ONCE: usize = 1_000;
/// Of so many callers one is asked about again.
const SAMPLE: usize = 997;

const FIVE_A_DAY: &str =
    "- { name: five, key: [user], limits: [{ algorithm: fixed_window, limit: 5, window: 365d }] }\n";

/// How many callers there are.
fn callers() -> usize {
    std::env::var("ATTACK_KEYS").map_or(10_000_000, |keys| keys.parse().expect("a number"))
}

/// Lets `users` ask once each, and fails unless each is told that so many hits are left.
fn ask(node: &Node, users: impl Iterator<Item = usize>, left: i64) {
    let mut client = Client::connect(node.resp);
    client.set_patience(PATIENCE).expect("patience is not zero");
    let mut users = users.peekable();
    while users.peek().is_some() {
        let words =
            |user: usize| vec!["TG.CHECK".to_owned(), "api".to_owned(), "user".to_owned(), user.to_string()];
        let commands: Vec<Vec<String>> = users.by_ref().take(AT_ONCE).map(words).collect();
        for (asked, reply) in commands.iter().zip(client.pipeline(&commands)) {
            let [allowed, _, remaining, .., source, _] = reply.array() else {
                panic!("not an answer: {reply:?}")
            };
            let told = (allowed.int(), remaining.int(), source.text());
            assert_eq!(told, (1, left, "store".to_owned()), "user {}", asked[3]);
        }
    }
}

/// Everybody asks once, then some of them again; the node's memory and the rate are told.
fn remember_everybody(store: &str) {
    let callers = callers();
    let most = callers + callers / 5;
    let mut node =
        Node::start_with(store, PATIENT, &format!("limits: {{ max_cells: {most} }}\n"), FIVE_A_DAY);
    let began = now();
    std::thread::scope(|scope| {
        for first in 0..CONNECTIONS {
            let node = &node;
            scope.spawn(move || ask(node, (first..callers).step_by(CONNECTIONS), 4));
        }
    });
    let took = began.elapsed().as_secs_f64();
    ask(&node, (0..callers).step_by(SAMPLE), 3);
    let (rate, mib) = (callers as f64 / took, node.resident_bytes() >> 20);
    say(format_args!("{callers} callers on {store}: {rate:.0} new ones a second, the node takes {mib} MiB"));
}

#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
fn ten_million_callers_are_remembered_in_memory() {
    let _alone = crate::world::alone();
    remember_everybody("memory:");
}

#[test]
#[ignore = "takes minutes: see CONTRIBUTING.md"]
fn ten_million_callers_are_remembered_in_redis_and_slow_no_script_down() {
    let _alone = crate::world::alone();
    let redis = Redis::start();
    let watch = Watch::start(&redis);
    remember_everybody(&redis.url());
    let (watched, pace) = watch.finish();
    let bytes: u64 = redis.info("used_memory").unwrap().trim().parse().unwrap();
    say(format_args!("Redis holds {} MiB, {} bytes a caller", bytes >> 20, bytes / callers() as u64));
    let slow = slow_scripts(&watched.looks, &[], pace);
    // One that was held up in millions proves nothing.
    assert!(slow.len() <= callers() / 1_000_000, "{slow:#?}");
    assert!(redis.cmd(&["DBSIZE"]).int() >= i64::try_from(callers()).unwrap());
}
