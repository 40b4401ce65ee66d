//! The client as its users have it, in real time.

use std::time::Duration;

use tidegate_core::Micros;

use super::World;
use crate::{Client, Error, OnFailure, Request, Source};

const RULES: &str = "
domain: api
rules:
  - { name: lent, match: { user: { not: asked } }, limits: [{ algorithm: fixed_window, limit: 1000, window: 1h }], lease_to_clients: true }
  - { name: asked, match: { user: asked }, limits: [{ algorithm: fixed_window, limit: 3, window: 1h }] }
";

async fn client(world: &World, on_failure: OnFailure) -> Client {
    let builder =
        Client::to(world.url()).domain("api").on_failure(on_failure).timeout(Duration::from_secs(20));
    builder.connect().await.unwrap()
}

/// Asks until this process decides.
async fn until_held(client: &Client, user: &str) -> u64 {
    let mut passed = 0;
    loop {
        let decision = client.check(&[("user", user)]).await.unwrap();
        passed += u64::from(decision.allowed);
        if decision.source == Source::Held {
            return passed;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_clients_decide_in_process_and_admit_the_limit_together() {
    let world = World::new(RULES);
    let (one, other) = (client(&world, OnFailure::Closed).await, client(&world, OnFailure::Closed).await);
    let mut passed = until_held(&one, "42").await + until_held(&other, "42").await;
    let (mut held, mut total) = (0, passed);
    for turn in 0..20_000 {
        let client = if turn % 2 == 0 { &one } else { &other };
        let decision = client.check(&[("user", "42")]).await.unwrap();
        assert_ne!(decision.source, Source::Policy);
        passed += u64::from(decision.allowed);
        held += u64::from(decision.source == Source::Held);
        total += 1;
        if turn % 100 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let (asked, messages) =
        (one.stats().asked + other.stats().asked, one.stats().messages + other.stats().messages);
    println!(
        "{passed} of {total} passed, {held} were decided in process, {asked} asked, {messages} messages"
    );
    assert!(passed <= 1_000, "{passed} of 1,000");
    assert!(held > total / 2, "{held} of {total} in process");
}

#[tokio::test]
async fn a_rule_that_lends_nothing_is_asked_for_each_request() {
    let world = World::new(RULES);
    let client = client(&world, OnFailure::Closed).await;
    let key = client.key(&[("user", "asked")]);
    for number in 0..3 {
        let decision = key.check(1).await.unwrap();
        assert_eq!((decision.allowed, decision.source), (true, Source::Server), "request {number}");
    }
    assert!(!key.check(1).await.unwrap().allowed);
}

#[tokio::test]
async fn a_server_that_is_down_leaves_requests_to_the_policy_and_refuses_a_connection() {
    let url = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let error = Client::to(&url).connect().await.err().unwrap();
    assert!(
        matches!(error, Error::Unreachable { .. }) && error.to_string().contains("127.0.0.1:"),
        "{error}"
    );
    for (policy, allowed) in [(OnFailure::Open, true), (OnFailure::Closed, false), (OnFailure::Local, false)]
    {
        let client = Client::to(&url).on_failure(policy).start().unwrap();
        let decision = client.check(&[("user", "42")]).await.unwrap();
        assert_eq!((decision.allowed, decision.source), (allowed, Source::Policy), "{policy:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_loses_its_server_goes_on_with_as_much_as_it_got_last() {
    let world = World::new(RULES);
    let client = client(&world, OnFailure::Local).await;
    until_held(&client, "42").await;
    drop(world);
    let (mut by_policy, mut passed) = (0, 0);
    while by_policy < 2_000 {
        let decision = client.check(&[("user", "42")]).await.unwrap();
        if decision.source == Source::Policy {
            by_policy += 1;
            passed += u64::from(decision.allowed);
        }
    }
    assert!(passed > 0, "it had hits before");
    assert!(passed < 2_000, "{passed} of 2,000 passed without a server");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_the_server_cannot_read_is_asked_for_and_others_are_lent_meanwhile() {
    let world = World::new(RULES);
    let client = client(&world, OnFailure::Closed).await;
    // The server names a value of more than 4 KiB, and nothing of a body that is too long altogether.
    let value = "x".repeat(4_096);
    let names: Vec<String> = (0..63).map(|number| format!("a{number}")).collect();
    let long = names.iter().map(|name| (name.as_str(), value.as_str())).chain([("user", value.as_str())]);
    let unnamed = client.key(&long.collect::<Vec<_>>());
    let named = client.key(&[("user", &"x".repeat(5_000))]);
    let good = client.key(&[("user", "42")]);
    for round in 0..3 {
        // What is asked for twice is wanted: they share messages.
        for key in [&named, &unnamed, &named, &unnamed] {
            let refused = key.check(1).await;
            assert!(matches!(refused, Err(Error::Refused { status: 413 | 422, .. })), "{refused:?}");
        }
        while good.check(1).await.unwrap().source != Source::Held {
            assert!(client.inner.is_lent(), "round {round}: nothing is lent to any key");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_ends_takes_nothing_more_and_returns_what_it_holds() {
    let world = World::new(RULES);
    let (client, other) = (client(&world, OnFailure::Closed).await, client(&world, OnFailure::Closed).await);
    // Returned hits count as older than they are: those of a window's first seconds are not taken back.
    world.advance(Micros::from_secs(60));
    let mut spent = 0;
    for turn in 0..200 {
        let user = (turn % 20).to_string();
        spent += u64::from(client.check(&[("user", &user)]).await.unwrap().allowed);
        tokio::task::yield_now().await;
    }
    assert!(client.stats().messages > 0, "it held nothing");
    let stays = client.clone();
    client.shutdown().await;
    let left = other.ask(&Request::of(&[("user", "1")]).cost(0)).await.unwrap().remaining.unwrap();
    assert_eq!(1_000 - left, spent, "what is charged was spent");
    let decision = stays.check(&[("user", "42")]).await.unwrap();
    assert_eq!(decision.source, Source::Server, "a handle that stays asks");
}
