//! `tidegate bench`, against a server whose behaviour is known.

use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;

use crate::stub::{Stub, closed_port, reply};
use crate::{run, tidegate};

fn bench(stub: &Stub, more: &[&str]) -> Value {
    let args = [&["bench", "--address", &stub.address, "--output", "json", "--warm-up", "0s"], more].concat();
    let output = tidegate(&args).output().unwrap();
    assert!(output.status.success(), "{}", crate::ran(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn an_open_loop_sends_what_it_was_asked_to_and_counts_every_answer() {
    let stub = Stub::start(|number, _| match number % 4 {
        0 => reply("429 Too Many Requests", "{}"),
        _ => reply("200 OK", "{}"),
    });
    let report = bench(&stub, &["--rate", "500", "--duration", "400ms"]);
    assert_eq!(stub.answered(), 200);
    assert_eq!(
        (&report["allowed"], &report["refused"], &report["errors"]),
        (&150.into(), &50.into(), &0.into())
    );
    assert_eq!(report["offered_per_s"], 500.0);
    // A busy machine may be slower than asked, never faster.
    let achieved = report["achieved_per_s"].as_f64().unwrap();
    assert!(achieved > 0.0 && achieved <= 500.0, "{achieved}");
}

/// The server answers nothing for 300 ms. One request waited that long on each connection; an honest client also
/// counts those that should have been sent meanwhile.
#[test]
fn a_stall_is_charged_to_every_request_that_had_to_wait() {
    const STALL: Duration = Duration::from_millis(300);
    let stub = Stub::start(|number, _| {
        if number == 20 {
            // Nothing is ever sent: this waits for the time-out, without sleeping.
            let (_keep, silence) = mpsc::channel::<()>();
            let _ = silence.recv_timeout(STALL);
        }
        reply("200 OK", "{}")
    });
    let report = bench(&stub, &["--rate", "200", "--duration", "1s", "--connections", "1"]);
    assert_eq!(report["allowed"], 200);
    // About 60 of the 200 were due during the stall: a quarter of all waited, on average half of it.
    let p90 = report["latency_us"]["p90"].as_f64().unwrap();
    assert!(p90 > 100_000.0, "{report:#}");
}

#[test]
fn requests_that_could_not_be_sent_are_errors() {
    let stub = Stub::start(|_, _| {
        let (_keep, silence) = mpsc::channel::<()>();
        let _ = silence.recv_timeout(Duration::from_millis(20));
        reply("200 OK", "{}")
    });
    let report = bench(&stub, &["--rate", "1000", "--duration", "300ms", "--connections", "1"]);
    let total =
        ["allowed", "refused", "errors"].iter().map(|name| report[*name].as_u64().unwrap()).sum::<u64>();
    assert_eq!(total, 300, "{report:#}");
    assert!(report["errors_by_kind"]["never sent"].as_u64().unwrap() > 200, "{report:#}");
}

#[test]
fn a_closed_loop_keeps_each_connection_busy_with_one_request() {
    let stub = Stub::start(|_, _| reply("200 OK", "{}"));
    let report =
        bench(&stub, &["--rate", "closed", "--duration", "2s", "--connections", "2", "--threads", "2"]);
    assert_eq!(report["allowed"].as_u64().unwrap(), stub.answered() as u64);
    assert_eq!(report["offered_per_s"], Value::Null);
}

#[test]
fn callers_are_distinct_and_as_many_as_asked() {
    let (seen, names) = mpsc::channel();
    let stub = Stub::start(move |_, request| {
        let (_, body) = request.split_once("\r\n\r\n").unwrap();
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["domain"], &body["cost"]), (&"shop".into(), &3.into()));
        seen.send(body["attributes"]["account"].as_str().unwrap().to_owned()).unwrap();
        reply("200 OK", "{}")
    });
    let args = ["--domain", "shop", "--attribute", "account", "--cost", "3", "--keys", "10"];
    bench(&stub, &[&args[..], &["--rate", "1000", "--duration", "300ms"]].concat());
    let names: std::collections::BTreeSet<String> = names.try_iter().collect();
    assert_eq!(names.len(), 10, "{names:?}");
}

#[test]
fn a_server_that_only_complains_is_quoted_and_the_run_fails() {
    let stub = Stub::start(|_, _| reply("404 Not Found", r#"{"detail":"unknown domain `api`"}"#));
    let ran = run(&["bench", "--address", &stub.address, "--duration", "100ms", "--warm-up", "0s"]);
    assert!(ran.starts_with("exit 1"), "{ran}");
    assert!(ran.contains("http status 404: {\"detail\":\"unknown domain `api`\"}"), "{ran}");
}

#[test]
fn a_server_that_closes_its_connections_is_reconnected_to() {
    let stub = Stub::start(|_, _| reply("200 OK\r\nconnection: close", "{}"));
    let report = bench(&stub, &["--rate", "100", "--duration", "200ms"]);
    assert_eq!((&report["allowed"], &report["errors"]), (&20.into(), &0.into()));
}

#[test]
fn a_server_that_is_not_there_is_an_error_at_once() {
    let address = closed_port();
    let ran = run(&["bench", "--address", &address]).replace(&address, "HOST:PORT");
    insta::assert_snapshot!(ran);
}

#[test]
fn the_text_report_has_the_rates_and_the_quantiles() {
    let stub = Stub::start(|_, _| reply("200 OK", "{}"));
    let ran = run(&[
        "bench",
        "--address",
        &stub.address,
        "--duration",
        "100ms",
        "--warm-up",
        "0s",
        "--rate",
        "100",
    ]);
    for word in ["offered", "achieved", "allowed", "refused", "errors", "p50", "p90", "p99", "p99.9", "max"] {
        assert!(ran.contains(word), "{word}: {ran}");
    }
    assert!(ran.ends_with("--- stderr\n"), "no progress bar where there is no terminal: {ran}");
}

#[test]
fn bounds_are_checked_before_anything_is_sent() {
    for args in [
        &["--duration", "2h"][..],
        &["--duration", "0s"],
        &["--timeout", "0s"],
        &["--in-flight", "4"],
        &["--protocol", "grpc", "--connections", "10000", "--in-flight", "10000"],
        &["--keys", "0"],
        &["--rate", "-5"],
    ] {
        let ran = run(&[&["bench"], args].concat());
        assert!(ran.contains("error: ") && !ran.contains("cannot connect"), "{args:?}: {ran}");
    }
}
