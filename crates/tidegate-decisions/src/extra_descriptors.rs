//! The further descriptors of a request in a log line: they spend too.

use serde::Serialize;
use tidegate_limiter::{CheckRequest, DescriptorAsk, Incurred};

use crate::record::{Digester, as_map, is_false};

/// The most further descriptors in a line.
const MOST_ALSO: usize = 15;

/// A further descriptor of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlsoAsked {
    /// The hits that it spent, or would have spent.
    pub cost: u64,
    /// Whether its cost was incurred before it was known.
    #[serde(skip_serializing_if = "is_false")]
    pub incurred: bool,
    /// The limit that came with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_limit: Option<OwnLimit>,
    /// Its attributes, as far as they are logged.
    #[serde(serialize_with = "as_map")]
    pub attributes: Vec<(Box<str>, Box<str>)>,
}

/// A limit that comes with the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OwnLimit {
    /// The number of hits.
    pub limit: u64,
    /// The window.
    pub window_us: u64,
}

impl AlsoAsked {
    pub(crate) fn bytes(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, value)| name.len() + value.len() + 32);
        size_of::<AlsoAsked>() + attributes.sum::<usize>()
    }
}

/// The descriptors of a request other than the one at `place`, and the number left out.
pub(crate) fn also_asked(
    request: &CheckRequest<'_>,
    place: usize,
    names: &Digester,
) -> (Vec<AlsoAsked>, usize) {
    let asked = |(_, ask): (usize, &DescriptorAsk<'_>)| AlsoAsked {
        cost: ask.cost.get(),
        incurred: ask.incurred == Incurred::Already,
        own_limit: own_limit(ask),
        attributes: names.attributes(ask.descriptor.entries),
    };
    let others = request.descriptors.iter().enumerate().filter(|(other, _)| *other != place);
    let left_out = request.descriptors.len().saturating_sub(1 + MOST_ALSO);
    (others.take(MOST_ALSO).map(asked).collect(), left_out)
}

pub(crate) fn own_limit(ask: &DescriptorAsk<'_>) -> Option<OwnLimit> {
    ask.limit.map(|own| OwnLimit { limit: own.quota(), window_us: own.window().get() })
}
