//! `tidegate plan`: the resources that a rule set needs for a number of users, from measurements.
//!
//! An upper bound on purpose: every request matches every rule, and every user has used its whole quota.

mod estimate;
mod report;

use std::io;
use std::process::ExitCode;

use tidegate_rules::RuleSet;
use tidegate_store_redis::{StoreUrl, Topology};

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::rules::RuleFiles;
use crate::settings::suggest;

pub(crate) use estimate::store_cost;
use estimate::{Estimate, Inputs};
use report::PlanReport;

/// Where the counters live.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Home {
    Memory,
    /// On Redis, with the number of deciding servers if the URL tells.
    Redis(Topology, Option<u64>),
}

pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode, Failure> {
    let files = RuleFiles { native: args.rules.clone(), envoy: args.envoy_config.clone(), xds: false };
    let rules = files.load()?.rules;
    let home = args.store.as_deref().map(home).transpose()?;
    check_names(args, &rules)?;
    let inputs = Inputs::new(args, home.as_ref());
    let estimate = Estimate::new(&rules, &inputs);
    let report = PlanReport { inputs: &inputs, estimate: &estimate, home: home.as_ref() };
    report.write(&mut io::stdout().lock(), args.output.output)?;
    Ok(ExitCode::SUCCESS)
}

fn home(url: &str) -> Result<Home, Failure> {
    if url == "memory:" {
        return Ok(Home::Memory);
    }
    if ["postgres://", "postgresql://", "memcached://", "dynamodb://"]
        .iter()
        .any(|start| url.starts_with(start))
    {
        return Err(Failure::new("--store: plan knows how memory and Redis grow, and not yet how this store does").hint(
            "leave out --store for the number of keys; docs/operate/stores.md says what a key and a decision take there, and \
             `cargo xtask bench stores` measures them on your machine",
        ));
    }
    let url: StoreUrl = url.parse().map_err(|error| {
        Failure::new(format!("--store: {error}")).hint(
            "use memory:, redis://host:port, or redis+cluster, redis+sentinel or redis+sharded with several",
        )
    })?;
    let servers = url.endpoints.len() as u64;
    let deciding = match url.topology {
        Topology::Single | Topology::Sentinel { .. } => Some(1),
        Topology::Sharded => Some(servers),
        // A URL names only some members, perhaps including replicas.
        _ => None,
    };
    Ok(Home::Redis(url.topology, deciding))
}

/// A name without a rule would be a number without effect.
fn check_names(args: &PlanArgs, rules: &RuleSet) -> Result<(), Failure> {
    let known: Vec<&str> = rules.rules().map(|rule| rule.name()).collect();
    match args.keys.iter().find(|keys| !known.contains(&keys.rule.as_str())) {
        None => Ok(()),
        Some(keys) => Err(Failure::new(format!("--keys: there is no rule `{}`", keys.rule))
            .hint(suggest(&keys.rule, &known))),
    }
}
