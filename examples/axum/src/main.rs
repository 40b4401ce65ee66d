//! An axum service behind a limiter: in memory, or shared with others of its kind on Redis.
//!
//! ```text
//! cargo run -p example-axum                              # on 127.0.0.1:3000
//! cargo run -p example-axum -- 127.0.0.1:0 redis://127.0.0.1:6379
//! for i in 1 2 3 4 5 6; do curl -i http://127.0.0.1:3000/; done
//! curl -i http://127.0.0.1:3000/report & curl -i http://127.0.0.1:3000/report
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tidegate::middleware::identity::{Identity, IdentityConfig};
use tidegate::{RateLimitLayer, RedisConfig};
use tokio::net::TcpListener;

/// Five requests a minute for every client; one report at a time for everybody; imports trickle in, two a second.
const RULES: &str = "
domain: api
rules:
  - { name: per-client, match: { path: / }, key: [client], limits: [5/minute] }
  - { name: reports, match: { path: /report }, limits: [{ algorithm: concurrency, limit: 1, ttl: 30s }] }
  - { name: imports, match: { route: '/import/{file}' }, limits: [{ algorithm: leaky_bucket, rate: 2/s, max_delay: 3s }] }
";

type Error = Box<dyn std::error::Error>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let listen = arguments.next().unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let limiter = match arguments.next() {
        // By default a request waits 10 ms for Redis before it is decided without; a demonstration has more time.
        Some(url) => {
            let config = RedisConfig::default().timeout(Duration::from_secs(5));
            tidegate::on_redis_with(RULES, &url, &config)?
        }
        None => tidegate::in_memory(RULES)?,
    };
    // Who a client is: its address, as far as proxies in these networks tell it. Paths are known by their templates.
    let who = IdentityConfig::default().trusted_proxies(["10.0.0.0/8"]).paths(["/import/{file}"]);
    let identity = Identity::new(&who)?;
    let layer = RateLimitLayer::builder(limiter, "api").identity(identity).build()?;
    let app = Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/report", get(report))
        .route("/import/{file}", get(|| async { "imported\n" }))
        .layer(layer);
    let listener = TcpListener::bind(listen).await?;
    println!("listening {}", listener.local_addr()?);
    // With the addresses of its peers: without them the limiter would not know its clients, and says so.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).with_graceful_shutdown(stopped()).await?;
    Ok(())
}

/// Takes a while, and more than the machine can do twice at once.
async fn report() -> &'static str {
    tokio::time::sleep(Duration::from_secs(1)).await;
    "done\n"
}

async fn stopped() {
    let _ = tokio::signal::ctrl_c().await;
}
