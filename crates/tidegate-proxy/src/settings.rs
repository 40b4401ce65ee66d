//! Settings of a proxy: routes, timeouts and bounds.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use tidegate_http::identity::Identity;

use crate::balance::Ejection;
use crate::body::Pace;
use crate::route::Route;
use crate::target::Target;
use crate::tls::ClientTls;
use tidegate_runtime::connection::{HttpLimits, Requests};

/// The settings of a proxy.
#[derive(Debug)]
pub struct ProxySettings {
    /// Groups of interchangeable servers.
    pub upstreams: Vec<UpstreamSettings>,
    /// The routes; the first match wins.
    pub routes: Vec<Route>,
    /// How requests are identified.
    pub identity: Arc<Identity>,
    /// The domain whose rules apply.
    pub domain: String,
    /// Timeouts.
    pub timeouts: Timeouts,
    /// Bounds.
    pub limits: ProxyLimits,
}

impl ProxySettings {
    /// The required speed of a request's body.
    pub(crate) fn pace(&self) -> Pace {
        let Timeouts { idle, upload_grace, .. } = self.timeouts;
        Pace::new(idle, upload_grace, self.limits.min_upload_rate)
    }
}

/// A group of upstream servers.
#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    /// For logs.
    pub name: String,
    /// At most [`MOST_TARGETS`](crate::MOST_TARGETS).
    pub targets: Vec<Target>,
    /// For targets over TLS.
    pub tls: Option<ClientTls>,
    /// When a failing server is ejected.
    pub ejection: Ejection,
    /// The active health check, if any.
    pub check: Option<HealthCheck>,
}

/// A request that a healthy server answers with 2xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path to GET.
    pub path: String,
    /// How often.
    pub every: Duration,
    /// How long an answer may take.
    pub within: Duration,
}

/// Timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To connect to an upstream server, including TLS.
    pub connect: Duration,
    /// For the upstream server's answer to begin, once the request is sent.
    pub head: Duration,
    /// For a pause in a body, in either direction.
    pub idle: Duration,
    /// For a client that does not read an answer.
    pub stall: Duration,
    /// For silence in both directions of an upgraded connection.
    pub tunnel: Duration,
    /// For an idle connection to an upstream server.
    pub keep: Duration,
    /// How long a request's body may be slower than `min_upload_rate`.
    pub upload_grace: Duration,
    /// For an upgraded connection once the server stops.
    pub goodbye: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            head: Duration::from_secs(60),
            idle: Duration::from_secs(60),
            stall: Duration::from_secs(5 * 60),
            tunnel: Duration::from_secs(60 * 60),
            keep: Duration::from_secs(30),
            upload_grace: Duration::from_secs(10),
            goodbye: Duration::from_secs(2),
        }
    }
}

/// Bounds.
#[derive(Clone, Copy, Debug)]
pub struct ProxyLimits {
    /// For clients' heads and streams. Its body limits do not apply: bodies are streamed, within `max_body_bytes`.
    pub http: HttpLimits,
    /// The size of a request's body.
    pub max_body_bytes: u64,
    /// Bytes per second that a request's body must average after `upload_grace`, until its answer begins.
    pub min_upload_rate: NonZeroU64,
    /// Requests in flight, over all workers.
    pub max_in_flight: NonZeroUsize,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            http: HttpLimits {
                head_timeout: Duration::from_secs(30),
                max_head_bytes: 32 * 1024,
                max_headers: 100,
                max_streams: 128,
                requests: Requests::Long,
                ..HttpLimits::default()
            },
            max_body_bytes: 1 << 30,
            min_upload_rate: NonZeroU64::new(500).expect("not zero"),
            max_in_flight: NonZeroUsize::new(10_000).expect("not zero"),
        }
    }
}
