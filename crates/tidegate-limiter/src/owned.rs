//! Store questions in a form that outlives the request that asked them.

use smallvec::SmallVec;
use tidegate_core::{Ask, Charge, Group, Hits, Limit, LimitFingerprint, Micros, Over, Scope, Touch};
use tidegate_rules::CellKeyBytes;
use tidegate_store::{CellCharge, CellKey, LeaseRef, Refund, RefundId, Request, Spend};

use crate::cell_hash::CellHash;
use crate::deny_cache::CachedCell;

/// What one request asks of the store, borrowed from the request.
pub(crate) struct Question<'q> {
    pub(crate) cells: SmallVec<[AskedCell<'q>; 2]>,
    /// Whether a cached refusal of one of its cells is enough to refuse it.
    pub(crate) repeats_refusals: bool,
}

/// What one request asks of one store cell.
#[derive(Clone, Copy)]
pub(crate) struct AskedCell<'q> {
    pub(crate) spend: &'q Spend<'q>,
    pub(crate) hash: CellHash,
    pub(crate) version: LimitFingerprint,
    /// Whether its rule is approximate: then the store's answer updates this node's share.
    pub(crate) approximate: bool,
}

/// Store cells, the hits to refund to each, and the age of those hits.
pub(crate) type GivenBack = SmallVec<[(OwnedCell, Hits, Micros); 2]>;

/// What two requests must have in common to be folded: cells, limits, hits, and what a cost above what is left does.
pub(crate) type Shape = SmallVec<[ShapeOfCell; 1]>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ShapeOfCell {
    hash: CellHash,
    version: LimitFingerprint,
    hits: Hits,
    over: Over,
    group: Group,
    repeats_refusals: bool,
}

impl Question<'_> {
    /// Its shape; `None` if it cannot be folded: it takes a lease, or charges under a rule with a penalty.
    pub(crate) fn shape(&self) -> Option<Shape> {
        let touches = || self.cells.iter().map(|asked| asked.spend.touch);
        let charges = touches().any(|touch| touch.over() == Over::Charge);
        if charges && touches().any(|touch| touch.group.is_penalty) {
            return None;
        }
        let shape = |asked: &AskedCell<'_>| {
            let Touch { limit: _, ask, group } = asked.spend.touch;
            let (hash, version, hits, over) = (asked.hash, asked.version, ask.hits, asked.spend.touch.over());
            let repeats_refusals = self.repeats_refusals;
            let shape = ShapeOfCell { hash, version, hits, over, group, repeats_refusals };
            ask.lease.is_none().then_some(shape)
        };
        self.cells.iter().map(shape).collect()
    }

    /// The owned form, which outlives the request.
    pub(crate) fn owned(&self) -> OwnedSpends {
        let owned = |asked: &AskedCell<'_>| OwnedSpend {
            approximate: asked.approximate,
            cell: OwnedCell::new(&asked.spend.cell, asked.spend.touch.limit),
            ask: asked.spend.touch.ask,
            group: asked.spend.touch.group,
            hash: asked.hash,
            version: asked.version,
        };
        self.cells.iter().map(owned).collect()
    }

    /// Estimated store time.
    pub(crate) fn work(&self) -> Micros {
        let spends: SmallVec<[Spend<'_>; 2]> = self.cells.iter().map(|asked| *asked.spend).collect();
        Micros::new(Request::once(&spends).store_us())
    }

    /// Which of `crowds` its cells belong to, taken together.
    pub(crate) fn crowd(&self, crowds: usize) -> usize {
        self.cells.iter().map(|asked| asked.hash.below(crowds)).sum::<usize>() % crowds
    }

    /// The size of its keys in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.cells.iter().map(|asked| asked.spend.cell.key.len() + asked.spend.cell.tag.len()).sum()
    }
}

/// A cell and its limit.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCell {
    scope: Scope,
    key: CellKeyBytes,
    /// `None` if it equals the key, as it nearly always does.
    tag: Option<Box<[u8]>>,
    pub(crate) limit: Limit,
}

impl OwnedCell {
    pub(crate) fn new(cell: &CellKey<'_>, limit: &Limit) -> Self {
        OwnedCell {
            scope: cell.scope.clone(),
            key: CellKeyBytes::from(cell.key),
            tag: (cell.tag != cell.key).then(|| cell.tag.into()),
            limit: limit.clone(),
        }
    }

    pub(crate) fn key(&self) -> CellKey<'_> {
        let tag = self.tag.as_deref().unwrap_or(&self.key);
        CellKey { scope: &self.scope, key: &self.key, tag }
    }

    /// A refund of `hits` to this cell.
    pub(crate) fn refund(&self, hits: Hits, age: Micros, id: Option<RefundId>) -> Refund<'_> {
        Refund { cell: self.key(), limit: &self.limit, hits, age, id }
    }
}

/// Hits to charge to a cell.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCharge {
    pub(crate) cell: OwnedCell,
    pub(crate) charge: Charge,
}

impl OwnedCharge {
    /// A charge, now, of what `spend` would spend.
    pub(crate) fn of(spend: &OwnedSpend) -> Self {
        OwnedCharge { cell: spend.cell.clone(), charge: Charge::now(spend.ask.hits) }
    }

    /// A charge, now, of what `spend` spends whatever is left.
    pub(crate) fn of_debt(spend: &Spend<'_>) -> Self {
        let limit = spend.touch.limit;
        let charge = Charge { overdraft: limit.most_debt(), ..Charge::now(spend.touch.ask.hits) };
        OwnedCharge { cell: OwnedCell::new(&spend.cell, limit), charge }
    }

    pub(crate) fn as_charge(&self) -> CellCharge<'_> {
        CellCharge { cell: self.cell.key(), limit: &self.cell.limit, charge: self.charge }
    }
}

/// What one request asks of one cell.
#[derive(Clone, Debug)]
pub(crate) struct OwnedSpend {
    pub(crate) cell: OwnedCell,
    pub(crate) ask: Ask,
    pub(crate) group: Group,
    pub(crate) hash: CellHash,
    pub(crate) version: LimitFingerprint,
    /// Whether its rule is approximate: then the store's answer updates this node's share.
    pub(crate) approximate: bool,
}

/// What one request asks of all its cells.
pub(crate) type OwnedSpends = SmallVec<[OwnedSpend; 1]>;

impl OwnedSpend {
    pub(crate) fn as_spend(&self) -> Spend<'_> {
        let touch = Touch { limit: &self.cell.limit, ask: self.ask, group: self.group };
        Spend { cell: self.cell.key(), touch }
    }

    /// The key for a deny cache lookup.
    pub(crate) fn cached(&self) -> CachedCell<'_> {
        let (limit, hits) = (&self.cell.limit, self.as_spend().touch.needs());
        CachedCell { hash: self.hash, version: self.version, limit, hits, group: self.group }
    }

    /// The lease that it takes if admitted.
    pub(crate) fn lease(&self) -> Option<OwnedLease> {
        let takes_one = self.cell.limit.takes_lease() && self.ask.hits > Hits::ZERO;
        let id = self.ask.lease.filter(|_| takes_one)?;
        Some(OwnedLease { cell: self.cell.clone(), id })
    }
}

/// A lease to release.
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
