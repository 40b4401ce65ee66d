//! The time from the processor's counter: read by every request, renewed by one thread once a second.
//!
//! A reader takes no lock and never waits. There are two places for a [`Line`], and a number that says which is in use:
//! a new line goes to the other place, so a writer that loses its core blocks no reader. A reader that sees the number
//! change reads again.

mod follow;

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError, TryLockError};

use follow::{Follower, Line};
pub(crate) use follow::{Look, Rate};

/// Converts a tick of the counter to wall-clock time.
#[derive(Debug)]
pub(crate) struct CounterClock {
    published: AtomicU64,
    places: [PublishedLine; 2],
    follower: Mutex<Follower>,
}

/// A line, and the previous one for ticks before its start: one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PublishedLine {
    line: [AtomicU64; 4],
    before: [AtomicU64; 4],
}

impl CounterClock {
    /// Starts from a reading of the clocks and a rate that may be wrong.
    pub(crate) fn new(look: Look, rate: Rate) -> Self {
        let follower = Follower::new(look, rate);
        let places = [PublishedLine::default(), PublishedLine::default()];
        places[0].store(&follower.line(), &follower.line());
        CounterClock { published: AtomicU64::new(0), places, follower: Mutex::new(follower) }
    }

    /// The time at `ticks`, in microseconds since 1970. If the line has ended, `look` reads the clocks for the next.
    #[inline]
    pub(crate) fn at(&self, ticks: u64, look: impl FnOnce() -> Look) -> u64 {
        let line = self.read(|place| &place.line);
        // Before the start the difference wraps: one comparison checks both ends.
        if ticks.wrapping_sub(line.ticks) < line.length_ticks {
            line.at(ticks)
        } else {
            self.beyond(ticks, look)
        }
    }

    #[cold]
    #[inline(never)]
    fn beyond(&self, ticks: u64, look: impl FnOnce() -> Look) -> u64 {
        let line = self.read(|place| &place.line);
        if ticks < line.ticks {
            return self.read(|place| &place.before).at(ticks);
        }
        match self.follower.try_lock() {
            Ok(mut follower) => self.renew(&mut follower, ticks, look),
            Err(TryLockError::Poisoned(poisoned)) => self.renew(&mut poisoned.into_inner(), ticks, look),
            Err(TryLockError::WouldBlock) if !line.is_stale_at(ticks) => line.at(ticks),
            Err(TryLockError::WouldBlock) => {
                // The first readers after a long idle time: the old line is too far off to use.
                let mut follower = self.follower.lock().unwrap_or_else(PoisonError::into_inner);
                self.renew(&mut follower, ticks, look)
            }
        }
    }

    fn renew(&self, follower: &mut Follower, ticks: u64, look: impl FnOnce() -> Look) -> u64 {
        let before = follower.line();
        if ticks < before.end() {
            // Another thread was faster, and its line may start slightly later.
            return if ticks < before.ticks {
                self.read(|place| &place.before).at(ticks)
            } else {
                before.at(ticks)
            };
        }
        let look = look();
        let line = follower.follow(look);
        let next = self.published.load(Ordering::Relaxed).wrapping_add(1);
        // Pairs with the fence in `read`: a reader that sees part of this line also sees that the place was out of use.
        fence(Ordering::Release);
        self.place(next).store(&line, &before);
        self.published.store(next, Ordering::Release);
        if look.ticks < line.ticks { before.at(look.ticks) } else { line.at(look.ticks) }
    }

    #[inline]
    fn read(&self, part: impl Fn(&PublishedLine) -> &[AtomicU64; 4]) -> Line {
        loop {
            let published = self.published.load(Ordering::Acquire);
            let line = load(part(self.place(published)));
            fence(Ordering::Acquire);
            if self.published.load(Ordering::Relaxed) == published {
                return line;
            }
        }
    }

    #[inline]
    fn place(&self, published: u64) -> &PublishedLine {
        &self.places[(published & 1) as usize]
    }
}

impl PublishedLine {
    fn store(&self, line: &Line, before: &Line) {
        for (to, from) in [(&self.line, line), (&self.before, before)] {
            to[0].store(from.ticks, Ordering::Relaxed);
            to[1].store(from.us, Ordering::Relaxed);
            to[2].store(from.units_per_tick, Ordering::Relaxed);
            to[3].store(from.length_ticks, Ordering::Relaxed);
        }
    }
}

#[inline]
fn load(from: &[AtomicU64; 4]) -> Line {
    Line {
        ticks: from[0].load(Ordering::Relaxed),
        us: from[1].load(Ordering::Relaxed),
        units_per_tick: from[2].load(Ordering::Relaxed),
        length_ticks: from[3].load(Ordering::Relaxed),
    }
}

#[cfg(test)]
mod tests;
