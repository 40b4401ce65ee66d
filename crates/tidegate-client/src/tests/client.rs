//! The client as its users have it, in real time.

use std::time::Duration;

use super::World;
use crate::{Client, Error, OnFailure, Source};

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

#[tokio::test]
async fn mistakes_are_answered_with_what_is_wrong_and_a_way_out() {
    let world = World::new(RULES);
    let domain = Client::to(world.url()).domain("ape").connect().await.err().unwrap().to_string();
    assert!(domain.contains("422") && domain.contains("known domains: api"), "{domain}");
    for (url, says) in [
        ("127.0.0.1:8080", "http://HOST:PORT"),
        ("ftp://127.0.0.1", "neither http:// nor https://"),
        ("http://", "not a URL"),
    ] {
        let error = Client::to(url).start().err().unwrap().to_string();
        assert!(error.contains(says), "{url}: {error}");
    }
    let token = Client::to(world.url()).token("a\nb").start().err().unwrap().to_string();
    assert!(token.starts_with("token:"), "{token}");
    let pem = Client::to("https://127.0.0.1:1").authorities("nothing").start().err().unwrap().to_string();
    assert!(pem.starts_with("authorities: there is no certificate"), "{pem}");
    // A server that does not speak TLS has no certificate that would do.
    let tls = Client::to(world.url().replace("http:", "https:")).timeout(Duration::from_secs(20));
    let tls = tls.connect().await.err().unwrap().to_string();
    assert!(tls.contains("TLS: "), "{tls}");
}
