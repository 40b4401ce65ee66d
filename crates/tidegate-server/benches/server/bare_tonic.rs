use bytes::Bytes;
use http::{Request, Response};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::sync::Arc;
use tidegate_server::connection::{self, HttpLimits, Speaks};
use tidegate_server::rls::rate_limit_service_server::{RateLimitService, RateLimitServiceServer};
use tidegate_server::rls::{Code, DescriptorStatus, RateLimit, RateLimitRequest, RateLimitResponse, Unit};
use tidegate_server::runtime::{Connection, Protocol, Serving};
use tokio::sync::mpsc;

#[derive(Clone)]
pub struct AlwaysOk;

fn answer(_request: &RateLimitRequest) -> RateLimitResponse {
    RateLimitResponse {
        overall_code: Code::Ok.into(),
        statuses: vec![DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                name: String::new(),
                requests_per_unit: 100,
                unit: Unit::Minute.into(),
                unit_multiplier: None,
            }),
            limit_remaining: 99,
            duration_until_reset: Some(prost_types::Duration { seconds: 60, nanos: 0 }),
            quota: None,
        }],
        ..Default::default()
    }
}

#[tonic::async_trait]
impl RateLimitService for AlwaysOk {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, tonic::Status> {
        Ok(tonic::Response::new(answer(request.get_ref())))
    }
}

/// A
pub struct TonicServer {
    tx: mpsc::UnboundedSender<Result<tokio::net::TcpStream, std::io::Error>>,
}
impl TonicServer {
    pub fn new() -> Self {
        let (tx, rx) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(RateLimitServiceServer::new(AlwaysOk))
                .serve_with_incoming(tokio_stream::wrappers::UnboundedReceiverStream::new(rx))
                .await
                .unwrap();
        });
        Self { tx }
    }
}
impl Protocol for TonicServer {
    fn serve(&self, c: Connection) -> Serving {
        let _ = self.tx.send(Ok(c.stream));
        Box::pin(std::future::ready(()))
    }
}

/// B / C
pub struct Direct(pub bool);
impl Protocol for Direct {
    fn serve(&self, c: Connection) -> Serving {
        let svc = RateLimitServiceServer::new(AlwaysOk);
        let service = hyper::service::service_fn(move |req: Request<Incoming>| {
            let mut svc = svc.clone();
            use tonic::codegen::Service as _;
            async move {
                let r: Result<Response<tonic::body::Body>, Infallible> = svc.call(req).await;
                r
            }
        });
        if self.0 {
            Box::pin(connection::serve(c, Speaks::Http2Only, HttpLimits::default(), service))
        } else {
            Box::pin(async move {
                let _ = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
                    .serve_connection(hyper_util::rt::TokioIo::new(c.stream), service)
                    .await;
            })
        }
    }
}

/// D
pub struct Hand(pub bool);
impl Protocol for Hand {
    fn serve(&self, c: Connection) -> Serving {
        let service = hyper::service::service_fn(move |req: Request<Incoming>| async move {
            let body = http_body_util::BodyExt::collect(req.into_body()).await.unwrap().to_bytes();
            let msg = <RateLimitRequest as prost::Message>::decode(&body[5..]).unwrap();
            let r = answer(&msg);
            let len = prost::Message::encoded_len(&r);
            let mut out = bytes::BytesMut::with_capacity(len + 5);
            bytes::BufMut::put_u8(&mut out, 0);
            bytes::BufMut::put_u32(&mut out, len as u32);
            prost::Message::encode(&r, &mut out).unwrap();
            let mut resp = Response::new(Unary(Some(out.freeze()), true));
            resp.headers_mut()
                .insert("content-type", http::HeaderValue::from_static("application/grpc"));
            Ok::<_, Infallible>(resp)
        });
        if self.0 {
            Box::pin(connection::serve(c, Speaks::Http2Only, HttpLimits::default(), service))
        } else {
            Box::pin(async move {
                let _ = hyper::server::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
                    .serve_connection(hyper_util::rt::TokioIo::new(c.stream), service)
                    .await;
            })
        }
    }
}
struct Unary(Option<Bytes>, bool);
impl hyper::body::Body for Unary {
    type Data = Bytes;
    type Error = Infallible;
    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        use http_body::Frame;
        std::task::Poll::Ready(match self.0.take() {
            Some(d) => Some(Ok(Frame::data(d))),
            None if self.1 => {
                self.1 = false;
                let mut t = http::HeaderMap::with_capacity(1);
                t.insert("grpc-status", http::HeaderValue::from_static("0"));
                Some(Ok(Frame::trailers(t)))
            }
            None => None,
        })
    }
    fn is_end_stream(&self) -> bool {
        false
    }
}
#[allow(unsafe_code)]
pub fn make(v: &str) -> Arc<dyn Protocol> {
    match v {
        "a" => Arc::new(TonicServer::new()),
        "b" => Arc::new(Direct(false)),
        "c" => Arc::new(Direct(true)),
        "d" => Arc::new(Hand(false)),
        "e" => Arc::new(Hand(true)),
        v => { unsafe { std::env::set_var("V", v) }; Arc::new(Hand(true)) }
    }
}
