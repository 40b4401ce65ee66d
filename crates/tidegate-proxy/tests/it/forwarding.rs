//! What reaches the upstream, and what comes back.

use serde_json::json;
use tidegate_proxy::Route;
use tidegate_testkit::Upstream;

use crate::world::{Raw, Setup, target};

#[test]
fn a_request_and_its_answer_go_through_as_they_are() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    let answer =
        edge.send("PATCH", "/v1/items?id=7&x=%20", &[("x-own", "yes"), ("host", "shop.example")], b"body");
    assert_eq!(answer.status, 200);
    let seen = answer.json();
    assert_eq!(seen["method"], "PATCH");
    assert_eq!(seen["path"], "/v1/items?id=7&x=%20");
    assert_eq!(seen["body"], "body");
    assert_eq!(seen["headers"]["x-own"], "yes");
    assert_eq!(seen["headers"]["host"], "shop.example");
    assert_eq!(seen["headers"]["content-length"], "4");
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

#[test]
fn the_upstreams_status_is_the_clients() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    upstream.set_status(418);
    assert_eq!(edge.get("/").status, 418);
    assert_eq!(edge.send("HEAD", "/", &[], b"").status, 418);
}

#[test]
fn the_path_that_rules_see_is_the_path_that_is_forwarded() {
    let upstream = Upstream::start();
    let rules = "
        domain: edge
        rules: [{ name: login, match: { path: /a/login }, key: [], limits: [1/hour] }]";
    let edge = Setup::to(&[target(&upstream)]).rules(rules).start();
    let first = edge.get("/x/..//a/./%6Cogin?next=//y");
    assert_eq!(first.json()["path"], "/a/login?next=//y");
    for variant in ["/a/login", "/a//login", "/A/Login", "/a/login/", "/a/%6cogin", "/b/../a/login"] {
        assert_eq!(edge.get(variant).status, 429, "{variant}");
    }
    assert_eq!(upstream.requests(), 1);
}

#[test]
fn what_concerns_one_hop_is_not_passed_on_in_either_direction() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    let hops =
        [("keep-alive", "timeout=1"), ("te", "gzip"), ("x-hop", "secret"), ("proxy-authorization", "x")];
    let mut wire = edge.connect();
    let lines: String = hops.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    wire.write(&format!("GET / HTTP/1.1\r\nhost: x\r\nconnection: close, X-Hop\r\n{lines}\r\n"));
    let answer = wire.rest();
    let seen: serde_json::Value = serde_json::from_str(answer.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    let names: Vec<&String> = seen["headers"].as_object().unwrap().keys().collect();
    assert_eq!(names, ["host", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"]);

    let talkative = Raw::saying(
        "HTTP/1.1 200 OK\r\nconnection: x-hop\r\nx-hop: secret\r\nkeep-alive: timeout=1\r\n\
         proxy-authenticate: Basic\r\nx-own: kept\r\ncontent-length: 2\r\n\r\nok",
    );
    let answer = Setup::to(&[talkative.target()]).start().get("/");
    assert_eq!((answer.text().as_str(), answer.header("x-own")), ("ok", Some("kept")));
    for hop in ["x-hop", "keep-alive", "proxy-authenticate"] {
        assert_eq!(answer.header(hop), None, "{hop}");
    }
}

#[test]
fn strangers_are_not_believed_about_who_they_are_and_trusted_peers_are() {
    let upstream = Upstream::start();
    let claims =
        [("x-forwarded-for", "198.51.100.1"), ("x-forwarded-proto", "https"), ("forwarded", "for=x")];
    let seen_by = |setup: Setup| setup.start().send("GET", "/", &claims, b"").json()["headers"].clone();

    let trusted = seen_by(Setup::to(&[target(&upstream)]));
    assert_eq!(trusted["x-forwarded-for"], "198.51.100.1, 127.0.0.1");
    assert_eq!(trusted["x-forwarded-proto"], "https");

    let stranger = seen_by(Setup::to(&[target(&upstream)]).identity(|config| config.hops = Some(0)));
    assert_eq!(stranger["x-forwarded-for"], "127.0.0.1");
    assert_eq!(stranger["x-forwarded-proto"], "http");
    assert_eq!(stranger["forwarded"], json!(null));
}

#[test]
fn a_header_with_an_underscore_does_not_pose_as_another() {
    let upstream = Upstream::start();
    let edge = Setup::to(&[target(&upstream)]).start();
    let seen = edge.send("GET", "/", &[("X_Forwarded_For", "6.6.6.6"), ("x-user", "1")], b"").json();
    assert_eq!(seen["headers"]["x_forwarded_for"], json!(null));
    assert_eq!(seen["headers"]["x-user"], "1");
}

#[test]
fn routes_lead_by_host_and_path_and_nowhere_is_404() {
    let (shop, rest) = (Upstream::start(), Upstream::start());
    let edge = Setup::to(&[target(&shop)])
        .change(|settings| {
            let mut other = settings.upstreams[0].clone();
            other.targets = vec![target(&rest).parse().unwrap()];
            settings.upstreams.push(other);
            let route = |host: Option<&str>, path: &str, upstream| Route {
                host: host.map(str::to_owned),
                path: path.to_owned(),
                upstream,
                domain: None,
            };
            settings.routes = vec![route(Some("shop.example"), "/", 0), route(None, "//Api/", 1)];
        })
        .start();
    assert_eq!(edge.send("GET", "/", &[("host", "shop.example")], b"").status, 200);
    // However either of them is written.
    assert_eq!(edge.send("GET", "/API//x", &[("host", "b")], b"").status, 200);
    let lost = edge.send("GET", "/apis", &[("host", "b")], b"");
    assert_eq!((lost.status, lost.header("content-type")), (404, Some("application/problem+json")));
    assert_eq!((shop.requests(), rest.requests()), (1, 1));
}

#[test]
fn connections_to_the_upstream_are_used_again() {
    let upstream = Raw::saying("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    let edge = Setup::to(&[upstream.target()]).start();
    let mut wire = edge.connect();
    for _ in 0..20 {
        wire.write("GET / HTTP/1.1\r\nhost: x\r\n\r\n");
        assert!(wire.head()[0].contains("200"));
    }
    // One client connection is served by one worker.
    assert_eq!(upstream.accepted(), 1);
}
