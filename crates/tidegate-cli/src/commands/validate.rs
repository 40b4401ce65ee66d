//! `tidegate validate`: whether `serve` would take these rules, and if not, every reason why.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde_json::json;
use tidegate_rules::Colour;

use crate::args::{Output, ValidateArgs};
use crate::failure::Failure;
use crate::rules::{LoadedRules, RuleFiles, RulesError};
use crate::settings::Settings;

pub(crate) fn run(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let files = match &args.config {
        Some(config) => Settings::of_file(config)?.rules,
        None => RuleFiles { native: args.paths.clone(), envoy: args.envoy_config.clone() },
    };
    match (files.load(), args.output.output) {
        (Ok(loaded), output) => {
            write_good(&loaded, output)?;
            Ok(ExitCode::SUCCESS)
        }
        (Err(RulesError::Invalid(found)), Output::Json) => {
            writeln!(io::stdout().lock(), "{:#}", json!({ "valid": false, "diagnostics": found }))?;
            Ok(ExitCode::FAILURE)
        }
        (Err(error), _) => Err(error.into()),
    }
}

fn write_good(loaded: &LoadedRules, output: Output) -> io::Result<()> {
    let mut domains: Vec<&str> = loaded.rules.domains().collect();
    domains.sort_unstable();
    let (files, rules) = (loaded.files, loaded.rules.rules().len());
    let mut out = io::stdout().lock();
    match output {
        Output::Json => {
            let warnings = loaded.rules.warnings().map_or(json!([]), |warnings| json!(warnings));
            let good = json!({
                "valid": true, "files": files, "domains": domains, "rules": rules, "diagnostics": warnings,
            });
            writeln!(out, "{good:#}")
        }
        Output::Text => {
            if let Some(warnings) = loaded.rules.warnings() {
                writeln!(anstream::stderr().lock(), "{}\n", warnings.render(Colour::Always))?;
            }
            let (rules, files) = (counted(rules, "rule"), counted(files, "file"));
            writeln!(out, "ok: {rules} in {files}, for {}", domains.join(", "))
        }
    }
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
