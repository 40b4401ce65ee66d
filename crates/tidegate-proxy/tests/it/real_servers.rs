//! Generated requests in front of real Flask and real Node, which report how they parsed them.
//!
//! Every rule here refuses whatever it counts. So a request that an upstream receives for a limited route, tenant, session,
//! user or key was not counted. Through the proxy, and through forward-auth, whose gateway passes on what the client wrote.
//! `TIDEGATE_CASES` sets the number of requests.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;
use proptest::sample::select;
use tempfile::TempDir;
use tidegate_http::identity::{ApiKeyConfig, Identity, IdentityConfig, Named};
use tidegate_testkit::{Process, find_python_with, find_tool, http, poll};

use crate::listeners::World;
use crate::world::{Edge, PATIENCE, Setup};

fn rules() -> String {
    let banned = [
        ("expensive", "path: [/expensive, '/expensive/*']".to_owned()),
        ("login", "method: POST, path: /login".to_owned()),
        ("report", "method: GET, path: /report".to_owned()),
        ("export", "path: '/api/*/export'".to_owned()),
        ("tenant", "tenant: evil".to_owned()),
        ("user", "user: evil".to_owned()),
        ("session", format!("session: '{}'", tidegate_http::identity::hash_secret("evil"))),
        ("key", format!("api_key: '{}'", tidegate_http::identity::hash_secret("evil"))),
    ];
    let rule = |(name, when): (&str, String)| {
        format!(
            "  - {{ name: {name}, match: {{ {when} }}, limits: [{{ algorithm: fixed_window, limit: 0, window: 1h }}] }}\n"
        )
    };
    format!("domain: edge\nrules:\n{}", banned.map(rule).concat())
}

fn read_everything(config: &mut IdentityConfig) {
    let named = |name: &str, from: &str| Named(vec![(name.to_owned(), from.to_owned())]);
    config.headers = named("tenant", "x-tenant");
    config.query = named("user", "user");
    config.cookies = named("session", "sid");
    config.api_key = Some(ApiKeyConfig::new("x-api-key"));
}

/// A server in another language.
struct Foreign {
    addr: SocketAddr,
    _process: Process,
    _dir: TempDir,
}

impl Foreign {
    fn start(program: &Path, script: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/real_servers");
        let process = Process::spawn(script, Command::new(program).arg(scripts.join(script)), dir.path());
        let port = poll(PATIENCE, || process.stdout().trim().parse::<u16>().ok());
        let port = port.unwrap_or_else(|| panic!("{script} does not start: {}", process.stderr()));
        Foreign { addr: ([127, 0, 0, 1], port).into(), _process: process, _dir: dir }
    }

    fn flask() -> Self {
        Foreign::start(&find_python_with("flask"), "flask_app.py")
    }

    fn node() -> Self {
        Foreign::start(&find_tool("node"), "node_server.js")
    }
}

/// A request, as a client writes it.
#[derive(Clone, Debug)]
struct Sent {
    method: &'static str,
    target: String,
    headers: Vec<(&'static str, &'static str)>,
}

impl Sent {
    /// How the server at `addr` parsed the request, if it received it.
    fn understood_by(&self, addr: SocketAddr) -> Option<String> {
        let mut text = format!(
            "{} {} HTTP/1.1\r\nhost: shop.example\r\nconnection: close\r\n",
            self.method, self.target
        );
        self.headers.iter().for_each(|(name, value)| text += &format!("{name}: {value}\r\n"));
        text += "\r\n";
        let mut stream = TcpStream::connect(addr).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(text.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // A server that rejects a head may close the connection.
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let line = answer.lines().find(|line| line.to_ascii_lowercase().starts_with("x-understood:"))?;
        Some(
            line.split_once(':')
                .unwrap()
                .1
                .trim()
                .replace("%22", "\"")
                .replace("%7B", "{")
                .replace("%5B", "[")
                .replace("%5D", "]")
                .replace("%7D", "}")
                .replace("%20", " "),
        )
    }

    /// Whether forward-auth lets it pass.
    fn passes(&self, world: &World) -> bool {
        let mut headers =
            vec![("x-forwarded-method", self.method), ("x-forwarded-uri", self.target.as_str())];
        headers.extend(self.headers.iter().filter(|(name, _)| *name != "connection"));
        http::request(world.http(), "GET", "/v1/auth?domain=edge", &headers, b"").unwrap().status == 200
    }
}

/// Fails if an upstream received a request for something limited.
#[track_caller]
fn check_counted(sent: &Sent, understood: Option<&str>, how: &str) -> Result<(), TestCaseError> {
    let Some(understood) = understood else { return Ok(()) };
    for limited in ["expensive", "login", "report", "export", "evil"] {
        prop_assert!(!understood.contains(&format!("\"{limited}\"")), "{how}: {sent:?} was {understood}");
    }
    Ok(())
}

fn any_target() -> impl Strategy<Value = String> {
    let between = select(vec![
        "/", "/", "/", "/", "//", "%2F", "%2f", "\\", "%5C", "/./", "/../", "/%2e%2e/", "/..%2F", "/..;/",
        "/..%5c", "%00/", ";/",
    ]);
    let segment = select(vec![
        "expensive",
        "expensive",
        "free",
        "login",
        "report",
        "api",
        "7",
        "export",
        "Expensive",
        "%65xpensive",
        "login;x=1",
        "login.",
        "login%20",
        "report%0a",
        "expensive;v=1",
        "..",
        ".",
        "%2e%2e",
        "...",
        "x",
        "%c0%ae%c0%ae",
        "%252e%252e",
        "@h",
        "a:b",
    ]);
    let path = prop::collection::vec((between, segment), 1..5).prop_map(|parts| {
        parts.into_iter().map(|(between, segment)| format!("{between}{segment}")).collect::<String>()
    });
    let known = select(vec!["/expensive/42", "/login", "/report", "/api/7/export", "/free/1", "/"])
        .prop_map(str::to_owned);
    let query = select(vec![
        "",
        "",
        "",
        "?user=evil",
        "?user=good&user=evil",
        "?user=evil&user=good",
        "?%75ser=evil",
        "?user[]=evil",
        "?x=1;user=evil",
        "?user=%65vil",
        "?_method=PUT",
        "?user=good",
        "#/../expensive",
        "?#",
    ]);
    (prop_oneof![3 => path, 2 => known], select(vec!["", "", "", "/", "//", "?", ";", "%2F"]), query)
        .prop_map(|(path, end, query)| {
            let path = if path.starts_with('/') { path } else { format!("/{path}") };
            format!("{path}{end}{query}")
        })
}

fn any_headers() -> impl Strategy<Value = Vec<(&'static str, &'static str)>> {
    let line = select(vec![
        ("x-tenant", "evil"),
        ("x-tenant", "good"),
        ("X_Tenant", "evil"),
        ("x_tenant", "evil"),
        ("X.Tenant", "evil"),
        ("x-api-key", "evil"),
        ("x-api-key", "good"),
        ("X_API_KEY", "evil"),
        ("cookie", "sid=evil"),
        ("cookie", "sid =evil"),
        ("cookie", "sid\t=evil"),
        ("cookie", "sid=good; sid=evil"),
        ("cookie", "sid=evil; sid=good"),
        ("cookie", "sid=\"evil\""),
        ("cookie", "sid=%65vil"),
        ("cookie", "a=b"),
        ("connection", "x-tenant, x-api-key, cookie"),
        ("x-http-method-override", "POST"),
        ("x-http-method-override", "post"),
        ("x-original-url", "/expensive/1"),
        ("x_original_url", "/expensive/1"),
        ("x-rewrite-url", "/expensive/1"),
        ("content-length", "0"),
        ("content_length", "7"),
        ("accept", "*/*"),
    ]);
    prop::collection::vec(line, 0..4)
}

fn any_request() -> impl Strategy<Value = Sent> {
    let method =
        select(vec!["GET", "GET", "GET", "POST", "POST", "HEAD", "PUT", "post", "Post", "get", "head"]);
    (method, any_target(), any_headers()).prop_map(|(method, target, headers)| Sent {
        method,
        target,
        headers,
    })
}

fn edge_to(upstream: &Foreign) -> Edge {
    Setup::to(&[format!("http://{}", upstream.addr)]).rules(&rules()).identity(read_everything).start()
}

#[test]
fn no_upstream_runs_what_was_not_counted() {
    let upstreams = [("flask", Foreign::flask()), ("node", Foreign::node())];
    let edges = [edge_to(&upstreams[0].1), edge_to(&upstreams[1].1)];
    let mut config = IdentityConfig::default();
    read_everything(&mut config);
    let world = World::identified(&rules(), Identity::new(&config).unwrap());

    // They do answer, and unlimited requests are admitted: otherwise this test would prove nothing.
    let free = Sent { method: "GET", target: "/free/1".to_owned(), headers: Vec::new() };
    let limited = Sent { target: "/expensive/1".to_owned(), ..free.clone() };
    assert!(free.passes(&world) && !limited.passes(&world));
    for ((_, upstream), edge) in upstreams.iter().zip(&edges) {
        assert!(free.understood_by(edge.addr()).unwrap().contains("\"free\""));
        assert!(limited.understood_by(upstream.addr).unwrap().contains("\"expensive\""));
        assert_eq!(limited.understood_by(edge.addr()), None);
    }

    let cases = std::env::var("TIDEGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(200);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(sent in any_request())| {
        let passes = sent.passes(&world);
        for ((name, upstream), edge) in upstreams.iter().zip(&edges) {
            check_counted(&sent, sent.understood_by(edge.addr()).as_deref(), &format!("proxy to {name}"))?;
            if passes {
                let understood = sent.understood_by(upstream.addr);
                check_counted(&sent, understood.as_deref(), &format!("{name} behind a gateway"))?;
            }
        }
    });
}
