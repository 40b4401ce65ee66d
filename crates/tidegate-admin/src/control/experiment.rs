//! Compares the sides of an experiment over the whole fleet.

use tidegate_rules::Variant;

use super::ControlPlane;
use super::merged::{Resolution, experiment_in};

/// The decisions of each side of an experiment.
pub(crate) struct Compared {
    /// Admitted, refused, and refused in shadow, by the name of the side.
    pub(crate) sides: Vec<(&'static str, [u64; 3])>,
    /// The scope of the counts: `fleet_last_day`, or `node_since_start` if the fleet's history is unavailable.
    pub(crate) of: &'static str,
}

const SECONDS_AN_HOUR: u64 = 3_600;
const HOURS: u64 = 24;
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
            return Compared { sides: sides.to_vec(), of: "fleet_last_day" };
        }
        let own = self.metrics.experiments();
        let counted = |variant| own.get(&(domain.to_owned(), rule.to_owned(), variant)).copied();
        let sides = variants.map(|variant| (variant, counted(variant).unwrap_or_default()));
        Compared { sides: sides.to_vec(), of: "node_since_start" }
    }
}
