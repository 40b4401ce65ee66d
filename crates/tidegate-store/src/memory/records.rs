//! Records in this process's memory, bounded in number and size. At the bound the oldest is evicted early.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tidegate_core::{Micros, Timestamp};

use crate::record::Record;

/// The most records.
const MOST_RECORDS: usize = 65_536;
/// The most bytes of names and values.
const MOST_BYTES: usize = 64 << 20;
/// The approximate overhead per record.
const EACH: usize = 160;

/// The records of a memory store.
#[derive(Debug, Default)]
pub(super) struct Records {
    by_name: HashMap<Arc<[u8]>, Kept>,
    /// Every write, oldest first. A replaced write stays until it is the oldest.
    written: VecDeque<(Arc<[u8]>, u64)>,
    next_write: u64,
    bytes: usize,
    evicted: u64,
}

#[derive(Debug)]
struct Kept {
    value: Box<[u8]>,
    until: Timestamp,
    write: u64,
}

impl Records {
    pub(super) fn put(&mut self, record: Record<'_>, now: Timestamp, ttl: Micros) -> Option<Vec<u8>> {
        match self.at(record.name, now) {
            Some(kept) => Some(kept.value.to_vec()),
            None => {
                self.write(record, now, ttl);
                None
            }
        }
    }

    pub(super) fn replace(
        &mut self,
        Record { name, value }: Record<'_>,
        to: Option<&[u8]>,
        now: Timestamp,
        ttl: Micros,
    ) -> bool {
        if self.at(name, now).is_none_or(|kept| *kept.value != *value) {
            return false;
        }
        self.remove(name);
        if let Some(value) = to {
            self.write(Record { name, value }, now, ttl);
        }
        true
    }

    /// The records held, and the number evicted early.
    pub(super) fn stats(&self) -> (usize, u64) {
        (self.by_name.len(), self.evicted)
    }

    fn at(&self, name: &[u8], now: Timestamp) -> Option<&Kept> {
        self.by_name.get(name).filter(|kept| now < kept.until)
    }

    fn write(&mut self, Record { name, value }: Record<'_>, now: Timestamp, ttl: Micros) {
        self.remove(name);
        self.make_room(now);
        let (name, write): (Arc<[u8]>, u64) = (name.into(), self.next_write);
        self.next_write += 1;
        self.bytes += name.len() + value.len() + EACH;
        self.written.push_back((name.clone(), write));
        self.by_name.insert(name, Kept { value: value.into(), until: now + ttl, write });
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some(kept) = self.by_name.remove(name) {
            self.bytes -= name.len() + kept.value.len() + EACH;
        }
    }

    /// Drops the oldest while they are expired or the bound is exceeded.
    fn make_room(&mut self, now: Timestamp) {
        while let Some((name, write)) = self.written.front() {
            let kept = self.by_name.get(name).filter(|kept| kept.write == *write);
            let over = kept.is_none_or(|kept| kept.until <= now);
            if !over && self.written.len() < MOST_RECORDS && self.bytes < MOST_BYTES {
                return;
            }
            if kept.is_some() {
                self.evicted += u64::from(!over);
                let name = name.clone();
                self.remove(&name);
            }
            self.written.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Micros = Micros::from_secs(60);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_micros(seconds * 1_000_000)
    }

    fn record(number: usize) -> Vec<u8> {
        number.to_le_bytes().to_vec()
    }

    #[test]
    fn records_that_are_over_make_room_and_give_their_bytes_back() {
        let mut records = Records::default();
        for minute in 0..5 {
            for name in [b"a", b"b", b"c"] {
                assert_eq!(records.put(Record { name, value: b"1" }, at(60 * minute), MINUTE), None);
            }
        }
        assert_eq!((records.by_name.len(), records.bytes), (3, 3 * (2 + EACH)));
    }

    #[test]
    fn where_there_is_no_room_the_oldest_goes_and_is_counted() {
        let mut records = Records::default();
        for number in 0..=MOST_RECORDS {
            records.put(Record { name: &record(number), value: b"1" }, at(0), MINUTE);
        }
        assert_eq!(records.stats(), (MOST_RECORDS, 1));
        assert!(records.at(&record(0), at(0)).is_none() && records.at(&record(1), at(0)).is_some());
        let large = vec![0; MOST_BYTES / 2];
        for number in 0..3 {
            records.put(Record { name: &record(MOST_RECORDS + 1 + number), value: &large }, at(0), MINUTE);
        }
        assert!(records.bytes < MOST_BYTES + MOST_BYTES / 2 && records.by_name.len() <= 3);
    }

    #[test]
    fn one_record_that_is_written_again_and_again_takes_the_room_of_one() {
        let mut records = Records::default();
        for number in 0..3 * MOST_RECORDS {
            let (from, to) = (record(number), record(number + 1));
            records.put(Record { name: b"a", value: &record(0) }, at(0), MINUTE);
            assert!(records.replace(Record { name: b"a", value: &from }, Some(&to), at(0), MINUTE));
        }
        assert!(records.written.len() <= MOST_RECORDS && records.by_name.len() == 1);
    }
}
