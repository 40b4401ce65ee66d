//! Compares the sides of an experiment over the whole fleet.

use tidegate_rules::Variant;

use super::ControlPlane;
use super::merged::{HistoryChunk, Resolution, experiment_in};

/// The decisions of each side of an experiment.
pub(crate) struct Compared {
    /// Admitted, refused, and refused in shadow, by the name of the side.
    pub(crate) sides: Vec<(&'static str, [u64; 3])>,
    /// The scope of the counts: `fleet_last_day`, or `node_since_start` if the fleet's history is unavailable.
    pub(crate) of: &'static str,
    /// The same by time; none for `node_since_start`.
    pub(crate) timeline: Option<Timeline>,
}

/// What each side decided, step by step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Timeline {
    /// When the first step begins, in seconds since 1970.
    pub(crate) from_s: u64,
    pub(crate) step_s: u64,
    /// Admitted, refused, and refused in shadow in each step, by the name of the side; `None` where nobody told anything.
    pub(crate) sides: Vec<(&'static str, Vec<Option<[u64; 3]>>)>,
}

const SECONDS_AN_HOUR: u64 = 3_600;
const HOURS: u64 = 24;
/// Minutes of one step.
const STEP: usize = 10;
const VARIANTS: [Variant; 2] = [Variant::Control, Variant::Experiment];

impl ControlPlane {
    /// The decisions of each side of a rule's experiment.
    pub(crate) async fn experiment(&self, domain: &str, rule: &str) -> Compared {
        let variants = VARIANTS.map(Variant::name);
        let now_s = self.clock.now().as_micros() / 1_000_000;
        let hour = now_s / SECONDS_AN_HOUR;
        let first = hour.saturating_sub(HOURS - 1);
        if let Some(read) = self.fleet_history(Resolution::Minutes, first..=hour).await {
            let chunks = &read.chunks;
            let sides = variants.map(|variant| (variant, experiment_in(chunks, domain, rule, variant)));
            let timeline = Some(timeline(chunks, (first, now_s), (domain, rule)));
            return Compared { sides: sides.to_vec(), of: "fleet_last_day", timeline };
        }
        let own = self.metrics.experiments();
        let counted = |variant| own.get(&(domain.to_owned(), rule.to_owned(), variant)).copied();
        let sides = variants.map(|variant| (variant, counted(variant).unwrap_or_default()));
        Compared { sides: sides.to_vec(), of: "node_since_start", timeline: None }
    }
}

/// From the hour `first` until now.
fn timeline(chunks: &[HistoryChunk], (first, now_s): (u64, u64), (domain, rule): (&str, &str)) -> Timeline {
    let (from_s, step_s) = (first * SECONDS_AN_HOUR, 60 * STEP as u64);
    let begun = now_s.saturating_sub(from_s) / step_s + 1;
    let sides = VARIANTS.map(|variant| {
        let hours =
            (first..=now_s / SECONDS_AN_HOUR).map(|hour| chunks.iter().find(|chunk| chunk.number == hour));
        let steps = hours.flat_map(|chunk| steps_of(chunk, domain, rule, variant.name()));
        (variant.name(), steps.take(begun as usize).collect())
    });
    Timeline { from_s, step_s, sides: sides.to_vec() }
}

/// The steps of one hour.
fn steps_of(chunk: Option<&HistoryChunk>, domain: &str, rule: &str, variant: &str) -> Vec<Option<[u64; 3]>> {
    let Some(chunk) = chunk.filter(|chunk| !chunk.rows.is_empty()) else { return vec![None; 60 / STEP] };
    let Some(counts) = chunk.rows.get(&super::merged::experiment_row_name(domain, rule, variant)) else {
        return vec![Some([0; 3]); 60 / STEP];
    };
    let sum = |minutes: &[u32]| {
        let mut sums = [0; 3];
        let slots = minutes.chunks_exact(sums.len());
        slots.for_each(|slot| sums.iter_mut().zip(slot).for_each(|(sum, count)| *sum += u64::from(*count)));
        Some(sums)
    };
    counts.chunks_exact(3 * STEP).map(sum).collect()
}

#[cfg(test)]
mod tests {
    use super::super::merged::experiment_row_name;
    use super::*;

    #[test]
    fn steps_sum_ten_minutes_and_an_untold_hour_is_unknown() {
        // In minute 9 of the hour 7 the control admitted 4 and refused 2, in minute 10 it admitted 1.
        let mut minutes = vec![0; 3 * 60];
        (minutes[3 * 9], minutes[3 * 9 + 1], minutes[3 * 10]) = (4, 2, 1);
        let row = (experiment_row_name("api", "search", "control"), minutes);
        let chunk = HistoryChunk { number: 7, rows: [row].into() };
        let now_s = 7 * 3_600 + 29 * 60;
        let made = timeline(&[chunk], (6, now_s), ("api", "search"));
        assert_eq!((made.from_s, made.step_s), (6 * 3_600, 600));
        let (name, control) = &made.sides[0];
        assert_eq!((*name, control.len()), ("control", 9), "no step that is yet to come");
        assert_eq!(control[5..], [None, Some([4, 2, 0]), Some([1, 0, 0]), Some([0; 3])]);
        assert_eq!(made.sides[1].1[6], Some([0; 3]), "the other side decided nothing in that hour");
    }
}
