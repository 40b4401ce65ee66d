//! Which items a batch concerns, and what becomes of them.

use tidegate_core::{Ask, Cell, Fold, Limit, Micros, Outcome, Timestamp, decide_fold, decide_request};
use tidegate_store::{BatchOutcomes, Request};

use crate::change::Place;
use crate::item::Item;
use crate::name::{Part, limit_part};

/// A part is kept this long after it says nothing more.
const SPARE: Micros = Micros::from_secs(1);

/// The requests of a batch in groups that share no item, and the outcomes of those decided so far.
pub(crate) struct Batch<'a> {
    requests: &'a [Request<'a>],
    /// Of each request, in order, and of each of its spends: the place in its group's items, and the part.
    spends: Vec<Vec<(usize, Part)>>,
    /// The items of each group, and its requests in order.
    pub(crate) items: Vec<Vec<Place>>,
    members: Vec<Vec<usize>>,
    outcomes: Vec<(Vec<Outcome>, Vec<Fold>)>,
}

impl<'a> Batch<'a> {
    pub(crate) fn new(
        requests: &'a [Request<'a>],
        place: impl Fn(&tidegate_store::CellKey<'_>) -> Place,
    ) -> Self {
        let own: Vec<Vec<Place>> = requests
            .iter()
            .map(|request| request.spends.iter().map(|spend| place(&spend.cell)).collect())
            .collect();
        let mut all: Vec<Place> = own.iter().flatten().copied().collect();
        all.sort_unstable();
        all.dedup();
        let at = |place: &Place| all.binary_search(place).expect("every place is among them");
        let mut groups = Groups::new(all.len());
        for places in &own {
            places.windows(2).for_each(|pair| groups.join(at(&pair[0]), at(&pair[1])));
        }
        // Numbers of groups, by the number of the item that stands for them.
        let (mut numbers, mut items) = (vec![usize::MAX; all.len()], Vec::<Vec<Place>>::new());
        let mut within = vec![0; all.len()];
        for (item, place) in all.iter().enumerate() {
            let head = groups.head(item);
            if numbers[head] == usize::MAX {
                numbers[head] = items.len();
                items.push(Vec::new());
            }
            let group = &mut items[numbers[head]];
            within[item] = group.len();
            group.push(*place);
        }
        let mut members = vec![Vec::new(); items.len()];
        for (request, places) in own.iter().enumerate() {
            if let Some(first) = places.first() {
                members[numbers[groups.head(at(first))]].push(request);
            }
        }
        let of = |(request, places): (&Request<'_>, &Vec<Place>)| {
            let spends = request.spends.iter().zip(places);
            spends.map(|(spend, place)| (within[at(place)], limit_part(&spend.cell))).collect()
        };
        let spends = requests.iter().zip(&own).map(of).collect();
        let outcomes = vec![Default::default(); requests.len()];
        Batch { requests, spends, items, members, outcomes }
    }

    /// Decides the requests of one group, in order.
    pub(crate) fn decide(&mut self, group: usize, items: &mut [Item], now: Timestamp) {
        let mut cells = Cells::default();
        for request in &self.members[group] {
            let Request { spends, count } = self.requests[*request];
            let places: Vec<usize> = self.spends[*request]
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

    pub(crate) fn outcomes(self, decided_at: Option<Timestamp>) -> BatchOutcomes {
        let mut told = BatchOutcomes { decided_at, ..BatchOutcomes::default() };
        for (outcomes, folds) in self.outcomes {
            told.outcomes.extend(outcomes);
            told.folds.extend(folds);
        }
        told
    }
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
