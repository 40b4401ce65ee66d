//! What a gRPC client sees of a real tonic server.

use std::net::SocketAddr;

use tidegate_tower::RateLimitLayer;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use super::world::limiter;

/// Serves health behind these rules, and gives a client of it.
async fn client(rules: &str) -> HealthClient<Channel> {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder()
        .layer(RateLimitLayer::new(limiter(rules), "api").unwrap())
        .add_service(health)
        .serve_with_incoming(TcpListenerStream::new(listener));
    tokio::spawn(async move { server.await.unwrap() });
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(channel.connect().await.unwrap())
}

async fn ask(client: &mut HealthClient<Channel>) -> Result<tonic::Response<HealthCheckResponse>, Status> {
    client.check(HealthCheckRequest::default()).await
}

#[tokio::test]
async fn an_admitted_call_is_answered_and_told_what_is_left() {
    let mut client = client("  - { name: per-client, key: [client], limits: [2/minute] }").await;
    let answer = ask(&mut client).await.unwrap();
    assert_eq!(answer.metadata().get("x-ratelimit-remaining").unwrap(), "1");
    assert_eq!(answer.get_ref().status, i32::from(ServingStatus::Serving));
}

#[tokio::test]
async fn a_refused_call_is_resource_exhausted_and_told_when_to_come_back() {
    let rules = "  - { name: per-method, key: [client, path], limits: [1/minute] }";
    let mut client = client(rules).await;
    ask(&mut client).await.unwrap();
    let status = ask(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "the limit of 1 per 1m is used up");
    assert!(status.metadata().contains_key("retry-after"));
    assert_eq!(status.metadata().get("ratelimit-policy").unwrap(), r#""per-method";q=1;w=60"#);
}

#[tokio::test]
async fn a_stream_of_answers_holds_its_place_until_it_is_dropped() {
    let rules =
        "  - { name: at-once, key: [client], limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }";
    let mut client = client(rules).await;
    let watching = client.watch(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(ask(&mut client).await.unwrap_err().code(), Code::ResourceExhausted);
    drop(watching);
    let freed = async { while ask(&mut client).await.is_err() {} };
    tokio::time::timeout(std::time::Duration::from_secs(10), freed).await.expect("the place is given back");
}
