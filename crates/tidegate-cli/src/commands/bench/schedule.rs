//! When each request is due.
//!
//! All connections draw from one schedule: any free one takes the next request, so a slow connection delays only its own
//! requests. A request that no connection could send in time keeps its due time, and its latency counts from then.
//! (Measuring from the actual sending would leave out exactly the requests that a stalled server delayed.)

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::args::Pace;

const NANOS_PER_SECOND: f64 = 1e9;
/// Requests are due at multiples of this, several at once at higher rates: waking up costs more than sending, and the client
/// shares its cores with the server.
const TICK_NS: u64 = 200_000;
/// How long after the end requests that were due before it are still sent: a client that was stalled for a moment must not
/// report its last requests as lost.
const CATCH_UP: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Schedule {
    start: Instant,
    measure_from: Instant,
    end: Instant,
    interval_ns: Option<f64>,
    /// The number of the next request; open loop only.
    next: AtomicU64,
}

impl Schedule {
    pub(super) fn new(start: Instant, warm_up: Duration, duration: Duration, pace: Pace) -> Self {
        let interval_ns = match pace {
            Pace::Open { per_second } => Some(NANOS_PER_SECOND / per_second),
            Pace::Closed => None,
        };
        let measure_from = start + warm_up;
        Schedule { start, measure_from, end: measure_from + duration, interval_ns, next: AtomicU64::new(0) }
    }

    /// Takes the next request and returns when it is due; `None` if the run is over.
    pub(super) fn take(&self, now: Instant) -> Option<Instant> {
        let Some(interval_ns) = self.interval_ns else { return (now < self.end).then_some(now) };
        if now >= self.end + CATCH_UP {
            return None;
        }
        let due = self.due(self.next.fetch_add(1, Ordering::Relaxed), interval_ns);
        (due < self.end).then_some(due)
    }

    /// Takes the next request only if it is due by `now`.
    pub(super) fn take_if_due(&self, now: Instant) -> Option<Instant> {
        let Some(interval_ns) = self.interval_ns else { return self.take(now) };
        let due = |number| Some(self.due(number, interval_ns)).filter(|due| *due <= now && *due < self.end);
        let taken = self
            .next
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |number| due(number).map(|_| number + 1));
        taken.ok().and_then(due)
    }

    /// Whether nothing is left to take.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        let Some(interval_ns) = self.interval_ns else { return now >= self.end };
        now >= self.end + CATCH_UP || self.due(self.next.load(Ordering::Relaxed), interval_ns) >= self.end
    }

    /// Whether a request due at this time counts: earlier ones only warm the server up.
    pub(super) fn counts(&self, due: Instant) -> bool {
        (self.measure_from..self.end).contains(&due)
    }

    pub(super) fn start(&self) -> Instant {
        self.start
    }

    /// The length of the measured part, given the time of the last answer.
    pub(super) fn measured(&self, last_answer: Option<Instant>) -> Duration {
        last_answer.map_or(self.end, |last| last.max(self.end)) - self.measure_from
    }

    /// The requests that were due but never taken, as (count, time waited when the run ended).
    ///
    /// In at most a thousand groups, each with its shortest wait: a severe overload leaves millions.
    pub(super) fn never_sent(&self) -> Vec<(u64, Duration)> {
        let Some(interval_ns) = self.interval_ns else { return Vec::new() };
        let number_at = |at: Instant| ((at - self.start).as_nanos() as f64 / interval_ns).ceil() as u64;
        let first = self.next.load(Ordering::Relaxed).max(number_at(self.measure_from));
        let end = number_at(self.end);
        let group = end.saturating_sub(first).div_ceil(1000).max(1);
        let groups = (first..end).step_by(usize::try_from(group).unwrap_or(usize::MAX));
        let groups = groups.map(|from| {
            let last = (from + group).min(end) - 1;
            (last + 1 - from, self.end.saturating_duration_since(self.due(last, interval_ns)))
        });
        groups.collect()
    }

    fn due(&self, number: u64, interval_ns: f64) -> Instant {
        let nanos = (number as f64 * interval_ns) as u64;
        self.start + Duration::from_nanos(nanos - nanos % TICK_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const SECOND: Duration = Duration::from_secs(1);

    fn open(per_second: f64) -> Schedule {
        Schedule::new(clock::now(), SECOND, 2 * SECOND, Pace::Open { per_second })
    }

    #[test]
    fn an_open_loop_is_due_at_fixed_times_however_late_it_is_asked() {
        let schedule = open(10.0);
        let late = schedule.start() + 2 * SECOND;
        let due: Vec<_> = (0..3).map(|_| schedule.take(late).unwrap() - schedule.start()).collect();
        assert_eq!(due, [Duration::ZERO, Duration::from_millis(100), Duration::from_millis(200)]);
    }

    #[test]
    fn a_high_rate_comes_in_small_bursts_and_loses_nothing() {
        let schedule = open(20_000.0);
        let due: Vec<_> =
            (0..8).map(|_| (schedule.take(schedule.start).unwrap() - schedule.start).as_micros()).collect();
        assert_eq!(due, [0, 0, 0, 0, 200, 200, 200, 200]);
        let rest = std::iter::from_fn(|| schedule.take(schedule.start)).count();
        assert_eq!(8 + rest, 60_000);
    }

    #[test]
    fn what_is_not_due_yet_can_be_left() {
        let schedule = open(10.0);
        let now = schedule.start() + Duration::from_millis(150);
        assert_eq!(schedule.take_if_due(now), Some(schedule.start()));
        assert_eq!(schedule.take_if_due(now), Some(schedule.start() + Duration::from_millis(100)));
        assert_eq!(schedule.take_if_due(now), None);
        assert_eq!(schedule.take(now), Some(schedule.start() + Duration::from_millis(200)));
        assert_eq!(schedule.take_if_due(schedule.end + SECOND).map(|due| due < schedule.end), Some(true));
    }

    #[test]
    fn a_closed_loop_is_due_at_once() {
        let schedule = Schedule::new(clock::now(), SECOND, SECOND, Pace::Closed);
        let now = schedule.start() + SECOND / 2;
        assert_eq!(schedule.take(now), Some(now));
    }

    #[test]
    fn nothing_is_due_at_or_after_the_end() {
        let schedule = open(1.0);
        let taken: Vec<_> = std::iter::from_fn(|| schedule.take(schedule.start())).collect();
        assert_eq!(taken.len(), 3, "0 s, 1 s and 2 s; 3 s is the end");
        assert!(schedule.is_over(schedule.start()));
    }

    #[test]
    fn what_was_due_before_the_end_may_be_sent_a_little_later_but_not_for_ever() {
        let schedule = open(1.0);
        assert!(schedule.take(schedule.end).is_some());
        assert!(!schedule.is_over(schedule.end));
        assert_eq!(schedule.take(schedule.end + CATCH_UP), None);
        assert!(schedule.is_over(schedule.end + CATCH_UP));
    }

    #[test]
    fn a_closed_loop_ends_on_time() {
        let schedule = Schedule::new(clock::now(), SECOND, SECOND, Pace::Closed);
        assert_eq!(schedule.take(schedule.end), None);
        assert!(schedule.is_over(schedule.end));
    }

    #[test]
    fn the_warm_up_does_not_count() {
        let schedule = open(1.0);
        assert!(!schedule.counts(schedule.start()));
        assert!(schedule.counts(schedule.start() + SECOND));
        assert!(!schedule.counts(schedule.end));
    }

    #[test]
    fn requests_nobody_was_free_to_send_are_all_accounted_for() {
        let schedule = open(1000.0);
        for _ in 0..1500 {
            schedule.take(schedule.start());
        }
        let left = schedule.never_sent();
        assert_eq!(left.iter().map(|(count, _)| count).sum::<u64>(), 1500);
        assert!(left.len() <= 1000, "{} groups", left.len());
        assert_eq!(left.last().unwrap().1, Duration::from_millis(1));
        assert!(left.first().unwrap().1 > Duration::from_millis(1490));
    }

    #[test]
    fn the_warm_up_is_not_owed_either() {
        let left: u64 = open(1000.0).never_sent().iter().map(|(count, _)| count).sum();
        assert_eq!(left, 2000);
    }
}
