//! `tidegate schema`: the schemas of our files, for editors and linters.

use std::io::{self, Write as _};
use std::process::ExitCode;

use schemars::schema_for;

use crate::args::{SchemaArgs, SchemaOf};
use crate::failure::Failure;
use crate::settings::Config;

pub(crate) fn run(args: &SchemaArgs) -> Result<ExitCode, Failure> {
    let schema = match args.of {
        SchemaOf::Rules => tidegate_rules::SCHEMA.trim_end().to_owned(),
        SchemaOf::Metrics => tidegate_admin::reference().trim_end().to_owned(),
        SchemaOf::Config => {
            serde_json::to_string_pretty(&schema_for!(Config)).expect("a schema is plain data")
        }
    };
    writeln!(io::stdout().lock(), "{schema}")?;
    Ok(ExitCode::SUCCESS)
}
