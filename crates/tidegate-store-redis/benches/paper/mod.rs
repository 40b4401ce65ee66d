//! Users and limits as the benchmarks of this crate use them: those of the table that the design cites.

use std::num::NonZeroU64;
use std::time::Duration;

use tidegate_core::{Ask, Group, LeaseId, Limit, Scope, Touch, append_part};
use tidegate_store::{CellKey, Spend};
use tidegate_store_redis::{RedisConfig, RedisStore};
use tidegate_testkit::Redis;

/// One cell of one user.
pub(crate) struct User {
    scope: Scope,
    key: Vec<u8>,
}

impl User {
    /// The cell of user `number` under `limit`, one of several that the user has.
    pub(crate) fn new(limit: &Limit, number: usize, cell: u8) -> Self {
        let mut key = Vec::new();
        append_part(&mut key, format!("{number:07}").as_bytes());
        let name = limit.algorithm().name().as_bytes();
        User { scope: Scope::new(&[b"api", b"per-user", name, &[b'a' + cell]]), key }
    }

    pub(crate) fn spend<'a>(&'a self, limit: &'a Limit, hits: u64, lease: u64) -> Spend<'a> {
        let lease = NonZeroU64::new(lease).map(LeaseId);
        let touch = Touch { limit, ask: Ask { lease, ..Ask::hits(hits) }, group: Group::ENFORCED };
        Spend { cell: CellKey { scope: &self.scope, key: &self.key, tag: &self.key }, touch }
    }
}

/// A store on `redis` that waits for as long as a busy machine needs.
pub(crate) fn store(redis: &Redis) -> RedisStore {
    let config = RedisConfig::default().timeout(Duration::from_secs(30));
    RedisStore::new(&redis.url().parse().expect("the testkit names a server"), &config)
        .expect("the defaults make sense")
}
