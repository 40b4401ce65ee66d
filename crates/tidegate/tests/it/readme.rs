//! The README's Rust, run: each snippet refuses what its rules do not admit.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use http::{Request, StatusCode};
use tidegate::rules::{Rule, Rules, TokenBucket};
use tidegate::{Ask, RateLimitLayer};
use tidegate_testkit::Redis;
use tower::ServiceExt;

type Error = Box<dyn std::error::Error>;

/// What an application's own authentication leaves.
#[derive(Clone)]
struct User(String);

/// Every line of Rust in the README is in this file, so that what is shown is what is run.
#[test]
fn readme_shows_what_is_run_here() {
    let readme = include_str!("../../../../README.md");
    let here: Vec<&str> = include_str!("readme.rs").lines().map(str::trim).collect();
    let mut shown = 0;
    for block in readme.split("```rust\n").skip(1) {
        let block = block.split("```").next().expect("a block ends");
        for line in block.lines().map(str::trim).filter(|line| !line.is_empty()) {
            assert!(here.contains(&line), "not run: {line}");
            shown += 1;
        }
    }
    assert!(shown > 10, "{shown} lines");
}

#[tokio::test]
async fn readme_first_snippet_refuses_the_third() -> Result<(), Error> {
    #[rustfmt::skip]
    let limiter = tidegate::in_memory("
        domain: api
        rules:
          - { name: per-user, key: [user], limits: [2/minute] }
    ")?;
    let mut allowed = Vec::new();
    for _ in 0..3 {
        #[expect(unused_qualifications, reason = "as the README writes it")]
        let decision = tidegate::Ask::new("api").with("user", "alice").check(&limiter).await?;
        let may_pass = decision.allowed; // if not, `decision.retry_after` says when to come back
        allowed.push(may_pass);
    }
    assert_eq!(allowed, [true, true, false]);
    Ok(())
}

#[tokio::test]
async fn readme_second_snippet_refuses_who_has_spent_all() -> Result<(), Error> {
    let redis = Redis::start();
    let url = redis.url();
    let app = Router::new().route("/", get(|| async { "hello" }));
    let user = "ann".to_owned();
    #[rustfmt::skip]
    let rules = Rules::new("api").rule(Rule::new("per-user").key(["user"]).limit(TokenBucket::per_minute(100).burst(20)));
    /*
    let limiter = tidegate::on_redis(rules, "redis://10.0.0.7:6379")?;
    */
    let config = tidegate::RedisConfig::default().timeout(std::time::Duration::from_secs(5));
    let limiter = tidegate::on_redis_with(rules, &url, &config)?;
    #[rustfmt::skip]
    let layer = RateLimitLayer::builder(limiter.clone(), "api").also(["user"], |parts, attributes| {
        if let Some(User(name)) = parts.extensions.get() {
            attributes.push_everywhere("user", name.as_bytes()); // whom your authentication found
        }
    });
    let app = app.layer(layer.build()?); // an error if a rule counts by what the layer does not read

    let ask = async || {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(User(user.clone()));
        request
            .extensions_mut()
            .insert(axum::extract::ConnectInfo(std::net::SocketAddr::from(([127, 0, 0, 1], 9))));
        app.clone().oneshot(request).await.map(|response| response.status())
    };
    assert_eq!(ask().await?, StatusCode::OK);
    let mut spend = Ask::new("api").with("user", &user).cost(10).spend(&limiter).await?;
    if spend.is_allowed() {
        spend.settle(7).await?; // or refund, or charge more
    }
    // 20 at once, of which 8 are spent. However slow this machine is: the bucket refills 1.7 a second.
    for _ in 0..2_000 {
        if ask().await? == StatusCode::TOO_MANY_REQUESTS {
            return Ok(());
        }
    }
    panic!("2000 passed");
}

#[tokio::test]
async fn readme_prepared_check_refuses_the_third() -> Result<(), Error> {
    let limiter =
        tidegate::in_memory("{ domain: api, rules: [{ name: per-user, key: [user], limits: [2/minute] }] }")?;
    let mut allowed = Vec::new();
    for _ in 0..3 {
        let per_user = limiter.prepare("api", ["user"])?;
        let verdict = per_user.check(&["alice"]).await?;
        allowed.push(verdict.is_allowed());
    }
    assert_eq!(allowed, [true, true, false]);
    Ok(())
}
