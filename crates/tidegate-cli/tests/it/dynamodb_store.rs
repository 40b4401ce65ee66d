//! Counters in an emulated DynamoDB (`moto`; never run against AWS): exact over two nodes, and one clear line where it cannot be used.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_testkit::Moto;

use crate::redis_exact::{LIMIT, flood, flood_one_key};
use crate::redis_world::{BINARY, Node, PATIENT, RECOVERED, alone, check, left, now, pass};

const THOUSAND: &str =
    "- { name: one, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }";

#[test]
fn dynamodb_two_nodes_admit_exactly_a_thousand_of_eleven_hundred_with_sixty_four_in_flight() {
    let _alone = alone();
    let server = Moto::start();
    let nodes = Node::pair(&server.url("limits"), PATIENT, THOUSAND);
    assert_eq!(flood(&nodes.each_ref(), 8), [LIMIT; 8]);
}

#[test]
fn dynamodb_flood_of_one_key_costs_hardly_any_calls() {
    let _alone = alone();
    let server = Moto::start();
    let node = Node::ready(&server.url("limits"), PATIENT, THOUSAND);
    let flood = flood_one_key(&node, || server.calls() as f64);
    // One a second, and what a busy machine shifts between the two spans.
    assert!(flood < 3.0, "{flood} calls a second for one key that is refused");
}

/// What nodes wait for the emulator here: it takes one request at a time.
const TIMEOUT: Duration = Duration::from_secs(1);
const MILLION: &str = "- { name: one, key: [user], on_store_failure: closed, limits: [{ algorithm: fixed_window, limit: 1000000, window: 1d }] }";

/// Breaks the emulator under load in one way, and mends it: every request is answered by its deadline, by policy once the fault is
/// noticed, and by the store again, exactly, as soon as promised. Returns what the store has on its books then, and what it admitted.
fn outage(begin: fn(&mut Moto), end: fn(&mut Moto)) -> (i64, i64) {
    let _alone = alone();
    let mut server = Moto::start();
    let nodes = Node::pair(&server.url("limits"), "1s", MILLION);
    let over = Arc::new(AtomicBool::new(false));
    let load: Vec<_> = nodes
        .iter()
        .map(|node| {
            let (mut client, over) = (node.client(), over.clone());
            std::thread::spawn(move || {
                let mut asked = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let began = now();
                    let answer = check(&mut client, &[("user", "a")], 1);
                    asked.push((began, began.elapsed(), answer));
                    pass(Duration::from_millis(10));
                }
                asked
            })
        })
        .collect();
    pass(Duration::from_millis(500));
    let began = now();
    begin(&mut server);
    // Three deadlines of silence are a failure.
    let noticed = 3 * TIMEOUT + TIMEOUT / 2;
    pass(noticed + Duration::from_secs(1));
    let mended = now();
    end(&mut server);
    let back = now();
    pass(RECOVERED + Duration::from_secs(1));
    over.store(true, Ordering::Relaxed);
    let asked: Vec<_> = load.into_iter().flat_map(|one| one.join().unwrap()).collect();
    for (at, took, answer) in &asked {
        // A busy machine is late by less than that.
        assert!(*took < TIMEOUT + TIMEOUT / 2, "{answer:?} after {took:?}");
        let is_by_policy = *at > began + noticed && *at < mended;
        assert!(!is_by_policy || answer.is_fallback(), "{answer:?} while the store is away");
        assert!(*at < back + RECOVERED || answer.is_exact(), "{answer:?} after it was back");
    }
    let by_policy = asked.iter().filter(|(_, _, answer)| answer.is_fallback()).count();
    assert!(by_policy > 20, "{by_policy} answers by policy");
    let admitted = asked.iter().filter(|(_, _, answer)| answer.allowed).count();
    let spent = || 1_000_000 - left(&mut nodes[0].client(), "a");
    let books = spent();
    for client in &mut nodes.each_ref().map(Node::client) {
        (0..5).for_each(|_| assert!(check(client, &[("user", "a")], 1).allowed));
    }
    assert_eq!(spent() - books, 10, "each request of either node counts");
    (books, i64::try_from(admitted).unwrap())
}

/// AWS loses nothing. The emulator forgets all, the table too, which is here made again at once: a node would do it only when it looks
/// next, within five seconds.
#[test]
fn dynamodb_that_is_killed_and_restarted() {
    let end = |one: &mut Moto| {
        one.start_again();
        one.create_table("limits", "k");
    };
    let (spent, admitted) = outage(|one| one.process().kill(), end);
    assert!(spent < admitted, "{spent} of {admitted}: it forgot");
}

#[test]
fn dynamodb_that_stands_still() {
    let (spent, admitted) = outage(|one| one.process().pause(), |one| one.process().resume());
    // Two nodes, each with one request under way: its answer was lost, and what it spent may not have come back.
    assert!((admitted..=admitted + 8).contains(&spent), "{spent} are spent, {admitted} were admitted");
}

/// What `serve` says when it must have its store and does not start.
fn said(url: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let rules = "domain: api\nrules:\n- { name: uploads, key: [user], limits: [{ algorithm: concurrency, limit: 60000, ttl: 30s }] }";
    std::fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let path = dir.path().join("tidegate.yaml");
    let config = format!(
        "store: {{ url: '{url}' }}\nlisten: {{ http: '127.0.0.1:0' }}\nrules: {{ paths: [rules.yaml] }}\n"
    );
    std::fs::write(&path, config).unwrap();
    let done = Command::new(BINARY).arg("serve").arg("--config").arg(&path).output().unwrap();
    assert!(!done.status.success());
    String::from_utf8_lossy(&done.stderr).into_owned()
}

#[test]
fn a_limit_that_dynamodb_cannot_keep_is_refused_by_name() {
    let said = said("dynamodb://limits?region=eu-west-1");
    let expected = "rule `uploads` cannot be exact: DynamoDB cannot keep 60000 leases at once of one key";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn a_url_without_a_region_says_how_to_write_it() {
    let said = said("dynamodb://limits");
    assert!(said.contains("cannot read the store's url: it has no region"), "{said}");
}
