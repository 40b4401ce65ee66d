//! Peers that make a server wait: none of them may hold a connection, its memory or a shutdown for longer than stated.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tidegate_runtime::connection::HttpLimits;
use tidegate_runtime::{Drained, Settings};
use tidegate_testkit::{eventually, http};

use crate::world::World;
use tidegate_testkit::frames::{
    ACK, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PREFACE, Peer, RST_STREAM, SETTINGS, WINDOW_UPDATE,
    frame, post,
};

const RULES: &str = "{ domain: api, rules: [{ name: per-user, key: [user], limits: [1000/minute] }] }";
const JSON: (&str, &str) = ("content-type", "application/json");
const PATIENCE: Duration = Duration::from_secs(10);
const HOURS: Duration = Duration::from_secs(10 * 3600);

/// Time-outs short enough to wait for, long enough for a busy machine.
const QUICK: Duration = Duration::from_millis(400);

fn impatient() -> World {
    World::with_limits(RULES, quick(), Settings::default())
}

fn quick() -> HttpLimits {
    HttpLimits { head_timeout: QUICK, idle_timeout: QUICK, body_timeout: QUICK, ..HttpLimits::default() }
}

/// Time-outs that no test waits for.
fn patient() -> World {
    World::with_limits(RULES, HttpLimits::default(), Settings::default())
}

fn settings(max_connections: usize) -> Settings {
    Settings { max_connections: NonZeroUsize::new(max_connections).unwrap(), ..Settings::default() }
}

#[track_caller]
fn nothing_is_open(world: &World) {
    eventually("every connection is gone", PATIENCE, || {
        world.plane.loads().read().all(|load| load.open.iter().sum::<usize>() == 0)
    });
}

#[test]
fn an_http_2_connection_that_sends_a_preface_and_nothing_else_ends() {
    let world = impatient();
    for address in [world.http(), world.grpc()] {
        let mut bare = Peer::silent(address);
        bare.send(PREFACE);
        let mut settled = Peer::connect(address);
        bare.expect_end();
        settled.next_of(GOAWAY);
        settled.expect_end();
    }
    nothing_is_open(&world);
}

#[test]
fn an_http_2_connection_whose_headers_never_end_ends() {
    let world = impatient();
    for address in [world.http(), world.grpc()] {
        let mut peer = Peer::connect(address);
        peer.send(&frame(HEADERS, END_STREAM, 1, &post("/v1/check", &[])));
        peer.expect_end();
    }
    nothing_is_open(&world);
}

#[test]
fn an_http_2_connection_whose_half_body_was_given_up_ends() {
    let world = impatient();
    let mut peer = Peer::connect(world.http());
    peer.send(&frame(HEADERS, END_HEADERS, 1, &post("/v1/check", &[JSON])));
    peer.send(&frame(DATA, 0, 1, b"{\"domain\":"));
    // 408, then the end of the connection.
    assert_eq!(peer.next_of(HEADERS).stream, 1);
    peer.expect_end();
    nothing_is_open(&world);
}

#[test]
fn an_http_2_peer_that_never_takes_its_answer_is_let_go() {
    let world = impatient();
    // SETTINGS_INITIAL_WINDOW_SIZE: no byte of an answer may be sent.
    let mut peer = Peer::with_settings(world.http(), &[(4, 0)]);
    for stream in (1..100).step_by(2) {
        peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, stream, &post("/v1/check", &[JSON])));
    }
    peer.next_of(HEADERS);
    peer.next_of(GOAWAY);
    peer.expect_end();
    nothing_is_open(&world);
}

#[test]
fn pings_do_not_keep_an_idle_connection() {
    let world = impatient();
    let mut peer = Peer::connect(world.http());
    let began = tokio::time::Instant::now();
    while peer.0.write_all(&frame(6, 0, 0, b"12345678")).is_ok() {
        assert!(began.elapsed() < PATIENCE, "pings kept it");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[test]
fn a_connection_that_is_used_is_not_idle() {
    // A machine may stand still for most of it.
    const IDLE: Duration = Duration::from_secs(3);
    let limits = HttpLimits { idle_timeout: IDLE, ..HttpLimits::default() };
    let world = World::with_limits(RULES, limits, Settings::default());
    let mut head = post("/healthz", &[]);
    head[0] = 0x82;
    let mut peer = Peer::connect(world.http());
    for request in 0..20 {
        std::thread::park_timeout(IDLE / 15);
        peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 2 * request + 1, &head));
        peer.next_of(HEADERS);
    }
}

#[test]
fn a_full_listener_serves_a_newcomer_in_place_of_an_idle_connection() {
    let world = World::with_limits(RULES, HttpLimits::default(), settings(20));
    let mut idle: Vec<Peer> = (0..40).map(|_| Peer::connect(world.http())).collect();
    for _ in 0..40 {
        assert_eq!(http::get(world.http(), "/healthz").status, 200);
    }
    // The other listener has its own seats.
    let mut grpc = Peer::connect(world.grpc());
    grpc.next_of(SETTINGS);
    let load = world.plane.loads().read().next().unwrap();
    assert!(load.open.iter().sum::<usize>() <= 20, "{load:?}");
    assert!(load.evicted >= 20, "{load:?}");
    idle[0].expect_end();
}

#[test]
fn a_request_under_way_is_never_cut_for_a_newcomer() {
    let world = World::with_limits(RULES, HttpLimits::default(), settings(20));
    let body = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    let mut halves: Vec<TcpStream> = (0..8)
        .map(|_| {
            let mut stream = TcpStream::connect(world.http()).unwrap();
            let head = format!(
                "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{}",
                body.len(),
                &body[..10]
            );
            stream.write_all(head.as_bytes()).unwrap();
            stream
        })
        .collect();
    eventually("all of them are under way", PATIENCE, || world.plane.loads().held_bytes() >= 8 * 4096);
    let _flood: Vec<Peer> = (0..100).map(|_| Peer::connect(world.http())).collect();
    for stream in &mut halves {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(&body.as_bytes()[10..]).unwrap();
        let mut status = [0; 12];
        stream.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
    }
}

#[test]
fn one_connection_cannot_hold_more_than_its_budget_and_gives_it_back() {
    let settings = Settings { connection_memory: 1 << 20, worker_memory: 3 << 19, ..Settings::default() };
    let settings = Settings { workers: NonZeroUsize::MIN, ..settings };
    // A busy machine may take long over two thousand frames: no body is given up meanwhile.
    let limits = HttpLimits { body_timeout: HOURS, ..HttpLimits::default() };
    let world = World::with_limits(RULES, limits, settings);
    let hold = |streams: u32| {
        let mut peer = Peer::connect(world.http());
        peer.next_of(SETTINGS);
        peer.send(&frame(SETTINGS, ACK, 0, &[]));
        let (mut reader, window) = (Peer(peer.0.try_clone().unwrap()), Arc::new(AtomicU32::new(65_535)));
        reader.0.set_read_timeout(None).unwrap();
        let grows = window.clone();
        let refused = std::thread::spawn(move || {
            let mut refused = 0;
            while let Some(frame) = reader.next() {
                if frame.kind == WINDOW_UPDATE && frame.stream == 0 {
                    let more = u32::from_be_bytes(frame.payload[..4].try_into().unwrap());
                    grows.fetch_add(more, Ordering::SeqCst);
                }
                refused += usize::from(frame.kind == HEADERS);
            }
            refused
        });
        for number in 0..streams {
            let stream = 2 * number + 1;
            peer.send(&frame(HEADERS, END_HEADERS, stream, &post("/v1/check", &[JSON])));
            for _ in 0..15 {
                eventually("it may send more", 6 * PATIENCE, || window.load(Ordering::SeqCst) >= 16_000);
                window.fetch_sub(16_000, Ordering::SeqCst);
                peer.send(&frame(DATA, 0, stream, &[b' '; 16_000]));
            }
        }
        (peer, refused)
    };
    let (first, refused) = hold(60);
    eventually("its budget is used", PATIENCE, || world.plane.loads().held_bytes() > 800_000);
    assert!(world.plane.loads().held_bytes() <= 1 << 20, "{}", world.plane.loads().held_bytes());
    let (second, _) = hold(60);
    eventually("the worker's is used", PATIENCE, || world.plane.loads().held_bytes() > 1_300_000);
    assert!(world.plane.loads().held_bytes() <= 3 << 19);
    for peer in [&first, &second] {
        peer.0.shutdown(std::net::Shutdown::Both).unwrap();
    }
    assert!(refused.join().unwrap() >= 50, "what was beyond the budget was refused");
    eventually("all of it comes back", PATIENCE, || world.plane.loads().held_bytes() == 0);
}

/// How long a shutdown takes while `peers` are connected.
#[track_caller]
fn stop(world: World, peers: impl Sized) -> Duration {
    let began = tokio::time::Instant::now();
    assert_eq!(world.plane.drain(), Drained { cut: 0 });
    drop(peers);
    began.elapsed()
}

/// Far less than the ten seconds that requests in flight would have.
const AT_ONCE: Duration = Duration::from_secs(4);

#[test]
fn connections_without_a_request_do_not_hold_a_stop() {
    let world = patient();
    let raw = |address: SocketAddr, bytes: &[u8]| {
        let mut peer = Peer::silent(address);
        peer.send(bytes);
        peer
    };
    let peers = [
        raw(world.http(), b""),
        raw(world.http(), b"PRI * HT"),
        raw(world.http(), b"GET / HTTP/1.1\r\nhost:"),
        raw(world.grpc(), b""),
    ];
    eventually("they are all here", PATIENCE, || {
        world.plane.loads().read().map(|load| load.accepted).sum::<u64>() == 4
    });
    let took = stop(world, peers);
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn an_http_2_peer_that_does_not_answer_goaway_does_not_hold_a_stop() {
    let world = patient();
    let mut peer = Peer::connect(world.http());
    peer.next_of(SETTINGS);
    let mut half = Peer::connect(world.grpc());
    half.send(&frame(HEADERS, END_STREAM, 1, &post("/x", &[])));
    half.next_of(SETTINGS);
    let took = stop(world, (peer, half));
    assert!(took < AT_ONCE, "{took:?}");
}

#[test]
fn a_request_that_comes_with_goaway_is_still_answered() {
    let world = patient();
    let mut peer = Peer::connect(world.http());
    peer.next_of(SETTINGS);
    let draining = std::thread::spawn(move || world.plane.drain());
    peer.next_of(GOAWAY);
    let mut head = post("/healthz", &[]);
    head[0] = 0x82;
    peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &head));
    let answer = loop {
        let frame = peer.next().expect("an answer");
        assert_ne!(frame.kind, RST_STREAM);
        if frame.kind == HEADERS {
            break frame;
        }
    };
    // :status 200, from the static table.
    assert_eq!((answer.stream, answer.payload[0]), (1, 0x88));
    drop(peer);
    assert_eq!(draining.join().unwrap(), Drained { cut: 0 });
}

#[tokio::test]
async fn who_watches_our_health_does_not_hold_a_stop_and_is_told() {
    use tonic_health::pb::HealthCheckRequest;
    use tonic_health::pb::health_client::HealthClient;
    let world = patient();
    let mut client = HealthClient::new(world.channel());
    let request = HealthCheckRequest { service: String::new() };
    let mut watching = client.watch(request).await.unwrap().into_inner();
    assert!(watching.message().await.unwrap().is_some());
    let stopped = tokio::task::spawn_blocking(move || stop(world, ()));
    let ended = watching.message().await.unwrap_err();
    assert_eq!(ended.code(), tonic::Code::Unavailable);
    assert!(stopped.await.unwrap() < AT_ONCE);
}
