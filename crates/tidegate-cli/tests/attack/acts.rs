//! What an attacker does: bursts, patient clients, leases taken and given back, and faults.

use std::time::Duration;

use crate::attack::{Attack, Pipeline};
use crate::history::{Answer, LeaseWhat, Source};
use crate::plan::Plan;
use crate::random::Random;
use crate::world::pass;

/// The longest that a patient client waits: longer waits are not tried.
const LONGEST_WAIT: Duration = Duration::from_millis(2_500);

/// So often a client asks that waits for another source.
const MOST_ASKS: usize = 1_000;

/// `requests` over `connections`, on one shape or on all of them.
pub(crate) fn pipelines(
    attack: &Attack,
    random: &mut Random,
    requests: usize,
    connections: usize,
) -> Vec<Pipeline> {
    let shapes = attack.plan.shapes.len();
    let hot = random.percent(50).then(|| random.below(shapes));
    let connections = connections.clamp(1, requests);
    let pipeline = |connection| {
        let own = requests / connections + usize::from(connection < requests % connections);
        let requests = (0..own).map(|_| {
            let shape = hot.unwrap_or_else(|| random.below(shapes));
            (shape, any_cost(attack, random, shape))
        });
        Pipeline { node: connection % attack.nodes.len(), requests: requests.collect() }
    };
    (0..connections).map(pipeline).collect()
}

/// The same, at once.
pub(crate) fn burst(attack: &mut Attack, random: &mut Random, requests: usize, connections: usize) -> usize {
    let pipelines = pipelines(attack, random, requests, connections);
    attack.burst(&pipelines)
}

/// `each` equal requests on each of `connections`.
pub(crate) fn flood(attack: &mut Attack, shape: usize, connections: usize, each: usize) -> usize {
    let nodes = attack.nodes.len();
    let pipeline = |connection| Pipeline { node: connection % nodes, requests: vec![(shape, 1); each] };
    attack.burst(&(0..connections).map(pipeline).collect::<Vec<_>>())
}

/// Mostly one hit, sometimes a look or a few.
fn any_cost(attack: &Attack, random: &mut Random, shape: usize) -> u64 {
    let most =
        attack.plan.shapes[shape].cells.iter().map(|cell| attack.plan.cells[*cell].limit.capacity()).min();
    match random.below(20) {
        0 => 0,
        1 => 2.min(most.unwrap_or(1)),
        2 => 3.min(most.unwrap_or(1)),
        _ => 1,
    }
}

/// A client that spends all there is, then waits exactly as long as it is told, and asks again.
pub(crate) fn patient(attack: &mut Attack, random: &mut Random) {
    let (shape, node) = (random.below(attack.plan.shapes.len()), random.below(attack.nodes.len()));
    for _ in 0..3 {
        let mut waited = false;
        for _ in 0..40 {
            match attack.ask(node, shape, 1) {
                Answer::Refused { retry_after: Some(wait), .. } if wait <= LONGEST_WAIT => {
                    pass(wait);
                    attack.ask(node, shape, 1);
                    waited = true;
                    break;
                }
                Answer::Refused { .. } => return,
                _ => {}
            }
        }
        if !waited {
            flood(attack, shape, 2, 600);
        }
    }
}

/// A client that asks, one request after the other, until `source` has decided so often.
pub(crate) fn insist(attack: &mut Attack, shape: usize, source: Source, times: usize) {
    let first = attack.history.asked.len();
    for _ in 0..MOST_ASKS {
        attack.ask(0, shape, 1);
        let asked = &attack.history.asked[first..];
        if asked.iter().filter(|asked| asked.source() == Some(source)).count() >= times {
            return;
        }
    }
    panic!("{source:?} does not decide: {:?}", attack.history.asked.last());
}

/// Renews some leases, gives some back, and some of them twice.
pub(crate) fn leases(attack: &mut Attack, random: &mut Random) {
    let node = random.below(attack.nodes.len());
    let mut given_back = Vec::new();
    let mut renewed = Vec::new();
    let held = std::mem::take(&mut attack.held);
    for lease in held {
        match random.below(10) {
            0..5 => given_back.push(lease),
            5..7 => {
                renewed.push(lease.clone());
                attack.held.push(lease);
            }
            _ => attack.held.push(lease),
        }
    }
    attack.call(node, LeaseWhat::Renew, &renewed);
    attack.call(node, LeaseWhat::Release, &given_back);
    given_back.truncate(3);
    attack.call(random.below(attack.nodes.len()), LeaseWhat::Release, &given_back);
}

/// Gives everything back, and looks at what is left.
pub(crate) fn give_all_back(attack: &mut Attack) {
    let held = std::mem::take(&mut attack.held);
    attack.call(0, LeaseWhat::Release, &held);
    pass(Duration::from_millis(100));
    for shape in 0..attack.plan.shapes.len() {
        if attack.plan.takes_leases(shape) {
            attack.ask(0, shape, 0);
        }
    }
}

/// Other numbers in some rules.
pub(crate) fn other_numbers(attack: &Attack, random: &mut Random) -> Plan {
    let mut plan = attack.plan.clone();
    for rule in 0..plan.rules.len() {
        if random.percent(50) {
            let number = random.pick(&[1, 3, 10, 50, 500]);
            plan.set_numbers(rule, number);
        }
    }
    plan
}

/// One random act of a client.
pub(crate) fn any_act(attack: &mut Attack, random: &mut Random) {
    match random.below(10) {
        0..5 => {
            let (requests, connections) = (random.pick(&[1, 10, 60, 300, 1_500]), random.pick(&[1, 4, 16]));
            burst(attack, random, requests, connections);
        }
        5..7 => patient(attack, random),
        7..9 => leases(attack, random),
        _ => pass(Duration::from_millis(random.below(300) as u64)),
    }
}
