//! A limiter, a server, a client, and a clock.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tidegate_core::{Hits, Micros, Timestamp};
use tidegate_limiter::{CheckRequest, DescriptorAsk, Limiter, LimiterConfig, NoObserver};
use tidegate_rules::{Descriptor, Format, RuleSet, Source};
use tidegate_store::{Clock, MemoryConfig, MemoryStore, Store, SystemClock};
use tokio::net::{TcpListener, TcpStream};

/// These rules of the domain `api`.
pub(crate) fn rules(rules: &str) -> RuleSet {
    let source = Source::new("api.yaml", format!("domain: api\nrules:\n{rules}"));
    RuleSet::compile(&[source], Format::Native).unwrap_or_else(|error| panic!("{error}"))
}

/// A limiter with these rules, on the machine's clock.
pub(crate) fn limiter(text: &str) -> Arc<Limiter> {
    limiter_with_clock(text, SystemClock::new())
}

pub(crate) fn limiter_with_clock(text: &str, clock: impl Clock) -> Arc<Limiter> {
    limiter_on(
        text,
        MemoryStore::with_clock(MemoryConfig::new().max_cells(1000).max_log_bytes(1 << 20), clock),
    )
}

pub(crate) fn limiter_on(text: &str, store: impl Store) -> Arc<Limiter> {
    Arc::new(Limiter::new(LimiterConfig::new(rules(text), Arc::new(store), Arc::new(NoObserver))))
}

/// Tokio's clock, which a test may turn.
pub(crate) struct VirtualClock(tokio::time::Instant);

impl VirtualClock {
    pub(crate) fn new() -> Self {
        VirtualClock(tokio::time::Instant::now())
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let elapsed = u64::try_from(self.0.elapsed().as_micros()).unwrap();
        Timestamp::from_micros(Micros::from_secs(1_800_000_000).get() + elapsed)
    }
}

/// How many places of the concurrency limit 1 are free: none or one.
pub(crate) async fn is_free(limiter: &Limiter) -> bool {
    let descriptor = Descriptor { entries: &[] };
    let looks = [DescriptorAsk::of(descriptor).cost(Hits::ZERO)];
    let look = CheckRequest::new("api", &looks);
    limiter.check(&look).await.unwrap().allowed
}

/// Waits until the place is free; a test that waits for longer than ten seconds has failed.
pub(crate) async fn becomes_free(limiter: &Limiter) {
    let free = async {
        while !is_free(limiter).await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), free).await.expect("the lease is given back");
}

/// Serves `app` on a free port, with its peers' addresses.
pub(crate) async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    address
}

/// An answer, read to its end.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("{name} in {:?}", self.headers)).to_str().unwrap()
    }
}

/// Asks for `path` over a connection of its own, and reads the whole answer.
pub(crate) async fn get(server: SocketAddr, path: &str) -> Answer {
    let (response, _connection) = begin(server, path).await;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status, headers: parts.headers, body }
}

/// A connection that ends with this.
pub(crate) struct Connection(tokio::task::JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Asks for `path`, and leaves the body unread.
pub(crate) async fn begin(server: SocketAddr, path: &str) -> (Response<Incoming>, Connection) {
    let (mut sender, connection) = connect(server).await;
    (sender.send_request(request(path)).await.unwrap(), connection)
}

pub(crate) type Sender = hyper::client::conn::http1::SendRequest<Empty<Bytes>>;

pub(crate) async fn connect(server: SocketAddr) -> (Sender, Connection) {
    let stream = TokioIo::new(TcpStream::connect(server).await.unwrap());
    let (sender, connection) = hyper::client::conn::http1::handshake(stream).await.unwrap();
    // What a connection that is cut off says of it is no news to a test that cut it.
    (sender, Connection(tokio::spawn(async move { drop(connection.await) })))
}

pub(crate) fn request(path: &str) -> Request<Empty<Bytes>> {
    Request::get(path).header("host", "localhost").body(Empty::new()).unwrap()
}
