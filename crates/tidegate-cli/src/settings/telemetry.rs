//! Exports of the server: the sections `telemetry` and `alerts`.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use http::header::{HeaderName, HeaderValue};
use schemars::JsonSchema;
use serde::Deserialize;
use tidegate_telemetry::alerts::{Payload, Receiver, Thresholds};
use tidegate_telemetry::otlp::Ratio;
use tidegate_telemetry::statsd::Lines;
use tidegate_telemetry::{Endpoint, EndpointError, Plaintext};

use super::values::{ListenAddr, Secret, Span, Switch};
use crate::failure::Failure;

/// Metrics and traces, sent to other programs: nowhere by default
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Telemetry {
    /// StatsD or DogStatsD, under the names of envoyproxy/ratelimit
    pub(crate) statsd: Option<Statsd>,
    /// OpenTelemetry, over HTTP in protobuf
    pub(crate) otlp: Option<Otlp>,
    /// CloudWatch's embedded metric format, as lines on stdout: none by default
    pub(crate) emf: Option<EmfTo>,
    /// Interval of these lines: 60s by default
    pub(crate) emf_every: Option<Span>,
    /// CloudWatch's namespace for them: `tidegate` by default
    pub(crate) emf_namespace: Option<String>,
}

/// Where CloudWatch's lines go
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EmfTo {
    /// To stdout
    Stdout,
}

/// StatsD or DogStatsD, over UDP
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Statsd {
    /// The receiver, as host:port
    pub(crate) address: ListenAddr,
    /// Interval: 10s by default
    pub(crate) every: Option<Span>,
    /// The prefix of every name, with a dot after it: none by default
    pub(crate) prefix: Option<String>,
    /// DogStatsD's tags, each as name:value: none by default, for plain StatsD
    #[serde(default)]
    pub(crate) tags: Vec<String>,
    /// Whether plaintext may leave the machine: false by default
    pub(crate) plaintext: Option<Switch>,
}

/// OpenTelemetry's protocol
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Otlp {
    /// The receiver: https://host:4318, to which /v1/metrics and /v1/traces are added
    pub(crate) endpoint: Secret,
    /// PEM file with the authorities to trust: the machine's by default
    pub(crate) ca: Option<PathBuf>,
    /// Whether plaintext may leave the machine: false by default
    pub(crate) plaintext: Option<Switch>,
    /// Further headers of every request, such as a token
    #[serde(default)]
    pub(crate) headers: BTreeMap<String, Secret>,
    /// How often metrics are sent: 15s by default
    pub(crate) metrics_every: Option<Span>,
    /// The part of sampled traces that is sent, 0 to 1: 1 by default. A request belongs to one where its caller sent a
    /// `traceparent` that says so
    pub(crate) traces: Option<f64>,
    /// The service's name: tidegate by default
    pub(crate) service: Option<String>,
}

/// Alerts, in the log and the admin API, and sent to a webhook if one is set
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Alerts {
    /// Whether alerts are on: true by default
    pub(crate) enabled: Option<Switch>,
    /// Where alerts are sent
    pub(crate) webhook: Option<Webhook>,
    /// The dashboard's address, for links: none by default
    pub(crate) dashboard: Option<String>,
    /// p99 of the store above which it is slow: 5ms by default
    pub(crate) store_p99: Option<Span>,
    /// The part of its memory above which the store is nearly full: 0.85 by default
    pub(crate) store_memory: Option<f64>,
    /// How many days before its end a certificate raises an alert: 14 by default
    pub(crate) certificate_days: Option<u64>,
    /// The part of its requests that enforcing a shadow rule would refuse: 0.05 by default
    pub(crate) shadow_refusals: Option<f64>,
}

/// Where alerts are sent
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Webhook {
    /// https://host/path: it may hold a token
    pub(crate) url: Secret,
    /// The secret that signs bodies (HMAC-SHA256 in X-Tidegate-Signature): none by default
    pub(crate) secret: Option<Secret>,
    /// `json`, the default, `cloudevents` or `slack`
    pub(crate) format: Option<PayloadFormat>,
    /// PEM file with the authorities to trust: the machine's by default
    pub(crate) ca: Option<PathBuf>,
    /// Whether plaintext may leave the machine: false by default
    pub(crate) plaintext: Option<Switch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum PayloadFormat {
    /// For programs
    Json,
    /// The same as a CloudEvent, in structured mode
    CloudEvents,
    /// For Slack and services with the same format
    Slack,
}

/// The validated section `telemetry`.
#[derive(Clone, Debug, Default)]
pub(crate) struct TelemetrySettings {
    pub(crate) statsd: Option<StatsdSettings>,
    pub(crate) otlp: Option<OtlpSettings>,
    pub(crate) emf: Option<EmfSettings>,
}

#[derive(Clone, Debug)]
pub(crate) struct EmfSettings {
    pub(crate) every: Duration,
    pub(crate) namespace: String,
}

#[derive(Clone, Debug)]
pub(crate) struct StatsdSettings {
    pub(crate) to: SocketAddr,
    pub(crate) every: Duration,
    pub(crate) lines: Lines,
}

#[derive(Clone, Debug)]
pub(crate) struct OtlpSettings {
    pub(crate) endpoint: Endpoint,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) metrics_every: Duration,
    pub(crate) traces: Ratio,
    pub(crate) service: String,
}

/// The validated section `alerts`.
#[derive(Clone, Debug)]
pub(crate) struct AlertSettings {
    pub(crate) receiver: Option<Receiver>,
    pub(crate) dashboard: String,
    pub(crate) thresholds: Thresholds,
}

impl Telemetry {
    pub(crate) fn resolve_against(&mut self, directory: &Path) {
        self.otlp
            .iter_mut()
            .filter_map(|otlp| otlp.ca.as_mut())
            .for_each(|path| *path = directory.join(&*path));
    }

    pub(crate) fn check(&self) -> Result<TelemetrySettings, Failure> {
        let statsd = self.statsd.as_ref().map(Statsd::check).transpose()?;
        let otlp = self.otlp.as_ref().map(Otlp::check).transpose()?;
        let emf = self.emf.map(|EmfTo::Stdout| self.check_emf()).transpose()?;
        Ok(TelemetrySettings { statsd, otlp, emf })
    }

    fn check_emf(&self) -> Result<EmfSettings, Failure> {
        let namespace = self.emf_namespace.clone().unwrap_or_else(|| "tidegate".to_owned());
        let is_allowed = |one: char| one.is_ascii_alphanumeric() || ".-_/#: ".contains(one);
        if namespace.trim().is_empty()
            || namespace.len() > 255
            || !namespace.chars().all(is_allowed)
            || namespace.starts_with(':')
        {
            return Err(Failure::new("telemetry.emf_namespace: CloudWatch takes no such namespace")
                .hint("letters, digits and . - _ / # : up to 255 of them, such as Company/tidegate"));
        }
        let every = often("telemetry.emf_every", self.emf_every, Duration::from_secs(60))?;
        Ok(EmfSettings { every, namespace })
    }
}

impl Statsd {
    fn check(&self) -> Result<StatsdSettings, Failure> {
        let bad = |why: String| Failure::new(format!("telemetry.statsd.address: {why}"));
        let to =
            self.address.resolve().map_err(bad)?.ok_or_else(|| {
                bad("`off` is no receiver".to_owned()).hint("leave the section `statsd` out")
            })?;
        if !to.ip().is_loopback() && self.plaintext != Some(Switch(true)) {
            return Err(bad(format!("{to} is not on this machine, and StatsD is never encrypted"))
                .hint("send to an agent on this machine, or say `plaintext: true`"));
        }
        if to.port() == 0 {
            return Err(
                bad("nobody listens on the port 0".to_owned()).hint("127.0.0.1:8125 is the usual one")
            );
        }
        if let Some(tag) = self.tags.iter().find(|tag| !tag.contains(':') || tag.contains(['|', ',', '\n'])) {
            return Err(Failure::new(format!("telemetry.statsd.tags: `{tag}` is no tag"))
                .hint("write each as name:value"));
        }
        let mut prefix = self.prefix.clone().unwrap_or_default();
        if prefix.contains(|one: char| matches!(one, ':' | '|' | '@' | '#' | ',') || one.is_whitespace()) {
            return Err(Failure::new("telemetry.statsd.prefix: a name has no such characters")
                .hint("letters, digits, dots, hyphens and underscores: edge.eu"));
        }
        if !prefix.is_empty() && !prefix.ends_with('.') {
            prefix.push('.');
        }
        let every = often("telemetry.statsd.every", self.every, Duration::from_secs(10))?;
        Ok(StatsdSettings { to, every, lines: Lines { prefix, tags: self.tags.clone() } })
    }
}

/// The shortest interval: more often is not worth the work.
const MIN_EVERY: Duration = Duration::from_millis(200);
/// The longest interval: less often, nobody would notice a failure.
const MAX_EVERY: Duration = Duration::from_secs(3_600);

pub(super) fn often(field: &str, given: Option<Span>, usual: Duration) -> Result<Duration, Failure> {
    match given {
        Some(Span(every)) if every > MAX_EVERY => {
            Err(Failure::new(format!("{field}: it is at most 1h")).hint("leave it out for the usual one"))
        }
        given => Ok(given.map_or(usual, |Span(every)| every.max(MIN_EVERY))),
    }
}

impl Otlp {
    fn check(&self) -> Result<OtlpSettings, Failure> {
        let endpoint =
            endpoint("telemetry.otlp.endpoint", &self.endpoint, self.ca.as_deref(), self.plaintext)?;
        if self.endpoint.reveal().contains(['?', '#']) {
            return Err(Failure::new("telemetry.otlp.endpoint: it has a query, and paths are added to it")
                .hint("write https://host:4318; a token belongs into `headers`"));
        }
        let headers = header_list("telemetry.otlp.headers", &self.headers)?;
        let traces = self.traces.map_or(Some(Ratio::ALL), Ratio::of).ok_or_else(|| {
            Failure::new("telemetry.otlp.traces: it is a part, from 0 to 1")
                .hint("write 0.1 for one trace in ten")
        })?;
        Ok(OtlpSettings {
            endpoint,
            headers,
            metrics_every: often(
                "telemetry.otlp.metrics_every",
                self.metrics_every,
                Duration::from_secs(15),
            )?,
            traces,
            service: self.service.clone().unwrap_or_else(|| "tidegate".to_owned()),
        })
    }
}

impl Alerts {
    pub(crate) fn resolve_against(&mut self, directory: &Path) {
        self.webhook
            .iter_mut()
            .filter_map(|hook| hook.ca.as_mut())
            .for_each(|path| *path = directory.join(&*path));
    }

    /// `None` if they are switched off.
    pub(crate) fn check(&self) -> Result<Option<AlertSettings>, Failure> {
        if self.enabled == Some(Switch(false)) {
            return Ok(None);
        }
        let receiver = self.webhook.as_ref().map(Webhook::check).transpose()?;
        let dashboard = self.dashboard.clone().unwrap_or_default();
        if !dashboard.is_empty() && !dashboard.starts_with("https://") && !dashboard.starts_with("http://") {
            return Err(Failure::new("alerts.dashboard: it is no address that a browser opens")
                .hint("write it as https://gate.example"));
        }
        let default = Thresholds::default();
        let part = |name: &str, given: Option<f64>, default: f64| match given {
            Some(part) if !(0.0..=1.0).contains(&part) => {
                Err(Failure::new(format!("alerts.{name}: it is a part, from 0 to 1")))
            }
            given => Ok(given.unwrap_or(default)),
        };
        let thresholds = Thresholds {
            store_p99_us: self.store_p99.map_or(default.store_p99_us, |Span(span)| span.as_micros() as f64),
            store_memory: part("store_memory", self.store_memory, default.store_memory)?,
            shadow_refusals: part("shadow_refusals", self.shadow_refusals, default.shadow_refusals)?,
            certificate_days: self.certificate_days.unwrap_or(default.certificate_days),
            ..default
        };
        Ok(Some(AlertSettings { receiver, dashboard, thresholds }))
    }
}

impl Webhook {
    fn check(&self) -> Result<Receiver, Failure> {
        if self.secret.as_ref().is_some_and(|secret| secret.reveal().is_empty()) {
            return Err(Failure::new("alerts.webhook.secret: it is empty, so anybody could sign with it")
                .hint("take 32 random bytes, for instance of `openssl rand -hex 32`"));
        }
        Ok(Receiver {
            endpoint: endpoint("alerts.webhook.url", &self.url, self.ca.as_deref(), self.plaintext)?,
            secret: self.secret.as_ref().map(|secret| secret.reveal().as_bytes().into()),
            payload: match self.format {
                Some(PayloadFormat::Slack) => Payload::Slack,
                Some(PayloadFormat::CloudEvents) => Payload::CloudEvents,
                Some(PayloadFormat::Json) | None => Payload::Json,
            },
        })
    }
}

/// Headers to send, as `field` names them.
pub(super) fn header_list(
    field: &str,
    headers: &BTreeMap<String, Secret>,
) -> Result<Vec<(HeaderName, HeaderValue)>, Failure> {
    let read = |(name, value): (&String, &Secret)| {
        let bad = || Failure::new(format!("{field}: `{name}` cannot be sent"));
        let header = HeaderName::from_str(name).map_err(|_| bad())?;
        Ok((header, HeaderValue::from_str(value.reveal()).map_err(|_| bad())?))
    };
    headers.iter().map(read).collect()
}

/// The address itself is not shown: a webhook's may be its only secret.
pub(super) fn endpoint(
    field: &str,
    url: &Secret,
    ca: Option<&Path>,
    plaintext: Option<Switch>,
) -> Result<Endpoint, Failure> {
    let plaintext = if plaintext == Some(Switch(true)) { Plaintext::Anywhere } else { Plaintext::Loopback };
    Endpoint::new(url.reveal(), ca, plaintext).map_err(|EndpointError { problem, hint }| {
        let problem = problem.replace(url.reveal(), "the address");
        Failure::new(format!("{field}: {problem}")).hint(hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(result: Result<impl Sized, Failure>) -> String {
        result.map(|_| String::new()).unwrap_or_else(|failure| format!("{failure:?}"))
    }

    #[test]
    fn a_mistake_names_its_field_and_never_shows_an_address() {
        let alerts = |text: &str| serde_saphyr::from_str::<Alerts>(text).unwrap();
        let shown = failure(alerts("webhook: { url: 'http://hooks.example/T0KEN' }").check());
        assert!(shown.contains("alerts.webhook.url") && shown.contains("plaintext"), "{shown}");
        assert!(!shown.contains("T0KEN"), "{shown}");
        assert!(failure(alerts("store_memory: 85").check()).contains("alerts.store_memory"));
        assert!(alerts("enabled: false").check().unwrap().is_none());
    }

    #[test]
    fn what_would_be_sent_nowhere_or_never_or_broken_stops_the_server() {
        let alerts = |text: &str| failure(serde_saphyr::from_str::<Alerts>(text).unwrap().check());
        let telemetry = |text: &str| failure(serde_saphyr::from_str::<Telemetry>(text).unwrap().check());
        let statsd = |more: &str| telemetry(&format!("statsd: {{ address: '127.0.0.1:8125', {more} }}"));
        for (told, field) in [
            (alerts("webhook: { url: 'https://h:99999/x' }"), "alerts.webhook.url"),
            (alerts("webhook: { url: 'https://h/x', secret: '' }"), "alerts.webhook.secret"),
            (alerts("dashboard: gate.example"), "alerts.dashboard"),
            (alerts("dashboard: 'javascript:alert(1)'"), "alerts.dashboard"),
            (telemetry("statsd: { address: '127.0.0.1:0' }"), "telemetry.statsd.address"),
            (statsd("prefix: 'a b|c'"), "telemetry.statsd.prefix"),
            (statsd("every: 100000d"), "telemetry.statsd.every"),
            (telemetry("otlp: { endpoint: 'https://c', metrics_every: 2h }"), "telemetry.otlp.metrics_every"),
            (telemetry("otlp: { endpoint: 'https://c/?token=x' }"), "telemetry.otlp.endpoint"),
        ] {
            assert!(told.contains(field), "{field}: {told}");
        }
        assert_eq!(statsd("every: 200ms, prefix: edge.eu-1"), "");
        assert_eq!(alerts("dashboard: 'https://gate.example'"), "");
    }

    #[test]
    fn statsd_stays_on_this_machine_unless_told_otherwise() {
        let statsd = |text: &str| serde_saphyr::from_str::<Telemetry>(text).unwrap().check();
        assert!(statsd("statsd: { address: '127.0.0.1:8125' }").is_ok());
        assert!(failure(statsd("statsd: { address: '192.0.2.1:8125' }")).contains("plaintext: true"));
        assert!(statsd("statsd: { address: '192.0.2.1:8125', plaintext: true }").is_ok());
        assert!(
            failure(statsd("statsd: { address: '127.0.0.1:8125', tags: [a] }")).contains("`a` is no tag")
        );
        assert!(
            failure(statsd("otlp: { endpoint: 'https://c', traces: 2 }")).contains("telemetry.otlp.traces")
        );
    }
}
