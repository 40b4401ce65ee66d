//! Receivers that are real sockets.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

use tidegate_metrics::Families;
use tidegate_telemetry::alerts::{Alert, Kind, Notice, Payload, Receiver, Severity, WebhookQueue, signature};
use tidegate_telemetry::statsd::{Before, Lines, Statsd};
use tidegate_telemetry::{Endpoint, Plaintext};

const PATIENCE: Duration = Duration::from_secs(20);

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn counters_reach_a_udp_receiver_in_packets_that_fit() {
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    receiver.set_read_timeout(Some(PATIENCE)).unwrap();
    let statsd = Statsd::new(receiver.local_addr().unwrap(), Lines::default()).unwrap();
    let mut families = Families::default();
    let hits = families.counters("hits", "");
    for n in 0..100 {
        let labels =
            [("domain", "api".into()), ("rule", format!("r{n}").into()), ("stat", "over_limit".into())];
        hits.add(labels, n);
    }
    runtime().block_on(statsd.send(&families, &mut Before::default()));
    // r0 counted nothing: 99 rules, two lines each.
    let (mut lines, mut packet) = (Vec::new(), [0; 65_536]);
    while lines.len() < 198 {
        let length = receiver.recv(&mut packet).unwrap();
        assert!(length <= 1_432, "{length} bytes");
        lines.extend(String::from_utf8(packet[..length].to_vec()).unwrap().lines().map(str::to_owned));
    }
    assert!(lines.contains(&"ratelimit.service.rate_limit.api.r7.over_limit:7|c".to_owned()), "{lines:?}");
    assert!(lines.contains(&"ratelimit.service.rate_limit.api.r99.total_hits:99|c".to_owned()), "{lines:?}");
}

#[test]
fn nobody_listening_to_udp_costs_nothing() {
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let statsd = Statsd::new(gone, Lines::default()).unwrap();
    let mut families = Families::default();
    families.counter("store_errors", "", 5);
    (0..10).for_each(|_| runtime().block_on(statsd.send(&families, &mut Before::default())));
}

/// A webhook that answers with each of `statuses` in turn, and passes on every request, head and body.
fn webhook(statuses: Vec<&'static str>) -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        for status in statuses {
            let (mut stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let (mut bytes, mut chunk) = (Vec::new(), [0; 4_096]);
            let (head, body) = loop {
                let length = stream.read(&mut chunk).unwrap();
                bytes.extend_from_slice(&chunk[..length]);
                let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
                let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
                let length: usize =
                    head.split("content-length: ").nth(1).unwrap().lines().next().unwrap().parse().unwrap();
                if bytes.len() >= end + 4 + length {
                    break (head, bytes[end + 4..].to_vec());
                }
            };
            stream.write_all(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").as_bytes()).unwrap();
            sender.send((head, body)).unwrap();
        }
    });
    (format!("http://{address}/hook"), requests)
}

fn begun(subject: &str) -> Notice {
    Notice::Begun(Alert {
        fingerprint: "f".to_owned(),
        kind: Kind::StoreDown,
        subject: subject.to_owned(),
        incident: "store".to_owned(),
        severity: Severity::Critical,
        summary: "down".to_owned(),
        next: "look".to_owned(),
        link: String::new(),
        page: String::new(),
        since_s: 5,
        ended_s: None,
        silenced: false,
        unknown_since_s: None,
    })
}

fn courier(url: &str) -> WebhookQueue {
    let endpoint = Endpoint::new(url, None, Plaintext::Loopback).unwrap();
    let secret = Some(b"secret".as_slice().into());
    WebhookQueue::new(Receiver { endpoint, secret, payload: Payload::Json }, "node-a")
}

/// Runs the courier until `requests` has received as many as there are statuses.
fn deliver(
    courier: &WebhookQueue,
    requests: mpsc::Receiver<(String, Vec<u8>)>,
    count: usize,
) -> Vec<(String, Vec<u8>)> {
    runtime().block_on(async {
        let waiting = tokio::task::spawn_blocking(move || {
            (0..count).map(|_| requests.recv_timeout(PATIENCE).unwrap()).collect::<Vec<_>>()
        });
        tokio::select! {
            taken = waiting => taken.unwrap(),
            () = courier.run() => unreachable!("it runs until dropped"),
        }
    })
}

#[test]
fn what_happens_at_once_is_one_signed_body_tried_until_it_is_taken() {
    let (url, requests) = webhook(vec!["503 no", "500 no", "204 ok"]);
    let courier = courier(&url);
    courier.take(1_700_000_000, &[begun("a"), begun("b")]);
    let tries = deliver(&courier, requests, 3);
    let (head, body) = &tries[0];
    let value: serde_json::Value = serde_json::from_slice(body).unwrap();
    assert_eq!(value["alerts"].as_array().unwrap().len(), 2, "{value}");
    assert_eq!(value["alerts"][0]["state"], "firing");
    let field = |head: &str, name: &str| head.split(name).nth(1).unwrap().lines().next().unwrap().to_owned();
    let mut signed = Vec::new();
    for (again, same) in &tries {
        let id = |head: &str| field(head, "x-tidegate-delivery: ");
        assert_eq!((id(again), same), (id(head), body), "every try is the same delivery");
        let shown = field(again, "x-tidegate-signature: ");
        let at: u64 = shown.strip_prefix("t=").unwrap().split(',').next().unwrap().parse().unwrap();
        assert_eq!(shown, signature(b"secret", at, body));
        signed.push(at);
    }
    // The pauses are half a second and one: a receiver that accepts only fresh signatures accepts the last.
    assert!(signed[0] >= 1_700_000_000 && signed[2] > signed[0], "{signed:?}");
}

/// The alerts in a body, in order.
fn told(body: &[u8]) -> Vec<(String, String)> {
    let value: serde_json::Value = serde_json::from_slice(body).unwrap();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let alerts = value["alerts"].as_array().unwrap().iter();
    alerts.map(|alert| (text(&alert["state"]), text(&alert["subject"]))).collect()
}

fn named(fingerprint: &str) -> Alert {
    let mut alert = begun(fingerprint).alert().clone();
    fingerprint.clone_into(&mut alert.fingerprint);
    alert
}

#[test]
fn a_body_that_is_not_taken_holds_up_no_other_but_what_is_about_the_same_alert() {
    // The first is refused twice: bodies about other alerts overtake it, its own end does not.
    let (url, requests) = webhook(vec!["500 no", "200 ok", "200 ok", "500 no", "200 ok", "200 ok"]);
    let courier = courier(&url);
    courier.take(1, &[Notice::Begun(named("a"))]);
    courier.take(2, &[Notice::Begun(named("b"))]);
    courier.take(3, &[Notice::Ended(named("a"))]);
    courier.take(4, &[Notice::Begun(named("c")), Notice::Ended(named("b"))]);
    let tries: Vec<_> = deliver(&courier, requests, 6).iter().flat_map(|(_, body)| told(body)).collect();
    let expected = [
        ("firing", "a"),
        ("firing", "b"),
        ("firing", "c"),
        ("resolved", "b"),
        ("firing", "a"),
        ("firing", "a"),
        ("resolved", "a"),
    ];
    assert_eq!(tries, expected.map(|(state, subject)| (state.to_owned(), subject.to_owned())));
}

#[test]
fn very_many_alerts_at_once_are_bodies_of_a_size_that_receivers_take() {
    let (url, requests) = webhook(vec!["200 ok"; 10]);
    let courier = courier(&url);
    let many: Vec<Notice> = (0..1_000).map(|number| Notice::Begun(named(&format!("r{number}")))).collect();
    courier.take(1, &many);
    let bodies = deliver(&courier, requests, 10);
    assert!(bodies.iter().all(|(_, body)| body.len() < 100_000));
    assert_eq!(bodies.iter().map(|(_, body)| told(body).len()).sum::<usize>(), 1_000);
}

#[test]
fn what_a_receiver_understood_and_refused_is_not_sent_again() {
    let (url, requests) = webhook(vec!["400 no", "200 ok"]);
    let courier = courier(&url);
    courier.take(1, &[begun("a")]);
    courier.take(2, &[begun("b")]);
    let tries = deliver(&courier, requests, 2);
    let subject = |place: usize| {
        let value: serde_json::Value = serde_json::from_slice(&tries[place].1).unwrap();
        value["alerts"][0]["subject"].clone()
    };
    assert_eq!((subject(0), subject(1)), ("a".into(), "b".into()));
}

#[test]
fn a_receiver_that_is_never_there_is_given_up_after_twelve_tries_and_about_eight_minutes() {
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let courier = courier(&format!("http://{gone}/hook"));
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let took = runtime.block_on(async {
        let began = tokio::time::Instant::now();
        courier.take(1, &[begun("a")]);
        tokio::select! {
            settled = courier.settled(Duration::from_secs(3_600)) => assert!(settled, "it goes on for ever"),
            () = courier.run() => unreachable!("it runs until dropped"),
        }
        began.elapsed()
    });
    let stats = courier.stats();
    let counts = [&stats.failed_tries, &stats.dropped, &stats.delivered];
    assert_eq!(counts.map(|count| count.load(std::sync::atomic::Ordering::Relaxed)), [12, 1, 0]);
    // Eight pauses that double from half a second to 64 of them, and three of two minutes; each try may take five seconds.
    let pauses = Duration::from_millis(127_500) + 3 * Duration::from_secs(120);
    assert!(
        took >= pauses && took <= pauses + 12 * Duration::from_secs(6),
        "{took:?}, where pauses are {pauses:?}"
    );
}

/// A receiver that does `first` with its first connection, and accepts the request on the second.
fn at_first(
    first: impl FnOnce(std::net::TcpStream) + Send + 'static,
) -> (String, mpsc::Receiver<(String, Vec<u8>)>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, requests) = mpsc::channel();
    std::thread::spawn(move || {
        first(listener.accept().unwrap().0);
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 65_536];
        let length = stream.read(&mut bytes).unwrap();
        stream.write_all(b"HTTP/1.1 200 ok\r\ncontent-length: 0\r\n\r\n").unwrap();
        sender.send((String::new(), bytes[..length].to_vec())).unwrap();
    });
    (format!("http://{address}/hook"), requests)
}

#[test]
fn a_receiver_that_closes_early_is_tried_again() {
    let (url, requests) = at_first(drop);
    let courier = courier(&url);
    courier.take(1, &[begun("a")]);
    assert_eq!(deliver(&courier, requests, 1).len(), 1);
}

#[test]
fn a_receiver_that_hangs_is_given_up_and_tried_again() {
    let (held, holding) = mpsc::channel();
    let (url, requests) = at_first(move |stream| held.send(stream).unwrap());
    let courier = courier(&url);
    courier.take(1, &[begun("a")]);
    assert_eq!(deliver(&courier, requests, 1).len(), 1);
    assert!(holding.try_recv().is_ok(), "the first connection is still open");
}

#[test]
fn a_receiver_that_says_yes_and_never_ends_its_answer_has_taken_the_body() {
    let (held, holding) = mpsc::channel();
    let (url, requests) = at_first(move |mut stream| {
        let _ = stream.read(&mut [0; 65_536]).unwrap();
        stream.write_all(b"HTTP/1.1 200 ok\r\ncontent-length: 100\r\n\r\nbut").unwrap();
        held.send(stream).unwrap();
    });
    let courier = courier(&url);
    courier.take(1, &[begun("first")]);
    courier.take(2, &[begun("second")]);
    let taken = deliver(&courier, requests, 1);
    assert!(String::from_utf8_lossy(&taken[0].1).contains("second"), "the first is not sent twice");
    drop(holding);
}

#[test]
fn a_redirect_is_not_followed_and_the_body_is_sent_again_where_it_belongs() {
    let elsewhere = TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let to: &'static str =
        format!("302 found\r\nlocation: http://{}/", elsewhere.local_addr().unwrap()).leak();
    let (url, requests) = webhook(vec![to, "404 not found", "200 ok"]);
    let courier = courier(&url);
    courier.take(1, &[begun("a")]);
    let taken = deliver(&courier, requests, 3);
    assert!(taken.iter().all(|(_, body)| *body == taken[0].1), "the same body each time");
    assert!(elsewhere.accept().is_err(), "nobody came");
    let dropped = courier.stats().dropped.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(dropped, 0);
}

#[test]
fn bodies_that_wait_are_bounded_and_the_oldest_make_room() {
    let courier = courier("http://127.0.0.1:9/");
    (0..100).for_each(|now| courier.take(now, &[begun("a")]));
    let dropped = courier.stats().dropped.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!((courier.waiting(), dropped), (64, 36));
}
