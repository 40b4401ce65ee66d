//! Log lines on stderr: stdout is for output that a program may read.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};

use crate::repeats::Repeats;
use crate::settings::{LogFilter, LogFormat};

/// Starts logging for the life of the process, and returns the filter that withholds repeated lines.
pub(crate) fn start(filter: &LogFilter, format: LogFormat) -> Repeats {
    let (repeats, filter) = (Repeats::default(), EnvFilter::new(filter.as_str()));
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    // The level filter comes first: a line below the level is not a repeat.
    let lines = match format {
        LogFormat::Text => lines.with_ansi(wants_colour()).with_filter(repeats.clone()).boxed(),
        LogFormat::Json => lines.json().flatten_event(true).with_filter(repeats.clone()).boxed(),
    };
    Registry::default().with(filter).with(lines).init();
    repeats
}

/// On a terminal, unless its user asked for none (<https://no-color.org>).
fn wants_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
