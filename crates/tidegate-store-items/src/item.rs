//! An item: what a fleet keeps of one key tuple, or one value.
//!
//! ```text
//! version (1) | latest time (8) | holder (8) | held until (8) | parts: name (8), ends (8), length (4), state
//! ```
//!
//! Bytes that no node wrote are read as an empty item, and replaced by the next write.

use tidegate_core::{Cell, Timestamp};

use crate::name::Part;

const VERSION: u8 = 1;
const HEAD: usize = 25;
const PART_HEAD: usize = 20;

/// What an item holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// The latest time at which it was changed: no later decision sees an earlier one.
    pub latest: Timestamp,
    /// Who holds it.
    pub hold: Hold,
    parts: Vec<(Part, Timestamp, Vec<u8>)>,
}

/// Who holds an item while a request over several is decided; nobody where the token is zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Names this hold.
    pub token: u64,
    /// When it is over.
    pub until: Timestamp,
}

impl Item {
    /// Reads what [`bytes`](Item::bytes) gave.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        Item::try_read(bytes).unwrap_or_default()
    }

    fn try_read(bytes: &[u8]) -> Option<Self> {
        let rest = bytes.strip_prefix(&[VERSION])?;
        let (latest, rest) = number(rest)?;
        let (token, rest) = number(rest)?;
        let (until, mut rest) = number(rest)?;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let (name, after) = rest.split_first_chunk()?;
            let (ends, after) = number(after)?;
            let (length, after) = after.split_first_chunk()?;
            let (state, after) = after.split_at_checked(u32::from_le_bytes(*length) as usize)?;
            parts.push((*name, Timestamp::from_micros(ends), state.to_vec()));
            rest = after;
        }
        let hold = Hold { token, until: Timestamp::from_micros(until) };
        Some(Item { latest: Timestamp::from_micros(latest), hold, parts })
    }

    /// As a store keeps it.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.size());
        bytes.push(VERSION);
        let head = [self.latest.as_micros(), self.hold.token, self.hold.until.as_micros()];
        head.into_iter().for_each(|number| bytes.extend(number.to_le_bytes()));
        for (name, ends, state) in &self.parts {
            bytes.extend(name);
            bytes.extend(ends.as_micros().to_le_bytes());
            bytes.extend(u32::try_from(state.len()).unwrap_or(u32::MAX).to_le_bytes());
            bytes.extend(state);
        }
        bytes
    }

    /// Checks that it is no larger than a store keeps.
    ///
    /// # Errors
    /// When it is: its key has more than it may have.
    pub fn fits_in(&self, most: usize) -> Result<(), String> {
        let size = self.size();
        if size <= most {
            return Ok(());
        }
        Err(format!(
            "the limits and refunds of one key would take {size} bytes, and {most} is the most: use a `sliding_window` instead of \
             a log, or lower the limits"
        ))
    }

    /// How many bytes it is.
    fn size(&self) -> usize {
        HEAD + self.parts.iter().map(|(_, _, state)| PART_HEAD + state.len()).sum::<usize>()
    }

    /// The same, held by somebody.
    #[must_use]
    pub fn held(&self, hold: Hold) -> Self {
        Item { hold, ..self.clone() }
    }

    /// A part's state; none if it has none.
    #[must_use]
    pub fn part(&self, name: Part) -> Option<&[u8]> {
        self.parts.iter().find(|(known, ..)| *known == name).map(|(_, _, state)| &state[..])
    }

    /// A part's state, if it has not ended.
    #[must_use]
    pub fn live_part(&self, name: Part, now: Timestamp) -> Option<&[u8]> {
        let is_live = |(known, ends, _): &&(Part, Timestamp, Vec<u8>)| *known == name && now < *ends;
        self.parts.iter().find(is_live).map(|(_, _, state)| &state[..])
    }

    /// A limit's cell. What no cell writes is read as none.
    #[must_use]
    pub fn cell(&self, name: Part) -> Cell {
        self.part(name).and_then(Cell::from_bytes).unwrap_or_default()
    }

    /// Sets a part, or removes it.
    pub fn set(&mut self, name: Part, content: Option<(Timestamp, Vec<u8>)>) {
        let place = self.parts.iter().position(|(known, ..)| *known == name);
        match (place, content) {
            (Some(place), Some((ends, state))) => self.parts[place] = (name, ends, state),
            (None, Some((ends, state))) => self.parts.push((name, ends, state)),
            (Some(place), None) => drop(self.parts.remove(place)),
            (None, None) => {}
        }
    }

    /// Removes what has ended.
    pub fn forget_ended(&mut self, now: Timestamp) {
        self.parts.retain(|(_, ends, _)| now < *ends);
    }

    /// Whether it has no part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// When it says nothing any more.
    #[must_use]
    pub fn ends(&self) -> Timestamp {
        self.parts.iter().map(|(_, ends, _)| *ends).max().unwrap_or_default()
    }

    /// Whether its parts are the same.
    #[must_use]
    pub fn says_what(&self, other: &Item) -> bool {
        self.parts == other.parts
    }
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*number), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(1_800_000_000_000_000);

    fn item() -> Item {
        let mut item = Item { latest: NOW, hold: Hold { token: 7, until: NOW }, ..Item::default() };
        item.set([1; 8], Some((NOW, b"one".to_vec())));
        item.set([2; 8], Some((Timestamp::from_micros(1), Vec::new())));
        item
    }

    #[test]
    fn an_item_is_read_as_it_was_written() {
        assert_eq!(Item::read(&item().bytes()), item());
        assert_eq!(Item::read(&Item::default().bytes()), Item::default());
    }

    #[test]
    fn bytes_cut_anywhere_are_an_empty_item_or_fewer_parts() {
        let bytes = item().bytes();
        for end in 0..bytes.len() {
            let read = Item::read(&bytes[..end]);
            assert!(read.parts.len() < 2, "{end}");
        }
        assert_eq!(Item::read(b"something else"), Item::default());
    }

    #[test]
    fn an_item_fits_if_its_bytes_do() {
        let size = item().bytes().len();
        assert!(item().fits_in(size).is_ok());
        let why = item().fits_in(size - 1).unwrap_err();
        assert!(why.contains("sliding_window"), "{why}");
    }

    #[test]
    fn a_part_that_has_ended_is_forgotten() {
        let mut item = item();
        item.forget_ended(Timestamp::from_micros(1));
        assert_eq!((item.part([2; 8]), item.part([1; 8])), (None, Some(&b"one"[..])));
        assert_eq!(item.live_part([1; 8], NOW), None);
    }
}
