//! gRPC as a client sees it; tonic's own client is the judge.

use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_limiter::TraceContext;
use tidegate_runtime::connection::HttpLimits;
use tidegate_runtime::{DataPlane, Drained, Listener, Settings};
use tidegate_server::grpc::{Grpc, RateLimits, health_and_reflection};
use tidegate_server::rls::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::rls::{Code, RateLimitRequest, RateLimitResponse};
use tokio::sync::Semaphore;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code as StatusCode, Status};
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, health_check_response::ServingStatus};
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// Echoes the domain; `""` is an error, and `wait` waits until the gate is opened.
struct Echo {
    gate: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl RateLimits for Echo {
    async fn should_rate_limit(
        &self,
        request: RateLimitRequest,
        _: Option<TraceContext>,
    ) -> Result<RateLimitResponse, Status> {
        if request.domain.is_empty() {
            return Err(Status::invalid_argument("rate limit domain must not be empty; é"));
        }
        if request.domain == "wait" {
            self.waiting.add_permits(1);
            let _open = self.gate.acquire().await.unwrap();
        }
        Ok(RateLimitResponse {
            overall_code: Code::Ok.into(),
            raw_body: request.domain.into(),
            ..RateLimitResponse::default()
        })
    }
}

struct Served {
    plane: DataPlane,
    channel: Channel,
    gate: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

impl Served {
    fn start() -> Self {
        let (gate, waiting) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
        let (others, _health) = health_and_reflection();
        let limits = HttpLimits { max_body_bytes: 64 * 1024, ..HttpLimits::default() };
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (for_gate, for_waiting) = (Arc::clone(&gate), Arc::clone(&waiting));
        let listener = Listener::bind("grpc", any, move |_| {
            let echo = Echo { gate: Arc::clone(&for_gate), waiting: Arc::clone(&for_waiting) };
            Arc::new(Grpc::new(echo, others.clone(), limits))
        });
        let plane = DataPlane::start(&Settings::default(), vec![listener.unwrap()]).unwrap();
        let channel =
            Endpoint::from_shared(format!("http://{}", plane.addresses()[0].1)).unwrap().connect_lazy();
        Self { plane, channel, gate, waiting }
    }

    async fn ask(&self, domain: &str) -> Result<RateLimitResponse, Status> {
        let request = RateLimitRequest { domain: domain.to_owned(), ..RateLimitRequest::default() };
        let reply = RateLimitServiceClient::new(self.channel.clone()).should_rate_limit(request).await;
        reply.map(tonic::Response::into_inner)
    }
}

#[tokio::test]
async fn a_request_is_answered() {
    let reply = Served::start().ask("api").await.unwrap();
    assert_eq!((reply.overall_code(), &reply.raw_body[..]), (Code::Ok, &b"api"[..]));
}

#[tokio::test]
async fn answers_have_no_date() {
    let served = Served::start();
    let request = RateLimitRequest { domain: "api".to_owned(), ..RateLimitRequest::default() };
    let reply = RateLimitServiceClient::new(served.channel.clone()).should_rate_limit(request).await.unwrap();
    assert!(!reply.metadata().contains_key("date"), "{:?}", reply.metadata());
}

#[tokio::test]
async fn an_error_travels_as_a_status_with_its_message() {
    let status = Served::start().ask("").await.unwrap_err();
    assert_eq!(status.code(), StatusCode::InvalidArgument);
    assert_eq!(status.message(), "rate limit domain must not be empty; é");
}

#[tokio::test]
async fn requests_that_must_wait_hold_up_nobody_on_the_same_connection() {
    let served = Served::start();
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let mut client = RateLimitServiceClient::new(served.channel.clone());
            let request = RateLimitRequest { domain: "wait".to_owned(), ..RateLimitRequest::default() };
            tokio::spawn(async move { client.should_rate_limit(request).await })
        })
        .collect();
    let _all = served.waiting.acquire_many(100).await.unwrap();
    served.ask("api").await.unwrap();
    served.gate.add_permits(1);
    for waiter in waiters {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_message_of_several_frames_is_read_whole_and_a_larger_one_is_refused() {
    let served = Served::start();
    let large = "x".repeat(64 * 1024);
    let reply = served.ask(&large[10..]).await.unwrap();
    assert_eq!(reply.raw_body.len(), large.len() - 10);
    // Not an error: on one, Envoy would let the request pass.
    assert_eq!(served.ask(&large).await.unwrap().overall_code(), Code::OverLimit);
}

#[tokio::test]
async fn a_drain_answers_what_was_begun_and_closes_the_connection() {
    let served = Served::start();
    let mut client = RateLimitServiceClient::new(served.channel.clone());
    let request = RateLimitRequest { domain: "wait".to_owned(), ..RateLimitRequest::default() };
    let begun = tokio::spawn(async move { client.should_rate_limit(request).await });
    let _waiting = served.waiting.acquire().await.unwrap();

    let drained = tokio::task::spawn_blocking(|| served.plane.drain());
    served.gate.add_permits(1);
    begun.await.unwrap().unwrap();
    assert_eq!(drained.await.unwrap(), Drained { cut: 0 });
}

#[tokio::test]
async fn health_says_serving() {
    let served = Served::start();
    let reply = HealthClient::new(served.channel.clone()).check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(reply.into_inner().status(), ServingStatus::Serving);
}

#[tokio::test]
async fn reflection_lists_the_rate_limit_service() {
    let served = Served::start();
    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let stream = tokio_stream::once(request);
    let mut replies = ServerReflectionClient::new(served.channel.clone())
        .server_reflection_info(stream)
        .await
        .unwrap()
        .into_inner();
    let Some(MessageResponse::ListServicesResponse(list)) =
        replies.message().await.unwrap().unwrap().message_response
    else {
        panic!("not a list of services");
    };
    let names: Vec<_> = list.service.into_iter().map(|service| service.name).collect();
    assert!(names.contains(&"envoy.service.ratelimit.v3.RateLimitService".to_owned()), "{names:?}");
    assert!(names.contains(&"grpc.health.v1.Health".to_owned()), "{names:?}");
}

#[tokio::test]
async fn an_unknown_method_is_unimplemented() {
    let served = Served::start();
    let mut client = tonic::client::Grpc::new(served.channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let path =
        http::uri::PathAndQuery::from_static("/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit");
    let request = tonic::Request::new(RateLimitRequest::default());
    let status = client.unary(request, path, codec).await.unwrap_err();
    assert_eq!(status.code(), StatusCode::Unimplemented);
}
