//! What a proxy is told: where requests go, how long everything may take, and how much of it there may be.

use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use tidegate_http::identity::Identity;

use super::balance::Ejection;
use super::body::Pace;
use super::route::Route;
use super::target::Target;
use super::tls::ClientTls;
use crate::connection::{HttpLimits, Requests};

/// How a proxy works.
#[derive(Debug)]
pub struct ProxySettings {
    /// Servers, in groups of which each can stand in for the others.
    pub upstreams: Vec<UpstreamSettings>,
    /// Where requests go: the first that fits.
    pub routes: Vec<Route>,
    /// Who a request is.
    pub identity: Arc<Identity>,
    /// Whose rules apply.
    pub domain: String,
    /// How long everything may take.
    pub timeouts: Timeouts,
    /// How much of everything there may be.
    pub limits: ProxyLimits,
}

impl ProxySettings {
    /// How fast a request's body has to come.
    pub(super) fn pace(&self) -> Pace {
        let Timeouts { idle, upload_grace, .. } = self.timeouts;
        Pace::new(idle, upload_grace, self.limits.min_upload_rate)
    }
}

/// A group of upstream servers.
#[derive(Clone, Debug)]
pub struct UpstreamSettings {
    /// For logs.
    pub name: String,
    /// At most [`MOST_TARGETS`](super::MOST_TARGETS).
    pub targets: Vec<Target>,
    /// For targets over TLS.
    pub tls: Option<ClientTls>,
    /// When a server that fails is left alone.
    pub ejection: Ejection,
    /// What is asked of each server now and then.
    pub check: Option<HealthCheck>,
}

/// A question that a healthy server answers with 2xx.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path to GET.
    pub path: String,
    /// How often.
    pub every: Duration,
    /// How long an answer may take.
    pub within: Duration,
}

/// How long everything may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until a connection to an upstream server is there, TLS included.
    pub connect: Duration,
    /// Until the upstream server's answer begins, once the request is with it.
    pub head: Duration,
    /// A pause in a body, in either direction.
    pub idle: Duration,
    /// How long a client may leave what there is of an answer untaken.
    pub stall: Duration,
    /// A silence in both directions of an upgraded connection.
    pub tunnel: Duration,
    /// How long an unused connection to an upstream server is kept.
    pub keep: Duration,
    /// How long a request's body may come as slowly as it likes.
    pub upload_grace: Duration,
    /// How long an upgraded connection may go on once the server stops.
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

/// How much of everything there may be.
#[derive(Clone, Copy, Debug)]
pub struct ProxyLimits {
    /// Heads and streams of clients. Its body is not looked at: bodies are streamed, within `max_body_bytes`.
    pub http: HttpLimits,
    /// The size of a request's body.
    pub max_body_bytes: u64,
    /// Bytes a second that a request's body has to bring after that, until its answer begins.
    pub min_upload_rate: NonZeroU64,
    /// Requests in flight, on all workers together.
    pub max_in_flight: NonZeroUsize,
}

impl Default for ProxyLimits {
    fn default() -> Self {
        Self {
            http: HttpLimits {
                head_timeout: Duration::from_secs(30),
                max_head_bytes: 32 * 1024,
                max_headers: 100,
                max_streams: 256,
                requests: Requests::Long,
                ..HttpLimits::default()
            },
            max_body_bytes: 1 << 30,
            min_upload_rate: NonZeroU64::new(500).expect("not zero"),
            max_in_flight: NonZeroUsize::new(10_000).expect("not zero"),
        }
    }
}
