//! Changes items, as `lib.rs` describes: read, decide, and store what nobody else has changed meanwhile.

use std::collections::HashMap;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::future::{join_all, try_join_all};
use serde_json::{Value, json};
use tidegate_core::Timestamp;
use tidegate_store_items::{
    BEGINS_WITHIN, Changed, Deadline, Failure, Item, MOST_AHEAD, Name, Place, Work, pause,
};
use tokio::time::Instant;

use crate::api::{Api, Kind};
use crate::config::TimeSource;
use crate::store::MOST_BYTES;

/// The most items that change together, and that are read together.
pub(crate) const MOST_ITEMS: usize = 100;
/// The pauses before a group starts again: a call takes some milliseconds.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);
/// How long an item is kept whose time a test sets.
const TESTED_FOR_S: u64 = 3_600;

/// What changes items needs.
pub(crate) struct Changer {
    pub(crate) api: Api,
    pub(crate) time: TimeSource,
}

/// An item as it was read.
#[derive(Clone)]
struct Found {
    name: String,
    item: Item,
    /// Which one it is; none if there is no such item.
    version: Option<String>,
}

/// A group that is being decided.
struct Open {
    group: usize,
    found: Vec<Found>,
    /// What becomes of the items.
    items: Vec<Item>,
    now: Timestamp,
}

/// How storing a group ended.
enum Stored {
    Done,
    /// Somebody else was quicker: nothing was stored.
    Overtaken,
}

/// What has become of the groups until now: whether anything was stored, when they were decided, and which are too large, and why.
type SoFar<'a> = (&'a mut bool, &'a mut Vec<Timestamp>, &'a mut Vec<(usize, String)>);

impl Changer {
    /// Decides all `groups`, whose items differ and ascend.
    pub(crate) async fn change(
        &self,
        groups: &[Vec<Place>],
        deadline: Deadline,
        work: Work<'_>,
    ) -> Result<Changed, Failure> {
        let (small, large): (Vec<usize>, Vec<usize>) =
            (0..groups.len()).partition(|group| groups[*group].len() <= MOST_ITEMS);
        let why = |group: usize| {
            format!("a request over {} keys: DynamoDB changes {MOST_ITEMS} at once", groups[group].len())
        };
        let mut too_large: Vec<(usize, String)> =
            large.into_iter().map(|group| (group, why(group))).collect();
        let (mut is_applied, mut left) = (false, small);
        let mut moments: Vec<Timestamp> = Vec::new();
        for turn in 0_u32.. {
            let so_far = (&mut is_applied, &mut moments, &mut too_large);
            let step = self.step(groups, left, deadline, work, so_far).await;
            left = step.map_err(|failure| if is_applied { failure.in_part() } else { failure })?;
            if left.is_empty() {
                break;
            }
            if Instant::now() >= deadline.at {
                let late = Failure::TooLate(deadline.span);
                return Err(if is_applied { late.in_part() } else { late });
            }
            tokio::time::sleep(pause(turn, FIRST_PAUSE, LONGEST_PAUSE)).await;
        }
        moments.dedup();
        let at = moments.first().copied().filter(|_| moments.len() == 1);
        Ok(Changed { at, too_large })
    }

    /// Decides these groups once; returns those that start again.
    async fn step(
        &self,
        groups: &[Vec<Place>],
        left: Vec<usize>,
        deadline: Deadline,
        work: Work<'_>,
        (is_applied, moments, too_large): SoFar<'_>,
    ) -> Result<Vec<usize>, Failure> {
        let read = self.read(groups, left, deadline).await?;
        if Instant::now() > deadline.at + BEGINS_WITHIN {
            return Err(Failure::TooLate(deadline.span));
        }
        let clock = self.now();
        let mut open = Vec::new();
        for (group, found) in read {
            let now = self.time_of(&found, clock);
            let mut items: Vec<Item> = found.iter().map(|found| found.item.clone()).collect();
            work(group, &mut items, now);
            let one = Open { group, found, items, now };
            if one.items.iter().zip(&one.found).all(|(item, found)| item.says_what(&found.item)) {
                moments.push(now);
            } else {
                // Before anything of this round is stored.
                if let Err(why) = one.items.iter().try_for_each(|item| item.fits_in(MOST_BYTES)) {
                    too_large.push((group, why));
                    continue;
                }
                open.push(one);
            }
        }
        let stored = join_all(open.iter().map(|one| self.store(one, deadline))).await;
        let (mut again, mut failed) = (Vec::new(), None);
        for (one, stored) in open.iter().zip(stored) {
            match stored {
                Ok(Stored::Done) => {
                    *is_applied = true;
                    moments.push(one.now);
                }
                Ok(Stored::Overtaken) => again.push(one.group),
                Err(Failure::TooLarge(why)) => too_large.push((one.group, why.to_string())),
                // What may have been applied outweighs what was not.
                Err(failure @ (Failure::Lost(_) | Failure::TimedOut(_))) => failed = Some(failure),
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        failed.map_or(Ok(again), Err)
    }

    /// Reads the items of groups.
    async fn read(
        &self,
        groups: &[Vec<Place>],
        left: Vec<usize>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, Vec<Found>)>, Failure> {
        let names: Vec<String> =
            left.iter().flat_map(|group| &groups[*group]).map(|place| key(place.name)).collect();
        let pieces =
            try_join_all(names.chunks(MOST_ITEMS).map(|names| self.read_piece(names, deadline))).await?;
        let mut known: HashMap<String, Found> =
            pieces.into_iter().flatten().map(|found| (found.name.clone(), found)).collect();
        let mut found = |place: &Place| {
            let name = key(place.name);
            known.remove(&name).unwrap_or_else(|| Found { name, item: Item::default(), version: None })
        };
        Ok(left.into_iter().map(|group| (group, groups[group].iter().map(&mut found).collect())).collect())
    }

    /// Reads items; those that DynamoDB had no capacity left for, again.
    async fn read_piece(&self, names: &[String], deadline: Deadline) -> Result<Vec<Found>, Failure> {
        let table = &self.api.url.table;
        let keys: Vec<Value> = names.iter().map(|name| json!({ "k": { "S": name } })).collect();
        let (mut asked, mut found) = (json!({ table: { "Keys": keys, "ConsistentRead": true } }), Vec::new());
        for turn in 0_u32.. {
            let mut told = self.api.read("BatchGetItem", &json!({ "RequestItems": asked }), deadline).await?;
            let items = told["Responses"][table].as_array().into_iter().flatten();
            found.extend(items.filter_map(Found::read));
            asked = told["UnprocessedKeys"].take();
            if asked.as_object().is_none_or(|left| left.is_empty()) {
                break;
            }
            if Instant::now() >= deadline.at {
                return Err(Failure::Busy(deadline.span));
            }
            tokio::time::sleep(pause(turn, FIRST_PAUSE, LONGEST_PAUSE)).await;
        }
        Ok(found)
    }

    async fn store(&self, one: &Open, deadline: Deadline) -> Result<Stored, Failure> {
        let told = if let ([found], [item]) = (&one.found[..], &one.items[..]) {
            let (what, body) = self.write(found, item, one.now);
            self.api.call(what, &body, deadline).await?
        } else {
            let writes = one.found.iter().zip(&one.items).map(|(found, item)| {
                if item.says_what(&found.item) {
                    return json!({ "ConditionCheck": self.condition(found, json!({ "Key": { "k": { "S": found.name } } })) });
                }
                let (what, body) = self.write(found, item, one.now);
                json!({ what.trim_end_matches("Item"): body })
            });
            let body = json!({ "TransactItems": writes.collect::<Vec<_>>() });
            self.api.call("TransactWriteItems", &body, deadline).await?
        };
        match told {
            Ok(_) => Ok(Stored::Done),
            Err(refused) if refused.is_overtaken() => Ok(Stored::Overtaken),
            Err(refused) => Err(self.api.failure(&refused, Kind::Writes, deadline)),
        }
    }

    /// The call that stores what becomes of an item, or deletes it if that is nothing.
    fn write(&self, found: &Found, item: &Item, now: Timestamp) -> (&'static str, Value) {
        let mut item = item.clone();
        // A test's clock may step back, and what has ended is then needed again.
        if matches!(self.time, TimeSource::DynamoDb) {
            item.forget_ended(now);
        }
        item.latest = found.item.latest.max(now);
        if item.is_empty() {
            return ("DeleteItem", self.condition(found, json!({ "Key": { "k": { "S": found.name } } })));
        }
        let version = getrandom::u64().expect("the system has random bytes").to_string();
        let body = json!({ "Item": {
            "k": { "S": found.name },
            "v": { "N": version },
            "b": { "B": BASE64_STANDARD.encode(item.bytes()) },
            "ttl": { "N": self.expires(item.ends(), now).to_string() },
        } });
        ("PutItem", self.condition(found, body))
    }

    /// The same, if the item is still the one that was read.
    fn condition(&self, found: &Found, mut body: Value) -> Value {
        body["TableName"] = json!(self.api.url.table);
        match &found.version {
            Some(version) => {
                body["ConditionExpression"] = json!("v = :v");
                body["ExpressionAttributeValues"] = json!({ ":v": { "N": version } });
            }
            None => body["ConditionExpression"] = json!("attribute_not_exists(k)"),
        }
        body
    }

    pub(crate) fn now(&self) -> Timestamp {
        match &self.time {
            TimeSource::DynamoDb => self.api.now(),
            TimeSource::Given(clock) => clock.now(),
        }
    }

    /// No counter sees time go back, whichever node changed it last.
    fn time_of(&self, found: &[Found], now: Timestamp) -> Timestamp {
        let latest = found.iter().map(|found| found.item.latest).max().unwrap_or_default();
        match self.time {
            TimeSource::DynamoDb if latest <= now + MOST_AHEAD => now.max(latest),
            _ => now,
        }
    }

    /// The second from which DynamoDB may delete an item that says nothing any more after `ends`. It does so within days.
    fn expires(&self, ends: Timestamp, now: Timestamp) -> u64 {
        match self.time {
            TimeSource::DynamoDb => ends.as_micros() / 1_000_000 + 2,
            // An emulator deletes by its own clock, and a test's may be anywhere.
            TimeSource::Given(_) => {
                let own = self.api.now().as_micros() / 1_000_000;
                own + (ends.since(now).get() / 1_000_000 + 2).max(TESTED_FOR_S)
            }
        }
    }
}

impl Found {
    fn read(told: &Value) -> Option<Found> {
        let bytes = BASE64_STANDARD.decode(told["b"]["B"].as_str().unwrap_or_default()).unwrap_or_default();
        Some(Found {
            name: told["k"]["S"].as_str()?.to_owned(),
            item: Item::read(&bytes),
            version: Some(told["v"]["N"].as_str()?.to_owned()),
        })
    }
}

fn key(name: Name) -> String {
    let mut bytes = Vec::with_capacity(34);
    name.append(&mut bytes);
    String::from_utf8(bytes).expect("a name is ASCII")
}
