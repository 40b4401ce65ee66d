//! Rules that follow feature flags: from a file, and from a server with OpenFeature's remote evaluation protocol.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_testkit::{TidegateServer, eventually, http};

use crate::redis_world::{BINARY, PATIENCE};
use crate::run_in;

/// One request a minute while the flag is on, five otherwise.
const RULES: &str = "\
domain: api
rules:
  - { name: usual, key: [user], limits: [5/minute] }
  - { name: strict, when: { flag: new-limits }, key: [user], limits: [1/minute], overrides: [usual] }
";

fn start(section: &str) -> (TidegateServer, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    fs::write(dir.path().join("flags.yaml"), "new-limits: false\n").unwrap();
    let config = format!(
        "listen: {{ http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }}\n\
         rules: {{ paths: [rules.yaml] }}\ndrain: {{ delay: 0s }}\n{section}\n"
    );
    let file = dir.path().join("tidegate.yaml");
    fs::write(&file, config).unwrap();
    (TidegateServer::start(BINARY, &["--config", file.to_str().unwrap()]), dir)
}

/// The rule that decides, asked without spending.
fn deciding(server: &mut TidegateServer) -> String {
    let body = "{\"domain\":\"api\",\"attributes\":{\"user\":\"42\"},\"cost\":0}";
    let answer = http::post_json(server.addr("http"), "/v1/check", body);
    let answer: Value = serde_json::from_str(&answer.text()).unwrap();
    answer["rule"].as_str().unwrap_or_default().to_owned()
}

fn metric(server: &mut TidegateServer, name: &str) -> Option<String> {
    let text = http::get(server.addr("admin"), "/metrics").text();
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
}

/// A flag server as flagd and others are: it evaluates all flags, and says with an ETag that none has changed.
struct Ofrep {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    flags: Vec<(&'static str, Value)>,
    is_silent: bool,
    questions: Vec<String>,
    not_modified: usize,
}

impl Ofrep {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(Mutex::new(State::default()));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                answer(&stream.unwrap(), &shared);
            }
        });
        Ofrep { address, state }
    }

    fn set(&self, flags: &[(&'static str, Value)]) {
        self.state.lock().unwrap().flags = flags.to_vec();
    }
}

fn answer(mut stream: &TcpStream, state: &Mutex<State>) {
    let (mut request, mut part) = (Vec::new(), [0; 4096]);
    let whole = loop {
        let length = stream.read(&mut part).unwrap_or(0);
        request.extend_from_slice(&part[..length]);
        let text = String::from_utf8_lossy(&request).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .to_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ").map(str::to_owned));
            if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
                break text;
            }
        }
        if length == 0 {
            return;
        }
    };
    let mut state = state.lock().unwrap();
    state.questions.push(whole.clone());
    if state.is_silent {
        return;
    }
    let flags: Vec<Value> = state
        .flags
        .iter()
        .map(|(key, value)| json!({ "key": key, "value": value, "reason": "STATIC" }))
        .collect();
    let body = json!({ "flags": flags }).to_string();
    let etag =
        format!("\"{:x}\"", body.bytes().fold(7_u64, |sum, byte| sum.wrapping_mul(31) + u64::from(byte)));
    let answer = if whole.contains(&etag) {
        state.not_modified += 1;
        "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n".to_owned()
    } else {
        format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\netag: {etag}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
            body.len()
        )
    };
    let _ = stream.write_all(answer.as_bytes());
}

#[test]
fn rule_follows_the_flag_in_a_file() {
    let (mut server, dir) = start("flags: { file: flags.yaml }");
    assert_eq!(deciding(&mut server), "usual");
    fs::write(dir.path().join("flags.yaml"), "new-limits: true\n").unwrap();
    eventually("the flag is on", PATIENCE, || deciding(&mut server) == "strict");
    assert_eq!(metric(&mut server, "tidegate_flag_on{flag=\"new-limits\"} ").as_deref(), Some("1"));
    // A file with a mistake changes nothing, and says so.
    fs::write(dir.path().join("flags.yaml"), "new-limits: perhaps\n").unwrap();
    eventually("the mistake is seen", PATIENCE, || {
        metric(&mut server, "tidegate_flag_source_up ").as_deref() == Some("0")
    });
    assert_eq!(deciding(&mut server), "strict");
}

#[test]
fn rule_follows_an_ofrep_server_that_falls_silent() {
    let flags = Ofrep::start();
    flags.set(&[("new-limits", json!(true)), ("theme", json!("dark"))]);
    let section = format!(
        "flags: {{ ofrep: {{ url: 'http://{}', every: 200ms, context: {{ environment: test }}, headers: {{ authorization: secret }} }} }}",
        flags.address
    );
    let (mut server, _dir) = start(&section);
    // It was asked before the server listened.
    assert_eq!(deciding(&mut server), "strict");
    {
        let state = flags.state.lock().unwrap();
        let question = &state.questions[0];
        assert!(question.starts_with("POST /ofrep/v1/evaluate/flags HTTP/1.1"), "{question}");
        assert!(
            question.contains("\"targetingKey\":\"tidegate\"")
                && question.contains("\"environment\":\"test\"")
        );
        assert!(question.to_lowercase().contains("authorization: secret"), "{question}");
    }
    eventually("an unchanged answer is not sent again", PATIENCE, || {
        flags.state.lock().unwrap().not_modified > 0
    });
    flags.set(&[("new-limits", json!(false))]);
    eventually("the flag is off", PATIENCE, || deciding(&mut server) == "usual");
    flags.state.lock().unwrap().is_silent = true;
    eventually("the silence is seen", PATIENCE, || {
        metric(&mut server, "tidegate_flag_source_up ").as_deref() == Some("0")
    });
    assert_eq!(deciding(&mut server), "usual", "the last answer holds");
    flags.set(&[]);
    flags.state.lock().unwrap().is_silent = false;
    eventually("it answers again", PATIENCE, || {
        metric(&mut server, "tidegate_flag_source_up ").as_deref() == Some("1")
    });
    eventually("the flag is unknown", PATIENCE, || {
        metric(&mut server, "tidegate_flag_on{flag=\"new-limits\"} ").is_none()
    });
    assert_eq!(deciding(&mut server), "usual", "the default holds");
}

#[test]
fn server_of_flags_that_is_down_leaves_the_defaults() {
    let (mut server, _dir) = start("flags: { ofrep: { url: 'http://127.0.0.1:9', every: 1s } }");
    assert_eq!(deciding(&mut server), "usual");
}

#[test]
fn explanation_reads_the_file_of_flags() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("rules.yaml"), RULES).unwrap();
    fs::write(dir.path().join("flags.yaml"), "new-limits: true\n").unwrap();
    fs::write(dir.path().join("t.yaml"), "{ rules: { paths: [rules.yaml] }, flags: { file: flags.yaml } }")
        .unwrap();
    let explain = ["explain", "--domain", "api", "user=42"];
    let with = run_in(dir.path(), &[&explain[..], &["--config", "t.yaml"]].concat());
    assert!(with.contains("strict: counts") && with.contains("the flag `new-limits` is on"), "{with}");
    let without = run_in(dir.path(), &[&explain[..], &["--rules", "rules.yaml", "--all"]].concat());
    assert!(
        without.contains("strict: is off: the flag `new-limits` is unknown, and off by default"),
        "{without}"
    );
    fs::write(dir.path().join("flags.yaml"), "new-limits: perhaps\n").unwrap();
    let wrong = run_in(dir.path(), &["validate", "--config", "t.yaml"]);
    assert!(wrong.starts_with("exit 2") || wrong.starts_with("exit 1"), "{wrong}");
    assert!(wrong.contains("feature flags in flags.yaml"), "{wrong}");
}
