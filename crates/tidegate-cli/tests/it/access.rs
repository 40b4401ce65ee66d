//! Who may ask a running server: the real binary on real sockets.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tidegate_server::rls::rate_limit_service_client::RateLimitServiceClient;
use tidegate_server::rls::{Entry, RateLimitDescriptor, RateLimitRequest};
use tidegate_testkit::resp::Client;
use tidegate_testkit::{TidegateServer, eventually, http};
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};

use crate::certificates::HTTP_2;
use crate::run_in;

pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_tidegate");
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const FREE: [&str; 8] =
    ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
const TOKEN: &str = "a-token-of-the-gateways";
/// `printf %s another-token-of-theirs | sha256sum`
const OTHER: &str = "another-token-of-theirs";

/// A server with this configuration, on free ports.
pub(crate) fn serve(dir: &Path, config: &str, env: &[(&str, &str)]) -> TidegateServer {
    let file = dir.join("tidegate.yaml");
    fs::write(&file, config).unwrap();
    let args = [&["--config", file.to_str().unwrap()][..], &FREE].concat();
    TidegateServer::start_with_env(BINARY, &args, &[&[("TIDEGATE_DRAIN__DELAY", "0s")], env].concat())
}

#[test]
fn a_token_is_needed_where_tokens_are_configured_and_any_of_them_will_do() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokens"), format!("{OTHER}\n")).unwrap();
    let config = format!("access: {{ tokens: [{TOKEN}], tokens_file: tokens }}");
    let mut server = serve(dir.path(), &config, &[]);
    let address = server.addr("http");
    let body = br#"{"domain":"api","attributes":{"user":"42"},"cost":0}"#;
    let ask = |header: Option<(&str, &str)>, path: &str| {
        let headers = [header, Some(("content-type", "application/json"))];
        let headers: Vec<_> = headers.into_iter().flatten().collect();
        http::request(address, "POST", path, &headers, body).unwrap()
    };
    let bearer = |token: &str| format!("Bearer {token}");
    assert_eq!(ask(Some(("authorization", &bearer(TOKEN))), "/v1/check").status, 200);
    assert_eq!(ask(Some(("authorization", &bearer(OTHER))), "/v1/check").status, 200);
    assert_eq!(ask(Some(("x-tidegate-token", TOKEN)), "/v1/check").status, 200);
    for wrong in [None, Some(("authorization", "Bearer wrong")), Some(("x-tidegate-token", "wrong"))] {
        let refused = ask(wrong, "/v1/check");
        assert_eq!((refused.status, refused.header("www-authenticate")), (401, Some("Bearer")));
        assert_eq!(refused.json()["type"], "urn:tidegate:problem:unauthorized");
        assert!(refused.json()["hint"].as_str().unwrap().contains("Bearer"), "{}", refused.text());
    }
    // What a gateway asks about has its client's Authorization, so ours stands elsewhere.
    assert_eq!(ask(Some(("authorization", &bearer(TOKEN))), "/v1/auth?domain=api").status, 401);
    assert_ne!(ask(Some(("x-tidegate-token", TOKEN)), "/v1/auth?domain=api").status, 401);
    assert_eq!(http::get(address, "/readyz").status, 200);
    // Rotation: the file alone changes.
    fs::write(dir.path().join("tokens"), "a-third-token-of-them\n").unwrap();
    // Asked for with the old one: the new one would be a wrong guess until it is read, and guesses are slowed down.
    eventually("the old one is refused", PATIENCE, || {
        ask(Some(("authorization", &bearer(OTHER))), "/v1/check").status == 401
    });
    assert_eq!(ask(Some(("authorization", &bearer("a-third-token-of-them"))), "/v1/check").status, 200);
    let metrics = http::get(server.addr("admin"), "/metrics").text();
    assert!(metrics.contains("tidegate_refused_logins_total{listener=\"http_grpc\"}"), "{metrics}");
    assert!(server.stderr().contains("refused: "), "{}", server.stderr());
}

/// Envoy's question with this metadata; the code of the refusal where it is refused.
async fn ask_grpc(channel: Channel, key: &'static str, value: Option<&str>) -> Result<(), tonic::Status> {
    let entry = Entry { key: "user".to_owned(), value: b"42".to_vec().into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    let question = RateLimitRequest {
        domain: "api".to_owned(),
        descriptors: vec![descriptor],
        ..RateLimitRequest::default()
    };
    let mut request = tonic::Request::new(question);
    if let Some(value) = value {
        request.metadata_mut().insert(key, MetadataValue::try_from(value).unwrap());
    }
    RateLimitServiceClient::new(channel).should_rate_limit(request).await.map(drop)
}

/// The same on a connection of its own, waited for.
pub(crate) fn ask_grpc_once(
    address: SocketAddr,
    key: &'static str,
    value: Option<&str>,
) -> Result<(), tonic::Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
        ask_grpc(channel, key, value).await
    })
}

#[test]
fn grpc_wants_a_token_too_and_any_of_several_will_do_while_they_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tokens"), format!("{OTHER}\n")).unwrap();
    let config = format!("access: {{ tokens: [{TOKEN}], tokens_file: tokens }}");
    let mut server = serve(dir.path(), &config, &[]);
    let address = server.addr("grpc");
    let ask = |key: &'static str, value: Option<&str>| {
        ask_grpc_once(address, key, value).map_err(|status| (status.code(), status.message().to_owned()))
    };
    let bearer = |token: &str| format!("Bearer {token}");
    for right in [TOKEN, OTHER] {
        assert_eq!(ask("authorization", Some(&bearer(right))), Ok(()));
        assert_eq!(ask("x-tidegate-token", Some(right)), Ok(()));
    }
    let missing = ask("authorization", None).unwrap_err();
    assert_eq!(missing, (tonic::Code::Unauthenticated, "no token was given".to_owned()));
    for wrong in ["Bearer wrong", &bearer("a-token-of-the-gateway"), TOKEN, "Basic YTpi"] {
        let (code, message) = ask("authorization", Some(wrong)).unwrap_err();
        assert_eq!(code, tonic::Code::Unauthenticated, "{wrong}: {message}");
    }
    // Rotation: one goes, another comes, and the one of the configuration stays.
    fs::write(dir.path().join("tokens"), "a-third-token-of-them\n").unwrap();
    eventually("the new one is accepted", PATIENCE, || {
        ask("authorization", Some(&bearer("a-third-token-of-them"))).is_ok()
    });
    assert_eq!(ask("authorization", Some(&bearer(OTHER))).unwrap_err().0, tonic::Code::Unauthenticated);
    assert_eq!(ask("authorization", Some(&bearer(TOKEN))), Ok(()));
    // Health is for everybody: load balancers have no token.
    assert_eq!(crate::stopping::grpc_health(address), Some(1));
}

#[test]
fn guessing_a_password_is_slowed_down_logged_and_limited() {
    let dir = tempfile::tempdir().unwrap();
    let users = "resp: { users: [{ name: app, passwords: [old-one, sha256:\
                 ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad] }] }";
    let mut server = serve(dir.path(), users, &[]);
    let address = server.addr("resp");
    for right in ["old-one", "abc"] {
        let mut client = Client::connect(address);
        assert_eq!(client.cmd(&["AUTH", "app", right]).text(), "OK");
    }
    // A hundred guesses in one packet on each of five connections: three of each are looked at, ten in all.
    let guesses = "AUTH app wrong\r\n".repeat(100);
    let connections: Vec<_> = (0..5)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.write_all(guesses.as_bytes()).unwrap();
            stream
        })
        .collect();
    let replies: usize = connections
        .into_iter()
        .map(|mut stream| {
            let mut told = Vec::new();
            let _ = stream.read_to_end(&mut told);
            String::from_utf8(told).unwrap().matches("WRONGPASS").count()
        })
        .sum();
    assert!(replies <= 15, "{replies} guesses were answered");
    let refused = Client::connect(address).cmd(&["AUTH", "app", "old-one"]);
    assert!(refused.text().contains("too many wrong passwords"), "{}", refused.text());
    let log = server.stderr();
    assert_eq!(log.matches("wrong password").count(), 1, "{log}");
    let metrics = http::get(server.addr("admin"), "/metrics").text();
    assert!(metrics.contains("tidegate_refused_logins_total{listener=\"resp\"}"), "{metrics}");
}

#[test]
fn an_admin_listener_beyond_loopback_is_refused_without_a_token_and_wants_it_with_one() {
    let dir = tempfile::tempdir().unwrap();
    let refused = run_in(dir.path(), &["serve", "--admin", "0.0.0.0:0", "--http", "127.0.0.1:0"]);
    assert!(refused.contains("exit 1") && refused.contains("admin.tokens"), "{refused}");
    let (config, rules) = (dir.path().join("tidegate.yaml"), dir.path().join("rules.yaml"));
    fs::write(&config, format!("admin: {{ tokens: [{TOKEN}] }}\nrules: {{ paths: [rules.yaml] }}")).unwrap();
    fs::write(rules, "{ domain: api, rules: [{ name: a, limits: [7/s] }] }").unwrap();
    let args = ["--config", config.to_str().unwrap(), "--admin", "0.0.0.0:0", "--http", "127.0.0.1:0"];
    let args = [&args[..], &["--grpc", "off", "--resp", "off"]].concat();
    let mut server = TidegateServer::start(BINARY, &args);
    let address = SocketAddr::from(([127, 0, 0, 1], server.addr("admin").port()));
    assert_eq!(http::get(address, "/healthz").status, 200);
    let bearer = format!("Bearer {TOKEN}");
    for (path, says) in
        [("/metrics", "tidegate_build_info"), ("/rlconfig", "api.a: unit=SECOND requests_per_unit=7,")]
    {
        assert_eq!(http::get(address, path).status, 401, "{path}");
        let answer = http::request(address, "GET", path, &[("authorization", &bearer)], b"").unwrap();
        assert!(answer.status == 200 && answer.text().contains(says), "{path}: {}", answer.text());
    }
}

#[test]
fn guesses_at_admin_tokens_share_one_limit_whichever_way_in() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("tidegate.yaml");
    fs::write(&config, format!("admin: {{ tokens: [{TOKEN}] }}")).unwrap();
    let args = ["--config", config.to_str().unwrap(), "--admin", "0.0.0.0:0", "--http", "127.0.0.1:0"];
    let args = [&args[..], &["--grpc", "off", "--resp", "off"]].concat();
    let data = dir.path().join("data");
    let env = [("TIDEGATE_DATA", data.to_str().unwrap())];
    let mut server = TidegateServer::start_with_env(BINARY, &args, &env);
    let address = SocketAddr::from(([127, 0, 0, 1], server.addr("admin").port()));
    let log = server.stderr();
    assert_eq!(log.matches("in the clear beyond this machine").count(), 1, "{log}");
    let with = |path: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        http::request(address, "GET", path, &[("authorization", &bearer)], b"").unwrap().status
    };
    let log_in = || http::post_json(address, "/admin/v1/session", r#"{"token":"wrong"}"#).status;
    let guess = |number: usize| match number % 3 {
        0 => with("/metrics", "wrong"),
        1 => with("/admin/v1/rules", "wrong"),
        _ => log_in(),
    };
    // One is given back every six seconds: a slow machine may have a few more, and no way in has ten of its own.
    let before = (0..30).take_while(|number| guess(*number) == 401).count();
    assert!((10..20).contains(&before), "{before} guesses were looked at");
    for path in ["/metrics", "/admin/v1/rules"] {
        assert_eq!(with(path, TOKEN), 429, "{path}");
    }
}

#[test]
fn a_pipe_that_nobody_writes_to_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let made = std::process::Command::new("mkfifo").arg(dir.path().join("rules.yaml")).status().unwrap();
    assert!(made.success());
    for args in [
        &["validate", "rules.yaml"][..],
        &["validate", "--config", "rules.yaml"],
        &["serve", "--rules", "rules.yaml"],
        &["serve", "--config", "rules.yaml"],
    ] {
        let told = run_in(dir.path(), args);
        assert!(told.contains("exit 1") && told.contains("not a regular file"), "{args:?}: {told}");
    }
}

#[test]
fn few_files_are_shared_between_listeners_and_none_of_them_is_locked_out() {
    let dir = tempfile::tempdir().unwrap();
    // The shell lowers both limits, so that the server cannot raise its own.
    let script = format!("ulimit -n 700; exec {BINARY} serve {}", FREE.join(" "));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env("TIDEGATE_WORKERS", "1").env("TIDEGATE_DRAIN__DELAY", "0s");
    command.env("TIDEGATE_DATA", dir.path().join("data"));
    let mut process = tidegate_testkit::Process::spawn("few-files", &command, dir.path());
    let address = |process: &tidegate_testkit::Process, what: &str| -> Option<SocketAddr> {
        let line = format!("listening {what} ");
        process.stdout().lines().find_map(|said| said.strip_prefix(&line)?.parse().ok())
    };
    let found = process.ready(PATIENCE, |process| {
        Some([address(process, "http")?, address(process, "grpc")?, address(process, "admin")?])
    });
    let [http, grpc, admin] = found.unwrap();
    assert!(process.stderr().contains("few open files are allowed"), "{}", process.stderr());
    // More connections than all listeners together may have, on one of them, none of which sends anything.
    let flood: Vec<_> = (0..600).filter_map(|_| TcpStream::connect(http).ok()).collect();
    assert_eq!(http::get(http, "/healthz").status, 200);
    assert_eq!(http::get(admin, "/metrics").status, 200);
    let mut other = TcpStream::connect(grpc).unwrap();
    other.set_read_timeout(Some(PATIENCE)).unwrap();
    other.write_all(HTTP_2).unwrap();
    assert!(other.read(&mut [0; 9]).unwrap() > 0);
    let log = process.stderr();
    assert!(log.lines().count() < 12, "{log}");
    drop(flood);
}

#[test]
fn the_limit_on_open_files_is_raised_as_far_as_the_system_lets_it() {
    let dir = tempfile::tempdir().unwrap();
    // Only the soft limit: the one that a process may raise.
    let script = format!("ulimit -S -n 300; exec {BINARY} serve {}", FREE.join(" "));
    let mut command = std::process::Command::new("sh");
    command.args(["-c", &script]).env("TIDEGATE_DRAIN__DELAY", "0s");
    let mut process = tidegate_testkit::Process::spawn("soft-limit", &command, dir.path());
    process.ready(PATIENCE, |process| process.stdout().contains("listening http ").then_some(())).unwrap();
    let limits = fs::read_to_string(format!("/proc/{}/limits", process.pid())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    let numbers: Vec<&str> = files.split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1], "{files}");
    assert_ne!(numbers[0], "300", "{files}");
}
