//! `tidegate serve`: assembles the parts, and shuts them down in order.
//!
//! The data plane has its own threads. This thread runs the control plane: signals, reloads, sweeps, metrics.

mod alert_watcher;
mod announce;
mod backend;
mod busy;
mod check;
mod control_plane;
mod control_thread;
mod data_plane;
mod decisions;
pub(crate) mod flags;
mod fleet_seal;
mod jwks;
mod lender;
mod log_observer;
mod notify;
mod open_files;
mod open_listeners;
mod outgoing;
mod region_names;
mod regions;
mod registry;
mod reloader;
mod rule_parts;
mod secrets;
mod signals;
mod store_fleet;
mod xds;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidegate_access::{Offers, TokenSource};
use tidegate_admin::{Admin, DecisionLogMetrics, EventCounts, RuleSource};
use tidegate_limiter::{Limiter, LimiterConfig};
use tidegate_metrics::{Metrics, RefusedLogins};
use tidegate_runtime::DataPlane;
use tidegate_store::{Clock, SystemClock};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tonic_health::ServingStatus;

use crate::args::ServeArgs;
use crate::commands::import_env;
use crate::failure::Failure;
use crate::reload::Watch;
use crate::repeats::Repeats;
use crate::rules::LoadedRules;
use crate::settings::{Settings, StoreSettings, shows_a_password};
use crate::unread::Surfaces;
use crate::{clock, logging};
use alert_watcher::AlertWatcher;
pub(crate) use announce::reachable;
use backend::Backend;
use busy::BusyRatio;
use control_plane::ControlParts;
pub(crate) use control_plane::log_in_link;
use control_thread::ControlThread;
use data_plane::Running;
use flags::FlagFollower;
use fleet_seal::Seal;
use lender::QuotaLender;
use log_observer::LogObserver;
use notify::Supervisor;
use outgoing::Outgoing;
use region_names::{NameWarnings, RegionNames};
use reloader::Reloader;
use rule_parts::RuleParts;
use secrets::Reloads;
use signals::{Hangups, StopSignals};
use store_fleet::StoreFleet;

pub(crate) use check::check;

/// How often the workers' busy time is read.
const LOOK_AT_WORKERS: Duration = Duration::from_secs(1);

/// How long the store has to accept debts and this node's leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// The longest wait for the last decisions to be written.
const DECISIONS_WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// How to pass a password out of sight.
const PASSWORD_ELSEWHERE: &str =
    "leave it out, and name a file that holds it with TIDEGATE_STORE__PASSWORD_FILE";

pub(crate) fn run(args: &ServeArgs) -> Result<ExitCode, Failure> {
    let environment: Vec<_> = std::env::vars_os().collect();
    let settings = Settings::gather(args, environment.iter().cloned())?;
    let repeats = logging::start(&settings.log_filter, settings.log_format);
    if args.store.as_deref().is_some_and(shows_a_password) {
        tracing::warn!("--store holds a password, which `ps` shows to everybody here: {PASSWORD_ELSEWHERE}");
    }
    warn_of_envoys_variables(import_env::ignored(environment.into_iter()));
    let (metrics, thread) = (Arc::new(Metrics::new()), ControlThread::default());
    let control = thread.runtime(metrics.clone()).map_err(cannot_start)?;
    let ended = control.block_on(serve(settings, repeats, metrics, thread, &login_command(args)));
    // After a second signal, do not wait for a drain in progress.
    control.shutdown_background();
    ended
}

/// What makes a sign-in link in this server's own database, typed where it was started.
fn login_command(args: &ServeArgs) -> String {
    let config = args.config.iter().map(|file| format!(" --config {}", file.display()));
    let data = args.data.iter().map(|folder| format!(" --data {}", folder.display()));
    config.chain(data).fold("tidegate login".to_owned(), |command, flag| command + &flag)
}

async fn serve(
    settings: Settings,
    repeats: Repeats,
    metrics: Arc<Metrics>,
    thread: ControlThread,
    login: &str,
) -> Result<ExitCode, Failure> {
    let mut stop = StopSignals::install().map_err(cannot_start)?;
    let mut hangups = Hangups::install().map_err(cannot_start)?;
    let supervisor = Supervisor::find();
    // In this order, so that a change of a file between the two is noticed.
    let watch = Watch::new(settings.rules.paths());
    let from_files = settings.control.source != RuleSource::Database;
    // Mistakes in files are found before anything is created on disk.
    let files = from_files.then(|| settings.rules.load()).transpose()?;
    check(&settings, files.as_ref())?;
    let database = control_plane::open(&settings).await?;
    let begin_with = match files {
        Some(files) => files,
        None => control_plane::first_rules(&settings, database.is_some())?,
    };
    let surfaces = Surfaces::of(&settings);
    begin_with.rules.warnings().into_iter().for_each(reloader::log_each);
    // The starter rules themselves say that callers must send the attributes they count by.
    if !settings.rules.is_starter() {
        reloader::log_unread(surfaces.unread(&begin_with.rules), &begin_with.files);
    }
    let backend = Backend::open(&settings, &metrics)?;
    if settings.store.required {
        backend.check(&settings.store.url).await?;
    }
    let log = decisions::keep(&settings, &metrics, &backend).await?;
    let event_counts = Arc::<EventCounts>::default();
    let outgoing = Outgoing::new(&settings.telemetry.check()?, settings.control.node.clone(), &metrics)?;
    let observer = Arc::new(LogObserver::new(metrics.clone()).with_spans(outgoing.spans.clone()));
    let mut config = LimiterConfig::new(begin_with.rules, backend.store(), observer.clone());
    config.remote = backend.remote(&settings.store);
    let homes = regions::open(&settings, &metrics)?;
    let (homes, configs): (Vec<Backend>, Vec<_>) =
        homes.into_iter().map(|home| (home.backend, home.config)).unzip();
    config.homes = configs;
    config.lease_secret = settings.store.lease_secret.as_ref().map(|secret| secret.bytes().into());
    let limiter = Arc::new(Limiter::new(config));
    metrics.began_with(&limiter.snapshot());
    let busy = Arc::new(BusyRatio::default());
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let seal = settings.store.fleet_secret.as_ref().map(|secret| Seal::new(secret.bytes()));
    warn_of_open_store(&settings.store);
    let fleet = backend.fleet().map(|store| StoreFleet::new(store, clock.clone(), seal));
    let admin_tokens = settings.admin_tokens.load("admin.tokens")?;
    let region_names = NameWarnings::default();
    let parts = ControlParts {
        limiter: &limiter,
        metrics: &metrics,
        decisions: log.as_ref(),
        event_counts: &event_counts,
        database: database.as_ref(),
        backend: &backend,
        busy: &busy,
        fleet: fleet.as_ref(),
        admin_tokens: admin_tokens.as_ref(),
        clock: &clock,
        region_names: &region_names,
    };
    let control = control_plane::control(&settings, &parts);
    let files = begin_with.files.len();
    let parts = RuleParts::new(control.clone(), begin_with.files.clone());
    control.rules().began_with(begin_with.files);
    if !control.start().await && limiter.snapshot().rules().rules().len() == 0 {
        tracing::error!("no rules: neither the database nor another node has any yet");
    }

    let mut background = JoinSet::new();
    let flags = match settings.flags.check()? {
        Some(source) => Some(FlagFollower::start(source, control.clone()).await),
        None => None,
    };
    if flags.is_none() && !limiter.snapshot().rules().followed_flags().is_empty() {
        tracing::warn!(
            "rules follow feature flags, and `flags` names no source of them: their defaults hold"
        );
    }

    let xds = match &settings.xds {
        Some(section) => Some(xds::XdsFollower::start(section, parts.clone(), &mut background).await?),
        None => None,
    };
    let running = data_plane::start(&settings, &backend, &limiter, &observer)?;
    let Running {
        plane,
        health,
        limiters,
        shedder,
        identities,
        access,
        logins,
        stopping,
        mut reloads,
        upstreams,
        quotas,
    } = running;
    let admin = bind_admin(&settings, admin_tokens, &mut reloads)?;
    let is_same = |starter: LoadedRules| limiter.snapshot().rules().changes_since(&starter.rules).is_empty();
    let is_starter = settings.rules.is_starter() && settings.rules.load().is_ok_and(is_same);
    control.show_addresses(plane.addresses().to_vec());
    announce_all(&plane, admin.as_ref(), is_starter);
    if let (Some(admin), Some(database)) = (&admin, &database) {
        control_plane::announce_link(database, &settings, (admin.address(), login), &mut io::stdout()).await;
    }
    let store = settings.store.url.to_string();
    tracing::info!(store, rules = limiter.snapshot().rules().rules().len(), files, "serving");

    // The name by which envoyproxy/ratelimit's health is asked.
    health.set_service_status("ratelimit", ServingStatus::Serving).await;
    let (stop_admin, admin_stops) = oneshot::channel::<()>();
    let mut registry = registry::gather(&metrics, &backend, &plane, limiters, &busy);
    if let Some(shedder) = shedder {
        registry = registry.with(move || shedder.stats());
    }
    if let Some(log) = log.clone() {
        registry = registry.with(move || DecisionLogMetrics(log.stats()));
    }
    registry = registry.with(move || event_counts.clone()).with(move || {
        let tokens = access.as_ref().map(|access| ("http_grpc", access.refused()));
        let logins = logins.as_ref().map(|logins| ("resp", logins.refused()));
        RefusedLogins(tokens.into_iter().chain(logins).collect())
    });
    let started_us = clock.now().as_micros();
    let quota_lender = QuotaLender::new(quotas.clone(), &backend, &settings.control.node, started_us);
    if settings.grpc.is_some() {
        registry = registry.with(move || registry::quotas(&quotas));
        background.spawn(quota_lender.clone().keep());
    }
    if let Some(flags) = &flags {
        registry = registry.with(flags.metrics(limiter.clone()));
    }
    if let Some(xds) = xds {
        registry = registry.with(move || xds.counts());
    }
    registry = registry::with_surroundings(registry, upstreams, reloads.tls.clone(), repeats.clone());
    let one_in = settings.decision_log.as_ref().and_then(|log| log.admissions_one_in).unwrap_or(1);
    let alert_watcher = settings.alerts.check()?.map(|alerts| {
        AlertWatcher::new(&alerts, &settings.control.node, &backend, control.clone(), one_in, clock)
    });
    let registry = outgoing.start(registry, alert_watcher, &mut background);
    background.spawn(repeats.tell());
    background.spawn(reloads.run(hangups.reader()));
    let serving_control = control.clone();
    let serving_admin = tokio::spawn(async move {
        if let Some(admin) = admin {
            let stopped = async { drop(admin_stops.await) };
            admin.serve_with(registry, serving_control, stopped).await.expect("the listener is ours");
        }
    });
    identities.into_iter().for_each(|identity| drop(background.spawn(jwks::keep_fresh(identity))));
    let region = (settings.regions.name.as_deref(), settings.control.node.as_str());
    let names = RegionNames::new(region, limiter.member(), (&backend, &homes[..]), region_names);
    names.into_iter().for_each(|names| drop(background.spawn(names.keep())));
    background.spawn(backend.keep());
    homes.into_iter().for_each(|home| drop(background.spawn(home.keep())));
    background.spawn(limiter.maintain());
    let leaving = limiter.clone();
    background.spawn(control.clone().maintain());
    flags.into_iter().for_each(|flags| drop(background.spawn(flags.run())));
    fleet.into_iter().for_each(|fleet| drop(background.spawn(fleet.listen())));
    if from_files && (settings.xds.is_none() || settings.rules.paths().next().is_some()) {
        let reloader = Reloader::new(settings.rules, surfaces, watch, limiter, parts);
        background.spawn(reloader.run(hangups.reader()));
    }
    background.spawn(hangups.pass_on(supervisor.clone()));
    let watchdog = supervisor.watch(plane.pulse()).map_err(cannot_start)?;
    supervisor.ready();
    thread.serves();

    let signal = tokio::select! {
        signal = stop.next() => signal,
        () = watch_workers(&plane, &busy) => unreachable!("it watches for as long as the server runs"),
    };
    let began = clock::now();
    // Workers end with their connections, which is no reason for an alarm.
    drop(watchdog);
    supervisor.stopping();
    for service in ["", "ratelimit"] {
        health.set_service_status(service, ServingStatus::NotServing).await;
    }
    stopping.store(true, Ordering::Relaxed);
    // The delay is for load balancers; a person at the keyboard should not wait.
    let delay = if signal == signals::INTERRUPT { Duration::ZERO } else { settings.drain.delay };
    tracing::info!(signal, ?delay, "stopping: no longer ready, then requests in flight may finish");
    let finish = async {
        tokio::time::sleep(delay).await;
        drain(plane).await;
        // Last, so that the drain can be observed.
        drop(stop_admin);
        let _ = serving_admin.await;
        // A node that takes leave is not reported as lost; if the store does not answer, its entry expires.
        let _ = tokio::time::timeout(LEAVE_WITHIN, leaving.shutdown()).await;
        let _ = tokio::time::timeout(LEAVE_WITHIN, quota_lender.leave()).await;
        // Stop the database's followers before the database: they would report its end as a failure.
        background.shutdown().await;
        if log.as_ref().is_some_and(|log| !log.flush(DECISIONS_WRITTEN_WITHIN)) {
            tracing::warn!("the last decisions could not be written to the decision log");
        }
        if let Some(database) = database {
            database.close().await;
        }
        tracing::info!(took = ?began.elapsed(), "stopped");
    };
    tokio::select! {
        () = finish => {}
        signal = stop.next() => tracing::warn!(signal, "stopped at once"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Says which variables of envoyproxy/ratelimit are not read, so that nobody believes that they take effect.
fn warn_of_envoys_variables(names: Vec<String>) {
    if !names.is_empty() {
        tracing::warn!(
            variables = names.join(" "),
            hint =
                "`env | tidegate import envoy-env /dev/stdin` prints a configuration with the same meaning",
            "variables of envoyproxy/ratelimit are not read"
        );
    }
}

/// Says that whoever can write to a store elsewhere controls this fleet.
fn warn_of_open_store(store: &StoreSettings) {
    if store.fleet_secret.is_none() && store.url.is_beyond_loopback() {
        tracing::warn!(
            "`store.fleet_secret` is not set: whoever can write to the store of this fleet can replace its rules and bans; \
             give all nodes the same secret, those with the database first"
        );
    }
}

/// Opens the admin listener, if enabled.
fn bind_admin(
    settings: &Settings,
    tokens: Option<Arc<TokenSource>>,
    reloads: &mut Reloads,
) -> Result<Option<Admin>, Failure> {
    let Some(address) = settings.admin else { return Ok(None) };
    let admin = Admin::bind(address)
        .map_err(|error| data_plane::cannot_bind("admin", error.address, &error.source))?;
    let tls = reloads.load("admin", settings.tls.admin.as_ref(), Offers::Http1)?;
    reloads.tokens.extend(tokens.clone());
    if tls.is_none() && !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            "the admin listener is in the clear beyond this machine: tokens and sessions can be read on the way; set \
             `tls.admin`, or listen on 127.0.0.1 behind a proxy with TLS"
        );
    }
    Ok(Some(admin.with_tls(tls).with_tokens(tokens).with_hosts(settings.control.hosts.clone())))
}

/// Lets requests in flight finish.
async fn drain(plane: DataPlane) {
    let drained = tokio::task::spawn_blocking(move || plane.drain()).await.expect("a drain does not panic");
    if drained.cut > 0 {
        tracing::warn!(
            connections = drained.cut,
            "connections were cut: they took longer than `drain.timeout` allows"
        );
    }
}

/// Reads the workers' busy time at intervals, until dropped.
async fn watch_workers(plane: &DataPlane, busy: &BusyRatio) {
    let mut ticks = tokio::time::interval(LOOK_AT_WORKERS);
    loop {
        ticks.tick().await;
        busy.look(&plane.busy(), clock::now());
    }
}

/// A closed stdout is no reason to stop.
fn announce_all(plane: &DataPlane, admin: Option<&Admin>, is_starter: bool) {
    let mut listeners = plane.addresses().to_vec();
    let http = listeners.iter().find(|(name, _)| *name == "http").map(|(_, address)| *address);
    listeners.extend(admin.map(|admin| ("admin", admin.address())));
    let mut out = io::stdout().lock();
    let _ = announce::listeners(&mut out, &listeners);
    if is_starter {
        let _ = announce::starter(&mut out, http);
    }
}

fn cannot_start(error: io::Error) -> Failure {
    Failure::new(format!("the system refuses what a server needs: {error}"))
}
