//! `tidegate import`: converts another limiter's configuration to rules, with a note for everything that did not map.

use std::io::{self, Write as _};
use std::process::ExitCode;

use tidegate_rules::{import, load};

use super::import_env;
use crate::args::{ImportArgs, ImportFormat, Output};
use crate::failure::{Failure, note};
use crate::rules::RulesError;

pub(crate) fn run(args: &ImportArgs) -> Result<ExitCode, Failure> {
    if args.format == ImportFormat::EnvoyEnv {
        return environment(args);
    }
    let sources = load(&args.path).map_err(RulesError::Unreadable)?;
    let imported = match args.format {
        ImportFormat::Envoy => import::envoy(&sources),
        ImportFormat::Limitador => import::limitador(&sources),
        ImportFormat::EnvoyEnv => unreachable!("it is no rule file"),
    };
    let imported = imported.map_err(RulesError::Invalid)?;
    let mut out = io::stdout().lock();
    match args.output.output {
        Output::Json => {
            let json = serde_json::to_string_pretty(&imported).expect("an import is plain data");
            writeln!(out, "{json}")?;
        }
        Output::Text => {
            write!(out, "{}", imported.rules)?;
            imported.notes.iter().for_each(note);
            if imported.is_lossy() && !args.lossy {
                note("some limits are left out, so this exits with 1; `--lossy` accepts that");
            }
        }
    }
    // A script that continues with these rules would miss some limits, unless its author accepts that.
    if imported.is_lossy() && !args.lossy {
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// The environment of envoyproxy/ratelimit as a configuration: what has no equivalent is named, and fails unless accepted.
fn environment(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let imported = import_env::import(&args.path)?;
    let mut out = io::stdout().lock();
    match args.output.output {
        Output::Json => {
            let json = serde_json::json!({
                "config": imported.config, "needless": imported.needless, "defaults": imported.defaults,
                "lost": imported.lost,
            });
            writeln!(out, "{json:#}")?;
        }
        Output::Text => {
            write!(out, "{}", imported.config)?;
            imported.needless.iter().for_each(|one| note(format!("not needed: {one}")));
            imported.defaults.iter().for_each(|one| note(format!("not by default here: {one}")));
            imported.lost.iter().for_each(|one| note(format!("not in it: {one}")));
        }
    }
    let is_whole = imported.lost.is_empty() || args.lossy;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
