//! A client that behaves: it paces itself by what `RateLimit` headers say is left, waits with jitter when it is refused, and
//! throttles itself when a server keeps refusing, as Google's SRE book has it.
//!
//! The server runs in the same process, so that there is something to call.
//!
//! ```text
//! cargo run -p example-client
//! ```

mod pace;

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use pace::{Backoff, Pacer, Throttle};
use tidegate::RateLimitLayer;
use tidegate::rules::{Rule, Rules, TokenBucket};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = serve().await?;
    // Thirty calls at twenty a second: who keeps to what headers say is hardly ever refused.
    let (began, mut refused, mut pacer) = (Instant::now(), 0, Pacer::default());
    for _ in 0..30 {
        tokio::time::sleep(pacer.pause()).await;
        let answer = call(server, "/paced").await?;
        refused += u32::from(answer.status == 429);
        pacer.heard(&answer.headers);
    }
    println!("paced: 30 calls, {refused} refused, in {} ms", began.elapsed().as_millis());

    // One call that must succeed: again and again, at longer and longer intervals, never before `Retry-After`.
    while call(server, "/burst").await?.status == 200 {}
    let (mut backoff, mut tries) = (Backoff::new(Duration::from_millis(50), Duration::from_secs(2), 7), 0);
    loop {
        tries += 1;
        let answer = call(server, "/burst").await?;
        if answer.status == 200 {
            break;
        }
        let told =
            answer.header("retry-after").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        tokio::time::sleep(backoff.next(told)).await;
    }
    println!("backed off: through after {tries} tries");

    // A server that refuses nearly everything is soon spared most calls.
    let (mut throttle, mut sent) = (Throttle::new(2.0, 11), 0);
    for _ in 0..400 {
        if throttle.lets_pass() {
            sent += 1;
            let answer = call(server, "/closed").await?;
            throttle.heard(answer.status == 200);
        }
    }
    println!("throttled: 400 wanted, {sent} sent");
    Ok(())
}

async fn serve() -> Result<SocketAddr, Box<dyn std::error::Error>> {
    let rules = Rules::new("api")
        .rule(Rule::new("paced").matches("path", "/paced").limit(TokenBucket::per_second(20).burst(5)))
        .rule(Rule::new("burst").matches("path", "/burst").limit(TokenBucket::per_second(1).burst(3)))
        .rule(Rule::new("closed").matches("path", "/closed").limit("2/hour"));
    let layer = RateLimitLayer::new(tidegate::in_memory(rules)?, "api")?;
    let app = Router::new().route("/{any}", get(|| async { "hello" })).layer(layer);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

struct Answer {
    status: u16,
    headers: Vec<(String, String)>,
}

impl Answer {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }
}

/// As little HTTP as this needs.
async fn call(server: SocketAddr, path: &str) -> Result<Answer, Box<dyn std::error::Error>> {
    let mut stream = TcpStream::connect(server).await?;
    stream
        .write_all(format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    let mut lines = text.lines().take_while(|line| !line.is_empty());
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).ok_or("no status")?.parse()?;
    let header =
        |line: &str| line.split_once(':').map(|(name, value)| (name.to_lowercase(), value.trim().to_owned()));
    Ok(Answer { status, headers: lines.filter_map(header).collect() })
}
