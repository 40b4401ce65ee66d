//! Items in a table.

use std::sync::Arc;

use tidegate_core::{KeyRoom, Timestamp};
use tidegate_store::CallObserver;
use tidegate_store_items::{
    Changed, Deadline, Failure, ItemStore, Items, Layout, Namer, Place, ServerClock, Work,
};

use crate::api::Api;
use crate::change::{Changer, MOST_ITEMS};
use crate::config::{ConfigError, DynamoDbConfig};
use crate::credentials::Credentials;
use crate::http_client::HttpClient;
use crate::url::DynamoDbUrl;

/// The Store contract on DynamoDB.
pub type DynamoDbStore = ItemStore<DynamoDb>;

/// The most leases that the limits of one key may give at once: they are one item, of at most 400 KB.
pub const MOST_LEASES: u64 = 9_000;
/// The most hits that their logs may have, for the same reason.
pub const MOST_LOGGED: u64 = 20_000;
/// What DynamoDB keeps of one item, without its name, version and time.
pub(crate) const MOST_BYTES: usize = 400 * 1_024 - 512;
/// With its name and version, it costs one unit to write.
const USUAL_CALL: usize = 512;

/// The table of a [`DynamoDbStore`].
pub struct DynamoDb {
    pub(crate) changer: Changer,
    pub(crate) endpoint: String,
    pub(crate) patience: std::time::Duration,
    /// An item that only looks write.
    pub(crate) look: Place,
    observer: Arc<dyn CallObserver>,
}

impl Items for DynamoDb {
    type Address = DynamoDbUrl;
    type Config = DynamoDbConfig;
    type ConfigError = ConfigError;

    fn open(url: &DynamoDbUrl, config: &DynamoDbConfig) -> Result<(Self, Layout), ConfigError> {
        config.check()?;
        let client = HttpClient::new(url.server.clone(), config.connect_timeout, config.max_in_flight);
        let api = Api {
            url: url.clone(),
            client: Arc::new(client),
            credentials: Credentials::new(config.login.clone()),
            clock: ServerClock::new(),
        };
        let patience = config.connect_timeout + config.timeout;
        let process = getrandom::u64().expect("the system has random bytes").to_le_bytes();
        let look = Place { server: 0, name: Namer::new(&config.key_prefix).own(b"look", process, 0) };
        let endpoint = format!("{} of {}", url.table, url.server.authority());
        let layout = Layout {
            endpoints: vec![endpoint.clone()],
            key_prefix: config.key_prefix.clone(),
            timeout: config.timeout,
            late_answers: config.late_answers,
            patience,
            most_items: MOST_ITEMS,
            usual_call: USUAL_CALL,
        };
        let changer = Changer { api, time: config.time.clone() };
        let observer = Arc::clone(&config.observer);
        Ok((DynamoDb { changer, endpoint, patience, look, observer }, layout))
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
        KeyRoom::new("DynamoDB", MOST_LEASES, MOST_LOGGED)
    }
}

impl std::fmt::Debug for DynamoDb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynamoDb").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}
