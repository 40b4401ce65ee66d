//! The other descriptors of a request, as they are kept: they spend too.

use serde::Serialize;
use tidegate_limiter::{CheckRequest, DescriptorAsk};

use crate::record::{Digester, as_map};

/// The most descriptors that a line tells of beside its first.
const MOST_ALSO: usize = 15;

/// What else a request asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlsoAsked {
    /// What it spent, or would have.
    pub cost: u64,
    /// The limit that it brought along.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub own_limit: Option<OwnLimit>,
    /// What is known of it.
    #[serde(serialize_with = "as_map")]
    pub attributes: Vec<(Box<str>, Box<str>)>,
}

/// A limit that a caller brings along.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OwnLimit {
    /// How many hits.
    pub limit: u64,
    /// Per how long.
    pub window_us: u64,
}

impl AlsoAsked {
    pub(crate) fn bytes(&self) -> usize {
        let attributes = self.attributes.iter().map(|(name, value)| name.len() + value.len() + 32);
        size_of::<AlsoAsked>() + attributes.sum::<usize>()
    }
}

/// The descriptors of a request but the one at `place`, and how many of them are left out.
pub(crate) fn also_asked(
    request: &CheckRequest<'_>,
    place: usize,
    names: &Digester,
) -> (Vec<AlsoAsked>, usize) {
    let asked = |(_, ask): (usize, &DescriptorAsk<'_>)| AlsoAsked {
        cost: ask.cost.get(),
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
