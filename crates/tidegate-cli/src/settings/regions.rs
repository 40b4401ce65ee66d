//! Several regions, each with a store of its own, and what is counted for all of them.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_store_redis::{Credentials, TlsFiles};

use super::config::{Sentinel, Tls};
use super::store::StoreUrl;
use super::values::{Secret, Span};
use crate::failure::Failure;

/// Where rules with `scope: global` are counted
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Regions {
    /// The store that counts for all regions, as `store.url` names one: the same in every region. Or a map of its own `url`,
    /// `password`, `tls` (`ca`, `certificate`, `key`) and `sentinel` (`user`, `password`): those of `store` are not used for it.
    /// Or either of the two for each domain, by its name
    pub(crate) home: Option<Homes>,
    /// How long a request waits for its home, where this node holds too few hits: 250ms by default
    pub(crate) ask_within: Option<Span>,
}

/// One store for all domains, or one for each
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum Homes {
    /// One for all domains
    All(HomeEntry),
    /// One for each, by its name
    ByDomain(BTreeMap<String, HomeEntry>),
}

/// A store that counts for all regions: its address, or that and how to use it
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum HomeEntry {
    /// As `store.url` names one
    Url(Secret),
    /// With settings of its own
    Store(HomeStore),
}

/// A store that counts for all regions
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HomeStore {
    /// As `store.url` names one
    url: Secret,
    /// The password for the url's user
    #[serde(default)]
    password: Option<Secret>,
    /// Files for TLS, where the url asks for it
    #[serde(default)]
    tls: Tls,
    /// Credentials for the sentinels
    #[serde(default)]
    sentinel: Sentinel,
}

/// This region, and the homes of its rules for all regions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RegionSettings {
    pub(crate) name: Option<String>,
    pub(crate) homes: Vec<HomeSettings>,
    pub(crate) ask_within: Duration,
}

/// A store that counts for all regions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HomeSettings {
    pub(crate) url: StoreUrl,
    /// Its own: nothing of the region's store is shown to it.
    pub(crate) tls: TlsFiles,
    pub(crate) sentinel: Credentials,
    /// None: all.
    pub(crate) domains: Vec<String>,
}

/// Two round trips between continents, and some more.
const DEFAULT_ASK_WITHIN: Duration = Duration::from_millis(250);
/// A request that waits longer is answered by nobody.
const LONGEST_ASK: Duration = Duration::from_secs(2);

impl Regions {
    pub(super) fn resolve_against(&mut self, directory: &Path) {
        let all: Vec<&mut HomeEntry> = match &mut self.home {
            None => Vec::new(),
            Some(Homes::All(home)) => vec![home],
            Some(Homes::ByDomain(homes)) => homes.values_mut().collect(),
        };
        for home in all {
            if let HomeEntry::Store(store) = home {
                store.tls.resolve_against(directory);
            }
        }
    }

    pub(super) fn settings(self, region: Option<String>, own: &StoreUrl) -> Result<RegionSettings, Failure> {
        let ask_within = self.ask_within.map_or(DEFAULT_ASK_WITHIN, |Span(span)| span);
        let wrong_time = match ask_within {
            Duration::ZERO => Some("it is zero"),
            long if long > LONGEST_ASK => Some("no client waits that long"),
            _ => None,
        };
        if let Some(problem) = wrong_time {
            return Err(Failure::new(format!("regions.ask_within: {problem}"))
                .hint("use two round trips to the home: 250ms is the default, 2s the most"));
        }
        if region.as_ref().is_some_and(|name| name.trim().is_empty()) {
            return Err(Failure::new("region: it is empty")
                .hint("write for example eu-west, another one in each region; or leave it out"));
        }
        let homes = self.home.map_or_else(|| Ok(Vec::new()), homes)?;
        if !homes.is_empty() && region.is_none() {
            return Err(Failure::new("regions.home: this region has no name")
                .hint("add `region: eu-west`, another one in each region"));
        }
        if !homes.is_empty() && *own == StoreUrl::Memory {
            return Err(Failure::new("regions.home: the nodes of this region share no store")
                .hint("set `store.url` to the region's own Redis, or another store over a network"));
        }
        Ok(RegionSettings { name: region, homes, ask_within })
    }
}

fn homes(home: Homes) -> Result<Vec<HomeSettings>, Failure> {
    let mut homes: Vec<HomeSettings> = Vec::new();
    let by_domain: Vec<(Option<String>, HomeEntry)> = match home {
        Homes::All(home) => vec![(None, home)],
        Homes::ByDomain(domains) => domains.into_iter().map(|(domain, home)| (Some(domain), home)).collect(),
    };
    for (domain, home) in by_domain {
        let mut home = home.settings()?;
        home.domains.extend(domain);
        let is_same = |known: &&mut HomeSettings| {
            (&known.url, &known.tls, &known.sentinel) == (&home.url, &home.tls, &home.sentinel)
        };
        match homes.iter_mut().find(is_same) {
            Some(known) => known.domains.append(&mut home.domains),
            None => homes.push(home),
        }
    }
    Ok(homes)
}

impl HomeEntry {
    /// What it says, without the domains that it is for.
    fn settings(self) -> Result<HomeSettings, Failure> {
        let HomeStore { url, password, tls, sentinel } = match self {
            HomeEntry::Url(url) => {
                HomeStore { url, password: None, tls: Tls::default(), sentinel: Sentinel::default() }
            }
            HomeEntry::Store(store) => store,
        };
        let url = StoreUrl::read(&url, password.as_ref(), ("regions.home", "regions.home.password"))?;
        if url == StoreUrl::Memory {
            return Err(Failure::new("regions.home: memory is of this node alone")
                .hint("name a store that all regions reach, such as redis://host:port"));
        }
        Ok(HomeSettings { url, tls: tls.files(), sentinel: sentinel.credentials(), domains: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(yaml: &str, region: Option<&str>) -> Result<RegionSettings, String> {
        let regions: Regions = serde_saphyr::from_str(yaml).unwrap();
        let own = "redis://here".parse().unwrap();
        regions.settings(region.map(str::to_owned), &own).map_err(|failure| format!("{failure:?}"))
    }

    #[test]
    fn domains_with_one_store_share_a_home() {
        let yaml = "home: { api: 'redis://a', billing: 'redis://b', web: 'redis://a' }";
        let homes = settings(yaml, Some("eu-west")).unwrap().homes;
        let domains: Vec<&[String]> = homes.iter().map(|home| &home.domains[..]).collect();
        assert_eq!(domains, [&["api".to_owned(), "web".to_owned()][..], &["billing".to_owned()]]);
        let all = settings("home: redis://a", Some("eu-west")).unwrap().homes;
        assert_eq!((all.len(), all[0].domains.len()), (1, 0));
    }

    #[test]
    fn a_home_has_a_password_certificates_and_sentinels_of_its_own_or_none() {
        let url = "{ url: 'redis://app@a', password: hunter2, tls: { ca: home.pem }, sentinel: { user: s, password: t } }";
        for yaml in [
            format!("home: {url}"),
            format!("home: {{ api: {url}, web: {url}, billing: 'redis://app:x@a' }}"),
        ] {
            let homes = settings(&yaml, Some("eu-west")).unwrap().homes;
            let of_api = homes.iter().find(|home| home.tls.ca.is_some()).unwrap();
            let StoreUrl::Redis(url) = &of_api.url else { panic!("not redis") };
            assert_eq!(url.credentials.password.as_deref(), Some("hunter2"));
            assert_eq!(of_api.tls.ca.as_deref(), Some(Path::new("home.pem")));
            assert_eq!(of_api.sentinel.password.as_deref(), Some("t"));
            assert!(homes.iter().all(|home| home == of_api || home.sentinel == Credentials::default()));
        }
        let mut regions: Regions = serde_saphyr::from_str(&format!("home: {{ api: {url} }}")).unwrap();
        regions.resolve_against(Path::new("/etc/tidegate"));
        let homes = regions.settings(Some("r".to_owned()), &"redis://here".parse().unwrap()).unwrap().homes;
        assert_eq!(homes[0].tls.ca.as_deref(), Some(Path::new("/etc/tidegate/home.pem")));
    }

    #[test]
    fn a_home_needs_a_region_and_a_store_that_all_reach() {
        for (yaml, region, problem) in [
            ("home: redis://a", None, "no name"),
            ("home: 'memory:'", Some("eu-west"), "memory"),
            ("{ home: redis://a, ask_within: 5s }", Some("eu-west"), "ask_within"),
            ("{ home: redis://a, ask_within: 0s }", Some("eu-west"), "ask_within: it is zero"),
            ("home: ''", Some("eu-west"), "regions.home: the store has no kind"),
            ("home: { api: redis//a }", Some("eu-west"), "regions.home: cannot read the store's url"),
            ("home: 'postgres://'", Some("eu-west"), "regions.home: cannot read the store's url"),
            ("home: redis://a", Some(" "), "region: it is empty"),
            (
                "home: { url: 'redis://:other@a', password: hunter2 }",
                Some("eu-west"),
                "regions.home.password: the url has a password too",
            ),
        ] {
            let failure = settings(yaml, region).unwrap_err();
            assert!(failure.contains(problem), "{failure}");
        }
    }
}
