//! The fraction of time that workers are busy, for load shedding and autoscaling.

use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The fraction of time that the workers were busy between the last two looks.
#[derive(Default)]
pub(super) struct BusyRatio(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    last: Option<(Duration, Instant)>,
    ratio: f64,
}

impl BusyRatio {
    /// Records how long each worker has been busy since it started.
    pub(super) fn look(&self, busy: &[Duration], now: Instant) {
        let mut seen = self.0.lock().expect("nobody panics with it");
        let total = busy.iter().sum();
        let before = seen.last.replace((total, now));
        let Some((busy_before, then)) = before else { return };
        let passed = now.saturating_duration_since(then).as_secs_f64() * busy.len() as f64;
        if passed > 0.0 {
            seen.ratio = (total.saturating_sub(busy_before).as_secs_f64() / passed).min(1.0);
        }
    }

    pub(super) fn ratio(&self) -> f64 {
        self.0.lock().expect("nobody panics with it").ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    #[test]
    fn it_is_the_mean_over_the_workers_since_the_last_look() {
        let (busy, start) = (BusyRatio::default(), clock::now());
        let second = Duration::from_secs(1);
        busy.look(&[second * 50, second * 3], start);
        assert_eq!(busy.ratio(), 0.0);
        busy.look(&[second * 51, second * 3], start + second);
        assert_eq!(busy.ratio(), 0.5);
        busy.look(&[second * 51, second * 3], start + second * 2);
        assert_eq!(busy.ratio(), 0.0);
    }
}
