//! What the table of bounds in `docs/operate/lost.md` grants on top of a limit for what went wrong.

use std::time::Duration;

use super::View;
use crate::history::{Answer, Source, What};
use crate::limit::Limit;

/// What may be admitted or held beyond the limit of `cell` for what went wrong in `from..until`.
pub(super) fn beyond(view: &View<'_>, cell: usize, from: Duration, until: Duration) -> u64 {
    let history = view.history;
    let limits = history.cells[cell].limits_in(from, until);
    let whole = limits.map(Limit::capacity).max().unwrap_or(0).min(u64::MAX / 1_024);
    // A store that forgets gives the limit once more; a clock that goes on gives what comes back in that time.
    let once_more = |what: &What| match what {
        What::Emptied => whole,
        What::SteppedOn(span) => match &history.cells[cell].limit {
            Limit::TokenBucket { rate, .. } | Limit::LeakyBucket { rate } => whole.min(rate.hits_in(*span)),
            _ => whole,
        },
        What::Stalled | What::SteppedBack | What::NodeDied => 0,
    };
    let forgotten: u64 = history.troubles_in(from, until).map(|trouble| once_more(&trouble.what)).sum();
    forgotten + shares(view, cell, whole, from, until) + in_overload(view, cell, whole, from, until)
}

/// Without the store, or where it was too busy, each node has its share once per window: together less than the limit and one
/// more for each node. Of what is known to be left they have less than one more for each node.
fn shares(view: &View<'_>, cell: usize, whole: u64, from: Duration, until: Duration) -> u64 {
    let is_away = |what: What| matches!(what, What::Stalled | What::Emptied);
    let nodes = view.history.nodes.max(1);
    let was_away = view.history.troubles_in(from, until).any(|trouble| is_away(trouble.what));
    match was_away || admitted_by(view, cell, Source::OverloadLocal, from, until) {
        true if view.history.is_known_to_all => nodes - 1,
        true => whole.div_ceil(nodes) * nodes,
        false => 0,
    }
}

/// Where the store was too busy, an open rule gives the limit once on each node.
fn in_overload(view: &View<'_>, cell: usize, whole: u64, from: Duration, until: Duration) -> u64 {
    match admitted_by(view, cell, Source::OverloadOpen, from, until) {
        true => whole * view.history.nodes.max(1),
        false => 0,
    }
}

/// Whether a request on `cell` was admitted by `source` in `from..until`.
fn admitted_by(view: &View<'_>, cell: usize, source: Source, from: Duration, until: Duration) -> bool {
    let is_so = |answer: &Answer| matches!(answer, Answer::Admitted { source: by, .. } if *by == source);
    let mut during = view.touching[cell].iter().filter(|asked| asked.sent <= until && from <= asked.received);
    during.any(|asked| is_so(&asked.answer))
}
