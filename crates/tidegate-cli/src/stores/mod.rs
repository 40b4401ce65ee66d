//! The stores that nodes share beside Redis, as the rest of the program sees them: an address, a store, what it reports and what
//! it costs. `kinds.rs` has one section for each, and is the only file that names them.

mod kinds;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{CellForm, Limit};
use tidegate_fleet::FleetStore;
use tidegate_store::{CallObserver, Store, StoreError};

use crate::failure::Failure;
use crate::settings::StoreSettings;

pub(crate) use kinds::{Address, KINDS};

/// How often servers are checked: whether an unavailable one is back, and how much each holds.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// One kind of store.
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    /// For programs.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) title: &'static str,
    /// How its addresses begin.
    schemes: &'static [&'static str],
    /// How to write one.
    pub(crate) form: &'static str,
    /// The feature of this program that brings it.
    feature: &'static str,
    /// Reads an address; none in a build without it.
    read: Option<ReadAddress>,
    pub(crate) costs: Costs,
}

type ReadAddress = fn(&str) -> Result<Address, Mistake>;

/// What is wrong with a setting, without any part of a login, and how to correct it.
#[derive(Debug)]
pub(crate) struct Mistake {
    pub(crate) problem: String,
    pub(crate) hint: &'static str,
}

/// What a store takes, for plans.
#[derive(Clone, Debug)]
pub(crate) struct Costs {
    /// Bytes of a counter, with all that the server keeps beside it.
    key_bytes: u64,
    /// More, for each hit of a log.
    hit_bytes: u64,
    /// More, for each lease.
    lease_bytes: u64,
    /// Round trips of a request that is admitted, where all its limits have one key, and over several keys.
    calls: [u64; 2],
    /// Microseconds of a server's core for each counter of a request; zero where nobody runs the server.
    pub(crate) us_per_counter: f64,
    /// Whether its servers share the counters, so that memory says how many there must be.
    pub(crate) is_spread: bool,
}

/// The address of a store, as operators may see it: without the login.
pub(crate) trait Locate: fmt::Display {
    /// Its kind.
    fn kind(&self) -> &'static Kind;

    /// The servers' hosts.
    fn hosts(&self) -> Vec<String>;

    /// Takes the password that stands beside it.
    fn set_password(&mut self, password: &str) -> Result<(), Mistake>;

    /// The usual time for a decision, where it is not that of all stores.
    fn timeout(&self) -> Option<Duration> {
        None
    }

    /// Opens it, without connecting.
    fn open(
        &self,
        settings: &StoreSettings,
        observer: Arc<dyn CallObserver>,
    ) -> Result<Arc<dyn SharedStore>, Failure>;
}

/// What a server reports of itself.
pub(crate) struct ServerState {
    /// Which program it is.
    pub(crate) is: String,
    pub(crate) keys: u64,
    pub(crate) bytes: u64,
    /// The most that it may have; zero if that is unbounded or unknown.
    pub(crate) most_bytes: u64,
    pub(crate) evicted: u64,
    /// What an operator should change.
    pub(crate) warnings: Vec<String>,
}

/// What a call to all servers returns, in their order.
pub(crate) type ServerStates<'a> =
    Pin<Box<dyn Future<Output = Vec<Result<ServerState, StoreError>>> + Send + 'a>>;

/// Work that does not end.
pub(crate) type Upkeep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// A store that nodes share, and what a node does there beside deciding.
pub(crate) trait SharedStore: Store + FleetStore {
    /// Looks at each server once.
    fn look_at_each(&self) -> ServerStates<'_>;

    /// How long to wait for the next look, where all is well.
    fn look_every(&self) -> Duration {
        LOOK_AGAIN
    }

    /// What else has to be done all the time.
    fn upkeep(&self) -> Upkeep<'_> {
        Box::pin(std::future::pending())
    }

    /// How many of this node's canaries were gone before their time, and how many it has looked for.
    fn canaries(&self) -> Option<(u64, u64)> {
        None
    }
}

impl Kind {
    /// The kind of store that this address names, if it is one of these.
    pub(crate) fn of(url: &str) -> Option<&'static Kind> {
        KINDS.into_iter().find(|kind| kind.schemes.iter().any(|scheme| url.starts_with(scheme)))
    }

    /// Reads an address of this kind.
    pub(crate) fn read(&self, url: &str) -> Result<Address, Failure> {
        let Some(read) = self.read else {
            let Kind { title, feature, .. } = self;
            return Err(Failure::new(format!("this program was built without {title}"))
                .hint(format!("build it with the feature `{feature}`")));
        };
        read(url).map_err(|Mistake { problem, hint }| {
            Failure::new(format!("cannot read the store's url: {problem}")).hint(hint)
        })
    }
}

impl Costs {
    /// Bytes that a fully used cell of `limit` takes.
    pub(crate) fn bytes(&self, limit: &Limit) -> u64 {
        let more = match limit.form() {
            CellForm::Log { hits, .. } => hits.saturating_mul(self.hit_bytes),
            CellForm::Leases { most } => most.saturating_mul(self.lease_bytes),
            CellForm::Counter => 0,
        };
        self.key_bytes.saturating_add(more)
    }

    /// Round trips of a request over so many keys.
    pub(crate) fn calls(&self, keys: usize) -> u64 {
        match keys {
            0 => 0,
            1 => self.calls[0],
            _ => self.calls[1],
        }
    }
}

/// A configuration that cannot be used.
pub(crate) fn cannot_use(field: &str, problem: &str, hint: &str) -> Failure {
    Failure::new(format!("cannot use the store: {field}: {problem}")).hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::{Concurrency, Micros, RefusedHits, SlidingLog};

    #[test]
    fn a_log_and_leases_cost_more_than_a_counter_on_every_store() {
        let hour = Micros::from_secs(3_600);
        let log = Limit::SlidingLog(SlidingLog::new(100, hour, Micros::ZERO, RefusedHits::Forget).unwrap());
        let leases = Limit::Concurrency(Concurrency::new(100, hour, RefusedHits::Forget).unwrap());
        for Kind { name, costs, .. } in KINDS {
            assert!(costs.bytes(&log) >= costs.key_bytes + 400, "{name}");
            assert!(costs.bytes(&leases) > costs.bytes(&log), "{name}");
            assert_eq!([0, 1, 2, 9].map(|keys| costs.calls(keys))[..2], [0, costs.calls[0]], "{name}");
        }
    }

    #[test]
    fn no_two_kinds_share_a_name_or_a_scheme() {
        let mut all: Vec<&str> = KINDS.iter().flat_map(|kind| kind.schemes).copied().collect();
        all.extend(KINDS.iter().map(|kind| kind.name));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        for kind in KINDS {
            assert!(kind.schemes.iter().any(|scheme| kind.form.starts_with(scheme)), "{}", kind.form);
            assert_eq!(Kind::of(kind.form).map(|found| found.name), Some(kind.name));
        }
        assert!(Kind::of("redis://host").is_none() && Kind::of("memory:").is_none());
    }

    #[test]
    fn a_kind_that_a_build_is_without_is_an_error_that_names_its_feature() {
        let without = Kind { read: None, ..KINDS[0].clone() };
        let failure = without.read("postgres://u@h/d").unwrap_err();
        assert!(format!("{failure:?}").contains("built without PostgreSQL"), "{failure:?}");
        assert_eq!(failure.hints(), ["build it with the feature `postgres-store`"]);
    }
}
