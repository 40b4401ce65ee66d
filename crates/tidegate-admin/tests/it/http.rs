use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_admin::Admin;
use tidegate_metrics::{Format, Metrics, Registry};
use tidegate_testkit::http::{self, Response};
use tokio::sync::oneshot;

use crate::scrape::Scrape;

/// The longest wait for a server that should answer or close at once: less than it grants connections at shutdown.
const SOON: Duration = Duration::from_secs(20);

/// An admin listener on its own thread and runtime, as in the binary.
struct Running {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Whether the listener's clock is the machine's.
#[derive(PartialEq)]
enum Time {
    Real,
    /// It jumps to the next deadline whenever there is nothing to do.
    Jumps,
}

impl Running {
    fn start(time: Time) -> Running {
        Running::of(Admin::bind("127.0.0.1:0".parse().unwrap()).unwrap(), time)
    }

    fn of(admin: Admin, time: Time) -> Running {
        let (stop, stopped) = oneshot::channel();
        let address = admin.address();
        let thread = std::thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().start_paused(time == Time::Jumps).build().unwrap();
            let registry = Registry::new(Arc::new(Metrics::new()));
            runtime.block_on(admin.serve(registry, async { drop(stopped.await) })).unwrap();
        });
        Running { address, stop, thread }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        stream
    }

    fn get(&self, path: &str, accept: &str) -> Response {
        http::request(self.address, "GET", path, &[("accept", accept)], b"").unwrap()
    }

    fn stop(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

#[test]
fn metrics_are_written_as_the_scraper_asks() {
    let admin = Running::start(Time::Real);
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,\
                      application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.2,*/*;q=0.1";
    let open = admin.get("/metrics", prometheus);
    assert_eq!(open.status, 200);
    assert_eq!(
        open.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    let classic = admin.get("/metrics", "*/*");
    assert_eq!(classic.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let open = Scrape::parse(&open.text(), Format::OpenMetrics);
    let classic = Scrape::parse(&classic.text(), Format::Classic);
    assert_eq!(open.names(), classic.names());
    assert_eq!(classic.types["tidegate_config_reloads_total"], "counter");
    assert_eq!(classic.types["tidegate_build_info"], "gauge");
    admin.stop();
}

#[test]
fn health_and_a_page_that_says_what_is_here() {
    let admin = Running::start(Time::Real);
    assert_eq!(admin.get("/healthz", "*/*").text(), "ok\n");
    let index = admin.get("/", "*/*");
    assert_eq!(index.status, 200);
    assert!(index.text().contains("/metrics"));
    admin.stop();
}

#[test]
fn what_is_not_there_is_refused_with_a_way_out() {
    let admin = Running::start(Time::Real);
    let missing = admin.get("/metric", "*/*");
    assert_eq!(missing.status, 404);
    assert!(missing.text().contains("hint: "), "{}", missing.text());
    let posted = http::request(admin.address, "POST", "/metrics", &[], b"x").unwrap();
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET,HEAD")));
    admin.stop();
}

#[test]
fn an_oversized_head_is_refused() {
    let admin = Running::start(Time::Real);
    let large = "x".repeat(20_000);
    let response = http::request(admin.address, "GET", "/metrics", &[("x-large", &large)], b"").unwrap();
    assert_eq!(response.status, 431);
    admin.stop();
}

#[test]
fn a_head_that_never_ends_is_given_up() {
    let admin = Running::start(Time::Jumps);
    let mut slow = admin.connect();
    slow.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n").unwrap();
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).expect("closed, not left open");
    assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    admin.stop();
}

#[test]
fn a_full_listener_answers_a_newcomer_in_place_of_an_idle_connection() {
    const MOST: usize = 128;
    let admin = Running::start(Time::Real);
    let mut held: Vec<TcpStream> = (0..MOST).map(|_| admin.connect()).collect();
    // The last of them answers, so all of them have been accepted.
    ask(held.last_mut().unwrap());
    let mut newcomer = admin.connect();
    ask(&mut newcomer);
    // The oldest made room.
    held[0].set_read_timeout(Some(SOON)).unwrap();
    assert_eq!(held[0].read(&mut [0; 16]).expect("closed within seconds"), 0);
    ask(held.last_mut().unwrap());
    drop((held, newcomer));
    admin.stop();
}

#[test]
fn stopping_closes_idle_connections_at_once_and_takes_no_new_ones() {
    let admin = Running::start(Time::Real);
    let address = admin.address;
    let mut idle = admin.connect();
    ask(&mut idle);
    admin.stop.send(()).unwrap();
    assert_eq!(idle.read(&mut [0; 16]).expect("closed within seconds"), 0);
    admin.thread.join().unwrap();
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn an_address_that_is_taken_is_named() {
    let admin = Running::start(Time::Real);
    let error = Admin::bind(admin.address).unwrap_err();
    assert_eq!(error.to_string(), format!("cannot listen for admin on {}", admin.address));
    admin.stop();
}

#[test]
fn half_closed_clients_are_answered_by_the_admin_listener() {
    let admin = Running::start(Time::Real);
    let answered = (0..40).filter(|_| {
        let mut client = admin.connect();
        client.write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).is_ok_and(|_| answer.starts_with("HTTP/1.1 200"))
    });
    assert_eq!(answered.count(), 40);
    admin.stop();
}

#[test]
fn a_page_whose_name_was_rebound_to_loopback_reads_nothing() {
    let own = Admin::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let admin = Running::of(own.with_hosts(vec!["limits.example".to_owned()]), Time::Real);
    let status = |path: &str, host: &str| {
        http::request(admin.address, "GET", path, &[("host", host)], b"").unwrap().status
    };
    for host in ["127.0.0.1:8082", "[::1]:8082", "localhost", "limits.example:443"] {
        assert_eq!(status("/metrics", host), 200, "{host}");
    }
    for host in ["evil.example", "127.0.0.1.evil.example:8082", "evil.example@127.0.0.1", "a b"] {
        assert_eq!(status("/metrics", host), 421, "{host}");
        assert_eq!(status("/", host), 421, "{host}");
        assert_eq!(status("/healthz", host), 200, "{host}");
    }
    admin.stop();
}

/// Asks for `/healthz` on a connection that stays open, and reads the whole answer.
fn ask(stream: &mut TcpStream) {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: here\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nok\n") {
        let mut part = [0; 1024];
        let read = stream.read(&mut part).unwrap();
        assert!(read > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&part[..read]);
    }
}
