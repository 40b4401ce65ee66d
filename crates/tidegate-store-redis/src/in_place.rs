//! Decides requests that each live in one place, where no script reaches all places: one call per place, all concurrent.
//!
//! Requests that span places briefly hold some of these cells (`cross_slot`). A request refused meanwhile is retried
//! until the answer is certain or its budget ends.

use futures_util::future::join_all;
use tidegate_store::{BatchOutcomes, Request, StoreError};

use crate::cross_slot::grouped;
use crate::link::Deadline;
use crate::observer::Operation;
use crate::retry_budget::{Retry, RetryBudget};
use crate::script::Driver;
use crate::store::{Inner, all_or_unknown, nonsense};
use crate::wire::{Doubt, EncodeContext, OutcomeReader, Plan};

/// A request of the batch without a decision yet.
struct Undecided {
    place: u16,
    number: usize,
    doubt: Doubt,
    /// Its outcome if it cannot wait: refused.
    refused: BatchOutcomes,
    /// Whether some of its equal requests pass, its refusal counts, or it charges a cell: then only the server can refuse it.
    must_be_asked: bool,
}

pub(crate) async fn decide(
    inner: &Inner,
    batch: &[Request<'_>],
    places: &[Option<u16>],
    deadline: Deadline,
) -> Result<BatchOutcomes, StoreError> {
    let mut budget = RetryBudget::new(deadline);
    // The outcome of each request, and when it was decided.
    let mut told: Vec<BatchOutcomes> = vec![BatchOutcomes::default(); batch.len()];
    let every = places.iter().enumerate();
    let first = every.filter_map(|(number, place)| Some(Undecided::new((*place)?, number)));
    let mut undecided = ask(inner, batch, first.collect(), &mut told, deadline).await?;
    while !undecided.is_empty() {
        let retry = budget.pause(undecided.len()).await;
        undecided.iter_mut().for_each(|one| one.doubt = retry.of(one.doubt));
        if retry == Retry::Final {
            refuse(undecided.extract_if(.., |one| !one.must_be_asked), &mut told);
        }
        let again = undecided.iter().map(|one| one.asked_again()).collect();
        undecided = match ask(inner, batch, again, &mut told, deadline).await {
            Ok(undecided) => undecided,
            // The retry changed nothing.
            Err(error) if error.is_certainly_not_applied() => {
                refuse(undecided.into_iter(), &mut told);
                break;
            }
            Err(error) => return Err(error),
        };
    }
    let first = places.iter().position(Option::is_some);
    let decided_at = first.and_then(|first| told[first].decided_at);
    let is_one = |(one, place): (&BatchOutcomes, &Option<u16>)| {
        place.is_none() || (one.decided_at == decided_at && *place == places[first.unwrap_or(0)])
    };
    let is_one_moment = told.iter().zip(places).all(is_one);
    let mut all =
        BatchOutcomes { decided_at: decided_at.filter(|_| is_one_moment), ..BatchOutcomes::default() };
    for BatchOutcomes { outcomes, folds, .. } in told {
        all.outcomes.extend(outcomes);
        all.folds.extend(folds);
    }
    Ok(all)
}

/// Refuses requests that cannot wait.
fn refuse(undecided: impl Iterator<Item = Undecided>, told: &mut [BatchOutcomes]) {
    undecided.for_each(|one| told[one.number] = one.refused);
}

impl Undecided {
    /// A request that has not been sent yet.
    fn new(place: u16, number: usize) -> Self {
        let refused = BatchOutcomes::default();
        Undecided { place, number, doubt: Doubt::NONE, refused, must_be_asked: true }
    }

    /// The same request, ready to retry.
    fn asked_again(&self) -> Self {
        Undecided { doubt: self.doubt, ..Undecided::new(self.place, self.number) }
    }
}

/// Sends requests to their places and returns those in doubt.
async fn ask(
    inner: &Inner,
    batch: &[Request<'_>],
    undecided: Vec<Undecided>,
    told: &mut [BatchOutcomes],
    deadline: Deadline,
) -> Result<Vec<Undecided>, StoreError> {
    let run = |(place, asked): (u16, Vec<Undecided>)| async move {
        let make = |context: &EncodeContext<'_>| {
            let mut plan = Plan::new(Driver::Decide).that_may_be_held(context.keys);
            for one in &asked {
                plan.whole_request(&batch[one.number], one.doubt, context);
            }
            plan
        };
        let answer = inner.run_made(Operation::Decide, place, make, deadline).await?;
        Ok((asked, answer))
    };
    let groups = grouped(undecided.into_iter().map(|one| (one.place, one)));
    let answers = join_all(groups.into_iter().map(run)).await;
    let mut in_doubt = Vec::new();
    for (asked, answer) in all_or_unknown(answers)? {
        let (mut answer, at) = (OutcomeReader::new(&answer.bytes), answer.at);
        for mut one in asked {
            let request = &batch[one.number];
            let doubt = answer.next_doubt();
            let to = if doubt.is_some() { &mut one.refused } else { &mut told[one.number] };
            answer.next_request(request, to).ok_or_else(|| nonsense("outcomes"))?;
            to.decided_at = Some(at);
            if let Some((doubt, passing)) = doubt {
                let counts = request.spends.iter().any(|spend| spend.touch.hears_refusals());
                (one.doubt, one.must_be_asked) = (doubt, passing > 0 || counts);
                in_doubt.push(one);
            }
        }
        if !answer.is_empty() {
            return Err(nonsense("outcomes"));
        }
    }
    Ok(in_doubt)
}
