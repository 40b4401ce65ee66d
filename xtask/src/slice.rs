//! The slice of tier 3 that CI runs.
//!
//! Tier 3 takes hours, so nobody runs it with each change, and what nobody runs rots. CI runs about five minutes of it: the
//! commit's hash says which part, so that the same commit runs the same, and a few dozen commits run every part. The attacks
//! are not among them, as CI runs them with seeds of its own; nor is what takes a release build.

use std::path::Path;

use crate::chores;
use crate::command::CommandLine;
use crate::library;
use crate::mutants;
use crate::steps::{Failure, Outcome};
use crate::tools::ToolEnv;

/// How many slices the combinations of features are cut into.
const FEATURE_SLICES: usize = 8;

/// What a slice can be of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Mutants,
    Features,
    OldestCompiler,
    Alerts,
}

const PARTS: [Part; 4] = [Part::Mutants, Part::Features, Part::OldestCompiler, Part::Alerts];

/// Runs the slice of the commit that is checked out.
pub(crate) fn run(root: &Path, found: &ToolEnv) -> Result<Outcome, Failure> {
    let hash = CommandLine::new(["git", "rev-parse", "HEAD"]).output(root).unwrap_or_default();
    let (part, number) = chosen(&hash);
    eprintln!("of this commit: {part:?} {number}");
    match part {
        Part::Mutants => mutants::two(root, number).map(|()| Outcome::Done),
        Part::Features => library::features(root, Some((number % FEATURE_SLICES, FEATURE_SLICES))),
        Part::OldestCompiler => library::oldest(root),
        Part::Alerts => chores::long_alert(root, number, found),
    }
}

/// What a commit's slice is of, and which of its slices it is.
fn chosen(hash: &str) -> (Part, usize) {
    let number = usize::from_str_radix(hash.get(..8).unwrap_or_default(), 16).unwrap_or_default();
    (PARTS[number % PARTS.len()], number / PARTS.len())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn slice_of_a_commit_is_always_the_same() {
        assert_eq!(chosen("000000059137877b"), (Part::Features, 1));
        assert_eq!(chosen("no hash"), (Part::Mutants, 0));
    }

    #[test]
    fn every_slice_is_of_some_commit() {
        let slices = (0..64_u32).map(|number| {
            let (part, number) = chosen(&format!("{number:08x}"));
            (part, number % FEATURE_SLICES)
        });
        assert_eq!(slices.collect::<BTreeSet<_>>().len(), PARTS.len() * FEATURE_SLICES);
    }
}
