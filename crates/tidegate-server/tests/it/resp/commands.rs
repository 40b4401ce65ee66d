//! Commands about the connection and the server.

use tidegate_access::SecretDigest;
use tidegate_server::resp::{RespSettings, Users};
use tidegate_testkit::resp::Value;

use super::world::{World, ask};

fn ok() -> Value {
    Value::Simple("OK".to_owned())
}

fn bulk(text: &str) -> Value {
    Value::Bulk(text.into())
}

fn with_password() -> World {
    let users = Users::default().with("default", vec![SecretDigest::of(b"s3cret")]);
    World::with_settings(RespSettings { users, ..RespSettings::default() })
}

#[test]
fn ping_and_echo_answer_what_they_are_told() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(ask(&mut client, "PING"), Value::Simple("PONG".to_owned()));
    assert_eq!(ask(&mut client, "ping hello"), bulk("hello"));
    assert_eq!(client.cmd(&[b"ECHO", &b"\x00\xff\r\n"[..]]), Value::Bulk(b"\x00\xff\r\n".to_vec()));
}

#[test]
fn an_unknown_command_is_named_and_the_connection_goes_on() {
    let world = World::new();
    let mut client = world.client();
    let reply = client.cmd(&[b"GE\r\nT", &b"key"[..]]);
    assert_eq!(reply.text(), r"ERR unknown command 'GE\r\nT', COMMAND LIST names the known ones");
    assert_eq!(ask(&mut client, "PING").text(), "PONG");
}

#[test]
fn hello_tells_of_the_server_as_an_array_or_as_a_map() {
    let world = World::new();
    let fields = |proto: char, id: &str| {
        let version = env!("CARGO_PKG_VERSION");
        format!(
            "$6\r\nserver\r\n$8\r\ntidegate\r\n$7\r\nversion\r\n${}\r\n{version}\r\n$5\r\nproto\r\n:{proto}\r\n\
             $2\r\nid\r\n:{id}\r\n$4\r\nmode\r\n$10\r\nstandalone\r\n$4\r\nrole\r\n$6\r\nmaster\r\n\
             $7\r\nmodules\r\n*0\r\n",
            version.len()
        )
    };
    world.raw().send("HELLO\r\n").expect(format!("*14\r\n{}", fields('2', "1")));
    let mut three = world.raw();
    three.send("HELLO 3 SETNAME me\r\n").expect(format!("%7\r\n{}", fields('3', "2")));
    three.send("CLIENT GETNAME\r\nRESET\r\nCLIENT GETNAME\r\n").expect("$2\r\nme\r\n+RESET\r\n$-1\r\n");
    three.send("HELLO 3\r\n").expect(format!("%7\r\n{}", fields('3', "2")));
    three.send("CLIENT GETNAME\r\n").expect("_\r\n");
}

#[test]
fn a_version_that_nobody_speaks_is_refused() {
    let world = World::new();
    let mut client = world.client();
    for version in ["1", "4", "x", "3.0"] {
        assert!(ask(&mut client, &format!("HELLO {version}")).text().starts_with("NOPROTO "), "{version}");
    }
    assert_eq!(ask(&mut client, "HELLO 3 FOO bar").text(), "ERR syntax error in HELLO option 'FOO'");
    // Nothing of it was taken over.
    assert_eq!(ask(&mut client, "CLIENT GETNAME"), Value::Nil);
}

#[test]
fn without_the_password_nothing_is_answered() {
    let world = with_password();
    let mut client = world.client();
    for command in ["PING", "CL.THROTTLE k 1 1 1", "TG.CHECK api user 1", "INFO", "COMMAND", "CLIENT ID"] {
        assert_eq!(ask(&mut client, command).text(), "NOAUTH Authentication required.", "{command}");
    }
    assert!(ask(&mut client, "HELLO 3").text().starts_with("NOAUTH "));
    for wrong in ["AUTH s3cret1", "AUTH other s3cret"] {
        assert!(ask(&mut client, wrong).text().starts_with("WRONGPASS "), "{wrong}");
    }
    assert_eq!(ask(&mut client, "PING").text(), "NOAUTH Authentication required.");
}

#[test]
fn the_password_opens_the_connection_and_reset_closes_it_again() {
    let world = with_password();
    for login in ["AUTH s3cret", "AUTH default s3cret"] {
        let mut client = world.client();
        assert_eq!(ask(&mut client, login), ok());
        assert_eq!(ask(&mut client, "PING").text(), "PONG");
    }
    let mut client = world.client();
    assert_eq!(ask(&mut client, "HELLO 2 AUTH default s3cret SETNAME me").array().len(), 14);
    assert_eq!(ask(&mut client, "CLIENT GETNAME"), bulk("me"));
    assert_eq!(ask(&mut client, "RESET").text(), "RESET");
    assert_eq!(ask(&mut client, "PING").text(), "NOAUTH Authentication required.");
}

#[test]
fn a_stranger_gets_less_room() {
    let world = with_password();
    world
        .raw()
        .send("*17\r\n")
        .expect_end("-ERR Protocol error: invalid multibulk length, at most 16 arguments are allowed\r\n");
    world
        .raw()
        .send("*2\r\n$4\r\nAUTH\r\n$4097\r\n")
        .expect_end("-ERR Protocol error: invalid bulk length, at most 4096 bytes are allowed\r\n");
    let mut friend = world.raw();
    friend.send("AUTH s3cret\r\n").expect("+OK\r\n");
    let long = "x".repeat(5_000);
    friend.send(format!("*2\r\n$4\r\nECHO\r\n$5000\r\n{long}\r\n")).expect(format!("$5000\r\n{long}\r\n"));
}

#[test]
fn a_password_where_none_is_wanted_is_an_error_that_clients_know() {
    let world = World::new();
    let reply = ask(&mut world.client(), "AUTH secret").text();
    assert!(reply.starts_with("ERR AUTH <password> called without any password configured"), "{reply}");
}

#[test]
fn each_of_sixteen_databases_counts_apart() {
    let world = World::new();
    let mut client = world.client();
    let throttle = "CL.THROTTLE k 0 1 60";
    let limited = |reply: Value| reply.array()[0].clone();
    assert_eq!(limited(ask(&mut client, throttle)), Value::Int(0));
    assert_eq!(ask(&mut client, "SELECT 15"), ok());
    assert_eq!(limited(ask(&mut client, throttle)), Value::Int(0));
    assert_eq!(limited(ask(&mut client, throttle)), Value::Int(1));
    assert_eq!(ask(&mut client, "SELECT 0"), ok());
    assert_eq!(limited(ask(&mut client, throttle)), Value::Int(1));
    for wrong in ["16", "-1", "x"] {
        let reply = ask(&mut client, &format!("SELECT {wrong}")).text();
        assert_eq!(reply, "ERR DB index is out of range, use 0 to 15");
    }
}

#[test]
fn a_transaction_runs_in_a_row_and_answers_together() {
    let world = World::new();
    let mut client = world.client();
    let line = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
    let throttle = "CL.THROTTLE k 0 1 60";
    let commands = ["MULTI", throttle, "TG.CHECK smooth", throttle, "PING", "EXEC", "EXEC"];
    let replies = client.pipeline(&commands.map(line));
    assert_eq!(replies[0], ok());
    assert!(replies[1..5].iter().all(|reply| reply.text() == "QUEUED"), "{replies:?}");
    let answers = replies[5].array();
    assert_eq!(answers[0].array()[0], Value::Int(0));
    assert_eq!(answers[1].array()[0], Value::Int(1));
    assert_eq!(answers[2].array()[0], Value::Int(1));
    assert_eq!((answers[3].text(), answers.len()), ("PONG".to_owned(), 4));
    assert_eq!(replies[6].text(), "ERR EXEC without MULTI");
}

#[test]
fn a_transaction_with_a_mistake_runs_nothing() {
    let world = World::new();
    let mut client = world.client();
    assert_eq!(ask(&mut client, "MULTI"), ok());
    assert_eq!(ask(&mut client, "CL.THROTTLE k 0 1 60").text(), "QUEUED");
    assert!(ask(&mut client, "GET k").text().starts_with("ERR unknown command"));
    assert!(ask(&mut client, "EXEC").text().starts_with("EXECABORT"));
    assert_eq!(ask(&mut client, "MULTI"), ok());
    assert_eq!(ask(&mut client, "MULTI").text(), "ERR MULTI calls can not be nested");
    assert_eq!(ask(&mut client, "CL.THROTTLE k 0 1 60").text(), "QUEUED");
    assert_eq!(ask(&mut client, "DISCARD"), ok());
    assert_eq!(ask(&mut client, "CL.THROTTLE k 0 1 60").array()[0], Value::Int(0));
    assert!(ask(&mut client, "WATCH k").text().starts_with("ERR WATCH is not supported"));
}

#[test]
fn a_transaction_is_bounded_and_not_for_strangers() {
    let world = World::new();
    let mut client = world.client();
    ask(&mut client, "MULTI");
    for _ in 0..1024 {
        assert_eq!(ask(&mut client, "PING").text(), "QUEUED");
    }
    assert!(ask(&mut client, "PING").text().contains("too large"));
    assert!(ask(&mut client, "EXEC").text().starts_with("EXECABORT"));
    assert!(ask(&mut with_password().client(), "MULTI").text().starts_with("NOAUTH"));
}

#[test]
fn a_client_names_itself_and_its_library() {
    let world = World::new();
    let mut client = world.client();
    for command in [
        "CLIENT SETNAME worker-1",
        "CLIENT SETINFO lib-name redis-py",
        "CLIENT SETINFO LIB-VER 5.0",
        "CLIENT NO-EVICT on",
        "CLIENT NO-TOUCH OFF",
    ] {
        assert_eq!(ask(&mut client, command), ok(), "{command}");
    }
    let id = ask(&mut client, "CLIENT ID").int();
    let described = format!("id={id} name=worker-1 db=0 user=default lib-name=redis-py lib-ver=5.0 resp=2\n");
    assert_eq!(ask(&mut client, "CLIENT INFO").text(), described);
    assert_eq!(ask(&mut world.client(), "CLIENT ID").int(), id + 1);
    for command in ["CLIENT KILL x", "CLIENT SETNAME", "CLIENT SETINFO x y", "CLIENT NO-EVICT maybe"] {
        assert!(ask(&mut client, command).is_error(), "{command}");
    }
    assert!(client.cmd(&["CLIENT", "SETNAME", "a b"]).is_error());
    assert!(client.cmd(&["CLIENT", "SETNAME", &"x".repeat(257)]).is_error());
}

#[test]
fn commands_are_counted_listed_and_documented() {
    let world = World::new();
    let mut client = world.client();
    let count = usize::try_from(ask(&mut client, "COMMAND COUNT").int()).unwrap();
    let names: Vec<String> = ask(&mut client, "COMMAND LIST").array().iter().map(Value::text).collect();
    assert_eq!(names.len(), count);
    assert_eq!(ask(&mut client, "COMMAND").array().len(), count);
    assert_eq!(ask(&mut client, "COMMAND DOCS").array().len(), 2 * count);

    let reply = ask(&mut client, "COMMAND INFO CL.THROTTLE nothing ping");
    let [throttle, Value::Nil, ping] = reply.array() else { panic!("{reply:?}") };
    let [name, arity, _flags, first, last, step, ..] = throttle.array() else { panic!("{throttle:?}") };
    assert_eq!((name.text().as_str(), arity.int()), ("cl.throttle", -5));
    assert_eq!((first.int(), last.int(), step.int()), (1, 1, 1));
    assert_eq!(ping.array()[1].int(), -1);

    let reply = ask(&mut client, "COMMAND DOCS throttle nothing");
    let [name, facts] = reply.array() else { panic!("{reply:?}") };
    assert_eq!(name.text(), "throttle");
    let [_, summary, .., arguments] = facts.array() else { panic!("{facts:?}") };
    assert_eq!(summary.text(), "The same as throttlecrab counts and answers it: 1 is allowed");
    let usage = &arguments.array()[0].array()[1];
    assert_eq!(usage.text(), "key max_burst count period [quantity]");
    assert!(ask(&mut client, "COMMAND NONSENSE").is_error());
}

#[test]
fn info_tells_sections_that_clients_look_for() {
    let world = World::new();
    let mut client = world.client();
    let _other = world.client();
    let all = ask(&mut client, "INFO").text();
    for line in
        ["redis_version:7.0.0\r\n", "loading:0\r\n", "role:master\r\n", "# Clients\r\nconnected_clients:"]
    {
        assert!(all.contains(line), "{line:?} in {all}");
    }
    assert_eq!(ask(&mut client, "INFO everything").text().matches("# ").count(), 5);
    let stats = ask(&mut client, "INFO stats persistence").text();
    assert_eq!(stats.matches("# ").count(), 2);
    assert!(stats.contains("total_commands_processed:2\r\n"), "{stats}");
}

#[test]
fn quit_is_answered_and_ends_the_connection() {
    let world = World::new();
    world.raw().send("PING\r\nQUIT\r\nPING\r\n").expect_end("+PONG\r\n+OK\r\n");
}
