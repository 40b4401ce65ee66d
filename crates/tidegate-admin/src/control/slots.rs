//! What the fleet's history tells of each slot: every node tells its seconds, so the slots around one say how many it should have.
//!
//! A node that was late tells its seconds in a later slot. Then the figure of all slots in between is their mean. Where nobody told
//! anything of a fleet is a gap: this node's own counts would look as if traffic had fallen.
//!
//! A node that left and one that was lost tell the same: nothing. So the others tell the seconds of those that were lost, and these
//! count as seconds that should have been told, for as long as a lost node is remembered.

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

/// What is known of each slot, by the seconds that nodes told in it, and the seconds of nodes that they missed. Slots from `open`
/// on are still being told.
pub(super) fn slots(told: &[u64], missed: &[u64], unit_s: u64, open: usize) -> Vec<Slot> {
    let whole: Vec<u64> = told.iter().zip(missed).map(|(told, missed)| told + missed).collect();
    let expected: Vec<Option<u64>> = (0..told.len()).map(|at| expected(&whole, unit_s, at, open)).collect();
    let mut slots = Vec::with_capacity(told.len());
    while slots.len() < told.len() {
        let from = slots.len();
        let to = end_of(told, &expected, from);
        let seconds: u64 = told[from..to].iter().sum();
        let due: u64 = expected[from..to].iter().flatten().sum();
        let length_s = unit_s * (to - from) as u64;
        let slot = if seconds > 0 {
            // Of a slot that is not over, only what was told is known.
            let whole: u64 = whole[from..to].iter().sum();
            let told_s = if from >= open { (whole * length_s) as f64 / due as f64 } else { length_s as f64 };
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

/// The seconds that the slot at `at` should tell, by those told and missed: as many as it has, unless the slots on both sides have
/// more, or both less. At an end nobody can know whether a node left or was not heard, until it is missed.
fn expected(whole: &[u64], unit_s: u64, at: usize, open: usize) -> Option<u64> {
    let before = median(&whole[at.saturating_sub(AROUND)..at]);
    let after = median(whole.get(at + 1..(at + 1 + AROUND).min(open)).unwrap_or_default());
    let own = (whole[at] > 0).then_some(whole[at]);
    let one = before.or(after).or(own)?;
    let other = before.and(after).or(own.filter(|_| at < open)).unwrap_or(one);
    // Nodes are whole, and one that runs tells every second.
    let of_nodes = |seconds: u64| seconds.div_ceil(unit_s) * unit_s;
    Some(whole[at].clamp(of_nodes(one.min(other)), of_nodes(one.max(other))))
}

/// The middle of the slots that anybody told of.
fn median(whole: &[u64]) -> Option<u64> {
    let mut known: Vec<u64> = whole.iter().copied().filter(|seconds| *seconds > 0).collect();
    let middle = known.len() / 2;
    (!known.is_empty()).then(|| *known.select_nth_unstable(middle).1)
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

    /// Where no node is missed.
    fn slots(told: &[u64], unit_s: u64, open: usize) -> Vec<Slot> {
        super::slots(told, &vec![0; told.len()], unit_s, open)
    }

    fn incomplete(slots: &[Slot]) -> Vec<bool> {
        slots.iter().map(|slot| slot.together().is_some_and(|of| of.incomplete)).collect()
    }

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
        let incomplete = incomplete(&slots(&told, 1, told.len()));
        assert_eq!(incomplete, [[false; 12], [true; 12], [false; 12]].concat());
        assert_eq!(rates(&told)[12..24], [Some(20.0); 12]);
    }

    /// One of three nodes is not heard from second 60 on, for `away` seconds of 180. The others miss it after five.
    fn one_away(away: usize) -> (Vec<u64>, Vec<u64>) {
        let is_away = |at: usize| (60..60 + away).contains(&at);
        let told = (0..180).map(|at| if is_away(at) { 2 } else { 3 }).collect();
        // It is missed for two seconds after it came back, too.
        let missed = (0..180).map(|at| u64::from((65..60 + away + 2).contains(&at))).collect();
        (told, missed)
    }

    #[test]
    fn a_node_that_is_away_for_a_minute_or_for_good_is_missed_in_every_slot_and_one_that_left_in_none() {
        for away in [20, 60, 120] {
            let (told, missed) = one_away(away);
            let expected: Vec<bool> = (0..180).map(|at| (60..60 + away).contains(&at)).collect();
            assert_eq!(incomplete(&super::slots(&told, &missed, 1, 180)), expected, "away for {away} s");
            assert!(
                !incomplete(&super::slots(&told, &vec![0; 180], 1, 180))[60 + away / 2] || away < 60,
                "without being missed it has left"
            );
        }
    }

    #[test]
    fn in_a_minute_that_is_not_over_the_seconds_of_a_missed_node_count_as_over() {
        let slots = super::slots(&[180, 180, 40], &[0, 0, 20], 60, 2);
        assert_eq!(slots[2].together().map(|of| of.seconds.round()), Some(20.0));
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
