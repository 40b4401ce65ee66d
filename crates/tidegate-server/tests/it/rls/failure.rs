//! Without the store: every rule's policy is an answer, never an error.

use tidegate_server::rls::{Code, RateLimitDescriptor};

use crate::world::{World, descriptor, request};

const RULES: &str = "
domain: api
rules:
  - { name: shut, match: { path: /shut }, on_store_failure: closed, limits: [9/minute] }
  - { name: open, match: { path: /open }, on_store_failure: open, limits: [9/minute] }
  - { name: local, match: { path: /local }, limits: [{ algorithm: fixed_window, limit: 1, window: 1d }] }
";

#[tokio::test]
async fn a_closed_rule_is_over_its_limit_and_others_decide_as_they_say() {
    let world = World::without_store(RULES);
    let ask = async |path: &str| {
        let answer = world.ask(request([descriptor(&[("path", path)])])).await.unwrap();
        (answer.overall_code(), answer.statuses[0].code())
    };
    assert_eq!(ask("/shut").await, (Code::OverLimit, Code::OverLimit));
    assert_eq!(ask("/open").await, (Code::Ok, Code::Ok));
    assert_eq!(ask("/local").await, (Code::Ok, Code::Ok));
    assert_eq!(ask("/local").await, (Code::OverLimit, Code::OverLimit));
}

#[tokio::test]
async fn a_closed_rule_refuses_the_whole_request() {
    let world = World::without_store(RULES);
    let both = request([descriptor(&[("path", "/open")]), descriptor(&[("path", "/shut")])]);
    let answer = world.ask(both).await.unwrap();
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!([answer.statuses[0].code(), answer.statuses[1].code()], [Code::Ok, Code::OverLimit]);
}

#[tokio::test]
async fn hits_that_cannot_be_given_back_are_no_error() {
    let world = World::without_store(RULES);
    let back = RateLimitDescriptor { is_negative_hits: true, ..descriptor(&[("path", "/open")]) };
    assert_eq!(world.ask(request([back])).await.unwrap().overall_code(), Code::Ok);
}
