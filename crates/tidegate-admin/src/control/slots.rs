//! What the fleet's history tells of each slot: every node tells its seconds, so the slots around one say how many it should have.
//!
//! A node that was late tells its seconds in a later slot. Then the figure of all slots in between is their mean. Where nobody told
//! anything of a fleet is a gap: this node's own counts would look as if traffic had fallen.

/// How many slots on either side tell the size of the fleet.
const AROUND: usize = 30;
/// The most slots that a late node's seconds are looked for in.
const MOST_LATE: usize = 10;
/// The slots that one figure is the mean of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Together {
    pub(super) from: usize,
    /// Exclusive.
    pub(super) to: usize,
    /// The seconds of the whole fleet that these slots tell of.
    pub(super) seconds: f64,
    /// Whether a node that told of the slots around them told nothing of these: the figure is of the others.
    pub(super) incomplete: bool,
}

/// What is known of a slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Slot {
    Told(Together),
    /// Nobody of a fleet was heard.
    Gap,
    /// Nobody was heard, and nothing says that there was more than one node.
    Silent,
}

impl Slot {
    pub(super) fn together(&self) -> Option<Together> {
        match self {
            Slot::Told(of) => Some(*of),
            Slot::Gap | Slot::Silent => None,
        }
    }
}

/// What is known of each slot, by the seconds that nodes told in it. Slots from `open` on are still being told.
pub(super) fn slots(told: &[u64], unit_s: u64, open: usize) -> Vec<Slot> {
    let expected: Vec<Option<u64>> = (0..told.len()).map(|at| expected(told, unit_s, at, open)).collect();
    let mut slots = Vec::with_capacity(told.len());
    while slots.len() < told.len() {
        let from = slots.len();
        let to = end_of(told, &expected, from);
        let seconds: u64 = told[from..to].iter().sum();
        let due: u64 = expected[from..to].iter().flatten().sum();
        let length_s = unit_s * (to - from) as u64;
        let slot = if seconds > 0 {
            // Of a slot that is not over, only what was told is known.
            let told_s =
                if from >= open { (seconds * length_s) as f64 / due as f64 } else { length_s as f64 };
            Slot::Told(Together { from, to, seconds: told_s, incomplete: seconds < due && to <= open })
        } else if due > length_s {
            Slot::Gap
        } else {
            Slot::Silent
        };
        slots.resize(to, slot);
    }
    slots
}

/// The seconds that the slot at `at` should tell: as many as it does, unless the slots on both sides tell more, or both less.
/// At an end nobody can know whether a node left or was not heard.
fn expected(told: &[u64], unit_s: u64, at: usize, open: usize) -> Option<u64> {
    let before = median(&told[at.saturating_sub(AROUND)..at]);
    let after = median(told.get(at + 1..(at + 1 + AROUND).min(open)).unwrap_or_default());
    let own = (told[at] > 0).then_some(told[at]);
    let one = before.or(after).or(own)?;
    let other = before.and(after).or(own.filter(|_| at < open)).unwrap_or(one);
    // Nodes are whole, and one that runs tells every second.
    let whole = |seconds: u64| seconds.div_ceil(unit_s) * unit_s;
    Some(told[at].clamp(whole(one.min(other)), whole(one.max(other))))
}

/// The middle of the slots that anybody told of.
fn median(told: &[u64]) -> Option<u64> {
    let mut told: Vec<u64> = told.iter().copied().filter(|seconds| *seconds > 0).collect();
    let middle = told.len() / 2;
    (!told.is_empty()).then(|| *told.select_nth_unstable(middle).1)
}

/// The end of the slots that together tell what they should, from `from` on; the next slot if none do.
fn end_of(told: &[u64], expected: &[Option<u64>], from: usize) -> usize {
    let (mut seconds, mut due) = (0, 0);
    for to in from..told.len().min(from + MOST_LATE) {
        let Some(expected) = expected[to] else { break };
        seconds += told[to];
        due += expected;
        if seconds == due {
            return to + 1;
        }
    }
    from + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a chart would show if each node counted ten a second: `None` for a gap.
    fn rates(told: &[u64]) -> Vec<Option<f64>> {
        let rate = |slot| match slot {
            Slot::Told(of) => Some(told[of.from..of.to].iter().sum::<u64>() as f64 * 10.0 / of.seconds),
            Slot::Gap | Slot::Silent => None,
        };
        slots(told, 1, told.len()).into_iter().map(rate).collect()
    }

    #[test]
    fn seconds_that_nobody_of_three_nodes_told_of_are_a_gap() {
        let shown = rates(&[3, 3, 3, 0, 0, 3, 3, 3]);
        let full = Some(30.0);
        assert_eq!(shown, [full, full, full, None, None, full, full, full]);
    }

    #[test]
    fn seconds_told_late_belong_to_the_slots_in_between() {
        assert_eq!(rates(&[3, 3, 2, 4, 3, 3]), [Some(30.0); 6], "one node a second late");
        assert_eq!(rates(&[3, 3, 0, 0, 0, 12, 3, 3]), [Some(30.0); 8], "all of them, after an outage");
        assert_eq!(rates(&[3, 3, 4, 2, 3, 3]), [Some(30.0); 6], "one a moment early");
    }

    #[test]
    fn slots_that_one_of_three_nodes_never_told_of_are_incomplete_and_keep_what_the_others_told() {
        let told = [[3; 12].as_slice(), &[2; 12], &[3; 12]].concat();
        let incomplete: Vec<bool> = slots(&told, 1, told.len())
            .iter()
            .map(|slot| slot.together().is_some_and(|of| of.incomplete))
            .collect();
        assert_eq!(incomplete, [[false; 12], [true; 12], [false; 12]].concat());
        assert_eq!(rates(&told)[12..24], [Some(20.0); 12]);
    }

    #[test]
    fn a_fleet_that_grows_or_shrinks_is_shown_as_it_is() {
        assert!(slots(&[3, 3, 3, 1, 1, 1], 1, 6).iter().all(|slot| !slot.together().unwrap().incomplete));
        assert_eq!(rates(&[1, 1, 1, 3, 3, 3]), [10.0, 10.0, 10.0, 30.0, 30.0, 30.0].map(Some));
        assert_eq!(rates(&[3, 3, 3, 1, 1, 1]), [30.0, 30.0, 30.0, 10.0, 10.0, 10.0].map(Some));
    }

    #[test]
    fn where_one_node_is_the_fleet_its_silence_is_no_gap_of_others() {
        assert_eq!(slots(&[1, 0, 1], 1, 3)[1], Slot::Silent);
        assert_eq!(slots(&[0, 0], 1, 2), [Slot::Silent; 2]);
        assert_eq!(slots(&[3, 0, 0, 3], 1, 4)[1..3], [Slot::Gap; 2]);
    }

    #[test]
    fn a_minute_that_is_not_over_is_of_the_seconds_told_so_far() {
        let slots = slots(&[180, 179, 60], 60, 2);
        let seconds = |slot: &Slot| match slot {
            Slot::Told(of) => of.seconds.round(),
            other => panic!("{other:?}"),
        };
        assert_eq!(slots.iter().map(seconds).collect::<Vec<_>>(), [60.0, 60.0, 20.0]);
    }
}
