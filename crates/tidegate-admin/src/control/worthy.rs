//! Which suggested limits are worth following: the same for the page, the command line, a shadow rule and the autopilot.

use tidegate_decisions::{LimitDemand, SuggestedLimit};
use tidegate_rules::Mode;

/// The limit that a rule enforces; `None` in shadow, where nobody is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Enforced(Option<u64>);

impl Enforced {
    pub(crate) fn of(mode: Mode, limit: u64) -> Self {
        Enforced((mode != Mode::Shadow).then_some(limit))
    }
}

/// The suggested limit, or why there is none. None is worth following
///
/// 1. of too few callers to be `least_percent` sure;
/// 2. above a limit that is enforced, if only callers that it refused asked for more: they were turned away for it, as who
///    guesses passwords is, and a limit that lets them in protects nothing.
pub(crate) fn worthy(
    demand: &LimitDemand,
    enforced: Enforced,
    least_percent: u64,
    most_named: usize,
) -> Result<SuggestedLimit, String> {
    let suggested = demand.suggestion(most_named).ok_or("no caller was seen")?;
    if suggested.confidence_percent < least_percent {
        return Err(format!("the suggestion is only {} % sure", suggested.confidence_percent));
    }
    match enforced.0 {
        Some(limit) if suggested.limit > limit && !was_used(demand, limit) => {
            Err(format!("only callers that were refused asked for more than {limit}"))
        }
        _ => Ok(suggested),
    }
}

/// Whether one caller in a thousand was admitted to more than `limit`, as before it was lowered.
fn was_used(demand: &LimitDemand, limit: u64) -> bool {
    let above = demand.callers.iter().filter(|peak| peak.used > limit).count();
    above * 1_000 > demand.callers.len()
}

#[cfg(test)]
mod tests {
    use tidegate_decisions::Peak;

    use super::*;

    fn demand(callers: u32, used: u64, refused: u64) -> LimitDemand {
        let peaks = (0..callers).map(|caller| Peak { caller, used, refused });
        LimitDemand { callers: peaks.collect(), ..LimitDemand::default() }
    }

    fn limit(demand: &LimitDemand, mode: Mode, in_force: u64) -> Result<u64, String> {
        worthy(demand, Enforced::of(mode, in_force), 90, 0).map(|suggested| suggested.limit)
    }

    #[test]
    fn a_suggestion_of_few_callers_is_none() {
        assert_eq!(
            limit(&demand(2_000, 2, 0), Mode::Enforce, 5),
            Err("the suggestion is only 86 % sure".into())
        );
        assert_eq!(limit(&demand(2_400, 2, 0), Mode::Enforce, 5), Ok(2));
        assert_eq!(limit(&demand(0, 0, 0), Mode::Enforce, 5), Err("no caller was seen".into()));
    }

    #[test]
    fn refused_callers_raise_no_limit_that_refuses_them() {
        let guessers = demand(5_000, 5, 93);
        let none = "only callers that were refused asked for more than 5";
        assert_eq!(limit(&guessers, Mode::Enforce, 5), Err(none.into()));
        assert_eq!(limit(&guessers, Mode::Shadow, 5), Ok(98), "in shadow nobody was refused");
        assert_eq!(limit(&guessers, Mode::Enforce, 1_000), Ok(98), "that is less than now");
    }

    #[test]
    fn callers_that_were_admitted_to_more_do() {
        assert_eq!(limit(&demand(5_000, 98, 0), Mode::Enforce, 5), Ok(98));
    }
}
