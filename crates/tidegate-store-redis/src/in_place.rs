//! Decides requests each of which lives in one place, on servers that a script cannot reach together: one call per place,
//! all at once.
//!
//! Requests that live in several places hold some of their cells here for a moment (`cross_slot`). Who is refused
//! meanwhile is asked again, until it is certain or patience ends.

use futures_util::future::join_all;
use tidegate_store::{BatchOutcomes, Request, StoreError};

use crate::cross_slot::grouped;
use crate::link::Deadline;
use crate::observer::Operation;
use crate::patience::Patience;
use crate::script::Driver;
use crate::store::{Inner, all_or_unknown, nonsense};
use crate::wire::{Doubt, EncodeContext, Plan, Told};

/// A request of the batch, by its number, and whether it was in doubt.
type NumberedRequest = (usize, Doubt);

pub(crate) async fn decide(
    inner: &Inner,
    batch: &[Request<'_>],
    places: &[Option<u16>],
    deadline: Deadline,
) -> Result<BatchOutcomes, StoreError> {
    let mut told: Vec<BatchOutcomes> = vec![BatchOutcomes::default(); batch.len()];
    let every = places.iter().enumerate();
    let next = every.filter_map(|(request, place)| Some((*place.as_ref()?, (request, Doubt::NONE))));
    let mut in_doubt = ask(inner, batch, next.collect(), &mut told, deadline).await?;
    let mut patience = Patience::new(deadline);
    while !in_doubt.is_empty() {
        let manner = patience.pause(in_doubt.len()).await;
        in_doubt.iter_mut().for_each(|(_, (_, doubt))| *doubt = manner.of(*doubt));
        in_doubt = ask(inner, batch, in_doubt, &mut told, deadline).await.map_err(after_others)?;
    }
    let mut all = BatchOutcomes::default();
    for BatchOutcomes { outcomes, folds } in told {
        all.outcomes.extend(outcomes);
        all.folds.extend(folds);
    }
    Ok(all)
}

/// An error of those who asked again: the others of the batch are decided.
fn after_others(error: StoreError) -> StoreError {
    match error {
        StoreError::NotApplied { endpoint, source } => StoreError::FateUnknown { endpoint, source },
        other => other,
    }
}

/// Asks requests where they live: those that are in doubt.
async fn ask(
    inner: &Inner,
    batch: &[Request<'_>],
    asked: Vec<(u16, NumberedRequest)>,
    told: &mut [BatchOutcomes],
    deadline: Deadline,
) -> Result<Vec<(u16, NumberedRequest)>, StoreError> {
    let run = |(place, asked): (u16, Vec<NumberedRequest>)| async move {
        let make = |context: &EncodeContext<'_>| {
            let mut plan = Plan::new(Driver::Decide).that_may_be_held(context.keys);
            for (request, doubt) in &asked {
                plan.whole_request(&batch[*request], *doubt, context);
            }
            plan
        };
        let answer = inner.run_made(Operation::Decide, place, make, deadline).await?;
        Ok((place, asked, answer))
    };
    let answers = join_all(grouped(asked.into_iter()).into_iter().map(run)).await;
    let mut in_doubt = Vec::new();
    for (place, asked, answer) in all_or_unknown(answers)? {
        let mut answer = Told::new(&answer);
        for (request, _) in asked {
            if let Some(doubt) = answer.next_doubt() {
                in_doubt.push((place, (request, doubt)));
            } else {
                let read = answer.next_request(&batch[request], &mut told[request]);
                read.ok_or_else(|| nonsense("outcomes"))?;
            }
        }
        if !answer.is_empty() {
            return Err(nonsense("outcomes"));
        }
    }
    Ok(in_doubt)
}
