//! Merges flags, environment, file and defaults into the settings of `serve`.
//!
//! Field by field, a flag wins over the environment, which wins over the file, which wins over the default. Nothing here
//! opens a socket or reads a rule.

mod config;
mod control;
mod decision_log;
mod diagnose;
pub(crate) mod env;
pub(crate) mod flags;
pub(crate) mod listeners;
pub(crate) mod proxy;
mod regions;
pub(crate) mod rls;
mod shedding;
mod store;
pub(crate) mod telemetry;
mod values;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use tidegate_admin::DecisionLogConfig;
use tidegate_http::identity::IdentityConfig;
use tidegate_limiter::ShedderConfig;

use crate::args::ServeArgs;
use crate::failure::Failure;
use crate::rules::RuleFiles;
pub(crate) use config::{Config, Limits};
pub(crate) use control::{ControlSettings, DatabaseChoice};
pub(crate) use diagnose::suggest;
use flags::Flags;
use listeners::{ListenerTls, Tokens};
use proxy::Proxy;
pub(crate) use regions::{HomeSettings, RegionSettings};
pub(crate) use store::{SharedSecret, StoreSettings, StoreUrl, shows_a_password};
use telemetry::{Alerts, Telemetry};
pub(crate) use values::{Count, Span};
pub(crate) use values::{HeaderSet, LogFilter, LogFormat, ResetForm, RlsHeaders};
use values::{ListenAddr, Switch};

const DEFAULT_HTTP: &str = "127.0.0.1:8080";
const DEFAULT_GRPC: &str = "127.0.0.1:8081";
const DEFAULT_RESP: &str = "127.0.0.1:6380";
const DEFAULT_ADMIN: &str = "127.0.0.1:8082";
const DEFAULT_LOG: &str = "info";

/// The settings of the server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) http: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    pub(crate) resp: Option<SocketAddr>,
    pub(crate) resp_section: config::Resp,
    pub(crate) admin: Option<SocketAddr>,
    pub(crate) tls: ListenerTls,
    /// The accepted tokens of HTTP and gRPC, and of the admin listener.
    pub(crate) access: Tokens,
    pub(crate) admin_tokens: Tokens,
    pub(crate) store: StoreSettings,
    pub(crate) regions: RegionSettings,
    pub(crate) rules: RuleFiles,
    pub(crate) control: ControlSettings,
    pub(crate) headers: Vec<HeaderSet>,
    pub(crate) x_reset: ResetForm,
    pub(crate) partition_secret: Option<SharedSecret>,
    pub(crate) rls_headers: RlsHeaders,
    pub(crate) rls_header_names: Option<rls::HeaderNames>,
    pub(crate) rls_metadata: bool,
    pub(crate) limitador_api: bool,
    pub(crate) xds: Option<rls::Xds>,
    pub(crate) identity: IdentityConfig,
    pub(crate) proxy: Option<Proxy>,
    pub(crate) shedding: Option<ShedderConfig>,
    pub(crate) decision_log: Option<DecisionLogConfig>,
    pub(crate) limits: Limits,
    pub(crate) workers: Option<NonZeroUsize>,
    pub(crate) drain: DrainTimes,
    pub(crate) log_filter: LogFilter,
    pub(crate) log_format: LogFormat,
    pub(crate) flags: Flags,
    pub(crate) telemetry: Telemetry,
    pub(crate) alerts: Alerts,
}

/// How the server stops; `None` is the part's own default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainTimes {
    pub(crate) delay: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) tunnels: Option<Duration>,
}

/// Long enough for a load balancer that polls every second, and for Kubernetes to propagate it; with the drain timeout less
/// than the 30 s after which Kubernetes kills.
const DEFAULT_DRAIN_DELAY: Duration = Duration::from_secs(3);

/// Rejects two drafts at once: their headers have the same names.
fn check_headers(sets: &[HeaderSet]) -> Result<(), Failure> {
    let is_next = |set: &HeaderSet| *set == HeaderSet::IetfNext;
    let is_published = |set: &HeaderSet| matches!(set, HeaderSet::Ietf | HeaderSet::Ietf11);
    if sets.iter().any(is_next) && sets.iter().any(is_published) {
        return Err(
            Failure::new("`headers` has two drafts of the same headers").hint("keep ietf-11 or ietf-next")
        );
    }
    Ok(())
}

impl Settings {
    /// Merges all sources.
    pub(crate) fn gather(
        args: &ServeArgs,
        environment: impl Iterator<Item = (OsString, OsString)> + Clone,
    ) -> Result<Settings, Failure> {
        let named_by_env =
            || environment.clone().find(|(name, _)| name == env::CONFIG).map(|(_, path)| path.into());
        let file: Option<PathBuf> = args.config.clone().or_else(named_by_env);
        let file = file.map(|path| Config::read(&path)).transpose()?.unwrap_or_default();
        Settings::decide(flags(args)?.or(env::read(environment)?).or(file))
    }

    /// The settings of a file alone.
    pub(crate) fn of_file(path: &Path) -> Result<Settings, Failure> {
        Settings::decide(Config::read(path)?)
    }

    fn decide(config: Config) -> Result<Settings, Failure> {
        let control = ControlSettings::decide(&config)?;
        let Config {
            listen,
            store,
            region,
            regions,
            rules,
            headers,
            x_ratelimit,
            ietf,
            rls,
            limitador,
            resp,
            tls,
            access,
            admin,
            data: _,
            identity,
            proxy,
            shedding,
            decision_log,
            limits,
            workers,
            drain,
            log,
            flags,
            telemetry,
            alerts,
        } = config;
        let http = resolve("http", listen.http, DEFAULT_HTTP)?;
        let grpc = resolve("grpc", listen.grpc, DEFAULT_GRPC)?;
        let resp_address = resolve("resp", listen.resp, DEFAULT_RESP)?;
        let admin_address = resolve("admin", listen.admin, DEFAULT_ADMIN)?;
        listeners::check_admin(admin_address, tls.admin.as_ref(), &admin.who())?;
        listeners::resp_users(resp.password.as_ref(), resp.users.as_deref().unwrap_or_default())?;
        let identity = identity.unwrap_or_default();
        proxy::check_identity("", &identity)?;
        proxy.iter().try_for_each(Proxy::check)?;
        telemetry.check()?;
        alerts.check()?;
        flags.check()?;
        if http.is_none() && grpc.is_none() && resp_address.is_none() && proxy.is_none() {
            return Err(Failure::new("there is nothing to serve: http, grpc and resp are all off")
                .hint("leave one of them on, for example with --http 127.0.0.1:8080"));
        }
        let rules_of = RuleFiles {
            native: rules.paths.unwrap_or_default(),
            envoy: rules.envoy_config,
            xds: rls.xds.is_some(),
        };
        rls::check(&rls)?;
        check_headers(headers.as_deref().unwrap_or_default())?;
        let store = StoreSettings::decide(store)?;
        Ok(Settings {
            regions: regions.settings(region, &store.url)?,
            http,
            grpc,
            resp: resp_address,
            resp_section: resp,
            admin: admin_address,
            tls,
            access,
            admin_tokens: admin.who(),
            store,
            control,
            rules: rules_of,
            headers: headers.unwrap_or_else(|| vec![HeaderSet::XRateLimit, HeaderSet::Ietf]),
            x_reset: x_ratelimit.reset.unwrap_or(ResetForm::Unix),
            partition_secret: SharedSecret::read("ietf.partition_secret", ietf.partition_secret)?,
            rls_headers: rls.response_headers.unwrap_or(RlsHeaders::None),
            rls_header_names: rls.header_names,
            rls_metadata: rls.dynamic_metadata.is_some_and(|Switch(on)| on),
            limitador_api: limitador.http_api.is_some_and(|Switch(on)| on),
            xds: rls.xds,
            identity,
            proxy,
            shedding: shedding.map(|section| section.settings()).transpose()?,
            decision_log: decision_log.map(|section| section.settings()).transpose()?,
            limits,
            workers: workers.map(|Count(workers)| workers),
            drain: DrainTimes {
                delay: drain.delay.map_or(DEFAULT_DRAIN_DELAY, |Span(delay)| delay),
                timeout: drain.timeout.map(|Span(timeout)| timeout),
                tunnels: drain.tunnels.map(|Span(tunnels)| tunnels),
            },
            log_filter: log.level.unwrap_or_else(|| DEFAULT_LOG.parse().expect("the default is valid")),
            log_format: log.format.unwrap_or(LogFormat::Text),
            flags,
            telemetry,
            alerts,
        })
    }
}

fn resolve(name: &str, address: Option<ListenAddr>, default: &str) -> Result<Option<SocketAddr>, Failure> {
    let address = address.unwrap_or_else(|| default.parse().expect("the default is valid"));
    address.resolve().map_err(|why| Failure::new(format!("cannot listen for {name}: {why}")))
}

/// The flags in the shape that all sources share.
fn flags(args: &ServeArgs) -> Result<Config, Failure> {
    let mut config = Config::default();
    config.listen.http = flag("--http", args.http.as_deref())?;
    config.listen.grpc = flag("--grpc", args.grpc.as_deref())?;
    config.listen.resp = flag("--resp", args.resp.as_deref())?;
    config.listen.admin = flag("--admin", args.admin.as_deref())?;
    config.store.url = flag("--store", args.store.as_deref())?;
    config.rules.paths = (!args.rules.is_empty()).then(|| args.rules.clone());
    config.rules.envoy_config.clone_from(&args.envoy_config);
    config.data.clone_from(&args.data);
    config.log.level = flag("--log-level", args.log_level.as_deref())?;
    config.log.format = flag("--log-format", args.log_format.as_deref())?;
    Ok(config)
}

fn flag<T: FromStr<Err = String>>(name: &str, text: Option<&str>) -> Result<Option<T>, Failure> {
    let parsed = text.map(str::parse::<T>).transpose();
    parsed.map_err(|why| match why.split_once('\n') {
        Some((message, hint)) => Failure::new(format!("{name}: {message}")).hint(hint),
        None => Failure::new(format!("{name}: {why}")),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn http_of(flag: Option<&str>, variable: Option<&str>, file: Option<&str>) -> Option<SocketAddr> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate.yaml");
        let text = file.map(|http| format!("listen: {{ http: '{http}' }}")).unwrap_or_default();
        fs::write(&path, text).unwrap();
        let args = ServeArgs { config: Some(path), http: flag.map(str::to_owned), ..ServeArgs::default() };
        let environment = variable.map(|http| ("TIDEGATE_LISTEN__HTTP".into(), OsString::from(http)));
        Settings::gather(&args, environment.into_iter()).unwrap().http
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
        let port = |flag, variable, file| http_of(flag, variable, file).unwrap().port();
        let (flag, variable, file) = (Some("127.0.0.1:1"), Some("127.0.0.1:2"), Some("127.0.0.1:3"));
        assert_eq!(port(flag, variable, file), 1);
        assert_eq!(port(None, variable, file), 2);
        assert_eq!(port(None, None, file), 3);
        assert_eq!(port(None, None, None), 8080);
    }

    #[test]
    fn a_listener_can_be_switched_off() {
        assert_eq!(http_of(Some("off"), None, Some("127.0.0.1:3")), None);
    }

    #[test]
    fn a_server_with_nothing_to_serve_is_refused() {
        let off = || Some("off".to_owned());
        let args = ServeArgs { http: off(), grpc: off(), resp: off(), ..ServeArgs::default() };
        assert!(Settings::gather(&args, std::iter::empty()).is_err());
    }

    #[test]
    fn the_environment_can_name_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tidegate.yaml");
        fs::write(&path, "workers: 3").unwrap();
        let environment = [(OsString::from(env::CONFIG), path.into_os_string())];
        let settings = Settings::gather(&ServeArgs::default(), environment.into_iter()).unwrap();
        assert_eq!(settings.workers, NonZeroUsize::new(3));
    }
}
