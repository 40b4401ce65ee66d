//! Six common tasks with governor: those that it does.
#![allow(dead_code)]

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};

// task: 100 a minute for each user
fn per_user(user: &str) -> Option<bool> {
    let limiter: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(Quota::per_minute(NonZeroU32::new(100)?));
    Some(limiter.check_key(&user.to_owned()).is_ok())
}
// end

// task: 10 a second, 50 at once
fn burst() -> Option<DefaultDirectRateLimiter> {
    let quota = Quota::per_second(NonZeroU32::new(10)?).allow_burst(NonZeroU32::new(50)?);
    Some(RateLimiter::direct(quota))
}
// end

// task: when to come back
fn come_back(limiter: &DefaultDirectRateLimiter) -> Option<Duration> {
    let refused = limiter.check().err()?;
    Some(refused.wait_time_from(DefaultClock::default().now()))
}
// end

fn main() {
    let most = NonZeroU32::new(1_000_000).expect("not zero");
    let limiter: DefaultKeyedRateLimiter<String> = RateLimiter::keyed(Quota::per_second(most));
    for keys in [1_000, 100_000] {
        let users: Vec<String> = (0..keys).map(|number| format!("user-{number}")).collect();
        // The best of many short rounds: others may run on this machine.
        let mut best = u128::MAX;
        for round in 0..2_000_000 / keys {
            let began = Instant::now();
            for user in &users {
                assert!(limiter.check_key(user).is_ok(), "round {round}");
            }
            best = best.min(began.elapsed().as_nanos() / keys as u128);
        }
        println!("{best}");
    }
}
