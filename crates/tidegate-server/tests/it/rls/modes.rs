//! What envoyproxy/ratelimit's files can say of a limit: shadow, unlimited, bans, replaces, shared thresholds, quotas.

use tidegate_server::rls::Code;

use super::told;
use crate::world::{World, descriptor, request};

#[track_caller]
fn expect(answer: (Code, Vec<String>), code: Code, statuses: &[&str]) {
    assert_eq!(answer, (code, statuses.iter().map(|status| (*status).to_owned()).collect()));
}

#[tokio::test]
async fn a_shadow_limit_counts_and_always_passes() {
    let world = World::envoy(
        "domain: api\n\
         descriptors:\n\
         - { key: user, shadow_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }\n\
         - { key: path, rate_limit: { unit: minute, requests_per_unit: 2 } }\n",
    );
    let both = || request([descriptor(&[("user", "42")]), descriptor(&[("path", "/")])]);
    let first = told(&world.ask(both()).await.unwrap());
    expect(first, Code::Ok, &["OK 0 of 1/MINUTE 60s", "OK 1 of 2/MINUTE 60s"]);
    let second = told(&world.ask(both()).await.unwrap());
    expect(second, Code::Ok, &["OK 0 of 1/MINUTE 60s", "OK 0 of 2/MINUTE 60s"]);
    let third = told(&world.ask(both()).await.unwrap());
    expect(third, Code::OverLimit, &["OK 0 of 1/MINUTE 60s", "OVER 0 of 2/MINUTE 60s"]);
}

#[tokio::test]
async fn unlimited_has_all_there_is_left_and_a_ban_nothing() {
    let world = World::envoy(
        "domain: api\n\
         descriptors:\n\
         - key: user\n  \
           value: friend\n  \
           rate_limit: { unlimited: true }\n\
         - { key: user, value: foe, rate_limit: { unit: day, requests_per_unit: 0 } }\n\
         - { key: user, rate_limit: { unit: day, requests_per_unit: 5 } }\n",
    );
    let friend = told(&world.ask(request([descriptor(&[("user", "friend")])])).await.unwrap());
    expect(friend, Code::Ok, &["OK 4294967295"]);
    let foe = || request([descriptor(&[("user", "foe")]), descriptor(&[("user", "42")])]);
    let banned = told(&world.ask(foe()).await.unwrap());
    expect(banned, Code::OverLimit, &["OVER 0 of 0/DAY 86400s", "OK 5 of 5/DAY 86400s"]);
}

#[tokio::test]
async fn a_limit_replaces_the_one_it_names_in_the_same_request() {
    let world = World::envoy(
        "domain: api\n\
         descriptors:\n\
         - { key: all, rate_limit: { name: wide, unit: minute, requests_per_unit: 1 } }\n\
         - { key: vip, rate_limit: { unit: minute, requests_per_unit: 3, replaces: [{ name: wide }] } }\n",
    );
    let all = || request([descriptor(&[("all", "x")])]);
    let vip = || request([descriptor(&[("all", "x")]), descriptor(&[("vip", "yes")])]);
    for left in [2, 1, 0] {
        let answer = told(&world.ask(vip()).await.unwrap());
        expect(answer, Code::Ok, &["OK", &format!("OK {left} of 3/MINUTE 60s")]);
    }
    expect(told(&world.ask(vip()).await.unwrap()), Code::OverLimit, &["OK", "OVER 0 of 3/MINUTE 60s"]);
    // The one that was replaced was not spent from.
    expect(told(&world.ask(all()).await.unwrap()), Code::Ok, &["OK 0 of 1/MINUTE 60s"]);
}

#[tokio::test]
async fn wildcards_count_each_value_or_share_one_threshold() {
    let world = World::envoy(
        "domain: api\n\
         descriptors:\n\
         - { key: path, value: /shared/*, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 2 } }\n\
         - { key: path, value: /each/*, rate_limit: { unit: minute, requests_per_unit: 2 } }\n",
    );
    let ask = async |path: &str| told(&world.ask(request([descriptor(&[("path", path)])])).await.unwrap());
    expect(ask("/shared/a").await, Code::Ok, &["OK 1 of 2/MINUTE 60s"]);
    expect(ask("/shared/b").await, Code::Ok, &["OK 0 of 2/MINUTE 60s"]);
    expect(ask("/shared/c").await, Code::OverLimit, &["OVER 0 of 2/MINUTE 60s"]);
    expect(ask("/each/a").await, Code::Ok, &["OK 1 of 2/MINUTE 60s"]);
    expect(ask("/each/b").await, Code::Ok, &["OK 1 of 2/MINUTE 60s"]);
}

const QUOTAS: &str = "
domain: api
descriptors:
  - { key: a, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 1 } }
  - { key: b, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: c, rate_limit: { unit: minute, requests_per_unit: 3 } }
";

#[tokio::test]
async fn quotas_refuse_only_when_all_of_them_are_spent() {
    let world = World::envoy(QUOTAS);
    let both = || request([descriptor(&[("a", "1")]), descriptor(&[("b", "1")])]);
    let first = told(&world.ask(both()).await.unwrap());
    expect(first, Code::Ok, &["OK 0 of 1/MINUTE 60s", "OK 1 of 2/MINUTE 60s"]);
    // The first is spent and says so; the second still has one, so the request passes.
    let second = told(&world.ask(both()).await.unwrap());
    expect(second, Code::Ok, &["OVER 0 of 1/MINUTE 60s", "OK 0 of 2/MINUTE 60s"]);
    let third = told(&world.ask(both()).await.unwrap());
    expect(third, Code::OverLimit, &["OVER 0 of 1/MINUTE 60s", "OVER 0 of 2/MINUTE 60s"]);
}

#[tokio::test]
async fn a_limit_beside_quotas_refuses_by_itself_and_spends_nothing_when_they_refuse() {
    let world = World::envoy(QUOTAS);
    let quota_and_limit = || request([descriptor(&[("a", "1")]), descriptor(&[("c", "1")])]);
    let first = told(&world.ask(quota_and_limit()).await.unwrap());
    expect(first, Code::Ok, &["OK 0 of 1/MINUTE 60s", "OK 2 of 3/MINUTE 60s"]);
    // The only quota is spent, so the request is refused, and the limit keeps its two.
    for _ in 0..3 {
        let refused = world.ask(quota_and_limit()).await.unwrap();
        assert_eq!(refused.overall_code(), Code::OverLimit);
    }
    let limit_alone = told(&world.ask(request([descriptor(&[("c", "1")])])).await.unwrap());
    expect(limit_alone, Code::Ok, &["OK 1 of 3/MINUTE 60s"]);
    // A limit that is spent refuses whatever the quotas have left, and they keep it.
    let limit_and_fresh_quota = || request([descriptor(&[("b", "1")]), descriptor(&[("c", "1")])]);
    world.ask(limit_and_fresh_quota()).await.unwrap();
    let refused = told(&world.ask(limit_and_fresh_quota()).await.unwrap());
    expect(refused, Code::OverLimit, &["OK 1 of 2/MINUTE 60s", "OVER 0 of 3/MINUTE 60s"]);
}

#[tokio::test]
async fn a_leaky_bucket_refuses_what_would_have_to_wait_and_keeps_its_slot_free() {
    let world = World::new(
        "domain: api\n\
         rules:\n\
         - { name: calm, limits: [{ algorithm: leaky_bucket, rate: 5/s, max_delay: 400ms }] }\n",
    );
    let ask = async || world.ask(request([descriptor(&[])])).await.unwrap().overall_code();
    assert_eq!([ask().await, ask().await, ask().await], [Code::Ok, Code::OverLimit, Code::OverLimit]);
    // A client that can wait gets the first slot: no refused request holds it.
    let waits = world.check(&serde_json::json!({}));
    assert_eq!(waits.json()["delay_ms"], 200);
}
