//! What was asked, what was answered, and what went wrong meanwhile: all that the checker looks at.
//!
//! Times are spans since the attack began. A decision was made at an unknown moment between `sent` and `received`.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::limit::Limit;

/// What who is not refused for certain is told to wait.
const SOON: Duration = Duration::from_millis(100);

/// One attack, from its first request to its last.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) cells: Vec<Cell>,
    /// The cells that a request of each shape spends from.
    pub(crate) shapes: Vec<Vec<usize>>,
    pub(crate) asked: Vec<Asked>,
    pub(crate) lease_calls: Vec<LeaseCall>,
    pub(crate) troubles: Vec<Trouble>,
    /// Tidegate processes.
    pub(crate) nodes: u64,
    /// The store's wall clock when the attack began, since 1970: fixed windows begin at multiples of their length there.
    pub(crate) epoch: Duration,
    /// Whether a request may hold something for a moment though another cell refuses it: on several Redis servers.
    pub(crate) reserves: bool,
    /// Whether every decision must be the store's own: deadlines are long and nothing fails.
    pub(crate) must_be_exact: bool,
    /// Whether every node has seen what was left of every cell before a store went away: then it gives only its part of that.
    pub(crate) is_known_to_all: bool,
}

/// The state of one limit for one key.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) name: String,
    pub(crate) limit: Limit,
    /// Other limits that were in force for a while, over a span that surely holds it.
    pub(crate) earlier: Vec<(Duration, Duration, Limit)>,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) sent: Duration,
    pub(crate) received: Duration,
    pub(crate) shape: usize,
    pub(crate) cost: u64,
    pub(crate) answer: Answer,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing, since the connection broke: it may or may not have been decided.
    Lost,
    Admitted {
        source: Source,
        remaining: u64,
        lease: Option<String>,
    },
    Refused {
        source: Source,
        remaining: u64,
        retry_after: Option<Duration>,
    },
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Store,
    DenyCache,
    FallbackOpen,
    FallbackClosed,
    FallbackLocal,
    OverloadOpen,
    OverloadClosed,
    OverloadLocal,
    Other,
}

impl Source {
    pub(crate) fn read(name: &str) -> Self {
        match name {
            "store" => Source::Store,
            "deny_cache" => Source::DenyCache,
            "fallback_open" => Source::FallbackOpen,
            "fallback_closed" => Source::FallbackClosed,
            "fallback_local" => Source::FallbackLocal,
            "overload_open" => Source::OverloadOpen,
            "overload_closed" => Source::OverloadClosed,
            "overload_local" => Source::OverloadLocal,
            _ => Source::Other,
        }
    }

    /// Whether the store decided, now or a moment ago.
    pub(crate) fn is_exact(self) -> bool {
        matches!(self, Source::Store | Source::DenyCache)
    }

    /// Whether a policy lets everybody pass: such admissions are not promised to be few.
    pub(crate) fn is_unbounded(self) -> bool {
        matches!(self, Source::FallbackOpen)
    }

    pub(crate) fn is_fallback(self) -> bool {
        matches!(self, Source::FallbackOpen | Source::FallbackClosed | Source::FallbackLocal)
    }
}

impl Asked {
    pub(crate) fn source(&self) -> Option<Source> {
        match &self.answer {
            Answer::Lost => None,
            Answer::Admitted { source, .. } | Answer::Refused { source, .. } => Some(*source),
        }
    }

    pub(crate) fn is_admitted(&self) -> bool {
        matches!(self.answer, Answer::Admitted { .. })
    }

    /// Refused by the store, now or a moment ago.
    pub(crate) fn is_exactly_refused(&self) -> bool {
        matches!(&self.answer, Answer::Refused { source, .. } if source.is_exact())
    }
}

/// A lease renewed or given back.
#[derive(Clone, Debug)]
pub(crate) struct LeaseCall {
    pub(crate) sent: Duration,
    pub(crate) received: Duration,
    pub(crate) lease: String,
    pub(crate) what: LeaseWhat,
    /// Whether the server says that the lease was held; nothing if it could not say.
    pub(crate) was_held: Option<bool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseWhat {
    Renew,
    Release,
}

/// Something that went wrong, and when at the latest it was over.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    pub(crate) from: Duration,
    pub(crate) until: Duration,
    pub(crate) what: What,
    /// The cells that lie elsewhere, and notice nothing.
    pub(crate) spares: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A store did not answer, and lost nothing.
    Stalled,
    /// A store came back without anything, or without its last writes.
    Emptied,
    /// A store's clock went on by this much at once.
    SteppedOn(Duration),
    /// A store's clock went back.
    SteppedBack,
    /// A tidegate process died.
    NodeDied,
}

impl History {
    /// Refused by the store, and for certain: on several servers, who cannot wait for what another request holds is told to
    /// come again soon. Where deadlines are long, everybody can.
    pub(crate) fn is_certainly_refused(&self, asked: &Asked) -> bool {
        let told = match asked.answer {
            Answer::Refused { retry_after, .. } => retry_after,
            _ => None,
        };
        let is_soon = told.is_some_and(|wait| wait <= SOON);
        asked.is_exactly_refused() && !(self.reserves && !self.must_be_exact && is_soon)
    }

    /// The troubles between two moments, and what they are.
    pub(crate) fn troubles_in(&self, from: Duration, until: Duration) -> impl Iterator<Item = &Trouble> {
        self.troubles.iter().filter(move |trouble| trouble.from <= until && from <= trouble.until)
    }

    pub(crate) fn largest_cost(&self) -> u64 {
        self.asked.iter().map(|asked| asked.cost).max().unwrap_or(1).max(1)
    }
}

impl Cell {
    pub(crate) fn new(name: impl Into<String>, limit: Limit) -> Self {
        Cell { name: name.into(), limit, earlier: Vec::new() }
    }

    /// Every limit that may have been in force between two moments.
    pub(crate) fn limits_in(&self, from: Duration, until: Duration) -> impl Iterator<Item = &Limit> {
        let earlier = self.earlier.iter().filter(move |(began, ended, _)| *began <= until && from <= *ended);
        earlier.map(|(_, _, limit)| limit).chain([&self.limit])
    }
}
