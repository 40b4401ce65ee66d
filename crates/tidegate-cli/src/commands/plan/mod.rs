//! `tidegate plan`: the resources that a rule set needs for a number of users, from measurements.
//!
//! An upper bound on purpose: every request matches every rule, and every user has used its whole quota.

mod estimate;
mod model;
mod report;

use std::io;
use std::process::ExitCode;

use tidegate_rules::RuleSet;
use tidegate_store_redis::Topology;

use crate::args::PlanArgs;
use crate::failure::Failure;
use crate::rules::RuleFiles;
use crate::settings::{StoreUrl, suggest};

pub(crate) use estimate::store_cost;
use estimate::{Estimate, Inputs};
pub(crate) use model::Model;
use report::PlanReport;

/// Where the counters live, if the command says so.
#[derive(Debug)]
struct Home {
    /// The store's name, for programs.
    name: String,
    /// What it takes; none of memory.
    model: Option<Model>,
    /// The number of deciding servers, if the URL tells.
    servers: Option<u64>,
    /// What to do where these are too few.
    instead: &'static str,
}

pub(crate) fn run(args: &PlanArgs) -> Result<ExitCode, Failure> {
    let files = RuleFiles { native: args.rules.clone(), envoy: args.envoy_config.clone(), xds: false };
    let rules = files.load()?.rules;
    let home = args.store.as_deref().map(Home::read).transpose()?;
    check_names(args, &rules)?;
    let model = home.as_ref().and_then(|home| home.model).unwrap_or_default();
    let inputs = Inputs::new(args, model);
    let estimate = Estimate::new(&rules, &inputs);
    let report = PlanReport { inputs: &inputs, estimate: &estimate, home: home.as_ref() };
    report.write(&mut io::stdout().lock(), args.output.output)?;
    Ok(ExitCode::SUCCESS)
}

impl Home {
    fn read(url: &str) -> Result<Self, Failure> {
        let url: StoreUrl = url.parse().map_err(|failure: Failure| failure.of_field("--store"))?;
        let model = Model::of(&url);
        let (name, servers, instead) = match &url {
            StoreUrl::Redis(url) => {
                let servers = url.endpoints.len() as u64;
                let servers = match url.topology {
                    Topology::Single | Topology::Sentinel { .. } => Some(1),
                    Topology::Sharded => Some(servers),
                    // A URL names only some members, perhaps including replicas.
                    _ => None,
                };
                let instead = match url.topology {
                    Topology::Sharded => "name more of them",
                    _ => "use redis+cluster:// or redis+sharded://",
                };
                (url.topology.scheme(), servers, instead)
            }
            StoreUrl::Shared(address) => {
                let servers = address.kind().costs.is_spread.then(|| address.hosts().len() as u64);
                (url.kind(), servers, "name more of them")
            }
            StoreUrl::Memory => (url.kind(), None, ""),
        };
        Ok(Home { name: name.to_owned(), model, servers, instead })
    }
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
