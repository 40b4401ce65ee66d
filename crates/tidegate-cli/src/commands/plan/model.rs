//! What a store takes: Redis as its scripts were measured, the others as `stores` says.

use tidegate_core::Limit;
use tidegate_store_redis::{Topology, costs};

use crate::settings::StoreUrl;
use crate::stores::Kind;

/// The store that all nodes share.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Model {
    Redis {
        /// Whether the cells of a request may be on several servers.
        is_spread: bool,
    },
    Other(&'static Kind),
}

/// What one request costs it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RequestCost {
    pub(super) calls: u64,
    /// Of a core; zero where nobody runs the server.
    pub(super) us: f64,
}

/// One Redis: what is assumed unless another store is named.
impl Default for Model {
    fn default() -> Self {
        Model::Redis { is_spread: false }
    }
}

impl Model {
    /// The model of a store; none of memory, which nobody shares.
    pub(crate) fn of(url: &StoreUrl) -> Option<Self> {
        match url {
            StoreUrl::Memory => None,
            StoreUrl::Redis(url) => {
                let is_spread = matches!(url.topology, Topology::Cluster | Topology::Sharded);
                Some(Model::Redis { is_spread })
            }
            StoreUrl::Shared(address) => Some(Model::Other(address.kind())),
        }
    }

    /// Its name, for people.
    pub(super) fn title(&self) -> &'static str {
        match self {
            Model::Redis { .. } => "Redis",
            Model::Other(kind) => kind.title,
        }
    }

    /// Its name, for programs.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Model::Redis { .. } => "redis",
            Model::Other(kind) => kind.name,
        }
    }

    /// Whether the number of its servers follows from memory and calls.
    pub(super) fn has_nodes(&self) -> bool {
        match self {
            Model::Redis { .. } => true,
            Model::Other(kind) => kind.costs.is_spread,
        }
    }

    /// Bytes that a fully used cell of `limit` takes.
    pub(super) fn bytes(&self, limit: &Limit) -> u64 {
        match self {
            Model::Redis { .. } => costs::redis_bytes(limit),
            Model::Other(kind) => kind.costs.bytes(limit),
        }
    }

    /// What a request over so many keys costs, that has all these limits.
    pub(super) fn request<'l>(
        &self,
        keys: usize,
        limits: impl ExactSizeIterator<Item = &'l Limit>,
    ) -> RequestCost {
        match self {
            Model::Redis { is_spread } => {
                let calls = if *is_spread { keys } else { keys.min(1) } as u64;
                let decisions_us = limits.map(costs::decision_us).sum();
                RequestCost { calls, us: costs::request_us(calls, decisions_us) }
            }
            Model::Other(kind) => RequestCost {
                calls: kind.costs.calls(keys),
                us: kind.costs.us_per_counter * limits.len() as f64,
            },
        }
    }

    /// How many requests like this one all cores of a server decide, where their number is known: Redis runs scripts on one.
    pub(super) fn us_of_one_core(&self, request: RequestCost) -> f64 {
        match self {
            Model::Redis { .. } => request.us,
            Model::Other(_) => 0.0,
        }
    }
}
