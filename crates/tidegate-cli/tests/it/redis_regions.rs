//! Regions of several servers, each on a Redis of its own, one of which may also be home: rules with `scope: global` over links
//! of 80 ms that move demand, and that break; and a home that dies, comes back, and moves.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_testkit::{Fault, FaultProxy, Redis, eventually};

use crate::redis_world::{Node, PATIENCE, PATIENT, RECOVERED, alone, check, now, pass, tell};

const LIMIT: usize = 600;
const WINDOW: Duration = Duration::from_secs(5);
const FAR: Fault = Fault::Delay(Duration::from_millis(80));

const RULES: &str = "\
- { name: escrow, key: [escrow], scope: global, limits: [{ algorithm: fixed_window, limit: 600, window: 5s }] }
- { name: eventual, key: [eventual], scope: global, consistency: eventual, sync_every: 500ms, limits: [{ algorithm: fixed_window, limit: 600, window: 5s }] }
- { name: near, key: [near], limits: [{ algorithm: fixed_window, limit: 1000000, window: 5s }] }
";

/// One check: the rule that it asked, when, and what it got.
struct Asked {
    rule: &'static str,
    sent: Instant,
    received: Instant,
    allowed: bool,
}

/// Windows by home's clock, as far as the answer to one `TIME` tells.
struct HomeClock {
    before: Instant,
    after: Instant,
    us: u64,
}

impl HomeClock {
    fn read(home: &Redis) -> Self {
        let before = now();
        let time = home.cmd(&["TIME"]);
        let number = |place: usize| time.array()[place].text().parse::<u64>().unwrap();
        HomeClock { before, after: now(), us: number(0) * 1_000_000 + number(1) }
    }

    /// The window in which a check was decided; none if it may be either of two.
    fn window_of(&self, asked: &Asked) -> Option<u64> {
        let us = |at: Instant, zero: Instant| self.us + u64::try_from((at - zero).as_micros()).unwrap();
        let window = u64::try_from(WINDOW.as_micros()).unwrap();
        let [first, last] = [us(asked.sent, self.after) / window, us(asked.received, self.before) / window];
        (first == last).then_some(first)
    }
}

/// Asks every node so often a second, for `span`: the nodes are those of three regions, one after another.
fn ask(nodes: &[Node], rates: [u64; 3], span: Duration) -> Vec<Asked> {
    let rules = ["escrow", "eventual", "near"];
    std::thread::scope(|scope| {
        let clients = nodes.iter().enumerate().map(|(place, node)| {
            scope.spawn(move || {
                let (mut client, began, mut all) = (node.client(), now(), Vec::new());
                let rate = rates[place * 3 / nodes.len()];
                let apart = Duration::from_secs(1) / u32::try_from(rate).unwrap();
                for turn in 0.. {
                    if began.elapsed() >= span {
                        break;
                    }
                    for rule in rules {
                        let sent = now();
                        let answer = check(&mut client, &[(rule, "one")], 1);
                        all.push(Asked { rule, sent, received: now(), allowed: answer.allowed });
                    }
                    pass((apart * turn).saturating_sub(began.elapsed()));
                }
                all
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

/// How many were admitted of each rule in each window, as far as it is known in which window one was.
fn admitted(all: &[Asked], clock: &HomeClock) -> BTreeMap<(&'static str, u64), usize> {
    let mut admitted = BTreeMap::new();
    for one in all.iter().filter(|one| one.allowed) {
        if let Some(window) = clock.window_of(one) {
            *admitted.entry((one.rule, window)).or_default() += 1;
        }
    }
    admitted
}

fn p99(all: &[Asked], rule: &str) -> Duration {
    let mut took: Vec<Duration> =
        all.iter().filter(|one| one.rule == rule).map(|one| one.received - one.sent).collect();
    took.sort_unstable();
    took[took.len() * 99 / 100]
}

#[test]
fn three_regions_keep_a_global_limit_while_demand_moves_and_a_link_breaks() {
    let _alone = alone();
    let redises = [(); 3].map(|()| Redis::start());
    let links: Vec<FaultProxy> = (0..3).map(|_| FaultProxy::start(redises[0].addr())).collect();
    links[1..].iter().for_each(|link| link.set(FAR));
    let nodes: Vec<Node> = (0..6)
        .map(|place| {
            let region = place / 2;
            let config = format!(
                "region: r{region}\nregions: {{ home: 'redis://{}' }}\nworkers: 1\n",
                links[region].addr()
            );
            Node::start_with(&redises[region].url(), PATIENT, RULES, &config)
        })
        .collect();
    eventually("all nodes are in touch with their stores", PATIENCE, || {
        nodes.iter().all(|node| node.readyz() == "ready\n")
    });
    let clock = HomeClock::read(&redises[0]);
    // The demand moves in the middle of a window, where the next region needs what the last one holds, and at its end.
    let mut all = ask(&nodes, [5; 3], until_next_window(&clock));
    for busy in 0..3 {
        let mut rates = [5; 3];
        rates[busy] = 150;
        all.extend(ask(&nodes, rates, WINDOW * 3 / 2));
    }
    let steady = all.len();
    links[2].set(Fault::Blackhole);
    all.extend(ask(&nodes, [60, 60, 60], WINDOW));
    links[2].set(FAR);
    let back = now();
    all.extend(ask(&nodes, [60, 60, 60], WINDOW));

    let admitted = admitted(&all, &clock);
    // What others admit before a node hears of it: within `sync_every`, a round trip, and as long as a busy machine keeps a node from
    // asking: 2 s. Of the region that is cut off, a third of all, that is whatever it is asked for, until it is in touch again.
    let asked_in = |some: &[Asked], window: u64, until: Instant| {
        let is_one = |one: &&Asked| one.rule == "eventual" && one.sent < until;
        some.iter().filter(is_one).filter(|one| clock.window_of(one) == Some(window)).count()
    };
    let unheard = |window: u64| {
        let cut_off = asked_in(&all[steady..], window, back + RECOVERED) / 3;
        asked_in(&all, window, now()) * 2_000 / 5_000 + cut_off
    };
    tell!("admitted by window of {LIMIT}: {admitted:?}");
    for ((rule, window), admitted) in &admitted {
        match *rule {
            "escrow" => assert!(*admitted <= LIMIT, "{admitted} in window {window}"),
            "eventual" => {
                let bound = LIMIT + unheard(*window);
                assert!(*admitted <= bound, "{admitted} in window {window}, bound {bound}");
            }
            _ => {}
        }
    }
    // Of the windows that lie wholly within the time in which the demand moved.
    let moving: Vec<u64> = all[..steady].iter().filter_map(|one| clock.window_of(one)).collect();
    let (first, last) = (moving.iter().min().unwrap() + 1, moving.iter().max().unwrap() - 1);
    let used: usize = (first..=last).map(|window| admitted[&("escrow", window)]).sum();
    let windows = usize::try_from(last + 1 - first).unwrap();
    let (possible, thirds) = (windows * LIMIT, windows * (LIMIT / 3 + 2 * 50));
    tell!("used {used} of {possible}; fixed thirds would use {thirds}");
    tell!("p99: escrow {:?}, near {:?}", p99(&all[..steady], "escrow"), p99(&all[..steady], "near"));
    assert!(used * 10 >= possible * 9, "{used} of {possible}");
    let taken: f64 = nodes.iter().map(|node| node.metric("tidegate_share_hits_taken_total")).sum();
    assert!(taken >= used as f64 / 2.0, "{taken}");
}

/// Until a little after the next window of home's clock begins.
fn until_next_window(clock: &HomeClock) -> Duration {
    let us = u128::from(clock.us) + clock.after.elapsed().as_micros();
    let window = WINDOW.as_micros();
    Duration::from_micros(u64::try_from(window - us % window).unwrap()) + Duration::from_millis(200)
}

#[test]
fn a_home_that_is_killed_and_one_that_moves_while_it_is_asked_let_nothing_over() {
    let _alone = alone();
    let (own, home, next_home) = ([(); 3].map(|()| Redis::start()), Redis::start(), Redis::start());
    let links: Vec<FaultProxy> = (0..3).map(|_| FaultProxy::start(home.addr())).collect();
    links[1..].iter().for_each(|link| link.set(FAR));
    let nodes: Vec<Node> = (0..3)
        .map(|region| {
            let home = links[region].addr();
            let config =
                format!("region: r{region}\nregions: {{ home: {{ url: 'redis://{home}' }} }}\nworkers: 1\n");
            Node::start_with(&own[region].url(), PATIENT, RULES, &config)
        })
        .collect();
    let are_ready = || nodes.iter().all(|node| node.readyz() == "ready\n");
    eventually("all nodes are in touch with their stores", PATIENCE, are_ready);
    let clock = HomeClock::read(&home);
    let mut all = ask(&nodes, [60; 3], until_next_window(&clock));

    home.kill();
    // With what it held, each region goes on; home comes back with no counters in a window in which nothing was taken from it.
    all.extend(ask(&nodes, [60; 3], until_next_window(&clock)));
    home.restart();
    eventually("all nodes are in touch with home again", PATIENCE, are_ready);
    all.extend(ask(&nodes, [60; 3], WINDOW));

    let moved = std::thread::scope(|scope| {
        let asked = scope.spawn(|| ask(&nodes, [60; 3], 2 * WINDOW));
        let [ip, port, next_port] = [
            home.addr().ip().to_string(),
            home.addr().port().to_string(),
            next_home.addr().port().to_string(),
        ];
        next_home.cmd(&["REPLICAOF", &ip, &port]);
        eventually("the next home has all counters", PATIENCE, || {
            home.info("slave0").is_some_and(|replica| replica.contains("state=online"))
        });
        let reply = home.cmd(&["FAILOVER", "TO", &ip, &next_port]);
        tell!("FAILOVER: {reply:?}");
        eventually("the next home takes over, with all that was written", PATIENCE, || {
            next_home.info("role").as_deref() == Some("master")
                && home.info("role").as_deref() == Some("slave")
        });
        links.iter().for_each(|link| link.lead_to(next_home.addr()));
        asked.join().unwrap()
    });
    all.extend(moved);
    home.kill();
    eventually("all nodes are in touch with the next home", PATIENCE, are_ready);
    all.extend(ask(&nodes, [60; 3], until_next_window(&clock)));
    let last = all.len();
    all.extend(ask(&nodes, [60; 3], WINDOW + Duration::from_millis(500)));

    let admitted = admitted(&all, &clock);
    tell!("admitted by window of {LIMIT}: {admitted:?}");
    for ((rule, window), admitted) in &admitted {
        assert!(*rule != "escrow" || *admitted <= LIMIT, "{admitted} in window {window}");
    }
    assert!(all.iter().all(|one| one.rule != "near" || one.allowed), "no region depends on home for its own");
    // 180 a second are asked for.
    let used = all[last..].iter().filter(|one| one.rule == "escrow" && one.allowed).count();
    assert!(used * 10 >= LIMIT * 9, "{used} of {LIMIT} in a window of the next home");
}
