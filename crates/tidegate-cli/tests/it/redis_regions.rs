//! Three regions of two servers each, every region on a Redis of its own, one of which is also home: rules with `scope: global` over links
//! of 80 ms that move demand, and that break.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_testkit::{Fault, FaultProxy, Redis, eventually};

use crate::redis_world::{Node, PATIENCE, PATIENT, alone, check, now, pass, tell};

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

/// Asks every node so often a second, for `span`.
fn ask(nodes: &[Node], rates: [u64; 3], span: Duration) -> Vec<Asked> {
    let rules = ["escrow", "eventual", "near"];
    std::thread::scope(|scope| {
        let clients = nodes.iter().enumerate().map(|(place, node)| {
            scope.spawn(move || {
                let (mut client, began, mut all) = (node.client(), now(), Vec::new());
                let apart = Duration::from_secs(1) / u32::try_from(rates[place / 2]).unwrap();
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
    let mut all = Vec::new();
    for busy in 0..3 {
        let mut rates = [5; 3];
        rates[busy] = 150;
        all.extend(ask(&nodes, rates, WINDOW));
    }
    let steady = all.len();
    links[2].set(Fault::Blackhole);
    all.extend(ask(&nodes, [60, 60, 60], WINDOW));
    links[2].set(FAR);
    all.extend(ask(&nodes, [60, 60, 60], WINDOW));

    let mut admitted: BTreeMap<(&str, u64), usize> = BTreeMap::new();
    for one in all.iter().filter(|one| one.allowed) {
        if let Some(window) = clock.window_of(one) {
            *admitted.entry((one.rule, window)).or_default() += 1;
        }
    }
    tell!("admitted by window of {LIMIT}: {admitted:?}");
    for ((rule, window), admitted) in &admitted {
        match *rule {
            "escrow" => assert!(*admitted <= LIMIT, "{admitted} in window {window}"),
            // Each node may admit all of it, if it hears of nobody.
            "eventual" => assert!(*admitted <= 6 * LIMIT, "{admitted} in window {window}"),
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
