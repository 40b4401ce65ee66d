//! One node's part of a limit that a fleet must keep without talking.

use crate::{
    Concurrency, FixedWindow, LeakyBucket, Limit, LimitError, Rate, SlidingLog, SlidingWindow, TokenBucket,
};

impl Limit {
    /// The part of this limit that each of `nodes` may spend: rounded up, so that all together spend less than the limit and
    /// one each, and a node is never left with nothing of a small limit. What one period gives back is divided too.
    #[must_use]
    pub fn divided(&self, nodes: u64) -> Limit {
        if nodes <= 1 {
            return self.clone();
        }
        // A smaller number of what was a fine limit is a fine limit.
        divided(self, nodes).unwrap_or_else(|_| self.clone())
    }
}

fn divided(limit: &Limit, nodes: u64) -> Result<Limit, LimitError> {
    let part = |number: u64| number.div_ceil(nodes);
    // The period stays: it is what makes a cell readable under another number.
    let slower = |rate: Rate| Rate::new(part(rate.count()), rate.period());
    Ok(match limit {
        Limit::TokenBucket(limit) => {
            Limit::TokenBucket(TokenBucket::new(slower(limit.rate())?, part(limit.burst()))?)
        }
        Limit::LeakyBucket(limit) => {
            Limit::LeakyBucket(LeakyBucket::new(slower(limit.rate())?, limit.max_delay())?)
        }
        Limit::FixedWindow(limit) => Limit::FixedWindow(match (limit.window(), limit.boundaries()) {
            (Some(window), _) => FixedWindow::new(part(limit.limit()), window)?,
            (None, boundaries) => {
                FixedWindow::calendar(part(limit.limit()), boundaries.unwrap_or_default().into())?
            }
        }),
        Limit::SlidingWindow(limit) => {
            Limit::SlidingWindow(SlidingWindow::new(part(limit.limit()), limit.window())?)
        }
        Limit::SlidingLog(limit) => Limit::SlidingLog(SlidingLog::new(
            part(limit.limit()),
            limit.window(),
            limit.min_interval(),
            limit.refused_hits(),
        )?),
        Limit::Concurrency(limit) => {
            Limit::Concurrency(Concurrency::new(part(limit.limit()), limit.ttl(), limit.refused_hits())?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Micros, RefusedHits, Timestamp};

    fn every_algorithm(number: u64) -> Vec<Limit> {
        let (second, rate) = (Micros::from_secs(1), Rate::new(number, Micros::from_secs(1)).unwrap());
        let boundaries = (0..5).map(|day| Timestamp::from_micros(day * 86_400_000_000)).collect();
        vec![
            Limit::TokenBucket(TokenBucket::new(rate, number).unwrap()),
            Limit::LeakyBucket(LeakyBucket::new(rate, second).unwrap()),
            Limit::FixedWindow(FixedWindow::new(number, second).unwrap()),
            Limit::FixedWindow(FixedWindow::calendar(number, boundaries).unwrap()),
            Limit::SlidingWindow(SlidingWindow::new(number, second).unwrap()),
            Limit::SlidingLog(SlidingLog::new(number, second, Micros::ZERO, RefusedHits::Count).unwrap()),
            Limit::Concurrency(Concurrency::new(number, second, RefusedHits::Forget).unwrap()),
        ]
    }

    #[test]
    fn the_shares_of_a_fleet_add_up_to_less_than_the_limit_and_one_each() {
        for (number, fleet) in [(100, 1), (100, 3), (1, 7), (10, 10), (11, 10)] {
            for limit in every_algorithm(number) {
                let share = limit.divided(fleet);
                assert_eq!(share.algorithm(), limit.algorithm());
                assert_eq!(share.period(), limit.period());
                // A leaky bucket takes one more than what drains in time.
                let fits = (limit.quota()..limit.quota() + 2 * fleet).contains(&(share.quota() * fleet));
                assert!(fits, "{} x {fleet} of {limit:?}", share.quota());
            }
        }
    }

    #[test]
    fn a_ban_stays_a_ban() {
        let ban = Limit::FixedWindow(FixedWindow::new(0, Micros::from_secs(1)).unwrap());
        assert_eq!(ban.divided(3).quota(), 0);
    }
}
