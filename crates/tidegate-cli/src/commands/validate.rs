//! `tidegate validate`: whether `serve` would accept these rules or this configuration, and if not, every reason why.

use std::io::{self, Write as _};
use std::process::ExitCode;

use serde_json::json;
use tidegate_rules::{Colour, LostCounters, RuleSet};

use crate::args::{Output, ValidateArgs};
use crate::commands::serve::check;
use crate::failure::Failure;
use crate::rules::{LoadedRules, RuleFiles, RulesError};
use crate::settings::Settings;
use crate::unread::{Surfaces, Unread, locate};

pub(crate) fn run(args: &ValidateArgs) -> Result<ExitCode, Failure> {
    let settings = args.config.as_deref().map(Settings::of_file).transpose()?;
    let surfaces = settings.as_ref().map(Surfaces::of).unwrap_or_default();
    let files = match &settings {
        Some(settings) => settings.rules.clone(),
        None => RuleFiles { native: args.paths.clone(), envoy: args.envoy_config.clone(), xds: false },
    };
    match (files.load(), args.output.output) {
        (Ok(loaded), output) => {
            if let Some(settings) = &settings {
                check(settings, Some(&loaded))?;
            }
            let mut unread = surfaces.unread(&loaded.rules);
            locate(&mut unread, &loaded.files);
            let is_settled = unread.is_empty();
            let lost = lost_counters(args, &loaded.rules)?;
            let is_clean = loaded.rules.warnings().is_none() && is_settled && lost.is_empty();
            let is_good = !args.strict || is_clean;
            write_found(&loaded, &unread, &lost, is_good, output)?;
            Ok(if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        (Err(RulesError::Invalid(found)), Output::Json) => {
            writeln!(io::stdout().lock(), "{:#}", json!({ "valid": false, "diagnostics": found }))?;
            Ok(ExitCode::FAILURE)
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// The counters that would start empty where these rules replace those of `--against`, read in the same format.
fn lost_counters(args: &ValidateArgs, rules: &RuleSet) -> Result<Vec<LostCounters>, Failure> {
    let Some(path) = args.against.clone() else { return Ok(Vec::new()) };
    let in_force = match args.envoy_config {
        Some(_) => RuleFiles { native: Vec::new(), envoy: Some(path), xds: false },
        None => RuleFiles { native: vec![path], envoy: None, xds: false },
    };
    Ok(rules.changes_since(&in_force.load()?.rules).lost)
}

fn write_found(
    loaded: &LoadedRules,
    unread: &[Unread],
    lost: &[LostCounters],
    is_good: bool,
    output: Output,
) -> io::Result<()> {
    let mut domains: Vec<&str> = loaded.rules.domains().collect();
    domains.sort_unstable();
    let (files, rules) = (loaded.files.len(), loaded.rules.rules().len());
    let mut out = io::stdout().lock();
    match output {
        Output::Json => {
            let warnings = loaded.rules.warnings().map_or(json!([]), |warnings| json!(warnings));
            let mut good = json!({
                "valid": is_good, "files": files, "domains": domains, "rules": rules, "diagnostics": warnings,
            });
            if !unread.is_empty() {
                let unread = unread.iter().map(|one| {
                    let (file, line) = one.place().unzip();
                    json!({ "warning": one.to_string(), "add": one.line(), "hint": one.hint(), "file": file, "line": line })
                });
                good["unread"] = unread.collect();
            }
            if !lost.is_empty() {
                let lost = lost.iter().map(|one| {
                    json!({ "domain": one.domain, "rule": one.rule, "warning": one.message, "hint": one.hint })
                });
                good["lost_counters"] = lost.collect();
            }
            writeln!(out, "{good:#}")
        }
        Output::Text => {
            if let Some(warnings) = loaded.rules.warnings() {
                writeln!(anstream::stderr().lock(), "{}\n", warnings.render(Colour::Always))?;
            }
            for one in unread {
                writeln!(anstream::stderr().lock(), "warning: {one}\n  hint: {}\n", one.hint())?;
            }
            for one in lost {
                writeln!(anstream::stderr().lock(), "warning: {}\n  hint: {}\n", one.message, one.hint)?;
            }
            if !is_good {
                return Ok(());
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
