//! A cell that went through bytes decides as the one that did not.

use std::num::NonZeroU64;

use proptest::prelude::*;
use tidegate_core::{Ask, Cell, Hits, LeaseId, Limit, Micros, Timestamp};

use crate::generate::{START, any_limit, any_limit_and_history};

fn through_bytes(cell: &Cell) -> Cell {
    let mut bytes = Vec::new();
    cell.append_bytes(&mut bytes);
    Cell::from_bytes(&bytes).unwrap_or_else(|| panic!("{cell:?} wrote what it cannot read: {bytes:?}"))
}

/// Whatever a store hands back is decided on: the answer may be wrong, as the bytes are, but there is one.
fn use_up(limit: &Limit, mut cell: Cell, now: Timestamp) {
    let lease = Some(LeaseId(NonZeroU64::MIN));
    for hits in [0, 1, 3] {
        limit.decide(&mut cell, now, Ask { lease, ..Ask::hits(hits) });
        limit.refund(&mut cell, now, Hits::ONE, Micros::ZERO);
    }
}

proptest! {
    #[test]
    fn bytes_keep_all_that_a_decision_needs((limit, steps) in any_limit_and_history()) {
        let (mut kept, mut stored, mut now) = (Cell::Vacant, Cell::Vacant, START);
        for (place, step) in steps.iter().enumerate() {
            now = if place % 7 == 6 { now.back(step.wait) } else { now + step.wait };
            let lease = NonZeroU64::new(place as u64 % 5 + 1).map(LeaseId);
            let ask = Ask { lease, ..Ask::hits(step.hits) };
            prop_assert_eq!(limit.decide(&mut stored, now, ask), limit.decide(&mut kept, now, ask));
            limit.note_refused(&mut stored, now, ask, 1);
            limit.note_refused(&mut kept, now, ask, 1);
            stored = through_bytes(&stored);
        }
    }

    #[test]
    fn any_bytes_are_a_cell_to_decide_on_or_none(
        limit in any_limit(),
        kind in 0..5u8,
        rest in proptest::collection::vec(any::<u8>(), 0..40),
    ) {
        let bytes: Vec<u8> = [kind].into_iter().chain(rest).collect();
        if let Some(cell) = Cell::from_bytes(&bytes) {
            use_up(&limit, cell, START);
        }
    }

    #[test]
    fn bytes_that_were_cut_are_no_cell(limit in any_limit(), cut in 1..17usize) {
        let mut cell = Cell::Vacant;
        limit.decide(&mut cell, START, Ask { lease: Some(LeaseId(NonZeroU64::MIN)), ..Ask::hits(1) });
        let mut bytes = Vec::new();
        cell.append_bytes(&mut bytes);
        if bytes.len() > cut {
            prop_assert_eq!(Cell::from_bytes(&bytes[..bytes.len() - cut]), None);
        }
    }
}
