//! Moments as the API writes them: RFC 3339, in UTC.

use tidegate_rules::{Timestamp, parse_duration};

use super::problem::{Answer, Problem};

pub(crate) fn text(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).to_string()
}

/// A moment that somebody gave.
pub(crate) fn parse(text: &str, field: &str) -> Answer<Timestamp> {
    let moment: Result<jiff::Timestamp, _> = text.parse();
    let moment = moment.map_err(|_| {
        Problem::field(field, "this is no moment").hint("write date, time and zone: 2027-01-01T00:00:00Z")
    })?;
    Ok(Timestamp::from_micros(u64::try_from(moment.as_microsecond()).unwrap_or(0)))
}

/// A span that somebody gave, such as `15m`.
pub(crate) fn span_us(text: &str, field: &str) -> Answer<u64> {
    let span = parse_duration(text)
        .map_err(|error| Problem::field(field, error.to_string()).hint("such as 15m, 1h or 30d"))?;
    Ok(span.get())
}

/// A moment, or a span from now.
pub(crate) fn moment_or_ahead(text: &str, now: Timestamp, field: &str) -> Answer<Timestamp> {
    match parse_duration(text) {
        Ok(ahead) => Ok(Timestamp::from_micros(now.as_micros().saturating_add(ahead.get()))),
        Err(_) => parse(text, field),
    }
}

/// A moment, or a span back from now.
pub(crate) fn moment_or_back(text: &str, now: Timestamp, field: &str) -> Answer<Timestamp> {
    match parse_duration(text) {
        Ok(back) => Ok(Timestamp::from_micros(now.as_micros().saturating_sub(back.get()))),
        Err(_) => parse(text, field),
    }
}
