//! Requests whose cells live apart, decided in rounds: who is asked next, what must be undone, who is done.
//!
//! A script can reach one place only. So each part of a request spends where it lives, as if all other parts will pass,
//! and what was spent for a request that did not pass elsewhere is put back. A batch is decided first in, first out, yet
//! in one round trip where all goes well: later requests then saw what earlier ones rightly spent. What saw a spend that
//! was put back is *tainted*: it is undone too, last first, and asked again in the next round. The first request that is
//! not done is never tainted, so every round gets ahead.
//!
//! Leaky buckets come last within a round, when all else has passed: a slot that was given cannot be taken back once
//! somebody stands behind it.
//!
//! A request that stands for several equal ones is asked for all of them at once, and spends for all or for none. Where a
//! part admits only the first k, it is asked for k in the next round, and the rest, which is *split off* and comes right
//! after it, is refused.
//!
//! This file decides who is next and calls nobody; `cross_slot` does that.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;
use tidegate_core::{Fold, Micros, Outcome, Stance, Verdict};
use tidegate_store::{BatchOutcomes, Outcomes};

/// A number for each cell of a batch.
pub(crate) type CellNumber = u32;

/// The cells of one request that live together.
#[derive(Clone, Debug)]
pub(crate) struct PartShape {
    pub(crate) step: Step,
    pub(crate) spends: SmallVec<[SpendShape; 4]>,
}

/// One spend of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpendShape {
    /// Which of the request's spends it is.
    pub(crate) place: usize,
    pub(crate) cell: CellNumber,
    pub(crate) hits: u64,
    /// Whether one hit keeps others away, however many are left.
    pub(crate) keeps_distance: bool,
    pub(crate) stance: Stance,
}

/// When a part is decided within a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    First,
    Last,
}

/// A batch on its way.
#[derive(Debug)]
pub(crate) struct Rounds {
    requests: Vec<RequestState>,
    /// How many hits of each cell are asked for, all requests together.
    asked_of: HashMap<CellNumber, u64>,
}

#[derive(Debug)]
struct RequestState {
    parts: Vec<PartState>,
    standing: Standing,
    /// How many equal requests it stands for.
    count: u32,
    role: Role,
    /// What each spend was told.
    told: Vec<Option<Fold>>,
    /// Of equal requests that are refused: the spend that did.
    refused_by: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A request that stands for itself alone.
    Alone,
    /// Those of several equal requests that pass, as far as is known. The rest of them is next.
    Fold,
    /// Those of several equal requests that are refused.
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Nobody knows yet whether it passes.
    Open,
    /// It does not pass; some parts still have to say what is left there.
    Refused,
    Settled,
}

#[derive(Debug)]
struct PartState {
    shape: PartShape,
    asked: Asked,
}

/// What is known of a part.
#[derive(Debug)]
enum Asked {
    /// It has not been asked, or what it said is void.
    No,
    /// It was asked, and did nothing: others hold some of what it needs.
    InDoubt,
    /// It was asked under this name and has not answered.
    Waiting(u128, Question),
    Answered(u128, Question, Box<PartTold>),
    /// It has said what is left there, for good.
    Done(u128),
}

/// What a part is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// To spend, if it passes.
    Spend,
    /// What is left, for the request is refused.
    Look,
}

/// What a part said: what its spends were told, and what they are told if the request does not pass elsewhere. Of a
/// request that stands for several, only the former.
#[derive(Debug)]
pub(crate) struct PartTold {
    pub(crate) decided: SmallVec<[Fold; 2]>,
    pub(crate) unspent: Outcomes,
}

/// A part of a request of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartId {
    pub(crate) request: usize,
    pub(crate) part: usize,
}

/// Something to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToAsk {
    pub(crate) part: PartId,
    pub(crate) question: Question,
}

/// Something to put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToUndo {
    pub(crate) part: PartId,
    /// The name under which it was asked.
    pub(crate) id: u128,
    /// Whether the request is refused for good, and that is to be noted where refused requests count.
    pub(crate) refused: bool,
}

/// Something that passed, and that nobody need wait for any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToKeep {
    pub(crate) part: PartId,
    /// Which spend of the part.
    pub(crate) spend: usize,
    /// The name under which it was asked.
    pub(crate) id: u128,
}

/// What a round comes to.
#[derive(Debug)]
pub(crate) struct Settled {
    /// What must be undone, in this order, before the next round or before others are told.
    pub(crate) undo: Vec<ToUndo>,
    /// What passed.
    pub(crate) keep: Vec<ToKeep>,
    /// How many parts wait for what others hold.
    pub(crate) in_doubt: usize,
}

/// A call that leaves so many times as much of a cell as it takes, and `FEW` hits more, stands in nobody's way, and is not
/// listed. `holds.lua` counts what a call really takes; here at least as much counts, so that whatever was listed is taken
/// from the list.
const SCARCE: u64 = 4;
const FEW: u64 = 16;

/// What the answers of a round come to for one request.
#[derive(Debug)]
enum Judgement {
    Passes,
    Refused,
    Again,
    /// Of several equal requests, only the first so many may pass; this spend admits no more.
    Only(u32, usize),
}

impl Rounds {
    /// Requests over so many spends, in these parts, each standing for so many. One that stands for several takes two
    /// places: its own, and one for those that are refused.
    pub(crate) fn new(requests: impl Iterator<Item = (usize, Vec<PartShape>, u32)>) -> Self {
        let (mut states, mut asked_of) = (Vec::new(), HashMap::<CellNumber, u64>::new());
        for (spends, parts, count) in requests {
            for spend in parts.iter().flat_map(|part| &part.spends) {
                let asked = asked_of.entry(spend.cell).or_default();
                *asked = asked.saturating_add(spend.hits.saturating_mul(count.into()));
            }
            let role = if count > 1 { Role::Fold } else { Role::Alone };
            let rest = (role == Role::Fold).then(|| RequestState::new(spends, parts.clone(), 0, Role::Rest));
            states.push(RequestState::new(spends, parts, count, role));
            states.extend(rest);
        }
        Rounds { requests: states, asked_of }
    }

    /// How many equal requests are asked for with this part.
    pub(crate) fn count_of(&self, part: PartId) -> u32 {
        self.requests[part.request].count
    }

    /// What to ask first in a round.
    pub(crate) fn first_step(&self) -> Vec<ToAsk> {
        let of = |request: usize, state: &RequestState| {
            let question = match state.standing {
                Standing::Open => Question::Spend,
                Standing::Refused => Question::Look,
                Standing::Settled => return vec![],
            };
            let is_next = |part: &PartState| part.is_next(Step::First);
            let next = state.parts.iter().enumerate().filter(|(_, part)| is_next(part));
            next.map(|(part, _)| ToAsk { part: PartId { request, part }, question }).collect()
        };
        self.requests.iter().enumerate().flat_map(|(request, state)| of(request, state)).collect()
    }

    /// What to ask last in a round, given the answers to the first step.
    pub(crate) fn last_step(&self) -> Vec<ToAsk> {
        let mut next = Vec::new();
        for (request, judgement, _) in self.judge(Step::First) {
            let state = &self.requests[request];
            let question = match judgement {
                Judgement::Passes => Question::Spend,
                Judgement::Refused => Question::Look,
                Judgement::Again | Judgement::Only(..) => continue,
            };
            let parts = state.parts.iter().enumerate().filter(|(_, part)| part.is_next(Step::Last));
            next.extend(parts.map(|(part, _)| ToAsk { part: PartId { request, part }, question }));
        }
        next
    }

    /// A part is being asked under the name `id`.
    pub(crate) fn asking(&mut self, ask: ToAsk, id: u128) {
        self.part_mut(ask.part).asked = Asked::Waiting(id, ask.question);
    }

    /// A part has answered.
    pub(crate) fn answered(&mut self, part: PartId, told: PartTold) {
        let part = self.part_mut(part);
        if let Asked::Waiting(id, question) = part.asked {
            part.asked = Asked::Answered(id, question, Box::new(told));
        }
    }

    /// A part has done nothing, for others hold some of what it needs, and must be asked again.
    pub(crate) fn in_doubt(&mut self, part: PartId) {
        self.part_mut(part).asked = Asked::InDoubt;
    }

    /// A part was not decided, and must be asked again.
    pub(crate) fn not_asked(&mut self, part: PartId) {
        self.part_mut(part).asked = Asked::No;
    }

    /// Ends a round.
    pub(crate) fn settle(&mut self) -> Settled {
        let (mut undo, mut keep, mut in_doubt) = (Vec::new(), Vec::new(), 0);
        for (request, judgement, tainted) in self.judge(Step::Last) {
            let state = &mut self.requests[request];
            in_doubt += state.parts.iter().filter(|part| matches!(part.asked, Asked::InDoubt)).count();
            match judgement {
                Judgement::Passes => state.pass(request, &self.asked_of, &mut keep),
                Judgement::Again => state.begin_again(request, &mut undo),
                Judgement::Only(fit, by) => {
                    let refused = state.shrink(request, fit, &mut undo);
                    self.requests[request + 1].take_refused(refused, by);
                }
                Judgement::Refused => state.refuse(request, &tainted, &mut undo),
            }
        }
        undo.reverse();
        Settled { undo, keep, in_doubt }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.requests.iter().all(|state| state.standing == Standing::Settled)
    }

    /// What every spend was told, in order.
    pub(crate) fn outcomes(&self) -> BatchOutcomes {
        let mut told = BatchOutcomes::default();
        for (place, state) in self.requests.iter().enumerate() {
            match state.role {
                Role::Alone => told.outcomes.extend(state.folds(None).map(|fold| fold.last)),
                Role::Fold => {
                    let first = told.folds.len();
                    told.folds.extend(state.folds(self.requests.get(place + 1)));
                    told.outcomes.extend(told.folds[first..].iter().map(|fold| fold.last));
                }
                Role::Rest => {}
            }
        }
        told
    }

    /// All that may have been changed so far: what to undo if the batch fails.
    pub(crate) fn everything(&self) -> Vec<ToUndo> {
        let mut undo = Vec::new();
        for (request, state) in self.requests.iter().enumerate() {
            for (part, PartState { asked, .. }) in state.parts.iter().enumerate() {
                if let Asked::Waiting(id, _) | Asked::Answered(id, ..) | Asked::Done(id) = asked {
                    undo.push(ToUndo { part: PartId { request, part }, id: *id, refused: false });
                }
            }
        }
        undo.reverse();
        undo
    }

    /// What the answers up to `step` come to, for each request that is not settled, and which of its parts are tainted.
    fn judge(&self, step: Step) -> Vec<(usize, Judgement, Vec<bool>)> {
        let mut tainted = HashSet::new();
        let mut judgements = Vec::new();
        for (request, state) in self.requests.iter().enumerate() {
            if state.standing == Standing::Settled {
                continue;
            }
            let hit: Vec<bool> = state.parts.iter().map(|part| part.touches(&tainted)).collect();
            let judgement = state.judge(&hit, step);
            for (part, hit) in state.parts.iter().zip(&hit) {
                let is_undone = match judgement {
                    Judgement::Passes => false,
                    // Nobody saw what it did not do.
                    _ if matches!(part.asked, Asked::InDoubt) => false,
                    Judgement::Again | Judgement::Only(..) => true,
                    Judgement::Refused => part.is_undone_by_a_refusal(*hit) && part.shape.step <= step,
                };
                if is_undone {
                    tainted.extend(part.shape.spends.iter().map(|spend| spend.cell));
                }
            }
            judgements.push((request, judgement, hit));
        }
        judgements
    }

    fn part_mut(&mut self, PartId { request, part }: PartId) -> &mut PartState {
        &mut self.requests[request].parts[part]
    }
}

impl RequestState {
    fn new(spends: usize, parts: Vec<PartShape>, count: u32, role: Role) -> Self {
        let is_settled = parts.is_empty() || count == 0;
        RequestState {
            standing: if is_settled { Standing::Settled } else { Standing::Open },
            parts: parts.into_iter().map(|shape| PartState { shape, asked: Asked::No }).collect(),
            count,
            role,
            told: vec![None; spends],
            refused_by: None,
        }
    }

    /// What its spends were told, those of the refused `rest` last.
    fn folds<'a>(&'a self, rest: Option<&'a RequestState>) -> impl Iterator<Item = Fold> + 'a {
        self.told.iter().enumerate().map(move |(place, told)| {
            let refused = rest.and_then(|rest| rest.told[place]).map(|fold| fold.last);
            match (told, refused) {
                (Some(fold), None) => *fold,
                (Some(fold), Some(last)) if fold.admitted > 0 => Fold { last, ..*fold },
                (_, refused) => {
                    let last = refused.expect("a settled request has all its outcomes");
                    Fold { admitted: 0, last_admitted: last, last }
                }
            }
        })
    }

    fn judge(&self, hit: &[bool], step: Step) -> Judgement {
        if self.standing == Standing::Refused {
            return Judgement::Refused;
        }
        let refused = |(part, hit): (&PartState, &bool)| !hit && part.refuses(self.count);
        let unknown = |(part, hit): (&PartState, &bool)| {
            *hit || (part.shape.step <= step && !matches!(part.asked, Asked::Answered(..)))
        };
        if self.count > 1 && self.parts.iter().zip(hit).any(refused) {
            let parts = self.parts.iter().zip(hit).filter(|(_, hit)| !**hit);
            let strictest = parts.filter_map(|(part, _)| part.strictest()).min();
            let (fit, by) = strictest.expect("a part refuses some");
            Judgement::Only(fit, by)
        } else if self.parts.iter().zip(hit).any(refused) {
            Judgement::Refused
        } else if self.parts.iter().zip(hit).any(unknown) {
            Judgement::Again
        } else {
            Judgement::Passes
        }
    }

    fn pass(&mut self, request: usize, asked_of: &HashMap<CellNumber, u64>, keep: &mut Vec<ToKeep>) {
        for (part, PartState { shape, asked }) in self.parts.iter_mut().enumerate() {
            let Asked::Answered(id, _, told) = std::mem::replace(asked, Asked::No) else {
                unreachable!("a request passes when all its parts have answered");
            };
            *asked = Asked::Done(id);
            for (number, (spend, fold)) in shape.spends.iter().zip(told.decided).enumerate() {
                let is_scarce = fold.last_admitted.remaining
                    < asked_of[&spend.cell].saturating_mul(SCARCE).saturating_add(FEW);
                if spend.hits > 0 && (is_scarce || spend.keeps_distance) {
                    keep.push(ToKeep { part: PartId { request, part }, spend: number, id });
                }
                self.told[spend.place] = Some(fold);
            }
        }
        self.standing = Standing::Settled;
    }

    /// Only `fit` of the equal requests may pass: how many are refused.
    fn shrink(&mut self, request: usize, fit: u32, undo: &mut Vec<ToUndo>) -> u32 {
        self.begin_again(request, undo);
        let refused = self.count - fit;
        self.count = fit;
        if fit == 0 {
            self.standing = Standing::Settled;
        }
        refused
    }

    /// Takes so many more of the equal requests, which a spend refused.
    fn take_refused(&mut self, count: u32, by: usize) {
        self.count += count;
        self.refused_by = Some(by);
        self.standing = Standing::Refused;
    }

    fn begin_again(&mut self, request: usize, undo: &mut Vec<ToUndo>) {
        for (part, state) in self.parts.iter_mut().enumerate() {
            // A part that did not admit all of several changed nothing.
            let changed = self.count == 1 || !state.refuses(self.count);
            if let (Asked::Answered(id, ..), true) = (std::mem::replace(&mut state.asked, Asked::No), changed)
            {
                undo.push(ToUndo { part: PartId { request, part }, id, refused: false });
            }
        }
    }

    fn refuse(&mut self, request: usize, hit: &[bool], undo: &mut Vec<ToUndo>) {
        let mut all_said = true;
        for (part, (state, hit)) in self.parts.iter_mut().zip(hit).enumerate() {
            let part = PartId { request, part };
            let (is_undone, refuses) = (state.is_undone_by_a_refusal(*hit), state.refuses(1));
            state.asked = match std::mem::replace(&mut state.asked, Asked::No) {
                Asked::Answered(id, _, told) => {
                    if is_undone {
                        undo.push(ToUndo { part, id, refused: !hit });
                    }
                    for (number, spend) in state.shape.spends.iter().enumerate() {
                        let last = match told.unspent.get(number) {
                            Some(unspent) if !refuses => *unspent,
                            _ => told.decided[number].last,
                        };
                        self.told[spend.place] = Some(Fold { admitted: 0, last_admitted: last, last });
                    }
                    if *hit { Asked::No } else { Asked::Done(id) }
                }
                other => other,
            };
            all_said &= matches!(state.asked, Asked::Done(_));
        }
        self.standing = if all_said { Standing::Settled } else { Standing::Refused };
        if let (true, Some(by)) = (all_said, self.refused_by) {
            self.stay_refused(by);
        }
    }

    /// Where quota was back when equal requests that a spend refused asked what is left, that spend refuses them all the
    /// same: nothing was spent for them.
    fn stay_refused(&mut self, by: usize) {
        let spends = self.parts.iter().flat_map(|part| &part.shape.spends);
        let mut enforced = spends.filter(|spend| spend.stance == Stance::Enforced);
        let refuses =
            |spend: &SpendShape| self.told[spend.place].is_some_and(|told| !told.last.is_admitted());
        if enforced.any(refuses) {
            return;
        }
        if let Some(told) = &mut self.told[by] {
            let retry_after = Some(Micros::new(1));
            let last = Outcome { verdict: Verdict::Refused { retry_after }, ..told.last };
            *told = Fold { admitted: 0, last_admitted: last, last };
        }
    }
}

impl PartState {
    /// Whether it is to be asked in this step.
    fn is_next(&self, step: Step) -> bool {
        self.shape.step == step && matches!(self.asked, Asked::No | Asked::InDoubt)
    }

    fn touches(&self, tainted: &HashSet<CellNumber>) -> bool {
        !matches!(self.asked, Asked::Done(_))
            && self.shape.spends.iter().any(|spend| tainted.contains(&spend.cell))
    }

    /// Whether it was asked to spend for `count` equal requests and an enforced limit did not admit all.
    fn refuses(&self, count: u32) -> bool {
        self.strictest().is_some_and(|(admitted, _)| admitted < count)
    }

    /// How many equal requests its enforced limits admit, and which spend admits no more; none if it has none, or was not
    /// asked.
    fn strictest(&self) -> Option<(u32, usize)> {
        let Asked::Answered(_, Question::Spend, told) = &self.asked else { return None };
        let spends = self.shape.spends.iter().zip(&told.decided);
        let enforced = spends.filter(|(spend, _)| spend.stance == Stance::Enforced);
        enforced.map(|(spend, fold)| (fold.admitted, spend.place)).min()
    }

    /// Whether a refusal of its request changes its cells after others have seen them.
    fn is_undone_by_a_refusal(&self, hit: bool) -> bool {
        match &self.asked {
            Asked::Answered(_, Question::Spend, _) => hit || !self.refuses(1),
            Asked::Answered(_, Question::Look, _) => hit,
            Asked::No | Asked::Waiting(..) => true,
            Asked::InDoubt | Asked::Done(_) => false,
        }
    }
}
