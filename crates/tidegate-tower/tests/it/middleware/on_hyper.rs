//! The middleware under a server of hyper's, which has no type of its own for its peers.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tidegate_tower::{PeerAddr, RateLimitLayer};
use tokio::net::TcpListener;
use tower::{Layer, ServiceBuilder, service_fn};

use super::world::{get, limiter};

async fn serve(layer: RateLimitLayer) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let answers = service_fn(|_: Request<Incoming>| async {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::from_static(b"hello"))))
            });
            let service = ServiceBuilder::new()
                .map_request(move |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(PeerAddr(peer));
                    request
                })
                .service(layer.layer(answers));
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service));
            tokio::spawn(async move { drop(connection.await) });
        }
    });
    address
}

#[tokio::test]
async fn a_server_of_hypers_says_who_its_peers_are_with_our_type() {
    let limiter = limiter("  - { name: per-client, key: [client], limits: [1/minute] }");
    let server = serve(RateLimitLayer::new(limiter, "api").unwrap()).await;
    assert_eq!(get(server, "/").await.body, "hello");
    let refused = get(server, "/").await;
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("content-length"), refused.body.len().to_string());
}
