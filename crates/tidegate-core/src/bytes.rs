//! A cell as bytes, for stores that keep what they do not understand.
//!
//! Integers are written in seven-bit groups, and times as distances to the one before: a hit in a log takes two to four
//! bytes. Bytes that no cell writes are read as none, never as another cell: whoever can write to a store could send any.

use crate::cell::{Cell, CounterBits};
use crate::concurrency::Leases;
use crate::sliding_log::Log;
use crate::units::{Micros, Timestamp};

const COUNTER: u8 = 1;
const LOG: u8 = 2;
const LEASES: u8 = 3;

impl Cell {
    /// Appends its bytes; none if it is vacant.
    pub fn append_bytes(&self, bytes: &mut Vec<u8>) {
        match self {
            Cell::Vacant => {}
            Cell::Counter(bits) => {
                bytes.push(COUNTER);
                bits.words().into_iter().for_each(|word| bytes.extend(word.to_le_bytes()));
            }
            Cell::Log(log) => {
                bytes.push(LOG);
                log.append_bytes(bytes);
            }
            Cell::Leases(leases) => {
                bytes.push(LEASES);
                leases.append_bytes(bytes);
            }
        }
    }

    /// The cell with these bytes; none if no cell has them.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let Some((kind, rest)) = bytes.split_first() else { return Some(Cell::Vacant) };
        let mut reader = Reader(rest);
        let cell = match *kind {
            COUNTER => Cell::Counter(CounterBits::of_words([reader.word()?, reader.word()?])),
            LOG => Cell::Log(Log::read(&mut reader)?),
            LEASES => Cell::Leases(Leases::read(&mut reader)?),
            _ => return None,
        };
        reader.0.is_empty().then_some(cell)
    }
}

/// Appends `number` in seven-bit groups, the lowest first.
pub(crate) fn append_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f | 0x80) as u8);
        number >>= 7;
    }
    bytes.push(number as u8);
}

/// Appends ascending times: how many, and each as the distance to the one before.
pub(crate) fn append_times(bytes: &mut Vec<u8>, times: impl ExactSizeIterator<Item = Timestamp>) {
    append_number(bytes, times.len() as u64);
    let mut last = Timestamp::default();
    for time in times {
        append_number(bytes, time.since(last).get());
        last = time;
    }
}

/// The bytes still to be read.
pub(crate) struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    pub(crate) fn word(&mut self) -> Option<u64> {
        let (word, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*word))
    }

    pub(crate) fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            let group = u64::from(byte & 0x7f);
            number |= group.checked_shl(7 * place).filter(|shifted| shifted >> (7 * place) == group)?;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    /// How many entries of at least `least` bytes follow: never more than there are bytes for.
    pub(crate) fn count(&mut self, least: usize) -> Option<usize> {
        let count = usize::try_from(self.number()?).ok()?;
        (count <= self.0.len() / least).then_some(count)
    }

    /// The time that comes after `last`.
    pub(crate) fn time_after(&mut self, last: Timestamp) -> Option<Timestamp> {
        let distance = self.number()?;
        // The largest that a sum stays exact with, and so the largest that a cell writes.
        last.as_micros().checked_add(distance).map(|_| last + Micros::new(distance))
    }
}
