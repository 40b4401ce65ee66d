//! Items on a list of servers.

use std::sync::Arc;

use tidegate_core::{KeyRoom, Timestamp};
use tidegate_store::CallObserver;
use tidegate_store_items::{
    Changed, Deadline, Failure, ItemStore, Items, Layout, Namer, Place, ServerClock, Work,
};

use crate::change::Changer;
use crate::config::{ConfigError, MemcachedConfig};
use crate::link::Links;
use crate::upkeep::Canaries;
use crate::url::{MemcachedUrl, name};

/// The Store contract on Memcached.
pub type MemcachedStore = ItemStore<Memcached>;

/// The most leases that the limits of one key may give at once: they are one item, of at most a megabyte.
pub const MOST_LEASES: u64 = 25_000;
/// The most hits that their logs may have, for the same reason: two of the longest.
pub const MOST_LOGGED: u64 = 200_000;
/// What the servers keep of one item, with its name and their own bookkeeping, unless started with another `-I`.
pub(crate) const MOST_BYTES: usize = 1_048_576 - 512;
const USUAL_CALL: usize = 1_024;

/// The servers of a [`MemcachedStore`].
pub struct Memcached {
    pub(crate) changer: Changer,
    pub(crate) names: Namer,
    pub(crate) endpoints: Vec<String>,
    pub(crate) patience: std::time::Duration,
    observer: Arc<dyn CallObserver>,
    pub(crate) canaries: Canaries,
}

impl Items for Memcached {
    type Address = MemcachedUrl;
    type Config = MemcachedConfig;
    type ConfigError = ConfigError;

    fn open(url: &MemcachedUrl, config: &MemcachedConfig) -> Result<(Self, Layout), ConfigError> {
        config.check()?;
        let endpoints: Vec<String> = url.servers().iter().map(name).collect();
        let names = Namer::new(&config.key_prefix);
        let changer = Changer {
            links: Links::new(url.servers(), config.connect_timeout, config.max_in_flight),
            time: config.time.clone(),
            clock: ServerClock::new(),
            clock_name: names.common(b"clock"),
        };
        let patience = config.connect_timeout + config.timeout;
        let layout = Layout {
            endpoints: endpoints.clone(),
            key_prefix: config.key_prefix.clone(),
            timeout: config.timeout,
            late_answers: config.late_answers,
            patience,
            most_items: usize::MAX,
            usual_call: USUAL_CALL,
        };
        let observer = Arc::clone(&config.observer);
        let canaries = Canaries::new(endpoints.len(), config.canary_age);
        Ok((Memcached { changer, names, endpoints, patience, observer, canaries }, layout))
    }

    async fn change(
        &self,
        groups: &[Vec<Place>],
        deadline: Deadline,
        work: Work<'_>,
    ) -> Result<Changed, Failure> {
        self.changer.change(groups, deadline, work).await
    }

    fn now(&self) -> Timestamp {
        self.changer.now()
    }

    fn called(&self, server: &str, failure: Option<&'static str>) {
        self.observer.called(server, failure);
    }

    fn key_room() -> KeyRoom {
        KeyRoom::new("Memcached", MOST_LEASES, MOST_LOGGED)
    }
}

impl std::fmt::Debug for Memcached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memcached").field("endpoints", &self.endpoints).finish_non_exhaustive()
    }
}
