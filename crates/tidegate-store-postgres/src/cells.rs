//! Decides in the node: reads cells from rows, lets core decide, and says what becomes of the rows.

use tidegate_core::{Ask, Cell, Limit, Micros, Timestamp, decide_fold, decide_request};
use tidegate_store::{BatchOutcomes, Request};

use crate::name::Name;
use crate::transaction::Content;

/// The names that a call touches: ascending, each once, as locks are taken.
pub(crate) struct Names(Vec<Name>);

impl Names {
    pub(crate) fn of(names: impl Iterator<Item = Name>) -> Self {
        let mut names: Vec<Name> = names.collect();
        names.sort_unstable();
        names.dedup();
        Names(names)
    }

    pub(crate) fn as_slice(&self) -> &[Name] {
        &self.0
    }

    pub(crate) fn place(&self, name: Name) -> usize {
        self.0.binary_search(&name).expect("every name of a call is among its names")
    }
}

/// The cells of a call, by the places of their names.
pub(crate) struct Cells<'a> {
    cells: Vec<Cell>,
    /// The limit that touched each cell last; none left it as it is.
    limits: Vec<Option<&'a Limit>>,
    now: Timestamp,
}

impl<'a> Cells<'a> {
    /// What no cell writes is read as none: it came from elsewhere, and the next write replaces it.
    pub(crate) fn read<'s>(states: impl Iterator<Item = &'s [u8]>, now: Timestamp) -> Self {
        let cells: Vec<Cell> = states.map(|state| Cell::from_bytes(state).unwrap_or_default()).collect();
        Cells { limits: vec![None; cells.len()], cells, now }
    }

    /// Changes one cell.
    pub(crate) fn change<T>(
        &mut self,
        place: usize,
        limit: &'a Limit,
        change: impl FnOnce(&mut Cell, Timestamp) -> T,
    ) -> T {
        self.limits[place] = Some(limit);
        change(&mut self.cells[place], self.now)
    }

    /// Decides `batch`, whose spends are on the cells at `places`, in order.
    pub(crate) fn decide(&mut self, batch: &[Request<'a>], places: &[usize]) -> BatchOutcomes {
        let mut told = BatchOutcomes::default();
        let mut places = places;
        for request in batch {
            let (own, rest) = places.split_at(request.spends.len());
            places = rest;
            let touches = || own.iter().copied().zip(request.spends.iter().map(|spend| spend.touch));
            for (place, touch) in touches() {
                self.limits[place] = Some(touch.limit);
            }
            if request.is_fold() {
                decide_fold(touches(), &mut self.cells, self.now, request.count.get(), |fold| {
                    told.outcomes.push(fold.last);
                    told.folds.push(fold);
                });
            } else {
                decide_request(touches(), &mut self.cells, self.now, |outcome| told.outcomes.push(outcome));
            }
        }
        told
    }

    /// What the rows become; none for a cell that nothing touched.
    pub(crate) fn contents(self) -> Vec<Option<Content>> {
        let now = self.now;
        let content = |(cell, limit): (Cell, Option<&Limit>)| {
            let limit = limit?;
            let mut state = Vec::new();
            cell.append_bytes(&mut state);
            let idle = limit.look(&cell, now, Ask::look()).reset_after;
            Some(Content { state, ends: now + idle + SPARE })
        };
        self.cells.into_iter().zip(self.limits).map(content).collect()
    }
}

/// A row is kept this long after it says nothing more.
const SPARE: Micros = Micros::from_secs(1);
