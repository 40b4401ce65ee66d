//! Sends a request to one of a group's servers and waits for the head of the answer.
//!
//! A request that was certainly not sent goes to the next server. One that may have been sent is retried only if it is
//! idempotent, and only if the connection was a reused one, which the server may have closed as we wrote.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue, TRANSFER_ENCODING};
use http::request;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::{Body as _, Incoming};
use tidegate_store::Clock;

use crate::balance::{Chosen, Group, Tried};
use crate::body::{Cut, RequestBody, Upload};
use crate::dial::{DialError, Wants};
use crate::pool::{Lent, LentConnection, Pool, Use};
use crate::stats::UpstreamFailure;
use tidegate_http::problem::{Kind, Problem};

/// A group's connections on this worker, by target.
pub(crate) struct Upstream {
    pub(crate) group: Arc<Group>,
    pub(crate) pools: Box<[Arc<Pool>]>,
    /// The timeout for the answer's head, from when the last of the request was sent.
    pub(crate) head_within: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

/// A request to send, in a form that suits both versions of HTTP.
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    pub(crate) path: PathAndQuery,
    /// The host that the client requested.
    pub(crate) host: HeaderValue,
    /// Without `Host`.
    pub(crate) headers: HeaderMap,
    pub(crate) body: RequestBody,
    pub(crate) upload: Option<Arc<Upload>>,
    pub(crate) wants: Wants,
}

/// The head of an answer; its body is still to come.
pub(crate) struct Answered {
    pub(crate) response: Response<Incoming>,
    /// Returned to the pool once the body has been read; `None` over HTTP/2, where connections are shared.
    pub(crate) connection: Option<LentConnection>,
    pub(crate) target: Chosen,
}

/// No answer.
struct Failed {
    problem: Problem,
    /// Whether the server is to blame.
    fault: Fault,
    /// The request, if it may be sent again.
    unsent: Option<Box<Outgoing>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    Server(UpstreamFailure),
    Client,
}

impl Upstream {
    /// The answer's head, or the problem for the client.
    pub(crate) async fn ask(&self, outgoing: Outgoing) -> Result<Answered, Problem> {
        let mut outgoing = Box::new(outgoing);
        let mut tried = Tried::default();
        let mut problem = Problem::new(Kind::BadGateway, "this route has no upstream server");
        while let Some(target) = self.group.choose(tried, self.clock.now()) {
            let place = target.place;
            match self.try_target(place, outgoing).await {
                Ok((response, connection)) => {
                    self.group.succeeded(place);
                    self.group.counts.answered();
                    return Ok(Answered { response, connection, target });
                }
                Err(failed) => {
                    if let Fault::Server(why) = failed.fault {
                        self.group.counts.failed(why);
                        tracing::debug!(upstream = self.group.name, server = %self.group.target(place),
                            problem = %failed.problem.detail, "an upstream server failed");
                        self.group.failed(place, self.clock.now());
                    }
                    tried.add(place);
                    problem = failed.problem;
                    let Some(unsent) = failed.unsent else { break };
                    outgoing = unsent;
                }
            }
        }
        Err(problem)
    }

    async fn try_target(
        &self,
        place: usize,
        outgoing: Box<Outgoing>,
    ) -> Result<(Response<Incoming>, Option<LentConnection>), Failed> {
        let pool = &self.pools[place];
        let lent = match pool.lend(outgoing.wants, self.clock.now()).await {
            Ok(lent) => lent,
            Err(error) => return Err(no_connection(&error, outgoing)),
        };
        let old = lent.used() == Use::Again;
        let failed = match self.exchange(lent, outgoing).await {
            Err(failed) if old && failed.unsent.is_some() => failed,
            other => return other,
        };
        let Some(outgoing) = failed.unsent else { return Err(failed) };
        match pool.lend_new(outgoing.wants).await {
            Ok(lent) => self.exchange(lent, outgoing).await,
            Err(error) => Err(no_connection(&error, outgoing)),
        }
    }

    async fn exchange(
        &self,
        lent: Lent,
        outgoing: Box<Outgoing>,
    ) -> Result<(Response<Incoming>, Option<LentConnection>), Failed> {
        let spare = (lent.used() == Use::Again && outgoing.is_harmless_twice()).then(|| outgoing.copy());
        let kept = KeptRequest::of(&outgoing);
        let upload = kept.upload.clone();
        let (sent, connection) = match lent {
            Lent::Http1(mut lease) => {
                let sending = lease.sender.try_send_request(outgoing.into_http1());
                (self.head(sending, upload.as_deref()).await, Some(lease))
            }
            Lent::Http2(mut sender, scheme) => {
                let sending = sender.try_send_request(outgoing.into_http2(scheme));
                (self.head(sending, upload.as_deref()).await, None)
            }
        };
        let cut = upload.as_ref().and_then(|upload| upload.cut());
        match sent {
            Head::Came(Ok(response)) => {
                upload.iter().for_each(|upload| upload.set_answered());
                Ok((response, connection))
            }
            Head::Came(Err(_)) if cut.is_some() => Err(broken_upload(cut.unwrap_or(Cut::Broken))),
            Head::Came(Err(mut error)) => {
                let returned = error.take_message().map(|request| Box::new(kept.again(request)));
                Err(Failed {
                    problem: Problem::new(
                        Kind::BadGateway,
                        "the upstream server broke off before it answered",
                    ),
                    fault: Fault::Server(UpstreamFailure::BrokeOff),
                    unsent: returned.or(spare),
                })
            }
            Head::TooSlow => Err(Failed {
                problem: Problem::new(
                    Kind::GatewayTimeout,
                    format!("the upstream server did not answer within {:?}", self.head_within),
                ),
                fault: Fault::Server(UpstreamFailure::AnswerTimeout),
                unsent: None,
            }),
        }
    }

    /// Waits for the answer's head. The timeout does not run while the request's body makes progress.
    async fn head<T>(&self, sending: impl Future<Output = T>, upload: Option<&Upload>) -> Head<T> {
        let mut sending = std::pin::pin!(sending);
        loop {
            match tokio::time::timeout(self.head_within, sending.as_mut()).await {
                Ok(sent) => return Head::Came(sent),
                Err(_) if upload.is_some_and(Upload::moved) => {}
                Err(_) => return Head::TooSlow,
            }
        }
    }
}

enum Head<T> {
    Came(T),
    TooSlow,
}

impl Lent {
    fn used(&self) -> Use {
        match self {
            Lent::Http1(lease) => lease.used,
            // Shared, so probably used before; if it is brand new, retrying costs little.
            Lent::Http2(..) => Use::Again,
        }
    }
}

impl Outgoing {
    /// Whether the request is idempotent.
    fn is_harmless_twice(&self) -> bool {
        self.body.is_end_stream()
            && self.wants == Wants::Any
            && matches!(self.method, Method::GET | Method::HEAD | Method::OPTIONS)
    }

    /// Copies the request; only for one without a body.
    fn copy(&self) -> Box<Outgoing> {
        Box::new(Outgoing {
            method: self.method.clone(),
            path: self.path.clone(),
            host: self.host.clone(),
            headers: self.headers.clone(),
            body: RequestBody::empty(),
            upload: None,
            wants: self.wants,
        })
    }

    pub(crate) fn into_http1(mut self) -> Request<RequestBody> {
        self.headers.insert(HOST, self.host);
        // hyper sends no body of unknown length with a GET unless told to, and the server would parse the body's bytes as
        // the next request.
        if !self.body.is_end_stream() && !self.headers.contains_key(CONTENT_LENGTH) {
            self.headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
        }
        let uri = Uri::from(self.path);
        made(self.method, uri, Version::HTTP_11, self.headers, self.body)
    }

    pub(crate) fn into_http2(self, scheme: Scheme) -> Request<RequestBody> {
        let mut uri = http::uri::Parts::default();
        uri.path_and_query = Some(self.path);
        uri.scheme = Some(scheme);
        uri.authority = Authority::try_from(self.host.as_bytes()).ok();
        let uri = Uri::from_parts(uri).unwrap_or_default();
        made(self.method, uri, Version::HTTP_2, self.headers, self.body)
    }
}

fn made(
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    body: RequestBody,
) -> Request<RequestBody> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = version;
    *request.headers_mut() = headers;
    request
}

/// The parts needed to rebuild a request that came back unsent.
struct KeptRequest {
    path: PathAndQuery,
    host: HeaderValue,
    upload: Option<Arc<Upload>>,
    wants: Wants,
}

impl KeptRequest {
    fn of(outgoing: &Outgoing) -> Self {
        let Outgoing { path, host, upload, wants, .. } = outgoing;
        KeptRequest { path: path.clone(), host: host.clone(), upload: upload.clone(), wants: *wants }
    }

    fn again(self, request: Request<RequestBody>) -> Outgoing {
        let (request::Parts { method, mut headers, .. }, body) = request.into_parts();
        headers.remove(HOST);
        headers.remove(TRANSFER_ENCODING);
        let KeptRequest { path, host, upload, wants } = self;
        Outgoing { method, path, host, headers, body, upload, wants }
    }
}

fn no_connection(error: &DialError, outgoing: Box<Outgoing>) -> Failed {
    let (kind, fault) = match error {
        DialError::TooSlow(_) => (Kind::GatewayTimeout, Fault::Server(UpstreamFailure::ConnectTimeout)),
        DialError::NoUpgrades => (Kind::BadGateway, Fault::Client),
        DialError::Refused(_) => (Kind::BadGateway, Fault::Server(UpstreamFailure::Unreachable)),
        DialError::Tls(_) | DialError::Handshake(_) | DialError::Name => {
            (Kind::BadGateway, Fault::Server(UpstreamFailure::Handshake))
        }
    };
    let problem = Problem::new(kind, format!("the upstream server cannot be reached: {error}"));
    Failed { problem, fault, unsent: Some(outgoing) }
}

fn broken_upload(cut: Cut) -> Failed {
    let kind = match cut {
        Cut::TooLarge => Kind::BodyTooLarge,
        Cut::TooSlow => Kind::BodyTooSlow,
        Cut::Broken => Kind::MalformedRequest,
    };
    Failed { problem: Problem::new(kind, cut.to_string()), fault: Fault::Client, unsent: None }
}
