//! Each kind of shared store, a section each: how it is named, read, opened and watched, and what it costs.
//!
//! A new one needs its place in the list, a variant with its two arms, and a section. What a counter costs is what `cargo xtask bench
//! stores` prints of 100,000 keys with 256 requests in flight (bytes a user; CPU us, server), rounded up.

use std::ops::{Deref, DerefMut};

use super::{Costs, Kind, Locate};

/// All kinds, also those that a build is without.
pub(crate) static KINDS: [&Kind; 3] = [&POSTGRES, &MEMCACHED, &DYNAMODB];

/// The address of a store of any of these kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    #[cfg(feature = "postgres-store")]
    Postgres(tidegate_store_postgres::PostgresUrl),
    #[cfg(feature = "memcached")]
    Memcached(tidegate_store_memcached::MemcachedUrl),
    #[cfg(feature = "dynamodb")]
    DynamoDb(tidegate_store_dynamodb::DynamoDbUrl),
}

impl Deref for Address {
    type Target = dyn Locate;

    fn deref(&self) -> &Self::Target {
        match *self {
            #[cfg(feature = "postgres-store")]
            Address::Postgres(ref url) => url,
            #[cfg(feature = "memcached")]
            Address::Memcached(ref url) => url,
            #[cfg(feature = "dynamodb")]
            Address::DynamoDb(ref url) => url,
        }
    }
}

impl DerefMut for Address {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match *self {
            #[cfg(feature = "postgres-store")]
            Address::Postgres(ref mut url) => url,
            #[cfg(feature = "memcached")]
            Address::Memcached(ref mut url) => url,
            #[cfg(feature = "dynamodb")]
            Address::DynamoDb(ref mut url) => url,
        }
    }
}

static POSTGRES: Kind = Kind {
    name: "postgres",
    title: "PostgreSQL",
    schemes: &["postgres://", "postgresql://"],
    form: "postgres://user@host/database",
    feature: "postgres-store",
    #[cfg(feature = "postgres-store")]
    read: Some(postgres::read),
    #[cfg(not(feature = "postgres-store"))]
    read: None,
    // Measured: 10.2 us, and 217 bytes; 344 in a new table, of which no page was swept yet. Half of every page is left free, so
    // what is appended to a row takes twice its size.
    costs: Costs {
        key_bytes: 350,
        hit_bytes: 10,
        lease_bytes: 28,
        calls: [2, 2],
        us_per_counter: 15.0,
        is_spread: false,
    },
};

#[cfg(feature = "postgres-store")]
mod postgres {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_limiter::LATE_CALLS_HEARD_FOR;
    use tidegate_store::CallObserver;
    use tidegate_store_postgres::{PostgresConfig, PostgresStore, PostgresUrl, TlsFiles};

    use super::{Address, POSTGRES};
    use crate::failure::Failure;
    use crate::settings::StoreSettings;
    use crate::stores::{Kind, Locate, Mistake, ServerState, ServerStates, SharedStore, Upkeep, cannot_use};

    const SWEEP_EVERY: Duration = Duration::from_secs(1);

    pub(super) fn read(url: &str) -> Result<Address, Mistake> {
        let read = url.parse().map(Address::Postgres);
        read.map_err(|error: tidegate_store_postgres::UrlError| Mistake {
            problem: error.problem,
            hint: error.hint,
        })
    }

    impl Locate for PostgresUrl {
        fn kind(&self) -> &'static Kind {
            &POSTGRES
        }

        fn hosts(&self) -> Vec<String> {
            PostgresUrl::hosts(self).collect()
        }

        fn set_password(&mut self, password: &str) -> Result<(), Mistake> {
            if self.has_password() {
                let problem = "the url has a password too".to_owned();
                return Err(Mistake { problem, hint: "keep one of them" });
            }
            PostgresUrl::set_password(self, password);
            Ok(())
        }

        fn open(
            &self,
            settings: &StoreSettings,
            observer: Arc<dyn CallObserver>,
        ) -> Result<Arc<dyn SharedStore>, Failure> {
            let default = PostgresConfig::default();
            let mut tls = TlsFiles::default();
            (tls.ca, tls.certificate, tls.key) =
                (settings.tls.ca.clone(), settings.tls.certificate.clone(), settings.tls.key.clone());
            let config = PostgresConfig::default()
                .key_prefix(settings.key_prefix.clone().unwrap_or(default.key_prefix))
                .timeout(settings.timeout.unwrap_or(default.timeout))
                .late_answers(LATE_CALLS_HEARD_FOR.into())
                .tls(tls)
                .observer(observer);
            let opened = PostgresStore::new(self, &config);
            Ok(Arc::new(opened.map_err(|error| cannot_use(error.field, &error.problem, error.hint))?))
        }
    }

    impl SharedStore for PostgresStore {
        fn look_at_each(&self) -> ServerStates<'_> {
            Box::pin(async {
                let state = self.look().await.map(|report| ServerState {
                    is: format!("PostgreSQL {}", report.version),
                    keys: report.rows,
                    bytes: report.bytes,
                    most_bytes: 0,
                    evicted: 0,
                    warnings: report.warnings,
                });
                vec![state]
            })
        }

        fn upkeep(&self) -> Upkeep<'_> {
            Box::pin(async {
                let mut ticks = tokio::time::interval(SWEEP_EVERY);
                ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                loop {
                    ticks.tick().await;
                    // What it could not delete now it finds again in a minute; whether the server answers, the looks say.
                    let _ = self.sweep().await;
                }
            })
        }
    }
}

static MEMCACHED: Kind = Kind {
    name: "memcached",
    title: "Memcached",
    schemes: &["memcached://"],
    form: "memcached://host,host",
    feature: "memcached",
    #[cfg(feature = "memcached")]
    read: Some(memcached::read),
    #[cfg(not(feature = "memcached"))]
    read: None,
    // Measured: 3.8 us, and 155 bytes.
    costs: Costs {
        key_bytes: 180,
        hit_bytes: 5,
        lease_bytes: 14,
        calls: [2, 3],
        us_per_counter: 5.0,
        is_spread: true,
    },
};

#[cfg(feature = "memcached")]
mod memcached {
    use std::sync::Arc;

    use tidegate_limiter::LATE_CALLS_HEARD_FOR;
    use tidegate_store::CallObserver;
    use tidegate_store_memcached::{Memcached, MemcachedConfig, MemcachedStore, MemcachedUrl};

    use super::{Address, MEMCACHED};
    use crate::failure::Failure;
    use crate::settings::StoreSettings;
    use crate::stores::{Kind, Locate, Mistake, ServerState, ServerStates, SharedStore, cannot_use};

    pub(super) fn read(url: &str) -> Result<Address, Mistake> {
        let read = url.parse().map(Address::Memcached);
        read.map_err(|error: tidegate_store_memcached::UrlError| Mistake {
            problem: error.problem,
            hint: error.hint,
        })
    }

    impl Locate for MemcachedUrl {
        fn kind(&self) -> &'static Kind {
            &MEMCACHED
        }

        fn hosts(&self) -> Vec<String> {
            MemcachedUrl::hosts(self).map(str::to_owned).collect()
        }

        fn set_password(&mut self, _: &str) -> Result<(), Mistake> {
            let problem = "Memcached asks for no login".to_owned();
            Err(Mistake { problem, hint: "let only trusted machines reach it" })
        }

        fn open(
            &self,
            settings: &StoreSettings,
            observer: Arc<dyn CallObserver>,
        ) -> Result<Arc<dyn SharedStore>, Failure> {
            let default = MemcachedConfig::default();
            let config = MemcachedConfig::default()
                .key_prefix(settings.key_prefix.clone().unwrap_or(default.key_prefix))
                .timeout(settings.timeout.unwrap_or(default.timeout))
                .late_answers(LATE_CALLS_HEARD_FOR.into())
                .observer(observer);
            let opened = MemcachedStore::new(self, &config);
            Ok(Arc::new(opened.map_err(|error| cannot_use(error.field, &error.problem, error.hint))?))
        }
    }

    impl SharedStore for MemcachedStore {
        fn look_at_each(&self) -> ServerStates<'_> {
            Box::pin(async {
                let reports = self.look().await.into_iter();
                let state = |report: tidegate_store_memcached::ServerReport| ServerState {
                    is: format!("Memcached {}", report.version),
                    keys: report.items,
                    bytes: report.bytes,
                    most_bytes: report.most_bytes,
                    evicted: report.evictions,
                    warnings: report.warnings,
                };
                reports.map(|report| report.map(state)).collect()
            })
        }

        fn canaries(&self) -> Option<(u64, u64)> {
            Some(Memcached::canaries(self))
        }
    }
}

static DYNAMODB: Kind = Kind {
    name: "dynamodb",
    title: "DynamoDB",
    schemes: &["dynamodb://"],
    form: "dynamodb://table?region=…",
    feature: "dynamodb",
    #[cfg(feature = "dynamodb")]
    read: Some(dynamodb::read),
    #[cfg(not(feature = "dynamodb"))]
    read: None,
    // AWS counts an item's names and values, and 100 bytes of its own; what its servers take is not ours to run.
    costs: Costs {
        key_bytes: 280,
        hit_bytes: 5,
        lease_bytes: 14,
        calls: [2, 2],
        us_per_counter: 0.0,
        is_spread: false,
    },
};

#[cfg(feature = "dynamodb")]
mod dynamodb {
    use std::sync::Arc;
    use std::time::Duration;

    use tidegate_limiter::LATE_CALLS_HEARD_FOR;
    use tidegate_store::CallObserver;
    use tidegate_store_dynamodb::{DynamoDbConfig, DynamoDbStore, DynamoDbUrl};

    use super::{Address, DYNAMODB};
    use crate::failure::Failure;
    use crate::settings::StoreSettings;
    use crate::stores::{Kind, Locate, Mistake, ServerState, ServerStates, SharedStore, cannot_use};

    pub(super) fn read(url: &str) -> Result<Address, Mistake> {
        let read = url.parse().map(Address::DynamoDb);
        read.map_err(|error: tidegate_store_dynamodb::UrlError| Mistake {
            problem: error.problem,
            hint: error.hint,
        })
    }

    impl Locate for DynamoDbUrl {
        fn kind(&self) -> &'static Kind {
            &DYNAMODB
        }

        fn hosts(&self) -> Vec<String> {
            vec![self.host().to_owned()]
        }

        fn set_password(&mut self, _: &str) -> Result<(), Mistake> {
            let hint = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, the shared file, the container or the instance give the key";
            Err(Mistake { problem: "DynamoDB has none".to_owned(), hint })
        }

        fn timeout(&self) -> Option<Duration> {
            Some(DynamoDbConfig::TIMEOUT)
        }

        fn open(
            &self,
            settings: &StoreSettings,
            observer: Arc<dyn CallObserver>,
        ) -> Result<Arc<dyn SharedStore>, Failure> {
            let default = DynamoDbConfig::default();
            let config = DynamoDbConfig::default()
                .key_prefix(settings.key_prefix.clone().unwrap_or(default.key_prefix))
                .timeout(settings.timeout.unwrap_or(default.timeout))
                .late_answers(LATE_CALLS_HEARD_FOR.into())
                .observer(observer);
            let opened = DynamoDbStore::new(self, &config);
            Ok(Arc::new(opened.map_err(|error| cannot_use(error.field, &error.problem, error.hint))?))
        }
    }

    impl SharedStore for DynamoDbStore {
        fn look_at_each(&self) -> ServerStates<'_> {
            Box::pin(async {
                let state = self.look().await.map(|report| ServerState {
                    is: "DynamoDB".to_owned(),
                    keys: report.items,
                    bytes: report.bytes,
                    most_bytes: 0,
                    evicted: 0,
                    warnings: report.warnings,
                });
                vec![state]
            })
        }

        /// What a table holds changes every few hours.
        fn look_every(&self) -> Duration {
            Duration::from_secs(60)
        }
    }
}
