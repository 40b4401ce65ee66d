//! Which items a batch concerns, and what becomes of them.

use std::collections::BTreeSet;
use std::ops::Range;

use tidegate_core::{
    Ask, Cell, Fold, Limit, Micros, Outcome, Timestamp, Verdict, decide_fold, decide_request,
};
use tidegate_store::{BatchOutcomes, HELD_RETRY_AFTER, Request};

use crate::failure::Failure;
use crate::item::Item;
use crate::name::{Part, limit_part};
use crate::store::{Changed, Place};

/// A part is kept this long after it says nothing more.
const SPARE: Micros = Micros::from_secs(1);
/// What stands where nothing was decided.
const UNDECIDED: Outcome = Outcome {
    verdict: Verdict::Refused { retry_after: Some(HELD_RETRY_AFTER) },
    remaining: 0,
    reset_after: HELD_RETRY_AFTER,
};

/// The requests of a batch in groups, and the outcomes of those decided so far.
///
/// Requests that share no item do not concern each other: each such group is decided by itself. A group of more items than a store
/// changes at once is cut, in order, into several that are decided one after another.
pub(crate) struct Batch<'a> {
    requests: &'a [Request<'a>],
    groups: Vec<Members>,
    /// The groups that may be decided at once, one such turn after another.
    turns: Vec<Range<usize>>,
    outcomes: Vec<(Vec<Outcome>, Vec<Fold>)>,
    /// The requests that were not decided, and why.
    too_large: Vec<(usize, String)>,
}

/// A group: its items in ascending order, and its requests in order. Of each request and each of its spends, the place among the items,
/// and the part.
#[derive(Default)]
struct Members {
    items: Vec<Place>,
    requests: Vec<(usize, Vec<(usize, Part)>)>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        requests: &'a [Request<'a>],
        most_items: usize,
        place: impl Fn(&tidegate_store::CellKey<'_>) -> Place,
    ) -> Self {
        let own: Vec<Vec<Place>> = requests
            .iter()
            .map(|request| request.spends.iter().map(|spend| place(&spend.cell)).collect())
            .collect();
        let mut by_turn: Vec<Vec<Members>> = Vec::new();
        for together in related(&own) {
            for (turn, numbers) in cut(&own, together, most_items).into_iter().enumerate() {
                if by_turn.len() == turn {
                    by_turn.push(Vec::new());
                }
                by_turn[turn].push(Members::new(requests, &own, &numbers));
            }
        }
        let mut batch = Batch {
            requests,
            groups: Vec::new(),
            turns: Vec::new(),
            outcomes: vec![Default::default(); requests.len()],
            too_large: Vec::new(),
        };
        for groups in by_turn {
            let from = batch.groups.len();
            batch.groups.extend(groups);
            batch.turns.push(from..batch.groups.len());
        }
        batch
    }

    /// How many turns it takes.
    pub(crate) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The items of the groups of a turn.
    pub(crate) fn items(&self, turn: usize) -> Vec<Vec<Place>> {
        self.groups[self.turns[turn].clone()].iter().map(|group| group.items.clone()).collect()
    }

    /// Decides the requests of one group, in order.
    pub(crate) fn decide(&mut self, turn: usize, group: usize, items: &mut [Item], now: Timestamp) {
        let mut cells = Cells::default();
        for (request, parts) in &self.groups[self.turns[turn].start + group].requests {
            let Request { spends, count } = self.requests[*request];
            let places: Vec<usize> = parts
                .iter()
                .zip(spends)
                .map(|(at, spend)| cells.place(*at, spend.touch.limit, items))
                .collect();
            let touches = || places.iter().copied().zip(spends.iter().map(|spend| spend.touch));
            let (mut outcomes, mut folds) = (Vec::with_capacity(spends.len()), Vec::new());
            if self.requests[*request].is_fold() {
                decide_fold(touches(), &mut cells.cells, now, count.get(), |fold| {
                    outcomes.push(fold.last);
                    folds.push(fold);
                });
            } else {
                decide_request(touches(), &mut cells.cells, now, |outcome| outcomes.push(outcome));
            }
            self.outcomes[*request] = (outcomes, folds);
        }
        cells.write(items, now);
    }

    /// Takes back what groups of a turn were decided that could not be stored. Returns when the others were; an error if nothing is
    /// left of the batch.
    pub(crate) fn left_out(&mut self, turn: usize, changed: Changed) -> Result<Option<Timestamp>, Failure> {
        let first = self.turns[turn].start;
        for (group, why) in changed.too_large {
            for (request, _) in &self.groups[first + group].requests {
                let Request { spends, .. } = self.requests[*request];
                let folds = if self.requests[*request].is_fold() { spends.len() } else { 0 };
                self.outcomes[*request] =
                    (vec![UNDECIDED; spends.len()], vec![Fold::refused(UNDECIDED); folds]);
                self.too_large.push((*request, why.clone()));
            }
        }
        let asked = self.requests.iter().filter(|request| !request.spends.is_empty()).count();
        match self.too_large.first() {
            Some((_, why)) if self.too_large.len() == asked => Err(Failure::TooLarge(why.clone().into())),
            _ => Ok(changed.at),
        }
    }

    pub(crate) fn outcomes(mut self, decided_at: Option<Timestamp>) -> BatchOutcomes {
        self.too_large.sort_unstable();
        let too_large = self.too_large;
        let mut told = BatchOutcomes { decided_at, too_large, ..BatchOutcomes::default() };
        for (outcomes, folds) in self.outcomes {
            told.outcomes.extend(outcomes);
            told.folds.extend(folds);
        }
        told
    }
}

impl Members {
    fn new(requests: &[Request<'_>], own: &[Vec<Place>], numbers: &[usize]) -> Self {
        let mut items: Vec<Place> = numbers.iter().flat_map(|number| &own[*number]).copied().collect();
        items.sort_unstable();
        items.dedup();
        let parts = |number: usize| {
            let spends = requests[number].spends.iter().zip(&own[number]);
            let at = |place: &Place| items.binary_search(place).expect("every place is among them");
            spends.map(|(spend, place)| (at(place), limit_part(&spend.cell))).collect()
        };
        let requests = numbers.iter().map(|number| (*number, parts(*number))).collect();
        Members { items, requests }
    }
}

/// The numbers of requests that concern each other, through items that they share: each such group in order.
fn related(own: &[Vec<Place>]) -> Vec<Vec<usize>> {
    let mut all: Vec<Place> = own.iter().flatten().copied().collect();
    all.sort_unstable();
    all.dedup();
    let at = |place: &Place| all.binary_search(place).expect("every place is among them");
    let mut groups = Groups::new(all.len());
    for places in own {
        places.windows(2).for_each(|pair| groups.join(at(&pair[0]), at(&pair[1])));
    }
    // By the item that stands for a group.
    let (mut number_of, mut members) = (vec![usize::MAX; all.len()], Vec::<Vec<usize>>::new());
    for (request, places) in own.iter().enumerate() {
        let Some(first) = places.first() else { continue };
        let number = &mut number_of[groups.head(at(first))];
        if *number == usize::MAX {
            *number = members.len();
            members.push(Vec::new());
        }
        members[*number].push(request);
    }
    members
}

/// A group in pieces of at most so many items each, in order.
fn cut(own: &[Vec<Place>], together: Vec<usize>, most_items: usize) -> Vec<Vec<usize>> {
    let (mut pieces, mut items) = (vec![Vec::new()], BTreeSet::new());
    for request in together {
        let places = &own[request];
        let new = places.iter().filter(|place| !items.contains(*place)).count();
        let piece = pieces.last_mut().expect("there is one");
        if items.len() + new > most_items && !piece.is_empty() {
            pieces.push(vec![request]);
            items.clear();
        } else {
            piece.push(request);
        }
        items.extend(places.iter().copied());
    }
    pieces
}

/// The cells of one group while it is decided.
#[derive(Default)]
struct Cells<'a> {
    cells: Vec<Cell>,
    /// Where each is, and the limit that touched it last.
    from: Vec<((usize, Part), &'a Limit)>,
}

impl<'a> Cells<'a> {
    fn place(&mut self, at: (usize, Part), limit: &'a Limit, items: &[Item]) -> usize {
        if let Some(known) = self.from.iter().position(|(known, _)| *known == at) {
            self.from[known].1 = limit;
            return known;
        }
        self.from.push((at, limit));
        self.cells.push(items[at.0].cell(at.1));
        self.cells.len() - 1
    }

    fn write(self, items: &mut [Item], now: Timestamp) {
        for (((item, part), limit), cell) in self.from.into_iter().zip(&self.cells) {
            write(&mut items[item], part, limit, cell, now);
        }
    }
}

/// Changes the cell of `limit` in an item.
pub(crate) fn change<T>(
    item: &mut Item,
    part: Part,
    limit: &Limit,
    now: Timestamp,
    change: impl FnOnce(&mut Cell) -> T,
) -> T {
    let mut cell = item.cell(part);
    let told = change(&mut cell);
    write(item, part, limit, &cell, now);
    told
}

fn write(item: &mut Item, part: Part, limit: &Limit, cell: &Cell, now: Timestamp) {
    let mut state = Vec::new();
    cell.append_bytes(&mut state);
    if item.part(part).unwrap_or_default() == state {
        return;
    }
    let idle = limit.look(cell, now, Ask::look()).reset_after;
    let content = (!state.is_empty()).then_some((now + idle + SPARE, state));
    item.set(part, content);
}

/// Which of some things belong together.
struct Groups(Vec<usize>);

impl Groups {
    fn new(count: usize) -> Self {
        Groups((0..count).collect())
    }

    fn head(&mut self, mut one: usize) -> usize {
        while self.0[one] != one {
            self.0[one] = self.0[self.0[one]];
            one = self.0[one];
        }
        one
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.head(one), self.head(other));
        self.0[one.max(other)] = one.min(other);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Namer;

    fn places(names: &[u8]) -> Vec<Place> {
        names.iter().map(|name| Place { server: 0, name: Namer::new("t").value(&[*name]) }).collect()
    }

    #[test]
    fn requests_that_share_an_item_are_together_in_order() {
        let own: Vec<Vec<Place>> = [&b"ab"[..], b"c", b"bd", b"", b"c"].map(places).into();
        assert_eq!(related(&own), [vec![0, 2], vec![1, 4]]);
    }

    #[test]
    fn a_group_of_too_many_items_is_cut_in_order() {
        let own: Vec<Vec<Place>> = [&b"az"[..], b"bz", b"az", b"cz", b"defgz"].map(places).into();
        assert_eq!(cut(&own, vec![0, 1, 2, 3, 4], 3), [vec![0, 1, 2], vec![3], vec![4]]);
        assert_eq!(cut(&own, vec![0, 1, 2, 3, 4], usize::MAX).len(), 1);
    }
}
