//! Six common tasks with tidegate.
#![allow(dead_code)]

use std::time::{Duration, Instant};

use tidegate::rules::{Rule, Rules, TokenBucket};
use tidegate::{Ask, Limiter};

type Error = Box<dyn std::error::Error>;

// task: 100 a minute for each user
fn per_user(user: &str) -> Result<bool, Error> {
    let limiter = tidegate::in_memory(Rules::new("api").rule(Rule::new("per-user").key(["user"]).limit("100/minute")))?;
    Ok(Ask::new("api").with("user", user).check_blocking(&limiter)?.allowed)
}
// end

// task: 10 a second, 50 at once
fn burst() -> Result<Limiter, Error> {
    Ok(tidegate::in_memory(Rules::new("api").rule(Rule::new("r").limit(TokenBucket::per_second(10).burst(50))))?)
}
// end

// task: when to come back
fn come_back(limiter: &Limiter) -> Result<Option<Duration>, Error> {
    Ok(Ask::new("api").check_blocking(limiter)?.retry_after())
}
// end

#[cfg(feature = "axum")]
// task: an axum service, by client address, with headers
async fn service(listener: tokio::net::TcpListener, app: axum::Router) -> Result<(), Error> {
    let limiter = tidegate::in_memory(Rules::new("api").rule(Rule::new("r").key(["ip"]).limit("100/minute")))?;
    let app = app.layer(tidegate::RateLimitLayer::new(limiter, "api")?);
    Ok(axum::serve(listener, app.into_make_service_with_connect_info::<std::net::SocketAddr>()).await?)
}
// end

#[cfg(feature = "redis")]
// task: one limit for several processes
async fn shared(user: &str) -> Result<bool, Error> {
    let rules = Rules::new("api").rule(Rule::new("per-user").key(["user"]).limit("100/minute"));
    let limiter = tidegate::on_redis(rules, "redis://127.0.0.1:6379")?;
    Ok(Ask::new("api").with("user", user).check(&limiter).await?.allowed)
}
// end

// task: another limit while requests are decided, counters kept
fn live(limiter: &Limiter) -> Result<(), Error> {
    let rules = Rules::new("api").rule(Rule::new("r").limit(TokenBucket::per_second(20).burst(50)));
    limiter.replace_rules(rules)?;
    Ok(())
}
// end

/// Nanoseconds per check: the best of many short rounds, because others may run on this machine.
fn nanoseconds(users: &[String], check: impl Fn(&str) -> Result<bool, Error>) -> Result<u128, Error> {
    let mut best = u128::MAX;
    for round in 0..2_000_000 / users.len() {
        let began = Instant::now();
        for number in 0..users.len() {
            assert!(check(&users[number])?, "round {round}");
        }
        best = best.min(began.elapsed().as_nanos() / users.len() as u128);
    }
    Ok(best)
}

fn main() -> Result<(), Error> {
    let rules = Rules::new("api").rule(Rule::new("r").key(["user"]).limit(TokenBucket::per_second(1_000_000).burst(1_000_000)));
    let limiter = tidegate::in_memory(rules)?;
    let per_user = limiter.prepare("api", ["user"])?;
    for keys in [1_000, 100_000] {
        let users: Vec<String> = (0..keys).map(|number| format!("user-{number}")).collect();
        let prepared = nanoseconds(&users, |user| Ok(per_user.check_blocking(&[user])?.is_allowed()))?;
        let ask = |user: &str| Ok(Ask::new("api").with("user", user).check_blocking(&limiter)?.is_allowed());
        println!("{prepared} prepared, {} by `Ask`", nanoseconds(&users, ask)?);
    }
    Ok(())
}
