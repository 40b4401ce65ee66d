//! The rules of a request: which of its limits stand and fall together, and what a refusal starts.

use crate::cell::Cell;
use crate::outcome::{Outcome, Verdict};
use crate::over::Over;
use crate::request::{Ask, Touch};
use crate::units::{Hits, Timestamp};

/// The rule that a limit belongs to, within its request.
///
/// The limits of one shadow rule follow each other, and a penalty comes after the limits of its rule, which is enforced or a
/// shadow rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Group {
    /// The number of the rule within the request.
    pub number: u16,
    /// What a refusal means for the request.
    pub stance: Stance,
    /// Whether this limit is the rule's penalty: a log of one hit that every request looks at, and that starts when a limit of
    /// the rule refuses a request with a cost.
    pub is_penalty: bool,
}

/// What a rule's refusal means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stance {
    /// It refuses the request.
    Enforced,
    /// It refuses the request if every limit of this stance refuses (quotas that replace each other; not charges). Each that
    /// admits is spent from.
    AnyOf,
    /// It is only reported (shadow rules): the rule spends from all its limits or from none, as if it were enforced alone.
    Shadow,
}

impl Group {
    /// The only rule of a request, enforced.
    pub const ENFORCED: Group = Group::new(0, Stance::Enforced);

    /// The limits of the rule with this number.
    #[must_use]
    pub const fn new(number: u16, stance: Stance) -> Self {
        Group { number, stance, is_penalty: false }
    }

    /// Whether its limits are spent from with a request that spends, given of every limit whether it would be: those of a shadow
    /// rule only together.
    pub fn is_spent_with(self, mut all: impl Iterator<Item = (Group, bool)>) -> bool {
        self.stance != Stance::Shadow || all.all(|(other, is_spent)| is_spent || other.number != self.number)
    }

    /// The penalty of the same rule.
    #[must_use]
    pub const fn penalty(self) -> Self {
        Group { is_penalty: true, ..self }
    }
}

impl Stance {
    /// Of how many equal requests all limits are satisfied, if each satisfies so many of them: the first ones.
    pub fn satisfied(counts: impl Iterator<Item = (Group, u32)>, all: u32) -> u32 {
        let (mut enforced, mut any_of) = (all, None);
        for (group, count) in counts {
            match group.stance {
                Stance::Enforced => enforced = enforced.min(count),
                Stance::AnyOf => any_of = any_of.max(Some(count)),
                Stance::Shadow => {}
            }
        }
        enforced.min(any_of.unwrap_or(all))
    }

    /// Whether all limits are satisfied, given of each whether it is.
    pub fn is_satisfied(limits: impl Iterator<Item = (Group, bool)>) -> bool {
        Stance::satisfied(limits.map(|(group, is)| (group, u32::from(is))), 1) == 1
    }
}

/// The rules whose penalty a request starts, and of equal requests the first that does.
#[derive(Debug, Default)]
pub(crate) struct Blamed(Vec<(u16, u32)>);

impl Blamed {
    /// Records that a limit refuses equal requests from number `first` on. Who only looks is not to blame.
    pub(crate) fn note(&mut self, touch: &Touch<'_>, first: u32) {
        if touch.ask.hits > Hits::ZERO {
            self.0.push((touch.group.number, first));
        }
    }

    /// The first request that a limit of this rule refused.
    pub(crate) fn first(&self, group: Group) -> Option<u32> {
        self.0.iter().filter(|(number, _)| *number == group.number).map(|(_, first)| *first).min()
    }
}

impl Touch<'_> {
    /// Looks at a penalty, and starts it if it does not last already: it then refuses, and is spent from like a debt.
    pub(crate) fn look_or_start(&self, cell: &mut Cell, now: Timestamp, starts: bool) -> Outcome {
        self.limit.rebase(cell, now);
        let before = self.limit.look(cell, now, Ask::look());
        if !starts || !before.is_admitted() {
            return before;
        }
        self.limit.decide(cell, now, Ask::hits(1));
        let after = self.limit.look(cell, now, Ask::look());
        Outcome { verdict: Verdict::Overdrawn { retry_after: after.retry_after() }, ..after }
    }

    /// Whether it must hear of every request, also of one that is known to be refused: it counts refused requests, starts a
    /// penalty, or charges whatever is left.
    #[must_use]
    pub fn hears_refusals(&self) -> bool {
        self.limit.counts_refused() || self.group.is_penalty || self.over() == Over::Charge
    }

    /// Whether it has room for the request. Not the same as what it tells one that is refused: that counts already, where refused
    /// requests do.
    pub(crate) fn fits(&self, cell: &Cell, now: Timestamp) -> bool {
        self.limit.look(cell, now, Ask { hits: self.needs(), ..self.ask }).is_admitted()
    }

    /// Whether it may keep others from spending: a charge does not.
    pub(crate) fn holds_up(&self) -> bool {
        self.over() != Over::Charge
    }
}
