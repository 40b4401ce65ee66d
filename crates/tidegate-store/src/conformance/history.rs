//! Generated histories: a few cells of any algorithm, and operations at critical times.

use std::num::{NonZeroU32, NonZeroU64};

use tidegate_core::{
    Ask, Charge, Concurrency, FixedWindow, Group, Hits, LeakyBucket, LeaseId, Limit, Micros, Over, Rate,
    RefusedHits, Scope, SlidingLog, SlidingWindow, Stance, Timestamp, TokenBucket, Touch,
};

use crate::contract::{CellCharge, CellKey, LeaseRef, Refund, Spend};

/// A history determined only by its seed.
#[derive(Debug)]
pub(super) struct History {
    pub(super) seed: u64,
    pub(super) start: Timestamp,
    pub(super) steps: Vec<Step>,
    cells: Vec<Planned>,
}

#[derive(Debug)]
struct Planned {
    scope: Scope,
    key: Vec<u8>,
    tag: Vec<u8>,
    limit: Limit,
    /// The other sliding algorithm, which takes turns with a sliding limit: a changed number may change the algorithm, and the
    /// cell keeps what was counted.
    changed: Option<Limit>,
    group: Group,
}

#[derive(Debug)]
pub(super) struct Step {
    wait: Wait,
    pub(super) operation: Operation,
}

#[derive(Debug)]
enum Wait {
    Forward(Micros),
    /// The store's clock steps back, as after a failover.
    Back(Micros),
}

impl Step {
    pub(super) fn time_after(&self, now: Timestamp) -> Timestamp {
        match self.wait {
            Wait::Forward(span) => now + span,
            Wait::Back(span) => now.back(span),
        }
    }
}

#[derive(Debug)]
pub(super) enum Operation {
    Decide(Vec<AnyRequest>),
    Refund { cell: usize, hits: u64, age: Micros },
    Charge { cell: usize, charge: Charge },
    Reset { cell: usize },
    Renew { cell: usize, turn: usize },
    Release { cell: usize, turn: usize },
}

/// A request, or several equal ones, over some cells.
#[derive(Debug)]
pub(super) struct AnyRequest {
    cells: Vec<usize>,
    hits: u64,
    pub(super) count: NonZeroU32,
    /// What a cost above what is left does, in its first cell and in the others: rules may say so differently.
    over: [Over; 2],
}

const CELLS: u64 = 4;
const STEPS: u64 = 40;
/// How many steps a limit stays as it is.
const TURNS: usize = 5;

impl History {
    pub(super) fn generate(seed: u64) -> Self {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let scale = *random.pick(&[1_000, 1_000_000, 60_000_000, 5_000_000_000]);
        let start = Timestamp::from_micros(1_800_000_000_000_000 + random.below(1_000_000_000_000));
        let cells = any_cells(seed, scale, start, &mut random);
        let mut history = History { seed, start, steps: vec![], cells };
        for turn in 0..STEPS {
            let step = history.any_step(turn, scale, &mut random);
            history.steps.push(step);
        }
        history
    }

    /// The same, with all cells under one key: their limits differ.
    pub(super) fn on_one_key(mut self) -> Self {
        let (key, tag) = (self.cells[0].key.clone(), self.cells[0].tag.clone());
        for cell in &mut self.cells {
            (cell.key, cell.tag) = (key.clone(), tag.clone());
        }
        self
    }

    fn any_step(&self, turn: u64, scale: u64, random: &mut Random) -> Step {
        let wait = match random.below(20) {
            0 => Wait::Back(Micros::new(random.below(scale * 2))),
            1..=6 => Wait::Forward(Micros::ZERO),
            7..=12 => Wait::Forward(Micros::new(random.below(scale / 10 + 1))),
            13..=18 => Wait::Forward(Micros::new(random.below(scale))),
            _ => Wait::Forward(Micros::new(random.below(scale * 5))),
        };
        let cell = random.index(self.cells.len());
        let earlier = random.below(turn + 1) as usize;
        let operation = match random.below(20) {
            0 => Operation::Refund { cell, hits: random.below(6), age: Micros::new(random.below(scale)) },
            1 => Operation::Charge { cell, charge: any_charge(random, scale) },
            2 => Operation::Reset { cell },
            3 | 4 => Operation::Renew { cell: self.a_concurrency(random), turn: earlier },
            5 | 6 => Operation::Release { cell: self.a_concurrency(random), turn: earlier },
            _ => Operation::Decide((0..=random.below(3)).map(|_| self.any_request(random)).collect()),
        };
        Step { wait, operation }
    }

    fn any_request(&self, random: &mut Random) -> AnyRequest {
        let mut cells: Vec<usize> = (0..CELLS as usize).filter(|_| random.below(2) == 0).collect();
        let penalties = CELLS as usize..self.cells.len();
        let is_asked = |place: &usize, cells: &[usize]| {
            cells.iter().any(|cell| {
                self.cells[*cell].group == Group { is_penalty: false, ..self.cells[*place].group }
            })
        };
        cells.extend(penalties.filter(|place| is_asked(place, &cells)).collect::<Vec<_>>());
        let hits = match random.below(12) {
            0 => 0,
            1 => random.below(20),
            2 => u64::MAX,
            3..=5 => 1 + random.below(4),
            _ => 1,
        };
        let count = match random.below(6) {
            0 => random.below(40),
            1 => *random.pick(&[2, 3, u64::from(u32::MAX)]),
            _ => 1,
        };
        let count = u32::try_from(count).ok().and_then(NonZeroU32::new).unwrap_or(NonZeroU32::MIN);
        let over = [any_over(random), any_over(random)];
        // Equal requests charge nothing under a rule with a penalty; and where refused ones count there, which of them starts it
        // is not said.
        let asks = |is_one: fn(&Planned) -> bool| cells.iter().any(|cell| is_one(&self.cells[*cell]));
        let counts = asks(|cell| {
            [Some(&cell.limit), cell.changed.as_ref()].into_iter().flatten().any(Limit::counts_refused)
        });
        let may_start = (counts || over.contains(&Over::Charge)) && asks(|cell| cell.group.is_penalty);
        let count = if may_start { NonZeroU32::MIN } else { count };
        AnyRequest { cells, hits, count, over }
    }

    /// A cell of a concurrency limit if there is one, else any: releasing an unknown lease must be harmless.
    fn a_concurrency(&self, random: &mut Random) -> usize {
        let is_one = |cell: &Planned| cell.limit.takes_lease();
        self.cells.iter().position(is_one).unwrap_or_else(|| random.index(self.cells.len()))
    }

    pub(super) fn spends(&self, requests: &[AnyRequest], turn: usize) -> Vec<Vec<Spend<'_>>> {
        let of = |AnyRequest { cells, hits, count, over }: &AnyRequest| {
            // Folded requests take no lease, because each would need its own; nor does a charge, because what it pays for is over.
            let lease = (count.get() == 1 && !over.contains(&Over::Charge)).then(|| lease_id(turn));
            let ask = |place: usize| Ask { hits: Hits::new(*hits), lease, over: over[place.min(1)] };
            let ask = |(place, cell): (usize, &usize)| match self.cells[*cell].group.is_penalty {
                true => self.spend(*cell, Ask::look(), turn),
                false => self.spend(*cell, ask(place), turn),
            };
            cells.iter().enumerate().map(ask).collect()
        };
        requests.iter().map(of).collect()
    }

    fn spend(&self, cell: usize, ask: Ask, turn: usize) -> Spend<'_> {
        let Planned { group, .. } = self.cells[cell];
        Spend { cell: self.cells[cell].key(), touch: Touch { limit: self.limit(cell, turn), ask, group } }
    }

    pub(super) fn refund(&self, cell: usize, hits: u64, age: Micros, turn: usize) -> Refund<'_> {
        let (cell, limit) = self.cell(cell, turn);
        Refund { cell, limit, hits: Hits::new(hits), age, id: None }
    }

    pub(super) fn charge(&self, cell: usize, charge: Charge, turn: usize) -> CellCharge<'_> {
        let (cell, limit) = self.cell(cell, turn);
        CellCharge { cell, limit, charge }
    }

    pub(super) fn cell(&self, cell: usize, turn: usize) -> (CellKey<'_>, &Limit) {
        (self.cells[cell].key(), self.limit(cell, turn))
    }

    pub(super) fn cells(&self, turn: usize) -> impl Iterator<Item = (CellKey<'_>, &Limit)> {
        (0..self.cells.len()).map(move |cell| self.cell(cell, turn))
    }

    /// The limit of a cell at a turn.
    fn limit(&self, cell: usize, turn: usize) -> &Limit {
        let Planned { limit, changed, .. } = &self.cells[cell];
        changed.as_ref().filter(|_| turn / TURNS % 2 == 1).unwrap_or(limit)
    }

    pub(super) fn lease(&self, cell: usize, turn: usize) -> LeaseRef<'_> {
        LeaseRef { cell: self.cells[cell].key(), limit: &self.cells[cell].limit, id: lease_id(turn) }
    }

    pub(super) fn limits(&self) -> Vec<(&Limit, Option<&Limit>, Group)> {
        self.cells.iter().map(|cell| (&cell.limit, cell.changed.as_ref(), cell.group)).collect()
    }
}

/// The cells of a few rules, some of which have several limits or a penalty. Penalties come last.
fn any_cells(seed: u64, scale: u64, start: Timestamp, random: &mut Random) -> Vec<Planned> {
    let (mut cells, mut penalties, mut group) = (Vec::new(), Vec::new(), Group::ENFORCED);
    // Binary keys, some of which share a tag.
    let key = |number: u64| vec![0, b'{', 0xff, b'}', number as u8, seed as u8];
    let mut tag = Vec::new();
    for number in 0..CELLS {
        let limit = any_limit(scale, start, random);
        if number == 0 || random.below(3) > 0 {
            let stance = match random.below(8) {
                0 | 1 => Stance::Shadow,
                2 => Stance::AnyOf,
                _ => Stance::Enforced,
            };
            group = Group::new(number as u16, stance);
            tag = if random.below(2) == 0 { key(number) } else { b"together".to_vec() };
            if stance != Stance::AnyOf && random.below(3) == 0 {
                let span = Micros::new(scale * 3);
                let log = SlidingLog::new(1, span, Micros::ZERO, RefusedHits::Forget);
                let limit = Limit::SlidingLog(log.expect("a fine log"));
                let scope = scope(seed, CELLS + number, &limit);
                let (key, tag, group) = (key(CELLS + number), tag.clone(), group.penalty());
                penalties.push(Planned { scope, key, tag, limit, changed: None, group });
            }
        }
        let changed = if random.below(3) == 0 { None } else { the_other_sliding(&limit, random) };
        let scope = scope(seed, number, &limit);
        cells.push(Planned { scope, key: key(number), tag: tag.clone(), limit, changed, group });
    }
    cells.extend(penalties);
    cells
}

fn scope(seed: u64, number: u64, limit: &Limit) -> Scope {
    let family = limit.algorithm().family().as_bytes();
    Scope::new(&[b"conformance", &seed.to_be_bytes(), &number.to_be_bytes(), family])
}

impl Planned {
    fn key(&self) -> CellKey<'_> {
        CellKey { scope: &self.scope, key: &self.key, tag: &self.tag }
    }
}

fn any_limit(scale: u64, start: Timestamp, random: &mut Random) -> Limit {
    let count = *random.pick(&[1, 3, 10, 17, 1_000, 999_983, 10_000_000]);
    let quota = 1 + random.below(20);
    let span = Micros::new(scale + random.below(3) * 7);
    let rate = Rate::new(count, span).expect("neither is zero");
    let refused = if random.below(4) == 0 { RefusedHits::Count } else { RefusedHits::Forget };
    match random.below(8) {
        0 => Limit::TokenBucket(TokenBucket::new(rate, quota).expect("a small burst fits")),
        // Too large to count in microseconds: the unit of work is coarser.
        1 => Limit::TokenBucket(TokenBucket::new(rate, 50_000_000).unwrap_or_else(|_| small_bucket(rate))),
        2 => Limit::LeakyBucket(
            LeakyBucket::new(rate, Micros::new(span.get() * quota / count)).expect("a short queue fits"),
        ),
        3 => Limit::FixedWindow(FixedWindow::new(quota - 1, span).expect("a fine window")),
        4 => Limit::FixedWindow(any_calendar(quota, span, start, random)),
        5 => Limit::SlidingWindow(SlidingWindow::new(quota, span).expect("a fine window")),
        6 => {
            let min_interval = Micros::new(random.below(2) * span.get() / 30);
            Limit::SlidingLog(SlidingLog::new(quota, span, min_interval, refused).expect("a fine log"))
        }
        _ => Limit::Concurrency(Concurrency::new(1 + random.below(4), span, refused).expect("a fine limit")),
    }
}

/// A limit of the other sliding algorithm on the same cell.
fn the_other_sliding(limit: &Limit, random: &mut Random) -> Option<Limit> {
    let quota = *random.pick(&[1, 7, 20, 200]);
    Some(match limit {
        Limit::SlidingWindow(window) => {
            let refused = *random.pick(&[RefusedHits::Forget, RefusedHits::Forget, RefusedHits::Count]);
            let min_interval = Micros::new(random.below(2) * window.window().get() / 30);
            let log = SlidingLog::new(quota, window.window(), min_interval, refused);
            Limit::SlidingLog(log.expect("a fine log"))
        }
        Limit::SlidingLog(log) => {
            Limit::SlidingWindow(SlidingWindow::new(quota, log.window()).expect("a fine window"))
        }
        Limit::TokenBucket(_) | Limit::FixedWindow(_) | Limit::LeakyBucket(_) | Limit::Concurrency(_) => {
            return None;
        }
    })
}

/// Hits charged late, mostly of age zero and without overdraft.
fn any_charge(random: &mut Random, scale: u64) -> Charge {
    let age = if random.below(2) == 0 { 0 } else { random.below(scale * 2) };
    let overdraft = if random.below(2) == 0 { 0 } else { random.below(60) };
    let hits = random.below(30);
    Charge { hits: Hits::new(hits), age: Micros::new(age), overdraft: Hits::new(overdraft) }
}

fn any_over(random: &mut Random) -> Over {
    *random.pick(&[Over::Refuse, Over::Refuse, Over::Refuse, Over::Cap, Over::Debt, Over::Charge])
}

fn small_bucket(rate: Rate) -> TokenBucket {
    TokenBucket::new(rate, 3).expect("a small burst fits")
}

/// Windows of uneven length around the time of the history.
fn any_calendar(quota: u64, span: Micros, start: Timestamp, random: &mut Random) -> FixedWindow {
    let mut at = start.back(Micros::new(span.get() * 3));
    let boundaries: Vec<Timestamp> = (0..200)
        .map(|_| {
            at = at + Micros::new(span.get() / 2 + 1 + random.below(span.get()));
            at
        })
        .collect();
    FixedWindow::calendar(quota, boundaries.into()).expect("they ascend")
}

fn lease_id(turn: usize) -> LeaseId {
    LeaseId(NonZeroU64::new(turn as u64 + 1).expect("one or more"))
}

/// Its own small generator, so that a seed always means the same history.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound`, which must not be zero.
    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }
}
