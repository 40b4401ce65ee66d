//! HTTP/1.1 and HTTP/2 on either side, in the clear and over TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls::pki_types::ServerName;
use tidegate_access::{Offers, ServerTls, Stream, TlsFiles};
use tidegate_proxy::client_config;
use tidegate_testkit::{Certificates, Upstream};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use crate::world::{Edge, PATIENCE, Setup, target};

/// A server that reports the HTTP version and host, and echoes the body, with a trailer.
async fn answer(
    request: Request<Incoming>,
) -> Result<Response<impl hyper::body::Body<Data = Bytes, Error = Infallible>>, Infallible> {
    let version = format!("{:?}", request.version());
    let host = request.uri().authority().map(ToString::to_string);
    let host =
        host.or_else(|| Some(request.headers().get("host")?.to_str().ok()?.to_owned())).unwrap_or_default();
    let te = request.headers().get("te").cloned();
    let collected = request.into_body().collect().await.map(|all| (all.trailers().cloned(), all.to_bytes()));
    let (trailers, body) = collected.unwrap_or_default();
    let mut ending = HeaderMap::new();
    ending.insert("x-checksum", HeaderValue::from_static("ok"));
    if let Some(sent) = trailers.and_then(|trailers| trailers.get("x-sent").cloned()) {
        ending.insert("x-sent", sent);
    }
    let frames = [Ok(Frame::data(body)), Ok(Frame::trailers(ending))];
    let mut response = Response::new(StreamBody::new(tokio_stream::iter(frames)));
    response.headers_mut().insert("x-version", HeaderValue::from_str(&version).unwrap());
    response.headers_mut().insert("x-host", HeaderValue::from_str(&host).unwrap());
    if let Some(te) = te {
        response.headers_mut().insert("x-te", te);
    }
    Ok(response)
}

async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let service = hyper::service::service_fn(answer);
    let _ = auto::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
}

fn server_tls(files: &Certificates) -> ServerTls {
    let Certificates { cert, key, .. } = files.clone();
    ServerTls::load(TlsFiles { certificate: cert, key, client_ca: None }, Offers::Http).unwrap()
}

/// Starts that server in this test's runtime, behind TLS if there are certificates.
async fn upstream(tls: Option<&Certificates>) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let acceptor = tls.map(|files| Arc::new(server_tls(files)));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                match acceptor {
                    None => serve(stream).await,
                    Some(acceptor) => {
                        if let Ok(stream) = acceptor.accept(stream).await {
                            serve(stream).await;
                        }
                    }
                }
            });
        }
    });
    addr
}

/// What came back: status, headers, body, trailers.
type Got = (u16, HeaderMap, Bytes, HeaderMap);

async fn ask(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, version: Version) -> Got {
    let io = TokioIo::new(stream);
    let uri = if version == Version::HTTP_2 { "http://shop.example/x" } else { "/x" };
    let mut request = Request::post(uri).version(version).header("te", "trailers");
    if version == Version::HTTP_11 {
        request = request.header("host", "shop.example");
    }
    let request = request.body(Full::new(Bytes::from("body"))).unwrap();
    let response = if version == Version::HTTP_2 {
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    } else {
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        sender.send_request(request).await.unwrap()
    };
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    (parts.status.as_u16(), parts.headers, body.to_bytes(), trailers)
}

async fn plain(edge: &Edge, version: Version) -> Got {
    ask(TcpStream::connect(edge.addr()).await.unwrap(), version).await
}

#[tokio::test]
async fn each_version_on_one_side_goes_with_each_on_the_other() {
    let addr = upstream(None).await;
    for (scheme, spoken) in [("http", "HTTP/1.1"), ("h2c", "HTTP/2.0")] {
        let edge = Setup::to(&[format!("{scheme}://{addr}")]).start();
        for version in [Version::HTTP_11, Version::HTTP_2] {
            let (status, headers, body, _) = plain(&edge, version).await;
            assert_eq!((status, &body[..]), (200, &b"body"[..]), "{version:?} to {scheme}");
            assert_eq!(headers["x-version"], spoken);
            assert_eq!(headers["x-host"], "shop.example");
            assert!(headers.contains_key("ratelimit"));
        }
    }
}

#[tokio::test]
async fn trailers_go_through_where_both_sides_speak_http_2_as_grpc_needs() {
    let addr = upstream(None).await;
    let edge = Setup::to(&[format!("h2c://{addr}")]).start();
    let (_, headers, _, trailers) = plain(&edge, Version::HTTP_2).await;
    assert_eq!(headers["x-te"], "trailers");
    assert_eq!(trailers["x-checksum"], "ok");
}

#[tokio::test]
async fn many_streams_of_one_client_share_one_connection() {
    let addr = upstream(None).await;
    let edge = Setup::to(&[format!("h2c://{addr}")]).start();
    let io = TokioIo::new(TcpStream::connect(edge.addr()).await.unwrap());
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let requests = (0..50).map(|number| {
        let mut sender = sender.clone();
        tokio::spawn(async move {
            let body = format!("body {number}");
            let request = Request::post("http://x/").body(Full::new(Bytes::from(body.clone()))).unwrap();
            let response = sender.send_request(request).await.unwrap();
            assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), body);
        })
    });
    for request in requests.collect::<Vec<_>>() {
        request.await.unwrap();
    }
}

#[tokio::test]
async fn clients_are_served_over_tls_in_the_version_they_negotiate() {
    let dir = tempfile::tempdir().unwrap();
    let files = Certificates::for_loopback(dir.path());
    let backend = Upstream::start();
    let edge = Setup::to(&[target(&backend)]).over_tls(server_tls(&files)).start();
    for (alpn, version) in [("h2", Version::HTTP_2), ("http/1.1", Version::HTTP_11)] {
        let stream = tls_stream(&files, alpn, edge.addr()).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(alpn.as_bytes()));
        let (status, _, body, _) = ask(stream, version).await;
        let seen: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((status, &seen["headers"]["x-forwarded-proto"]), (200, &"https".into()));
    }
    // No TLS means no answer here.
    assert!(tidegate_testkit::http::request(edge.addr(), "GET", "/", &[], b"").is_err());
}

async fn tls_stream(
    files: &Certificates,
    alpn: &str,
    addr: SocketAddr,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.ca).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![alpn.as_bytes().to_vec()];
    let stream = TcpStream::connect(addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

#[tokio::test]
async fn an_upstream_over_tls_is_spoken_to_in_http_2_and_checked() {
    let dir = tempfile::tempdir().unwrap();
    let files = Certificates::for_loopback(dir.path());
    let addr = upstream(Some(&files)).await;
    let trusting = |ca: &std::path::Path| {
        let tls = client_config(Some(ca)).unwrap();
        let target = format!("https://localhost:{}", addr.port());
        Setup::to(&[target]).change(|settings| settings.upstreams[0].tls = Some(tls)).start()
    };
    let edge = trusting(&files.ca);
    for _ in 0..3 {
        let (status, headers, body, _) = plain(&edge, Version::HTTP_11).await;
        assert_eq!((status, &body[..]), (200, &b"body"[..]));
        assert_eq!(
            (&headers["x-version"], &headers["x-host"]),
            (&"HTTP/2.0".parse().unwrap(), &"shop.example".parse().unwrap())
        );
    }
    // Signed by an authority that this proxy does not trust.
    let other = tempfile::tempdir().unwrap();
    let edge = trusting(&Certificates::for_loopback(other.path()).ca);
    assert_eq!(plain(&edge, Version::HTTP_11).await.0, 502);
}

#[tokio::test]
async fn a_websocket_to_an_upstream_over_tls_is_asked_for_in_http_1() {
    let dir = tempfile::tempdir().unwrap();
    let files = Certificates::for_loopback(dir.path());
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let addr = listener.local_addr().unwrap();
    let acceptor = server_tls(&files);
    tokio::spawn(async move {
        loop {
            let stream = acceptor.accept(listener.accept().await.unwrap().0).await.unwrap();
            tokio::spawn(async move {
                let Stream::Tls(tls) = &stream else { return };
                if tls.get_ref().1.alpn_protocol() == Some(b"h2") {
                    return serve(stream).await;
                }
                let _ = echo(stream).await;
            });
        }
    });
    let tls = client_config(Some(&files.ca)).unwrap();
    let target = format!("https://localhost:{}", addr.port());
    let edge = Setup::to(&[target]).change(|settings| settings.upstreams[0].tls = Some(tls)).start();
    // Other requests go over HTTP/2, before and after.
    assert_eq!(plain(&edge, Version::HTTP_11).await.1["x-version"], "HTTP/2.0");
    let mut client = TcpStream::connect(edge.addr()).await.unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    assert!(head(&mut client).await.starts_with("http/1.1 101"));
    client.write_all(b"over TLS").await.unwrap();
    let mut back = [0; 8];
    client.read_exact(&mut back).await.unwrap();
    assert_eq!(&back, b"over TLS");
    assert_eq!(plain(&edge, Version::HTTP_11).await.1["x-version"], "HTTP/2.0");
}

/// Accepts an upgrade, and echoes every byte.
async fn echo(stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<u64> {
    let (mut reader, mut writer) = tokio::io::split(stream);
    assert!(head(&mut reader).await.contains("upgrade: websocket"));
    writer
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n")
        .await?;
    writer.flush().await?;
    tokio::io::copy(&mut reader, &mut writer).await
}

async fn head(stream: &mut (impl AsyncRead + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap().to_lowercase()
}

#[tokio::test]
async fn a_stream_that_the_client_resets_holds_nothing_any_more() {
    let (asked, mut was_asked) = tokio::sync::mpsc::channel(1);
    let stuck = crate::world::Raw::start(move |mut wire| {
        wire.head();
        asked.blocking_send(()).unwrap();
        wire.rest();
    });
    let edge = Setup::to(&[stuck.target()]).start();
    let io = TokioIo::new(TcpStream::connect(edge.addr()).await.unwrap());
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("http://x/").body(Full::new(Bytes::new())).unwrap();
    let asking = tokio::spawn(sender.send_request(request));
    was_asked.recv().await.unwrap();
    assert_eq!(edge.admission.in_flight(), 1);
    asking.abort();
    let idle = async {
        while edge.admission.in_flight() > 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, idle).await.expect("nothing is in flight");
    // The connection itself goes on.
    assert!(sender.is_ready());
}
