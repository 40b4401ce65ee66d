//! Encodes a limit for its Lua twin: a letter and six numbers.
//!
//! All numbers are integers that a double holds exactly: core refuses other limits.

use tidegate_core::{Concurrency, FixedWindow, Limit, Meter, Micros, RefusedHits, SlidingWindow, Timestamp};

/// A sliding log of more hits is read and written in place.
const LARGE_LOG: u64 = 1_000;

/// Replaces the algorithm letter: the refused requests that a concurrency limit counts, next to its leases.
pub(crate) const REFUSED_LETTER: u8 = b'x';
/// The letter in keys of both sliding algorithms: each reads what the other left, so that a limit may change from one to the
/// other. A sliding window's value has 15 bytes, and that of a log more.
const SLIDING: u8 = b's';
/// The letter of concurrency limits that count refused requests.
pub(crate) const COUNTING_CONCURRENCY: u8 = b'k';

/// A limit in a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Encoded {
    /// The algorithm letter in scripts.
    pub(crate) letter: u8,
    /// The algorithm letter in keys.
    pub(crate) key_letter: u8,
    /// What the header of the algorithm's Lua file lists under "Limit".
    pub(crate) numbers: [f64; 6],
    /// Whether its value is a string small enough for a reply.
    pub(crate) readable: bool,
    /// The range of store time, from and until, in which the numbers are valid.
    pub(crate) valid: (f64, f64),
}

/// Always valid.
pub(crate) const ALWAYS: (f64, f64) = (0.0, f64::INFINITY);

/// Encodes `limit`; for a calendar, the windows around `approx_now`, this node's estimate of the store's time.
pub(crate) fn encode(limit: &Limit, approx_now: impl FnOnce() -> Timestamp) -> Encoded {
    let plain =
        |letter, numbers| Encoded { letter, key_letter: letter, numbers, readable: true, valid: ALWAYS };
    match limit {
        Limit::TokenBucket(limit) => {
            let [work, drained, period, coarseness] = meter(limit.meter(), limit.rate().period());
            plain(b'b', [work, drained, period, coarseness, number(limit.burst()), 0.0])
        }
        Limit::LeakyBucket(limit) => {
            let [work, drained, period, coarseness] = meter(limit.meter(), limit.rate().period());
            let (queue, longest_wait) = (number(limit.queue()), number(limit.longest_wait()));
            plain(b'q', [work, drained, period, coarseness, queue, longest_wait])
        }
        Limit::FixedWindow(limit) => fixed_window(limit, approx_now),
        Limit::SlidingWindow(limit) => Encoded { key_letter: SLIDING, ..plain(b'w', sliding_window(limit)) },
        Limit::SlidingLog(limit) => {
            let large = limit.limit() > LARGE_LOG;
            let [count, window, interval] =
                [limit.limit(), limit.window().get(), limit.min_interval().get()].map(number);
            let numbers = [count, window, interval, width(limit.window()), f64::from(u8::from(large)), 0.0];
            Encoded { key_letter: SLIDING, readable: !large, ..plain(b'l', numbers) }
        }
        Limit::Concurrency(limit) => concurrency(limit),
    }
}

/// Redis's time to decide one counter within a call, in microseconds (`cargo xtask bench redis-costs`).
#[must_use]
pub fn decision_us(limit: &Limit) -> f64 {
    match limit {
        Limit::TokenBucket(_) | Limit::FixedWindow(_) | Limit::SlidingWindow(_) => 4.5,
        Limit::LeakyBucket(_) => 5.0,
        Limit::SlidingLog(_) => 7.0,
        Limit::Concurrency(_) => 12.0,
    }
}

/// A count for the scripts. Every limit is below 2^53, so larger counts are clamped to it.
#[expect(clippy::cast_precision_loss, reason = "exact up to 2^53")]
pub(crate) fn number(count: u64) -> f64 {
    count.min(tidegate_core::EXACT_MAX) as f64
}

fn meter(meter: &Meter, period: Micros) -> [f64; 4] {
    [
        number(meter.work_per_hit()),
        number(meter.drained_per_us()),
        number(period.get()),
        f64::from(meter.coarseness()),
    ]
}

fn sliding_window(limit: &SlidingWindow) -> [f64; 6] {
    let ticks = limit.window().get().div_ceil(limit.tick().get());
    let most = tidegate_core::EXACT_MAX / 2 / ticks;
    let numbers = [limit.limit(), limit.window().get(), limit.tick().get(), ticks, most, 0];
    numbers.map(number)
}

fn concurrency(limit: &Concurrency) -> Encoded {
    let letter = match limit.refused_hits() {
        RefusedHits::Forget => b'c',
        RefusedHits::Count => COUNTING_CONCURRENCY,
    };
    let numbers = [number(limit.limit()), number(limit.ttl().get()), 0.0, 0.0, 0.0, 0.0];
    Encoded { letter, key_letter: b'c', numbers, readable: false, valid: ALWAYS }
}

/// The bytes needed to distinguish times within `span` of each other.
fn width(span: Micros) -> f64 {
    match span.get() {
        0..=0x1_0000_0000 => 4.0,
        0x1_0000_0001..=0x100_0000_0000 => 5.0,
        0x100_0000_0001..=0x1_0000_0000_0000 => 6.0,
        _ => 7.0,
    }
}

fn fixed_window(limit: &FixedWindow, approx_now: impl FnOnce() -> Timestamp) -> Encoded {
    let count = number(limit.limit());
    let (window, boundaries, valid) = match (limit.window(), limit.boundaries()) {
        (Some(window), _) => (number(window.get()), [0.0; 4], ALWAYS),
        (None, boundaries) => {
            let calendar = boundaries.expect("a fixed window has a length or boundaries");
            let Slice { boundaries, is_first, valid } = Slice::around(calendar, approx_now());
            (if is_first { -1.0 } else { 0.0 }, boundaries, valid)
        }
    };
    let [b1, b2, b3, b4] = boundaries;
    Encoded {
        letter: b'f',
        key_letter: b'f',
        numbers: [count, window, b1, b2, b3, b4],
        readable: true,
        valid,
    }
}

/// Four boundaries of a calendar.
#[derive(Debug, PartialEq)]
struct Slice {
    boundaries: [f64; 4],
    /// Whether they start with the calendar's first boundary.
    is_first: bool,
    valid: (f64, f64),
}

impl Slice {
    /// The window around `approx_now`, with the one before and the one after.
    fn around(calendar: &[Timestamp], approx_now: Timestamp) -> Self {
        let after = calendar.partition_point(|boundary| *boundary <= approx_now);
        let first = after.saturating_sub(2).min(calendar.len() - 2);
        let at = |index: usize| number(calendar[index].as_micros());
        // After the last boundary, windows of the last one's length follow.
        let last = calendar.len() - 1;
        let step = at(last) - at(last - 1);
        let mut boundaries = [0.0; 4];
        for (place, boundary) in boundaries.iter_mut().enumerate() {
            let index = first + place;
            let beyond = u32::try_from(index.saturating_sub(last)).expect("at most three");
            *boundary = at(index.min(last)) + step * f64::from(beyond);
        }
        let from = if first == 0 { 0.0 } else { boundaries[0] };
        let until = if first + 3 >= last { f64::INFINITY } else { boundaries[3] };
        Slice { boundaries, is_first: first == 0, valid: (from, until) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calendar(boundaries: &[u64]) -> Vec<Timestamp> {
        boundaries.iter().copied().map(Timestamp::from_micros).collect()
    }

    fn slice(boundaries: &[u64], about: u64) -> Slice {
        Slice::around(&calendar(boundaries), Timestamp::from_micros(about))
    }

    #[test]
    fn a_slice_holds_the_window_around_a_moment_and_its_neighbours() {
        let slice = slice(&[10, 20, 30, 40, 50, 60], 35);
        assert_eq!(slice.boundaries, [20.0, 30.0, 40.0, 50.0]);
        assert_eq!((slice.is_first, slice.valid), (false, (20.0, 50.0)));
    }

    #[test]
    fn a_slice_at_the_end_goes_on_with_windows_as_long_as_the_last() {
        let slice = slice(&[10, 20, 27], 1_000);
        assert_eq!(slice.boundaries, [20.0, 27.0, 34.0, 41.0]);
        assert_eq!((slice.is_first, slice.valid), (false, (20.0, f64::INFINITY)));
    }

    #[test]
    fn a_slice_before_the_first_boundary_holds_since_ever() {
        let slice = slice(&[10, 20, 30, 40, 50], 3);
        assert_eq!(slice.boundaries, [10.0, 20.0, 30.0, 40.0]);
        assert_eq!((slice.is_first, slice.valid), (true, (0.0, 40.0)));
    }

    #[test]
    fn a_calendar_of_two_boundaries_is_a_slice() {
        let slice = slice(&[10, 20], 15);
        assert_eq!(slice.boundaries, [10.0, 20.0, 30.0, 40.0]);
        assert_eq!((slice.is_first, slice.valid), (true, (0.0, f64::INFINITY)));
    }
}
