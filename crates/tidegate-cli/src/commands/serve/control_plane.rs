//! The control plane of this node: where its rules are stored, who may change them, and the connection to the other nodes.
//!
//! A node whose database server is unavailable, or that has no database yet and cannot make one, serves anyway: with the rules
//! of the other nodes, or those that it was given.

use std::io::{self, IsTerminal as _, Write};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tidegate_access::TokenSource;
use tidegate_admin::{Alone, ControlConfig, ControlPlane, DecisionLog, EventCounts, Fleet, RuleSource};
use tidegate_limiter::Limiter;
use tidegate_metrics::Metrics;
use tidegate_rules::{RuleSet, Source, Timestamp};
use tidegate_rulestore::{Actor, DatabaseUrl, DocumentSet, Error, Grant, Kind, Publication, Role, RuleStore};
use tidegate_store::{Clock, SystemClock};
use tidegate_store_redis::KEY_LAYOUT;

use super::announce::reachable;
use super::backend::Backend;
use super::busy::BusyRatio;
use super::region_names::NameWarnings;
use super::store_fleet::StoreFleet;
use crate::commands::plan::{Model, store_cost};
use crate::failure::Failure;
use crate::rules::{LoadedRules, STARTER};
use crate::settings::{DatabaseChoice, Settings, StoreUrl};

/// How long a sign-in link works.
const LINK_LASTS: Duration = Duration::from_secs(600);

/// Opens the configured database; `None` if this node has none, or there is none in the default place and it cannot be made.
///
/// A file that is there, and cannot be used, stops the node: starting with other rules than those in it, and without its
/// bans, would be worse. A server may come back, so the node starts and follows the others until then.
pub(super) async fn open(settings: &Settings) -> Result<Option<RuleStore>, Failure> {
    let (url, asked_for) = match &settings.control.database {
        DatabaseChoice::None => return Ok(None),
        DatabaseChoice::At(url) => (url.clone(), true),
        DatabaseChoice::Embedded => (DatabaseUrl::embedded(&settings.control.data), false),
    };
    let store = match RuleStore::open(&url) {
        Ok(store) => store,
        Err(error) if !asked_for && url.is_absent() => return Ok(without(&url, &error)),
        Err(error) => return Err(cannot_use(&url, &error)),
    };
    match store.migrate().await {
        Ok(()) => {}
        Err(error) if !asked_for && url.is_absent() && !matches!(error, Error::Damaged { .. }) => {
            return Ok(without(&url, &error));
        }
        Err(error @ Error::Unavailable { .. }) if url.kind() == Kind::Postgres => {
            tracing::warn!(database = %url, "{}; rules and keys cannot be changed until it does", with_cause(&error));
            return Ok(Some(store));
        }
        Err(error) => return Err(cannot_use(&url, &error)),
    }
    if store.is_open_to_others() {
        tracing::warn!(database = %url, "its file belongs to another user and may be read by others than its owner");
    }
    if settings.control.source == RuleSource::Database {
        fill(&store).await.map_err(|error| cannot_use(&url, &error))?;
    }
    Ok(Some(store))
}

fn cannot_use(url: &DatabaseUrl, error: &Error) -> Failure {
    let failure = Failure::new(format!("cannot use the database {url}: {}", with_cause(error)));
    match error {
        Error::NewerSchema { .. } => failure.hint(
            "start the newer release, or name another database; with `admin.database: none` this release follows the \
             nodes that share its store",
        ),
        Error::Damaged { .. } => {
            failure.hint("restore it from a backup, or move it away to begin with the starter rules")
        }
        Error::Unusable { .. } => failure.hint(
            "end the program that holds it, or let this user read and write it; `admin.database: none` starts without \
             its rules, bans and tokens",
        ),
        _ => failure,
    }
}

fn without(url: &DatabaseUrl, error: &Error) -> Option<RuleStore> {
    tracing::warn!(
        database = %url,
        "cannot use the embedded database: {}; rules and keys cannot be changed here",
        with_cause(error)
    );
    None
}

fn with_cause(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

/// Publishes the starter rules to a database that never had any.
async fn fill(store: &RuleStore) -> Result<(), Error> {
    if store.head().await?.version > 0 {
        return Ok(());
    }
    let starter = [Source::new("starter rules", STARTER)];
    let documents = DocumentSet::split(&starter).expect("the starter rules have a domain");
    let by = Actor { name: "tidegate".to_owned(), role: Role::Admin };
    let publication = Publication {
        on: 0,
        documents: &documents,
        by: &by,
        at: SystemClock::new().now(),
        reason: "the starter rules",
        action: "publish",
    };
    // If another node was first, its rules are there now.
    match store.publish(&publication).await {
        Err(tidegate_rulestore::PublishError::Store(error)) => Err(error),
        _ => Ok(()),
    }
}

/// The rules that a node starts with if it has none from files: those of the database, or of the other nodes, are taken into
/// use before it serves. If neither is available, the starter rules are better than none.
pub(super) fn first_rules(settings: &Settings, has_database: bool) -> Result<LoadedRules, Failure> {
    let follows_others =
        settings.control.database == DatabaseChoice::None && settings.store.url != StoreUrl::Memory;
    match has_database || follows_others {
        true => Ok(LoadedRules { rules: RuleSet::default(), files: Vec::new() }),
        false => Ok(settings.rules.load()?),
    }
}

/// The parts of the control plane.
pub(super) struct ControlParts<'p> {
    pub(super) limiter: &'p Arc<Limiter>,
    pub(super) metrics: &'p Arc<Metrics>,
    pub(super) decisions: Option<&'p Arc<DecisionLog>>,
    pub(super) event_counts: &'p Arc<EventCounts>,
    pub(super) database: Option<&'p RuleStore>,
    pub(super) backend: &'p Backend,
    pub(super) busy: &'p Arc<BusyRatio>,
    pub(super) fleet: Option<&'p Arc<StoreFleet>>,
    pub(super) admin_tokens: Option<&'p Arc<TokenSource>>,
    pub(super) clock: &'p Arc<dyn Clock>,
    pub(super) region_names: &'p NameWarnings,
}

pub(super) fn control(settings: &Settings, parts: &ControlParts<'_>) -> Arc<ControlPlane> {
    let (backend, busy) = (parts.backend.clone(), parts.busy.clone());
    let (shards, names) = (parts.backend.clone(), parts.region_names.clone());
    let model = Model::of(&settings.store.url);
    let fleet: Arc<dyn Fleet> = match parts.fleet {
        Some(fleet) => fleet.clone(),
        None => Arc::new(Alone::default()),
    };
    ControlPlane::new(ControlConfig {
        limiter: parts.limiter.clone(),
        metrics: parts.metrics.clone(),
        decisions: parts.decisions.cloned(),
        event_counts: parts.event_counts.clone(),
        store: parts.database.cloned(),
        source: settings.control.source.clone(),
        fleet,
        clock: parts.clock.clone(),
        tokens: Vec::new(),
        admin_tokens: parts.admin_tokens.cloned(),
        environment: settings.control.environment.clone(),
        node: settings.control.node.clone(),
        layout: KEY_LAYOUT.to_owned(),
        region: settings.regions.name.clone(),
        usage: Arc::new(move || backend.usage()),
        apart: Arc::new(move || {
            let of = |shards: String| {
                format!("some nodes use the shards {shards}: they do not count together with this one")
            };
            let names = names.read().unwrap_or_else(PoisonError::into_inner);
            shards.other_shards().into_iter().map(of).chain(names.iter().cloned()).collect()
        }),
        busy: Arc::new(move || busy.ratio()),
        store_kind: settings.store.url.kind(),
        // Memory of its own costs calls to nobody.
        store_cost: Arc::new(move |rules| model.map(|model| store_cost(rules, model))),
    })
}

/// Prints one sign-in link, if nobody has signed in yet and the listener is on loopback. What is no terminal may be a log that
/// others read: there, only `login`, which makes one.
pub(super) async fn announce_link(
    database: &RuleStore,
    settings: &Settings,
    (admin, login): (SocketAddr, &str),
    out: &mut impl Write,
) {
    let scheme = if settings.tls.admin.is_some() { "https" } else { "http" };
    let server = format!("{scheme}://{}", reachable(admin));
    let now = SystemClock::new().now();
    let unclaimed = settings.admin_tokens.is_empty() && database.is_unclaimed().await.unwrap_or(false);
    let told = match unclaimed && admin.ip().is_loopback() && io::stdout().is_terminal() {
        true => log_in_link(database, &server, now).await.map(|link| {
            format!("\nDashboard, for the first sign-in (works once, for 10 minutes):\n\n  {link}\n\n")
        }),
        false => Ok(format!("\nDashboard: {server}/\nSign-in link: {login}\n")),
    };
    // A closed stdout is no reason to stop.
    if let Ok(told) = told {
        let _ = out.write_all(told.as_bytes()).and_then(|()| out.flush());
    }
}

/// Makes a sign-in link to `server`, such as `http://127.0.0.1:8082`, in place of the last one. The code is in the fragment
/// after `#`: browsers do not send that, so no log or proxy sees it.
pub(crate) async fn log_in_link(database: &RuleStore, server: &str, now: Timestamp) -> Result<String, Error> {
    let made = database.make_link(&Grant::of_operator(Grant::OPERATORS_LINK), LINK_LASTS, now).await?;
    let (_, code) = made.expect("what comes from nothing is always made");
    Ok(format!("{server}/#/login?code={}", code.reveal()))
}
