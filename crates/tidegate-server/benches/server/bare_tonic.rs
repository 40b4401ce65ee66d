//! The gRPC reference: tonic's own server on our runtime, answering one status without deciding anything.

use tidegate_access::Stream;
use tidegate_runtime::{Connection, Protocol, Serving};
use tidegate_server::rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use tidegate_server::rls::{Code, DescriptorStatus, RateLimit, RateLimitRequest, RateLimitResponse, Unit};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

/// Connections between the worker and tonic; it takes them at once.
const WAITING_CONNECTIONS: usize = 1024;

/// One worker's tonic server.
pub(crate) struct BareTonic {
    connections: mpsc::Sender<std::io::Result<TcpStream>>,
}

impl BareTonic {
    pub(crate) fn start() -> Self {
        let (connections, incoming) = mpsc::channel(WAITING_CONNECTIONS);
        let server = tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(AlwaysOk));
        tokio::spawn(server.serve_with_incoming(ReceiverStream::new(incoming)));
        Self { connections }
    }
}

impl Protocol for BareTonic {
    fn serve(&self, connection: Connection) -> Serving {
        let connections = self.connections.clone();
        Box::pin(async move {
            let Stream::Plain(socket) = connection.stream else { return };
            let _ = connections.send(Ok(socket)).await;
        })
    }
}

struct AlwaysOk;

#[tonic::async_trait]
impl RateLimitService for AlwaysOk {
    async fn should_rate_limit(
        &self,
        _request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let limit = RateLimit { requests_per_unit: 100, unit: Unit::Minute.into(), ..RateLimit::default() };
        let status = DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(limit),
            limit_remaining: 99,
            duration_until_reset: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            ..DescriptorStatus::default()
        };
        let overall_code = Code::Ok.into();
        Ok(Response::new(RateLimitResponse { overall_code, statuses: vec![status], ..Default::default() }))
    }
}
