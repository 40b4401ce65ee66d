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
//! This file decides who is next and calls nobody; `apart` does that.

use std::collections::HashSet;

use smallvec::SmallVec;
use tidegate_core::{Outcome, Stance};
use tidegate_store::Outcomes;

/// A number for each cell of a batch.
pub(crate) type CellNumber = u32;

/// The cells of one request that live together.
#[derive(Debug)]
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
    requests: Vec<State>,
}

#[derive(Debug)]
struct State {
    parts: Vec<PartState>,
    standing: Standing,
    outcomes: Vec<Option<Outcome>>,
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
    /// It was asked under this name and has not answered.
    Waiting(u128, Question),
    Answered(u128, Question, Box<Told>),
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

/// What a part said: what its spends were told, and what they are told if the request does not pass elsewhere.
#[derive(Debug)]
pub(crate) struct Told {
    pub(crate) decided: Outcomes,
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

/// What the answers of a round come to for one request.
#[derive(Debug)]
enum Judgement {
    Passes,
    Refused,
    Again,
}

impl Rounds {
    pub(crate) fn new(requests: impl Iterator<Item = (usize, Vec<PartShape>)>) -> Self {
        let state = |(spends, parts): (usize, Vec<PartShape>)| State {
            standing: if parts.is_empty() { Standing::Settled } else { Standing::Open },
            parts: parts.into_iter().map(|shape| PartState { shape, asked: Asked::No }).collect(),
            outcomes: vec![None; spends],
        };
        Rounds { requests: requests.map(state).collect() }
    }

    /// What to ask first in a round.
    pub(crate) fn first_step(&self) -> Vec<ToAsk> {
        let of = |request: usize, state: &State| {
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
                Judgement::Again => continue,
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

    /// A part has answered; nothing if it was not decided, and must be asked again.
    pub(crate) fn answered(&mut self, part: PartId, told: Option<Told>) {
        let part = self.part_mut(part);
        part.asked = match (std::mem::replace(&mut part.asked, Asked::No), told) {
            (Asked::Waiting(id, question), Some(told)) => Asked::Answered(id, question, Box::new(told)),
            _ => Asked::No,
        };
    }

    /// Ends a round: what must be undone, in this order, before the next one or before others are told.
    pub(crate) fn settle(&mut self) -> Vec<ToUndo> {
        let mut undo = Vec::new();
        for (request, judgement, tainted) in self.judge(Step::Last) {
            let state = &mut self.requests[request];
            match judgement {
                Judgement::Passes => state.pass(),
                Judgement::Again => state.begin_again(request, &mut undo),
                Judgement::Refused => state.refuse(request, &tainted, &mut undo),
            }
        }
        undo.reverse();
        undo
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.requests.iter().all(|state| state.standing == Standing::Settled)
    }

    /// What every spend was told, in order.
    pub(crate) fn outcomes(&self) -> Outcomes {
        let outcomes = self.requests.iter().flat_map(|state| &state.outcomes);
        outcomes.map(|outcome| outcome.expect("a settled request has all its outcomes")).collect()
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
                    Judgement::Again => true,
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

impl State {
    fn judge(&self, hit: &[bool], step: Step) -> Judgement {
        if self.standing == Standing::Refused {
            return Judgement::Refused;
        }
        let refused = |(part, hit): (&PartState, &bool)| !hit && part.refuses();
        let unknown = |(part, hit): (&PartState, &bool)| {
            *hit || (part.shape.step <= step && !matches!(part.asked, Asked::Answered(..)))
        };
        if self.parts.iter().zip(hit).any(refused) {
            Judgement::Refused
        } else if self.parts.iter().zip(hit).any(unknown) {
            Judgement::Again
        } else {
            Judgement::Passes
        }
    }

    fn pass(&mut self) {
        for PartState { shape, asked } in &mut self.parts {
            let Asked::Answered(id, _, told) = std::mem::replace(asked, Asked::No) else {
                unreachable!("a request passes when all its parts have answered");
            };
            *asked = Asked::Done(id);
            for (spend, outcome) in shape.spends.iter().zip(told.decided) {
                self.outcomes[spend.place] = Some(outcome);
            }
        }
        self.standing = Standing::Settled;
    }

    fn begin_again(&mut self, request: usize, undo: &mut Vec<ToUndo>) {
        for (part, state) in self.parts.iter_mut().enumerate() {
            if let Asked::Answered(id, ..) = std::mem::replace(&mut state.asked, Asked::No) {
                undo.push(ToUndo { part: PartId { request, part }, id, refused: false });
            }
        }
    }

    fn refuse(&mut self, request: usize, hit: &[bool], undo: &mut Vec<ToUndo>) {
        let mut all_said = true;
        for (part, (state, hit)) in self.parts.iter_mut().zip(hit).enumerate() {
            let part = PartId { request, part };
            let (is_undone, refuses) = (state.is_undone_by_a_refusal(*hit), state.refuses());
            state.asked = match std::mem::replace(&mut state.asked, Asked::No) {
                Asked::Answered(id, _, told) => {
                    if is_undone {
                        undo.push(ToUndo { part, id, refused: !hit });
                    }
                    let said = if refuses { told.decided } else { told.unspent };
                    for (spend, outcome) in state.shape.spends.iter().zip(said) {
                        self.outcomes[spend.place] = Some(outcome);
                    }
                    if *hit { Asked::No } else { Asked::Done(id) }
                }
                other => other,
            };
            all_said &= matches!(state.asked, Asked::Done(_));
        }
        self.standing = if all_said { Standing::Settled } else { Standing::Refused };
    }
}

impl PartState {
    /// Whether it is to be asked in this step.
    fn is_next(&self, step: Step) -> bool {
        self.shape.step == step && matches!(self.asked, Asked::No)
    }

    fn touches(&self, tainted: &HashSet<CellNumber>) -> bool {
        !matches!(self.asked, Asked::Done(_))
            && self.shape.spends.iter().any(|spend| tainted.contains(&spend.cell))
    }

    /// Whether it was asked to spend and an enforced limit refused.
    fn refuses(&self) -> bool {
        let Asked::Answered(_, Question::Spend, told) = &self.asked else { return false };
        let mut spends = self.shape.spends.iter().zip(&told.decided);
        spends.any(|(spend, outcome)| spend.stance == Stance::Enforced && !outcome.is_admitted())
    }

    /// Whether a refusal of its request changes its cells after others have seen them.
    fn is_undone_by_a_refusal(&self, hit: bool) -> bool {
        match &self.asked {
            Asked::Answered(_, Question::Spend, _) => hit || !self.refuses(),
            Asked::Answered(_, Question::Look, _) => hit,
            Asked::No | Asked::Waiting(..) => true,
            Asked::Done(_) => false,
        }
    }
}
