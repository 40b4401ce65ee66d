//! Stores that cannot be used: a node says why, in one line, and each rule's failure policy answers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};

use tidegate_testkit::{Memcached, Moto, Postgres, Redis, eventually};

use crate::redis_world::{Node, PATIENCE, check};

/// A rule for each policy; of each caller one hit.
const POLICIES: &str = "
- { name: open, match: { policy: open }, key: [user], on_store_failure: open, limits: [1/day] }
- { name: closed, match: { policy: closed }, key: [user], on_store_failure: closed, limits: [1/day] }
- { name: local, match: { policy: local }, key: [user], on_store_failure: local, limits: [1/day] }
";
/// Nobody listens there.
const NOBODY: &str = "127.0.0.1:1";

/// A node that cannot use its store from the start.
fn expect(url: &str, why: &str) {
    expect_of(&Node::start(url, "1s", POLICIES), why);
}

/// It says so in one line, and answers by policy.
fn expect_of(node: &Node, why: &str) {
    let said = || node.server.stderr();
    let is_it = |line: &&str| line.contains(why) && line.contains("rules decide by their failure policy");
    eventually(why, PATIENCE, || said().lines().any(|line| is_it(&line)));
    let mut client = node.client();
    for (policy, allowed) in [("open", true), ("closed", false), ("local", true)] {
        let mut last = None;
        let fallback = format!("fallback_{policy}");
        // A caller of its own each time: until the breaker opens, a call may be late instead.
        let mut user = 0;
        eventually(&fallback, PATIENCE, || {
            user += 1;
            let asked = [("policy", policy), ("user", &*format!("{policy}{user}"))];
            let answer = last.insert(check(&mut client, &asked, 1));
            answer.source == fallback
        });
        let last = last.expect("it was asked");
        assert_eq!(last.allowed, allowed, "{why}: {last:?}");
    }
    let all = said();
    assert_eq!(all.lines().filter(is_it).count(), 1, "{why}, once: {all}");
}

#[test]
fn postgresql_that_cannot_be_used_is_named_once_and_policies_answer() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let other = |from: &str, to: &str| url.replace(from, to);
    let database = url.rsplit('/').next().unwrap();
    expect(&other(&postgres.addr().to_string(), NOBODY), "Connection refused");
    expect(&other(database, "elsewhere"), "does not exist (create the database, or correct the URL)");
    postgres.run(
        &url,
        &format!("CREATE ROLE without_rights LOGIN; REVOKE CREATE ON DATABASE {database} FROM PUBLIC"),
    );
    expect(&other("postgres@", "without_rights@"), "permission denied for database");
    postgres.run(&url, &format!("ALTER DATABASE {database} SET default_transaction_read_only = on"));
    expect(&url, "read-only replica");
}

/// A trigger says what the server says when it cannot extend a file.
#[test]
fn postgresql_whose_disk_is_full_is_named_once_and_policies_answer() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    let node = Node::ready(&url, "1s", POLICIES);
    postgres.run(
        &url,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN \
         RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$; \
         CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON tidegate.cells FOR EACH ROW EXECUTE FUNCTION full_disk()",
    );
    expect_of(&node, "the server's disk is full");
    postgres.run(&url, "DROP TRIGGER full_disk ON tidegate.cells");
    eventually("it decides again", PATIENCE, || {
        check(&mut node.client(), &[("policy", "closed"), ("user", "again")], 0).is_exact()
    });
}

#[test]
fn postgresql_without_its_tables_and_the_right_to_make_them_is_named_once_and_policies_answer() {
    let postgres = Postgres::shared();
    let url = postgres.new_database();
    drop(Node::ready(&url, "1s", POLICIES));
    postgres.run(
        &url,
        "CREATE ROLE cannot_create LOGIN; GRANT USAGE ON SCHEMA tidegate TO cannot_create; \
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA tidegate TO cannot_create",
    );
    let node = Node::ready(&url.replace("postgres@", "cannot_create@"), "1s", POLICIES);
    postgres.run(&url, "DROP SCHEMA tidegate CASCADE");
    expect_of(&node, "the schema tidegate");
}

#[test]
fn memcached_that_cannot_be_used_is_named_once_and_policies_answer() {
    expect(&format!("memcached://{NOBODY}"), "Connection refused");
    let redis = Redis::start();
    expect(&format!("memcached://{}", redis.addr()), "it does not answer as Memcached does");
    expect(
        &format!("memcached://{}", old_memcached()),
        "Memcached 1.6.9 is too old: 1.6.14 or newer is needed",
    );
    let dir = tempfile::tempdir().unwrap();
    let logins = dir.path().join("logins");
    std::fs::write(&logins, "somebody:password\n").unwrap();
    let closed = Memcached::start_with(&["-Y", logins.to_str().unwrap()]);
    expect(&Memcached::url_of(&[&closed]), "a login is not supported");
}

/// What an old server says of its version; Debian has none.
fn old_memcached() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                while matches!(stream.read(&mut [0; 64]), Ok(1..))
                    && stream.write_all(b"VERSION 1.6.9\r\n").is_ok()
                {}
            });
        }
    });
    addr
}

#[test]
fn memcached_without_room_that_evicts_nothing_is_named_once_and_policies_answer() {
    let server = Memcached::start_with(&["-M", "-m", "2"]);
    let mut stream = std::net::TcpStream::connect(server.addr()).unwrap();
    let value = "x".repeat(60);
    let mut told = [0; 64];
    for number in 0.. {
        stream.write_all(format!("ms other{number} 60\r\n{value}\r\n").as_bytes()).unwrap();
        let length = stream.read(&mut told).unwrap();
        if told[..length].starts_with(b"SERVER_ERROR") {
            break;
        }
    }
    expect(&Memcached::url_of(&[&server]), "raise the server's -m");
}

#[test]
fn dynamodb_that_cannot_be_used_is_named_once_and_policies_answer() {
    let server = Moto::start();
    let url = server.url("limits");
    server.create_table("limits", "k");
    server.create_table("orders", "id");
    let plain = url.replace("&create=true", "");
    expect(&plain.replace(&server.addr().to_string(), NOBODY), "Connection refused");
    expect(&plain.replace("limits", "missing"), "there is no table `missing` in eu-west-1");
    expect(&plain.replace("eu-west-1", "us-east-1"), "there is no table `limits` in us-east-1");
    expect(&plain.replace("limits", "orders"), "needs one key, `k`, of type S");
    server.refuse_calls("PutItem", 400, "AccessDeniedException", u32::MAX);
    expect(&plain, "AccessDeniedException: as the test asked (the key comes from");
    server.refuse(400, "UnrecognizedClientException", u32::MAX);
    expect(&plain, "UnrecognizedClientException: as the test asked (the key comes from");
}
