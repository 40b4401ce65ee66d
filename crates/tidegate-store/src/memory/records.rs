//! Records in this process's memory: kept for all of their time, within a stated bound of memory. At the bound a new name is
//! refused; none is forgotten early, or a retry would spend again.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tidegate_core::{Micros, Timestamp};

use crate::record::Record;

/// The most bytes of names, values and what they take beside: some 200,000 answers.
const MOST_BYTES: usize = 128 << 20;
/// The approximate overhead per record.
const EACH: usize = 160;
/// Names that were removed stay in the queue until they would have ended, but never more than this beyond those that were not.
const MOST_REMOVED: usize = 1_024;

/// The records of a memory store.
#[derive(Debug, Default)]
pub(super) struct Records {
    by_name: HashMap<Arc<[u8]>, Kept>,
    /// Every name, in the order of their first writes.
    written: VecDeque<(Arc<[u8]>, u64)>,
    next_write: u64,
    bytes: usize,
    refused: u64,
}

/// There is no room for another name.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

#[derive(Debug)]
struct Kept {
    value: Box<[u8]>,
    until: Timestamp,
    write: u64,
}

impl Records {
    pub(super) fn put(
        &mut self,
        record: Record<'_>,
        now: Timestamp,
        ttl: Micros,
    ) -> Result<Option<Vec<u8>>, Full> {
        if let Some(kept) = self.at(record.name, now) {
            return Ok(Some(kept.value.to_vec()));
        }
        self.forget_what_has_ended(now);
        if self.bytes + size(record) > MOST_BYTES {
            self.refused += 1;
            return Err(Full);
        }
        self.write(record, now, ttl);
        Ok(None)
    }

    /// Replaces a value. The bound does not count here: the name has its place, and its answer must be found again.
    pub(super) fn replace(
        &mut self,
        Record { name, value }: Record<'_>,
        to: Option<&[u8]>,
        now: Timestamp,
        ttl: Micros,
    ) -> bool {
        let Some(kept) = self.by_name.get_mut(name).filter(|kept| now < kept.until && *kept.value == *value)
        else {
            return false;
        };
        match to {
            Some(to) => {
                self.bytes = self.bytes - kept.value.len() + to.len();
                (kept.value, kept.until) = (to.into(), now + ttl);
            }
            None => self.remove(name),
        }
        true
    }

    /// The records held, and the number of names refused.
    pub(super) fn stats(&self) -> (usize, u64) {
        (self.by_name.len(), self.refused)
    }

    fn at(&self, name: &[u8], now: Timestamp) -> Option<&Kept> {
        self.by_name.get(name).filter(|kept| now < kept.until)
    }

    fn write(&mut self, record: Record<'_>, now: Timestamp, ttl: Micros) {
        self.remove(record.name);
        let (name, write): (Arc<[u8]>, u64) = (record.name.into(), self.next_write);
        self.next_write += 1;
        self.bytes += size(record);
        self.written.push_back((name.clone(), write));
        self.by_name.insert(name, Kept { value: record.value.into(), until: now + ttl, write });
        if self.written.len() > 2 * self.by_name.len() + MOST_REMOVED {
            let by_name = &self.by_name;
            self.written.retain(|(name, write)| by_name.get(name).is_some_and(|kept| kept.write == *write));
        }
    }

    fn remove(&mut self, name: &[u8]) {
        if let Some(kept) = self.by_name.remove(name) {
            self.bytes -= size(Record { name, value: &kept.value });
        }
    }

    fn forget_what_has_ended(&mut self, now: Timestamp) {
        while let Some((name, write)) = self.written.front() {
            let kept = self.by_name.get(name).filter(|kept| kept.write == *write);
            if kept.is_some_and(|kept| now < kept.until) {
                return;
            }
            if kept.is_some() {
                let name = name.clone();
                self.remove(&name);
            }
            self.written.pop_front();
        }
    }
}

fn size(record: Record<'_>) -> usize {
    record.name.len() + record.value.len() + EACH
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
                assert_eq!(records.put(Record { name, value: b"1" }, at(60 * minute), MINUTE), Ok(None));
            }
        }
        assert_eq!((records.by_name.len(), records.bytes), (3, 3 * (2 + EACH)));
    }

    #[test]
    fn a_record_outlives_two_hundred_thousand_others() {
        let mut records = Records::default();
        let answer = [7; 450];
        for number in 0..200_000 {
            let name = record(number);
            assert_eq!(records.put(Record { name: &name, value: b"claim" }, at(0), MINUTE), Ok(None));
            assert!(records.replace(Record { name: &name, value: b"claim" }, Some(&answer), at(0), MINUTE));
        }
        assert_eq!(
            records.put(Record { name: &record(0), value: b"" }, at(59), MINUTE),
            Ok(Some(answer.to_vec()))
        );
    }

    #[test]
    fn a_new_name_beyond_the_bound_is_refused_until_others_end() {
        let mut records = Records::default();
        let large = vec![0; MOST_BYTES / 4];
        let mut put = |number, seconds| {
            records.put(Record { name: &record(number), value: &large }, at(seconds), MINUTE)
        };
        for number in 0..3 {
            assert_eq!(put(number, 0), Ok(None));
        }
        assert_eq!((put(3, 59), put(0, 59)), (Err(Full), Ok(Some(large.clone()))));
        assert_eq!(put(3, 60), Ok(None));
        assert_eq!(records.stats(), (1, 1));
    }

    #[test]
    fn one_record_that_is_written_again_and_again_takes_the_room_of_one() {
        let mut records = Records::default();
        for number in 0..10 * MOST_REMOVED {
            let value = &record(number)[..];
            assert_eq!(records.put(Record { name: b"a", value }, at(0), MINUTE), Ok(None));
            assert!(records.replace(Record { name: b"a", value }, None, at(0), MINUTE));
        }
        assert!(records.written.len() <= MOST_REMOVED + 2 && records.bytes == 0);
    }
}
