//! Decides requests that span places, in rounds: what to ask next, what to undo, what is settled.
//!
//! A script reaches one place only. So each part of a request spends in its own place, assuming that all other parts pass,
//! and the spend is put back if the request fails elsewhere. A batch is decided first in, first out, yet in one round trip
//! if all goes well: later requests then saw only valid spends of earlier ones. A part that saw a spend that was put back
//! is *tainted*: it is undone too, last first, and asked again in the next round. The first unsettled request is never
//! tainted, so every round makes progress.
//!
//! Leaky buckets come last within a round, once everything else has passed: a granted slot cannot be taken back when
//! others queue behind it.
//!
//! A folded request asks for all its equal requests at once, and spends for all or for none. If a part admits only the
//! first k, the next round asks for k; the rest is *split off*, comes right after it, and is refused.
//!
//! This file only decides what comes next; `cross_slot` makes the calls.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;
use tidegate_core::{Fold, Group, Micros, Outcome, Stance, Verdict};
use tidegate_store::{BatchOutcomes, Outcomes};

/// The number of a cell within a batch.
pub(crate) type CellNumber = u32;

/// The cells of one request in one place.
#[derive(Clone, Debug)]
pub(crate) struct PartShape {
    pub(crate) step: Step,
    pub(crate) spends: SmallVec<[SpendShape; 4]>,
}

/// One spend of a part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpendShape {
    /// Its index among the request's spends.
    pub(crate) place: usize,
    pub(crate) cell: CellNumber,
    pub(crate) hits: u64,
    /// Whether one hit blocks others, however many are left.
    pub(crate) keeps_distance: bool,
    pub(crate) group: Group,
}

/// When a part is decided within a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Step {
    First,
    Last,
}

/// A batch in progress.
#[derive(Debug)]
pub(crate) struct Rounds {
    requests: Vec<RequestState>,
    /// Hits requested per cell, over all requests.
    asked_of: HashMap<CellNumber, u64>,
}

#[derive(Debug)]
struct RequestState {
    parts: Vec<PartState>,
    standing: Standing,
    /// The number of equal requests in it.
    count: u32,
    role: Role,
    /// The result of each spend.
    told: Vec<Option<Fold>>,
    /// For refused equal requests: the spend that refused them.
    refused_by: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A single request.
    Alone,
    /// The equal requests that pass, as far as is known. The refused rest is the next entry.
    Fold,
    /// The equal requests that are refused.
    Rest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// Not decided yet.
    Open,
    /// It is refused; some parts still have to report what remains.
    Refused,
    Settled,
}

#[derive(Debug)]
struct PartState {
    shape: PartShape,
    asked: Asked,
}

/// The state of a part.
#[derive(Debug)]
enum Asked {
    /// Not asked, or its answer is void.
    No,
    /// Asked, and did nothing: others hold part of its quota.
    InDoubt,
    /// Asked under this name, not answered yet.
    Waiting(u128, Question),
    Answered(u128, Question, Box<PartTold>),
    /// It has given its final report of what remains.
    Done(u128),
}

/// The question to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Spend if it passes.
    Spend,
    /// Report what remains, because the request is refused.
    Look,
}

/// A part's answer: the results of its spends, and their outcomes if the request fails elsewhere. A folded request has
/// only the former.
#[derive(Debug)]
pub(crate) struct PartTold {
    pub(crate) decided: SmallVec<[Fold; 2]>,
    pub(crate) unspent: Outcomes,
}

/// Identifies a part of a request in the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartId {
    pub(crate) request: usize,
    pub(crate) part: usize,
}

/// A question to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToAsk {
    pub(crate) part: PartId,
    pub(crate) question: Question,
}

/// A spend to put back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToUndo {
    pub(crate) part: PartId,
    /// The name it was asked under.
    pub(crate) id: u128,
    /// Whether the refusal is final and must be recorded where refused requests count.
    pub(crate) refused: bool,
}

/// A spend that passed: others need not wait for it any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToKeep {
    pub(crate) part: PartId,
    /// Its index in the part.
    pub(crate) spend: usize,
    /// The name it was asked under.
    pub(crate) id: u128,
}

/// The result of a round.
#[derive(Debug)]
pub(crate) struct Settled {
    /// What to undo, in this order, before the next round or before callers get their answers.
    pub(crate) undo: Vec<ToUndo>,
    /// What passed.
    pub(crate) keep: Vec<ToKeep>,
    /// The number of parts that wait for holds of others.
    pub(crate) in_doubt: usize,
}

/// A call that leaves `SCARCE` times what it takes from a cell, plus `FEW` hits, blocks nobody and is not listed as a
/// holder. `holds.lua` counts the exact amount taken; this file counts at least as much, so that every listed holder is
/// removed.
const SCARCE: u64 = 4;
const FEW: u64 = 16;

/// What a round's answers mean for one request.
#[derive(Debug)]
enum Judgement {
    Passes,
    Refused,
    Again,
    /// Only this many of the equal requests may pass; this spend admits no more.
    Only(u32, usize),
}

impl Rounds {
    /// Takes, per request, its number of spends, its parts and its count of equal requests. A folded request takes two
    /// entries: its own, and one for those that are refused.
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

    /// The number of equal requests that this part asks for.
    pub(crate) fn count_of(&self, part: PartId) -> u32 {
        self.requests[part.request].count
    }

    /// The questions of a round's first step.
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

    /// The questions of a round's last step, given the answers to the first.
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

    /// Marks a part as asked under the name `id`.
    pub(crate) fn asking(&mut self, ask: ToAsk, id: u128) {
        self.part_mut(ask.part).asked = Asked::Waiting(id, ask.question);
    }

    /// Records a part's answer.
    pub(crate) fn answered(&mut self, part: PartId, told: PartTold) {
        let part = self.part_mut(part);
        if let Asked::Waiting(id, question) = part.asked {
            part.asked = Asked::Answered(id, question, Box::new(told));
        }
    }

    /// A part did nothing, because others hold part of its quota, and must be asked again.
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

    /// The outcome of every spend, in order.
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

    /// Every possible change so far: what to undo if the batch fails.
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

    /// What the answers up to `step` mean for each unsettled request, and which of its parts are tainted.
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
                    // A part in doubt changed nothing, so it taints nothing.
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

    /// The results of its spends, those of the refused `rest` last.
    fn folds<'a>(&'a self, rest: Option<&'a RequestState>) -> impl Iterator<Item = Fold> + 'a {
        self.told.iter().enumerate().map(move |(place, told)| {
            match (told, rest.and_then(|rest| rest.told[place])) {
                (Some(fold), None) => *fold,
                (Some(fold), Some(rest)) => fold.followed_by(rest),
                (None, rest) => rest.expect("a settled request has all its outcomes"),
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
        let any_of = self.any_of(hit).filter(|(admitted, _)| *admitted < self.count);
        if any_of.is_some() || self.parts.iter().zip(hit).any(refused) {
            let parts = self.parts.iter().zip(hit).filter(|(_, hit)| !**hit);
            let strictest = parts.filter_map(|(part, _)| part.strictest()).chain(any_of).min();
            let (fit, by) = strictest.expect("a part refuses some");
            if self.count > 1 { Judgement::Only(fit, by) } else { Judgement::Refused }
        } else if self.parts.iter().zip(hit).any(unknown) {
            Judgement::Again
        } else {
            Judgement::Passes
        }
    }

    /// How many equal requests those limits let spend any of which may, and which lets the most; none if there are none, or not
    /// all have said.
    fn any_of(&self, hit: &[bool]) -> Option<(u32, usize)> {
        let mut most = None;
        for (part, hit) in self.parts.iter().zip(hit) {
            let spends = part.shape.spends.iter().enumerate();
            for (number, spend) in spends.filter(|(_, spend)| spend.group.stance == Stance::AnyOf) {
                let Asked::Answered(_, Question::Spend, told) = &part.asked else { return None };
                if *hit {
                    return None;
                }
                most = most.max(Some((told.decided[number].spent(), spend.place)));
            }
        }
        most
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

    /// Limits it to `fit` equal requests; returns how many are refused.
    fn shrink(&mut self, request: usize, fit: u32, undo: &mut Vec<ToUndo>) -> u32 {
        self.begin_again(request, undo);
        let refused = self.count - fit;
        self.count = fit;
        if fit == 0 {
            self.standing = Standing::Settled;
        }
        refused
    }

    /// Adds `count` equal requests that spend `by` refused.
    fn take_refused(&mut self, count: u32, by: usize) {
        self.count += count;
        self.refused_by = Some(by);
        self.standing = Standing::Refused;
    }

    fn begin_again(&mut self, request: usize, undo: &mut Vec<ToUndo>) {
        for (part, state) in self.parts.iter_mut().enumerate() {
            // A part that did not admit all equal requests changed nothing.
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
                        // A penalty starts with the first of those that are refused.
                        let is_penalty = spend.group.is_penalty;
                        self.told[spend.place] =
                            Some(if is_penalty { told.decided[number] } else { Fold::refused(last) });
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

    /// Quota may be available again when equal requests, refused by a spend, ask what remains. That spend still refuses
    /// them: nothing was spent for them.
    fn stay_refused(&mut self, by: usize) {
        let spends = || self.parts.iter().flat_map(|part| &part.shape.spends);
        let admits = |spend: &SpendShape| self.told[spend.place].is_some_and(|told| told.last.is_admitted());
        if !Stance::is_satisfied(spends().map(|spend| (spend.group, admits(spend)))) {
            return;
        }
        let any_of = |spend: &&SpendShape| spend.group.stance == Stance::AnyOf;
        // Those any of which may admit refuse together.
        let together: Vec<usize> = match spends().any(|spend| spend.place == by && any_of(&spend)) {
            true => spends().filter(any_of).map(|spend| spend.place).collect(),
            false => vec![by],
        };
        for place in together {
            let Some(told) = &mut self.told[place] else { continue };
            let retry_after = Some(Micros::new(1));
            let last = Outcome { verdict: Verdict::Refused { retry_after }, ..told.last };
            *told = Fold::refused(last);
        }
    }
}

impl PartState {
    /// Whether to ask it in this step.
    fn is_next(&self, step: Step) -> bool {
        self.shape.step == step && matches!(self.asked, Asked::No | Asked::InDoubt)
    }

    fn touches(&self, tainted: &HashSet<CellNumber>) -> bool {
        !matches!(self.asked, Asked::Done(_))
            && self.shape.spends.iter().any(|spend| tainted.contains(&spend.cell))
    }

    /// Whether it was asked to spend for `count` equal requests and an enforced limit refused some.
    fn refuses(&self, count: u32) -> bool {
        self.strictest().is_some_and(|(admitted, _)| admitted < count)
    }

    /// How many equal requests its enforced limits let spend, and which spend sets that bound; none without enforced limits or
    /// an answer.
    fn strictest(&self) -> Option<(u32, usize)> {
        let Asked::Answered(_, Question::Spend, told) = &self.asked else { return None };
        let spends = self.shape.spends.iter().zip(&told.decided);
        let enforced = spends.filter(|(spend, _)| spend.group.stance == Stance::Enforced);
        enforced.map(|(spend, fold)| (fold.spent(), spend.place)).min()
    }

    /// Whether refusing its request changes its cells after others have read them.
    fn is_undone_by_a_refusal(&self, hit: bool) -> bool {
        match &self.asked {
            Asked::Answered(_, Question::Spend, _) => hit || !self.refuses(1),
            Asked::Answered(_, Question::Look, _) => hit,
            Asked::No | Asked::Waiting(..) => true,
            Asked::InDoubt | Asked::Done(_) => false,
        }
    }
}
