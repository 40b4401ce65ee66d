//! Opens the stores that count for all regions, and checks that every rule which needs one has it.

use std::sync::Arc;

use tidegate_limiter::{BreakerConfig, HomeConfig};
use tidegate_metrics::Metrics;
use tidegate_rules::{Coordination, Rule};

use super::backend::Backend;
use crate::failure::Failure;
use crate::rules::{LoadedRules, RulesError};
use crate::settings::{HomeSettings, Settings, suggest};

/// What is appended to the prefix of keys: a region's store may be the home of all, and counts both.
const GLOBAL: &str = "-global";

/// A store that counts for all regions, and how the limiter uses it.
pub(super) struct OpenHome {
    pub(super) backend: Backend,
    pub(super) config: HomeConfig,
}

/// Opens the homes. This does not connect yet.
pub(super) fn open(settings: &Settings, metrics: &Arc<Metrics>) -> Result<Vec<OpenHome>, Failure> {
    let regions = &settings.regions;
    let open = |home: &HomeSettings| {
        let mut at_home = settings.clone();
        // Credentials of the region's store are not shown to a store elsewhere.
        at_home.store.url = home.url.clone();
        at_home.store.tls = home.tls.clone();
        at_home.store.sentinel = home.sentinel.clone();
        at_home.store.timeout = Some(regions.ask_within);
        let prefix = at_home.store.key_prefix.as_deref().unwrap_or("tidegate");
        at_home.store.key_prefix = Some(format!("{prefix}{GLOBAL}"));
        let backend = Backend::open(&at_home, metrics).map_err(|why| why.of_field("regions.home"))?;
        let mut config = HomeConfig::new(backend.store(), home.domains.clone());
        config.ask_within = regions.ask_within.into();
        let default = BreakerConfig::default();
        config.breaker.failures = settings.store.breaker_failures.unwrap_or(default.failures);
        config.breaker.open_for = settings.store.breaker_open_for.map_or(default.open_for, Into::into);
        Ok(OpenHome { backend, config })
    };
    regions.homes.iter().map(open).collect()
}

/// Refuses rules for all regions that no home counts, and homes of domains that do not exist.
pub(super) fn check(settings: &Settings, loaded: &LoadedRules) -> Result<(), Failure> {
    let homes = &settings.regions.homes;
    let has_home = |domain: &str| {
        homes.iter().any(|home| home.domains.is_empty() || home.domains.iter().any(|known| known == domain))
    };
    let sources = || loaded.files.iter().map(|(source, _)| source.clone()).collect();
    let rules = &loaded.rules;
    rules.check_homes(sources, has_home).map_err(RulesError::Invalid)?;
    let known: Vec<&str> = rules.domains().collect();
    let unknown =
        homes.iter().flat_map(|home| &home.domains).find(|domain| !known.contains(&domain.as_str()));
    match unknown {
        Some(domain) if !known.is_empty() => {
            Err(Failure::new(format!("regions.home: no rule has the domain `{domain}`"))
                .hint(suggest(domain, &known)))
        }
        _ => Ok(()),
    }
}

/// Refuses rules that keep more of one key than the store that counts them does.
pub(super) fn check_room(own: &Backend, homes: &[OpenHome], loaded: &LoadedRules) -> Result<(), Failure> {
    let room_of = |rule: &Rule| {
        let is_for = |home: &&OpenHome| {
            home.config.domains.is_empty() || home.config.domains.iter().any(|known| known == rule.domain())
        };
        // One that names the domain comes before one for all others.
        let home = || homes.iter().filter(is_for).max_by_key(|home| home.config.domains.len());
        let (store, place) = match rule.coordination() {
            Coordination::Local => return None,
            all if all.is_global() => home().map(|home| (home.backend.store(), 1))?,
            _ => (own.store(), 0),
        };
        store.key_room().map(|room| (place, room))
    };
    let sources = || loaded.files.iter().map(|(source, _)| source.clone()).collect();
    Ok(loaded.rules.check_room(sources, &room_of).map_err(RulesError::Invalid)?)
}
