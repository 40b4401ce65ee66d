//! A cell, as every room of the limiter describes it: [`CellAsk`] while its request lasts, [`KeptCell`] for all who keep it
//! longer. Both have its key, tag, limit and hash; who needs more puts it beside one of them.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Ask, Charge, Group, Hits, LeaseId, Limit, Micros, Scope};
use tidegate_rules::{CellKeyBytes, Coordination, OnStoreFailure, Rule};
use tidegate_store::{CellCharge, CellKey, LeaseRef, Refund, RefundId, Spend};

use crate::cell_hash::{CellHash, CellHasher};

/// What a request asks of one cell. Made when the request is planned, and read by every room that it passes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellAsk<'a> {
    /// As the store is asked.
    pub(crate) spend: Spend<'a>,
    pub(crate) hash: CellHash,
    pub(crate) policy: CellPolicy,
}

/// How a rule's cells are coordinated, and its failure policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellPolicy {
    pub(crate) coordination: Coordination,
    pub(crate) on_store_failure: OnStoreFailure,
}

impl CellPolicy {
    /// The policy of a limit supplied by the caller.
    pub(crate) const CALLER_LIMIT: CellPolicy =
        CellPolicy { coordination: Coordination::Exact, on_store_failure: OnStoreFailure::Local };

    pub(crate) fn of(rule: &Rule) -> Self {
        CellPolicy { coordination: rule.coordination(), on_store_failure: rule.on_store_failure() }
    }
}

impl<'a> CellAsk<'a> {
    pub(crate) fn new(hasher: &CellHasher, spend: Spend<'a>, policy: CellPolicy) -> Self {
        CellAsk { spend, hash: hasher.cell(&spend.cell), policy }
    }

    pub(crate) fn limit(&self) -> &'a Limit {
        self.spend.touch.limit
    }

    pub(crate) fn group(&self) -> Group {
        self.spend.touch.group
    }

    /// The hits that must be left for it.
    pub(crate) fn needs(&self) -> Hits {
        self.spend.touch.needs()
    }

    /// Whether the store's answer updates this node's share.
    pub(crate) fn is_approximate(&self) -> bool {
        matches!(self.policy.coordination, Coordination::Approximate { .. })
    }

    /// Its cell, for those who keep it longer than the request lasts.
    pub(crate) fn cell(&self) -> KeptCell {
        KeptCell::new(self.hash, &self.spend.cell, self.limit())
    }

    pub(crate) fn keep(&self) -> KeptAsk {
        let (ask, group, policy) = (self.spend.touch.ask, self.spend.touch.group, self.policy);
        KeptAsk { cell: self.cell(), ask, group, policy }
    }
}

/// A cell under its limit, beyond the request that named it. A reference: all who keep it share one.
#[derive(Clone, Debug)]
pub(crate) struct KeptCell(Arc<CellBody>);

#[derive(Debug)]
struct CellBody {
    scope: Scope,
    key: CellKeyBytes,
    /// `None` if it equals the key, as it nearly always does.
    tag: Option<Box<[u8]>>,
    limit: Limit,
    hash: CellHash,
}

impl KeptCell {
    pub(crate) fn new(hash: CellHash, cell: &CellKey<'_>, limit: &Limit) -> Self {
        KeptCell(Arc::new(CellBody {
            scope: cell.scope.clone(),
            key: CellKeyBytes::from(cell.key),
            tag: (cell.tag != cell.key).then(|| cell.tag.into()),
            limit: limit.clone(),
            hash,
        }))
    }

    pub(crate) fn hash(&self) -> CellHash {
        self.0.hash
    }

    pub(crate) fn limit(&self) -> &Limit {
        &self.0.limit
    }

    pub(crate) fn tag(&self) -> &[u8] {
        self.0.tag.as_deref().unwrap_or(&self.0.key)
    }

    pub(crate) fn key(&self) -> CellKey<'_> {
        CellKey { scope: &self.0.scope, key: &self.0.key, tag: self.tag() }
    }

    /// A refund of `hits` to this cell.
    pub(crate) fn refund(&self, hits: Hits, age: Micros, id: Option<RefundId>) -> Refund<'_> {
        Refund { cell: self.key(), limit: self.limit(), hits, age, id }
    }

    /// A charge to this cell.
    pub(crate) fn charge(&self, charge: Charge) -> CellCharge<'_> {
        CellCharge { cell: self.key(), limit: self.limit(), charge }
    }

    /// A look at this cell.
    pub(crate) fn look(&self, policy: CellPolicy) -> KeptAsk {
        KeptAsk { cell: self.clone(), ask: Ask::look(), group: Group::ENFORCED, policy }
    }
}

/// Hits to charge to each of several cells.
pub(crate) type Charges = Vec<(KeptCell, Charge)>;

/// Hits to refund to each of several cells, and their age.
pub(crate) type Refunds = SmallVec<[(KeptCell, Hits, Micros); 2]>;

/// What one request asks of one cell, beyond the request.
#[derive(Clone, Debug)]
pub(crate) struct KeptAsk {
    pub(crate) cell: KeptCell,
    pub(crate) ask: Ask,
    pub(crate) group: Group,
    pub(crate) policy: CellPolicy,
}

/// What one request asks of all its cells.
pub(crate) type KeptAsks = SmallVec<[KeptAsk; 1]>;

impl KeptAsk {
    pub(crate) fn spend(&self) -> Spend<'_> {
        let touch = tidegate_core::Touch { limit: self.cell.limit(), ask: self.ask, group: self.group };
        Spend { cell: self.cell.key(), touch }
    }

    pub(crate) fn borrow(&self) -> CellAsk<'_> {
        CellAsk { spend: self.spend(), hash: self.cell.hash(), policy: self.policy }
    }

    /// The lease that it takes if admitted.
    pub(crate) fn lease(&self) -> Option<KeptLease> {
        let takes_one = self.cell.limit().takes_lease() && self.ask.hits > Hits::ZERO;
        let id = self.ask.lease.filter(|_| takes_one)?;
        Some(KeptLease { cell: self.cell.clone(), id })
    }
}

/// A lease that was taken, or may have been.
#[derive(Clone, Debug)]
pub(crate) struct KeptLease {
    pub(crate) cell: KeptCell,
    pub(crate) id: LeaseId,
}

impl KeptLease {
    /// What distinguishes it from every other lease.
    pub(crate) fn name(&self) -> (CellHash, LeaseId) {
        (self.cell.hash(), self.id)
    }

    pub(crate) fn as_ref(&self) -> LeaseRef<'_> {
        LeaseRef { cell: self.cell.key(), limit: self.cell.limit(), id: self.id }
    }
}
