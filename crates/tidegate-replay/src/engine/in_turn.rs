//! Lines whose time may be wrong: they wait until others tell.

use tidegate_core::Timestamp;

use super::Replay;
use crate::merge::LEAP;
use crate::parse::{BadLine, Recorded};
use crate::report::BadLineExample;

/// A line whose time is far ahead of the one before, until the next one tells whether it is right.
pub(super) struct Leap {
    pub(super) recorded: Recorded<'static>,
    example: BadLineExample,
}

impl Replay {
    /// Plays a request, unless its time is far ahead: then the next line tells whether the log goes on from there, or this one
    /// alone is wrong. Were it played, all that follow would count as made at its time.
    #[inline]
    pub(super) fn play_in_turn(&mut self, recorded: &Recorded<'_>, text: &[u8]) {
        if let Some(beginning) = self.beginning.take() {
            let [first, second] = *beginning;
            self.put_or_not(first, recorded.when());
            self.put(&second.recorded);
        }
        if let Some(leap) = self.leap.take() {
            // Of two lines that begin a log, either may be wrong.
            if self.latest.is_none() && recorded.when() + LEAP < leap.recorded.when() {
                self.beginning = Some(Box::new([*leap, self.leap_of(recorded, text)]));
                return;
            }
            self.put_or_not(*leap, recorded.when());
        }
        if self.latest.is_none_or(|latest| latest + LEAP < recorded.when()) {
            self.leap = Some(Box::new(self.leap_of(recorded, text)));
        } else {
            self.put(recorded);
        }
    }

    fn leap_of(&self, recorded: &Recorded<'_>, text: &[u8]) -> Leap {
        let example = self.example(BadLine("its time is far ahead of the lines around it"), text);
        Leap { recorded: recorded.clone().into_owned(), example }
    }

    /// Plays a line that waited, unless one after it is far earlier.
    fn put_or_not(&mut self, leap: Leap, next: Timestamp) {
        match next + LEAP < leap.recorded.when() {
            true => self.bad(leap.example),
            false => self.put(&leap.recorded),
        }
    }
}
