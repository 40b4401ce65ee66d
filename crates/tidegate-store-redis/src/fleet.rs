//! Data that nodes exchange through Redis: what each node runs, and the published rules.
//!
//! It uses the heartbeat that every limiter sends anyway: the note goes out with it, and the published revision comes back. A
//! node fetches the full set only if the revision differs. Nodes with another cell layout take part.

use std::collections::BTreeMap;

use redis::{Cmd, Value};
use tidegate_core::Timestamp;
use tidegate_fleet::{FleetHistory, LimiterNote, Over, Published, PublishedRevision, Publishing, Row};
use tidegate_store::StoreError;

use crate::client::{Call, Route};
use crate::link::Deadline;
use crate::observer::Operation;
use crate::script::{self, Script};
use crate::store::{Inner, MEMBERS, RedisStore, nonsense};

/// How long published rules are kept after the last publish; until then nodes can start without the database.
const PUBLISHED_TTL_MS: u64 = 7 * 24 * 3_600_000;
/// How long the fleet's per-second and per-minute history is kept.
const SECONDS_TTL_MS: u64 = 17 * 60_000;
const MINUTES_TTL_MS: u64 = 26 * 3_600_000;
/// How long a reported shard list is valid.
const SHARDS_TTL_US: u64 = 30_000_000;

/// Reads what a heartbeat returns. Anyone who can write to Redis chose these bytes: what is no number counts as 0.
pub(crate) fn read_revision(published: &[Value]) -> PublishedRevision {
    let text = |place: usize| match published.get(place) {
        Some(Value::BulkString(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        _ => String::new(),
    };
    let number = |place: usize| text(place).parse().unwrap_or_default();
    let bytes = |place: usize| match published.get(place) {
        Some(Value::BulkString(bytes)) => &bytes[..],
        _ => &[],
    };
    PublishedRevision {
        revision: number(0),
        lineage: text(1),
        mark: text(2),
        serial: number(3),
        seal: text(4),
        // In the order in which `publish.lua` joins what it finds.
        found: [1, 0, 2, 3, 4].map(bytes).join(&0),
    }
}

/// How long a limiter that stopped without signing off is remembered.
const REMEMBERED_US: u64 = 600_000_000;

impl RedisStore {
    /// Registers this node's shard list on every shard and returns other lists found there: their nodes count separately.
    /// Empty if the store is not sharded; a shard that does not answer is skipped.
    pub async fn other_shard_lists(&self) -> Vec<String> {
        let Route::Sharded { endpoints, .. } = self.inner.client.route() else { return Vec::new() };
        let mut own: Vec<String> = endpoints.iter().map(ToString::to_string).collect();
        own.sort();
        let (own, script, key) =
            (own.join(","), script::shards(), self.inner.keys.fleet_key(MEMBERS, b"shards"));
        let now = self.inner.given_time().map_or(-1, |now| now.as_micros().cast_signed());
        let mut others = Vec::new();
        for partition in (0..).take(endpoints.len()) {
            let mut command = Cmd::new();
            command.arg("EVALSHA").arg(&script.name).arg(1).arg(&key).arg(&own).arg(SHARDS_TTL_US).arg(now);
            let Ok(Value::Array(lists)) = self.inner.ask_at(partition, &command, Some(script)).await else {
                continue;
            };
            others.extend(lists.iter().filter_map(|list| match list {
                Value::BulkString(list) => Some(String::from_utf8_lossy(list).into_owned()),
                _ => None,
            }));
        }
        others.sort();
        others.dedup();
        others
    }
}

impl Inner {
    /// The fleet's counts of one minute, or one hour, numbered since 1970: for each row, the counts of its sixty slots.
    pub(crate) async fn counted(&self, history: FleetHistory, number: u64) -> Result<Vec<Row>, StoreError> {
        let mut command = Cmd::new();
        command.arg("HGETALL").arg(self.counted_key(history, number));
        let parts = match self.ask(&command, None).await? {
            Value::Array(parts) => parts,
            Value::Map(pairs) => pairs.into_iter().flat_map(|(name, counts)| [name, counts]).collect(),
            _ => return Err(nonsense("rows")),
        };
        let row = |pair: &[Value]| match pair {
            [Value::BulkString(name), Value::BulkString(counts)] => {
                let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap_or_default());
                Some((name.clone(), counts.chunks_exact(4).map(number).collect()))
            }
            _ => None,
        };
        Ok(parts.chunks(2).filter_map(row).collect())
    }

    /// The notes of all live limiters, and of those lost lately.
    pub(crate) async fn notes(&self) -> Result<Vec<LimiterNote>, StoreError> {
        let script = script::notes();
        let now = self.given_time().map_or(-1, |now| now.as_micros().cast_signed());
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&script.name).arg(1).arg(self.notes_key()).arg(now);
        command.arg(REMEMBERED_US);
        let Value::Array(notes) = self.ask(&command, Some(script)).await? else {
            return Err(nonsense("notes"));
        };
        Ok(notes.into_iter().filter_map(read_note).collect())
    }

    /// Stores the published rules for every node, if what is there may be replaced.
    pub(crate) async fn publish(
        &self,
        revision: &PublishedRevision,
        published: &Published,
        over: Over<'_>,
    ) -> Result<Publishing, StoreError> {
        let script = script::publish();
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&script.name).arg(1).arg(self.published_key());
        command.arg(&revision.lineage).arg(revision.revision).arg(&published.set).arg(&published.changes);
        command.arg(PUBLISHED_TTL_MS).arg(u8::from(over == Over::Restored)).arg(&revision.mark);
        command.arg(published.format).arg(revision.serial).arg(&revision.seal);
        command.arg(match over {
            Over::This(this) => &this.found[..],
            Over::Older | Over::Restored => &[],
        });
        match self.ask(&command, Some(script)).await? {
            Value::Int(1) => Ok(Publishing::Stored),
            Value::Int(0) => Ok(Publishing::OtherDatabase),
            Value::Int(_) => Ok(Publishing::Behind),
            _ => Err(nonsense("a number")),
        }
    }

    /// Replaces the `known` changes by `changes` and keeps the set; false if other changes are stored.
    pub(crate) async fn publish_changes(
        &self,
        revision: &PublishedRevision,
        known: &[u8],
        (changes, format): (&[u8], u32),
    ) -> Result<bool, StoreError> {
        let script = script::publish_changes();
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&script.name).arg(1).arg(self.published_key());
        command.arg(&revision.lineage).arg(revision.revision).arg(known).arg(changes);
        command.arg(PUBLISHED_TTL_MS).arg(&revision.mark).arg(format);
        command.arg(revision.serial).arg(&revision.seal);
        match self.ask(&command, Some(script)).await? {
            Value::Int(taken) => Ok(taken == 1),
            _ => Err(nonsense("a number")),
        }
    }

    /// Extends the lifetime of the published rules.
    pub(crate) async fn keep_published(&self) -> Result<(), StoreError> {
        let mut command = Cmd::new();
        command.arg("PEXPIRE").arg(self.published_key()).arg(PUBLISHED_TTL_MS);
        self.ask(&command, None).await.map(drop)
    }

    /// The published rules, if any.
    pub(crate) async fn published(&self) -> Result<Option<Published>, StoreError> {
        let [format, changes, set] = self.published_fields(["format", "changes", "set"]).await?;
        let (changes, format) = (changes.unwrap_or_default(), format_of(format));
        Ok(set.map(|set| Published { set, changes, format }))
    }

    /// The changes since the published set, and their format; empty if nothing is published.
    pub(crate) async fn published_changes(&self) -> Result<(Vec<u8>, u32), StoreError> {
        let [format, changes] = self.published_fields(["format", "changes"]).await?;
        Ok((changes.unwrap_or_default(), format_of(format)))
    }

    async fn published_fields<const N: usize>(
        &self,
        names: [&str; N],
    ) -> Result<[Option<Vec<u8>>; N], StoreError> {
        let mut command = Cmd::new();
        command.arg("HMGET").arg(self.published_key()).arg(&names);
        let Value::Array(found) = self.ask(&command, None).await? else {
            return Err(nonsense("fields"));
        };
        let mut fields = found.into_iter().map(|field| match field {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        });
        Ok(std::array::from_fn(|_| fields.next().flatten()))
    }
}

/// A missing format comes from a release before formats, which all nodes can read. A field that is no number is unknown.
fn format_of(field: Option<Vec<u8>>) -> u32 {
    let number = |field: Vec<u8>| String::from_utf8(field).ok()?.parse().ok();
    field.map_or(1, |field| number(field).unwrap_or(u32::MAX))
}

fn read_note(note: Value) -> Option<LimiterNote> {
    let Value::Array(parts) = note else { return None };
    let [Value::BulkString(member), Value::Int(age_us), Value::BulkString(note), Value::Int(lost)] =
        &parts[..]
    else {
        return None;
    };
    Some(LimiterNote {
        member: u64::from_le_bytes(member.as_slice().try_into().ok()?),
        age_us: u64::try_from(*age_us).ok()?,
        note: note.clone(),
        lost: *lost == 1,
    })
}

impl Inner {
    pub(crate) fn notes_key(&self) -> Vec<u8> {
        self.keys.fleet_key(MEMBERS, b"notes")
    }

    pub(crate) fn published_key(&self) -> Vec<u8> {
        self.keys.fleet_key(MEMBERS, b"rules")
    }

    fn counted_key(&self, history: FleetHistory, number: u64) -> Vec<u8> {
        let name = match history {
            FleetHistory::Seconds => format!("seconds{number}"),
            FleetHistory::Minutes => format!("minutes{number}"),
        };
        self.keys.fleet_key(MEMBERS, name.as_bytes())
    }

    /// Appends the keys and arguments of this node's counts to a heartbeat: `unsent` rows, summed.
    pub(crate) fn append_counted(
        &self,
        now: Timestamp,
        unsent: &[Vec<Row>],
        command: &mut Cmd,
        rest: impl FnOnce(&mut Cmd),
    ) {
        let (second, minute) = (now.as_micros() / 1_000_000, now.as_micros() / 60_000_000);
        command.arg(self.counted_key(FleetHistory::Seconds, minute));
        command.arg(self.counted_key(FleetHistory::Minutes, minute / 60));
        command.arg(self.questions_key());
        rest(command);
        command.arg(second % 60).arg(minute % 60).arg(SECONDS_TTL_MS).arg(MINUTES_TTL_MS);
        let mut sums: BTreeMap<&[u8], Vec<u32>> = BTreeMap::new();
        for (name, counts) in unsent.iter().flatten() {
            let sum = sums.entry(name).or_insert_with(|| vec![0; counts.len()]);
            sum.iter_mut().zip(counts).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
        }
        for (name, counts) in sums {
            let bytes: Vec<u8> = counts.iter().flat_map(|count| count.to_le_bytes()).collect();
            command.arg(name).arg(bytes);
        }
    }

    pub(crate) async fn ask(&self, command: &Cmd, script: Option<&Script>) -> Result<Value, StoreError> {
        self.ask_at(self.client.partition_of(MEMBERS), command, script).await
    }

    async fn ask_at(
        &self,
        partition: u16,
        command: &Cmd,
        script: Option<&Script>,
    ) -> Result<Value, StoreError> {
        let source = script.map(|script| &*script.source);
        let call = Call { operation: Operation::Heartbeat, command, source, items: 1 };
        // Longer than a request's deadline: a large set takes longer than a decision.
        let deadline = Deadline::from_now(self.patience() * 10);
        self.client.run(partition, call, deadline).await
    }
}
