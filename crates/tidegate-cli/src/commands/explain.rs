//! `tidegate explain`: which rules a request matches, the counters they keep for it, and why the others do not match.

use std::io::{self, Write as _};
use std::process::ExitCode;

use tidegate_rules::{Descriptor, RuleSet};
use tidegate_store::{Clock as _, SystemClock};

use crate::args::{ExplainArgs, Output};
use crate::commands::serve::flags::read_file;
use crate::failure::Failure;
use crate::rules::RuleFiles;
use crate::settings::{Settings, suggest};

pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode, Failure> {
    let (files, flags) = match &args.config {
        Some(config) => {
            let settings = Settings::of_file(config)?;
            (settings.rules, settings.flags.file)
        }
        None => {
            (RuleFiles { native: args.rules.clone(), envoy: args.envoy_config.clone(), xds: false }, None)
        }
    };
    let flags = flags.as_deref().map(read_file).transpose()?.unwrap_or_default();
    let rules = files.load()?.rules.with_flags(&flags);
    let entries: Vec<(&str, &[u8])> = args
        .attributes
        .iter()
        .map(|attribute| (attribute.key.as_str(), attribute.value.as_bytes()))
        .collect();
    let descriptor = Descriptor { entries: &entries };
    let explanation = rules.explain(&args.domain, &descriptor, SystemClock::new().now());
    let explanation = explanation.map_err(|_| unknown_domain(&args.domain, &rules))?;
    let mut out = io::stdout().lock();
    match args.output.output {
        Output::Text if args.all => write!(out, "{explanation}")?,
        Output::Text => {
            let (matching, others) = explanation.matching();
            write!(out, "{matching}")?;
            match others {
                0 => {}
                1 => writeln!(out, "1 other rule does not match: --all shows why")?,
                _ => writeln!(out, "{others} other rules do not match: --all shows why")?,
            }
        }
        Output::Json => {
            let json = serde_json::to_string_pretty(&explanation).expect("an explanation is plain data");
            writeln!(out, "{json}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn unknown_domain(domain: &str, rules: &RuleSet) -> Failure {
    let mut known: Vec<&str> = rules.domains().collect();
    known.sort_unstable();
    Failure::new(format!("no rule file has the domain `{domain}`")).hint(suggest(domain, &known))
}
