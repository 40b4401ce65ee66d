//! Headers that Envoy is asked to add to its responses.

use prost_types::value::Kind;
use tidegate_core::Micros;
use tidegate_rules::Format;
use tidegate_server::headers::{HeaderSet, HeaderSets, PartitionSecret};
use tidegate_server::service::{RlsHeaderNames, ServiceSettings};

use crate::world::{START_S, World, descriptor, request};

const RULES: &str = "
domain: api
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: path, rate_limit: { unit: hour, requests_per_unit: 1 } }
";

/// The headers of the first answer and of the first refusal, half a minute into the window.
async fn headers(set: Option<HeaderSet>) -> [Vec<String>; 2] {
    let settings = ServiceSettings { rls_headers: set, ..ServiceSettings::default() };
    let world = World::with(RULES, Format::EnvoyRatelimit, settings);
    world.advance(Micros::from_secs(30));
    let ask = async || {
        let both = request([descriptor(&[("user", "42")]), descriptor(&[("path", "/")])]);
        let answer = world.ask(both).await.unwrap();
        assert!(answer.request_headers_to_add.is_empty());
        answer
            .response_headers_to_add
            .iter()
            .map(|header| format!("{}: {}", header.key, header.value))
            .collect()
    };
    [ask().await, ask().await]
}

#[tokio::test]
async fn none_are_added_unless_configured() {
    assert_eq!(headers(None).await, [vec![], vec![]] as [Vec<String>; 2]);
}

#[tokio::test]
async fn x_ratelimit_tells_the_limit_that_is_nearest_and_a_refusal_when_to_retry() {
    let reset = format!("x-ratelimit-reset: {}", START_S + 3_600);
    let told = ["x-ratelimit-limit: 1", "x-ratelimit-remaining: 0", &reset];
    let [passed, refused] = headers(Some(HeaderSet::XRatelimit)).await;
    assert_eq!(passed, told);
    assert_eq!(refused, [&told[..], &["retry-after: 3570"]].concat());
}

#[tokio::test]
async fn the_ietf_set_lists_every_rule_and_the_nearest_numbers() {
    let told = [r#"ratelimit-policy: "user";q=2;w=60, "path";q=1;w=3600"#, r#"ratelimit: "path";r=0;t=3570"#];
    let [passed, refused] = headers(Some(HeaderSet::Ietf)).await;
    assert_eq!(passed, told);
    assert_eq!(refused, [&told[..], &["retry-after: 3570"]].concat());
}

#[tokio::test]
async fn headers_have_the_names_that_were_chosen() {
    let names = RlsHeaderNames {
        limit: "ratelimit-limit".parse().unwrap(),
        remaining: "ratelimit-remaining".parse().unwrap(),
        reset: "ratelimit-reset".parse().unwrap(),
    };
    let settings = ServiceSettings { rls_header_names: Some(names), ..ServiceSettings::default() };
    let world = World::with(RULES, Format::EnvoyRatelimit, settings);
    world.advance(Micros::from_secs(30));
    let answer = world.ask(request([descriptor(&[("user", "42")])])).await.unwrap();
    let headers: Vec<String> = answer
        .response_headers_to_add
        .iter()
        .map(|header| format!("{}: {}", header.key, header.value))
        .collect();
    // The window ends in half a minute: the last one counts seconds, as envoyproxy/ratelimit's does.
    assert_eq!(headers, ["ratelimit-limit: 2", "ratelimit-remaining: 1", "ratelimit-reset: 30"]);
    assert!(answer.dynamic_metadata.is_none());
}

#[tokio::test]
async fn metadata_says_rule_and_source_and_what_is_left() {
    let settings = ServiceSettings { rls_metadata: true, ..ServiceSettings::default() };
    let world = World::with(RULES, Format::EnvoyRatelimit, settings);
    let answer = world.ask(request([descriptor(&[("user", "42")])])).await.unwrap();
    let fields = answer.dynamic_metadata.unwrap().fields;
    let value = |name: &str| fields[name].kind.clone().unwrap();
    assert_eq!(value("rule"), Kind::StringValue("user".to_owned()));
    assert_eq!(value("source"), Kind::StringValue("store".to_owned()));
    assert_eq!(value("remaining"), Kind::NumberValue(1.0));
}

#[tokio::test]
async fn partition_keys_are_of_the_descriptor_that_a_rule_matched() {
    let rules = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [9/minute] }] }";
    let settings = ServiceSettings {
        headers: HeaderSets::ALL.with_partitions(Some(PartitionSecret::new(b"a secret of the fleet"))),
        rls_headers: Some(HeaderSet::Ietf),
        ..ServiceSettings::default()
    };
    let world = World::with(rules, Format::Native, settings);
    let policies = async |users: &[&str]| {
        let answer =
            world.ask(request(users.iter().map(|user| descriptor(&[("user", user)])))).await.unwrap();
        let header = answer.response_headers_to_add.iter().find(|one| one.key == "ratelimit-policy");
        header.unwrap().value.split(", ").map(str::to_owned).collect::<Vec<_>>()
    };
    let (one, other) = (policies(&["7"]).await, policies(&["8"]).await);
    assert!(one[0].contains(";pk=:") && one != other, "{one:?} {other:?}");
    assert_eq!(policies(&["7", "8"]).await, [one, other].concat(), "a policy for each quota");
}
