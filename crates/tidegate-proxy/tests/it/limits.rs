//! What rules do to requests that pass through: refusals, waits, leases.

use std::io::Write as _;
use std::sync::mpsc;
use std::time::Duration;

use serde_json::json;
use tidegate_testkit::{Upstream, eventually, http};

use crate::world::{Edge, PATIENCE, Raw, Setup, Wire, target};
use tidegate_testkit::frames::{DATA, END_HEADERS, END_STREAM, HEADERS, PING, Peer, RST_STREAM, frame, head};

const TWO_EACH: &str = "
domain: edge
rules:
  - { name: per-user, key: [user], limits: [2/hour] }
  - { name: everybody, key: [], limits: [1000/hour] }
";
const ONE_AT_ONCE: &str = "
domain: edge
rules: [{ name: slots, key: [], limits: [{ algorithm: concurrency, limit: 1, ttl: 60s }] }]
";

const EMPTY_ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const HALF_AN_ANSWER: &str = "HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab";

fn by_user(setup: Setup) -> Setup {
    setup.identity(|config| {
        *config = serde_json::from_value(json!({ "headers": { "user": "x-user" } })).unwrap()
    })
}

#[test]
fn a_refusal_is_a_problem_with_the_policies_it_violates_and_reaches_no_upstream() {
    let upstream = Upstream::start();
    let edge = by_user(Setup::to(&[target(&upstream)]).rules(TWO_EACH)).start();
    let get = |user| edge.send("GET", "/", &[("x-user", user)], b"");
    let first = get("1");
    assert_eq!((first.status, first.header("x-ratelimit-remaining")), (200, Some("1")));
    assert_eq!(first.header("ratelimit-policy"), Some(r#""per-user";q=2;w=3600, "everybody";q=1000;w=3600"#));
    assert_eq!(first.header("retry-after"), None);
    get("1");
    let refused = get("1");
    assert_eq!((refused.status, refused.header("content-type")), (429, Some("application/problem+json")));
    assert_eq!(refused.json()["violated-policies"], json!(["per-user"]));
    assert!(refused.header("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(get("2").status, 200);
    assert_eq!(upstream.requests(), 3);
}

#[test]
fn a_rule_that_must_not_decide_alone_answers_503_without_its_store() {
    let upstream = Upstream::start();
    let rules = "
        domain: edge
        rules: [{ name: all, key: [], limits: [5/hour], on_store_failure: closed }]";
    let edge = Setup::to(&[target(&upstream)]).rules(rules).without_store().start();
    let refused = edge.get("/");
    assert_eq!((refused.status, refused.header("content-type")), (503, Some("application/problem+json")));
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn a_domain_without_rules_lets_nothing_pass_and_says_why() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).change(|settings| settings.domain = "edgy".to_owned()).start();
    let answer = edge.get("/");
    assert_eq!(answer.status, 500);
    assert!(answer.text().contains("unknown domain `edgy`"), "{}", answer.text());
    assert_eq!(edge.heard.unknown_domains(), 1, "it is counted once");
}

#[test]
fn the_upstreams_own_rate_limit_headers_give_way_to_ours() {
    let upstream = Raw::saying("HTTP/1.1 200 OK\r\nx-ratelimit-limit: 7\r\ncontent-length: 0\r\n\r\n");
    let edge = by_user(Setup::to(&[upstream.target()]).rules(TWO_EACH)).start();
    let answer = edge.send("GET", "/", &[("x-user", "1")], b"");
    let limits: Vec<_> = answer.headers.iter().filter(|(name, _)| name == "x-ratelimit-limit").collect();
    assert_eq!(limits, [&("x-ratelimit-limit".to_owned(), "2".to_owned())]);
}

#[test]
fn stricter_rate_limit_headers_of_the_upstream_stay_and_its_policies_always() {
    let upstream = Raw::saying(
        "HTTP/1.1 200 OK\r\nx-ratelimit-limit: 7\r\nx-ratelimit-remaining: 0\r\nx-ratelimit-reset: 5\r\n\
         ratelimit-policy: \"theirs\";q=7;w=10\r\nratelimit: \"theirs\";r=0;t=5\r\ncontent-length: 0\r\n\r\n",
    );
    let edge = by_user(Setup::to(&[upstream.target()]).rules(TWO_EACH)).start();
    let answer = edge.send("GET", "/", &[("x-user", "1")], b"");
    let all = |wanted: &str| -> Vec<String> {
        let named = answer.headers.iter().filter(|(name, _)| name == wanted);
        named.map(|(_, value)| value.clone()).collect()
    };
    assert_eq!(
        all("ratelimit-policy"),
        [r#""theirs";q=7;w=10"#, r#""per-user";q=2;w=3600, "everybody";q=1000;w=3600"#]
    );
    let left = all("ratelimit");
    assert_eq!((left.len(), left[0].as_str()), (2, r#""theirs";r=0;t=5"#));
    assert!(left[1].starts_with(r#""per-user";r=1;t="#), "{left:?}");
    assert_eq!(
        [all("x-ratelimit-limit"), all("x-ratelimit-remaining"), all("x-ratelimit-reset")],
        [["7"], ["0"], ["5"]]
    );
}

#[test]
fn a_lease_is_held_until_the_last_byte_of_the_answer() {
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let upstream = Raw::start(move |mut wire| {
        while !wire.head().is_empty() {
            wire.write("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab");
            wait.lock().unwrap().recv().unwrap();
            wire.write("cd");
        }
    });
    let edge = Setup::to(&[upstream.target()]).rules(ONE_AT_ONCE).start();
    let mut first = edge.connect();
    first.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(first.head()[0].contains("200"));
    assert_eq!(first.exactly(2), "ab");
    // Repeatedly: a lease that is released too early is not noticed at once.
    (0..20).for_each(|_| assert_eq!(edge.get("/").status, 429));
    go_on.send(()).unwrap();
    assert_eq!(first.exactly(2), "cd");
    go_on.send(()).unwrap();
    eventually("the lease is given back", PATIENCE, || edge.get("/").status == 200);
}

/// A server that answers each request with `begin`, and once it may go on with `end`.
fn server_that_waits(begin: &'static str, end: &'static str) -> (Raw, mpsc::Sender<()>) {
    let (go_on, wait) = mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let server = Raw::start(move |mut wire| {
        while !wire.head().is_empty() {
            wire.write(begin);
            if wait.lock().unwrap().recv().is_err() {
                return;
            }
            wire.write(end);
        }
    });
    (server, go_on)
}

/// A client that sends a request, and leaves once it has seen how the answer begins.
trait Leaver {
    /// What stays open once it has left.
    type Stays;

    fn ask(edge: &Edge) -> Self;
    fn sees(&mut self, begin: &str);
    fn leave(self) -> Self::Stays;
}

/// Hangs up, over HTTP/1. By a reset: a client that only closed its half is answered for some seconds yet.
impl Leaver for Wire {
    type Stays = ();

    fn ask(edge: &Edge) -> Self {
        let mut client = edge.connect();
        client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        client
    }

    fn sees(&mut self, begin: &str) {
        self.exactly(begin.len());
    }

    fn leave(self) {
        socket2::SockRef::from(self.stream()).set_linger(Some(Duration::ZERO)).unwrap();
    }
}

/// Resets its stream, and keeps the connection.
impl Leaver for Peer {
    type Stays = Peer;

    fn ask(edge: &Edge) -> Self {
        let mut peer = Peer::connect(edge.addr());
        let get = head(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "x")]);
        peer.send(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &get));
        peer
    }

    fn sees(&mut self, begin: &str) {
        let body = begin.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(self.next_of(DATA).payload, body.as_bytes());
    }

    fn leave(mut self) -> Peer {
        const CANCEL: [u8; 4] = [0, 0, 0, 8];
        self.send(&[frame(RST_STREAM, 0, 1, &CANCEL), frame(PING, 0, 0, &[0; 8])].concat());
        // The server has seen the reset when it answers what came after it.
        self.next_of(PING);
        self
    }
}

#[track_caller]
fn check_a_client_that_leaves_keeps_its_slot<L: Leaver>(begin: &'static str, end: &'static str) {
    check_a_client_that_leaves_keeps_what_it_has::<L>(|setup| setup.rules(ONE_AT_ONCE), 429, begin, end);
}

/// `limited` lets one request through at a time; another is refused with `status`.
#[track_caller]
fn check_a_client_that_leaves_keeps_what_it_has<L: Leaver>(
    limited: fn(Setup) -> Setup,
    status: u16,
    begin: &'static str,
    end: &'static str,
) {
    let (upstream, go_on) = server_that_waits(begin, end);
    let edge = limited(Setup::to(&[upstream.target()])).start();
    let mut client = L::ask(&edge);
    if !begin.is_empty() {
        client.sees(begin);
    }
    eventually("it is under way", PATIENCE, || upstream.accepted() == 1);
    let _stays = client.leave();
    // Repeatedly: a slot that is free too early is not noticed at once.
    (0..50).for_each(|_| assert_eq!(edge.get("/").status, status));
    assert_eq!(upstream.accepted(), 1);
    go_on.send(()).unwrap();
    go_on.send(()).unwrap();
    eventually("the slot is free", PATIENCE, || edge.get("/").status == 200);
    drop(go_on);
    edge.eventually_idle();
}

#[test]
fn a_slot_outlives_its_client_until_the_server_answers() {
    check_a_client_that_leaves_keeps_its_slot::<Wire>("", EMPTY_ANSWER);
}

#[test]
fn a_slot_outlives_its_client_until_the_answer_ends() {
    check_a_client_that_leaves_keeps_its_slot::<Wire>(HALF_AN_ANSWER, "cd");
}

#[test]
fn a_slot_outlives_a_reset_stream_until_the_server_answers() {
    check_a_client_that_leaves_keeps_its_slot::<Peer>("", EMPTY_ANSWER);
}

#[test]
fn a_slot_outlives_a_reset_stream_until_the_answer_ends() {
    check_a_client_that_leaves_keeps_its_slot::<Peer>(HALF_AN_ANSWER, "cd");
}

/// `shedding.workers`: what hangs up must not be replaced by another, or the service works on any number at once.
#[test]
fn a_worker_is_busy_until_the_server_answers_though_its_client_left() {
    let one_worker = |setup: Setup| setup.workers(1);
    check_a_client_that_leaves_keeps_what_it_has::<Wire>(one_worker, 503, "", EMPTY_ANSWER);
    check_a_client_that_leaves_keeps_what_it_has::<Wire>(one_worker, 503, HALF_AN_ANSWER, "cd");
    check_a_client_that_leaves_keeps_what_it_has::<Peer>(one_worker, 503, "", EMPTY_ANSWER);
    check_a_client_that_leaves_keeps_what_it_has::<Peer>(one_worker, 503, HALF_AN_ANSWER, "cd");
}

#[track_caller]
fn check_a_client_that_leaves_gives_its_slot_up<L: Leaver>(begin: &'static str) {
    let (upstream, _never) = server_that_waits(begin, "");
    let rules = ONE_AT_ONCE.replace("60s", "60s, on_hangup: release");
    let edge = Setup::to(&[upstream.target()]).rules(&rules).start();
    let mut client = L::ask(&edge);
    if !begin.is_empty() {
        client.sees(begin);
    }
    eventually("it is under way", PATIENCE, || upstream.accepted() == 1);
    assert_eq!(edge.get("/").status, 429);
    let _stays = client.leave();
    edge.eventually_idle();
    let _next = L::ask(&edge);
    eventually("another is under way", PATIENCE, || upstream.accepted() == 2);
}

#[test]
fn a_slot_of_a_rule_that_says_so_is_free_when_its_client_hangs_up() {
    check_a_client_that_leaves_gives_its_slot_up::<Wire>("");
    check_a_client_that_leaves_gives_its_slot_up::<Wire>(HALF_AN_ANSWER);
}

#[test]
fn a_slot_of_a_rule_that_says_so_is_free_when_its_stream_is_reset() {
    check_a_client_that_leaves_gives_its_slot_up::<Peer>("");
    check_a_client_that_leaves_gives_its_slot_up::<Peer>(HALF_AN_ANSWER);
}

#[test]
fn a_slot_whose_client_left_is_free_after_its_ttl() {
    let (upstream, _never) = server_that_waits("", "");
    let rules = ONE_AT_ONCE.replace("60s", "1s");
    let edge = Setup::to(&[upstream.target()]).rules(&rules).start();
    let mut client = edge.connect();
    client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    eventually("it is under way", PATIENCE, || upstream.accepted() == 1);
    drop(client);
    edge.eventually_idle();
}

#[test]
fn a_slot_is_free_when_too_much_of_an_unwanted_answer_came() {
    let upstream = Raw::start(|mut wire| {
        wire.head();
        wire.write("HTTP/1.1 200 OK\r\ncontent-length: 1000000000\r\n\r\n");
        // Until the proxy hangs up.
        while wire.0.get_mut().write_all(&[b'x'; 65_536]).is_ok() {}
    });
    let edge = Setup::to(&[upstream.target()]).rules(ONE_AT_ONCE).start();
    let mut client = edge.connect();
    client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(client.head()[0].contains("200"));
    drop(client);
    edge.eventually_idle();
}

/// The answers to clients that all arrive together, and their times. The limiter's clock stands still, so they arrive at the
/// same moment.
fn all_at_once(edge: &Edge, clients: usize) -> Vec<(Duration, u16)> {
    let began = tokio::time::Instant::now();
    let addr = edge.addr();
    let clients: Vec<_> = (0..clients)
        .map(|_| {
            std::thread::spawn(move || {
                let answer = http::request(addr, "GET", "/", &[], b"").unwrap();
                (began.elapsed(), answer.status)
            })
        })
        .collect();
    let mut answers: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
    answers.sort_unstable();
    answers
}

#[test]
fn a_leaky_bucket_holds_back_as_many_as_its_longest_wait_has_room_for() {
    let upstream = Upstream::start();
    let rules = "
        domain: edge
        rules: [{ name: queue, key: [], limits: [{ algorithm: leaky_bucket, rate: 5/s, max_delay: 400ms }] }]";
    let edge = Setup::to(&[target(&upstream)]).rules(rules).start();
    let answers = all_at_once(&edge, 5);
    // At once, in 200 ms, in 400 ms, never, never.
    assert_eq!(answers.iter().filter(|(_, status)| *status == 200).count(), 3);
    assert_eq!(answers.iter().filter(|(_, status)| *status == 429).count(), 2);
    assert_eq!(upstream.requests(), 3);
}

/// Those behind it already know when they may go: see the guide on choosing an algorithm.
#[test]
fn a_turn_whose_client_gave_up_waiting_stays_given_out() {
    let upstream = Upstream::start();
    let rules = "
        domain: edge
        rules: [{ name: queue, key: [], limits: [{ algorithm: leaky_bucket, rate: 2/m, max_delay: 30s }] }]";
    let edge = Setup::to(&[target(&upstream)]).rules(rules).start();
    assert_eq!(edge.get("/").status, 200, "at once");
    let waits = Wire::ask(&edge);
    eventually("it has the one turn that is left", PATIENCE, || edge.heard.requests() == 2);
    assert_eq!(edge.get("/").status, 429, "it would have to wait for a minute");
    waits.leave();
    edge.eventually_idle();
    assert_eq!((edge.get("/").status, upstream.requests()), (429, 1));
}

#[test]
fn a_leaky_bucket_lets_requests_out_no_faster_than_its_rate() {
    let upstream = Upstream::start();
    let rules = "
        domain: edge
        rules: [{ name: queue, key: [], limits: [{ algorithm: leaky_bucket, rate: 20/s, max_delay: 2s }] }]";
    let edge = Setup::to(&[target(&upstream)]).rules(rules).start();
    for (place, (wait, status)) in (0..).zip(all_at_once(&edge, 10)) {
        assert_eq!(status, 200);
        assert!(wait >= Duration::from_millis(50) * place, "request {place} came after {wait:?}");
    }
}

/// We promise one per cent.
#[test]
fn what_a_leaky_bucket_lets_out_keeps_its_rate_within_one_percent() {
    const REQUESTS: usize = 50;
    let (arrived, arrivals) = mpsc::channel();
    let upstream = Raw::start(move |mut wire| {
        while !wire.head().is_empty() {
            arrived.send(tokio::time::Instant::now()).unwrap();
            wire.write("HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    let rules = "
        domain: edge
        rules: [{ name: queue, key: [], limits: [{ algorithm: leaky_bucket, rate: 25/s, max_delay: 10s }] }]";
    let edge = Setup::to(&[upstream.target()]).rules(rules).in_real_time().start();
    let mut clients: Vec<_> = (0..REQUESTS).map(|_| edge.connect()).collect();
    clients.iter_mut().for_each(|client| client.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n"));
    clients.iter_mut().for_each(|client| assert!(client.head()[0].contains("204")));
    let mut times: Vec<_> = arrivals.try_iter().collect();
    times.sort_unstable();
    assert_eq!(times.len(), REQUESTS);
    // Half of them, twenty-five, take one second from any place. The median of all places does not see a timer or a thread
    // that came late.
    let mut spans: Vec<Duration> = (0..REQUESTS / 2).map(|at| times[at + REQUESTS / 2] - times[at]).collect();
    spans.sort_unstable();
    let second = spans[spans.len() / 2].as_secs_f64();
    assert!((0.99..=1.01).contains(&second), "twenty-five requests took {second} s");
}
