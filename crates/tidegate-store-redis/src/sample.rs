//! Estimates the kinds of keys on the servers from a random sample.
//!
//! Redis counts keys by database, not by name, and a full `SCAN` takes time in proportion to the keys. A few hundred random
//! keys give the share of each kind within about five percent, at a small fixed cost.

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tidegate_store::StoreError;

use crate::client::{Call, Route};
use crate::link::Deadline;
use crate::observer::Operation;
use crate::store::{Inner, RedisStore, nonsense};

/// The sample size per server.
const SAMPLE: u64 = 400;

/// The purpose of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum KeyKind {
    /// A caller's spend on a limit.
    Cell,
    /// A request's spend on one of several servers.
    Reservation,
    /// State that nodes agree on: a secret, a lease, named requests.
    Record,
    /// Data that nodes exchange: live nodes, published rules, history.
    Fleet,
    /// Our prefix with another release's layout.
    OtherLayout,
    /// Another program's key, or another prefix.
    Foreign,
}

impl KeyKind {
    /// All kinds.
    pub const ALL: [KeyKind; 6] = [
        KeyKind::Cell,
        KeyKind::Reservation,
        KeyKind::Record,
        KeyKind::Fleet,
        KeyKind::OtherLayout,
        KeyKind::Foreign,
    ];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            KeyKind::Cell => "cell",
            KeyKind::Reservation => "reservation",
            KeyKind::Record => "record",
            KeyKind::Fleet => "fleet",
            KeyKind::OtherLayout => "other_layout",
            KeyKind::Foreign => "foreign",
        }
    }
}

impl RedisStore {
    /// The estimated number of keys of each kind on all servers, in the order of [`KeyKind::ALL`].
    ///
    /// # Errors
    /// When a server does not answer.
    pub async fn estimate_keys(&self) -> Result<[u64; KeyKind::ALL.len()], StoreError> {
        let inner = &self.inner;
        let partitions = match inner.client.route() {
            Route::One { .. } => vec![0],
            Route::Sharded { endpoints, .. } => (0..).take(endpoints.len()).collect(),
            Route::Cluster(cluster) => cluster.slot_per_master(),
        };
        let mut sums = [0; KeyKind::ALL.len()];
        for estimate in join_all(partitions.into_iter().map(|partition| of_server(inner, partition))).await {
            sums.iter_mut()
                .zip(estimate?)
                .for_each(|(sum, keys): (&mut u64, u64)| *sum = sum.saturating_add(keys));
        }
        Ok(sums)
    }
}

async fn of_server(inner: &Inner, partition: u16) -> Result<[u64; KeyKind::ALL.len()], StoreError> {
    let Value::Int(keys) = ask(inner, partition, "DBSIZE").await? else { return Err(nonsense("a size")) };
    let keys = u64::try_from(keys).unwrap_or_default();
    let mut found = [0; KeyKind::ALL.len()];
    // With few keys, more draws would only repeat them.
    let draws = (0..SAMPLE.min(keys.saturating_mul(8))).map(|_| ask(inner, partition, "RANDOMKEY"));
    for drawn in join_all(draws).await {
        if let Value::BulkString(key) = drawn? {
            found[inner.keys.kind_of(&key) as usize] += 1;
        }
    }
    let drawn = u128::from(found.iter().sum::<u64>().max(1));
    // A part of all keys, which fit; a server may claim any number of them.
    let part_of = |part: u64| (u128::from(keys) * u128::from(part) + drawn / 2) / drawn;
    Ok(found.map(|part| u64::try_from(part_of(part)).unwrap_or(u64::MAX)))
}

async fn ask(inner: &Inner, partition: u16, name: &str) -> Result<Value, StoreError> {
    let mut command = Cmd::new();
    command.arg(name);
    let call = Call { operation: Operation::Probe, command: &command, source: None, items: 1 };
    inner.client.run(partition, call, Deadline::from_now(inner.patience())).await
}
