//! What the keys of the servers are, estimated from a few that are taken at random.
//!
//! Redis counts keys by database, not by name, and to look at all of them (`SCAN`) takes as long as there are many. A few
//! hundred at random say what part of them is what, to some five in a hundred, at the same small cost however many there are.

use futures_util::future::join_all;
use redis::{Cmd, Value};
use tidegate_store::StoreError;

use crate::client::{Call, Route};
use crate::link::Deadline;
use crate::observer::Operation;
use crate::store::{Inner, RedisStore, nonsense};

/// Keys of each server that are looked at.
const SAMPLE: u64 = 400;

/// What a key is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum KeyKind {
    /// What a caller has spent of a limit.
    Cell,
    /// What a request spent on one of several servers.
    Reservation,
    /// What nodes agree on: a secret, a lease, requests that have a name.
    Record,
    /// What nodes tell each other: who is alive, the published rules, the history.
    Fleet,
    /// Our prefix, and a layout of another release.
    OtherLayout,
    /// Another program's, or another prefix.
    Foreign,
}

impl KeyKind {
    /// All there are.
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
    /// About how many keys of each kind all servers hold together, in the order of [`KeyKind::ALL`].
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
            sums.iter_mut().zip(estimate?).for_each(|(sum, keys)| *sum += keys);
        }
        Ok(sums)
    }
}

async fn of_server(inner: &Inner, partition: u16) -> Result<[u64; KeyKind::ALL.len()], StoreError> {
    let Value::Int(keys) = ask(inner, partition, "DBSIZE").await? else { return Err(nonsense("a size")) };
    let keys = u64::try_from(keys).unwrap_or_default();
    let mut found = [0; KeyKind::ALL.len()];
    // Of a few keys, the same would be drawn again and again.
    let draws = (0..SAMPLE.min(8 * keys)).map(|_| ask(inner, partition, "RANDOMKEY"));
    for drawn in join_all(draws).await {
        if let Value::BulkString(key) = drawn? {
            found[inner.keys.kind_of(&key) as usize] += 1;
        }
    }
    let drawn = found.iter().sum::<u64>().max(1);
    Ok(found.map(|part| (keys * part + drawn / 2) / drawn))
}

async fn ask(inner: &Inner, partition: u16, name: &str) -> Result<Value, StoreError> {
    let mut command = Cmd::new();
    command.arg(name);
    let call = Call { operation: Operation::Probe, command: &command, source: None, items: 1 };
    inner.client.run(partition, call, Deadline::from_now(inner.patience())).await
}
