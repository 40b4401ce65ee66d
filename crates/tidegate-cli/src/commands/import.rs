//! `tidegate import`: converts another limiter's configuration to rules, with a note for everything that did not map.

use std::io::{self, Write as _};
use std::process::ExitCode;

use tidegate_rules::{import, load};

use crate::args::{ImportArgs, ImportFormat, Output};
use crate::failure::{Failure, note};
use crate::rules::RulesError;

pub(crate) fn run(args: &ImportArgs) -> Result<ExitCode, Failure> {
    let sources = load(&args.path).map_err(RulesError::Unreadable)?;
    let imported = match args.format {
        ImportFormat::Envoy => import::envoy(&sources),
        ImportFormat::Limitador => import::limitador(&sources),
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
