//! Servers on real Redis, clients that ask them over the Redis protocol, and what became of every request.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_testkit::resp::{Client, Value};
use tidegate_testkit::{TidegateServer, eventually, http, poll};

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
/// Far longer than any of this takes, for machines that are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// What a server waits for its store in tests of exactness: a machine that is busy must not make it give up.
pub(crate) const PATIENT: &str = "5s";
/// So soon after the end of a fault the store decides again: the figure that is promised.
pub(crate) const RECOVERED: Duration = Duration::from_secs(2);
/// What it waits by default, and in tests of what happens then.
pub(crate) const DEFAULT: &str = "10ms";

/// One server process.
pub(crate) struct Node {
    pub(crate) server: TidegateServer,
    pub(crate) resp: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) admin: SocketAddr,
    dir: TempDir,
}

impl Node {
    /// Starts one on `store` with these rules of the domain `api`.
    pub(crate) fn start(store: &str, timeout: &str, rules: &str) -> Self {
        Node::start_with(store, timeout, rules, "")
    }

    /// The same, with these lines in its configuration besides.
    pub(crate) fn start_with(store: &str, timeout: &str, rules: &str, config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("rules.yaml"), format!("domain: api\nrules:\n{rules}")).unwrap();
        let config = format!(
            "listen: {{ http: '127.0.0.1:0', grpc: '127.0.0.1:0', resp: '127.0.0.1:0', admin: '127.0.0.1:0' }}\n\
             store: {{ url: '{store}', timeout: {timeout} }}\nrules: {{ paths: [rules.yaml] }}\n{config}"
        );
        fs::write(dir.path().join("tidegate.yaml"), config).unwrap();
        let config = dir.path().join("tidegate.yaml");
        let mut server = TidegateServer::start(BINARY, &["--config", config.to_str().unwrap()]);
        let [resp, http, admin] = ["resp", "http", "admin"].map(|name| server.addr(name));
        Node { server, resp, http, admin, dir }
    }

    /// The same, and waits until it has heard from its store.
    pub(crate) fn ready(store: &str, timeout: &str, rules: &str) -> Self {
        let node = Node::start(store, timeout, rules);
        eventually("the node is in touch with its store", PATIENCE, || node.readyz() == "ready\n");
        node
    }

    /// Two of them that know of each other.
    pub(crate) fn pair(store: &str, timeout: &str, rules: &str) -> [Self; 2] {
        let nodes = [0, 1].map(|_| Node::ready(store, timeout, rules));
        eventually("the nodes know of each other", PATIENCE, || {
            nodes.iter().all(|node| node.metric("tidegate_fleet_size") == 2.0)
        });
        nodes
    }

    /// Is killed, and started again on other ports.
    pub(crate) fn come_back(&mut self) {
        self.server.restart();
        [self.resp, self.http, self.admin] = ["resp", "http", "admin"].map(|name| self.server.addr(name));
        eventually("the node is in touch with its store", PATIENCE, || self.readyz() == "ready\n");
    }

    /// Writes other rules, which nobody reads yet.
    pub(crate) fn write_rules(&self, rules: &str) {
        let path = self.dir.path().join("rules.yaml");
        fs::write(path, format!("domain: api\nrules:\n{rules}")).unwrap();
    }

    /// Takes other rules into use.
    pub(crate) fn change_rules(&mut self, rules: &str) {
        self.write_rules(rules);
        let version = self.metric("tidegate_config_version");
        self.server.reload();
        eventually("the rules are taken", PATIENCE, || self.metric("tidegate_config_version") > version);
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.resp)
    }

    pub(crate) fn readyz(&self) -> String {
        http::get(self.http, "/readyz").text()
    }

    /// A metric without labels, or with exactly these.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = http::get(self.admin, "/metrics").text();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }
}

impl Node {
    /// The sum of all metrics whose lines begin so.
    pub(crate) fn metric_sum(&self, beginning: &str) -> f64 {
        let text = http::get(self.admin, "/metrics").text();
        let lines = text.lines().filter(|line| line.starts_with(beginning));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }
}

/// What a server said to one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    pub(crate) remaining: i64,
    pub(crate) source: String,
}

impl Answer {
    /// Whether the store decided, now or a moment ago.
    pub(crate) fn is_exact(&self) -> bool {
        self.source == "store" || self.source == "deny_cache"
    }

    /// Whether it was decided without the store because that is away. Being late is not enough.
    pub(crate) fn is_fallback(&self) -> bool {
        self.source.starts_with("fallback_")
    }

    pub(crate) fn read(reply: &Value) -> Self {
        let Value::Array(parts) = reply else { panic!("not an answer to a check: {reply:?}") };
        Answer {
            allowed: parts[0].int() == 1,
            remaining: match parts[2] {
                Value::Int(remaining) => remaining,
                _ => -1,
            },
            source: parts[6].text(),
        }
    }
}

/// Checks a request with these attributes that spends `cost`.
pub(crate) fn check(client: &mut Client, attributes: &[(&str, &str)], cost: u64) -> Answer {
    let cost = cost.to_string();
    let mut words = vec!["TG.CHECK", "api", "COST", &cost];
    words.extend(attributes.iter().flat_map(|(name, value)| [*name, *value]));
    Answer::read(&client.cmd(&words))
}

/// What the store says to a request that spends nothing. A machine that is busy may miss a deadline: then it is asked again.
pub(crate) fn look(client: &mut Client, attributes: &[(&str, &str)]) -> Answer {
    let answer = poll(PATIENCE, || Some(check(client, attributes, 0)).filter(Answer::is_exact));
    answer.expect("the store decides")
}

/// What is left to `user`, asked without spending.
pub(crate) fn left(client: &mut Client, user: &str) -> i64 {
    check(client, &[("user", user)], 0).remaining
}

/// Says what was measured, for whoever runs the tests with `--nocapture`.
macro_rules! tell {
    ($($words:tt)*) => {
        $crate::redis_world::say(format_args!($($words)*))
    };
}
pub(crate) use tell;

#[expect(clippy::print_stdout, reason = "what was measured is worth knowing")]
pub(crate) fn say(words: std::fmt::Arguments<'_>) {
    println!("{words}");
}

/// Only one of the tests that load the machine runs at a time: they measure how long answers take.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "the tests' one clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Lets time pass that a fault must last, or between two requests of a steady client; nothing waits for it to pass.
#[expect(clippy::disallowed_methods, reason = "load and faults take their time")]
pub(crate) fn pass(span: Duration) {
    std::thread::sleep(span);
}

/// One request of a steady client.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Since the load began.
    pub(crate) at: Duration,
    pub(crate) took: Duration,
    /// How long an answer took, just before, that needs no store: how late the machine itself is.
    ping: Duration,
    client: usize,
    pub(crate) policy: &'static str,
    pub(crate) user: String,
    pub(crate) answer: Answer,
}

/// Steady clients, of each policy as many.
pub(crate) struct Load {
    pub(crate) began: Instant,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<Asked>>>,
}

pub(crate) const POLICIES: [&str; 3] = ["open", "closed", "local"];
/// How often a user of the local policy may pass, and how often it asks.
pub(crate) const LOCAL_LIMIT: usize = 2;
pub(crate) const LOCAL_ASKS: usize = 4;

/// A rule for each policy. Users of `local` are new every few requests and reach their limit; the others never do.
pub(crate) const POLICY_RULES: &str = "\
- { name: open, match: { policy: open }, key: [user], on_store_failure: open, limits: [{ algorithm: fixed_window, limit: 1000000, window: 1d }] }
- { name: closed, match: { policy: closed }, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 1000000, window: 1d }] }
- { name: local, match: { policy: local }, key: [user], on_store_failure: local, limits: [{ algorithm: fixed_window, limit: 2, window: 1d }] }
- { name: exact, match: { policy: exact }, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 20, window: 1d }] }
";

/// Between two requests of a client.
const PACE: Duration = Duration::from_millis(3);

impl Load {
    /// `each` clients of each policy begin to ask, over all `nodes`.
    pub(crate) fn start(nodes: &[&Node], each: usize) -> Self {
        static LOADS: AtomicUsize = AtomicUsize::new(0);
        // Its users are its own: what another load left on their books must not matter.
        let load = LOADS.fetch_add(1, Ordering::Relaxed);
        let (stop, began) = (Arc::new(AtomicBool::new(false)), now());
        let clients = (0..each * POLICIES.len()).map(|number| {
            let (stop, mut client) = (stop.clone(), nodes[number % nodes.len()].client());
            std::thread::spawn(move || {
                let mut asked = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    asked.push(ask_as(&mut client, (load, number), asked.len(), began));
                    pass(PACE);
                }
                asked
            })
        });
        let clients = clients.collect();
        Load { began, stop, clients }
    }

    /// How long it goes on.
    pub(crate) fn at(&self) -> Duration {
        self.began.elapsed()
    }

    /// Ends it: what became of every request. Fails if a client hangs.
    pub(crate) fn finish(self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let asked =
            self.clients.into_iter().flat_map(|client| client.join().expect("every client is answered"));
        let mut asked: Vec<Asked> = asked.collect();
        asked.sort_by_key(|one| one.at);
        Outcome { asked }
    }
}

fn ask_as(client: &mut Client, (load, number): (usize, usize), count: usize, began: Instant) -> Asked {
    let policy = POLICIES[number % POLICIES.len()];
    let user = match policy {
        "local" => format!("{load}-{number}-{}", count / LOCAL_ASKS),
        _ => format!("{load}-{number}"),
    };
    let pinged = now();
    client.cmd(&["PING"]);
    let ping = pinged.elapsed();
    let sent = now();
    let answer = check(client, &[("policy", policy), ("user", &user)], 1);
    Asked { at: sent - began, took: sent.elapsed(), ping, client: number, policy, user, answer }
}

/// The least span in which a machine stands still for that a node may take a store for silent: a quarter of what it calls silence.
const STOOD_STILL: Duration = Duration::from_millis(50);

/// What became of every request of a load.
pub(crate) struct Outcome {
    pub(crate) asked: Vec<Asked>,
}

impl Outcome {
    /// The requests that were sent from `from` to `to`.
    pub(crate) fn between(&self, from: Duration, to: Duration) -> Vec<&Asked> {
        self.asked.iter().filter(|one| from <= one.at && one.at < to).collect()
    }

    /// Every answer without the store is the one that the rule asks for, and decides as it says; and the store is said to
    /// have failed in `trouble` only. What is late on a busy machine, while the store answers others, is overload; a machine
    /// that stood still is to be tried again.
    pub(crate) fn obeys(&self, what: &str, trouble: Range<Duration>) -> Result<(), String> {
        for Asked { policy, answer, .. } in &self.asked {
            if !answer.is_exact() {
                let by_policy = ["fallback", "overload"].map(|cause| format!("{cause}_{policy}"));
                assert!(by_policy.contains(&answer.source), "{policy}: {answer:?}");
            }
            match *policy {
                // Its limit is out of reach, so only a fallback that is not its own could refuse it.
                "open" => assert!(answer.allowed, "{answer:?}"),
                "closed" => assert_eq!(answer.allowed, answer.is_exact(), "{answer:?}"),
                _ => {}
            }
        }
        // What was sent just before is met by it all the same.
        let outside = |one: &&Asked| one.at + one.took < trouble.start || one.at >= trouble.end;
        let outside = |one: &&Asked| one.answer.is_fallback() && outside(one);
        let Some(first) = self.asked.iter().find(outside) else { return Ok(()) };
        let (from, to) = (trouble.start, trouble.end);
        self.unless_it_stood_still(
            first.at,
            &format!("{what}: the store failed from {from:?} to {to:?} only: {first:?}"),
        )
    }

    /// For what was taken for a failure about `at`, and was none: an error if the machine stood still then, for a good part of
    /// the silence that is one.
    ///
    /// # Panics
    /// When it did not: nothing explains it.
    pub(crate) fn unless_it_stood_still(&self, at: Duration, what: &str) -> Result<(), String> {
        let about = self.between(at.saturating_sub(Duration::from_secs(1)), at + Duration::from_secs(1));
        let lag = about.iter().map(|one| one.ping).max().unwrap_or_default();
        assert!(lag >= STOOD_STILL, "{what}; answers that need no store took {lag:?} at most");
        Err(format!("{what}; the machine stood still for {lag:?}"))
    }

    /// 99.9 % of all answers came within 20 ms, all of them soon. The machine itself may be late: that is measured by
    /// answers that need no store, and allowed for three times, for client, server and Redis; 50 ms are always allowed,
    /// for a shared machine of two cores.
    pub(crate) fn is_prompt(&self, what: &str) -> Result<(), String> {
        let mut took: Vec<Duration> = self.asked.iter().map(|one| one.took).collect();
        let mut pings: Vec<Duration> = self.asked.iter().map(|one| one.ping).collect();
        let (late, noise) = (quantile(&mut took, 0.999), quantile(&mut pings, 0.999));
        tell!(
            "{what}: {} answers, p50 {:?}, p99 {:?}, p99.9 {late:?}, longest {:?}; pings p99.9 {noise:?}",
            took.len(),
            quantile(&mut took, 0.5),
            quantile(&mut took, 0.99),
            quantile(&mut took, 1.0),
        );
        let cap = Duration::from_millis(50).max(Duration::from_millis(20) + 3 * noise);
        let longest = quantile(&mut took, 1.0);
        if late > cap {
            return Err(format!("{what}: p99.9 is {late:?}, more than {cap:?}"));
        } else if longest > Duration::from_secs(1) + 3 * noise {
            return Err(format!("{what}: one answer took {longest:?}"));
        }
        Ok(())
    }

    /// How late the machine itself is: answers that need no store, but for one in a thousand.
    pub(crate) fn noise(&self) -> Duration {
        quantile(&mut self.asked.iter().map(|one| one.ping).collect::<Vec<_>>(), 0.999)
    }

    /// Tells how long after `since` the store decided again, for the last of all clients; it must be soon.
    pub(crate) fn is_exact_again(&self, what: &str, since: Duration) -> Result<(), String> {
        let took = self.exact_again_after(since);
        tell!("{what}: exact again {took:?} after recovery");
        if took <= RECOVERED { Ok(()) } else { Err(format!("{what}: exact again only after {took:?}")) }
    }

    /// How long after `since` the store decided again, for the last of all clients for whom it did.
    pub(crate) fn exact_again_after(&self, since: Duration) -> Duration {
        let mut first: BTreeMap<usize, Option<Duration>> = BTreeMap::new();
        for one in self.asked.iter().filter(|one| one.at >= since) {
            let known = first.entry(one.client).or_default();
            if one.answer.is_exact() {
                known.get_or_insert(one.at - since);
            }
        }
        let all = first.values().map(|first| first.expect("the store decides again for every client"));
        all.max().expect("there are clients")
    }
}

pub(crate) fn quantile(spans: &mut [Duration], part: f64) -> Duration {
    spans.sort_unstable();
    let place = (spans.len() as f64 * part).ceil() as usize;
    spans[place.clamp(1, spans.len()) - 1]
}

/// A user whom nobody knows may pass exactly as often as the rule `exact` says, over all `nodes`. Where a busy machine
/// makes the store miss its deadline, another user is taken.
pub(crate) fn assert_exact(nodes: &[&Node], name: &str) {
    let mut clients: Vec<Client> = nodes.iter().map(|node| node.client()).collect();
    static ROUNDS: AtomicUsize = AtomicUsize::new(0);
    let decided = poll(PATIENCE, || {
        let round = ROUNDS.fetch_add(1, Ordering::Relaxed);
        let (user, count) = (format!("{name}-{round}"), clients.len());
        let answers: Vec<Answer> = (0..30)
            .map(|turn| check(&mut clients[turn % count], &[("policy", "exact"), ("user", &user)], 1))
            .collect();
        answers.iter().all(Answer::is_exact).then_some(answers)
    });
    let answers = decided.unwrap_or_else(|| panic!("{name}: the store never decided 30 requests in a row"));
    let admitted = answers.iter().filter(|answer| answer.allowed).count();
    assert_eq!(admitted, 20, "{name}: {answers:?}");
}
