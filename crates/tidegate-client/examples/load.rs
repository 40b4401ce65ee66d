//! How many decisions one process makes with hits that it took ahead, and how often it needs the server for them, beside asking for
//! each request.
//!
//! `tidegate serve --rules RULES`, with a rule of the domain `api` keyed by `user` that has `lease_to_clients: true`, then
//! `cargo run --release -p tidegate-client --example load -- URL SECONDS REQUESTS_PER_SECOND`. Without the last, as many as it can, and
//! then as many of governor's, for one key of a limit that never refuses.

use std::error::Error;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tidegate_client::{Client, OnFailure, Source};
use tokio::time::{Instant, sleep_until};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "http://127.0.0.1:8080".to_owned());
    let seconds: u64 = args.next().map_or(Ok(5), |text| text.parse())?;
    let rate: Option<u32> = args.next().map(|text| text.parse()).transpose()?;
    let client = Client::to(url).domain("api").on_failure(OnFailure::Closed).connect().await?;
    let key = client.key(&[("user", "load")]);
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let (mut decisions, mut allowed, mut held) = (0_u64, 0_u64, 0_u64);
    while Instant::now() < end {
        // A hundred at a time, so that the clock costs little.
        for _ in 0..100 {
            let decision = key.check(1).await?;
            decisions += 1;
            allowed += u64::from(decision.allowed);
            held += u64::from(decision.source == Source::Held);
        }
        match rate {
            Some(rate) => sleep_until(begin + Duration::from_secs(decisions) / rate).await,
            None => tokio::task::yield_now().await,
        }
    }
    let took = begin.elapsed();
    let stats = client.stats();
    client.shutdown().await;
    let calls = stats.asked + stats.messages;
    print(&format!(
        "decisions={decisions} allowed={allowed} held={held} calls={calls} per_second={} calls_per_1000={:.3}",
        decisions / seconds,
        calls as f64 * 1_000.0 / decisions as f64
    ));
    if rate.is_none() {
        let nanos = |took: Duration, count: u64| took.as_nanos() as f64 / count as f64;
        print(&format!(
            "ns={:.1} governor_ns={:.1}",
            nanos(took, decisions),
            nanos(governor(decisions), decisions)
        ));
    }
    Ok(())
}

/// How long as many decisions take of governor's.
fn governor(decisions: u64) -> Duration {
    let limiter: DefaultKeyedRateLimiter<String> =
        RateLimiter::keyed(Quota::per_second(NonZeroU32::new(1_000_000_000).expect("not zero")));
    let (key, begin) = ("load".to_owned(), Instant::now());
    for _ in 0..decisions {
        black_box(limiter.check_key(black_box(&key)).is_ok());
    }
    begin.elapsed()
}

#[expect(clippy::print_stdout, reason = "the result of the program")]
fn print(line: &str) {
    println!("{line}");
}
