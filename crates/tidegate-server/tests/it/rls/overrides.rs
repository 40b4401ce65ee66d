//! Limits that come with a descriptor.

use tidegate_server::rls::{Code, RateLimitDescriptor, RateLimitOverride, RateLimitUnit};
use tonic::Code as StatusCode;

use super::told;
use crate::world::{World, descriptor, request};

const RULES: &str = "
domain: api
descriptors:
  - { key: user, rate_limit: { unit: minute, requests_per_unit: 5 } }
";

fn bring(requests_per_unit: u32, unit: RateLimitUnit, unit_multiplier: Option<u32>) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit, unit: unit.into(), unit_multiplier };
    RateLimitDescriptor { limit: Some(limit), ..descriptor(&[("user", "42")]) }
}

async fn ask(world: &World, descriptor: RateLimitDescriptor) -> String {
    told(&world.ask(request([descriptor])).await.unwrap()).1.remove(0)
}

#[tokio::test]
async fn a_limit_that_is_brought_along_replaces_the_configured_one() {
    let world = World::envoy(RULES);
    let own = || bring(2, RateLimitUnit::Hour, None);
    assert_eq!(ask(&world, own()).await, "OK 1 of 2/HOUR 3600s");
    assert_eq!(ask(&world, own()).await, "OK 0 of 2/HOUR 3600s");
    assert_eq!(ask(&world, own()).await, "OVER 0 of 2/HOUR 3600s");
    assert_eq!(ask(&world, descriptor(&[("user", "42")])).await, "OK 4 of 5/MINUTE 60s");
}

#[tokio::test]
async fn it_needs_no_configured_one_but_a_known_domain() {
    let world = World::envoy(RULES);
    let own = RateLimitDescriptor {
        entries: descriptor(&[("x", "y")]).entries,
        ..bring(1, RateLimitUnit::Day, None)
    };
    assert_eq!(ask(&world, own.clone()).await, "OK 0 of 1/DAY 86400s");
    assert_eq!(ask(&world, own.clone()).await, "OVER 0 of 1/DAY 86400s");
    let mut elsewhere = request([own]);
    elsewhere.domain = "shop".to_owned();
    assert_eq!(told(&world.ask(elsewhere).await.unwrap()), (Code::Ok, vec!["OK".to_owned()]));
}

#[tokio::test]
async fn every_unit_and_multiplier_makes_its_window() {
    let world = World::envoy(RULES);
    // Windows begin at multiples of their length since 1970: day 20,834 is 14 days into a month of 30, and 29 into a
    // year of 365.
    for (unit, times, expected) in [
        (RateLimitUnit::Second, None, "OK 8 of 9/SECOND 1s"),
        (RateLimitUnit::Minute, None, "OK 8 of 9/MINUTE 60s"),
        (RateLimitUnit::Hour, None, "OK 8 of 9/HOUR 3600s"),
        (RateLimitUnit::Day, None, "OK 8 of 9/DAY 86400s"),
        (RateLimitUnit::Month, None, "OK 8 of 9/MONTH 1382400s"),
        (RateLimitUnit::Year, None, "OK 8 of 9/YEAR 29030400s"),
        (RateLimitUnit::Minute, Some(1), "OK 7 of 9/MINUTE 60s"),
        (RateLimitUnit::Minute, Some(5), "OK 8 of 9/MINUTEx5 300s"),
        // Day 20,834 is the second of a week that began on day 20,832.
        (RateLimitUnit::Day, Some(7), "OK 8 of 9/WEEK 432000s"),
    ] {
        assert_eq!(ask(&world, bring(9, unit, times)).await, expected);
    }
}

#[tokio::test]
async fn a_brought_limit_of_nothing_is_a_ban_and_the_largest_is_counted() {
    let world = World::envoy(RULES);
    assert_eq!(ask(&world, bring(0, RateLimitUnit::Minute, None)).await, "OVER 0 of 0/MINUTE 60s");
    let most = bring(u32::MAX, RateLimitUnit::Minute, None);
    assert_eq!(ask(&world, most).await, "OK 4294967294 of 4294967295/MINUTE 60s");
}

#[tokio::test]
async fn a_limit_that_makes_no_sense_is_named() {
    let world = World::envoy(RULES);
    for (wrong, field) in [
        (bring(1, RateLimitUnit::Unknown, None), "descriptors[0].limit.unit"),
        (bring(1, RateLimitUnit::Day, Some(0)), "descriptors[0].limit.unit_multiplier"),
        (bring(1, RateLimitUnit::Year, Some(u32::MAX)), "descriptors[0].limit.unit_multiplier"),
    ] {
        let status = world.ask(request([wrong])).await.unwrap_err();
        assert_eq!(status.code(), StatusCode::InvalidArgument);
        assert!(status.message().starts_with(&format!("{field}: ")), "{}", status.message());
    }
}
