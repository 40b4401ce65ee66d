//! A client of xDS: takes envoyproxy/ratelimit's limits from a management server, such as Envoy Gateway, as that service does.
//!
//! State of the world over an aggregated stream: each answer holds all limits, and is accepted, or refused with the reasons.
//! This knows neither rules nor what becomes of them, and never decides when to connect again.

mod limits;
mod messages;
mod tls;

use std::io;
use std::time::Duration;

use futures_util::stream;
use http::Uri;
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message as _;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tonic::client::Grpc;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tower::service_fn;

pub use limits::LimitFile;
pub use tls::{XdsTls, XdsTlsError};

use messages::{DiscoveryRequest, DiscoveryResponse, Node, RateLimitConfig, RpcStatus};

const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The largest answer: all limits of a gateway.
const MOST_BYTES: usize = 32 << 20;
/// The longest reason that is sent back: the first mistakes, not all of them.
const LONGEST_REASON: usize = 4_096;
const CONNECTS_WITHIN: Duration = Duration::from_secs(5);
/// A server that is gone without a word is noticed after two of these.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// The management server, and the name by which it knows this client.
#[derive(Clone, Debug)]
pub struct XdsServer {
    /// Its address, as host:port.
    pub address: String,
    /// The node id for which the server has limits.
    pub node_id: String,
    /// TLS, if it is encrypted.
    pub tls: Option<XdsTls>,
}

/// A client, and what it accepted last.
#[derive(Debug)]
pub struct XdsClient {
    server: XdsServer,
    accepted: String,
}

impl XdsClient {
    /// A client that has accepted nothing yet.
    #[must_use]
    pub fn new(server: XdsServer) -> Self {
        XdsClient { server, accepted: String::new() }
    }

    /// Whether the server is asked over TLS.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.server.tls.is_some()
    }

    /// Connects, and gives `take` all limits whenever the server sends them; what it refuses is refused to the server with
    /// its reason. Returns why the stream ended: call it again to continue after what was accepted last.
    pub async fn follow<F, T>(&mut self, mut take: F) -> Status
    where
        F: FnMut(Vec<LimitFile>) -> T,
        T: Future<Output = Result<(), String>>,
    {
        match self.until_it_ends(&mut take).await {
            Ok(()) => Status::unavailable("the server ended the stream"),
            Err(status) => with_causes(&status),
        }
    }

    async fn until_it_ends<F, T>(&mut self, take: &mut F) -> Result<(), Status>
    where
        F: FnMut(Vec<LimitFile>) -> T,
        T: Future<Output = Result<(), String>>,
    {
        let unavailable = |error: tonic::transport::Error| Status::from_error(Box::new(error));
        let channel = self.server.connect().await.map_err(unavailable)?;
        let mut grpc = Grpc::new(channel).max_decoding_message_size(MOST_BYTES);
        grpc.ready().await.map_err(unavailable)?;
        // Each answer is replied to before the next is read.
        let (replies, queue) = mpsc::channel(2);
        let gone = |_| Status::unavailable("the server ended the stream");
        replies.send(self.request(String::new(), None)).await.map_err(gone)?;
        let sent = stream::unfold(queue, async |mut queue| Some((queue.recv().await?, queue)));
        let codec: ProstCodec<DiscoveryRequest, DiscoveryResponse> = ProstCodec::default();
        let answers = grpc.streaming(Request::new(sent), PathAndQuery::from_static(METHOD), codec).await?;
        let mut answers = answers.into_inner();
        while let Some(answer) = answers.message().await? {
            let taken = match files(&answer) {
                Ok(files) => take(files).await,
                Err(reason) => Err(reason),
            };
            if taken.is_ok() {
                self.accepted.clone_from(&answer.version_info);
            }
            replies.send(self.request(answer.nonce, taken.err())).await.map_err(gone)?;
        }
        Ok(())
    }

    /// The first request, or the reply to an answer: it names what was accepted last, and why the answer was not.
    fn request(&self, nonce: String, refused: Option<String>) -> DiscoveryRequest {
        DiscoveryRequest {
            version_info: self.accepted.clone(),
            node: Some(Node { id: self.server.node_id.clone(), cluster: String::new() }),
            type_url: TYPE_URL.to_owned(),
            response_nonce: nonce,
            error_detail: refused.map(|mut message| {
                message.truncate(message.floor_char_boundary(LONGEST_REASON));
                RpcStatus { code: Code::InvalidArgument.into(), message }
            }),
        }
    }
}

/// The status with all its causes in its message: those of a failed TLS handshake are the innermost ones.
fn with_causes(status: &Status) -> Status {
    let mut message = status.message().to_owned();
    let mut next = std::error::Error::source(status);
    while let Some(cause) = next {
        let text = cause.to_string();
        // The name of the layer says nothing of what failed.
        if text != "transport error" && !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        next = cause.source();
    }
    Status::new(status.code(), message)
}

/// The limits in an answer.
fn files(answer: &DiscoveryResponse) -> Result<Vec<LimitFile>, String> {
    let file = |resource: &prost_types::Any| {
        if resource.type_url != TYPE_URL {
            return Err(format!("a resource is a `{}`, not a `{TYPE_URL}`", resource.type_url));
        }
        let config = RateLimitConfig::decode(&*resource.value)
            .map_err(|error| format!("a resource cannot be read: {error}"))?;
        limits::file(&config)
    };
    answer.resources.iter().map(file).collect()
}

/// A connection, whether encrypted or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl XdsServer {
    async fn connect(&self) -> Result<tonic::transport::Channel, tonic::transport::Error> {
        // The connector encrypts, so the address has no scheme that says so.
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address))?
            .connect_timeout(CONNECTS_WITHIN)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        let (address, tls) = (self.address.clone(), self.tls.clone());
        let connector = service_fn(move |_: Uri| {
            let (address, tls) = (address.clone(), tls.clone());
            async move {
                let socket = TcpStream::connect(address).await?;
                socket.set_nodelay(true)?;
                let stream: Box<dyn Stream> = match tls {
                    Some(tls) => Box::new(TlsConnector::from(tls.config).connect(tls.name, socket).await?),
                    None => Box::new(socket),
                };
                Ok::<_, io::Error>(TokioIo::new(stream))
            }
        });
        endpoint.connect_with_connector(connector).await
    }
}
