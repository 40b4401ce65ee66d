//! The store decides while it is up.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Kind, Violation};
use crate::history::{Asked, History, What};

/// A breaker closes about half a second after the store answers again; a busy machine takes longer.
pub(super) const RECOVERY: Duration = Duration::from_secs(5);

pub(super) fn check(history: &History) -> Vec<Violation> {
    let mut wrong: BTreeMap<String, (usize, &Asked)> = BTreeMap::new();
    for asked in &history.asked {
        let Some(source) = asked.source() else { continue };
        let excused = !history.must_be_exact && (!source.is_fallback() || was_away(history, asked));
        if !source.is_exact() && !excused {
            wrong.entry(format!("{source:?}")).or_insert((0, asked)).0 += 1;
        }
    }
    let told = |(source, (count, first)): (String, (usize, &Asked))| {
        let all = history.asked.len();
        Violation::new(Kind::NotTheStore, format!("{count} of {all} answers are {source}, first {first:?}"))
    };
    wrong.into_iter().map(told).collect()
}

fn was_away(history: &History, asked: &Asked) -> bool {
    let mut troubles = history.troubles_in(asked.sent.saturating_sub(RECOVERY), asked.received);
    let cells = &history.shapes[asked.shape];
    troubles.any(|trouble| {
        let away = matches!(trouble.what, What::Stalled | What::Emptied);
        away && !cells.iter().all(|cell| trouble.spares.contains(cell))
    })
}
