//! Limits and histories to try them on.

use proptest::prelude::*;
use tidegate_core::{
    Ask, Concurrency, FixedWindow, LeakyBucket, LeaseId, Limit, Micros, Rate, RefusedHits, SlidingLog,
    SlidingWindow, Timestamp, TokenBucket,
};

/// A moment in 2027, on no boundary of anything.
pub(crate) const START: Timestamp = Timestamp::from_micros(1_800_000_000_123_457);

/// One request of a history: so long after the one before it, so many hits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) wait: Micros,
    pub(crate) hits: u64,
}

/// Periods from a microsecond to a day, round ones and odd ones.
pub(crate) fn any_period() -> impl Strategy<Value = Micros> {
    prop_oneof![
        Just(Micros::from_secs(1)),
        Just(Micros::from_secs(60)),
        Just(Micros::from_secs(86_400)),
        (1..5_000u64).prop_map(Micros::new),
        (1..90_000_000u64).prop_map(Micros::new),
    ]
}

pub(crate) fn any_rate() -> impl Strategy<Value = Rate> {
    (prop_oneof![1..10u64, 1..10_000u64, 1..10_000_000u64], any_period())
        .prop_map(|(count, period)| Rate::new(count, period).unwrap())
}

pub(crate) fn any_token_bucket() -> impl Strategy<Value = TokenBucket> {
    (any_rate(), 1..200u64).prop_map(|(rate, burst)| TokenBucket::new(rate, burst).unwrap())
}

pub(crate) fn any_leaky_bucket() -> impl Strategy<Value = LeakyBucket> {
    (any_rate(), 0..20u64).prop_map(|(rate, slots)| {
        let max_delay = Micros::new(rate.period().get() * slots / rate.count());
        LeakyBucket::new(rate, max_delay).unwrap()
    })
}

pub(crate) fn any_fixed_window() -> impl Strategy<Value = FixedWindow> {
    let even = (1..50u64, any_period()).prop_map(|(limit, window)| FixedWindow::new(limit, window).unwrap());
    let calendar = (1..50u64, proptest::collection::vec(1..3_000_000u64, 2..40)).prop_map(|(limit, gaps)| {
        let mut at = START.back(Micros::from_secs(3));
        let boundaries: Vec<Timestamp> = gaps
            .iter()
            .map(|gap| {
                at = at + Micros::new(*gap);
                at
            })
            .collect();
        FixedWindow::calendar(limit, boundaries.into()).unwrap()
    });
    prop_oneof![3 => even, 1 => calendar]
}

pub(crate) fn any_sliding_window() -> impl Strategy<Value = SlidingWindow> {
    (1..50u64, any_period()).prop_map(|(limit, window)| SlidingWindow::new(limit, window).unwrap())
}

pub(crate) fn any_sliding_log() -> impl Strategy<Value = SlidingLog> {
    let window = prop_oneof![3 => any_period(), 1 => Just(Micros::from_secs(7 * 86_400))];
    (1..30u64, window, 0..4u64, any_refused()).prop_map(|(limit, window, part, refused)| {
        let min_interval = Micros::new(window.get() * part / 20);
        SlidingLog::new(limit, window, min_interval, refused).unwrap()
    })
}

pub(crate) fn any_concurrency() -> impl Strategy<Value = Concurrency> {
    (1..10u64, any_period(), any_refused())
        .prop_map(|(limit, ttl, refused)| Concurrency::new(limit, ttl, refused).unwrap())
}

fn any_refused() -> impl Strategy<Value = RefusedHits> {
    prop_oneof![4 => Just(RefusedHits::Forget), 1 => Just(RefusedHits::Count)]
}

pub(crate) fn any_limit() -> impl Strategy<Value = Limit> {
    prop_oneof![
        any_token_bucket().prop_map(Limit::TokenBucket),
        any_leaky_bucket().prop_map(Limit::LeakyBucket),
        any_fixed_window().prop_map(Limit::FixedWindow),
        any_sliding_window().prop_map(Limit::SlidingWindow),
        any_sliding_log().prop_map(Limit::SlidingLog),
        any_concurrency().prop_map(Limit::Concurrency),
    ]
}

/// The time scale on which a limit does something: histories should neither outrun it nor stand still.
pub(crate) fn scale(limit: &Limit) -> u64 {
    let span = match limit {
        Limit::Concurrency(limit) => limit.ttl(),
        Limit::FixedWindow(limit) => limit.window().unwrap_or(Micros::new(1_500_000)),
        limit => limit.quota_window().expect("every other limit has one"),
    };
    span.get().max(1)
}

/// A history of requests that comes back to `limit` at interesting moments.
pub(crate) fn any_history(limit: &Limit) -> impl Strategy<Value = Vec<Step>> + use<> {
    let scale = scale(limit);
    let quota = limit.quota();
    let wait = prop_oneof![
        2 => Just(0),
        2 => 0..=scale / 50,
        2 => 0..=scale / 3,
        1 => 0..=scale.saturating_mul(3),
    ];
    let hits = prop_oneof![6 => Just(1), 2 => 0..=quota.max(1), 1 => 0..=quota.saturating_mul(2)];
    proptest::collection::vec(
        (wait, hits).prop_map(|(wait, hits)| Step { wait: Micros::new(wait), hits }),
        1..60,
    )
}

pub(crate) fn any_limit_and_history() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    any_limit().prop_flat_map(|limit| any_history(&limit).prop_map(move |history| (limit.clone(), history)))
}

/// A request of `hits`, with a lease of its own should the limit be one on concurrency.
pub(crate) fn ask(hits: u64, turn: usize) -> Ask {
    Ask { lease: Some(lease(turn)), ..Ask::hits(hits) }
}

pub(crate) fn lease(turn: usize) -> LeaseId {
    LeaseId(std::num::NonZeroU64::new(turn as u64 + 1).unwrap())
}
