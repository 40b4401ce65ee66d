//! `tidegate check`

use insta::assert_snapshot;
use serde_json::{Value, json};

use crate::run;
use crate::stub::{Stub, closed_port, reply};

fn decision(allowed: bool) -> String {
    json!({
        "allowed": allowed, "rule": "per-user", "limit": 100, "remaining": if allowed { 99 } else { 0 },
        "reset_after_ms": 60_000, "retry_after_ms": if allowed { Value::Null } else { json!(1500) },
        "source": "store", "lease": null, "delay_ms": 0, "added_by_a_newer_server": true,
    })
    .to_string()
}

fn ask(stub: &Stub, more: &[&str]) -> String {
    let args = [&["check", "--server", &stub.address, "--domain", "api", "user=42"], more].concat();
    run(&args).replace(&stub.address, "HOST:PORT")
}

#[test]
fn an_allowed_request_exits_with_0() {
    let stub = Stub::start(|_, _| reply("200 OK", &decision(true)));
    assert_snapshot!(ask(&stub, &[]));
}

#[test]
fn a_refused_request_exits_with_1() {
    let stub = Stub::start(|_, _| reply("429 Too Many Requests", &decision(false)));
    assert_snapshot!(ask(&stub, &[]));
}

#[test]
fn json_output_is_what_the_server_sent_newer_fields_included() {
    let stub = Stub::start(|_, _| reply("200 OK", &decision(true)));
    let ran = ask(&stub, &["--output", "json"]);
    let body =
        ran.strip_prefix("exit 0\n--- stdout\n").and_then(|rest| rest.strip_suffix("--- stderr\n")).unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(body).unwrap(),
        serde_json::from_str::<Value>(&decision(true)).unwrap()
    );
}

#[test]
fn the_request_says_what_was_typed() {
    let stub = Stub::start(|_, request| {
        let (head, body) = request.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("POST /v1/check HTTP/1.1\r\n"), "{head}");
        let body: Value = serde_json::from_str(body).unwrap();
        let expected = json!({ "domain": "api", "attributes": { "user": "42", "path": "/a=b" }, "cost": 7 });
        reply("200 OK", &decision(body == expected))
    });
    let ran = ask(&stub, &["path=/a=b", "--cost", "7"]);
    assert!(ran.starts_with("exit 0"), "{ran}");
}

#[test]
fn a_server_that_is_not_there_exits_with_2() {
    let address = closed_port();
    let ran = run(&["check", "--server", &address, "--domain", "api", "user=42"]);
    assert_snapshot!(ran.replace(&address, "HOST:PORT"));
}

#[test]
fn a_problem_exits_with_2_and_the_servers_own_words() {
    let problem =
        json!({ "title": "unknown domain", "detail": "unknown domain `api`", "hint": "known: web" });
    let stub = Stub::start(move |_, _| reply("404 Not Found", &problem.to_string()));
    assert_snapshot!(ask(&stub, &[]));
}

#[test]
fn something_else_that_speaks_http_exits_with_2() {
    let stub = Stub::start(|_, _| reply("200 OK", "<html>"));
    assert_snapshot!(ask(&stub, &[]));
}

#[test]
fn a_server_that_never_answers_exits_with_2_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let ran = run(&["check", "--server", &address, "--domain", "api", "--timeout", "50ms"]);
    assert_snapshot!(ran);
}

#[test]
fn an_attribute_given_twice_is_an_error() {
    let stub = Stub::start(|_, _| reply("200 OK", &decision(true)));
    let ran = ask(&stub, &["user=43"]);
    assert!(ran.starts_with("exit 2") && ran.contains("`user` is given twice"), "{ran}");
    assert_eq!(stub.answered(), 0);
}

#[test]
fn the_environment_can_name_the_server() {
    let stub = Stub::start(|_, _| reply("200 OK", &decision(true)));
    let mut command = crate::tidegate(&["check", "--domain", "api"]);
    let ran = crate::ran(&command.env("TIDEGATE_SERVER", &stub.address).output().unwrap());
    assert!(ran.starts_with("exit 0"), "{ran}");
}
