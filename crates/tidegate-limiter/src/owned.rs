//! What is asked of the store, in a form that outlives the request that asked.

use smallvec::SmallVec;
use tidegate_core::{Ask, Hits, Limit, Micros, Scope, Stance, Touch};
use tidegate_rules::CellKeyBytes;
use tidegate_store::{CellKey, LeaseRef, Refund, Spend};

use crate::cell_hash::CellHash;
use crate::deny_cache::{CachedCell, LimitVersion};

/// A cell and the limit that guards it.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCell {
    scope: Scope,
    key: CellKeyBytes,
    /// None where it is the key itself, as it nearly always is.
    tag: Option<Box<[u8]>>,
    pub(crate) limit: Limit,
}

impl OwnedCell {
    pub(crate) fn new(cell: &CellKey<'_>, limit: &Limit) -> Self {
        OwnedCell {
            scope: cell.scope.clone(),
            key: CellKeyBytes::from_slice(cell.key),
            tag: (cell.tag != cell.key).then(|| cell.tag.into()),
            limit: limit.clone(),
        }
    }

    pub(crate) fn key(&self) -> CellKey<'_> {
        let tag = self.tag.as_deref().unwrap_or(&self.key);
        CellKey { scope: &self.scope, key: &self.key, tag }
    }

    /// What `hits` on it are, to be given back.
    pub(crate) fn refund(&self, hits: Hits, age: Micros) -> Refund<'_> {
        Refund { cell: self.key(), limit: &self.limit, hits, age }
    }
}

/// What one request asks of one cell.
#[derive(Clone, Debug)]
pub(crate) struct OwnedSpend {
    pub(crate) cell: OwnedCell,
    pub(crate) ask: Ask,
    pub(crate) stance: Stance,
    pub(crate) hash: CellHash,
    pub(crate) version: LimitVersion,
    /// Whether it is of an approximate rule, which wants to hear what the store says.
    pub(crate) approximate: bool,
}

/// What one request asks.
pub(crate) type OwnedSpends = SmallVec<[OwnedSpend; 1]>;

impl OwnedSpend {
    pub(crate) fn new(spend: &Spend<'_>, hash: CellHash, version: LimitVersion) -> Self {
        OwnedSpend {
            approximate: false,
            cell: OwnedCell::new(&spend.cell, spend.touch.limit),
            ask: spend.touch.ask,
            stance: spend.touch.stance,
            hash,
            version,
        }
    }

    pub(crate) fn as_spend(&self) -> Spend<'_> {
        let touch = Touch { limit: &self.cell.limit, ask: self.ask, stance: self.stance };
        Spend { cell: self.cell.key(), touch }
    }

    /// Where to look for what the deny cache knows of it.
    pub(crate) fn cached(&self) -> CachedCell<'_> {
        let (limit, hits) = (&self.cell.limit, self.ask.hits);
        CachedCell { hash: self.hash, version: self.version, limit, hits, stance: self.stance }
    }

    /// The lease that it takes if it is admitted.
    pub(crate) fn lease(&self) -> Option<OwnedLease> {
        let takes_one = self.cell.limit.takes_lease() && self.ask.hits > Hits::ZERO;
        let id = self.ask.lease.filter(|_| takes_one)?;
        Some(OwnedLease { cell: self.cell.clone(), id })
    }
}

/// A lease to be given back.
#[derive(Clone, Debug)]
pub(crate) struct OwnedLease {
    pub(crate) cell: OwnedCell,
    pub(crate) id: tidegate_core::LeaseId,
}

impl OwnedLease {
    pub(crate) fn new(lease: &LeaseRef<'_>) -> Self {
        OwnedLease { cell: OwnedCell::new(&lease.cell, lease.limit), id: lease.id }
    }

    pub(crate) fn as_lease(&self) -> LeaseRef<'_> {
        LeaseRef { cell: self.cell.key(), limit: &self.cell.limit, id: self.id }
    }
}
