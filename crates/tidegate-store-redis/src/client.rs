//! Routes a call to the server that holds its cells, and returns the answer.
//!
//! It repeats a call only if it was certainly not applied: the server did not have the script, or the slot has
//! moved. A call that may have been applied is never sent twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, Value};
use tidegate_store::{Servers, StoreError};
use tokio::time::{Instant, sleep, timeout_at};

use crate::cluster::{self, Cluster, SlotMap};
use crate::dial::Dialer;
use crate::failure::{Failure, Redirect};
use crate::key::slot_of;
use crate::link::{Deadline, Link, Target};
use crate::observer::{Observer, Operation, Reason};
use crate::per_runtime::PerRuntime;
use crate::url::Endpoint;

/// The servers and the connections to them.
pub(crate) struct Client {
    route: Route,
    dialer: Arc<Dialer>,
    max_in_flight: usize,
    observer: Arc<dyn Observer>,
    per_runtime: PerRuntime<Connections>,
    /// The time for a decision.
    timeout: Duration,
}

/// How a tag maps to a server.
#[derive(Debug)]
pub(crate) enum Route {
    /// One server, or one master at a time.
    One { target: Target, name: String },
    /// Each tag has a fixed server.
    Sharded { endpoints: Vec<Endpoint>, shards: Servers },
    /// Each slot has a server, which can change.
    Cluster(Cluster),
}

/// The connections of one runtime.
enum Connections {
    /// One per listed server.
    Listed(Box<[Link]>),
    /// To cluster members, as they are discovered.
    Found(Mutex<HashMap<Endpoint, Arc<Link>>>, tokio::sync::Mutex<Option<Instant>>),
}

/// A command, and the source of its script.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) operation: Operation,
    pub(crate) command: &'a Cmd,
    pub(crate) source: Option<&'a str>,
    /// The number of requests or changes in it.
    pub(crate) items: usize,
}

/// The most redirects that one call follows; beyond it, the members disagree.
const MOST_REDIRECTS: usize = 5;
/// The pause before retrying a call whose slot is migrating.
const MOVING_PAUSE: Duration = Duration::from_millis(1);
/// The shortest interval between two loads of the cluster map, and the longest wait for one.
const LEARNING_PAUSE: Duration = Duration::from_millis(50);
const LEARNING_PATIENCE: Duration = Duration::from_millis(500);
/// Members asked for the map concurrently.
const ASKED_AT_ONCE: usize = 5;

impl Client {
    pub(crate) fn new(
        route: Route,
        dialer: Arc<Dialer>,
        max_in_flight: usize,
        observer: Arc<dyn Observer>,
        timeout: Duration,
    ) -> Self {
        Client { route, dialer, max_in_flight, observer, per_runtime: PerRuntime::new(), timeout }
    }

    pub(crate) fn route(&self) -> &Route {
        &self.route
    }

    /// Tags with the same number are within reach of one script.
    pub(crate) fn partition_of(&self, tag: &[u8]) -> u16 {
        match &self.route {
            Route::One { .. } => 0,
            Route::Sharded { shards, .. } => u16::try_from(shards.of(tag)).expect("the list is short"),
            Route::Cluster(_) => slot_of(tag),
        }
    }

    /// Runs a call on the server of `partition`.
    pub(crate) async fn run(
        self: &Arc<Self>,
        partition: u16,
        call: Call<'_>,
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        let began = Instant::now();
        let Some(connections) = self.per_runtime.get(|| self.new_connections()) else {
            let why = Failure::NotSent(Reason::Other, "there is no tokio runtime here".into());
            return Err(why.into_store_error(self.name(partition)));
        };
        let answer = self.run_where(&connections, partition, call, deadline).await;
        let reason = answer.as_ref().err().map(Failure::reason);
        let took = began.elapsed();
        self.observer.called(call.operation, call.items, took, reason);
        answer.map_err(|failure| {
            let server = self.name(partition);
            self.observer.failed(&server, failure.reason());
            failure.into_store_error(server)
        })
    }

    async fn run_where(
        self: &Arc<Self>,
        connections: &Arc<Connections>,
        partition: u16,
        call: Call<'_>,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        match (&self.route, &**connections) {
            (Route::Cluster(cluster), Connections::Found(..)) => {
                self.run_in(cluster, connections, partition, call, deadline).await
            }
            (Route::Sharded { .. }, Connections::Listed(links)) => {
                run_on(&links[usize::from(partition)], call, AskFirst::No, deadline).await
            }
            (_, Connections::Listed(links)) => run_on(&links[0], call, AskFirst::No, deadline).await,
            (_, Connections::Found(..)) => unreachable!("only a cluster's members are found"),
        }
    }

    /// The name of the server of `partition` for operators.
    pub(crate) fn name(&self, partition: u16) -> String {
        match &self.route {
            Route::One { name, .. } => name.clone(),
            Route::Sharded { endpoints, .. } => endpoints[usize::from(partition)].to_string(),
            Route::Cluster(cluster) => match cluster.master_of(partition) {
                Some(master) => master.to_string(),
                None => format!("slot {partition} of the cluster at {}", cluster.seeds()[0]),
            },
        }
    }

    fn new_connections(&self) -> Connections {
        match &self.route {
            Route::One { target, .. } => Connections::Listed([self.new_link(target.clone())].into()),
            Route::Sharded { endpoints, .. } => {
                let targets = endpoints.iter().cloned().map(Target::Server);
                Connections::Listed(targets.map(|target| self.new_link(target)).collect())
            }
            Route::Cluster(_) => Connections::Found(Mutex::default(), tokio::sync::Mutex::default()),
        }
    }

    fn new_link(&self, target: Target) -> Link {
        Link::new(target, Arc::clone(&self.dialer), self.max_in_flight, self.timeout)
    }

    /// Runs a call on the cluster member that serves `slot`, following redirects.
    async fn run_in(
        self: &Arc<Self>,
        cluster: &Cluster,
        connections: &Arc<Connections>,
        slot: u16,
        call: Call<'_>,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        let mut master = cluster.master_of(slot);
        let mut asking = AskFirst::No;
        for _ in 0..MOST_REDIRECTS {
            let Some(endpoint) = &master else {
                let _ = timeout_at(deadline.at, self.learn_map(cluster, connections)).await;
                master = cluster.master_of(slot);
                if master.is_none() {
                    return Err(Failure::NotSent(Reason::Cluster, "no member serves the slot".into()));
                }
                continue;
            };
            let failure = match run_on(&self.link_to(connections, endpoint), call, asking, deadline).await {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            asking = AskFirst::No;
            match failure.redirect(endpoint) {
                Some(Redirect::Moved { slot, to }) => {
                    cluster.moved(slot, &to);
                    master = Some(to);
                }
                Some(Redirect::Ask { to }) => {
                    master = Some(to);
                    asking = AskFirst::Yes;
                }
                None if failure.code() == Some("TRYAGAIN") => sleep(MOVING_PAUSE).await,
                None if !failure.is_certainly_not_applied() => {
                    self.learn_map_later(connections);
                    return Err(failure);
                }
                None => {
                    let _ = timeout_at(deadline.at, self.learn_map(cluster, connections)).await;
                    let other = cluster.master_of(slot);
                    if other == master || other.is_none() {
                        return Err(failure);
                    }
                    master = other;
                }
            }
        }
        Err(Failure::NotSent(Reason::Cluster, "the members do not agree on who serves the slot".into()))
    }

    fn link_to(&self, connections: &Connections, endpoint: &Endpoint) -> Arc<Link> {
        let Connections::Found(links, _) = connections else {
            unreachable!("only a cluster's members are found")
        };
        let mut links = links.lock();
        if let Some(link) = links.get(endpoint) {
            return Arc::clone(link);
        }
        let target = Target::Server(endpoint.clone());
        let link = Arc::new(self.new_link(target));
        links.insert(endpoint.clone(), Arc::clone(&link));
        link
    }

    /// Asks the members of a cluster for its map, unless it was loaded just now.
    async fn learn_map(&self, cluster: &Cluster, connections: &Connections) {
        let Connections::Found(links, learnt) = connections else { return };
        let mut learnt = learnt.lock().await;
        if learnt.is_some_and(|at| at.elapsed() < LEARNING_PAUSE) {
            return;
        }
        let mut command = Cmd::new();
        command.arg("CLUSTER").arg("SLOTS");
        let members = cluster.members();
        let ask = |member: Endpoint| {
            let (link, command) = (self.link_to(connections, &member), &command);
            async move {
                let answer = link.call(command, Deadline::from_now(LEARNING_PATIENCE)).await.ok()?;
                SlotMap::read(&answer, &member)
            }
        };
        let mut waiting = members.iter().cloned();
        let mut asked: FuturesUnordered<_> = waiting.by_ref().take(ASKED_AT_ONCE).map(ask).collect();
        while let Some(answer) = asked.next().await {
            if let Some(map) = answer {
                cluster.learn(map);
                break;
            }
            asked.extend(waiting.next().map(ask));
        }
        *learnt = Some(Instant::now());
        let members = cluster.members();
        links.lock().retain(|member, _| members.contains(member));
    }

    /// Like `learn_map`, in the background.
    fn learn_map_later(self: &Arc<Self>, connections: &Arc<Connections>) {
        let (client, connections) = (Arc::clone(self), Arc::clone(connections));
        tokio::spawn(async move {
            if let Route::Cluster(cluster) = &client.route {
                client.learn_map(cluster, &connections).await;
            }
        });
    }
}

impl Route {
    /// The number of nodes that cells are spread over.
    pub(crate) fn nodes(&self) -> usize {
        match self {
            Route::One { .. } => 1,
            Route::Sharded { endpoints, .. } => endpoints.len(),
            Route::Cluster(_) => cluster::NODES,
        }
    }

    /// The node of `partition`.
    pub(crate) fn node_of(&self, partition: u16) -> usize {
        match self {
            Route::One { .. } => 0,
            Route::Sharded { .. } => usize::from(partition),
            Route::Cluster(cluster) => cluster.node_of(partition),
        }
    }
}

/// Whether to send `ASKING` first, because the slot is still migrating to this member.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AskFirst {
    No,
    Yes,
}

/// Runs a call on one server; if the server lacks the script, loads it and runs the call again.
async fn run_on(link: &Link, call: Call<'_>, asking: AskFirst, deadline: Deadline) -> Result<Value, Failure> {
    let answer = match asking {
        AskFirst::No => link.call(call.command, deadline).await,
        AskFirst::Yes => link.call_all(&in_one_go(call.command, None, asking), deadline).await,
    };
    match (answer, call.source) {
        // The script did not run, so a second run is safe.
        (Err(failure), Some(source)) if failure.is_unknown_script() => {
            link.call_all(&in_one_go(call.command, Some(source), asking), deadline).await
        }
        (answer, _) => answer,
    }
}

fn in_one_go(command: &Cmd, source: Option<&str>, asking: AskFirst) -> Pipeline {
    let mut pipeline = Pipeline::new();
    if let Some(source) = source {
        pipeline.cmd("SCRIPT").arg("LOAD").arg(source);
    }
    if asking == AskFirst::Yes {
        pipeline.cmd("ASKING");
    }
    pipeline.add_command(command.clone());
    pipeline
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("route", &self.route).finish_non_exhaustive()
    }
}
