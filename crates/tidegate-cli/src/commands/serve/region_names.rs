//! Detects two regions with one name: each node tells every home which region it is of, with its heartbeats there.
//!
//! Whoever calls itself like this region, but does not share its store, is of another one. It only tells: what is counted does not
//! depend on the name. It cannot detect regions that use another home, which nobody here hears of.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tidegate_fleet::{FleetStore, LimiterNote};
use tidegate_store::StoreError;

use super::backend::Backend;

/// How often it looks. What is so at two looks in a row is told.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// The most nodes that a warning names.
const MOST_NAMED: usize = 3;

/// What a node says of itself at a home.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct RegionNote {
    region: String,
    node: String,
}

/// Warnings about regions with this region's name, as of the last look.
pub(super) type NameWarnings = Arc<RwLock<Vec<String>>>;

/// This region's name, its store, and the homes.
pub(super) struct RegionNames {
    region: String,
    member: u64,
    own: Arc<dyn FleetStore>,
    homes: Vec<(String, Arc<dyn FleetStore>)>,
    warnings: NameWarnings,
}

impl RegionNames {
    /// None if there is no home, or no store that nodes share. Announces this node at once.
    pub(super) fn new(
        (region, node): (Option<&str>, &str),
        member: u64,
        (own, homes): (&Backend, &[Backend]),
        warnings: NameWarnings,
    ) -> Option<Self> {
        let (region, own) = (region?.to_owned(), own.fleet()?);
        let homes = homes.iter().filter_map(|home| {
            let names: Vec<String> =
                (0..home.store().nodes()).map(|node| home.store().endpoint(node)).collect();
            Some((names.join(","), home.fleet()?))
        });
        let homes: Vec<_> = homes.collect();
        let note = RegionNote { region: region.clone(), node: node.to_owned() };
        let note = serde_json::to_vec(&note).expect("text is JSON");
        homes.iter().for_each(|(_, home)| home.with_heartbeat().announce(note.clone()));
        (!homes.is_empty()).then_some(RegionNames { region, member, own, homes, warnings })
    }

    /// Looks for as long as the server runs.
    pub(super) async fn keep(self) {
        let mut suspected: Vec<String> = Vec::new();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            // While a store does not answer, what was known holds.
            let Ok(found) = self.look().await else { continue };
            let sure: Vec<String> = found.iter().filter(|one| suspected.contains(one)).cloned().collect();
            let mut told = self.warnings.write().unwrap_or_else(PoisonError::into_inner);
            sure.iter().filter(|one| !told.contains(one)).for_each(|one| tracing::warn!("{one}"));
            *told = sure;
            suspected = found;
        }
    }

    async fn look(&self) -> Result<Vec<String>, StoreError> {
        let ours: BTreeSet<u64> = self.own.notes().await?.iter().map(|note| note.member).collect();
        let mut found = Vec::new();
        // A node that its own store does not know yet cannot tell who else is there.
        if ours.contains(&self.member) {
            for (home, store) in &self.homes {
                let strangers = strangers(&self.region, &ours, &store.notes().await?);
                found.extend(warning(&self.region, home, &strangers));
            }
        }
        Ok(found)
    }
}

/// The nodes at home that are of a region with this name, and not of this region's store.
fn strangers(region: &str, ours: &BTreeSet<u64>, at_home: &[LimiterNote]) -> Vec<String> {
    let others = at_home.iter().filter(|note| !note.lost && !ours.contains(&note.member));
    let read = others.filter_map(|note| serde_json::from_slice::<RegionNote>(&note.note).ok());
    let mut names: Vec<String> = read.filter(|note| note.region == region).map(|note| note.node).collect();
    names.sort_unstable();
    names
}

fn warning(region: &str, home: &str, strangers: &[String]) -> Option<String> {
    let more = strangers.len().saturating_sub(MOST_NAMED);
    let named = strangers.iter().take(MOST_NAMED).map(String::as_str).collect::<Vec<_>>().join(", ");
    let named = if more > 0 { format!("{named} and {more} more") } else { named };
    (!strangers.is_empty()).then(|| {
        format!(
            "two regions are called `{region}`: at the home {home}, {named} say they are of it, and share no store with \
             this node; give each region a name of its own, or its nodes the same `store.url`"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(member: u64, region: &str, lost: bool) -> LimiterNote {
        let note = RegionNote { region: region.to_owned(), node: format!("n{member}") };
        LimiterNote { member, age_us: 0, note: serde_json::to_vec(&note).unwrap(), lost }
    }

    #[test]
    fn whoever_has_this_regions_name_and_another_store_is_of_another_region() {
        let ours = BTreeSet::from([1, 2]);
        let earlier_release = LimiterNote { note: Vec::new(), ..note(7, "", false) };
        let all = [
            note(1, "eu", false),
            note(2, "eu", false),
            note(3, "us", false),
            note(4, "eu", true),
            earlier_release,
        ];
        assert_eq!(strangers("eu", &ours, &all), Vec::<String>::new());
        let with_another = [&all[..], &[note(9, "eu", false), note(8, "eu", false)]].concat();
        let found = strangers("eu", &ours, &with_another);
        assert_eq!(found, ["n8", "n9"]);
        let told = warning("eu", "home:6379", &found).unwrap();
        assert!(told.contains("two regions are called `eu`: at the home home:6379, n8, n9 say"), "{told}");
        assert_eq!(warning("eu", "home:6379", &[]), None);
    }
}
