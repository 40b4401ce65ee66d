//! Lines with a suspicious time: they are held until later lines show whether it is right.

use tidegate_core::Timestamp;

use super::Replay;
use crate::merge::LEAP;
use crate::parse::{BadLine, Recorded};
use crate::report::BadLineExample;

/// A line whose time is far ahead of the previous one's, held until the next line shows whether it is right.
pub(super) struct Leap {
    pub(super) recorded: Recorded<'static>,
    example: BadLineExample,
}

impl Replay {
    /// Replays a request, unless its time is far ahead: then the next line shows whether the log continues from there, or
    /// only this line is wrong. If it were replayed at once, all following lines would count at its time.
    #[inline]
    pub(super) fn play_unless_leap(&mut self, recorded: &Recorded<'_>, text: &[u8]) {
        if let Some(beginning) = self.beginning.take() {
            let [first, second] = *beginning;
            self.put_or_not(first, recorded.when());
            self.put(&second.recorded);
        }
        if let Some(leap) = self.leap.take() {
            // Of the first two lines of a log, either may be wrong.
            if self.seen().is_none() && recorded.when() + LEAP < leap.recorded.when() {
                self.beginning = Some(Box::new([*leap, self.leap_of(recorded, text)]));
                return;
            }
            self.put_or_not(*leap, recorded.when());
        }
        if self.seen().is_none_or(|latest| latest + LEAP < recorded.when()) {
            self.leap = Some(Box::new(self.leap_of(recorded, text)));
        } else {
            self.put(recorded);
        }
    }

    fn leap_of(&self, recorded: &Recorded<'_>, text: &[u8]) -> Leap {
        let example = self.example(BadLine("its time is far ahead of the lines around it"), text);
        Leap { recorded: recorded.clone().into_owned(), example }
    }

    /// Replays a held line, unless the one after it is far earlier.
    fn put_or_not(&mut self, leap: Leap, next: Timestamp) {
        match next + LEAP < leap.recorded.when() {
            true => self.bad(leap.example),
            false => self.put(&leap.recorded),
        }
    }
}
