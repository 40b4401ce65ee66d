//! Ambiguous requests: one that the service could read differently than the rules is refused, or counted under both
//! readings, and the service sees the attributes it was counted by.

use bytes::Bytes;
use http_body_util::Empty;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_http::identity::{ApiKeyConfig, IdentityConfig, Named, Secret};
use tidegate_testkit::Upstream;

use crate::world::{Edge, Raw, Setup, Wire, target};

/// An upstream that answers with the head it received, and the body if there was one.
fn mirror() -> Raw {
    Raw::start(|mut wire| {
        loop {
            let head = wire.head();
            if head.is_empty() {
                return;
            }
            let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
            let mut seen = head.join("\n");
            if head.iter().any(|line| line == "transfer-encoding: chunked") {
                loop {
                    let chunk = wire.chunk();
                    if chunk.is_empty() {
                        break;
                    }
                    seen += &format!("\nbody: {chunk}");
                }
            } else if let Some(length) = length {
                seen += &format!("\nbody: {}", wire.exactly(length));
            }
            wire.write(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{seen}", seen.len()));
        }
    })
}

/// Sends these bytes, and reads all of the answer.
fn exchange(edge: &Edge, text: &str) -> String {
    let mut client: Wire = edge.connect();
    client.write(text);
    client.rest()
}

fn status(edge: &Edge, line: &str, headers: &str) -> String {
    let answer = exchange(edge, &format!("{line} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{headers}\r\n"));
    answer.split(' ').nth(1).unwrap_or("none").to_owned()
}

fn limited(upstream: &Upstream, when: &str, identity: impl FnOnce(&mut IdentityConfig)) -> Edge {
    let rules = format!("domain: edge\nrules: [{{ name: one, {when}, limits: [1/hour] }}]");
    Setup::to(&[target(upstream)]).rules(&rules).identity(identity).start()
}

fn named(name: &str, from: &str) -> Named<String> {
    Named(vec![(name.to_owned(), from.to_owned())])
}

#[test]
fn dots_beside_an_escaped_slash_or_a_backslash_are_refused() {
    let upstream = Upstream::start();
    let edge = limited(&upstream, "match: { path: '/expensive/*' }", |_| ());
    for path in [
        "/expensive/..%5Cfree",
        "/expensive/..\\free",
        "/expensive/42\\..\\..\\free",
        "/expensive/..%2Ffree",
        "/free/..;/expensive/1",
        "/expensive/1%00",
        "/expensive/..%20/free",
    ] {
        assert_eq!(status(&edge, &format!("GET {path}"), ""), "400", "{path}");
    }
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn parameters_final_dots_and_escaped_slashes_count_under_both_readings() {
    for path in ["/expensive;v=1/42", "/expensive./42", "/expensive%20/42", "/x%2F..;v/../expensive/42"] {
        let upstream = Upstream::start();
        let edge = limited(&upstream, "match: { path: /expensive/42 }", |_| ());
        let first = status(&edge, &format!("GET {path}"), "");
        if first != "400" {
            assert_eq!(
                (first.as_str(), status(&edge, "GET /expensive/42", "").as_str()),
                ("200", "429"),
                "{path}"
            );
        }
    }
    let upstream = Upstream::start();
    let edge = limited(&upstream, "match: { path: /npm/@scope%2fname }", |_| ());
    let statuses = [0; 2].map(|_| status(&edge, "GET /npm/@scope%2Fname", ""));
    assert_eq!(statuses, ["200", "429"]);
}

#[test]
fn a_path_over_a_kilobyte_is_matched_whole_and_one_over_eight_is_refused() {
    let upstream = Upstream::start();
    let edge = limited(&upstream, "match: { path: '/api/*/export' }", |_| ());
    let get = |zeros| status(&edge, &format!("GET /api/{}42/export", "0".repeat(zeros)), "");
    assert_eq!([get(2_000), get(3_000), get(9_000)], ["200", "429", "414"]);
}

#[test]
fn a_method_in_lower_case_is_refused_and_head_counts_as_get() {
    let upstream = Upstream::start();
    let edge = limited(&upstream, "match: { method: POST, path: /login }", |_| ());
    assert_eq!(["post /login", "Post /login", "PosT /login"].map(|line| status(&edge, line, "")), ["400"; 3]);
    let edge = limited(&upstream, "match: { method: GET, path: /report }", |_| ());
    assert_eq!([0; 2].map(|_| status(&edge, "HEAD /report", "")), ["200", "429"]);
    let edge = limited(&upstream, "match: { method: DELETE, path: /item }", |_| ());
    let overridden =
        || status(&edge, "POST /item", "x-http-method-override: DELETE\r\ncontent-length: 0\r\n");
    assert_eq!([overridden(), overridden()], ["200", "429"]);
}

#[test]
fn a_request_of_two_readings_spends_from_no_counter_twice() {
    let upstream = Upstream::start();
    let rules = "domain: edge\nrules:\n  - { name: all, limits: [3/hour] }\n  - { name: reads, match: { method: GET }, limits: [9/hour] }\n";
    let edge = Setup::to(&[target(&upstream)]).rules(rules).start();
    let statuses = [0; 4].map(|_| status(&edge, "HEAD /a%2Fb;c", ""));
    assert_eq!(statuses, ["200", "200", "200", "429"]);
}

#[test]
fn credentials_sent_twice_are_refused_and_unreadable_ones_count_by_address() {
    let upstream = Upstream::start();
    let by_key = |config: &mut IdentityConfig| {
        config.api_key = Some(ApiKeyConfig::new("x-api-key"));
    };
    let edge = limited(&upstream, "key: [api_key], on_missing_key: skip", by_key);
    assert_eq!(status(&edge, "GET /", "x-api-key: a\r\nx-api-key: b\r\n"), "400");
    let by_token = |config: &mut IdentityConfig| {
        let secret = Some(Secret::new("a-shared-secret-of-thirty-two-by"));
        config.jwt.get_or_insert_default().secret = secret;
    };
    let edge = limited(&upstream, "key: [user], on_missing_key: skip", by_token);
    let twice = "authorization: Bearer a.b.c\r\nauthorization: Basic eDp5\r\n";
    assert_eq!(status(&edge, "GET /", twice), "400");
    let unreadable = |token: &str| status(&edge, "GET /", &format!("authorization: Bearer {token}\r\n"));
    assert_eq!([unreadable("a.b.c="), unreadable("d.e.f")], ["200", "429"]);
}

#[test]
fn a_cookie_counts_however_it_is_spelled_and_twice_as_both() {
    let upstream = Upstream::start();
    let by_session = |config: &mut IdentityConfig| config.cookies = named("session", "sid");
    for spelling in ["sid =s1", "sid\t=s1", "sid=\"s1\"", "sid=%731", "x=y; sid=s1", "sid=s2; sid=s1"] {
        let edge = limited(&upstream, "key: [session], on_missing_key: skip", by_session);
        assert_eq!(status(&edge, "GET /", "cookie: sid=s1\r\n"), "200");
        assert_eq!(status(&edge, "GET /", &format!("cookie: {spelling}\r\n")), "429", "{spelling}");
    }
}

#[test]
fn headers_and_parameters_sent_twice_are_refused() {
    let upstream = Upstream::start();
    let read = |config: &mut IdentityConfig| {
        config.headers = named("tenant", "x-tenant");
        config.query = named("user", "u");
    };
    let edge = limited(&upstream, "key: [tenant], on_missing_key: skip", read);
    assert_eq!(status(&edge, "GET /", "x-tenant: a\r\nx-tenant: b\r\n"), "400");
    assert_eq!(status(&edge, "GET /?u=1&u=2", ""), "400");
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn what_connection_names_is_not_stripped_if_it_was_counted_or_says_who_asks() {
    let upstream = mirror();
    let edge = Setup::to(&[upstream.target()])
        .identity(|config| {
            config.headers = named("tenant", "x-tenant");
            config.api_key = Some(ApiKeyConfig::new("x-api-key"));
        })
        .start();
    let named = "connection: close, x-api-key, x-tenant, x-forwarded-for, x-own-hop, content-length\r\n";
    let headers = "x-api-key: k\r\nx-tenant: t\r\nx-forwarded-for: 192.0.2.9\r\nx-own-hop: 1\r\n";
    let answer = exchange(&edge, &format!("GET / HTTP/1.1\r\nhost: x\r\n{named}{headers}\r\n"));
    for kept in ["x-api-key: k", "x-tenant: t", "x-forwarded-for: 192.0.2.9, 127.0.0.1"] {
        assert!(answer.contains(kept), "{kept} in {answer}");
    }
    assert!(!answer.contains("x-own-hop"), "{answer}");
}

#[test]
fn names_with_underscores_and_trailers_do_not_reach_the_service() {
    let upstream = mirror();
    let edge = Setup::to(&[upstream.target()]).start();
    let aliases =
        "X_Original_URL: /a\r\nX_Remote_User: b\r\nContent_Length: 3\r\nTransfer_Encoding: x\r\nx.y: z\r\n";
    let trailers = "trailer: x-forwarded-for, x-api-key, cookie\r\ntransfer-encoding: chunked\r\n";
    let body = "3\r\nabc\r\n0\r\nX-Forwarded-For: 192.0.2.1\r\nX-Api-Key: k\r\nCookie: sid=1\r\n\r\n";
    let head = format!("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{aliases}{trailers}");
    let answer = exchange(&edge, &format!("{head}\r\n{body}"));
    assert!(answer.contains("body: abc"), "{answer}");
    for gone in ["_", "x.y", "trailer", "192.0.2.1", "x-api-key", "cookie"] {
        assert!(!answer.contains(gone), "{gone} in {answer}");
    }
}

#[test]
fn the_length_of_a_body_is_said_once() {
    let upstream = mirror();
    let edge = Setup::to(&[upstream.target()]).start();
    let post = |lengths: &str| {
        let head = format!("POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{lengths}\r\n");
        exchange(&edge, &format!("{head}abc"))
    };
    for lengths in
        ["content-length: 3\r\ncontent-length: 4\r\n", "content-length: 3, 3\r\n", "content-length: +3\r\n"]
    {
        let answer = post(lengths);
        assert!(answer.starts_with("HTTP/1.1 400"), "{lengths}: {answer}");
    }
    assert_eq!(upstream.accepted(), 0);
    // The same twice is once.
    let seen = post("content-length: 3\r\nx-y: z\r\ncontent-length: 3\r\n");
    let (_, seen) = seen.split_once("\r\n\r\n").unwrap();
    assert_eq!(seen.matches("content-length").count(), 1, "{seen}");
    assert!(seen.ends_with("body: abc"), "{seen}");
}

#[test]
fn a_chunked_body_of_a_get_arrives() {
    let upstream = mirror();
    let edge = Setup::to(&[upstream.target()]).start();
    for method in ["GET", "DELETE", "OPTIONS"] {
        let head =
            format!("{method} / HTTP/1.1\r\nhost: x\r\nconnection: close\r\ntransfer-encoding: chunked\r\n");
        let answer = exchange(&edge, &format!("{head}\r\n5\r\nhello\r\n0\r\n\r\n"));
        assert!(answer.contains("body: hello"), "{method}: {answer}");
    }
}

#[tokio::test]
async fn cookies_that_http2_sends_apart_arrive_as_one_line() {
    let upstream = mirror();
    let edge = Setup::to(&[upstream.target()]).start();
    let stream = tokio::net::TcpStream::connect(edge.addr()).await.unwrap();
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = http::Request::get("http://shop.example/").header("cookie", "a=1").header("cookie", "b=2");
    let answer = sender.send_request(request.body(Empty::<Bytes>::new()).unwrap()).await.unwrap();
    let body = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    assert!(body.contains("cookie: a=1; b=2"), "{body}");
}

#[test]
fn a_host_without_anything_asked_for_there_is_no_request() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    assert_eq!(["GET shop.example:80", "GET *"].map(|line| status(&edge, line, "")), ["400", "400"]);
    assert_eq!(upstream.requests(), 0);
}

#[test]
fn a_refusal_without_a_store_says_so_and_when_to_come_back() {
    let upstream = Upstream::start();
    let rules = "{ domain: edge, rules: [{ name: all, limits: [5/hour], on_store_failure: closed }] }";
    let edge = Setup::to(&[target(&upstream)]).rules(rules).without_store().start();
    let refused = edge.get("/");
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("1")));
    assert_eq!(refused.json()["error"], "store_unavailable");
    assert!(refused.json()["message"].is_string());
}

#[test]
fn a_refusal_has_its_kind_in_a_word_and_in_a_sentence() {
    let upstream = Upstream::start();
    let edge = limited(&upstream, "key: [ip]", |_| ());
    edge.get("/");
    let refused = edge.get("/").json();
    assert_eq!((&refused["error"], &refused["status"]), (&"rate_limit_exceeded".into(), &429.into()));
    assert_eq!(refused["message"], refused["detail"]);
}
