//! `tidegate bench --protocol resp`, against the real server and against one that says no.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use serde_json::Value;
use tidegate_testkit::{TidegateServer, http};

use crate::tidegate;

const OFF: [&str; 6] = ["--http", "off", "--grpc", "off", "--resp", "127.0.0.1:0"];

fn bench(address: &str, more: &[&str]) -> Value {
    let args = ["bench", "--protocol", "resp", "--address", address, "--output", "json", "--warm-up", "0s"];
    let output = tidegate(&[&args[..], more].concat()).output().unwrap();
    assert!(output.status.success(), "{}", crate::ran(&output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn every_throttle_is_sent_once_and_answered() {
    let args = [&OFF[..], &["--admin", "127.0.0.1:0"]].concat();
    let mut server = TidegateServer::start(env!("CARGO_BIN_EXE_tidegate"), &args);
    let address = server.addr("resp").to_string();
    let limit = ["--throttle", "4/1/3600", "--keys", "10"];
    let report = bench(&address, &[&limit[..], &["--rate", "2000", "--duration", "500ms"]].concat());
    // Ten callers with five each, and the oracle is the server's own count.
    assert_eq!(
        (&report["allowed"], &report["refused"], &report["errors"]),
        (&50.into(), &950.into(), &0.into()),
        "{report:#}"
    );
    let metrics = http::get(server.addr("admin"), "/metrics").text();
    let count = "tidegate_decision_duration_seconds_count{transport=\"resp\"} 1000";
    assert!(metrics.lines().any(|line| line == count), "{metrics}");
}

#[test]
fn a_closed_loop_keeps_a_pipeline_full() {
    let args = [&OFF[..], &["--admin", "off"]].concat();
    let mut server = TidegateServer::start(env!("CARGO_BIN_EXE_tidegate"), &args);
    let address = server.addr("resp").to_string();
    let report = bench(&address, &["--rate", "closed", "--duration", "300ms", "--in-flight", "64"]);
    assert_eq!((&report["refused"], &report["errors"]), (&0.into(), &0.into()), "{report:#}");
    assert!(report["allowed"].as_u64().unwrap() > 64 * 4, "{report:#}");
}

#[test]
fn an_error_of_the_server_is_no_decision_and_is_told() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut bytes) {
                    let commands = bytes[..length].windows(2).filter(|pair| *pair == b"*6").count();
                    stream.write_all("-ERR not today\r\n".repeat(commands).as_bytes()).unwrap();
                }
            });
        }
    });
    let args =
        ["bench", "--protocol", "resp", "--address", &address, "--duration", "100ms", "--warm-up", "0s"];
    let ran = crate::run(&args);
    assert!(ran.contains("no request was decided: error reply: -ERR not today"), "{ran}");
}
