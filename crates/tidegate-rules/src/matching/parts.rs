//! Finds which of many literals a text contains anywhere, in one pass over the text.

use aho_corasick::{AhoCorasick, AhoCorasickBuilder, AhoCorasickKind};

/// Literals, each with its members.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// `None` if there are no literals, as in most domains.
    automaton: Option<AhoCorasick>,
    /// For each literal, in the automaton's order.
    members: Box<[Box<[u32]>]>,
}

impl Parts {
    /// An index over `(literal, member)` pairs; no literal is empty.
    pub(crate) fn new(mut pairs: Vec<(Box<[u8]>, u32)>) -> Self {
        pairs.sort_unstable();
        pairs.dedup();
        let groups: Vec<_> = pairs.chunk_by(|a, b| a.0 == b.0).collect();
        // The non-contiguous automaton is fast to build and takes little memory, and texts are short.
        let mut builder = AhoCorasickBuilder::new();
        builder.kind(Some(AhoCorasickKind::ContiguousNFA));
        let literals = groups.iter().map(|group| &*group[0].0);
        let automaton = (!groups.is_empty()).then(|| {
            builder.build(literals).expect("literals of a file within its bound of bytes fit an automaton")
        });
        let members = groups.iter().map(|group| group.iter().map(|(_, member)| *member).collect()).collect();
        Parts { automaton, members }
    }

    /// Calls `visit` with every member whose literal `text` contains; with some more than once.
    #[inline]
    pub(crate) fn each(&self, text: &[u8], mut visit: impl FnMut(u32)) {
        let Some(automaton) = &self.automaton else { return };
        for found in automaton.find_overlapping_iter(text) {
            self.members[found.pattern().as_usize()].iter().for_each(|member| visit(*member));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_literal_that_a_text_holds_is_found_and_no_other(
            literals in proptest::collection::vec("[ab]{1,4}", 0..20),
            text in "[ab]{0,8}",
        ) {
            let pairs = literals.iter().enumerate().map(|(at, text)| (text.as_bytes().into(), at as u32)).collect();
            let mut found = Vec::new();
            Parts::new(pairs).each(text.as_bytes(), |member| found.push(member));
            found.sort_unstable();
            found.dedup();
            let held = |(at, literal): (usize, &String)| text.contains(literal.as_str()).then_some(at as u32);
            let expected: Vec<u32> = literals.iter().enumerate().filter_map(held).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
