//! Costs above what is left: refused, capped, or owed. The reference is a ledger in 128-bit integers that may go below zero.

use proptest::prelude::*;
use tidegate_core::{
    Ask, Cell, DEBT_REPAID_WITHIN, FixedWindow, Group, Hits, Limit, Micros, Outcome, Over, Rate, SlidingLog,
    Timestamp, TokenBucket, Touch, Verdict, decide_request,
};

use crate::generate::{START, any_limit, any_token_bucket, scale};

fn touch(limit: &Limit, hits: u64, over: Over) -> Touch<'_> {
    Touch { limit, ask: Ask::hits(hits).over(over), group: Group::ENFORCED }
}

fn window(limit: u64) -> Limit {
    Limit::FixedWindow(FixedWindow::new(limit, Micros::from_secs(60)).unwrap())
}

/// How a request fared: whether it passed, and what it spent.
fn fared(outcome: &Outcome, hits: u64) -> (bool, u64) {
    (outcome.is_admitted(), outcome.spent_of(Hits::new(hits)).get())
}

/// What a request does to a bucket that may go below zero: passes, spends. `tokens` is what it holds, over `unit` each.
fn by_definition(tokens: i128, unit: i128, hits: u64, over: Over) -> (bool, u64) {
    let left = u64::try_from(tokens.max(0) / unit).unwrap();
    match over {
        _ if hits <= left => (true, hits),
        Over::Cap if left > 0 => (true, left),
        Over::Debt if left > 0 => (false, hits),
        Over::Charge => (false, hits),
        Over::Refuse | Over::Cap | Over::Debt => (false, 0),
    }
}

fn any_over() -> impl Strategy<Value = Over> {
    prop_oneof![Just(Over::Refuse), Just(Over::Cap), Just(Over::Debt), Just(Over::Charge)]
}

#[test]
fn debt_charges_the_request_that_crosses_and_none_after_it() {
    let (limit, mut cell) = (window(1_000), Cell::Vacant);
    let mut decide = |hits, over| touch(&limit, hits, over).decide_alone(&mut cell, START);
    assert_eq!(fared(&decide(600, Over::Debt), 600), (true, 600));
    let crossing = decide(600, Over::Debt);
    assert_eq!(fared(&crossing, 600), (false, 600));
    assert_eq!((crossing.remaining, crossing.retry_after().is_some()), (0, true));
    assert_eq!(fared(&decide(600, Over::Debt), 600), (false, 0), "nothing is left to cross");
    assert_eq!(fared(&decide(1, Over::Debt), 1), (false, 0), "nor does one hit dig deeper");
    assert_eq!(fared(&decide(600, Over::Charge), 600), (false, 600), "but what has happened counts");
}

#[test]
fn cap_takes_what_is_left_and_passes_until_nothing_is() {
    let (limit, mut cell) = (window(10), Cell::Vacant);
    let mut decide = |hits| touch(&limit, hits, Over::Cap).decide_alone(&mut cell, START);
    assert_eq!(fared(&decide(7), 7), (true, 7));
    assert_eq!(fared(&decide(7), 7), (true, 3));
    assert_eq!(fared(&decide(7), 7), (false, 0));
}

#[test]
fn debt_of_one_limit_is_charged_to_every_cell_of_the_request() {
    let (tokens, requests) = (window(10), window(100));
    let mut cells = [Cell::Vacant, Cell::Vacant];
    let touches = [touch(&tokens, 12, Over::Debt), touch(&requests, 12, Over::Refuse)];
    let mut outcomes = Vec::new();
    let passes =
        decide_request(touches.iter().copied().enumerate(), &mut cells, START, |one| outcomes.push(one));
    assert!(!passes);
    assert_eq!(requests.look(&cells[1], START, Ask::look()).remaining, 88);
}

#[test]
fn charge_counts_where_another_limit_refuses_and_stops_nothing() {
    let (tokens, banned) = (window(10), window(0));
    let mut cells = [Cell::Vacant, Cell::Vacant];
    let touches = [touch(&tokens, 4, Over::Charge), touch(&banned, 4, Over::Refuse)];
    let passes = decide_request(touches.iter().copied().enumerate(), &mut cells, START, |_| {});
    assert!(!passes);
    assert_eq!(tokens.look(&cells[0], START, Ask::look()).remaining, 6);
    // An ask that is refused there owes nothing here.
    let asks = [touch(&tokens, 40, Over::Debt), touch(&banned, 40, Over::Refuse)];
    decide_request(asks.iter().copied().enumerate(), &mut cells, START, |_| {});
    assert_eq!(tokens.look(&cells[0], START, Ask::look()).remaining, 6);
}

#[test]
fn debt_of_a_bucket_is_repaid_within_thirty_days_however_large() {
    let rate = Rate::new(1_000, Micros::from_secs(3_600)).unwrap();
    let limit = Limit::TokenBucket(TokenBucket::new(rate, 1_000).unwrap());
    let mut cell = Cell::Vacant;
    let owed = touch(&limit, u64::MAX, Over::Charge).decide_alone(&mut cell, START);
    let longest = DEBT_REPAID_WITHIN + Micros::from_secs(3_600);
    assert!((DEBT_REPAID_WITHIN..=longest).contains(&owed.reset_after), "{}", owed.reset_after);
    assert_eq!(limit.look(&cell, START + longest, Ask::look()).remaining, 1_000);
}

#[test]
fn debt_of_a_window_ends_with_it() {
    let (limit, mut cell) = (window(10), Cell::Vacant);
    touch(&limit, u64::MAX, Over::Charge).decide_alone(&mut cell, START);
    let end = START + limit.look(&cell, START, Ask::look()).reset_after;
    assert_eq!(limit.look(&cell, end.back(Micros::ONE), Ask::look()).remaining, 0);
    assert_eq!(limit.look(&cell, end, Ask::look()).remaining, 10);
}

#[test]
fn debt_of_a_log_ends_a_window_after_it() {
    let window = Micros::from_secs(60);
    let log = SlidingLog::new(10, window, Micros::ZERO, tidegate_core::RefusedHits::Forget).unwrap();
    let (limit, mut cell) = (Limit::SlidingLog(log), Cell::Vacant);
    touch(&limit, 1_200, Over::Debt).decide_alone(&mut cell, START);
    assert_eq!(limit.look(&cell, (START + window).back(Micros::ONE), Ask::look()).remaining, 0);
    assert_eq!(limit.look(&cell, START + window, Ask::look()).remaining, 10);
}

proptest! {
    #[test]
    fn a_bucket_with_debts_fares_as_one_whose_tokens_go_below_zero(
        bucket in any_token_bucket(),
        steps in proptest::collection::vec((0..40u64, 1..300u64, any_over()), 1..60),
    ) {
        let (count, period) = (i128::from(bucket.rate().count()), i128::from(bucket.rate().period().get()));
        let full = i128::from(bucket.burst()) * period;
        let limit = Limit::TokenBucket(bucket);
        // Without a bound that the reference does not have.
        let most = i128::from(limit.most_debt().get()) * period;
        let (mut cell, mut now, mut tokens) = (Cell::Vacant, START, full);
        for (wait, hits, over) in steps {
            let wait = scale(&limit) * wait / 100;
            now = now + Micros::new(wait);
            tokens = (tokens + i128::from(wait) * count).min(full);
            prop_assume!(tokens - i128::from(hits) * period > -most);
            let expected = by_definition(tokens, period, hits, over);
            let outcome = touch(&limit, hits, over).decide_alone(&mut cell, now);
            prop_assert_eq!(fared(&outcome, hits), expected, "{:?} {} of {}", over, hits, tokens / period);
            tokens -= i128::from(expected.1) * period;
            prop_assert_eq!(i128::from(outcome.remaining), tokens.max(0) / period);
            let until_full = u128::try_from(full - tokens).unwrap().div_ceil(u128::try_from(count).unwrap());
            prop_assert_eq!(u128::from(outcome.reset_after.get()), until_full);
        }
    }

    #[test]
    fn who_waits_as_long_as_a_debt_says_is_admitted_and_not_a_moment_sooner(
        limit in any_limit(),
        before in 0..60u64,
        hits in 2..60u64,
        over in any_over(),
    ) {
        prop_assume!(!limit.takes_lease());
        let mut cell = Cell::Vacant;
        touch(&limit, before, Over::Charge).decide_alone(&mut cell, START);
        let asked = touch(&limit, hits, over);
        let Some(retry_after) = asked.decide_alone(&mut cell, START).retry_after() else { return Ok(()) };
        // A charge always spends, so that only a look tells when it would fit.
        let fits = |at: Timestamp| limit.look(&cell, at, Ask::hits(asked.needs().get())).is_admitted();
        prop_assert!(fits(START + retry_after), "after {retry_after} by {limit:?}");
        prop_assert!(!fits((START + retry_after).back(Micros::ONE)), "before {retry_after} by {limit:?}");
    }

    #[test]
    fn a_single_hit_fares_the_same_whatever_is_over(limit in any_limit(), hits in proptest::collection::vec(0..2u64, 1..80)) {
        let (mut refusing, mut owing) = (Cell::Vacant, Cell::Vacant);
        for (hits, over) in hits.into_iter().zip([Over::Debt, Over::Cap].into_iter().cycle()) {
            let outcome = touch(&limit, hits, over).decide_alone(&mut owing, START);
            prop_assert_eq!(outcome, touch(&limit, hits, Over::Refuse).decide_alone(&mut refusing, START));
            prop_assert_eq!(&refusing, &owing);
        }
    }

    #[test]
    fn no_cost_or_time_makes_a_debt_panic_or_outlast_its_bound(
        limit in any_limit(),
        steps in proptest::collection::vec((any::<u64>(), prop_oneof![any::<u64>(), Just(u64::MAX), 0..9u64], any_over()), 1..20),
    ) {
        let mut cell = Cell::Vacant;
        for (micros, hits, over) in steps {
            let now = Timestamp::from_micros(micros);
            let outcome = touch(&limit, hits, over).decide_alone(&mut cell, now);
            prop_assert!(outcome.remaining <= limit.quota());
            let is_over = matches!(outcome.verdict, Verdict::Overdrawn { .. });
            if let (true, Limit::TokenBucket(bucket)) = (is_over, &limit) {
                prop_assert!(outcome.reset_after <= DEBT_REPAID_WITHIN + bucket.refill_time());
            }
        }
    }
}
