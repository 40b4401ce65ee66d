//! `tidegate plan`, as typed.

use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;

use super::OutputArgs;

/// Estimate what a rule set needs for a number of users: memory, calls per second, nodes of the store
///
/// From what was measured (docs/operate/sizing.md shows the tables), and from assumptions that it prints and that
/// flags change. It connects to nothing.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  tidegate plan --users 1000000 --rules rules/\n  \
    tidegate plan --users 1000000 --rules rules/ --store redis+cluster://r1:6379,r2:6379,r3:6379 --rate 80000\n  \
    tidegate plan --users 50000 --rules api.yaml --store postgres://limits@db/app\n  \
    tidegate plan --users 50000 --rules api.yaml --keys per-tenant=300 --output json")]
pub(crate) struct PlanArgs {
    /// Users that are active at once: each has its own counters in every rule that has a key
    #[arg(long, value_name = "N")]
    pub(crate) users: NonZeroU64,
    /// Rule file, or a directory of them; may be given several times
    #[arg(long, value_name = "PATH", required_unless_present = "envoy_config")]
    pub(crate) rules: Vec<PathBuf>,
    /// Configuration directory of envoyproxy/ratelimit, read as it is
    #[arg(long, value_name = "DIR")]
    pub(crate) envoy_config: Option<PathBuf>,
    /// Where the counters shall live; `memory:`, or the URL of a store, as `store.url` names one. Servers of Redis and Memcached
    /// are counted
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// Requests per second, all users together [default: one per user every ten seconds]
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    pub(crate) rate: Option<f64>,
    /// How many different keys a rule sees, where that is not one per user; may be given several times
    #[arg(long, value_name = "RULE=N")]
    pub(crate) keys: Vec<RuleKeys>,
    /// Memory of a node of the store (Redis, Memcached)
    #[arg(long, value_name = "SIZE", default_value = "8GiB")]
    pub(crate) node_memory: Bytes,
    /// How much of a node's memory to use
    #[arg(long, value_name = "PERCENT", default_value_t = 60, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) memory_use: u8,
    /// How much of a node's core to use (Redis runs scripts on one)
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) cpu_use: u8,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

/// How many different keys one rule sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RuleKeys {
    pub(crate) rule: String,
    pub(crate) keys: u64,
}

impl FromStr for RuleKeys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected RULE=N, such as per-tenant=300, not `{text}`");
        let (rule, keys) = text.rsplit_once('=').ok_or_else(expected)?;
        let keys = keys.parse().map_err(|_| expected())?;
        Ok(RuleKeys { rule: rule.to_owned(), keys })
    }
}

/// An amount of memory, as `512MiB` or `8GB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

const UNITS: [(&str, u64); 7] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("expected an amount with its unit, such as 512MiB or 8GB, not `{text}`");
        let unit = UNITS.iter().find_map(|(unit, bytes)| Some((text.strip_suffix(unit)?, bytes)));
        let (count, unit) = unit.ok_or_else(expected)?;
        let count: u64 = count.trim().parse().map_err(|_| expected())?;
        match count.checked_mul(*unit) {
            Some(bytes) if bytes > 0 => Ok(Bytes(bytes)),
            _ => Err(expected()),
        }
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(rate),
        _ => Err("expected requests per second, more than none, such as 20000".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_has_a_unit() {
        assert_eq!("8GiB".parse(), Ok(Bytes(8 << 30)));
        assert_eq!("500 MB".parse(), Ok(Bytes(500_000_000)));
        for wrong in ["8", "GiB", "0GiB", "-1GiB", "99999999999999TiB", "1.5GiB"] {
            assert!(wrong.parse::<Bytes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_name_of_a_rule_may_hold_an_equals_sign() {
        assert_eq!("a=b=3".parse(), Ok(RuleKeys { rule: "a=b".to_owned(), keys: 3 }));
        assert!("a".parse::<RuleKeys>().is_err());
        assert!("a=many".parse::<RuleKeys>().is_err());
    }
}
