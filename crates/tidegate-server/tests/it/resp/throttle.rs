//! `CL.THROTTLE` compared with redis-cell, as its manual describes it.

use proptest::prelude::*;
use tidegate_core::Micros;
use tidegate_testkit::resp::Value;

use super::world::{World, ask, integers};

/// redis-cell's computation: a theoretical arrival time, moved by the emission interval with every token. Time is counted in
/// fractions of a microsecond (`count` of them), so that nothing is rounded.
struct Gcra {
    count: i128,
    emission: i128,
    tolerance: i128,
    arrival: i128,
}

impl Gcra {
    fn new(max_burst: i64, count: i64, period_s: i64) -> Self {
        let emission = i128::from(period_s) * 1_000_000;
        Gcra { count: count.into(), emission, tolerance: emission * (i128::from(max_burst) + 1), arrival: 0 }
    }

    fn throttle(&mut self, now_us: i128, quantity: i64) -> Vec<i64> {
        let now = now_us * self.count;
        let increment = self.emission * i128::from(quantity);
        let arrival = self.arrival.max(now);
        let late_by = arrival + increment - self.tolerance - now;
        let (limited, retry_after, until_reset) = match late_by {
            late if late <= 0 => {
                self.arrival = arrival + increment;
                (0, -1, self.arrival - now)
            }
            _ if increment > self.tolerance => (1, -1, arrival - now),
            late => (1, self.seconds(late), arrival - now),
        };
        let remaining = (self.tolerance - until_reset) / self.emission;
        let limit = self.tolerance / self.emission;
        vec![limited, i64_of(limit), i64_of(remaining), retry_after, self.seconds(until_reset)]
    }

    /// Whole seconds, rounded up.
    fn seconds(&self, time: i128) -> i64 {
        let second = self.count * 1_000_000;
        i64_of((time + second - 1) / second)
    }
}

fn i64_of(number: i128) -> i64 {
    i64::try_from(number).unwrap()
}

#[test]
fn the_manuals_example_is_answered_as_in_the_manual() {
    let world = World::new();
    let reply = ask(&mut world.client(), "CL.THROTTLE user123 15 30 60");
    assert_eq!(integers(&reply), [0, 16, 15, -1, 2]);
    let reply = ask(&mut world.client(), "cl.throttle user123 15 30 60 1");
    assert_eq!(integers(&reply), [0, 16, 14, -1, 4]);
}

#[test]
fn a_spent_bucket_says_when_to_come_back() {
    let world = World::new();
    let mut client = world.client();
    for remaining in (0..5).rev() {
        let reply = integers(&ask(&mut client, "CL.THROTTLE k 4 1 1"));
        assert_eq!(reply, [0, 5, remaining, -1, 5 - remaining]);
    }
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 4 1 1")), [1, 5, 0, 1, 5]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 4 1 1 3")), [1, 5, 0, 3, 5]);
    world.advance(Micros::from_millis(2_500));
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 4 1 1 3")), [1, 5, 2, 1, 3]);
    world.advance(Micros::from_millis(500));
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 4 1 1 3")), [0, 5, 0, -1, 5]);
}

#[test]
fn more_than_the_bucket_holds_is_limited_for_ever() {
    let world = World::new();
    assert_eq!(integers(&ask(&mut world.client(), "CL.THROTTLE k 4 1 1 6")), [1, 5, 5, -1, 0]);
}

#[test]
fn no_tokens_are_a_look_that_is_not_limited_and_spends_nothing() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 1 1 10 0")), [0, 2, 2, -1, 0]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 1 1 10 2")), [0, 2, 0, -1, 20]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 1 1 10 0")), [0, 2, 0, -1, 20]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 1 1 10")), [1, 2, 0, 10, 20]);
}

#[test]
fn a_burst_that_shrinks_keeps_what_was_spent() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 9 1 1 10")), [0, 10, 0, -1, 10]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 4 1 1")), [1, 5, 0, 6, 10]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 4 1 1 0")), [1, 5, 0, 5, 10]);
}

#[test]
fn a_changed_count_keeps_what_was_spent_and_a_changed_period_begins_anew() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 1 1 60 2")), [0, 2, 0, -1, 120]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 1 2 60")), [1, 2, 0, 30, 60]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 1 1 30")), [0, 2, 1, -1, 30]);
}

#[test]
fn keys_are_bytes_and_share_nothing() {
    let world = World::new();
    let mut client = world.client();
    let keys: [&[u8]; 5] = [b"", b"\xff\xfe\x00\r\n", b"\xff\xfe\x00\r", &[b'k'; 4_096], "clé".as_bytes()];
    for key in keys {
        for limited in [0, 1] {
            let reply = client.cmd(&[b"CL.THROTTLE", key, b"0", b"1", b"60"]);
            assert_eq!(reply.array()[0].int(), limited, "{}", key.escape_ascii());
        }
    }
    let reply = client.cmd(&[b"CL.THROTTLE", &[b'k'; 4_097][..], b"0", b"1", b"60"]);
    assert_eq!(reply, Value::Error("ERR key is longer than 4096 bytes".to_owned()));
}

#[test]
fn numbers_that_make_no_sense_are_errors_and_spend_nothing() {
    let world = World::new();
    let mut client = world.client();
    for numbers in [
        "4000000000 1 9000000000000",
        "9223372036854775807 9223372036854775807 9223372036854775807 9223372036854775807",
        "9223372036854775808 1 1",
        "-1 1 1",
        "1 -1 1",
        "1 1 -1",
        "1 1 1 -1",
        "1 0 1",
        "1 1 0",
        "1.5 1 1",
        "1 1 1 x",
        "99999999999999999999999999 1 1",
    ] {
        let reply = ask(&mut client, &format!("CL.THROTTLE k {numbers}"));
        assert!(reply.is_error() && reply.text().starts_with("ERR "), "{numbers}: {reply:?}");
    }
    for words in ["CL.THROTTLE", "CL.THROTTLE k 1 1", "CL.THROTTLE k 1 1 1 1 1"] {
        let expected = "ERR wrong number of arguments for 'cl.throttle' command, \
                        expected CL.THROTTLE key max_burst count period [quantity]";
        assert_eq!(ask(&mut client, words).text(), expected);
    }
    // The largest quantity that a reply could hold is no token back either.
    let most = format!("CL.THROTTLE k 1 1 1 {}", i64::MAX);
    assert_eq!(integers(&ask(&mut client, &most)), [1, 2, 2, -1, 0]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE k 1 1 1")), [0, 2, 1, -1, 1]);
}

#[test]
fn rules_and_throttles_do_not_share_cells() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE 42 0 1 60")), [0, 1, 0, -1, 60]);
    assert_eq!(ask(&mut client, "TG.CHECK api user 42").array()[2].int(), 2);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_is_answered_as_redis_cell_would(
        max_burst in 0..20i64,
        count in 1..100i64,
        period in 1..120i64,
        calls in proptest::collection::vec((0..6i64, 0..3_000_000u64), 1..40),
    ) {
        let world = World::new();
        let mut client = world.client();
        let mut oracle = Gcra::new(max_burst, count, period);
        let mut now = 0;
        for (quantity, pause) in calls {
            world.advance(Micros::new(pause));
            now += i128::from(pause);
            let reply = ask(&mut client, &format!("CL.THROTTLE k {max_burst} {count} {period} {quantity}"));
            prop_assert_eq!(integers(&reply), oracle.throttle(now, quantity));
        }
        let _ = world.plane.drain();
    }
}

#[test]
fn throttle_counts_and_answers_as_throttlecrab() {
    let world = World::new();
    let mut client = world.client();
    // From its manual: allowed, limit, remaining, seconds until full, seconds to wait; a bucket of `max_burst`.
    assert_eq!(integers(&ask(&mut client, "THROTTLE user:123 3 60 60")), [1, 3, 2, 1, 0]);
    assert_eq!(integers(&ask(&mut client, "THROTTLE user:123 3 60 60 2")), [1, 3, 0, 3, 0]);
    assert_eq!(integers(&ask(&mut client, "THROTTLE user:123 3 60 60")), [0, 3, 0, 3, 1]);
    assert_eq!(integers(&ask(&mut client, "CL.THROTTLE user:123 3 60 60")), [0, 4, 3, -1, 1]);
    assert_eq!(integers(&ask(&mut client, "THROTTLE user:123 3 60 60 4")), [0, 3, 0, 3, -1]);
    assert!(ask(&mut client, "THROTTLE user:123 0 60 60").is_error());
    world.advance(Micros::from_secs(1));
    assert_eq!(integers(&ask(&mut client, "throttle user:123 3 60 60")), [1, 3, 0, 3, 0]);
}
