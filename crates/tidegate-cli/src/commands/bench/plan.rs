//! The validated plan of a benchmark, with defaults for everything the flags left open.

use std::net::SocketAddr;
use std::time::Duration;

use crate::args::{BenchArgs, Pace, Protocol, Throttle};
use crate::endpoint::Endpoint;
use crate::failure::Failure;

/// The longest run; longer ones are a job for monitoring.
const LONGEST_RUN: Duration = Duration::from_secs(3600);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The most requests in flight that are useful for a client with one address.
const MOST_IN_FLIGHT: u64 = 65_536;

/// A benchmark, ready to run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) protocol: Protocol,
    pub(super) endpoint: Endpoint,
    pub(super) address: SocketAddr,
    pub(super) pace: Pace,
    pub(super) warm_up: Duration,
    pub(super) duration: Duration,
    pub(super) connections: u32,
    pub(super) in_flight: u32,
    pub(super) keys: u32,
    pub(super) domain: String,
    pub(super) attribute: String,
    pub(super) throttle: Throttle,
    pub(super) cost: u32,
    pub(super) timeout: Duration,
    pub(super) threads: u32,
}

impl Plan {
    pub(super) fn new(args: &BenchArgs) -> Result<Plan, Failure> {
        let endpoint: Endpoint = args.address.as_deref().unwrap_or(default_address(args.protocol)).parse()?;
        let plan = Plan {
            protocol: args.protocol,
            address: endpoint.resolve()?,
            endpoint,
            pace: args.rate,
            warm_up: args.warm_up,
            duration: args.duration,
            connections: args.connections,
            in_flight: args.in_flight.unwrap_or(default_in_flight(args.protocol)),
            keys: args.keys,
            domain: args.domain.clone(),
            attribute: args.attribute.clone(),
            throttle: args.throttle,
            cost: args.cost,
            timeout: args.timeout,
            threads: args.threads.min(args.connections),
        };
        plan.check_bounds()?;
        Ok(plan)
    }

    fn check_bounds(&self) -> Result<(), Failure> {
        if self.duration.is_zero() {
            return Err(Failure::new("--duration must be longer than nothing").hint("try --duration 10s"));
        }
        if self.warm_up + self.duration > LONGEST_RUN {
            return Err(Failure::new("--warm-up and --duration together must not exceed 1h"));
        }
        if self.timeout.is_zero() || self.timeout > LONGEST_TIMEOUT {
            return Err(Failure::new("--timeout must be more than 0s and at most 60s"));
        }
        if self.protocol == Protocol::Http && self.in_flight > 1 {
            return Err(Failure::new("HTTP/1.1 carries one request at a time on a connection")
                .hint("use more --connections, or --protocol grpc or resp"));
        }
        if u64::from(self.connections) * u64::from(self.in_flight) > MOST_IN_FLIGHT {
            return Err(Failure::new(format!(
                "--connections times --in-flight must not exceed {MOST_IN_FLIGHT}"
            )));
        }
        Ok(())
    }
}

fn default_address(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Http => "127.0.0.1:8080",
        Protocol::Grpc => "127.0.0.1:8081",
        Protocol::Resp => "127.0.0.1:6380",
    }
}

fn default_in_flight(protocol: Protocol) -> u32 {
    match protocol {
        Protocol::Http => 1,
        Protocol::Grpc | Protocol::Resp => 16,
    }
}
