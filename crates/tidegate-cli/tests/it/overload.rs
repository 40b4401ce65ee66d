//! The proxy in front of a service that has four times as much to do as it can.
//!
//! The service's workers sleep, so what is measured is who waits for them, not how fast this machine is.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use tidegate_testkit::{TidegateServer, Upstream, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");

/// Twenty workers of 400 ms do 50 requests a second: few enough for a machine that is busy with something else.
const WORKERS: usize = 20;
const WORK: Duration = Duration::from_millis(400);
/// An answer that comes later is of no use to anybody.
const IN_TIME: Duration = Duration::from_secs(3);
/// The shed level goes from nothing to everything in this time, so that a test need not take minutes.
const FULL_AFTER_S: f64 = 3.0;

/// How each class is asked for: a rule makes the first critical, the others are classes by default.
const CLASSES: [(&str, &str); 4] =
    [("POST", "/pay"), ("POST", "/notes"), ("GET", "/notes"), ("GET", "/stats")];

const RULES: &str = "
domain: api
rules:
  - { name: payments, match: { path: [/pay, '/pay/*'] }, limits: unlimited, priority: P0 }
  - { name: spent, key: [], limits: [{ algorithm: fixed_window, limit: 1000000, window: 1d }] }
";

struct World {
    server: TidegateServer,
    upstream: Upstream,
    _dir: tempfile::TempDir,
}

impl World {
    fn start(shedding: &str) -> Self {
        let upstream = Upstream::with_workers(WORKERS);
        upstream.set_delay(WORK);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
        let config = format!(
            "rules: {{ paths: [rules.yaml] }}\n\
             listen: {{ http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }}\n\
             proxy: {{ listen: '127.0.0.1:0', domain: api, upstreams: [{{ name: a, targets: ['http://{}'] }}] }}\n\
             shedding: {shedding}\n",
            upstream.addr()
        );
        let file = dir.path().join("tidegate.yaml");
        std::fs::write(&file, config).unwrap();
        let server = TidegateServer::start(BINARY, &["--config", file.to_str().unwrap()]);
        World { server, upstream, _dir: dir }
    }

    /// The value of a metric.
    fn metric(&mut self, name: &str) -> f64 {
        let text = http::get(self.server.addr("admin"), "/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{name} in {text}")).parse().unwrap()
    }
}

/// What became of the requests of one class.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    sent: u32,
    good: u32,
    shed: u32,
    lost: u32,
}

impl Tally {
    fn goodput(&self) -> f64 {
        f64::from(self.good) / f64::from(self.sent)
    }

    fn shed_part(&self) -> f64 {
        f64::from(self.shed) / f64::from(self.sent)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Good,
    Shed,
    /// Late, or failed.
    Lost,
}

/// Sends each class at so many requests a second, evenly, whatever comes back; and tells what became of them.
async fn send(proxy: SocketAddr, rates: [u64; 4], lasts: Duration) -> [Tally; 4] {
    let began = Instant::now();
    let mut arrivals: Vec<(Duration, usize)> = Vec::new();
    for (class, rate) in rates.into_iter().enumerate() {
        let count = rate * lasts.as_millis() as u64 / 1000;
        arrivals.extend((0..count).map(|number| (lasts * number as u32 / count as u32, class)));
    }
    arrivals.sort_unstable();
    let mut asking = JoinSet::new();
    for (at, class) in arrivals {
        sleep_until(began + at).await;
        asking.spawn(async move { (class, ask(proxy, class).await) });
    }
    let mut tallies = [Tally::default(); 4];
    while let Some(asked) = asking.join_next().await {
        let (class, fate) = asked.unwrap();
        let tally = &mut tallies[class];
        tally.sent += 1;
        match fate {
            Fate::Good => tally.good += 1,
            Fate::Shed => tally.shed += 1,
            Fate::Lost => tally.lost += 1,
        }
    }
    tallies
}

async fn ask(proxy: SocketAddr, class: usize) -> Fate {
    let (method, path) = CLASSES[class];
    let exchange = async {
        let mut stream = TcpStream::connect(proxy).await.unwrap();
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    };
    let Ok(answer) = timeout(IN_TIME, exchange).await else { return Fate::Lost };
    if answer.starts_with("HTTP/1.1 200") {
        return Fate::Good;
    }
    if !answer.contains("#temporary-reduced-capacity") {
        return Fate::Lost;
    }
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    for part in ["application/problem+json", "retry-after: 1", &format!("priority P{class}")] {
        assert!(answer.contains(part), "no {part} in {answer}");
    }
    Fate::Shed
}

/// What a try does not show of the promise; `None` if it shows all of it.
fn missing(busy: &[Tally; 4], calm: &[Tally; 4]) -> Option<&'static str> {
    let [p0, p1, p2, p3] = busy;
    let served: u32 = busy.iter().map(|class| class.good).sum();
    let shown = [
        ("the calm before", calm[0].goodput() > 0.95),
        ("P0 has within 5 % of what it had before", p0.goodput() >= 0.95 * calm[0].goodput()),
        ("P3 goes first, then P2", p3.shed_part() > p2.shed_part() && p3.shed_part() > 0.9),
        ("then P1", p2.shed_part() > p1.shed_part() && p1.goodput() > 0.3),
        // What is shed is what they cannot do.
        ("the workers are not idle meanwhile", f64::from(served) >= 0.6 * 6.0 * 50.0),
    ];
    shown.into_iter().find_map(|(what, is_so)| (!is_so).then_some(what))
}

#[test]
fn at_four_times_the_load_critical_requests_notice_nothing_and_the_least_critical_go_first_and_come_back() {
    let mut world = World::start(&format!(
        "{{ workers: {WORKERS}, full_after: {FULL_AFTER_S}s, classes: {{ background: [/stats] }} }}"
    ));
    let proxy = world.server.addr("proxy");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let run = |rates, seconds| runtime.block_on(send(proxy, rates, Duration::from_secs(seconds)));

    // A machine that stands still for seconds, as shared ones do, loses requests whoever is shed. That can only make things
    // look worse than they are, so one of three tries has to show everything.
    let mut calms = Vec::new();
    while calms.len() < 3 && calms.last().is_none_or(|[p0, ..]: &[Tally; 4]| p0.goodput() <= 0.95) {
        calms.push(run([12, 0, 0, 0], 3));
    }
    let calm = *calms.last().expect("one at least");
    let mut tries = Vec::new();
    while tries.len() < 3 && tries.last().is_none_or(|busy| missing(busy, &calm).is_some()) {
        tries.push(run([12, 38, 50, 100], 6));
    }
    let busy = *tries.last().expect("one at least");
    let spent = world
        .metric("tidegate_decisions_total{domain=\"api\",rule=\"spent\",result=\"allowed\",source=\"store\"}")
        as u64;
    let reached = world.upstream.requests();
    let mut read_at = Instant::now();
    let level = world.metric("tidegate_shed_level");
    let mut report = format!("calm {calms:?}\nbusy {tries:?}\nlevel {level}\n");

    // Recovery, in steps, until nobody is shed any more. The level never moves faster than it may; a pause of the machine
    // makes requests come in a bunch, which may lift it again.
    let mut levels = vec![level];
    let mut after = Vec::new();
    for _ in 0..60 {
        after.push(run([12, 2, 2, 2], 1));
        // From before the last reading was asked for: the server may have written it at any moment since.
        let began = std::mem::replace(&mut read_at, Instant::now());
        levels.push(world.metric("tidegate_shed_level"));
        let [.., before, now] = levels[..] else { unreachable!("two at least") };
        let most = began.elapsed().as_secs_f64() / FULL_AFTER_S + 0.05;
        assert!((now - before).abs() <= most, "{levels:?}");
        if now == 0.0
            && after.last().is_some_and(|classes: &[Tally; 4]| classes.iter().all(|it| it.shed == 0))
        {
            break;
        }
    }
    writeln!(report, "levels {levels:?}\nafter {after:?}").unwrap();

    // P0 is never shed, whatever the machine does.
    assert!(tries.iter().chain(&calms).all(|[p0, ..]| p0.shed == 0), "{report}");
    assert_eq!(missing(&busy, &calm), None, "{report}");
    // What was shed reached nobody and spent nothing.
    let sent = tries.iter().chain(&calms).flatten();
    let let_in: u32 = sent.map(|class| class.sent - class.shed).sum();
    assert!(reached <= spent && spent <= u64::from(let_in), "{reached} of {spent} of {let_in}: {report}");
    // Afterwards everybody is served again.
    assert!(level > 0.2, "{report}");
    assert!(levels.last().is_some_and(|level| *level == 0.0), "{report}");
    assert!(after.last().is_some_and(|classes| classes.iter().all(|class| class.shed == 0)), "{report}");
    assert!(after.iter().all(|classes| classes[0].shed == 0), "{report}");
    for class in 0..4 {
        let counted = world.metric(&format!("tidegate_shed_total{{priority=\"P{class}\"}}")) as u32;
        let seen = after.iter().chain(&tries).chain(&calms).map(|classes| classes[class]);
        let (shed, lost) = seen.fold((0, 0), |(shed, lost), tally| (shed + tally.shed, lost + tally.lost));
        assert!(
            (shed..=shed + lost).contains(&counted),
            "P{class}: {counted} counted, {shed} seen: {report}"
        );
    }
}

#[test]
fn a_proxy_that_is_not_told_how_many_workers_there_are_finds_out() {
    let mut world = World::start("{ adaptive: { initial: 4, min: 4, max: 100 } }");
    let proxy = world.server.addr("proxy");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    assert_eq!(world.metric("tidegate_workers"), 4.0);
    // Ten at once, which the twenty do not even notice. One step a second, and a few of them must go well.
    let mut found = 0.0;
    for _ in 0..10 {
        let [p0, ..] = runtime.block_on(send(proxy, [25, 0, 0, 0], Duration::from_secs(2)));
        assert_eq!(p0.shed, 0, "{p0:?}");
        found = world.metric("tidegate_workers");
        if found >= 6.0 {
            return;
        }
    }
    panic!("it found {found}");
}
