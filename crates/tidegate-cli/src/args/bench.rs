//! The flags of `bench`, with bounds so that a typo does not take the machine down.

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};

use super::{OutputArgs, parse_duration};

/// Offer load to a running server and measure how long its answers take
///
/// By default an open loop: requests are due at fixed times, whether or not earlier ones were answered, and latency
/// counts from the moment a request was *due*. A server that stalls is therefore charged for every request that had to
/// wait, not only for the one it stalled on. `--rate closed` sends the next request when the last one is answered,
/// which finds the highest throughput but flatters latency.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate bench --rate 5000 --duration 30s\n  \
    tidegate bench --protocol grpc --rate closed --connections 4 --in-flight 16 --keys 100000\n  \
    tidegate bench --protocol resp --rate closed --in-flight 64 --throttle 15/30/60\n  \
    tidegate bench --address http://10.0.0.5:8080 --domain api --attribute user --output json")]
pub(crate) struct BenchArgs {
    /// What to speak
    #[arg(long, value_name = "PROTOCOL", default_value = "http")]
    pub(crate) protocol: Protocol,
    /// HOST:PORT or http://HOST:PORT [default: the server's default address for the protocol]
    #[arg(long, value_name = "ADDR")]
    pub(crate) address: Option<String>,
    /// Requests per second over all connections, or `closed`
    #[arg(long, value_name = "N", default_value = "1000")]
    pub(crate) rate: Pace,
    /// How long to measure
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub(crate) duration: Duration,
    /// How long to run before measuring
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    pub(crate) warm_up: Duration,
    /// Connections to open
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Requests in flight on each connection, for resp: sent in one go [default: 16 for grpc and resp, 1 for http,
    /// which can carry no more]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) in_flight: Option<u32>,
    /// Distinct callers, drawn at random
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) keys: u32,
    /// For resp: the limit that each command states, as MAX_BURST/COUNT/PERIOD with the period in seconds
    #[arg(long, value_name = "LIMIT", default_value = "1000000/1000000/60")]
    pub(crate) throttle: Throttle,
    /// The domain to ask in
    #[arg(long, value_name = "DOMAIN", default_value = "api")]
    pub(crate) domain: String,
    /// The attribute (for grpc: the descriptor key) that names the caller
    #[arg(long, value_name = "NAME", default_value = "user")]
    pub(crate) attribute: String,
    /// How much each request spends; 0 looks without spending
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) cost: u32,
    /// How long to wait for one answer before it counts as an error
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = parse_duration)]
    pub(crate) timeout: Duration,
    /// Client threads; one is enough for about 100,000 requests/s
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub(crate) threads: u32,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Protocol {
    /// POST /v1/check over HTTP/1.1
    Http,
    /// Envoy's rate limit service over gRPC
    Grpc,
    /// CL.THROTTLE over the Redis protocol
    Resp,
}

/// The limit in a `CL.THROTTLE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Throttle {
    pub(crate) max_burst: u64,
    pub(crate) count: u64,
    pub(crate) period: u64,
}

impl FromStr for Throttle {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u64>, _> = text.split('/').map(str::parse).collect();
        match numbers.as_deref() {
            Ok([max_burst, count, period]) if *count > 0 && *period > 0 => {
                Ok(Throttle { max_burst: *max_burst, count: *count, period: *period })
            }
            _ => Err("expected MAX_BURST/COUNT/PERIOD, such as 15/30/60".to_owned()),
        }
    }
}

/// When requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pace {
    /// At fixed times, this many per second.
    Open { per_second: f64 },
    /// When the previous one is answered.
    Closed,
}

impl FromStr for Pace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "closed" || text == "0" {
            return Ok(Pace::Closed);
        }
        match text.parse::<f64>() {
            Ok(per_second) if (0.001..=10_000_000.0).contains(&per_second) => Ok(Pace::Open { per_second }),
            _ => Err("expected requests per second, from 0.001 to 10000000, or `closed`".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttle_is_three_numbers() {
        assert_eq!("15/30/60".parse(), Ok(Throttle { max_burst: 15, count: 30, period: 60 }));
        for bad in ["", "15", "15/30", "15/0/60", "15/30/0", "a/b/c", "1/2/3/4", "-1/2/3"] {
            assert!(bad.parse::<Throttle>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_rate_is_a_bounded_number_or_closed() {
        assert_eq!("closed".parse(), Ok(Pace::Closed));
        assert_eq!("0".parse(), Ok(Pace::Closed));
        assert_eq!("2500".parse(), Ok(Pace::Open { per_second: 2500.0 }));
        for bad in ["-1", "nan", "inf", "1e12", "fast", ""] {
            assert!(bad.parse::<Pace>().is_err(), "{bad}");
        }
    }
}
