//! One node's share of a limit when the nodes of a fleet cannot communicate.

use crate::{
    Concurrency, FixedWindow, LeakyBucket, Limit, LimitError, Rate, SlidingLog, SlidingWindow, TokenBucket,
};

impl Limit {
    /// The share of this limit for each of `nodes`: rounded up, so that together they spend less than the limit plus one per
    /// node, and a node always gets some of a small limit. The refill per period is divided too.
    #[must_use]
    pub fn divided(&self, nodes: u64) -> Limit {
        if nodes <= 1 {
            return self.clone();
        }
        // A valid limit with a smaller number stays valid.
        divided(self, nodes).unwrap_or_else(|_| self.clone())
    }
}

fn divided(limit: &Limit, nodes: u64) -> Result<Limit, LimitError> {
    let part = |number: u64| number.div_ceil(nodes);
    // The period is kept: a cell stays readable under another number, not under another period.
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
                // A leaky bucket admits one more than drains within `max_delay`.
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
