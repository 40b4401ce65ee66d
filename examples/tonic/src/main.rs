//! A tonic service behind a limiter, and a client that hears RESOURCE_EXHAUSTED from it.
//!
//! The service is gRPC's own health check, so that the example needs no `.proto` of its own. With the argument `serve` and an
//! address it serves until it is stopped; without, a client calls it a few times.
//!
//! ```text
//! cargo run -p example-tonic
//! cargo run -p example-tonic -- serve 127.0.0.1:50051
//! ```

use std::net::SocketAddr;
use std::sync::Arc;

use tidegate::RateLimitLayer;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

/// Three calls of each method a minute, for every client.
const RULES: &str = "
domain: grpc
rules:
  - { name: per-method, key: [client, path], limits: [3/minute] }
";

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [serve, address] if serve == "serve" => {
            let listener = TcpListener::bind(address).await?;
            println!("listening {}", listener.local_addr()?);
            self::serve(listener).await
        }
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let address = listener.local_addr()?;
            tokio::spawn(self::serve(listener));
            call(address).await
        }
    }
}

async fn serve(listener: TcpListener) -> Result<(), Error> {
    let limiter = Arc::new(tidegate::in_memory(RULES)?);
    let (_, health) = tonic_health::server::health_reporter();
    Server::builder()
        .layer(RateLimitLayer::new(limiter, "grpc")?)
        .add_service(health)
        .serve_with_incoming(TcpListenerStream::new(listener))
        .await?;
    Ok(())
}

async fn call(address: SocketAddr) -> Result<(), Error> {
    let channel = Channel::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = HealthClient::new(channel);
    for number in 1..=4 {
        match client.check(HealthCheckRequest::default()).await {
            Ok(answer) => {
                let left = answer.metadata().get("x-ratelimit-remaining").and_then(|left| left.to_str().ok());
                println!("call {number}: ok, {} left", left.unwrap_or("?"));
            }
            Err(status) => {
                let wait = status.metadata().get("retry-after").and_then(|wait| wait.to_str().ok());
                let is_told = wait.is_some();
                println!(
                    "call {number}: {:?}: {} (told when to come back: {is_told})",
                    status.code(),
                    status.message()
                );
            }
        }
    }
    Ok(())
}
