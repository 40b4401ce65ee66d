//! Clients without a clock of their own: what they send and are answered is real, and time is what the test says.

use std::sync::Arc;

use serde_json::Value;
use tidegate_core::{Micros, Timestamp};
use tidegate_rules::{OverrideEffect, RuntimeOverride};

use super::{START, World, compile};
use crate::connection::{Connection, Reply};
use crate::keys::Keys;
use crate::purse::Found;
use crate::wire::{self, Attributes, Check, Checked, TakeReply};

const STEP: Micros = Micros::from_millis(50);
const LIMIT: u64 = 10_000;
const WINDOW: Micros = Micros::from_secs(10);

const RULES: &str = "
domain: api
rules: [{ name: all, limits: [{ algorithm: fixed_window, limit: 10000, window: 10s }], lease_to_clients: true }]
";

fn check(attributes: &Attributes, cost: u64) -> Vec<u8> {
    wire::check(&Check { domain: "api", attributes, cost, request_id: None })
}

/// What one client does, and how often it needed the server.
struct SimClient<'w> {
    world: &'w World,
    connection: &'w Connection,
    keys: Keys,
    calls: u64,
    /// The hits that each message wanted of its first key, and what remained before.
    wanted: Vec<(u64, Option<u64>)>,
    remaining: Option<u64>,
}

impl<'w> SimClient<'w> {
    fn new(world: &'w World, connection: &'w Connection) -> Self {
        let keys = Keys::new(100);
        SimClient { world, connection, keys, calls: 0, wanted: Vec::new(), remaining: None }
    }

    /// Whether a request passes.
    async fn request(&mut self, user: &str) -> bool {
        let now = self.world.now();
        let slot = self.keys.slot(&[("user", user)], now).expect("there is room");
        match self.keys.pay(&slot, now, 1).0 {
            Found::Paid => true,
            Found::Refused(_) => false,
            Found::Unknown => {
                self.calls += 1;
                let body = check(&slot.attributes, 1);
                let Reply { body, .. } = self.connection.call("/v1/check", body).await.unwrap();
                let checked: Checked = serde_json::from_slice(&body).unwrap();
                if !checked.allowed {
                    slot.with(|state| state.refused(now, checked.retry_after_ms));
                }
                checked.allowed
            }
        }
    }

    /// Sends what waits, as the background task does every interval.
    async fn exchange(&mut self) {
        let now = self.world.now();
        self.keys.sweep(now);
        while let Some(message) = self.keys.message(now) {
            self.calls += 1;
            let sent = message.body("api");
            let hits = serde_json::from_slice::<Value>(&sent).unwrap()["takes"][0]["hits"].as_u64();
            self.wanted.extend(hits.map(|hits| (hits, self.remaining)));
            let Reply { body, .. } = self.connection.call("/v1/take", sent).await.unwrap();
            let reply: TakeReply = serde_json::from_slice(&body).unwrap();
            self.remaining = reply.answers.first().map_or(self.remaining, |answer| answer.remaining);
            self.keys.answered(&message, &reply, now);
        }
    }

    /// How many of `requests` pass in each step, for so many steps.
    async fn run(&mut self, user: &str, requests: u64, steps: u64) -> Vec<u64> {
        let mut passed = Vec::new();
        for _ in 0..steps {
            let mut count = 0;
            for _ in 0..requests {
                count += u64::from(self.request(user).await);
            }
            passed.push(count);
            self.exchange().await;
            self.world.advance(STEP);
        }
        passed
    }
}

#[tokio::test]
async fn a_thousand_clients_are_never_over_and_use_nine_tenths_while_demand_moves() {
    let world = World::new(RULES);
    let connection = world.connection();
    let mut clients: Vec<SimClient<'_>> = (0..1_000).map(|_| SimClient::new(&world, &connection)).collect();
    let steps = 2 * WINDOW.get() / STEP.get();
    let (mut admitted, mut asked) = (vec![0_u64; 2], 0_u64);
    for step in 0..steps {
        // A tenth of the clients is busy, another one every second.
        let busy = usize::try_from(step * STEP.get() / 1_000_000).unwrap() % 10 * 100;
        for client in &mut clients[busy..busy + 100] {
            asked += 1;
            let window = (world.now() - START).get() / WINDOW.get();
            admitted[usize::try_from(window).unwrap()] += u64::from(client.request("all").await);
        }
        for client in &mut clients {
            client.exchange().await;
        }
        world.advance(STEP);
    }
    let calls: u64 = clients.iter().map(|client| client.calls).sum();
    println!("{admitted:?} of {LIMIT} in each window; {} calls for 1,000 requests", calls * 1_000 / asked);
    for used in admitted {
        assert!(used <= LIMIT, "{used} of {LIMIT}");
        assert!(used * 10 >= LIMIT * 9, "{used} of {LIMIT}");
    }
}

#[tokio::test]
async fn a_ban_a_lower_limit_and_a_rule_that_lends_no_more_are_heard_of_within_two_seconds() {
    let lower = RULES.replace("10000", "400");
    let not_lent = RULES.replace(", lease_to_clients: true", "");
    let banned = RuntimeOverride {
        domain: "api".into(),
        rule: None,
        when: vec![("user".into(), "all".into())],
        effect: OverrideEffect::Ban,
        until: None,
    };
    let (ban, problems) = compile(RULES).with_overrides(&[banned]);
    assert_eq!(problems, []);
    // The most that pass in the two seconds of the change, and what passes in the two after it.
    let changes = [(ban, 400, 0..=0), (compile(&lower), 400, 0..=0), (compile(&not_lent), 800, 800..=800)];
    for (number, (rules, most, expected)) in changes.into_iter().enumerate() {
        let world = World::new(RULES);
        let connection = world.connection();
        let mut client = SimClient::new(&world, &connection);
        assert_eq!(client.run("all", 20, 40).await.iter().sum::<u64>(), 800);
        let calls = client.calls;
        world.limiter.use_rules(rules);
        let during: u64 = client.run("all", 20, 40).await.iter().sum();
        assert!(during <= most, "change {number}: {during} passed");
        let after: u64 = client.run("all", 20, 40).await.iter().sum();
        assert!(expected.contains(&after), "change {number}: {after} passed two seconds later");
        if number == 2 {
            assert!(client.calls - calls > 800, "each request is asked for");
        }
    }
}

#[tokio::test]
async fn a_client_that_vanishes_leaves_its_hits_unspent_and_one_that_stays_returns_them() {
    let world = World::new(RULES);
    let connection = world.connection();
    let mut client = SimClient::new(&world, &connection);
    // Returned hits count as a second older than they are: those of a window's first second are not taken back.
    world.advance(Micros::from_secs(3));
    let passed: u64 = client.run("all", 40, 10).await.iter().sum();
    assert_eq!(passed, 400);
    let slot = client.keys.slot(&[("user", "all")], world.now()).unwrap();
    world.advance(Micros::from_millis(1_100));
    assert_eq!(client.keys.pay(&slot, world.now(), 1).0, Found::Unknown, "it spent hits after their time");
    drop(slot);
    let user: Attributes = Box::new([("user".into(), "all".into())]);
    let left = || async {
        let Reply { body, .. } = connection.call("/v1/check", check(&user, 0)).await.unwrap();
        serde_json::from_slice::<Value>(&body).unwrap()["remaining"].as_u64().unwrap()
    };
    let held = LIMIT - 400 - left().await;
    assert!(held > 0, "it held nothing");
    client.exchange().await;
    // One was taken for the request that its purse could not pay.
    assert_eq!(left().await, LIMIT - 400 - 1, "what it returned is spent");
}

#[tokio::test]
async fn a_client_wants_at_most_an_eighth_of_what_remained_so_that_a_small_limit_is_shared() {
    let world = World::new(&RULES.replace("10000", "400"));
    let connection = world.connection();
    let mut client = SimClient::new(&world, &connection);
    // Its demand is 80 hits a term of 200 ms: it would take a hundred at once.
    client.run("all", 20, 15).await;
    assert!(client.wanted.len() > 5, "{:?}", client.wanted);
    for (wanted, remained) in client.wanted.iter().filter_map(|(wanted, left)| Some((*wanted, (*left)?))) {
        assert!(wanted <= (remained / 8).max(1), "it wants {wanted} of {remained}");
    }
}

#[tokio::test]
async fn a_message_is_no_longer_than_what_a_server_reads() {
    let world = World::new(RULES);
    let (keys, value) = (Keys::new(200), "x".repeat(4_000));
    for number in 0..200 {
        let slot = keys.slot(&[("user", &number.to_string()), ("path", &value)], world.now()).unwrap();
        let _ = (0..2).map(|_| keys.pay(&slot, world.now(), 1)).last();
    }
    let mut messages = 0;
    while let Some(message) = keys.message(world.now()) {
        messages += 1;
        let bytes = message.body("api").len();
        assert!(bytes <= 256 << 10, "{bytes} bytes");
        keys.not_answered(&message);
    }
    assert!(messages > 1, "all of it in one message");
}

#[tokio::test]
async fn a_client_that_ends_sends_no_takes() {
    let world = World::new(RULES);
    let keys = Keys::new(10);
    let due = keys.slot(&[("user", "1")], world.now()).unwrap();
    // What is asked for twice is wanted.
    let wanted = (0..2).map(|_| keys.pay(&due, world.now(), 1)).last();
    assert_eq!(wanted, Some((Found::Unknown, true)));
    keys.empty(world.now());
    assert!(keys.message(world.now()).is_none(), "it takes hits that nobody will spend");
}

#[tokio::test]
async fn no_more_keys_are_kept_than_the_bound_and_none_that_nobody_uses() {
    let world = World::new(RULES);
    let keys = Keys::new(2);
    let now = world.now();
    assert!(keys.slot(&[("user", "1")], now).is_some() && keys.slot(&[("user", "2")], now).is_some());
    assert!(keys.slot(&[("user", "3")], now).is_none(), "a third key was kept");
    let kept = keys.slot(&[("user", "1")], now).expect("it is known");
    let later = now + Micros::from_secs(6);
    keys.sweep(later);
    assert_eq!(keys.len(), 1, "a handle keeps its key, and nothing else does");
    assert!(Arc::ptr_eq(&kept, &keys.slot(&[("user", "1")], later).unwrap()));
    assert!(keys.slot(&[("user", "3")], Timestamp::from_micros(later.as_micros())).is_some());
}
