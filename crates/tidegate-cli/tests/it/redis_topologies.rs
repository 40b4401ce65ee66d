//! Sentinel groups and clusters that fail over, split and move under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tidegate_testkit::resp::{Client, Value};
use tidegate_testkit::{Fault, FaultProxy, Redis, RedisCluster, SentinelGroup, eventually, in_three_tries};

use crate::redis_outage::{Memory, NOTICED, Outage, Reach};
use crate::redis_world::{
    DEFAULT, Load, Node, PATIENCE, PATIENT, POLICY_RULES, RECOVERED, alone, assert_exact, check, left, now,
    pass, tell,
};

const THOUSAND: &str =
    "- { name: one, key: [user], limits: [{ algorithm: fixed_window, limit: 1000, window: 1d }] }";

/// The sentinels are asked to switch: the old master turns into a replica that answers READONLY.
fn switch_on_request(group: &SentinelGroup) -> Result<(), String> {
    let nodes = Node::pair(&group.url(), DEFAULT, POLICY_RULES);
    let load = Load::start(&nodes.each_ref(), 2);
    let (old, began) = (group.master().addr(), load.at());
    group.sentinels()[0].cmd(&["SENTINEL", "FAILOVER", group.service()]);
    group.wait_for_failover_from(old);
    let switched = load.at();
    pass(RECOVERED);
    assert_exact(&nodes.each_ref(), "Sentinel switch");
    let outcome = load.finish();
    outcome.is_prompt("Sentinel switch")?;
    outcome.is_exact_again("Sentinel switch", switched)?;
    outcome.obeys("Sentinel switch", began..switched + RECOVERED)
}

#[test]
fn a_sentinel_group_that_switches_and_one_whose_master_dies() {
    let _alone = alone();
    in_three_tries(|| {
        let group = SentinelGroup::start();
        switch_on_request(&group)?;
        let old = group.master().addr();
        let replica = group.nodes().iter().find(|node| node.addr() != old).expect("two nodes");
        eventually("the old master follows the new one", PATIENCE, || {
            replica.info("master_link_status").as_deref() == Some("up")
        });
        // What was written last may not have reached the replica.
        let url = group.url();
        let lasts = Duration::from_millis(1_200);
        Outage {
            what: "Sentinel master killed",
            url,
            lasts,
            noticed: NOTICED,
            memory: Memory::Lost,
            reach: Reach::All,
        }
        .run(|| group.master().kill(), || _ = group.wait_for_failover_from(old))
    });
}

#[test]
fn a_cluster_whose_master_dies() {
    let _alone = alone();
    in_three_tries(|| {
        let cluster = RedisCluster::start();
        let lasts = Duration::from_millis(900);
        let url = cluster.url();
        Outage {
            what: "Cluster master killed",
            url,
            lasts,
            noticed: NOTICED,
            memory: Memory::Lost,
            reach: Reach::Some,
        }
        .run(|| cluster.nodes()[0].kill(), || cluster.wait_until_whole())
    });
}

/// Which users live on which master, by the keys that each holds.
fn users_of(master: &Redis, users: &[String]) -> Vec<String> {
    let keys: Vec<String> = master.cmd(&["KEYS", "*"]).array().iter().map(Value::text).collect();
    users.iter().filter(|user| keys.iter().any(|key| key.contains(user.as_str()))).cloned().collect()
}

/// Promise 8: a node that was told of one seed knows all masters, and one that dies takes only its own keys along.
#[test]
fn a_cluster_of_which_one_seed_is_named_loses_only_the_keys_of_the_masters_that_die() {
    let _alone = alone();
    in_three_tries(|| {
        let cluster = RedisCluster::start();
        let url = format!("redis+cluster://{}", cluster.nodes()[0].addr());
        let node = Node::ready(&url, DEFAULT, POLICY_RULES);
        let mut client = node.client();
        let users: Vec<String> = (0..24).map(|number| format!("somebody-{number:02}")).collect();
        let mut ask = |user: &String| check(&mut client, &[("policy", "open"), ("user", user)], 1);
        for user in &users {
            eventually("the store decides", PATIENCE, || ask(user).source == "store");
        }
        let homes = [0, 1, 2].map(|master: usize| users_of(&cluster.nodes()[master], &users));
        assert!(homes.iter().all(|home| home.len() >= 2), "{homes:?}");
        let mut late = 0;
        // Another one, then the seed: all within the second in which the others do not know of it yet.
        for (dies, alive) in [(1, &[0, 2][..]), (0, &[2])] {
            cluster.nodes()[dies].kill();
            let died = now();
            let (mut lost, mut healthy) = (Vec::new(), Vec::new());
            while died.elapsed() < Duration::from_millis(400) {
                lost.extend(homes[dies].iter().map(&mut ask));
                healthy.extend(alive.iter().flat_map(|master| &homes[*master]).map(&mut ask));
            }
            tell!("master {dies} died: {} answers for its keys, {} for others", lost.len(), healthy.len());
            assert!(lost.iter().all(|answer| answer.source != "store"), "{lost:?}");
            let failed = healthy.iter().find(|answer| answer.is_fallback());
            assert!(failed.is_none() && healthy.len() > 20, "master {dies} took others along: {failed:?}");
            late += healthy.iter().filter(|answer| answer.source != "store").count();
        }
        // On a busy machine an answer may be late.
        if late == 0 { Ok(()) } else { Err(format!("{late} answers were late")) }
    });
}

/// Lets nobody new in, and throws the replica and the sentinels out: they take the master for dead, while a client that
/// is connected goes on.
fn part_from_its_peers(master: &Redis) {
    let mut client = master.client();
    client.cmd(&["CONFIG", "SET", "requirepass", "parted"]);
    let clients = client.cmd(&["CLIENT", "LIST"]).text();
    let field = |line: &str, name: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(name).map(str::to_owned)).unwrap_or_default()
    };
    for line in clients.lines() {
        if field(line, "name=").starts_with("sentinel-") || field(line, "flags=").contains(['S', 'P']) {
            client.cmd(&["CLIENT", "KILL", "ID", &field(line, "id=")]);
        }
    }
}

fn take(client: &mut Client, most: usize) -> usize {
    (0..most).filter(|_| check(client, &[("user", "split")], 1).allowed).count()
}

/// Two nodes, each with another half of a parted network: both masters go on from what was replicated, so together they
/// admit at most the limit, and once more what was left of it. When the halves meet, one truth remains.
#[test]
fn a_parted_master_admits_at_most_what_was_left_once_more() {
    let _alone = alone();
    let group = SentinelGroup::start();
    let (old, proxies): (_, Vec<FaultProxy>) =
        (group.master(), group.sentinels().iter().map(|one| FaultProxy::start(one.addr())).collect());
    let hosts: Vec<String> = proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
    let apart =
        Node::ready(&format!("redis+sentinel://{}/{}", hosts.join(","), group.service()), PATIENT, THOUSAND);
    let with_most = Node::ready(&group.url(), PATIENT, THOUSAND);
    let (mut one, mut other) = (apart.client(), with_most.client());
    assert_eq!(take(&mut one, 150) + take(&mut other, 150), 300);
    old.client().cmd(&["WAIT", "1", "5000"]);

    proxies.iter().for_each(|proxy| proxy.set(Fault::Blackhole));
    part_from_its_peers(old);
    let new = group.wait_for_failover_from(old.addr());
    eventually("a node that hears the sentinels follows them", PATIENCE, || {
        check(&mut other, &[("user", "somebody")], 1).allowed
            && !new.info("db0").unwrap_or_default().is_empty()
            && new.cmd(&["DBSIZE"]).int() > 0
            && with_most.readyz() == "ready\n"
    });
    let during = (take(&mut one, 400), take(&mut other, 1_000));
    let total = 300 + during.0 + during.1;
    tell!("split brain: 300 before, {} and {} while parted, {total} in all of 1000", during.0, during.1);
    assert_eq!(during, (400, 700), "each half admits at most what was left when they parted");

    // The halves meet: the old master becomes a replica of the new one, and what it alone knew is gone.
    let mut client = Client::connect(old.addr());
    client.cmd(&["AUTH", "parted"]);
    client.cmd(&["CONFIG", "SET", "requirepass", ""]);
    client.cmd(&["REPLICAOF", "127.0.0.1", &new.addr().port().to_string()]);
    proxies.iter().for_each(FaultProxy::resume);
    let met = now();
    eventually("both nodes tell the same", PATIENCE, || {
        left(&mut one, "split") == 0 && left(&mut other, "split") == 0
    });
    tell!("split brain: one truth again {:?} after the halves met", met.elapsed());
    assert_eq!(take(&mut one, 50) + take(&mut other, 50), 0);
}

/// Moves `slot` from one master to the other, key by key, and tells all `masters`, as an operator's tool does.
fn migrate(slot: u16, from: &Redis, to: &Redis, masters: &[Redis]) {
    let done = |node: &Redis, words: &[&[u8]]| {
        let reply = node.cmd(words);
        assert!(!reply.is_error(), "{reply:?}");
        reply
    };
    let id = |node: &Redis| node.cmd(&["CLUSTER", "MYID"]).text();
    let (from_id, to_id, slot) = (id(from), id(to), slot.to_string());
    let set_slot = |node: &Redis, state: &[u8], other: &str| {
        done(node, &[b"CLUSTER", b"SETSLOT", slot.as_bytes(), state, other.as_bytes()]);
    };
    set_slot(to, b"IMPORTING", &from_id);
    set_slot(from, b"MIGRATING", &to_id);
    loop {
        let keys = done(from, &[b"CLUSTER", b"GETKEYSINSLOT", slot.as_bytes(), b"10"]);
        let Some(Value::Bulk(key)) = keys.array().first() else { break };
        let port = to.addr().port().to_string();
        done(from, &[b"MIGRATE", b"127.0.0.1", port.as_bytes(), key, b"0", b"1000"]);
    }
    set_slot(to, b"NODE", &to_id);
    set_slot(from, b"NODE", &to_id);
    for other in masters {
        set_slot(other, b"NODE", &to_id);
    }
}

/// The port of the master of `slot`, as `node` sees it.
fn serves(node: &Redis, slot: u16) -> u16 {
    let ranges = node.cmd(&["CLUSTER", "SLOTS"]);
    let range = ranges.array().iter().find(|range| {
        let (from, to) = (range.array()[0].int(), range.array()[1].int());
        (from..=to).contains(&i64::from(slot))
    });
    range.map_or(0, |range| u16::try_from(range.array()[2].array()[1].int()).expect("a port"))
}

#[test]
fn a_slot_that_moves_under_load_counts_every_request_once() {
    let _alone = alone();
    let cluster = RedisCluster::start();
    let nodes = Node::pair(&cluster.url(), PATIENT, THOUSAND);
    assert!(check(&mut nodes[0].client(), &[("user", "mover")], 1).allowed);
    let masters = &cluster.nodes()[..3];
    let key = masters.iter().find_map(|master| {
        let keys = master.cmd(&["KEYS", "*mover*"]);
        keys.array().first().map(|key| match key {
            Value::Bulk(key) => key.clone(),
            other => panic!("a key is a string, not {other:?}"),
        })
    });
    let slot = tidegate_testkit::slot_of(&key.expect("the user has a key"));
    let (admitted, stop) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicBool::new(false)));
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let (admitted, stop, mut client) = (admitted.clone(), stop.clone(), nodes[number % 2].client());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let answer = check(&mut client, &[("user", "mover")], 1);
                    assert!(answer.is_exact(), "{answer:?}");
                    admitted.fetch_add(usize::from(answer.allowed), Ordering::Relaxed);
                    pass(Duration::from_millis(40));
                }
            })
        })
        .collect();
    let mut moves = 0;
    while admitted.load(Ordering::Relaxed) < 1_000 && moves < 200 {
        let from = cluster.master_of(slot);
        let to = masters.iter().find(|node| node.addr() != from.addr()).expect("three masters");
        migrate(slot, from, to, masters);
        moves += 1;
        // Members tell each other twice within their time-out of a second. Before all have heard of one move, another
        // can make them disagree for good.
        pass(Duration::from_millis(700));
        eventually("the members agree on who serves the slot", PATIENCE, || {
            cluster.nodes().iter().all(|node| serves(node, slot) == to.addr().port())
        });
    }
    eventually("the limit is reached", PATIENCE, || admitted.load(Ordering::Relaxed) >= 1_000);
    pass(Duration::from_millis(200));
    stop.store(true, Ordering::Relaxed);
    clients.into_iter().for_each(|client| client.join().expect("every answer was exact"));
    tell!("slot migration: moved {moves} times, {} admitted", admitted.load(Ordering::Relaxed));
    assert!(moves >= 3, "it hardly moved");
    assert_eq!(admitted.load(Ordering::Relaxed), 1_000);
}
