//! Finds which of many literals a text begins (or ends) with.
//!
//! The literals are sorted, and each knows the longest other one that it begins with. The literals that the text begins with
//! are then the greatest literal not above it, or in that one's chain: a binary search and a short walk.

use std::cmp::Ordering;

/// The end of the text at which the literals are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Front,
    Back,
}

/// Literals, each with its members.
#[derive(Debug)]
pub(crate) struct Anchors {
    end: End,
    literals: Box<[FiledLiteral]>,
}

#[derive(Debug)]
struct FiledLiteral {
    bytes: Box<[u8]>,
    /// The longest other literal that this one begins with.
    shorter: Option<u32>,
    members: Box<[u32]>,
}

impl Anchors {
    /// An index over `(literal, member)` pairs.
    pub(crate) fn new(end: End, mut pairs: Vec<(Box<[u8]>, u32)>) -> Self {
        pairs.sort_by(|a, b| compare(end, &a.0, &b.0).then(a.1.cmp(&b.1)));
        let mut literals: Vec<FiledLiteral> = Vec::new();
        // The literals that the next one may begin with, the longest last.
        let mut open: Vec<u32> = Vec::new();
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            let bytes = group[0].0.clone();
            while open.last().is_some_and(|last| !holds(end, &bytes, &literals[*last as usize].bytes)) {
                open.pop();
            }
            let number = u32::try_from(literals.len()).expect("fewer literals than bytes in a file");
            let members = group.iter().map(|(_, member)| *member).collect();
            literals.push(FiledLiteral { bytes, shorter: open.last().copied(), members });
            open.push(number);
        }
        Anchors { end, literals: literals.into() }
    }

    /// Calls `visit` with every member whose literal `text` begins (or ends) with.
    pub(crate) fn each(&self, text: &[u8], mut visit: impl FnMut(u32)) {
        let above = self
            .literals
            .partition_point(|literal| compare(self.end, &literal.bytes, text) != Ordering::Greater);
        let mut next = above.checked_sub(1).map(|at| &self.literals[at]);
        while let Some(literal) = next {
            if holds(self.end, text, &literal.bytes) {
                literal.members.iter().for_each(|member| visit(*member));
            }
            next = literal.shorter.map(|at| &self.literals[at as usize]);
        }
    }
}

fn compare(end: End, a: &[u8], b: &[u8]) -> Ordering {
    match end {
        End::Front => a.cmp(b),
        End::Back => a.iter().rev().cmp(b.iter().rev()),
    }
}

fn holds(end: End, text: &[u8], literal: &[u8]) -> bool {
    match end {
        End::Front => text.starts_with(literal),
        End::Back => text.ends_with(literal),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_literal_at_that_end_is_found_and_no_other(
            literals in proptest::collection::vec("[ab]{0,4}", 0..20),
            text in "[ab]{0,6}",
            back in any::<bool>(),
        ) {
            let end = if back { End::Back } else { End::Front };
            let pairs = literals.iter().enumerate().map(|(at, text)| (text.as_bytes().into(), at as u32)).collect();
            let mut found = Vec::new();
            Anchors::new(end, pairs).each(text.as_bytes(), |member| found.push(member));
            found.sort_unstable();

            let stands = |literal: &String| if back { text.ends_with(literal) } else { text.starts_with(literal) };
            let expected: Vec<u32> =
                literals.iter().enumerate().filter(|(_, one)| stands(one)).map(|(at, _)| at as u32).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
