//! Deferred decisions, to be made in one call.

use std::sync::Arc;

use tidegate_limiter::{CheckRequest, DescriptorAsk, Limiter};
use tidegate_rules::CellKeyBytes;
use tidegate_store::Request;

use super::check::{self, RespCheck};
use super::reply::Replies;
use super::throttle::{Bucket, Throttle};

/// Adjacent decisions of one kind, in the order of their replies.
#[derive(Debug, Default)]
pub(crate) enum Gathered<'b> {
    #[default]
    Nothing,
    Throttles(Vec<(Throttle<'b>, Arc<Bucket>)>),
    Checks(Vec<RespCheck<'b>>),
}

/// The most decisions in one call to the store: more would delay those of others.
const MOST: usize = 128;

impl<'b> Gathered<'b> {
    pub(crate) fn takes_a_throttle(&self) -> bool {
        match self {
            Gathered::Nothing => true,
            Gathered::Throttles(throttles) => throttles.len() < MOST,
            Gathered::Checks(_) => false,
        }
    }

    pub(crate) fn takes_a_check(&self) -> bool {
        match self {
            Gathered::Nothing => true,
            Gathered::Checks(checks) => checks.len() < MOST,
            Gathered::Throttles(_) => false,
        }
    }

    /// Adds one that [fits](Gathered::takes_a_throttle).
    pub(crate) fn add_throttle(&mut self, throttle: Throttle<'b>, bucket: Arc<Bucket>) {
        match self {
            Gathered::Throttles(throttles) => throttles.push((throttle, bucket)),
            other => *other = Gathered::Throttles(vec![(throttle, bucket)]),
        }
    }

    /// Adds one that [fits](Gathered::takes_a_check).
    pub(crate) fn add_check(&mut self, check: RespCheck<'b>) {
        match self {
            Gathered::Checks(checks) => checks.push(check),
            other => *other = Gathered::Checks(vec![check]),
        }
    }

    /// Decides and answers all of them, in order, and empties it.
    pub(crate) async fn decide(&mut self, limiter: &Limiter, to: &mut Replies) {
        match std::mem::take(self) {
            Gathered::Nothing => {}
            Gathered::Throttles(throttles) => decide_throttles(&throttles, limiter, to).await,
            Gathered::Checks(checks) => decide_checks(&checks, limiter, to).await,
        }
    }
}

async fn decide_throttles(throttles: &[(Throttle<'_>, Arc<Bucket>)], limiter: &Limiter, to: &mut Replies) {
    let keys: Vec<CellKeyBytes> = throttles
        .iter()
        .map(|(throttle, _)| {
            let mut key = CellKeyBytes::new();
            throttle.write_key(&mut key);
            key
        })
        .collect();
    let spends: Vec<_> = throttles
        .iter()
        .zip(&keys)
        .map(|((throttle, bucket), key)| [bucket.spend(key, throttle.hits)])
        .collect();
    let batch: Vec<Request<'_>> = spends.iter().map(|spends| Request::once(spends)).collect();
    let (outcomes, _) = limiter.decide_direct(&batch).answer().await;
    for ((throttle, bucket), outcome) in throttles.iter().zip(&outcomes) {
        bucket.write_reply(throttle.hits, outcome, to);
    }
}

async fn decide_checks(checks: &[RespCheck<'_>], limiter: &Limiter, to: &mut Replies) {
    let asks: Vec<DescriptorAsk<'_>> = checks.iter().map(RespCheck::ask).collect();
    let requests: Vec<CheckRequest<'_>> =
        checks.iter().zip(&asks).map(|(check, ask)| check.request(ask)).collect();
    for (check, decision) in checks.iter().zip(limiter.check_batch(&requests).await) {
        check::write(limiter, check.shows(), &decision, to);
    }
}
