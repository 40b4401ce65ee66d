//! The control plane's one thread never works for long: it has the node's heartbeat, `/healthz` and the signals, too.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::world::{CONFIGURED, Node};

/// Promised are 5 ms in a release build. A debug build takes about ten times as long, and what is looked for here took
/// thousands of times as long.
const LONGEST: Duration = Duration::from_millis(if cfg!(debug_assertions) { 60 } else { 5 });

fn many_rules(count: usize) -> String {
    let rule = |number| {
        format!(
            "  - {{ name: r{number}, match: {{ path: '/{number}/*' }}, key: [user, path], limits: [{number}/s, 9/m] }}\n"
        )
    };
    format!("domain: api\nrules:\n{}", (1..=count).map(rule).collect::<String>())
}

/// A connection on which this was asked.
fn asking(node: &Node, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> TcpStream {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut head = format!(
        "{method} /admin/v1{path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {CONFIGURED}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n",
        node.address,
        body.len()
    );
    headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
    let mut stream = TcpStream::connect(node.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
    stream.write_all(format!("{head}\r\n{body}").as_bytes()).unwrap();
    stream
}

/// The answer, however long a busy machine takes for work of low priority.
fn patiently(node: &Node, method: &str, path: &str, headers: &[(&str, &str)], body: &Value) -> String {
    let (mut stream, mut answer) = (asking(node, method, path, headers, body), Vec::new());
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// Method, path, headers and body.
type Asked<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], Value);

#[test]
fn control_thread_is_free_while_large_rules_are_worked_on() {
    let node = Node::keeping_decisions();
    let _ = node.check("ann");
    let documents = json!([{ "domain": "api", "text": many_rules(1_500) }]);
    let on = [("if-match", "\"1\"")];
    // Few rules of many bytes: to copy, hash or free them takes long, too.
    let long = format!("{}# {}\n", many_rules(10), "x".repeat(4 << 20));
    let long = json!([{ "domain": "api", "text": long }]);
    let then = [("if-match", "\"2\"")];
    let asks: [Asked<'_>; 13] = [
        ("POST", "/rules/validate", &[], json!({ "documents": documents })),
        ("POST", "/replay", &[], json!({ "documents": documents })),
        ("POST", "/replay/log", &[], json!({ "documents": documents, "html": true })),
        ("PUT", "/rules", &on, json!({ "documents": documents, "reason": "" })),
        ("GET", "/rules", &[], Value::Null),
        ("GET", "/rules/api/r7", &[], Value::Null),
        ("GET", "/versions/2", &[], Value::Null),
        ("GET", "/versions/2/diff", &[], Value::Null),
        ("POST", "/explain", &[], json!({ "domain": "api", "attributes": { "path": "/7/a" } })),
        ("PUT", "/rules", &then, json!({ "documents": long, "reason": "" })),
        ("GET", "/rules", &[], Value::Null),
        ("GET", "/versions/3", &[], Value::Null),
        ("POST", "/rules/validate", &[], json!({ "documents": long })),
    ];
    node.longest_turn();
    let mut long = Vec::new();
    for (method, path, headers, body) in asks {
        let answer = patiently(&node, method, path, headers, &body);
        assert!(answer.starts_with("HTTP/1.1 200"), "{method} {path}: {answer}");
        let longest = node.longest_turn();
        println!("{method} {path}: {longest:?}");
        if longest > LONGEST {
            long.push((method, path, longest));
        }
    }
    assert!(long.is_empty(), "{long:?}");
}

#[expect(clippy::disallowed_methods, reason = "it measures how long real answers take")]
fn now() -> Instant {
    Instant::now()
}

/// Those of one caller run one after another, so that what comes last shows whether those before it still run.
fn end_when_their_clients_hang_up(node: &Node, jobs: u32, long: &Asked<'_>, short: &Asked<'_>) {
    let ask = |(method, path, headers, body): &Asked<'_>| asking(node, method, path, headers, body);
    let (_, path, ..) = long;
    tidegate_testkit::in_three_tries(|| {
        let began = now();
        let mut alone = Vec::new();
        ask(long).read_to_end(&mut alone).unwrap();
        assert!(alone.starts_with(b"HTTP/1.1 200"), "{path}: {}", String::from_utf8_lossy(&alone));
        let one = began.elapsed();
        let jobs: Vec<TcpStream> = (0..jobs).map(|_| ask(long)).collect();
        // Their bodies must be read before it is its turn to wait.
        std::thread::park_timeout(one / 4);
        let mut last = ask(short);
        last.set_read_timeout(Some(one)).unwrap();
        let mut answer = [0; 64];
        if last.read(&mut answer).is_ok() {
            return Err(format!("{path}: it did not wait for the others"));
        }
        let all = one * u32::try_from(jobs.len()).unwrap();
        for job in jobs {
            // A reset, as of a client that is killed or gives up without reading.
            socket2::SockRef::from(&job).set_linger(Some(Duration::ZERO)).unwrap();
        }
        let hung_up = now();
        last.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let read = last.read(&mut answer).unwrap();
        assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
        let took = hung_up.elapsed();
        match took < all / 3 {
            true => Ok(()),
            false => Err(format!("{path}: {took:?} after all left, where each takes {one:?}")),
        }
    });
}

#[test]
fn jobs_of_clients_that_hang_up_end_and_are_not_waited_for() {
    let node = Node::start();
    let documents = json!({ "documents": [{ "domain": "api", "text": many_rules(1_500) }] });
    let rules: Asked<'_> = ("GET", "/rules", &[], Value::Null);
    end_when_their_clients_hang_up(&node, 12, &("POST", "/rules/validate", &[], documents), &rules);
}

/// A log of some seconds of work: its lines, and the requests that each stands for.
const LINES: u64 = 100;
const REQUESTS: u64 = 1_000;

/// Of replays one caller may have four at once, and one of them is the last.
#[test]
fn replays_of_clients_that_hang_up_end_and_are_not_waited_for() {
    let node = Node::keeping_decisions();
    let _ = node.check("ann");
    let rules = json!([{ "domain": "api", "text": many_rules(1_500) }]);
    let line = |user| {
        format!(
            r#"{{"time_us":{},"domain":"api","verdict":"admitted","n":{REQUESTS},"attributes":{{"user":"{user}"}}}}"#,
            1_800_057_600_000_000_u64 + user
        )
    };
    let log = |lines| (0..lines).map(line).collect::<Vec<_>>().join("\n");
    let short: Asked<'_> = ("POST", "/replay/log", &[], json!({ "log": log(1) }));
    for long in [
        ("POST", "/replay", &[][..], json!({ "documents": rules })),
        ("POST", "/replay/log", &[][..], json!({ "log": log(LINES) })),
    ] {
        end_when_their_clients_hang_up(&node, 3, &long, &short);
    }
}
