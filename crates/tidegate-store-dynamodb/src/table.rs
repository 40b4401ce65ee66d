//! A look at the table: whether it is as it must be. Creates it where that was asked for.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_core::Micros;
use tidegate_store::StoreError;
use tidegate_store_items::{Deadline, Failure, Item, WHOLE};

use crate::api::Kind;
use crate::store::DynamoDb;

/// How long a new table may take until it can be used.
const CREATED_WITHIN: Duration = Duration::from_secs(60);
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// What a look writes lasts this long.
const LOOK_TTL: Micros = Micros::from_secs(60);

/// What DynamoDB says of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableReport {
    /// How many items it had some hours ago.
    pub items: u64,
    /// Their size.
    pub bytes: u64,
    /// What an operator should change.
    pub warnings: Vec<String>,
}

impl DynamoDb {
    /// Looks at the table, and writes to it: a report, or why it cannot be used. Creates it, and waits for it, if it is missing and
    /// the URL says so.
    ///
    /// # Errors
    /// When there is no table, it has another key, it may not be written to, or DynamoDB does not answer.
    pub async fn look(&self) -> Result<TableReport, StoreError> {
        self.look_at_table().await.map_err(|failure| failure.into_store_error(self.endpoint.clone()))
    }

    fn deadline(&self) -> Deadline {
        Deadline::from_now(self.patience, Duration::ZERO)
    }

    fn named(&self) -> Value {
        json!({ "TableName": self.changer.api.url.table })
    }

    async fn look_at_table(&self) -> Result<TableReport, Failure> {
        let api = &self.changer.api;
        let table = match api
            .call("DescribeTable", &self.named(), self.deadline())
            .await
            .map_err(Failure::of_a_read)?
        {
            Ok(mut told) => told["Table"].take(),
            Err(refused) if refused.code == "ResourceNotFoundException" && api.url.creates => {
                self.create().await?
            }
            Err(refused) => return Err(api.failure(&refused, Kind::Reads, self.deadline())),
        };
        self.check_key(&table)?;
        self.write_something().await?;
        let mut warnings = Vec::new();
        let expiry = api.read("DescribeTimeToLive", &self.named(), self.deadline()).await;
        // Whoever may not ask is not told.
        if let Ok(told) = expiry {
            let told = &told["TimeToLiveDescription"];
            let is_on = matches!(told["TimeToLiveStatus"].as_str(), Some("ENABLED" | "ENABLING"));
            if !is_on || told["AttributeName"].as_str().is_some_and(|name| name != "ttl") {
                let (name, region) = (&api.url.table, &api.url.region);
                warnings.push(format!(
                    "nothing deletes what has ended: run `aws dynamodb update-time-to-live --region {region} --table-name {name} \
                     --time-to-live-specification Enabled=true,AttributeName=ttl`"
                ));
            }
        }
        let number = |name: &str| table[name].as_u64().unwrap_or_default();
        Ok(TableReport { items: number("ItemCount"), bytes: number("TableSizeBytes"), warnings })
    }

    /// Who may describe a table may not always write to it. One that is too busy to be written to is there.
    async fn write_something(&self) -> Result<(), Failure> {
        let write =
            |_: usize, items: &mut [Item], now| items[0].set(WHOLE, Some((now + LOOK_TTL, Vec::new())));
        let mut write = write;
        match self.changer.change(&[vec![self.look]], self.deadline(), &mut write).await {
            Ok(_) | Err(Failure::Busy(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn check_key(&self, table: &Value) -> Result<(), Failure> {
        let list = |name: &str| table[name].as_array().cloned().unwrap_or_default();
        let key: Vec<String> =
            list("KeySchema").iter().map(|part| part["AttributeName"].to_string()).collect();
        let is_text = list("AttributeDefinitions")
            .iter()
            .any(|attribute| attribute["AttributeName"] == "k" && attribute["AttributeType"] == "S");
        if key == ["\"k\""] && is_text {
            return Ok(());
        }
        let name = &self.changer.api.url.table;
        let why = format!(
            "the table `{name}` has the key {}, and needs one key, `k`, of type S: name another table, which `&create=true` creates",
            key.join(" and ")
        );
        Err(Failure::NotApplied("other", why.into()))
    }

    /// Creates the table, and waits until it can be used. Another node may do so at the same time.
    async fn create(&self) -> Result<Value, Failure> {
        let api = &self.changer.api;
        let table = json!({
            "TableName": api.url.table,
            "AttributeDefinitions": [{ "AttributeName": "k", "AttributeType": "S" }],
            "KeySchema": [{ "AttributeName": "k", "KeyType": "HASH" }],
            "BillingMode": "PAY_PER_REQUEST",
        });
        match api.call("CreateTable", &table, self.deadline()).await? {
            Err(refused) if refused.code != "ResourceInUseException" => {
                return Err(api.failure(&refused, Kind::Writes, self.deadline()));
            }
            _ => {}
        }
        let from = tokio::time::Instant::now();
        let made = loop {
            let mut told = api.read("DescribeTable", &self.named(), self.deadline()).await?;
            if told["Table"]["TableStatus"] == "ACTIVE" {
                break told["Table"].take();
            }
            if from.elapsed() > CREATED_WITHIN {
                return Err(Failure::TooLate(CREATED_WITHIN));
            }
            tokio::time::sleep(LOOK_AGAIN).await;
        };
        let expiry = json!({
            "TableName": api.url.table,
            "TimeToLiveSpecification": { "Enabled": true, "AttributeName": "ttl" },
        });
        // Another node may have done it, and the next look warns if nobody has.
        drop(api.call("UpdateTimeToLive", &expiry, self.deadline()).await?);
        Ok(made)
    }
}
