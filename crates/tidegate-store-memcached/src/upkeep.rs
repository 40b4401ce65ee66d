//! What a node does beside deciding: looks at the servers, and measures what they forget.
//!
//! A *canary* is a small item that nobody touches. Each node stores one on every server with each look, and asks for it a minute
//! later ([`canary_age`](crate::MemcachedConfig::canary_age)). One that is gone before its time was evicted, and a counter that nobody touched for a minute may be gone as well: that
//! caller has its whole quota again. (A server's own count of evictions says how many items went, not whether they mattered.)

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidegate_core::Micros;
use tidegate_store::StoreError;
use tidegate_store_items::{Deadline, Failure, Item, Items, Place, WHOLE};
use tokio::time::Instant;

use crate::store::Memcached;
use crate::wire::Reply;

/// What a server reports.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// The server's name.
    pub endpoint: String,
    /// Its version.
    pub version: String,
    /// How many items it has.
    pub items: u64,
    /// Their size.
    pub bytes: u64,
    /// The most that they may have.
    pub most_bytes: u64,
    /// How many it has evicted since it started.
    pub evictions: u64,
    /// What an operator should change.
    pub warnings: Vec<String>,
}

/// For how much longer a canary would live than it is left alone.
const CANARY_LIVES_ON: Micros = Micros::from_secs(540);
/// A look that is made more often stores no more than these.
const MOST_CANARIES: usize = 64;

/// The canaries of one process.
pub(crate) struct Canaries {
    /// For each server, when each was stored, by its number.
    stored: Mutex<Vec<VecDeque<(Instant, u64)>>>,
    next: AtomicU64,
    /// Names those of this process.
    process: [u8; 8],
    /// How long they are left alone.
    left_alone: std::time::Duration,
    /// How many were gone before their time, and how many were looked for.
    lost: AtomicU64,
    asked: AtomicU64,
}

impl Canaries {
    pub(crate) fn new(servers: usize, left_alone: std::time::Duration) -> Self {
        let process = getrandom::u64().expect("the system has random bytes").to_le_bytes();
        Canaries {
            process,
            stored: Mutex::new(vec![VecDeque::new(); servers]),
            next: AtomicU64::new(0),
            left_alone,
            lost: AtomicU64::new(0),
            asked: AtomicU64::new(0),
        }
    }
}

impl Memcached {
    /// Looks at each server once: a report, or why there is none.
    pub async fn look(&self) -> Vec<Result<ServerReport, StoreError>> {
        let mut reports = Vec::new();
        for server in 0..self.changer.links.servers().len() {
            reports.push(self.look_at(server).await);
        }
        reports
    }

    /// How many of this process's canaries were gone before their time, and how many it has looked for.
    #[must_use]
    pub fn canaries(&self) -> (u64, u64) {
        let canaries = &self.canaries;
        (canaries.lost.load(Ordering::Relaxed), canaries.asked.load(Ordering::Relaxed))
    }

    async fn look_at(&self, server: usize) -> Result<ServerReport, StoreError> {
        let endpoint = self.endpoints[server].clone();
        let deadline = Deadline::from_now(self.patience, std::time::Duration::ZERO);
        let asked = self.changer.links.call(server, b"stats\r\n", 1, deadline).await;
        let told = asked.map_err(|failure| failure.of_a_read().into_store_error(endpoint.clone()))?;
        let Some(Reply::Statistics(all)) = told.into_iter().next() else {
            let failure = Failure::NotApplied("other", "it tells no statistics".into());
            return Err(failure.into_store_error(endpoint));
        };
        let text = |name: &str| all.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value);
        let number = |name: &str| text(name).parse::<u64>().unwrap_or_default();
        let lost = self.ask_canaries(server).await?;
        let mut warnings = Vec::new();
        if lost > 0 {
            warnings.push(
                "it forgets items that nobody touched for a while: such callers have their whole quota again. Give it more \
                 memory (-m), or servers of its own"
                    .to_owned(),
            );
        }
        Ok(ServerReport {
            endpoint,
            version: text("version").to_owned(),
            items: number("curr_items"),
            bytes: number("bytes"),
            most_bytes: number("limit_maxbytes"),
            evictions: number("evictions"),
            warnings,
        })
    }

    /// Looks for the canaries that were left alone for long enough, and stores another. Returns how many are gone.
    async fn ask_canaries(&self, server: usize) -> Result<u64, StoreError> {
        let canaries = &self.canaries;
        let ripe: Vec<u64> = {
            let mut stored = canaries.stored.lock();
            let count =
                stored[server].iter().take_while(|(at, _)| at.elapsed() >= canaries.left_alone).count();
            stored[server].drain(..count).map(|(_, number)| number).collect()
        };
        let mut gone = 0;
        for number in ripe {
            let is_there = self.take_canary(server, number).await?;
            canaries.asked.fetch_add(1, Ordering::Relaxed);
            gone += u64::from(!is_there);
        }
        canaries.lost.fetch_add(gone, Ordering::Relaxed);
        let number = canaries.next.fetch_add(1, Ordering::Relaxed);
        self.change_canary(server, number, true).await?;
        let mut stored = canaries.stored.lock();
        if stored[server].len() < MOST_CANARIES {
            stored[server].push_back((Instant::now(), number));
        }
        Ok(gone)
    }

    async fn take_canary(&self, server: usize, number: u64) -> Result<bool, StoreError> {
        self.change_canary(server, number, false).await
    }

    /// Stores a canary, or takes it away; returns whether it was there.
    async fn change_canary(&self, server: usize, number: u64, is_kept: bool) -> Result<bool, StoreError> {
        let place = Place { server, name: self.names.own(b"canary", self.canaries.process, number) };
        let mut was_there = false;
        let deadline = Deadline::from_now(self.patience, std::time::Duration::ZERO);
        let lives = Micros::from(self.canaries.left_alone) + CANARY_LIVES_ON;
        let change = |_: usize, items: &mut [Item], now| {
            was_there = items[0].live_part(WHOLE, now).is_some();
            items[0].set(WHOLE, is_kept.then(|| (now + lives, b"canary".to_vec())));
        };
        let mut change = change;
        let ran = self.change(&[vec![place]], deadline, &mut change).await;
        let endpoint = self.endpoints[server].as_str();
        self.called(endpoint, ran.as_ref().err().map(Failure::reason));
        ran.map(|_| was_there).map_err(|failure| failure.into_store_error(endpoint.to_owned()))
    }
}
