//! Log lines for changes of limits other than decisions; without these, decisions could not be replayed.

use std::sync::Arc;

use serde::Serialize;
use tidegate_limiter::{CheckRequest, LeaseToken, Settled, Settlement};
use tidegate_rules::Match;

use crate::extra_descriptors::{AlsoAsked, OwnLimit, also_asked, own_limit};
use crate::record::{Digester, Record, When, as_map, as_text, is_zero, most_telling, short};

/// The most limits that a refund names.
const MOST_BACK: usize = 16;

/// A line of the log.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A decision.
    Decision(Arc<Record>),
    /// Another change of what remains of limits.
    Event(Arc<Event>),
}

impl Entry {
    /// When, in microseconds since the Unix epoch.
    #[must_use]
    pub fn time_us(&self) -> u64 {
        match self {
            Entry::Decision(record) => record.time_us,
            Entry::Event(event) => event.time_us,
        }
    }

    /// The domain.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        match self {
            Entry::Decision(record) => Some(&record.domain),
            Entry::Event(event) => event.domain.as_deref(),
        }
    }

    /// The line, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        match self {
            Entry::Decision(record) => record.line(),
            Entry::Event(event) => serde_json::to_string(&**event).expect("an event is plain data"),
        }
    }

    /// Appends the line and its line break to `text`.
    pub(crate) fn write_to(&self, text: &mut Vec<u8>) {
        match self {
            Entry::Decision(record) => serde_json::to_writer(&mut *text, &**record),
            Entry::Event(event) => serde_json::to_writer(&mut *text, &**event),
        }
        .expect("an entry is plain data, and memory takes it");
        text.push(b'\n');
    }

    /// Its approximate size in memory.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Entry::Decision(record) => record.bytes(),
            Entry::Event(event) => event.bytes(),
        }
    }

    pub(crate) fn decision(&self) -> Option<&Arc<Record>> {
        match self {
            Entry::Decision(record) => Some(record),
            Entry::Event(_) => None,
        }
    }
}

/// A change of limits other than a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// The time in microseconds since the Unix epoch, by the node's clock.
    pub time_us: u64,
    /// The same by the store's clock, if the store made the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decided_us: Option<u64>,
    /// What happened.
    pub event: EventKind,
    /// How long it took: it happened at most half of that before or after `time_us`.
    pub answered_in_us: u64,
    /// The mark of the lease that was released or renewed.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_mark")]
    pub lease: Option<u64>,
    /// The mark of the only limit whose lease was released; leases under other limits continue.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "as_mark")]
    pub under: Option<u64>,
    /// The domain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<Box<str>>,
    /// The hits refunded or charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amount: Option<u64>,
    /// How long ago the hits were spent, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub age_us: Option<u64>,
    /// Limits that had already regained these hits by their own refill, and got none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub back: Vec<Box<str>>,
    /// The node.
    #[serde(serialize_with = "as_text")]
    pub node: Arc<str>,
    /// The number of events that this one stands for.
    pub n: u32,
    /// The limit that came with the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_limit: Option<OwnLimit>,
    /// The logged attributes of the request whose cells changed.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "as_map")]
    pub attributes: Vec<(Box<str>, Box<str>)>,
    /// Its other descriptors.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<AlsoAsked>,
    /// The number of further descriptors left out.
    #[serde(skip_serializing_if = "is_zero")]
    pub also_left_out: usize,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// Leases were released before they expired.
    Released,
    /// Leases were extended.
    Renewed,
    /// Hits were refunded.
    Refunded,
    /// Hits were charged after the fact.
    Charged,
    /// A full quota was restored.
    Reset,
}

impl Event {
    pub(crate) fn new(
        settled: &Settled<'_>,
        (When { time_us, decided_us, answered_in_us }, n): (When, u32),
        node: Arc<str>,
        names: &Digester,
    ) -> Option<Self> {
        let event = |event| Event {
            time_us,
            decided_us,
            event,
            answered_in_us,
            lease: None,
            under: None,
            domain: None,
            amount: None,
            age_us: None,
            back: Vec::new(),
            node: node.clone(),
            n,
            own_limit: None,
            attributes: Vec::new(),
            also: Vec::new(),
            also_left_out: 0,
        };
        let of_lease = |kind, token: &LeaseToken| Event {
            lease: Some(token.mark()),
            domain: token.domain().map(short),
            ..event(kind)
        };
        let (kind, request, spent) = match settled.how {
            Settlement::Released(token) => return Some(of_lease(EventKind::Released, token)),
            Settlement::ReleasedPart(token) => {
                let under = Some(token.limit_mark());
                return Some(Event { under, ..of_lease(EventKind::Released, token) });
            }
            Settlement::Renewed(token) => return Some(of_lease(EventKind::Renewed, token)),
            Settlement::Refunded(request, hits, before, back) => {
                (EventKind::Refunded, request, Some((hits, before, back)))
            }
            Settlement::Charged(request, hits, before) => {
                (EventKind::Charged, request, Some((hits, before, &[][..])))
            }
            Settlement::Reset(request) => (EventKind::Reset, request, None),
            _ => return None,
        };
        let mut event = event(kind);
        if let Some((hits, before, back)) = spent {
            (event.amount, event.age_us) = (Some(hits.get()), before.map(|age| age.get()));
            event.back = back.iter().take(MOST_BACK).map(|name| short(name)).collect();
        }
        event.names(request, settled.matches, names);
        Some(event)
    }

    /// Records whose cells changed.
    fn names(&mut self, request: &CheckRequest<'_>, matches: &[Match<'_>], names: &Digester) {
        self.domain = Some(short(request.domain));
        let Some(first) = request.descriptors.first() else { return };
        self.own_limit = own_limit(first);
        self.attributes = names.attributes(&most_telling(matches.iter(), first.descriptor.entries));
        (self.also, self.also_left_out) = also_asked(request, 0, names);
    }

    fn bytes(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, value)| name.len() + value.len() + 32);
        let also: usize = self.also.iter().map(AlsoAsked::bytes).sum();
        let back: usize = self.back.iter().map(|name| name.len() + 16).sum();
        size_of::<Event>()
            + back
            + attributes.sum::<usize>()
            + also
            + self.domain.as_ref().map_or(0, |domain| domain.len())
    }
}

/// Serializes a mark as sixteen hexadecimal digits.
pub(crate) fn as_mark<S: serde::Serializer>(mark: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    match mark {
        Some(mark) => to.collect_str(&format_args!("{mark:016x}")),
        None => to.serialize_none(),
    }
}
