//! Log lines on stderr: stdout is for what a program may read.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use crate::settings::{LogFilter, LogFormat};

/// Starts logging for the life of the process.
pub(crate) fn start(filter: &LogFilter, format: LogFormat) {
    let filter = EnvFilter::new(filter.as_str());
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(wants_colour()).init(),
        LogFormat::Json => logs.json().flatten_event(true).init(),
    }
}

/// On a terminal, unless its user asked for none (<https://no-color.org>).
fn wants_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
