//! One attack: servers, a plan, and everything that is recorded for the checker.

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use tidegate_testkit::SteppedClock;
use tidegate_testkit::resp::{Client, Value};

use crate::checker::{self, Span, Violation, slow_scripts};
use crate::history::{Answer, Asked, History, LeaseCall, LeaseWhat, Source, Trouble, What};
use crate::plan::{Plan, Shape};
use crate::pulse::Pulse;
use crate::watch::{Watch, immortal_keys, is_master, keys_of, pace_of};
use crate::world::{Node, PATIENCE, Store, now, pass, wall};

/// Servers under attack, and what happened so far.
pub(crate) struct Attack {
    pub(crate) store: Store,
    pub(crate) nodes: Vec<Node>,
    pub(crate) plan: Plan,
    pub(crate) history: History,
    /// Leases that clients hold.
    pub(crate) held: Vec<String>,
    began: Instant,
    watches: Vec<Watch>,
    pulse: Option<Pulse>,
    /// When the first node may have taken the limit of each cell.
    limits_since: Vec<Duration>,
    /// When Redis was stopped by us.
    stopped: Vec<Span>,
    violations: Vec<Violation>,
}

/// Requests that one connection sends at once, each with its shape and cost.
pub(crate) struct Pipeline {
    pub(crate) node: usize,
    pub(crate) requests: Vec<(usize, u64)>,
}

impl Attack {
    pub(crate) fn start(store: Store, nodes: usize, timeout: &str, plan: Plan) -> Self {
        let nodes: Vec<Node> = (0..nodes).map(|_| Node::start(&store.url(), timeout, &plan.yaml())).collect();
        nodes.iter().for_each(|node| node.wait_for_fleet(nodes.len()));
        let watches = store.servers().into_iter().map(Watch::start).collect();
        let pulse = Pulse::start(&store);
        let history = History {
            cells: plan.cells.clone(),
            shapes: plan.shapes.iter().map(|shape| shape.cells.clone()).collect(),
            nodes: nodes.len() as u64,
            epoch: wall(),
            reserves: store.reserves(),
            ..History::default()
        };
        let (began, limits_since) = (now(), vec![Duration::ZERO; history.cells.len()]);
        Attack {
            store,
            nodes,
            plan,
            history,
            held: Vec::new(),
            began,
            watches,
            pulse,
            limits_since,
            stopped: Vec::new(),
            violations: Vec::new(),
        }
    }

    pub(crate) fn at(&self) -> Duration {
        self.began.elapsed()
    }

    /// Sends all pipelines at once and records every answer; how many were admitted.
    pub(crate) fn burst(&mut self, pipelines: &[Pipeline]) -> usize {
        self.burst_while(pipelines, |_, _| ())
    }

    /// The same, and does something to the servers when the requests are on their way.
    pub(crate) fn burst_while(
        &mut self,
        pipelines: &[Pipeline],
        meanwhile: impl FnOnce(&mut [Node], &Store),
    ) -> usize {
        let (start, began, shapes) = (Barrier::new(pipelines.len() + 1), self.began, &self.plan.shapes);
        let clients: Vec<Option<Client>> = pipelines
            .iter()
            .map(|pipeline| Client::try_connect(self.nodes[pipeline.node].resp).ok())
            .collect();
        let (nodes, store) = (&mut self.nodes[..], &self.store);
        let asked: Vec<Asked> = std::thread::scope(|scope| {
            let send = |(pipeline, client): (&'_ Pipeline, Option<Client>)| {
                let (start, requests) = (&start, pipeline.requests.clone());
                scope.spawn(move || {
                    start.wait();
                    client.map(|client| ask_all(client, shapes, &requests, began)).unwrap_or_default()
                })
            };
            let threads: Vec<_> = pipelines.iter().zip(clients).map(send).collect();
            start.wait();
            meanwhile(nodes, store);
            threads.into_iter().flat_map(|thread| thread.join().expect("every client is answered")).collect()
        });
        let admitted = asked.iter().filter(|asked| asked.is_admitted()).count();
        let leases = asked.iter().filter_map(|asked| match &asked.answer {
            Answer::Admitted { lease, .. } => lease.clone(),
            _ => None,
        });
        self.held.extend(leases);
        self.history.asked.extend(asked);
        admitted
    }

    /// Sends one request and waits for its answer.
    pub(crate) fn ask(&mut self, node: usize, shape: usize, cost: u64) -> Answer {
        self.burst(&[Pipeline { node, requests: vec![(shape, cost)] }]);
        self.history.asked.last().map_or(Answer::Lost, |asked| asked.answer.clone())
    }

    /// Renews or gives back all `leases` at once, through one node.
    pub(crate) fn call(&mut self, node: usize, what: LeaseWhat, leases: &[String]) {
        let Ok(mut client) = Client::try_connect(self.nodes[node].resp) else { return };
        let word = match what {
            LeaseWhat::Renew => "TG.RENEW",
            LeaseWhat::Release => "TG.RELEASE",
        };
        let commands: Vec<Vec<&str>> = leases.iter().map(|lease| vec![word, lease]).collect();
        let sent = self.at();
        if client.send(&commands).is_err() {
            return;
        }
        for lease in leases {
            let reply = client.receive();
            let was_held = match reply {
                Ok(Value::Int(held)) => Some(held == 1),
                _ => None,
            };
            let received = self.at();
            self.history.lease_calls.push(LeaseCall { sent, received, lease: lease.clone(), what, was_held });
        }
    }

    /// Stops one Redis for `span` in the middle of a burst.
    pub(crate) fn stall(&mut self, server: usize, span: Duration, pipelines: &[Pipeline]) {
        self.stalled(server, |attack| {
            attack.burst_while(pipelines, |_, store| {
                store.servers()[server].pause();
                pass(span);
                store.servers()[server].resume();
            });
        });
    }

    /// Stops one Redis for as long as `asks` takes.
    pub(crate) fn stall_while(&mut self, server: usize, asks: impl FnOnce(&mut Self)) {
        self.stalled(server, |attack| {
            attack.store.servers()[server].pause();
            asks(attack);
            attack.store.servers()[server].resume();
        });
    }

    /// Notes that one Redis stands still for as long as `what` takes.
    fn stalled(&mut self, server: usize, what: impl FnOnce(&mut Self)) {
        let spares = if self.store.reserves() { self.elsewhere(server) } else { BTreeSet::new() };
        let (from, wall_from) = (self.at(), wall());
        what(self);
        let wall_until = wall();
        self.stopped.push(Span { from: wall_from, until: wall_until, waited: wall_until - wall_from });
        self.history.troubles.push(Trouble { from, until: self.at(), what: What::Stalled, spares });
    }

    /// The machine kept one server from answering anybody, as somebody saw who has nothing to do with tidegate.
    fn kept_away(&mut self, server: usize, (from, until): (Instant, Instant)) {
        let [from, until] = [from, until].map(|moment| moment.saturating_duration_since(self.began));
        if self.history.troubles_in(from, until).next().is_none() {
            let spares = if self.store.reserves() { self.elsewhere(server) } else { BTreeSet::new() };
            self.history.troubles.push(Trouble { from, until, what: What::Stalled, spares });
        }
    }

    /// Kills one Redis and starts it again, empty, in the middle of a burst.
    pub(crate) fn restart(&mut self, server: usize, pipelines: &[Pipeline]) {
        self.look_at_redis();
        let from = self.at();
        self.burst_while(pipelines, |_, store| store.servers()[server].restart());
        self.trouble(from, self.at(), What::Emptied);
        self.watches.drain(..).for_each(|watch| drop(watch.finish()));
        self.watches = self.store.servers().into_iter().map(Watch::start).collect();
    }

    /// Kills the master of a Sentinel group in the middle of a burst, and returns when another one serves.
    pub(crate) fn fail_over(&mut self, pipelines: &[Pipeline]) {
        self.look_at_redis();
        let from = self.at();
        self.burst_while(pipelines, |_, store| {
            let Store::Sentinel(group) = store else { panic!("only a Sentinel group fails over") };
            let old = group.master().addr();
            group.master().kill();
            group.wait_for_failover_from(old);
        });
        let nodes = &self.nodes;
        nodes.iter().for_each(Node::wait_ready);
        self.trouble(from, self.at(), What::Emptied);
    }

    /// Kills one node in the middle of a burst, and starts it again.
    pub(crate) fn kill_node(&mut self, node: usize, pipelines: &[Pipeline]) {
        let from = self.at();
        self.burst_while(pipelines, |nodes, _| nodes[node].come_back());
        self.trouble(from, self.at(), What::NodeDied);
    }

    /// Changes what a rule allows, on all nodes, in the middle of a burst.
    pub(crate) fn change_rules(&mut self, plan: Plan, pipelines: &[Pipeline]) {
        let (from, rules) = (self.at(), plan.yaml());
        self.burst_while(pipelines, |nodes, _| nodes.iter_mut().for_each(|node| node.change_rules(&rules)));
        // What another node remembers of the old limit heals within a second.
        let until = self.at() + Duration::from_secs(1);
        for ((cell, new), since) in self.history.cells.iter_mut().zip(&plan.cells).zip(&mut self.limits_since)
        {
            if cell.limit != new.limit {
                let old = std::mem::replace(&mut cell.limit, new.limit.clone());
                cell.earlier.push((std::mem::replace(since, from), until, old));
            }
        }
        self.plan = plan;
    }

    /// Steps the clock of the store to `seconds` from the machine's.
    pub(crate) fn step_clock(&mut self, clock: &SteppedClock, before: i64, seconds: i64) {
        let from = self.at();
        clock.set_ahead_of_the_machine(seconds);
        let what = match u64::try_from(seconds - before) {
            Ok(on) => What::SteppedOn(Duration::from_secs(on)),
            Err(_) => What::SteppedBack,
        };
        self.trouble(from, self.at(), what);
    }

    pub(crate) fn trouble(&mut self, from: Duration, until: Duration, what: What) {
        self.history.troubles.push(Trouble { from, until, what, spares: BTreeSet::new() });
    }

    /// The cells whose keys lie on other servers than this one.
    fn elsewhere(&self, server: usize) -> BTreeSet<usize> {
        let keys = keys_of(self.store.servers()[server]);
        // A key of Redis holds the value of its attribute, after its length.
        let is_here = |shape: &Shape| {
            let user =
                shape.attributes.iter().find(|(name, _)| *name == "user").map(|(_, user)| user.as_bytes());
            user.is_some_and(|user| keys.iter().any(|key| holds(key, user)))
        };
        let others = self.plan.shapes.iter().filter(|shape| !is_here(shape));
        others.flat_map(|shape| shape.cells.iter().copied()).collect()
    }

    /// Notes what Redis says now; later a restart may make it forget.
    pub(crate) fn look_at_redis(&mut self) {
        for redis in self.store.servers().into_iter().filter(|redis| is_master(redis)) {
            self.violations.extend(immortal_keys(redis));
        }
    }

    /// Ends the attack: every promise that was broken.
    pub(crate) fn finish(mut self) -> (History, Vec<Violation>) {
        self.look_at_redis();
        let watches = std::mem::take(&mut self.watches);
        let mut away = Vec::new();
        for (server, (redis, watch)) in self.store.servers().into_iter().zip(watches).enumerate() {
            let (watched, pace) = watch.finish();
            if redis.process().is_running() {
                let pace = pace.max(pace_of(redis));
                self.violations.extend(slow_scripts(&watched.looks, &self.stopped, pace));
            }
            away.extend(watched.away.into_iter().map(|span| (server, span)));
        }
        let felt = self.pulse.take().map(Pulse::finish).into_iter().flat_map(|watched| watched.away);
        away.extend(felt.map(|span| (0, span)));
        away.into_iter().for_each(|(server, span)| self.kept_away(server, span));
        let mut violations = checker::check(&self.history);
        violations.append(&mut self.violations);
        (self.history, violations)
    }
}

/// Whether a key holds `value` as one of its parts: a length byte, then the bytes.
fn holds(key: &[u8], value: &[u8]) -> bool {
    let length = u8::try_from(value.len()).expect("values in attacks are short");
    let part: Vec<u8> = [&[length], value].concat();
    key.windows(part.len()).any(|window| window == part)
}

/// Sends the requests at once, and reads the answers as they come.
fn ask_all(mut client: Client, shapes: &[Shape], requests: &[(usize, u64)], began: Instant) -> Vec<Asked> {
    client.set_patience(PATIENCE).expect("patience is not zero");
    let commands: Vec<Vec<String>> =
        requests.iter().map(|(shape, cost)| shapes[*shape].words(*cost)).collect();
    let sent = began.elapsed();
    let mut broken = client.send(&commands).is_err();
    let mut asked = Vec::with_capacity(requests.len());
    for (shape, cost) in requests {
        let reply = if broken { None } else { client.receive().ok() };
        broken |= reply.is_none();
        let answer = reply.map_or(Answer::Lost, |reply| read_answer(&reply));
        asked.push(Asked { sent, received: began.elapsed(), shape: *shape, cost: *cost, answer });
    }
    asked
}

/// allowed, limit, remaining, retry_after_ms, reset_after_ms, rule, source, lease
fn read_answer(reply: &Value) -> Answer {
    let Value::Array(parts) = reply else { panic!("not an answer to a check: {reply:?}") };
    let number = |place: usize| match parts[place] {
        Value::Int(number) => u64::try_from(number).ok(),
        _ => None,
    };
    let source = Source::read(&parts[6].text());
    let remaining = number(2).unwrap_or(0);
    match parts[0].int() {
        1 => {
            let lease = (parts[7] != Value::Nil).then(|| parts[7].text());
            Answer::Admitted { source, remaining, lease }
        }
        _ => Answer::Refused { source, remaining, retry_after: number(3).map(Duration::from_millis) },
    }
}
