//! Finds the patterns that a text may match, by one literal that each of them requires.
//!
//! A pattern is filed under its whole text, a literal at one of its ends, or one between them. The caller chooses which: the
//! one that the fewest patterns share is the most selective. A pattern of stars alone may match anything.

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::anchors::{Anchors, End};
use super::parts::Parts;
use crate::glob::Pattern;

/// What a text must contain for a pattern to match. Ordered by how rarely texts contain it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Literal {
    Whole(Box<[u8]>),
    Front(Box<[u8]>),
    Back(Box<[u8]>),
    Anywhere(Box<[u8]>),
    Nothing,
}

impl Literal {
    /// Every literal that `pattern` requires; at least one.
    pub(crate) fn all_of(pattern: &Pattern) -> Vec<Literal> {
        let glob = match pattern {
            Pattern::Exact(value) => return vec![Literal::Whole(value.clone())],
            Pattern::Glob(glob) => glob,
        };
        let front = (!glob.prefix().is_empty()).then(|| Literal::Front(glob.prefix().into()));
        let back = (!glob.suffix().is_empty()).then(|| Literal::Back(glob.suffix().into()));
        let between = glob.parts().map(|part| Literal::Anywhere(part.into()));
        let all: Vec<Literal> = front.into_iter().chain(back).chain(between).collect();
        if all.is_empty() { vec![Literal::Nothing] } else { all }
    }

    fn kind(&self) -> u8 {
        match self {
            Literal::Whole(_) => 0,
            Literal::Front(_) => 1,
            Literal::Back(_) => 2,
            Literal::Anywhere(_) => 3,
            Literal::Nothing => 4,
        }
    }
}

/// How many patterns require each literal, by attribute if that matters.
pub(crate) struct UseCounts<K>(HashMap<K, u32, RandomState>);

impl<K: Hash + Eq> UseCounts<K> {
    pub(crate) fn count(all: impl Iterator<Item = K>) -> Self {
        let mut shared = HashMap::default();
        all.for_each(|one| *shared.entry(one).or_default() += 1);
        UseCounts(shared)
    }

    /// The cost of filing a pattern under `literal`: how many others are there; among equals, how rarely texts contain it.
    pub(crate) fn cost(&self, key: &K, literal: &Literal) -> (u32, u8) {
        (self.0.get(key).copied().unwrap_or_default(), literal.kind())
    }
}

/// Numbers of patterns, each filed under a literal.
#[derive(Debug)]
pub(crate) struct PatternIndex {
    whole: HashMap<Box<[u8]>, SmallVec<[u32; 2]>, RandomState>,
    front: Anchors,
    back: Anchors,
    anywhere: Parts,
    nothing: Box<[u32]>,
}

impl PatternIndex {
    pub(crate) fn new(filed: Vec<(Literal, u32)>) -> Self {
        let mut whole: HashMap<Box<[u8]>, SmallVec<[u32; 2]>, RandomState> = HashMap::default();
        let (mut front, mut back, mut anywhere, mut nothing) = (vec![], vec![], vec![], vec![]);
        for (literal, number) in filed {
            match literal {
                Literal::Whole(text) => whole.entry(text).or_default().push(number),
                Literal::Front(text) => front.push((text, number)),
                Literal::Back(text) => back.push((text, number)),
                Literal::Anywhere(text) => anywhere.push((text, number)),
                Literal::Nothing => nothing.push(number),
            }
        }
        PatternIndex {
            whole,
            front: Anchors::new(End::Front, front),
            back: Anchors::new(End::Back, back),
            anywhere: Parts::new(anywhere),
            nothing: nothing.into(),
        }
    }

    /// Calls `visit` with every pattern whose literal `text` contains, in no particular order, with some more than once.
    #[inline]
    pub(crate) fn each(&self, text: &[u8], mut visit: impl FnMut(u32)) {
        if let Some(numbers) = self.whole.get(text) {
            numbers.iter().for_each(|number| visit(*number));
        }
        self.front.each(text, &mut visit);
        self.back.each(text, &mut visit);
        self.anywhere.each(text, &mut visit);
        self.nothing.iter().for_each(|number| visit(*number));
    }
}
