//! Connections to one server: a few per runtime, each for one call at a time, as HTTP/1 has it.
//!
//! A connection is driven by the runtime that made it. Each call is a task of its own, so that a caller that gives up ends neither a
//! connection that is being made nor one that could be used again.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use http::header::{DATE, HeaderMap};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tidegate_store_items::{BEGINS_WITHIN, Deadline, Failure};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::{Handle, Id};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;

use crate::url::Server;

/// Only short-lived test runtimes exceed this: all but the newest are forgotten, and their connections closed.
const MOST_RUNTIMES: usize = 1_024;
/// After a connection could not be made, none is tried for so long: the reason is known.
const PAUSE: Duration = Duration::from_millis(20);
/// A connection on which a call waits for so long, and beyond its deadline, is closed: the server or the path may be gone.
const SILENCE: Duration = Duration::from_secs(3);
/// A connection that was not used for so long may be closed by the server in the moment of the next call.
const IDLE: Duration = Duration::from_secs(20);
/// The longest answer: a hundred items read at once are 16 MB at most, in Base64.
const LONGEST_ANSWER: usize = 24 << 20;

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Bytes,
    /// The second that its `Date` names, since 1970, and between which moments it was given.
    pub(crate) date: Option<(u64, Instant, Instant)>,
}

/// All connections to a server.
pub(crate) struct HttpClient {
    server: Server,
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
    max_in_flight: usize,
    pools: Mutex<HashMap<Id, Arc<Pool>>>,
}

/// Those of one runtime.
struct Pool {
    idle: Mutex<Vec<(SendRequest<Full<Bytes>>, Instant)>>,
    places: Arc<Semaphore>,
    failed: Mutex<Option<(Instant, String)>>,
}

/// How far a call is: whoever changes it first decides whether it is sent.
#[derive(Default)]
struct Progress(AtomicU8);

const SENT: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Progress {
    /// Whether it is `to` now; it changes once.
    fn becomes(&self, to: u8) -> bool {
        self.0.compare_exchange(0, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl HttpClient {
    pub(crate) fn new(server: Server, connect_timeout: Duration, max_in_flight: usize) -> Self {
        let tls = server.is_encrypted.then(encryption);
        HttpClient { server, tls, connect_timeout, max_in_flight, pools: Mutex::default() }
    }

    pub(crate) fn server(&self) -> &Server {
        &self.server
    }

    /// Sends a request. A failure other than `Lost` and `TimedOut` says that it was not sent.
    pub(crate) async fn call(
        self: &Arc<Self>,
        request: Request<Full<Bytes>>,
        deadline: Deadline,
    ) -> Result<Answer, Failure> {
        let progress = Arc::new(Progress::default());
        let (answer, mut answered) = oneshot::channel();
        let (client, pool, told) = (Arc::clone(self), self.pool(), Arc::clone(&progress));
        tokio::spawn(async move {
            let _ = answer.send(client.carry(&pool, request, &told, deadline).await);
        });
        let gone = || Failure::Lost("the runtime ends".into());
        if let Ok(done) = timeout_at(begins_by(deadline), &mut answered).await {
            return done.unwrap_or_else(|_| Err(gone()));
        }
        if progress.becomes(GIVEN_UP) {
            return Err(Failure::TooLate(deadline.span));
        }
        match timeout_at(deadline.last(), answered).await {
            Ok(done) => done.unwrap_or_else(|_| Err(gone())),
            Err(_) => Err(Failure::TimedOut(deadline.span + deadline.late)),
        }
    }

    async fn carry(
        &self,
        pool: &Pool,
        mut request: Request<Full<Bytes>>,
        progress: &Progress,
        deadline: Deadline,
    ) -> Result<Answer, Failure> {
        let Ok(place) = timeout_at(begins_by(deadline), Arc::clone(&pool.places).acquire_owned()).await
        else {
            return Err(Failure::TooLate(deadline.span));
        };
        let _place = place.expect("it is never closed");
        let mut is_sent = false;
        loop {
            let mut connection = match pool.take() {
                Some(connection) => connection,
                None => self.connect(pool).await?,
            };
            if !is_sent && !progress.becomes(SENT) {
                pool.put(connection);
                return Err(Failure::TooLate(deadline.span));
            }
            is_sent = true;
            let from = Instant::now();
            let until = deadline.last().max(from + SILENCE);
            let done = timeout_at(until, exchange(&mut connection, request)).await;
            match done {
                Err(_) => return Err(Failure::Lost("there was no answer".into())),
                Ok(Err(Broken::Unsent(again))) => request = *again,
                Ok(Err(Broken::Lost(why))) => return Err(Failure::Lost(why.into())),
                Ok(Ok((status, headers, body))) => {
                    if connection.ready().await.is_ok() {
                        pool.put(connection);
                    }
                    let date = second(&headers).map(|second| (second, from, Instant::now()));
                    return Ok(Answer { status, body, date });
                }
            }
        }
    }

    async fn connect(&self, pool: &Pool) -> Result<SendRequest<Full<Bytes>>, Failure> {
        let unreachable = |why: String| Failure::NotApplied("unreachable", why.into());
        if let Some((at, why)) = &*pool.failed.lock()
            && at.elapsed() < PAUSE
        {
            return Err(unreachable(why.clone()));
        }
        let within = self.connect_timeout;
        let opened = match timeout(within, self.open()).await {
            Ok(opened) => opened,
            Err(_) => Err(format!("no connection to {} within {within:?}", self.server.authority())),
        };
        opened.map_err(|why| {
            *pool.failed.lock() = Some((Instant::now(), why.clone()));
            unreachable(why)
        })
    }

    async fn open(&self) -> Result<SendRequest<Full<Bytes>>, String> {
        let named = |why: String| format!("{}: {why}", self.server.authority());
        let host = self.server.host.as_str();
        let stream =
            TcpStream::connect((host, self.server.port)).await.map_err(|error| named(error.to_string()))?;
        stream.set_nodelay(true).map_err(|error| named(error.to_string()))?;
        let stream: Box<dyn Connection> = match &self.tls {
            None => Box::new(stream),
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned()).map_err(|error| named(error.to_string()))?;
                Box::new(tls.connect(name, stream).await.map_err(|error| named(error.to_string()))?)
            }
        };
        let (sender, connection) =
            handshake(TokioIo::new(stream)).await.map_err(|error| named(error.to_string()))?;
        // It ends with its sender, or with the server.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    fn pool(&self) -> Arc<Pool> {
        let mut pools = self.pools.lock();
        let runtime = Handle::current().id();
        if pools.len() == MOST_RUNTIMES && !pools.contains_key(&runtime) {
            pools.clear();
        }
        let new = || Pool {
            idle: Mutex::default(),
            places: Arc::new(Semaphore::new(self.max_in_flight)),
            failed: Mutex::default(),
        };
        Arc::clone(pools.entry(runtime).or_insert_with(|| Arc::new(new())))
    }
}

impl Pool {
    /// The connection that was used last, if there is one that can be used again.
    fn take(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        idle.retain(|(connection, since)| !connection.is_closed() && since.elapsed() < IDLE);
        idle.pop().map(|(connection, _)| connection)
    }

    fn put(&self, connection: SendRequest<Full<Bytes>>) {
        self.idle.lock().push((connection, Instant::now()));
    }
}

enum Broken {
    /// The connection had ended before anything was sent.
    Unsent(Box<Request<Full<Bytes>>>),
    Lost(String),
}

async fn exchange(
    connection: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> Result<(StatusCode, HeaderMap, Bytes), Broken> {
    let sent = connection.try_send_request(request).await;
    let answer = sent.map_err(|mut error| match error.take_message() {
        Some(request) => Broken::Unsent(Box::new(request)),
        None => Broken::Lost(error.into_error().to_string()),
    })?;
    let (head, body) = answer.into_parts();
    let body = Limited::new(body, LONGEST_ANSWER).collect().await;
    let body = body.map_err(|error| Broken::Lost(format!("the answer broke off: {error}")))?;
    Ok((head.status, head.headers, body.to_bytes()))
}

/// Until when a call may be sent. Where late answers are of use, what a slow read began is still stored: a slow server then answers
/// late, and is not silent.
fn begins_by(deadline: Deadline) -> Instant {
    deadline.at + deadline.late.min(BEGINS_WITHIN)
}

/// The second that an answer's `Date` names.
fn second(headers: &HeaderMap) -> Option<u64> {
    let date: SystemTime = httpdate::parse_http_date(headers.get(DATE)?.to_str().ok()?).ok()?;
    Some(date.duration_since(UNIX_EPOCH).ok()?.as_secs())
}

/// Checks certificates against the system's authorities. The provider is explicit: a library must not choose one for the process.
fn encryption() -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider speaks TLS 1.2 and 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    fn patient() -> Deadline {
        Deadline::from_now(Duration::from_secs(30), Duration::ZERO)
    }

    fn client(listener: &TcpListener) -> Arc<HttpClient> {
        let server = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
        Arc::new(HttpClient::new(server, Duration::from_secs(30), 2))
    }

    fn request() -> Request<Full<Bytes>> {
        Request::post("/").header("host", "h").body(Full::new(Bytes::from_static(b"asked"))).unwrap()
    }

    /// Reads a request, and answers its number.
    fn answer(stream: &mut TcpStream, number: usize) {
        let (mut asked, mut part) = (Vec::new(), [0; 1024]);
        while !asked.ends_with(b"asked") {
            let read = stream.read(&mut part).unwrap();
            if read == 0 {
                return;
            }
            asked.extend(&part[..read]);
        }
        let date = "date: Thu, 19 Nov 2026 05:17:15 GMT";
        write!(stream, "HTTP/1.1 200 OK\r\n{date}\r\ncontent-length: 1\r\n\r\n{number}").unwrap();
    }

    #[tokio::test]
    async fn a_connection_is_used_again_and_one_that_the_server_closed_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = client(&listener);
        let server = std::thread::spawn(move || {
            let (mut first, _) = listener.accept().unwrap();
            (0..2).for_each(|number| answer(&mut first, number));
            drop(first);
            let (mut second, _) = listener.accept().unwrap();
            answer(&mut second, 2);
        });
        for number in ["0", "1", "2"] {
            if number == "2" {
                // The end of the connection is seen by the task that drives it.
                while client.pool().idle.lock().iter().any(|(connection, _)| !connection.is_closed()) {
                    tokio::task::yield_now().await;
                }
            }
            let told = client.call(request(), patient()).await.unwrap();
            assert_eq!(told.body, number);
            assert_eq!(told.date.unwrap().0, 1_795_065_435);
        }
        server.join().unwrap();
    }

    #[tokio::test]
    async fn a_call_that_was_not_sent_in_time_is_never_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = client(&listener);
        // All places are taken.
        let pool = client.pool();
        let places = Arc::clone(&pool.places).acquire_many_owned(2).await.unwrap();
        let failure =
            client.call(request(), Deadline::from_now(Duration::from_millis(20), Duration::ZERO)).await;
        assert!(matches!(failure, Err(Failure::TooLate(_))), "{failure:?}");
        drop(places);
        // The first call may have got a connection that it never used.
        std::thread::spawn(move || {
            for (number, stream) in listener.incoming().enumerate() {
                std::thread::spawn(move || answer(&mut stream.unwrap(), number));
            }
        });
        assert!(client.call(request(), patient()).await.is_ok());
    }
}
