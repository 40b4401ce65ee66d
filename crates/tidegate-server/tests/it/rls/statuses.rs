//! One status per descriptor, in order, and the overall code.

use tidegate_core::Micros;
use tidegate_server::rls::{Code, RateLimitRequest};
use tonic::Code as StatusCode;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};

use super::told;
use crate::world::{World, descriptor, request};

const RULES: &str = "
domain: api
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: path, value: /login, rate_limit: { name: logins, unit: hour, requests_per_unit: 1 } }
  - key: tenant
    descriptors:
      - { key: user, rate_limit: { unit: day, requests_per_unit: 5 } }
";

#[tokio::test]
async fn each_descriptor_has_its_status_in_the_order_asked() {
    let world = World::envoy(RULES);
    let all = request([
        descriptor(&[("tenant", "a"), ("user", "42")]),
        descriptor(&[("nobody", "knows")]),
        descriptor(&[("path", "/login")]),
        descriptor(&[("user", "42")]),
        // Deeper and shallower than any limit.
        descriptor(&[("user", "42"), ("path", "/login")]),
        descriptor(&[("tenant", "a")]),
    ]);
    world.advance(Micros::from_secs(90));
    assert_eq!(
        told(&world.ask(all).await.unwrap()),
        (
            Code::Ok,
            ["OK 4 of 5/DAY 86310s", "OK", "OK 0 of 1/HOUR 3510s", "OK 1 of 2/MINUTE 30s", "OK", "OK"]
                .map(str::to_owned)
                .to_vec()
        )
    );
}

#[tokio::test]
async fn a_refused_descriptor_says_when_to_try_again_and_not_when_all_is_back() {
    let rules =
        "domain: api\nrules: [{ name: slow, limits: [{ algorithm: token_bucket, rate: 1/m, burst: 10 }] }]";
    let world = World::new(rules);
    let ask = || request([descriptor(&[("any", "one")])]);
    for _ in 0..10 {
        assert_eq!(world.ask(ask()).await.unwrap().overall_code(), Code::Ok);
    }
    let refused = told(&world.ask(ask()).await.unwrap());
    assert_eq!(refused, (Code::OverLimit, vec!["OVER 0 of 10/MINUTEx10 60s".to_owned()]));
}

#[tokio::test]
async fn one_descriptor_over_its_limit_refuses_the_request_and_the_others_keep_their_hits() {
    let world = World::envoy(RULES);
    let both = || request([descriptor(&[("user", "42")]), descriptor(&[("path", "/login")])]);
    assert_eq!(world.ask(both()).await.unwrap().overall_code(), Code::Ok);
    for _ in 0..3 {
        assert_eq!(
            told(&world.ask(both()).await.unwrap()),
            (Code::OverLimit, vec!["OK 1 of 2/MINUTE 60s".to_owned(), "OVER 0 of 1/HOUR 3600s".to_owned()])
        );
    }
    let user = request([descriptor(&[("user", "42")])]);
    assert_eq!(told(&world.ask(user).await.unwrap()).1, ["OK 0 of 2/MINUTE 60s"]);
}

#[tokio::test]
async fn a_window_ends_where_its_unit_does() {
    let world = World::envoy(RULES);
    let user = || request([descriptor(&[("user", "42")])]);
    world.advance(Micros::from_millis(59_500));
    assert_eq!(told(&world.ask(user()).await.unwrap()).1, ["OK 1 of 2/MINUTE 0s"]);
    world.ask(user()).await.unwrap();
    assert_eq!(world.ask(user()).await.unwrap().overall_code(), Code::OverLimit);
    world.advance(Micros::from_millis(500));
    assert_eq!(told(&world.ask(user()).await.unwrap()).1, ["OK 1 of 2/MINUTE 60s"]);
}

#[tokio::test]
async fn a_limit_is_told_by_its_own_name_or_its_rules() {
    let world = World::envoy(RULES);
    let both = request([descriptor(&[("path", "/login")]), descriptor(&[("tenant", "a"), ("user", "42")])]);
    let names: Vec<String> = world
        .ask(both)
        .await
        .unwrap()
        .statuses
        .into_iter()
        .map(|status| status.current_limit.unwrap().name)
        .collect();
    assert_eq!(names, ["logins", "tenant.user"]);
}

#[tokio::test]
async fn an_empty_domain_or_no_descriptors_is_the_callers_mistake() {
    let world = World::envoy(RULES);
    let no_domain = RateLimitRequest { domain: String::new(), ..request([descriptor(&[("user", "42")])]) };
    for (wrong, field) in [(no_domain, "domain"), (request([]), "descriptors")] {
        let status = world.ask(wrong).await.unwrap_err();
        assert_eq!(status.code(), StatusCode::InvalidArgument);
        assert_eq!(status.message(), format!("{field}: must not be empty"));
    }
}

#[tokio::test]
async fn an_unknown_domain_passes_without_a_limit_and_is_heard_of_once() {
    let world = World::envoy(RULES);
    let mut negative = descriptor(&[("user", "42")]);
    negative.is_negative_hits = true;
    for (descriptor, heard) in [(descriptor(&[("user", "42")]), 1), (negative, 2)] {
        let unknown = RateLimitRequest { domain: "shop".to_owned(), ..request([descriptor]) };
        assert_eq!(told(&world.ask(unknown).await.unwrap()), (Code::Ok, vec!["OK".to_owned()]));
        assert_eq!(world.heard.unknown_domains(), heard);
    }
}

#[tokio::test]
async fn two_descriptors_for_one_counter_are_counted_together() {
    let world = World::envoy(RULES);
    let twice = request([descriptor(&[("user", "42")]), descriptor(&[("user", "42")])]);
    let statuses = told(&world.ask(twice).await.unwrap());
    assert_eq!(statuses, (Code::Ok, vec!["OK 0 of 2/MINUTE 60s".to_owned(); 2]));
}

#[tokio::test]
async fn our_own_rules_answer_envoy_too() {
    let world = World::new(
        "domain: api\n\
         rules:\n\
         - { name: bucket, match: { path: /bucket }, limits: [{ algorithm: token_bucket, rate: 10/s, burst: 50 }] }\n\
         - { name: sliding, match: { path: /sliding }, limits: [7/30s] }\n\
         - { name: counter, match: { path: /counter }, limits: [700/30s] }\n\
         - { name: monthly, match: { path: /monthly }, limits: [{ algorithm: fixed_window, limit: 9, window: month, tz: UTC }] }\n\
         - { name: two, match: { path: /two }, limits: [100/hour, 10/minute] }\n",
    );
    let ask = async |path: &str| {
        let answer = world.ask(request([descriptor(&[("path", path)])])).await.unwrap();
        let name = answer.statuses[0].current_limit.clone().unwrap().name;
        (name, told(&answer).1.remove(0))
    };
    // A bucket of 50 is full again after 5 s, and a tenth of a second after one hit.
    assert_eq!(ask("/bucket").await, ("bucket".to_owned(), "OK 49 of 50/SECONDx5 0s".to_owned()));
    // A log forgets a hit a window later; a counter, two windows after the one it fell into began.
    assert_eq!(ask("/sliding").await, ("sliding".to_owned(), "OK 6 of 7/SECONDx30 30s".to_owned()));
    assert_eq!(ask("/counter").await, ("counter".to_owned(), "OK 699 of 700/SECONDx30 60s".to_owned()));
    // 2027-01-16 is the 16th of a month of 31 days. A calendar's month is no unit of Envoy's.
    assert_eq!(ask("/monthly").await, ("monthly".to_owned(), "OK 8 of 9/- 1382400s".to_owned()));
    assert_eq!(ask("/two").await, ("two".to_owned(), "OK 9 of 10/MINUTE 60s".to_owned()));
}

#[tokio::test]
async fn answers_are_timed() {
    let world = World::envoy(RULES);
    world.ask(request([descriptor(&[("user", "42")])])).await.unwrap();
    assert_eq!(world.heard.answered(), [1, 0]);
}

#[tokio::test]
async fn health_is_told_on_the_same_port() {
    let world = World::envoy(RULES);
    let reply = HealthClient::new(world.channel()).check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(reply.into_inner().status(), ServingStatus::Serving);
}
