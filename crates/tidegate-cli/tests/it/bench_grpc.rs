//! `tidegate bench --protocol grpc`, against an HTTP/2 server that reads messages with a real protobuf decoder.

use std::net::TcpListener;
use std::sync::mpsc;
use std::thread;

use bytes::Bytes;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use prost::Message as _;
use serde_json::Value;

use crate::tidegate;

/// `RateLimitRequest`, as far as a client of ours fills it.
#[derive(Clone, PartialEq, prost::Message)]
struct Asked {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// How the stub answers.
#[derive(Clone, Copy)]
enum Answer {
    Code(u8),
    Status(&'static str, &'static str),
}

/// Serves any number of connections, and hands over each request it read.
fn start(answer: fn(usize) -> Answer) -> (String, mpsc::Receiver<Asked>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (asked, requests) = mpsc::channel();
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, answer, asked.clone()));
            }
        });
    });
    (address, requests)
}

async fn serve(stream: tokio::net::TcpStream, answer: fn(usize) -> Answer, asked: mpsc::Sender<Asked>) {
    // The client connects once just to see whether somebody is there.
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    let mut number = 0;
    while let Some(Ok((request, respond))) = connection.accept().await {
        tokio::spawn(reply(request, respond, answer(number), asked.clone()));
        number += 1;
    }
}

async fn reply(
    request: Request<h2::RecvStream>,
    mut respond: SendResponse<Bytes>,
    answer: Answer,
    asked: mpsc::Sender<Asked>,
) {
    assert_eq!(request.uri().path(), "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit");
    assert_eq!(request.headers()["content-type"], "application/grpc");
    let mut body = request.into_body();
    let mut frame = Vec::new();
    while let Some(Ok(chunk)) = body.data().await {
        frame.extend_from_slice(&chunk);
    }
    assert_eq!(frame[..5], [0, 0, 0, 0, u8::try_from(frame.len() - 5).unwrap()]);
    let _ = asked.send(Asked::decode(&frame[5..]).unwrap());
    let head = Response::builder().header("content-type", "application/grpc");
    match answer {
        Answer::Code(code) => {
            let mut stream = respond.send_response(head.body(()).unwrap(), false).unwrap();
            stream.send_data(Bytes::from(vec![0, 0, 0, 0, 2, 8, code]), false).unwrap();
            let trailers = HeaderMap::from_iter([("grpc-status".parse().unwrap(), "0".parse().unwrap())]);
            stream.send_trailers(trailers).unwrap();
        }
        Answer::Status(status, message) => {
            let head = head.header("grpc-status", status).header("grpc-message", message);
            respond.send_response(head.body(()).unwrap(), true).unwrap();
        }
    }
}

fn bench(address: &str, more: &[&str]) -> Value {
    let args = ["bench", "--protocol", "grpc", "--address", address, "--output", "json", "--warm-up", "0s"];
    let output = tidegate(&[&args[..], more].concat()).output().unwrap();
    assert!(output.status.success(), "{}", crate::ran(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn answers_are_told_apart_and_counted() {
    let (address, requests) = start(|number| Answer::Code(if number % 2 == 0 { 1 } else { 2 }));
    let report = bench(&address, &["--rate", "1000", "--duration", "200ms", "--connections", "2"]);
    assert_eq!(report["errors"], 0, "{report:#}");
    let (allowed, refused) = (report["allowed"].as_u64().unwrap(), report["refused"].as_u64().unwrap());
    assert_eq!(allowed + refused, 200);
    assert!(allowed.abs_diff(refused) <= 2, "{report:#}");
    assert_eq!(requests.try_iter().count(), 200);
}

#[test]
fn a_request_is_one_descriptor_of_one_entry() {
    let (address, requests) = start(|_| Answer::Code(1));
    bench(
        &address,
        &["--rate", "100", "--duration", "100ms", "--domain", "edge", "--attribute", "ip", "--keys", "1"],
    );
    let entry = Entry { key: "ip".to_owned(), value: "u0".to_owned() };
    let descriptor = Descriptor { entries: vec![entry], hits_addend: None };
    let expected = Asked { domain: "edge".to_owned(), descriptors: vec![descriptor], hits_addend: 0 };
    assert_eq!(requests.recv().unwrap(), expected);
}

#[test]
fn a_cost_other_than_one_is_the_descriptors_own() {
    for (cost, hits) in [("0", 0), ("5", 5), ("300", 300)] {
        let (address, requests) = start(|_| Answer::Code(1));
        bench(&address, &["--rate", "100", "--duration", "50ms", "--cost", cost]);
        assert_eq!(requests.recv().unwrap().descriptors[0].hits_addend, Some(hits));
    }
}

#[test]
fn a_closed_loop_uses_every_stream_of_every_connection() {
    let (address, requests) = start(|_| Answer::Code(1));
    let args = [
        "--rate",
        "closed",
        "--duration",
        "200ms",
        "--connections",
        "2",
        "--in-flight",
        "8",
        "--threads",
        "2",
    ];
    let report = bench(&address, &args);
    assert_eq!(report["errors"], 0, "{report:#}");
    assert_eq!(report["allowed"].as_u64().unwrap(), requests.try_iter().count() as u64);
}

#[test]
fn a_failed_call_is_an_error_with_the_servers_words() {
    let (address, _requests) = start(|number| match number % 2 {
        0 => Answer::Code(1),
        _ => Answer::Status("3", "domain must not be empty"),
    });
    let report = bench(&address, &["--rate", "100", "--duration", "200ms", "--connections", "1"]);
    assert_eq!((&report["allowed"], &report["errors"]), (&10.into(), &10.into()));
    assert_eq!(report["errors_by_kind"]["grpc status 3"], 10);
    assert_eq!(report["first_error"], "grpc status 3: domain must not be empty");
}
