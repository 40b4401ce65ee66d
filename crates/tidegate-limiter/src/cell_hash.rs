//! Cells as numbers that a caller cannot predict: attackers choose the cell keys, but do not know the hash key.

use siphasher::sip128::{Hash128, SipHasher13};
use tidegate_store::CellKey;

/// Identifies a cell within this process: 128 bits of a keyed hash, so two cells never share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CellHash {
    high: u64,
    low: u64,
}

impl CellHash {
    /// A number below `bound`.
    pub(crate) fn below(self, bound: usize) -> usize {
        scale(self.high, bound)
    }

    /// A second number below `bound`, independent of the first.
    pub(crate) fn again_below(self, bound: usize) -> usize {
        scale(self.low, bound)
    }
}

/// Hashes cells with its own key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellHasher {
    keys: [u64; 2],
}

impl CellHasher {
    pub(crate) fn new(keys: [u64; 2]) -> Self {
        CellHasher { keys }
    }

    pub(crate) fn cell(&self, cell: &CellKey<'_>) -> CellHash {
        // The scope goes into the hash key: it is fixed when rules compile and costs nothing here.
        let digest = cell.scope.digest();
        let hasher = SipHasher13::new_with_keys(self.keys[0] ^ digest[0], self.keys[1] ^ digest[1]);
        let Hash128 { h1, h2 } = hasher.hash(cell.key);
        CellHash { high: h1, low: h2 }
    }
}

/// Maps a hash onto `0..bound` by its upper half, without a division.
fn scale(hash: u64, bound: usize) -> usize {
    let scaled = ((hash >> 32) * bound as u64) >> 32;
    usize::try_from(scaled).unwrap_or(0)
}
