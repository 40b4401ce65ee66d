//! A week of traffic, live through a real server whose wall clock is set ahead from day to day, and in a replay of the same requests:
//! both decide every one alike.
//!
//! The recording that is played is the test's own: it knows when each request comes, and nothing of what the server said.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};
use tidegate_replay::{Format, Options, Parser, Replay};
use tidegate_rules::{Format as RuleFormat, RuleSet, Source};
use tidegate_testkit::{SteppedClock, eventually, http};

use crate::control_world::PATIENCE;
use crate::live_and_replay::{LoggingServer, command_agrees, now};

/// Days and weeks of the calendar, and spans that begin with a caller. None of them ends near a moment at which somebody asks, so that a
/// few seconds decide nothing.
const RULES: &str = "\
domain: api
rules:
  - { name: daily, match: { kind: daily }, key: [user], limits: [{ algorithm: fixed_window, limit: 4, window: day, tz: Europe/Berlin }] }
  - { name: weekly, match: { kind: weekly }, key: [user], limits: [{ algorithm: fixed_window, limit: 12, window: week }] }
  - { name: log, match: { kind: log }, key: [user], limits: [{ algorithm: sliding_log, limit: 6, window: 2d }] }
  - { name: sliding, match: { kind: sliding }, key: [user], limits: [{ algorithm: sliding_window, limit: 6, window: 2d }] }
  - { name: bucket, match: { kind: bucket }, key: [user], limits: [{ algorithm: token_bucket, rate: 1/20011s, burst: 4 }] }
  - { name: leaky, match: { kind: leaky }, key: [user], limits: [{ algorithm: leaky_bucket, rate: 1/20011s, max_delay: 80000s }] }
  - { name: banned, match: { kind: banned }, key: [user], penalty: 100000s, limits: [{ algorithm: sliding_log, limit: 4, window: 1d }] }
  - { name: everybody, limits: [{ algorithm: sliding_log, limit: 190, window: 2d }] }
  - { name: hourly, match: { kind: hourly }, limits: [{ algorithm: sliding_log, limit: 1, window: 1h }] }
";
const KINDS: [&str; 7] = ["daily", "weekly", "log", "sliding", "bucket", "leaky", "banned"];

/// 2027-03-25T00:00:30Z, a Thursday. On the Sunday after it a day in Berlin has 23 hours.
const START_S: u64 = 1_805_932_830;
/// Eight of them, of 21 hours and some minutes, are a week.
const STOPS: u64 = 9;
const BETWEEN_S: u64 = 75_810;
const AT_A_STOP: u64 = 130;

struct Asked {
    at_s: u64,
    attributes: Value,
}

/// What is asked at each stop. First of all the one request that passes once an hour.
fn week() -> Vec<Vec<Asked>> {
    let mut random = 7_u64;
    let mut pick = |of: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % of
    };
    let mut stop = |number: u64| {
        let at_s = START_S + number * BETWEEN_S;
        let first = Asked { at_s, attributes: json!({ "kind": "hourly" }) };
        let others = (0..AT_A_STOP).map(|_| {
            let attributes = json!({ "kind": KINDS[pick(7)], "user": format!("u{}", pick(3)) });
            Asked { at_s, attributes }
        });
        std::iter::once(first).chain(others).collect()
    };
    (0..STOPS).map(&mut stop).collect()
}

/// What a replay decides of a recording that says when each came, and of nobody that it was refused.
fn replayed(week: &[Asked]) -> Vec<bool> {
    let log = week.iter().fold(String::new(), |mut log, Asked { at_s, attributes }| {
        let time_us = at_s * 1_000_000;
        let line =
            json!({ "time_us": time_us, "domain": "api", "verdict": "admitted", "attributes": attributes });
        writeln!(log, "{line}").unwrap();
        log
    });
    let rules = RuleSet::compile(&[Source::new("rules.yaml", RULES)], RuleFormat::Native).unwrap();
    let mut replay = Replay::new(rules, None, Options::new("api"));
    let mut parser = Parser::new(Format::Tidegate).unwrap();
    log.lines().map(|line| replay.play(&parser.parse(line.as_bytes()).unwrap()).unwrap().now).collect()
}

#[test]
fn a_week_live_through_a_server_and_the_same_week_replayed_agree_on_every_decision() {
    let (week, clock) = (week(), SteppedClock::new());
    let show = |at_s: u64| {
        let machine_s = i64::try_from(now().as_secs()).unwrap();
        clock.set_ahead_of_the_machine(i64::try_from(at_s).unwrap() - machine_s);
    };
    show(START_S);
    let env = clock.env().map(|(name, path)| (name, path.to_str().unwrap().to_owned()));
    let env = env.each_ref().map(|(name, path)| (*name, path.as_str()));
    let server = LoggingServer::start_with_env("memory:", "alone", RULES, &env);
    let check = |attributes: &Value, cost: u64| {
        let body = json!({ "domain": "api", "attributes": attributes, "cost": cost }).to_string();
        http::post_json(server.http, "/v1/check", &body).json()
    };
    let (mut live, mut refused_by) = (Vec::new(), BTreeSet::new());
    for stop in &week {
        show(stop[0].at_s);
        // A server looks at the wall clock once a second. By its own an hour has passed when this one would pass again.
        eventually("it is that day", PATIENCE, || check(&stop[0].attributes, 0)["allowed"] == true);
        for asked in stop {
            let answer = check(&asked.attributes, 1);
            live.push(answer["allowed"].as_bool().unwrap());
            refused_by
                .extend(answer["rule"].as_str().filter(|_| answer["allowed"] == false).map(str::to_owned));
        }
    }
    let week: Vec<Asked> = week.into_iter().flatten().collect();
    for (number, (live, replayed)) in live.iter().zip(replayed(&week)).enumerate() {
        let Asked { at_s, attributes } = &week[number];
        assert_eq!(*live, replayed, "request {number} of {}, {attributes} at {at_s}", week.len());
    }
    assert_eq!(refused_by.len(), 8, "of some rules nothing is shown: {refused_by:?}");
    // The log that the server itself left says the same to the command.
    command_agrees(&[server.log()], RULES);
}
