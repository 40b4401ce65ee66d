//! What a supervisor such as systemd is told, heard on a real socket.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use tidegate_testkit::Signal;

use crate::access::{PATIENCE, serve};

/// Hears what a server tells.
struct Ear(UnixDatagram);

impl Ear {
    fn at(address: &SocketAddr) -> Ear {
        let socket = UnixDatagram::bind_addr(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Ear(socket)
    }

    /// The next message.
    #[track_caller]
    fn message(&self) -> String {
        let mut bytes = [0; 1024];
        let read = self.0.recv(&mut bytes).expect("the server says something");
        String::from_utf8(bytes[..read].to_vec()).unwrap()
    }

    /// The first line of the next message that is no sign of life.
    #[track_caller]
    fn news(&self) -> String {
        let messages = std::iter::repeat_with(|| self.message());
        let mut news = messages.skip_while(|message| message == "WATCHDOG=1");
        news.next().unwrap().lines().next().unwrap().to_owned()
    }
}

#[test]
fn the_supervisor_hears_ready_alive_reloading_and_stopping_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("notify");
    let ear = Ear::at(&SocketAddr::from_pathname(&socket).unwrap());
    let env = [("NOTIFY_SOCKET", socket.to_str().unwrap()), ("WATCHDOG_USEC", "400000")];
    let mut server = serve(dir.path(), "", &env);
    assert_eq!(ear.news(), "READY=1");
    assert_eq!([ear.message(), ear.message()], ["WATCHDOG=1", "WATCHDOG=1"]);
    server.process().signal(Signal::HUP);
    assert_eq!([ear.news(), ear.news()], ["RELOADING=1", "READY=1"]);
    server.process().signal(Signal::TERM);
    assert_eq!(ear.news(), "STOPPING=1");
    assert!(server.process().wait_exit(PATIENCE).expect("it ends").success());
}

#[test]
fn ready_after_a_reload_means_that_the_files_were_read() {
    let dir = tempfile::tempdir().unwrap();
    let rules = dir.path().join("rules.yaml");
    let rule = |name| format!("domain: api\nrules: [{{ name: {name}, key: [user], limits: [1/minute] }}]\n");
    std::fs::write(&rules, rule("before")).unwrap();
    let socket = dir.path().join("notify");
    let ear = Ear::at(&SocketAddr::from_pathname(&socket).unwrap());
    let config = format!("rules: {{ paths: [{}] }}", rules.display());
    let mut server = serve(dir.path(), &config, &[("NOTIFY_SOCKET", socket.to_str().unwrap())]);
    assert_eq!(ear.news(), "READY=1");
    std::fs::write(&rules, rule("after")).unwrap();
    server.process().signal(Signal::HUP);
    assert_eq!([ear.news(), ear.news()], ["RELOADING=1", "READY=1"]);
    let check = r#"{"domain":"api","attributes":{"user":"42"}}"#;
    let answer = tidegate_testkit::http::post_json(server.addr("http"), "/v1/check", check);
    assert_eq!(answer.json()["rule"], "after");
}

#[test]
fn a_socket_with_an_abstract_name_is_told_and_no_life_is_signalled_to_who_did_not_ask() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("tidegate-test-{}", std::process::id());
    let ear = Ear::at(&SocketAddr::from_abstract_name(&name).unwrap());
    // That watchdog is for the process that started this one.
    let env = [("NOTIFY_SOCKET", &*format!("@{name}")), ("WATCHDOG_USEC", "40000"), ("WATCHDOG_PID", "1")];
    let _server = serve(dir.path(), "", &env);
    assert_eq!(ear.news(), "READY=1");
    ear.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    assert_eq!(ear.0.recv(&mut [0; 64]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
