//! Limits over xDS, from a small management server that behaves as go-control-plane's does behind Envoy Gateway: one aggregated
//! stream, every answer with all limits, and the next one only after a change.

use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use prost::Message as _;
use serde_json::Value;
use tempfile::TempDir;
use tidegate_testkit::{TidegateServer, eventually, http};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::redis_world::{BINARY, PATIENCE};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Asked {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, optional, tag = "2")]
    node: Option<Node>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
    #[prost(message, optional, tag = "6")]
    error: Option<Refusal>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Node {
    #[prost(string, tag = "1")]
    id: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Refusal {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Answered {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<Resource>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Resource {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Config {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    domain: String,
    #[prost(message, repeated, tag = "3")]
    descriptors: Vec<Descriptor>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
    #[prost(message, optional, tag = "3")]
    rate_limit: Option<Policy>,
    #[prost(bool, tag = "5")]
    shadow_mode: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Policy {
    #[prost(int32, tag = "1")]
    unit: i32,
    #[prost(uint32, tag = "2")]
    requests: u32,
}

/// The limits of one version: five a minute for each user, for example.
pub(crate) fn limits(keys: &[&str], requests: u32) -> Vec<Resource> {
    let policy = Policy { unit: 2, requests };
    let descriptor = |key: &&str| Descriptor {
        key: (*key).to_owned(),
        rate_limit: Some(policy.clone()),
        ..Descriptor::default()
    };
    resources(keys.iter().map(descriptor).collect())
}

fn resources(descriptors: Vec<Descriptor>) -> Vec<Resource> {
    let config = Config { name: "gateway".into(), domain: "edge".into(), descriptors };
    vec![Resource { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }]
}

/// A limit of this many requests a `unit`, for all who have this value.
fn shared(value: &str, unit: i32, requests: u32) -> Descriptor {
    let rate_limit = Some(Policy { unit, requests });
    Descriptor { key: "shared".into(), value: value.into(), rate_limit, shadow_mode: false }
}

/// What the server has now; a new generation ends all connections.
#[derive(Clone)]
struct Snapshot {
    version: u32,
    resources: Vec<Resource>,
    generation: u32,
}

pub(crate) struct Management {
    pub(crate) address: SocketAddr,
    snapshot: watch::Sender<Snapshot>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Management {
    fn start(resources: Vec<Resource>) -> Self {
        Management::over(None, resources)
    }

    /// One that speaks TLS, if this is given.
    pub(crate) fn over(tls: Option<TlsAcceptor>, resources: Vec<Resource>) -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let (snapshot, seen) = watch::channel(Snapshot { version: 1, resources, generation: 0 });
        let asked = Arc::<Mutex<Vec<Asked>>>::default();
        let shared = asked.clone();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = TcpListener::from_std(listener).unwrap();
                while let Ok((socket, _)) = listener.accept().await {
                    let (seen, shared) = (seen.clone(), shared.clone());
                    match tls.clone() {
                        None => drop(tokio::spawn(connection(socket, seen, shared))),
                        Some(tls) => drop(tokio::spawn(async move {
                            // Whoever is not let in sees why.
                            let Ok(stream) = tls.accept(socket).await else { return };
                            connection(stream, seen, shared).await;
                        })),
                    }
                }
            });
        });
        Management { address, snapshot, asked }
    }

    fn publish(&self, resources: Vec<Resource>) {
        self.snapshot.send_modify(|now| {
            now.version += 1;
            now.resources = resources;
        });
    }

    fn cut(&self) {
        self.snapshot.send_modify(|now| now.generation += 1);
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

async fn connection<S: AsyncRead + AsyncWrite + Unpin>(
    socket: S,
    seen: watch::Receiver<Snapshot>,
    asked: Arc<Mutex<Vec<Asked>>>,
) {
    let generation = seen.borrow().generation;
    let mut ends = seen.clone();
    let Ok(mut connection) = h2::server::handshake(socket).await else { return };
    let serving = async {
        while let Some(Ok((request, respond))) = connection.accept().await {
            tokio::spawn(answer_all(request, respond, seen.clone(), asked.clone()));
        }
    };
    let cut = async { drop(ends.wait_for(|now| now.generation != generation).await) };
    tokio::select! { () = serving => {}, () = cut => {} }
}

/// Answers one stream as a snapshot cache does: what the client does not have, at once, then whatever changes.
async fn answer_all(
    request: ::http::Request<h2::RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    mut seen: watch::Receiver<Snapshot>,
    asked: Arc<Mutex<Vec<Asked>>>,
) {
    let path = request.uri().path().to_owned();
    assert_eq!(path, "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources");
    let head = ::http::Response::builder().header("content-type", "application/grpc").body(()).unwrap();
    let mut answers = respond.send_response(head, false).unwrap();
    let (mut body, mut buffer, mut has) = (request.into_body(), BytesMut::new(), None::<String>);
    loop {
        tokio::select! {
            data = body.data() => {
                let Some(Ok(data)) = data else { return };
                let _ = body.flow_control().release_capacity(data.len());
                buffer.extend_from_slice(&data);
                while let Some(message) = message(&mut buffer) {
                    let message = Asked::decode(message).unwrap();
                    if has.is_none() {
                        has = Some(message.version.clone());
                    }
                    asked.lock().unwrap().push(message);
                }
            }
            changed = seen.changed() => if changed.is_err() { return },
        }
        let now = seen.borrow_and_update().clone();
        let version = now.version.to_string();
        if has.as_ref().is_some_and(|has| *has != version) {
            let nonce = format!("nonce-{version}");
            let answer = Answered {
                version: version.clone(),
                resources: now.resources,
                type_url: TYPE_URL.into(),
                nonce,
            };
            if answers.send_data(framed(&answer), false).is_err() {
                return;
            }
            has = Some(version);
        }
    }
}

/// The next message of a gRPC stream: a byte that says whether it is compressed, its length, and itself.
fn message(buffer: &mut BytesMut) -> Option<Bytes> {
    let length = u32::from_be_bytes(buffer.get(1..5)?.try_into().unwrap()) as usize;
    if buffer.len() < 5 + length {
        return None;
    }
    buffer.advance(5);
    Some(buffer.split_to(length).freeze())
}

fn framed(answer: &Answered) -> Bytes {
    let bytes = answer.encode_to_vec();
    let mut frame = BytesMut::new();
    frame.put_u8(0);
    frame.put_u32(u32::try_from(bytes.len()).unwrap());
    frame.put_slice(&bytes);
    frame.freeze()
}

fn start(address: SocketAddr) -> (TidegateServer, TempDir) {
    start_with(&format!("address: '{address}', node_id: test-eg"))
}

/// A server whose section `rls.xds` has these fields.
pub(crate) fn start_with(fields: &str) -> (TidegateServer, TempDir) {
    start_beside(fields, None)
}

/// The same beside a file with these rules.
fn start_beside(fields: &str, rules: Option<&str>) -> (TidegateServer, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let mut config = format!(
        "listen: {{ http: '127.0.0.1:0', grpc: off, resp: off, admin: '127.0.0.1:0' }}\n\
         drain: {{ delay: 0s }}\nrls: {{ xds: {{ {fields} }} }}\n"
    );
    if let Some(rules) = rules {
        fs::write(dir.path().join("rules.yaml"), rules).unwrap();
        config += "rules: { paths: [rules.yaml] }\n";
    }
    let file = dir.path().join("tidegate.yaml");
    fs::write(&file, config).unwrap();
    (TidegateServer::start(BINARY, &["--config", file.to_str().unwrap()]), dir)
}

/// The limit of a user, asked without spending.
pub(crate) fn limit_of(server: &mut TidegateServer) -> Option<u64> {
    limit_in("edge", server)
}

fn limit_in(domain: &str, server: &mut TidegateServer) -> Option<u64> {
    let body = format!("{{\"domain\":\"{domain}\",\"attributes\":{{\"user\":\"42\"}},\"cost\":0}}");
    let answer = http::post_json(server.addr("http"), "/v1/check", &body);
    serde_json::from_str::<Value>(&answer.text()).ok()?["limit"].as_u64()
}

#[test]
fn limits_from_xds_are_in_force_and_acknowledged() {
    let management = Management::start(limits(&["user"], 5));
    let (mut server, _dir) = start(management.address);
    assert_eq!(limit_of(&mut server), Some(5), "they came before the server listened");
    eventually("the answer is acknowledged", PATIENCE, || management.asked().len() == 2);
    let [first, acknowledged] = management.asked().try_into().unwrap();
    assert_eq!((first.version.as_str(), first.nonce.as_str(), first.type_url.as_str()), ("", "", TYPE_URL));
    assert_eq!(first.node.unwrap().id, "test-eg");
    assert_eq!((acknowledged.version.as_str(), acknowledged.nonce.as_str()), ("1", "nonce-1"));
    assert_eq!(acknowledged.error, None);
    management.publish(limits(&["user"], 9));
    eventually("the new limit is in force", PATIENCE, || limit_of(&mut server) == Some(9));
}

/// Envoy Gateway admits at most 128 shared rules in a policy of its own; the message has no such limit.
#[test]
fn hundreds_of_shared_rules_with_every_unit_and_any_cost_are_in_force() {
    // Second, minute, hour, day, month, year and week, as the message numbers them.
    let mut descriptors: Vec<Descriptor> =
        (0..300).map(|rule| shared(&format!("rule-{rule}"), rule % 7 + 1, 10)).collect();
    descriptors.push(shared("jobs", 6, 100));
    let management = Management::start(resources(descriptors));
    let (mut server, _dir) = start(management.address);
    let listing = http::get(server.addr("admin"), "/rlconfig").text();
    assert_eq!(listing.lines().count(), 301, "{listing}");
    for (rule, unit) in [(0, "SECOND"), (4, "MONTH"), (299, "YEAR"), (6, "WEEK")] {
        let line = format!("edge.shared_rule-{rule}: unit={unit} requests_per_unit=10, shadow_mode: false");
        assert!(listing.contains(&line), "{line}: {listing}");
    }
    // Of a hundred jobs a year: 60 at once, 60 more do not fit, and 40 do.
    let mut spend = |hits: u32| {
        let body = format!(
            "{{\"domain\":\"edge\",\"hitsAddend\":{hits},\"descriptors\":[{{\"entries\":[{{\"key\":\"shared\",\"value\":\"jobs\"}}]}}]}}"
        );
        http::post_json(server.addr("http"), "/json", &body).status
    };
    assert_eq!(spend(60), 200);
    assert_eq!(spend(60), 429);
}

#[test]
fn limits_with_a_mistake_are_refused_and_the_last_ones_stay() {
    let management = Management::start(limits(&["user"], 5));
    let (mut server, _dir) = start(management.address);
    // The same descriptor twice: envoyproxy/ratelimit refuses that too.
    management.publish(limits(&["user", "user"], 7));
    eventually("the answer is refused", PATIENCE, || management.asked().len() == 3);
    let refused = management.asked().pop().unwrap();
    assert_eq!(
        (refused.version.as_str(), refused.nonce.as_str()),
        ("1", "nonce-2"),
        "what is in force, and what is refused"
    );
    let reason = refused.error.unwrap();
    assert_eq!(reason.code, 3);
    assert!(
        reason.message.contains("xds:gateway") && reason.message.contains("two descriptors here are `user`"),
        "{reason:?}"
    );
    assert_eq!(limit_of(&mut server), Some(5));
    let metrics = http::get(server.addr("admin"), "/metrics").text();
    assert!(metrics.contains("tidegate_xds_updates_total{result=\"refused\"} 1"), "{metrics}");
    management.publish(limits(&["user"], 8));
    eventually("the mended limit is in force", PATIENCE, || limit_of(&mut server) == Some(8));
}

#[test]
fn lost_stream_is_opened_again_from_the_last_version() {
    let management = Management::start(limits(&["user"], 5));
    let (mut server, _dir) = start(management.address);
    eventually("the answer is acknowledged", PATIENCE, || management.asked().len() == 2);
    management.cut();
    eventually("it asks again", PATIENCE, || management.asked().len() == 3);
    assert_eq!(limit_of(&mut server), Some(5), "the last limits stay meanwhile");
    let again = management.asked().pop().unwrap();
    assert_eq!((again.version.as_str(), again.nonce.as_str()), ("1", ""), "it says what it has");
    management.publish(limits(&["user"], 6));
    eventually("the new limit is in force", PATIENCE, || limit_of(&mut server) == Some(6));
}

#[test]
fn server_without_its_limits_yet_is_not_ready() {
    let (mut server, _dir) = start("127.0.0.1:9".parse().unwrap());
    let ready = http::get(server.addr("http"), "/readyz");
    assert_eq!((ready.status, ready.text().as_str()), (503, "no rules\n"));
}

/// Every 90 seconds: a window that the message has no unit for.
const CUSTOM: &str = "domain: custom\nrules: [{ name: per-user, key: [user], limits: [{ algorithm: fixed_window, limit: 7, window: 90s }] }]\n";

#[test]
fn rule_files_beside_xds_have_windows_of_their_own_and_each_changes_alone() {
    let management = Management::start(limits(&["user"], 5));
    let (mut server, dir) =
        start_beside(&format!("address: '{}', node_id: test-eg", management.address), Some(CUSTOM));
    assert_eq!((limit_of(&mut server), limit_in("custom", &mut server)), (Some(5), Some(7)));
    let ninety = "{\"domain\":\"custom\",\"attributes\":{\"user\":\"42\"}}";
    let answer = http::post_json(server.addr("http"), "/v1/check", ninety);
    assert!(
        answer.header("ratelimit-policy").is_some_and(|policy| policy.contains("q=7;w=90")),
        "{answer:?}"
    );
    management.publish(limits(&["user"], 9));
    eventually("the pushed limit is in force", PATIENCE, || limit_of(&mut server) == Some(9));
    assert_eq!(limit_in("custom", &mut server), Some(7), "the file's rules are gone");
    fs::write(dir.path().join("rules.yaml"), CUSTOM.replace("limit: 7", "limit: 8")).unwrap();
    eventually("the file's limit is in force", PATIENCE, || limit_in("custom", &mut server) == Some(8));
    assert_eq!(limit_of(&mut server), Some(9), "the pushed limits are gone");
}

#[test]
fn domain_of_a_file_and_of_xds_is_a_mistake_that_names_both() {
    let management = Management::start(limits(&["user"], 5));
    let fields = format!("address: '{}', node_id: test-eg", management.address);
    let (mut server, _dir) = start_beside(&fields, Some(&CUSTOM.replace("custom", "edge")));
    eventually("the answer is refused", PATIENCE, || management.asked().len() == 2);
    let reason = management.asked().pop().unwrap().error.unwrap().message;
    for named in ["the domain `edge` is given twice", "xds:gateway", "rules.yaml"] {
        assert!(reason.contains(named), "{named}: {reason}");
    }
    assert_eq!(limit_of(&mut server), Some(7), "the file's rules stay");
}

#[test]
fn shadow_limit_over_xds_refuses_nobody_and_counts_whom_it_would() {
    let shadow = Descriptor { shadow_mode: true, ..shared("jobs", 4, 1) };
    let management = Management::start(resources(vec![shadow]));
    let (mut server, _dir) = start(management.address);
    let body = "{\"domain\":\"edge\",\"attributes\":{\"shared\":\"jobs\"}}";
    for _ in 0..3 {
        assert_eq!(http::post_json(server.addr("http"), "/v1/check", body).status, 200);
    }
    let metrics = http::get(server.addr("admin"), "/metrics").text();
    let counted = metrics.lines().find(|line| {
        line.starts_with("tidegate_decisions_total{") && line.contains("result=\"shadow_refused\"")
    });
    assert!(counted.is_some_and(|line| line.contains("shared_jobs") && line.ends_with(" 2")), "{metrics}");
}
