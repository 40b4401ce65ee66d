//! The fleet's counts: each node keeps its own of the running minute and hour, and writes them whole with each heartbeat.

use std::collections::BTreeMap;

use tidegate_core::{Micros, Timestamp};
use tidegate_store::StoreError;

use super::bytes::{Reader, append, append_number};
use super::{MOST_TRIES, contended, value};
use crate::store::{FleetHistory, Row};
use crate::values::{LONGEST_VALUE, ValueStore};

const SLOTS: usize = 60;
/// Rows beyond are left out, and so are those that no longer fit a value.
const MOST_ROWS: usize = 4_096;
/// More nodes than write counts of one minute.
const MOST_WRITERS: usize = 16_384;

/// Minutes, and hours, of which this node keeps counts: the running one, and the last if it could not be written yet.
const MOST_SPANS: usize = 2;

/// The counts of this node: of the running minute and hour, by row and slot.
#[derive(Debug, Default)]
pub(super) struct OwnCounts([Vec<Span>; 2]);

#[derive(Debug)]
struct Span {
    number: u64,
    rows: BTreeMap<Vec<u8>, Vec<u32>>,
    /// How often rows were added, and how many of these additions the store has.
    additions: u64,
    written: u64,
}

/// What is to be written of one span.
pub(super) struct ToWrite {
    history: FleetHistory,
    number: u64,
    bytes: Vec<u8>,
    additions: u64,
}

impl OwnCounts {
    /// Adds rows at `now`.
    pub(super) fn add(&mut self, rows: Vec<Vec<Row>>, now: Timestamp) {
        let seconds = now.as_micros() / 1_000_000;
        let rows: Vec<Row> = rows.into_iter().flatten().collect();
        if rows.is_empty() {
            return;
        }
        let places = [(seconds / 60, seconds % 60), (seconds / 3_600, seconds / 60 % 60)];
        for ((number, slot), spans) in places.into_iter().zip(&mut self.0) {
            let span = running(spans, number);
            span.additions += 1;
            rows.iter().for_each(|(name, counts)| span.add(name, slot as usize, counts));
        }
    }

    /// What the store does not have yet. It stays here until it was [`written`](Self::written), so that a write that failed is
    /// repeated with the next heartbeat, and one whose answer was lost does no harm.
    pub(super) fn unwritten(&self) -> Vec<ToWrite> {
        let histories = [FleetHistory::Seconds, FleetHistory::Minutes];
        let of = |(history, spans): (_, &Vec<Span>)| {
            let unwritten = spans.iter().filter(|span| span.written < span.additions);
            unwritten.map(|span| span.to_write(history)).collect::<Vec<_>>()
        };
        histories.into_iter().zip(&self.0).flat_map(of).collect()
    }

    /// The store has these.
    pub(super) fn written(&mut self, counts: &[ToWrite]) {
        for done in counts {
            let spans = match done.history {
                FleetHistory::Seconds => &mut self.0[0],
                FleetHistory::Minutes => &mut self.0[1],
            };
            if let Some(span) = spans.iter_mut().find(|span| span.number == done.number) {
                span.written = done.additions;
            }
        }
    }
}

/// The span `number`, which is the last one. Those before it stay only while the store lacks something of them.
fn running(spans: &mut Vec<Span>, number: u64) -> &mut Span {
    if spans.last().is_none_or(|last| last.number != number) {
        spans.retain(|span| span.written < span.additions && span.number != number);
        spans.drain(..spans.len().saturating_sub(MOST_SPANS - 1));
        spans.push(Span { number, rows: BTreeMap::new(), additions: 0, written: 0 });
    }
    spans.last_mut().expect("one was pushed if there was none")
}

impl Span {
    fn to_write(&self, history: FleetHistory) -> ToWrite {
        ToWrite { history, number: self.number, bytes: self.bytes(), additions: self.additions }
    }

    fn add(&mut self, name: &[u8], slot: usize, counts: &[u32]) {
        if self.rows.len() >= MOST_ROWS && !self.rows.contains_key(name) {
            return;
        }
        let sums = self.rows.entry(name.to_vec()).or_default();
        let from = slot * counts.len();
        if sums.len() != SLOTS * counts.len() {
            *sums = vec![0; SLOTS * counts.len()];
        }
        sums[from..].iter_mut().zip(counts).for_each(|(sum, more)| *sum = sum.saturating_add(*more));
    }

    /// Of each row its name, the number of its counts, and those that are not zero.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, sums) in &self.rows {
            let mut counts = Vec::new();
            for (place, sum) in sums.iter().enumerate().filter(|(_, sum)| **sum != 0) {
                counts.extend((place as u32).to_le_bytes());
                counts.extend(sum.to_le_bytes());
            }
            if bytes.len() + name.len() + counts.len() + 32 > LONGEST_VALUE {
                break;
            }
            append(&mut bytes, name);
            append_number(&mut bytes, sums.len() as u64);
            append(&mut bytes, &counts);
        }
        bytes
    }
}

/// Adds the rows of one node to those of others.
fn add_read(all: &mut BTreeMap<Vec<u8>, Vec<u32>>, bytes: &[u8]) {
    let mut reader = Reader(bytes);
    while let (Some(name), Some(length), Some(counts)) = (reader.part(), reader.number(), reader.part()) {
        let length = (length as usize).min(SLOTS * 64);
        let sums = all.entry(name.to_vec()).or_default();
        sums.resize(length.max(sums.len()), 0);
        for pair in counts.as_chunks::<8>().0 {
            let [place, count] = [0, 4]
                .map(|from| u32::from_le_bytes([pair[from], pair[from + 1], pair[from + 2], pair[from + 3]]));
            if let Some(sum) = sums.get_mut(place as usize) {
                *sum = sum.saturating_add(count);
            }
        }
    }
}

/// Writes this node's counts, and lists it as one that has some.
pub(super) async fn put(store: &dyn ValueStore, member: u64, counts: &[ToWrite]) -> Result<(), StoreError> {
    for ToWrite { history, number, bytes, .. } in counts {
        let (list, ttl) = (list_name(*history, *number), kept(*history));
        store.put(&own_name(&list, member), Some(bytes), ttl).await?;
        add_writer(store, &list, member, ttl).await?;
    }
    Ok(())
}

async fn add_writer(store: &dyn ValueStore, list: &[u8], member: u64, ttl: Micros) -> Result<(), StoreError> {
    for _ in 0..MOST_TRIES {
        let known = value(store, list).await?.1;
        let mut writers = known.clone().unwrap_or_default();
        let is_listed = writers.as_chunks::<8>().0.contains(&member.to_le_bytes());
        if is_listed || writers.len() >= 8 * MOST_WRITERS {
            return Ok(());
        }
        writers.extend(member.to_le_bytes());
        if store.swap(list, known.as_deref(), &writers, ttl).await? {
            return Ok(());
        }
    }
    Err(contended())
}

/// The counts of all nodes in one minute or hour.
pub(super) async fn counted(
    store: &dyn ValueStore,
    history: FleetHistory,
    number: u64,
) -> Result<Vec<Row>, StoreError> {
    let list = list_name(history, number);
    let writers = value(store, &list).await?.1.unwrap_or_default();
    let writers = writers.as_chunks::<8>().0.iter().map(|id| u64::from_le_bytes(*id));
    let names: Vec<Vec<u8>> = writers.take(MOST_WRITERS).map(|member| own_name(&list, member)).collect();
    let mut all = BTreeMap::new();
    // Few at once: each may have half a MiB.
    for names in names.chunks(16) {
        let (_, values) = store.values(names).await?;
        values.iter().flatten().for_each(|bytes| add_read(&mut all, bytes));
    }
    Ok(all.into_iter().collect())
}

fn list_name(history: FleetHistory, number: u64) -> Vec<u8> {
    match history {
        FleetHistory::Seconds => format!("seconds{number}"),
        FleetHistory::Minutes => format!("minutes{number}"),
    }
    .into_bytes()
}

fn own_name(list: &[u8], member: u64) -> Vec<u8> {
    [list, format!("of{member:016x}").as_bytes()].concat()
}

fn kept(history: FleetHistory) -> Micros {
    match history {
        FleetHistory::Seconds => Micros::from_secs(17 * 60),
        FleetHistory::Minutes => Micros::from_secs(26 * 3_600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Timestamp {
        Timestamp::from_micros((1_800_000_000 + second) * 1_000_000)
    }

    fn row(counts: &[u32]) -> Vec<Vec<Row>> {
        vec![vec![(b"rule".to_vec(), counts.to_vec())]]
    }

    fn sum(written: &ToWrite) -> u32 {
        let mut all = BTreeMap::new();
        add_read(&mut all, &written.bytes);
        all[&b"rule"[..]].iter().sum()
    }

    #[test]
    fn counts_of_two_nodes_are_summed_slot_by_slot() {
        let (mut one, mut other) = (OwnCounts::default(), OwnCounts::default());
        one.add(row(&[1, 2]), at(0));
        one.add(row(&[3, 0]), at(1));
        other.add(row(&[5, 5]), at(1));
        let (ones, others) = (one.unwritten(), other.unwritten());
        let mut all = BTreeMap::new();
        [&ones[0], &others[0]].into_iter().for_each(|one| add_read(&mut all, &one.bytes));
        let sums = &all[&b"rule"[..]];
        assert_eq!((sums.len(), &sums[..6]), (120, &[1, 2, 8, 5, 0, 0][..]));
        assert_eq!(sum(&ones[1]), 6);
    }

    #[test]
    fn a_new_minute_begins_with_nothing() {
        let mut own = OwnCounts::default();
        own.add(row(&[1]), at(0));
        let first = own.unwritten();
        own.written(&first);
        own.add(row(&[1]), at(60));
        assert_eq!(sum(&own.unwritten()[0]), 1);
    }

    #[test]
    fn counts_that_were_not_written_go_with_the_next_heartbeat() {
        let mut own = OwnCounts::default();
        own.add(row(&[1]), at(0));
        let lost = own.unwritten();
        own.add(Vec::new(), at(1));
        assert_eq!(own.unwritten().iter().map(sum).collect::<Vec<_>>(), [1, 1], "nothing was written");
        own.add(row(&[2]), at(60));
        let next = own.unwritten();
        assert_eq!(
            next.iter().map(|one| (one.number, sum(one))).collect::<Vec<_>>(),
            [(lost[0].number, 1), (lost[0].number + 1, 2), (lost[1].number, 3)]
        );
        own.written(&next);
        assert!(own.unwritten().is_empty());
    }

    #[test]
    fn counts_added_during_a_write_are_written_later() {
        let mut own = OwnCounts::default();
        own.add(row(&[1]), at(0));
        let first = own.unwritten();
        own.add(row(&[1]), at(1));
        own.written(&first);
        assert_eq!(sum(&own.unwritten()[0]), 2);
    }

    #[test]
    fn minutes_that_cannot_be_written_are_bounded() {
        let mut own = OwnCounts::default();
        (0..100).for_each(|minute| own.add(row(&[1]), at(60 * minute)));
        assert!(own.0.iter().all(|spans| spans.len() <= MOST_SPANS));
    }
}
